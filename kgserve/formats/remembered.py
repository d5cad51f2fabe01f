"""The file of the official MCP memory server as memories: entities by name, each observation a memory about its own.

A memory's id is made of the entity's name and the observation, so the same file read again makes the same rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from kgserve.formats.lines import Record, Wrong, edge, node, read_lines
from kgserve.formats.memory_server import is_memory_line, read_line
from kgserve.model.entities import Entity
from kgserve.model.memories import UNKNOWN, USUAL_TYPE

SOURCE = "memory-server"
"""The source of such memories."""
_MEMORIES = uuid.UUID("6f2c1d4e-8a37-5b90-9c1e-2d7f4a6b8c35")
_ABOUT = "is_about"


def read_memories(file: BinaryIO) -> Iterator[Record]:
    """Nodes and edges in the order of the lines; what is no line of the memory server's is wrong."""
    for record in read_lines(file):
        if isinstance(record, Wrong):
            yield record
        else:
            yield from _records(record.number, record.line)


def _records(number: int, line: bytes) -> Iterator[Record]:
    if not is_memory_line(line):
        yield Wrong(number, 'is no line of the memory server: {"type": "entity", …} or {"type": "relation", …}')
        return
    try:
        found = read_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        yield Wrong(number, f"is no line of the memory server: {error}")
        return
    if isinstance(found, Entity):
        yield from _entity(number, found)
    else:
        ends: dict[str, Any] = {"from": found.source, "to": found.target}
        yield edge(number, ends | {"relation_type": found.relation_type})


def _entity(number: int, entity: Entity) -> Iterator[Record]:
    yield node(number, {"id": entity.name, "type": entity.entity_type or UNKNOWN, "name": entity.name})
    for observation in dict.fromkeys(filter(str.strip, entity.observations)):
        memory = str(uuid.uuid5(_MEMORIES, f"{entity.name}\0{observation}"))
        remembered = {"content": observation, "confidence": 1.0, "source": SOURCE}
        yield node(number, {"id": memory, "type": USUAL_TYPE, **remembered})
        yield edge(number, {"from": memory, "to": entity.name, "relation_type": _ABOUT})
