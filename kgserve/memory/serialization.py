"""Memories as API answers: a node's row with its accesses, entities and parent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kgserve.errors import NotFound
from kgserve.memory.memory_models import DEFAULT_IMPORTANCE, EntityWithRelevance, Memory
from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.memory_index import confidence_decay
from kgserve.projections.memory_index.confidence_decay import (
    ConfidenceAtTime,
    MemoryHalfLives,
    decayed_confidence,
    get_last_memory_confidence,
    memory_half_lives_from_settings,
)
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, EdgeRow, NodeRow
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.rows.memory_hierarchy_and_redirects import (
    find_memory_parents_among_candidates,
    find_outgoing_edges_of_types,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

K = TypeVar("K")
R = TypeVar("R")


def now_in_microseconds() -> int:
    """Return the server's clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def record_memory_uses(
    store: OpenStore,
    rows: Iterable[NodeRow],
    now: int,
    least: Mapping[str, float] | None = None,
    *,
    block: bool = True,
) -> dict[str, MemoryAccessRecord]:
    """Record one use of each memory, which raises its confidence; `least` are minimum confidences by id.

    Without `block`, raises WouldBlock if it would have to wait.
    """
    by_id = {row.id: row for row in rows}
    settings, at_least = store.description.memory, least or {}
    half_lives = memory_half_lives_from_settings(settings)

    def used(node_id: str, before: MemoryAccessRecord | None) -> MemoryAccessRecord:
        row = by_id[node_id]
        stored, half_life = get_last_memory_confidence(row, before), half_lives.of(row.type)
        if (floor := at_least.get(node_id, 0.0)) > confidence_decay.decayed_confidence(stored, now, half_life):
            stored = ConfidenceAtTime(floor if settings.reinforcement == "add" else max(floor, stored.confidence), now)
        raised = _reinforce(settings, stored, now, half_life)
        return MemoryAccessRecord(node_id, 1 if before is None else before.count + 1, raised.since, raised.confidence)

    return store.accesses.update(by_id, used, block=block)


def _reinforce(settings: MemorySettings, stored: ConfidenceAtTime, now: int, half_life: int | None) -> ConfidenceAtTime:
    """Apply the formula of the store's setting `reinforcement`."""
    if settings.reinforcement == "add":
        return confidence_decay.boost_decayed_confidence(stored, now, half_life, settings.reinforcement_amount)
    return confidence_decay.boost_undecayed_confidence(stored, now, settings.reinforcement_amount)


def require_undeleted_rows(found: Mapping[K, R], keys: Iterable[K], what: str) -> list[R]:
    """Return the rows that a request has just written, which another one may delete before they are answered.

    Raises NotFound.
    """
    rows: list[R] = []
    for key in keys:
        if (row := found.get(key)) is None:
            raise NotFound(f"{what} {key!r} was deleted or merged by another request meanwhile")
        rows.append(row)
    return rows


def build_memories_from_rows(
    store: OpenStore, rows: RowsSnapshot, found: Sequence[NodeRow], now: int, *, block: bool = True
) -> list[Memory]:
    """Return memories as of `now`, in microseconds, with their entities.

    Without `block`, raises WouldBlock if it would have to wait.
    """
    return [Memory(**fields) for fields in build_memory_fields_from_rows(store, rows, found, now, block=block)]


def build_memory_fields_from_rows(
    store: OpenStore, rows: RowsSnapshot, found: Sequence[NodeRow], now: int, *, block: bool = True
) -> list[dict[str, Any]]:
    """Return the `Memory` fields of some rows. Without `block`, raises WouldBlock if it would have to wait."""
    ids = [row.id for row in found]
    accesses = store.accesses.of(ids, block=block)
    half_lives = memory_half_lives_from_settings(store.description.memory)
    edges = find_outgoing_edges_of_types(rows, ids, (IS_ABOUT_RELATION, CHILD_OF_RELATION))
    about_edges = [edge for edge in edges if edge.relation_type == IS_ABOUT_RELATION]
    about = group_entities_by_memory(about_edges, rows.nodes({edge.target for edge in about_edges}))
    above = find_memory_parents_among_candidates(rows, edges)
    return [
        build_memory_answer_fields(half_lives, row, accesses.get(row.id), about.get(row.id, ()), now, above.get(row.id))
        for row in found
    ]


def build_memory_answer_fields(
    half_lives: MemoryHalfLives,
    row: NodeRow,
    access: MemoryAccessRecord | None,
    about: Sequence[EntityWithRelevance],
    now: int,
    parent: str | None,
) -> dict[str, Any]:
    """Return the fields of one `Memory`; `access` is its last use, `parent` the id of its parent."""
    extras = row.extras
    if extras is None or extras.confidence is None:
        raise ValueError(f"{row.id} is not a memory")
    worth = get_last_memory_confidence(row, access)
    created_at = format_rfc3339_timestamp(row.created_at)
    fields: dict[str, Any] = {
        "id": row.id,
        "content": row.content,
        "memory_type": row.type,
        "tags": list(extras.tags),
        "confidence": worth.confidence,
        "effective_confidence": decayed_confidence(worth, now, half_lives.of(row.type)),
        "importance": DEFAULT_IMPORTANCE if extras.importance is None else extras.importance,
        "source": extras.source or None,
        "context": extras.context or None,
        "metadata": {} if row.attributes == EMPTY_ATTRIBUTES_JSON else decode_json(row.attributes, dict[str, Any]),
        "entities": list(about),
        "access_count": 0 if access is None else access.count,
        "last_accessed_at": None if access is None else format_rfc3339_timestamp(access.last),
        "created_at": created_at,
        "updated_at": created_at if row.updated_at == row.created_at else format_rfc3339_timestamp(row.updated_at),
        "version": row.version,
    }
    optional = (
        ("layer", extras.layer),
        ("parent_id", parent),
        ("valid_from", _format_optional(extras.valid_from)),
        ("valid_to", _format_optional(extras.valid_to)),
        ("ended", extras.ended or None),
        ("belongs_to", extras.belongs_to or None),
    )
    fields.update((name, value) for name, value in optional if value is not None)
    return fields


def group_entities_by_memory(
    edges: Iterable[EdgeRow], named: Mapping[str, NodeRow]
) -> dict[str, list[EntityWithRelevance]]:
    """Return the existing entities at the ends of edges of memories; by memory, most relevant first."""
    found: dict[str, list[EntityWithRelevance]] = {}
    for edge in sorted(edges, key=lambda edge: (-edge.weight, edge.target)):
        entity = named.get(edge.target)
        if entity is not None:
            about = EntityWithRelevance(
                id=entity.id, name=get_node_name_or_id(entity), entity_type=entity.type, relevance=edge.weight
            )
            found.setdefault(edge.source, []).append(about)
    return found


def get_node_name_or_id(row: NodeRow) -> str:
    """Return the name of a node, or its id."""
    return (row.extras.name if row.extras is not None else "") or row.id


def _format_optional(moment: int | None) -> str | None:
    return None if moment is None else format_rfc3339_timestamp(moment)
