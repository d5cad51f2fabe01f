"""Memories as callers get them: a node's row, with what reading has made of it, and what it is about."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kgserve.memory.api import DEFAULT_IMPORTANCE, Memory, MemoryEntity
from kgserve.platform.codecs import decode_json
from kgserve.platform.times import format_time
from kgserve.projections.memory_index import decay
from kgserve.projections.memory_index.decay import Confidence, HalfLives, confidence_of, effective, half_lives_of
from kgserve.storage.model.change import Access
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.rows import NO_ATTRIBUTES, EdgeRow, NodeRow
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import outgoing_of, parents_among
from kgserve.stores.store import OpenStore


def now_in_microseconds() -> int:
    """The server's clock."""
    return time.time_ns() // 1000


def record_use(
    store: OpenStore, rows: Iterable[NodeRow], now: int, least: Mapping[str, float] | None = None
) -> dict[str, Access]:
    """Count one use of each memory, which raises its confidence; ``least`` is what some are worth in any case."""
    by_id = {row.id: row for row in rows}
    settings, at_least = store.description.memory, least or {}
    half_lives = half_lives_of(settings)

    def used(node_id: str, before: Access | None) -> Access:
        row = by_id[node_id]
        worth, fading = confidence_of(row, before), half_lives.of(row.type)
        if (floor := at_least.get(node_id, 0.0)) > decay.effective(worth, now, fading):
            worth = Confidence(floor if settings.reinforcement == "add" else max(floor, worth.confidence), now)
        risen = _reinforce(settings, worth, now, fading)
        return Access(node_id, 1 if before is None else before.count + 1, risen.since, risen.confidence)

    return store.accesses.update(by_id, used)


def _reinforce(settings: MemorySettings, worth: Confidence, now: int, half_life: int | None) -> Confidence:
    """Apply the formula that the store's setting `reinforcement` names."""
    if settings.reinforcement == "add":
        return decay.add_to_remainder(worth, now, half_life, settings.reinforcement_amount)
    return decay.restore_and_add(worth, now, settings.reinforcement_amount)


def to_memories(store: OpenStore, rows: Rows, found: Sequence[NodeRow], now: int) -> list[Memory]:
    """Some memories, as of now in microseconds, with whom and what they are about."""
    return [Memory(**fields) for fields in shown_fields(store, rows, found, now)]


def shown_fields(store: OpenStore, rows: Rows, found: Sequence[NodeRow], now: int) -> list[dict[str, Any]]:
    """The same as the fields of each."""
    ids = [row.id for row in found]
    accesses, half_lives = store.accesses.of(ids), half_lives_of(store.description.memory)
    edges = outgoing_of(rows, ids, (IS_ABOUT, CHILD_OF))
    about_edges = [edge for edge in edges if edge.relation_type == IS_ABOUT]
    about = entities_among(about_edges, rows.nodes({edge.target for edge in about_edges}))
    above = parents_among(rows, edges)
    return [
        fields_of(half_lives, row, accesses.get(row.id), about.get(row.id, ()), now, above.get(row.id)) for row in found
    ]


def fields_of(
    half_lives: HalfLives,
    row: NodeRow,
    access: Access | None,
    about: Sequence[MemoryEntity],
    now: int,
    parent: str | None,
) -> dict[str, Any]:
    """The fields of one `Memory`; ``access`` is its last use, ``parent`` the id of what it stands below."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is no memory")
    worth = confidence_of(row, access)
    created_at = format_time(row.created_at)
    fields: dict[str, Any] = {
        "id": row.id,
        "content": row.content,
        "memory_type": row.type,
        "tags": list(extras.tags),
        "confidence": worth.confidence,
        "effective_confidence": effective(worth, now, half_lives.of(row.type)),
        "importance": DEFAULT_IMPORTANCE if extras.importance is None else extras.importance,
        "source": extras.source or None,
        "context": extras.context or None,
        "metadata": {} if row.attributes == NO_ATTRIBUTES else decode_json(row.attributes, dict[str, Any]),
        "entities": list(about),
        "access_count": 0 if access is None else access.count,
        "last_accessed_at": None if access is None else format_time(access.last),
        "created_at": created_at,
        "updated_at": created_at if row.updated_at == row.created_at else format_time(row.updated_at),
        "version": row.version,
    }
    optional = (
        ("layer", extras.layer),
        ("parent_id", parent),
        ("valid_from", _text(extras.valid_from)),
        ("valid_to", _text(extras.valid_to)),
        ("ended", extras.ended or None),
        ("belongs_to", extras.belongs_to or None),
    )
    fields.update((name, value) for name, value in optional if value is not None)
    return fields


def entities_among(edges: Iterable[EdgeRow], named: Mapping[str, NodeRow]) -> dict[str, list[MemoryEntity]]:
    """The entities that edges of memories lead to, of those that are there; by memory, the most relevant first."""
    found: dict[str, list[MemoryEntity]] = {}
    for edge in sorted(edges, key=lambda edge: (-edge.weight, edge.target)):
        entity = named.get(edge.target)
        if entity is not None:
            about = MemoryEntity(id=entity.id, name=name_of(entity), entity_type=entity.type, relevance=edge.weight)
            found.setdefault(edge.source, []).append(about)
    return found


def name_of(row: NodeRow) -> str:
    """What a node is called: its name, or else its id."""
    return (row.extras.name if row.extras is not None else "") or row.id


def _text(moment: int | None) -> str | None:
    return None if moment is None else format_time(moment)
