"""Deleted entities that memories refer to, found by id or name in the store's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kgserve.errors import Conflict
from kgserve.graph.as_of_resolution import get_caught_up_history
from kgserve.memory.memory_models import StillReferencedDeletedEntity
from kgserve.memory.serialization import get_node_name_or_id
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile, RowStateInterval
from kgserve.projections.history_follower import HistoryWorker
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, list_entity_names_and_aliases, normalize_entity_name
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.stores.open_store import OpenStore

MAX_DELETED_ENTITY_MEMORIES = 100_000
MAX_DELETED_NODE_STATES = 100_000
"""Maximum number of ended node states searched for a name, latest first; ids are found at any age."""


class DeletedEntityWithMemories(msgspec.Struct, frozen=True):
    """A deleted entity in its last state, its names, and its relevance by the ids of the memories about it."""

    entity: StillReferencedDeletedEntity
    names: tuple[str, ...]
    memories: dict[str, float]


def find_deleted_entity(
    historian: HistoryWorker | None, store: OpenStore, text: str, *, has_memories: bool = True
) -> DeletedEntityWithMemories | None:
    """Return a deleted entity, by id or name; None if it is unknown or the store keeps no history.

    has_memories: only an entity of which at least one of the memories about it still exists.

    Raises Conflict for an ambiguous name, Unavailable while the history is behind, and Gone for a gap in it.
    """
    if historian is None or store.description.history == "none":
        return None
    found = get_caught_up_history(historian, store).look(lambda history: _list_found(history, text))
    if has_memories:
        with store.reading() as rows:
            found = [each for each in found if any(map(rows.has, each.memories))]
    if len(found) > 1:
        ids = ", ".join(repr(each.entity.id) for each in found)
        raise Conflict(f"{text!r} is the name of several deleted entities; use one of these ids: {ids}")
    return found[0] if found else None


def _list_found(history: HistoryFile, text: str) -> Sequence[DeletedEntityWithMemories]:
    by_id = [state for state in history.node_states(text, NO_SEQUENCE_LIMIT, 1) if state.last is not None]
    return _subjects(history, by_id) or _subjects(history, _called(history, text))


def _called(history: HistoryFile, text: str) -> Iterable[RowStateInterval[NodeRow]]:
    wanted = normalize_entity_name(text)
    deleted = history.deleted_targets(IS_ABOUT_RELATION, MAX_DELETED_NODE_STATES)
    return (
        state
        for state in deleted
        if wanted in map(normalize_entity_name, (state.row.id, *list_entity_names_and_aliases(state.row)))
    )


def _subjects(history: HistoryFile, states: Iterable[RowStateInterval[NodeRow]]) -> Sequence[DeletedEntityWithMemories]:
    return [found for state in states if (found := _subject(history, state)).memories]


def _subject(history: HistoryFile, state: RowStateInterval[NodeRow]) -> DeletedEntityWithMemories:
    row, until = state.row, state.last or 0
    edges = history.edges_ended(row.id, IS_ABOUT_RELATION, until, MAX_DELETED_ENTITY_MEMORIES)
    entity = StillReferencedDeletedEntity(
        id=row.id,
        name=get_node_name_or_id(row),
        entity_type=row.type,
        deleted_at=format_rfc3339_timestamp(state.ended or 0),
        sequence=until,
    )
    names = tuple(dict.fromkeys((entity.name, *list_entity_names_and_aliases(row))))
    return DeletedEntityWithMemories(
        entity, names, {each.row.source: min(max(each.row.weight, 0.0), 1.0) for each in edges}
    )
