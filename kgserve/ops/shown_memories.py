"""Memories as callers get them: a node's row, with what reading has made of it, and what it is about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from kgserve.decoding import decode_json
from kgserve.model.change import Access
from kgserve.model.half_lives import worth_of
from kgserve.model.memories import USUAL_IMPORTANCE, Memory, MemoryEntity
from kgserve.model.names import IS_ABOUT
from kgserve.model.rows import NodeRow
from kgserve.model.times import format_time
from kgserve.ops.worth import settings_of
from kgserve.rows.edge_page import of_kinds
from kgserve.rows.snapshot import Rows
from kgserve.rows.upwards import parents
from kgserve.store.store import Store


def shown(store: Store, rows: Rows, found: Sequence[NodeRow], now: int) -> list[Memory]:
    """Some memories, as of now in microseconds, with whom and what they are about."""
    accesses = store.accesses.of([row.id for row in found])
    about = entities_of(rows, [row.id for row in found])
    above = parents(rows, [row.id for row in found])
    return [as_memory(store, row, accesses.get(row.id), about.get(row.id, ()), now, above.get(row.id)) for row in found]


def as_memory(
    store: Store, row: NodeRow, access: Access | None, about: Sequence[MemoryEntity], now: int, parent: str | None
) -> Memory:
    """One memory; ``access`` is its last use, ``parent`` the id of what it stands below."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is no memory")
    optional: dict[str, Any] = {
        "layer": extras.layer,
        "parent_id": parent,
        "valid_from": _text(extras.valid_from),
        "valid_to": _text(extras.valid_to),
        "ended": extras.ended or None,
        "belongs_to": extras.belongs_to or None,
    }
    return Memory(
        id=row.id,
        content=row.content,
        memory_type=row.type,
        tags=list(extras.tags),
        confidence=worth_of(row, access).confidence,
        effective_confidence=settings_of(store).half_lives.effective(row, access, now),
        importance=USUAL_IMPORTANCE if extras.importance is None else extras.importance,
        source=extras.source or None,
        context=extras.context or None,
        metadata=decode_json(row.attributes, dict[str, Any]),
        entities=list(about),
        access_count=0 if access is None else access.count,
        last_accessed_at=None if access is None else format_time(access.last),
        created_at=format_time(row.created_at),
        updated_at=format_time(row.updated_at),
        version=row.version,
        **{name: msgspec.UNSET if value is None else value for name, value in optional.items()},
    )


def entities_of(rows: Rows, ids: Collection[str]) -> dict[str, list[MemoryEntity]]:
    """Whom and what some memories are about, each most relevant first."""
    numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
    if not len(numbers):
        return {}
    edges = list(rows.rows_of(of_kinds(rows, rows.around(numbers, outgoing=True), (IS_ABOUT,))))
    named = rows.nodes({edge.target for edge in edges})
    found: dict[str, list[MemoryEntity]] = {}
    for edge in sorted(edges, key=lambda edge: (-edge.weight, edge.target)):
        entity = named[edge.target]
        about = MemoryEntity(id=entity.id, name=name_of(entity), entity_type=entity.type, relevance=edge.weight)
        found.setdefault(edge.source, []).append(about)
    return found


def name_of(row: NodeRow) -> str:
    """What a node is called: its name, or else its id."""
    return (row.extras.name if row.extras is not None else "") or row.id


def _text(moment: int | None) -> str | None:
    return None if moment is None else format_time(moment)
