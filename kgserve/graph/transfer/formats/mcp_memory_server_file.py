"""Files of the official MCP memory server: one JSON object per line for each entity and each relation."""

from __future__ import annotations

import re
import uuid
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from kgserve.graph.compat.mcp_memory_server_api import (
    DEFAULT_ENTITY_TYPE,
    EntityNameRelation,
    EntityWithObservations,
    decode_entity_observations,
    encode_entity_observations,
    is_placeholder_node,
)
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    ExportedEdgeLine,
    ExportedNodeLine,
    ExportNodeEdgeSplitter,
    ImportRecord,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
    raw_json_to_text,
    read_ndjson_exchange_lines,
)
from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.entity_names import DEFAULT_MEMORY_TYPE, IS_ABOUT_RELATION, UNKNOWN_TYPE


class _EntityLine(EntityWithObservations, tag="entity", tag_field="type", kw_only=True):
    entity_type: str = msgspec.field(name="entityType", default="")
    observations: list[str] = msgspec.field(default_factory=list)


class _RelationLine(EntityNameRelation, tag="relation", tag_field="type", kw_only=True):
    pass


_decode = json_decoder(_EntityLine | _RelationLine).decode
_encode_lines = msgspec.json.Encoder().encode_lines

# Quotes within JSON strings are escaped, so these patterns match field names only.
_MEMORY_SERVER_TYPE = re.compile(rb'"type"\s*:\s*"(?:entity|relation)"')
_MEMORY_SERVER_NAME = re.compile(rb'"(?:name|relationType)"\s*:')
_GRAPH_OBJECT_START = re.compile(rb'\s*\{\s*"(?:entities|relations)"\s*:')
_KGSERVE_KIND = re.compile(rb'"kind"\s*:')


def is_mcp_memory_server_line(text: bytes) -> bool:
    """Return whether a line is of the memory server, not of the exchange format."""
    return bool(_MEMORY_SERVER_TYPE.search(text) and _MEMORY_SERVER_NAME.search(text)) and not _KGSERVE_KIND.search(
        text
    )


def is_mcp_read_graph_answer_start(text: bytes) -> bool:
    """Return whether a line begins an object of all entities and relations, an answer of the memory server."""
    return _GRAPH_OBJECT_START.match(text) is not None


def decode_mcp_memory_server_line(text: bytes) -> EntityWithObservations | EntityNameRelation:
    """Decode a line of the memory server. Raises msgspec's DecodeError."""
    return _decode(text.removeprefix(BOM_UTF8))


def mcp_entity_to_ndjson_line(entity: EntityWithObservations) -> NodeNdjsonLine:
    """Convert an entity to a line of the exchange format."""
    content = encode_entity_observations(entity.observations)
    return NodeNdjsonLine(id=entity.name, type=entity.entity_type or DEFAULT_ENTITY_TYPE, content=content)


def mcp_relation_to_ndjson_line(relation: EntityNameRelation) -> EdgeNdjsonLine:
    """Convert a relation to a line of the exchange format."""
    return EdgeNdjsonLine(source=relation.source, target=relation.target, relation_type=relation.relation_type)


def write_mcp_memory_server_file(blocks: Iterable[bytes], file: BinaryIO) -> int:
    """Write an export, and return the number of its lines.

    Placeholders and links are left out.
    """
    lines = ExportNodeEdgeSplitter(blocks)
    file.writelines(
        _encode_lines([_to_entity_line(each) for each in nodes if not _is_placeholder_record(each)])
        for nodes in lines.nodes()
    )
    own = ([edge for edge in edges if edge.to_graph is None] for edges in lines.edges())
    file.writelines(_encode_lines(map(_to_relation_line, edges)) for edges in own)
    return lines.count


def _is_placeholder_record(record: ExportedNodeLine) -> bool:
    return is_placeholder_node(record.type, record.content, raw_json_to_text(record.attributes))


def _to_entity_line(record: ExportedNodeLine) -> _EntityLine:
    observations = decode_entity_observations(record.content)
    return _EntityLine(name=record.id, entity_type=record.type, observations=observations)


def _to_relation_line(record: ExportedEdgeLine) -> _RelationLine:
    return _RelationLine(source=record.source, target=record.target, relation_type=record.relation_type)


MEMORY_SERVER_SOURCE = "memory-server"
"""The source of imported memories."""
_MEMORY_ID_NAMESPACE = uuid.UUID("6f2c1d4e-8a37-5b90-9c1e-2d7f4a6b8c35")


def read_mcp_observations_as_memories(file: BinaryIO) -> Iterator[ImportRecord]:
    """Yield entities by name, and each observation as a memory about its entity. Other lines are faults.

    The id of a memory is derived from the name of the entity and the observation, so importing a file again creates the
    same rows.
    """
    for record in read_ndjson_exchange_lines(file):
        if isinstance(record, RejectedImportRow):
            yield record
        else:
            yield from _memories_of(record.number, record.line)


def _memories_of(number: int, line: bytes) -> Iterator[ImportRecord]:
    if not is_mcp_memory_server_line(line):
        yield RejectedImportRow(
            number,
            'must be a line of the memory server, whose `type` is "entity" or "relation": '
            '{"type": "entity", "name": …, "entityType": …} or {"type": "relation", "from": …, "to": …}',
        )
        return
    try:
        found = decode_mcp_memory_server_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        yield RejectedImportRow(number, f"is not a valid line of the memory server: {error}")
        return
    if isinstance(found, EntityWithObservations):
        yield from _entity_and_memories(number, found)
    else:
        ends: dict[str, Any] = {"from": found.source, "to": found.target}
        yield encode_edge_ndjson_line(number, ends | {"relation_type": found.relation_type})


def _entity_and_memories(number: int, entity: EntityWithObservations) -> Iterator[ImportRecord]:
    yield encode_node_ndjson_line(
        number, {"id": entity.name, "type": entity.entity_type or UNKNOWN_TYPE, "name": entity.name}
    )
    for place, observation in enumerate(entity.observations):
        if not observation.strip():
            yield RejectedImportRow(number, f"observations[{place}] is blank; it was skipped")
    for observation in dict.fromkeys(filter(str.strip, entity.observations)):
        memory = str(uuid.uuid5(_MEMORY_ID_NAMESPACE, f"{entity.name}\0{observation}"))
        remembered = {"content": observation, "confidence": 1.0, "source": MEMORY_SERVER_SOURCE}
        yield encode_node_ndjson_line(number, {"id": memory, "type": DEFAULT_MEMORY_TYPE, **remembered})
        yield encode_edge_ndjson_line(number, {"from": memory, "to": entity.name, "relation_type": IS_ABOUT_RELATION})
