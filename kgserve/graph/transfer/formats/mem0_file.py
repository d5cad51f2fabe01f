"""Files of mem0's memories: the JSON of its `get_all`, with user, agent, run and metadata of each memory.

What mem0 has no place for is in the metadata under ``kgserve``, so that an import of an export gives equal memories.
"""

from __future__ import annotations

import uuid
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from typing import Any, BinaryIO

import msgspec

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    ExportedEdgeLine,
    ExportedNodeLine,
    ExportNodeEdgeSplitter,
    ImportRecord,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
)
from kgserve.platform.codecs import convert_plain_value_to_type, json_decoder, locate_validation_error
from kgserve.platform.duplicate_json_keys import decode_json_with_unique_keys
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, UNKNOWN_TYPE

MEM0_SOURCE = "mem0"
"""The source of imported memories."""

_SCOPES = {"user_id": "user", "agent_id": "agent", "run_id": "run"}
"""mem0's fields of who a memory is about, with the types of these entities."""
_PROMOTED_METADATA = ("actor_id", "role", "attributed_to")
"""Metadata that mem0 shows in addition to ``metadata``."""
_EXPIRATION = "expiration_date"
_OWN_METADATA = "kgserve"
_RELATIONS = "relations"
_ABOUT = "about"
# What retaining a text sets.
_DEFAULT_FIELDS = {"type": "fact", "confidence": 1.0, "importance": 0.5, "source": MEM0_SOURCE, "layer": 2}
_UNEXPORTED_FIELDS = {
    *("id", "content", "attributes", "version", "created_at", "updated_at"),
    *("access_count", "last_accessed_at", "access_confidence"),
}
_MEMORY_ID_NAMESPACE = uuid.UUID("2f0c5c58-94cd-5b0b-8a0a-0f0e3f4f7c11")
_MIDNIGHT = "T00:00:00.000000Z"

_Fields = dict[str, Any]
_decode_object = json_decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode


def read_mem0_memories(file: BinaryIO, name: str) -> Iterator[ImportRecord]:
    """Yield the memories of a file, numbered from 1, and the users, agents, runs and entities that they are about.

    Reads the whole file into memory. Raises InvalidInput if it is no JSON of memories.
    """
    try:
        found = decode_json_with_unique_keys(file.read().removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{name or 'the input'} is not JSON: {error}") from error
    items = found.get("results") if isinstance(found, dict) else found
    if not isinstance(items, list):
        raise InvalidInput(
            f"{name or 'the input'} is not a file of mem0: it must be a list of memories, or an object with `results`"
        )
    entities = _EntitiesOfFile()
    for number, item in enumerate(items, 1):
        if fault := _find_fault(item):
            yield RejectedImportRow(number, fault)
        else:
            yield from _memory_records(number, item, entities)
    relations = found.get(_RELATIONS) if isinstance(found, dict) else None
    if isinstance(relations, list):
        for number, item in enumerate(relations, len(items) + 1):
            yield from _relation_records(number, item, entities)
    elif relations is not None:
        yield RejectedImportRow(len(items) + 1, f"{_RELATIONS}: must be a list")


class _Mem0Relation(msgspec.Struct):
    """A relation between two entities, which mem0's graph memory finds in texts.

    Searches name its end ``destination``, older versions ``target``.
    """

    source: str
    relationship: str
    target: str | None = None
    destination: str | None = None

    @property
    def end(self) -> str:
        """Name of the entity that it leads to."""
        return self.target or self.destination or ""


def _relation_records(number: int, item: Any, known: _EntitiesOfFile) -> Iterator[ImportRecord]:
    """Yield a relation, and its entities where no memory has made them."""
    at = f"{_RELATIONS}: "
    try:
        found = convert_plain_value_to_type(item, _Mem0Relation)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, _Mem0Relation)
        yield RejectedImportRow(number, f"{at}{fault.path}: {fault.message}" if fault.path else at + fault.message)
        return
    if not (found.source.strip() and found.relationship.strip() and found.end.strip()):
        yield RejectedImportRow(number, f"{at}source, relationship and target must not be blank")
        return
    for name in dict.fromkeys((found.source, found.end)):
        if known.is_unnamed(name):
            yield encode_node_ndjson_line(number, {"id": name, "type": UNKNOWN_TYPE, "name": name})
    ends = {"from": found.source, "to": found.end, "relation_type": found.relationship}
    yield encode_edge_ndjson_line(number, ends)


class _Mem0Memory(msgspec.Struct):
    """Fields of a memory of mem0 that an import reads; others are ignored."""

    memory: str
    id: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    expiration_date: date | None = None
    metadata: _Fields | None = None


class _RelatedEntity(msgspec.Struct):
    """An entity that a memory is about, in its metadata."""

    id: str
    type: str | None = None
    name: str | None = None
    weight: float | None = None


def _find_fault(item: Any) -> str:
    """Return what is wrong with a memory; nothing if it can be imported."""
    kind: Any = _Mem0Memory
    parent = ""
    try:
        found = convert_plain_value_to_type(item, _Mem0Memory)
        own = (found.metadata or {}).get(_OWN_METADATA)
        if isinstance(own, dict) and _ABOUT in own:
            kind, parent = list[_RelatedEntity], f"metadata.{_OWN_METADATA}.{_ABOUT}"
            convert_plain_value_to_type(own[_ABOUT], kind)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, kind)
        path = parent + fault.path
        return f"{path}: {fault.message}" if path else fault.message
    for name in _PROMOTED_METADATA:
        shown, stored = item.get(name), (found.metadata or {}).get(name)
        if shown is not None and stored is not None and shown != stored:
            return f"{name}: is {shown!r}, but {stored!r} in `metadata`"
    return "" if found.memory.strip() else "memory: must not be blank"


def _memory_records(number: int, item: _Fields, known: _EntitiesOfFile) -> Iterator[ImportRecord]:
    metadata: _Fields = dict(item.get("metadata") or {})
    own = metadata.pop(_OWN_METADATA, None)
    if isinstance(own, dict):
        fields, about = {name: value for name, value in own.items() if name != _ABOUT}, own.get(_ABOUT, [])
        fields |= {name: item.get(name) for name in ("created_at", "updated_at")}
    else:
        # A memory as old as in mem0 would have faded, and be pruned.
        fields, about = _DEFAULT_FIELDS | {"valid_from": item.get("created_at")}, []
        if own is not None:
            metadata[_OWN_METADATA] = own
    promoted = {name: item[name] for name in _PROMOTED_METADATA if item.get(name) is not None}
    entities = [*about, *known.scopes(item, about)]
    memory = item.get("id") or str(
        uuid.uuid5(_MEMORY_ID_NAMESPACE, f"{[item.get(field) for field in _SCOPES]}\0{item['memory']}")
    )
    for entity in filter(known.is_new, entities):
        named = {name: entity[name] for name in ("id", "type", "name") if entity.get(name) is not None}
        yield encode_node_ndjson_line(number, {"type": UNKNOWN_TYPE} | named)
    # An export keeps attributes apart whose name is that of its own metadata, but not those that mem0 shows.
    attributes = fields.pop("attributes", metadata)
    attributes = promoted | attributes if isinstance(attributes, dict) else attributes
    written = {"id": memory, "content": item["memory"], "attributes": attributes}
    yield encode_node_ndjson_line(number, _read_expiration(item) | written | fields)
    for entity in entities:
        ends = {"from": memory, "to": entity["id"], "relation_type": IS_ABOUT_RELATION}
        yield encode_edge_ndjson_line(number, ends | {"weight": entity.get("weight")})


class _EntitiesOfFile:
    """Entities of the memories that were read so far."""

    def __init__(self) -> None:
        self._types_by_id: dict[str, str] = {}
        self._seen: set[bytes] = set()
        self._ids: set[str] = set()

    def is_new(self, entity: _Fields) -> bool:
        """Return True the first time that an entity is passed."""
        key = _encode({name: entity.get(name) for name in ("id", "type", "name")})
        is_new = key not in self._seen
        self._seen.add(key)
        self._ids.add(entity["id"])
        return is_new

    def is_unnamed(self, entity_id: str) -> bool:
        """Return True the first time that an id is passed that no memory names."""
        is_unnamed = entity_id not in self._ids
        self._ids.add(entity_id)
        return is_unnamed

    def scopes(self, item: _Fields, about: list[_Fields]) -> Iterator[_Fields]:
        """Yield the user, agent and run of a memory that are not among the entities that it names itself."""
        listed = {(each.get("type"), each.get("name") or each["id"]) for each in about}
        for field, kind in _SCOPES.items():
            name = item.get(field)
            if name and (kind, name) not in listed:
                # A user and an agent of one name are two entities.
                is_own = self._types_by_id.setdefault(name, kind) == kind
                yield {"id": name if is_own else f"{kind}:{name}", "type": kind, "name": name}


def _read_expiration(item: _Fields) -> _Fields:
    """Return the end of a memory's validity: mem0 shows it until the end of the day."""
    last = date.fromisoformat(item[_EXPIRATION]) if item.get(_EXPIRATION) else date.max
    # No time is after the last day of the calendar, which stands for no end.
    return {} if last == date.max else {"valid_to": f"{last + timedelta(days=1)}{_MIDNIGHT}"}


def write_mem0_file(blocks: Iterable[bytes], file: BinaryIO) -> int:
    """Write the memories of an export that have not ended, and return the number of its lines.

    Holds all nodes in memory. Other nodes, and edges between them, are left out.
    """
    lines = ExportNodeEdgeSplitter(blocks)
    memories: list[ExportedNodeLine] = []
    entities: dict[str, _Fields] = {}
    for batch in lines.nodes():
        for node in batch:
            if node.confidence is None:
                named = {"id": node.id, "type": node.type, "name": node.name}
                entities[node.id] = {name: value for name, value in named.items() if value is not None}
            elif node.ended is None:
                memories.append(node)
    about: defaultdict[str, list[_Fields]] = defaultdict(list)
    for batch in lines.edges():
        for edge in batch:
            if edge.relation_type == IS_ABOUT_RELATION and edge.to_graph is None and edge.target in entities:
                about[edge.source].append(_with_weight(entities[edge.target], edge))
    file.write(b'{"results": [')
    file.writelines(
        (b",\n" if number else b"\n") + _encode(_to_mem0_item(memory, about[memory.id]))
        for number, memory in enumerate(memories)
    )
    file.write(b"\n]}\n")
    return lines.count


def _with_weight(entity: _Fields, edge: ExportedEdgeLine) -> _Fields:
    return entity if edge.weight == 1 else entity | {"weight": edge.weight}


def _to_mem0_item(memory: ExportedNodeLine, about: list[_Fields]) -> _Fields:
    """Return a memory as in an answer of mem0."""
    metadata = _decode_object(memory.attributes)
    item: _Fields = {"id": memory.id, "memory": memory.content}
    item |= {"created_at": memory.created_at, "updated_at": memory.updated_at}
    fields = {
        name: value
        for name, value in msgspec.structs.asdict(memory).items()
        if name not in _UNEXPORTED_FIELDS and value is not None
    }
    if expiration := _format_expiration(fields.get("valid_to", "")):
        item[_EXPIRATION] = expiration
        del fields["valid_to"]
    others = _take_scopes(item, about)
    item |= {name: metadata.pop(name) for name in _PROMOTED_METADATA if isinstance(metadata.get(name), str)}
    is_as_imported = {name: each for name, each in fields.items() if name != "valid_from"} == _DEFAULT_FIELDS
    if is_as_imported and not others and not isinstance(metadata.get(_OWN_METADATA), dict):
        # An import takes this time for the beginning of validity.
        del item["created_at"]
        item |= {"created_at": memory.valid_from} if memory.valid_from else {}
    else:
        own = fields | ({"attributes": dict(metadata)} if _OWN_METADATA in metadata else {})
        metadata[_OWN_METADATA] = own | ({_ABOUT: others} if others else {})
    return item | {"metadata": metadata or None}


def _take_scopes(item: _Fields, about: list[_Fields]) -> list[_Fields]:
    """Set user, agent and run of a memory; return the entities that an import would not make from these."""
    others: list[_Fields] = []
    fields = {kind: field for field, kind in _SCOPES.items()}
    for entity in about:
        field = fields.get(entity["type"])
        is_first = field is not None and field not in item
        if field is not None and is_first:
            item[field] = entity.get("name") or entity["id"]
        if not is_first or entity != {"id": entity["id"], "type": entity["type"], "name": entity["id"]}:
            others.append(entity)
    return others


def _format_expiration(valid_to: str) -> str | None:
    """Return the last day of a validity that ends at midnight, unless that is before the calendar begins."""
    if not valid_to.endswith(_MIDNIGHT):
        return None
    end = date.fromisoformat(valid_to.removesuffix(_MIDNIGHT))
    return None if end == date.min else str(end - timedelta(days=1))
