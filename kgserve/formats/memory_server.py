"""The JSONL file of the official MCP memory server: entities with observations, and relations between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from kgserve.decoding import json_decoder
from kgserve.formats.records import MAX_LINE_BYTES, Record, Wrong, edge, node, text_lines

TYPE = "entity"
"""The type of an entity that has none."""


class Entity(msgspec.Struct, tag="entity", tag_field="type"):
    """An entity as the server writes it."""

    name: str
    entity_type: str = msgspec.field(name="entityType", default="")
    observations: list[str] = []


class Relation(msgspec.Struct, tag="relation", tag_field="type"):
    """A relation as the server writes it; its ends are names of entities."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str = msgspec.field(name="relationType")


_decode = json_decoder(Entity | Relation).decode


def read_memory(file: BinaryIO) -> Iterator[Record]:
    """Its lines, in the file's order; what else it holds is wrong."""
    for number, line in text_lines(file):
        text = line.strip()
        if not text:
            continue
        if len(line) > MAX_LINE_BYTES:
            yield Wrong(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
            continue
        try:
            found = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            yield Wrong(number, f"is no line of the memory server: {error}")
            continue
        yield _line(number, found)


def _line(number: int, found: Entity | Relation) -> Record:
    match found:
        case Entity():
            values = {
                "id": found.name,
                "type": found.entity_type or TYPE,
                "content": "\n".join(found.observations),
                "attributes": {"observations": found.observations},
            }
            return node(number, values)
        case Relation():
            return edge(number, {"from": found.source, "to": found.target, "relation_type": found.relation_type})
