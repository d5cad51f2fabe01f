"""Entities of memories and relations between entities, currently or as of a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from kgserve.graph.graph_reader import GraphReader
from kgserve.graph.weighted_nodes import WeightedNodes, WeightsByNodeId
from kgserve.memory.deduplication import MemoryWriteBatchDraft
from kgserve.memory.deleted_entity_lookup import DeletedEntityWithMemories, find_deleted_entity
from kgserve.memory.entity_operations import NON_ENTITY_RELATIONS, entity_not_found
from kgserve.memory.memory_models import EntityWithRelevance
from kgserve.memory.serialization import group_entities_by_memory
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.memory_index.confidence_decay import ConfidenceAtTime, decayed_confidence
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.node_edge_rows import EdgeRow, split_edge_times_from_attributes
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

MAX_ENTITY_RELATIONS = 1_000
"""Maximum number of relations of one entity that are followed, the strongest first."""
_NON_MEMORY_RELATIONS = (*NON_ENTITY_RELATIONS, CHILD_OF_RELATION)


class EntityMemoryLookup:
    """Look-up of entities, their memories and relations at a reader's commit; `half_life` is in microseconds.

    `deleted` is the requested entity, if it was deleted while memories were about it.
    """

    def __init__(
        self, store: OpenStore, reader: GraphReader, half_life: int | None, historian: HistoryWorker | None
    ) -> None:
        self.deleted: DeletedEntityWithMemories | None = None
        self._store = store
        self._historian = historian
        self._reader = reader
        self._now = reader.now
        self._half_life = half_life
        self._is_entity: dict[str, bool] = {}

    def resolve_entity_id(self, name: str) -> str:
        """Return the id of the entity with a name, alias or id, including a deleted one.

        Raises NotFound, Conflict for an ambiguous name, and the errors of `find_deleted_entity`.
        """
        found = self._find(name)
        if found is None or found not in self._reader.valid_nodes([found]):
            found = self._find_deleted_id(name)
        if found is None:
            near = self._store.memories.ask(lambda memories, _: memories.similar_names(name))
            raise entity_not_found(near, name, self._store.name)
        return found

    def valid_entities_named(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the valid entities for some folded names."""
        found = self._store.memories.ask(
            lambda memories, _: {
                name: [each.id for each in memories.nodes_named(name) if each.stands] for name in names
            }
        )
        valid = self._reader.valid_nodes({node_id for ids in found.values() for node_id in ids})
        return {
            name: valid_ids for name, ids in found.items() if (valid_ids := [each for each in ids if each in valid])
        }

    def related_entities(self, entity: str) -> list[tuple[str, float]]:
        """Return the related entities with the weight of each relation: strength times effective confidence."""
        edges = list(self._relations(entity))
        ends = [edge.target if edge.source == entity else edge.source for edge in edges]
        if new := set(ends) - self._is_entity.keys():
            valid = self._reader.valid_nodes(new)
            self._is_entity |= {end: end in valid and not valid[end].is_memory for end in new}
        return [
            (end, self._relation_weight(edge)) for end, edge in zip(ends, edges, strict=True) if self._is_entity[end]
        ]

    def memory_neighbours(self, memory: str, most: int, apart: tuple[str, ...] = ()) -> list[tuple[str, float, str]]:
        """Return the neighbours of a memory with relation weight and type, or none if it has more than `most`.

        Relations of the types in `apart` are skipped.
        """
        edges = list(islice(self._relations(memory, (*_NON_MEMORY_RELATIONS, *apart)), most + 1))
        if len(edges) > most:
            return []
        return [
            (edge.target if edge.source == memory else edge.source, self._relation_weight(edge), edge.relation_type)
            for edge in edges
        ]

    def memories(self, entity: str) -> WeightedNodes:
        """Return the memories about an entity, valid or not."""
        if self.deleted is None or self.deleted.entity.id != entity:
            return self._reader.sources_of(entity, IS_ABOUT_RELATION)
        valid = self._reader.valid_nodes(self.deleted.memories)
        return WeightsByNodeId({each: relevance for each, relevance in self.deleted.memories.items() if each in valid})

    def _find_deleted_id(self, name: str) -> str | None:
        found = find_deleted_entity(self._historian, self._store, name)
        if found is None or found.entity.id in self._reader.valid_nodes([found.entity.id]):
            return None if found is None else found.entity.id
        if self._reader.sequence < found.entity.sequence:
            return None
        self.deleted = found
        return found.entity.id

    def _relation_weight(self, edge: EdgeRow) -> float:
        strength = min(max(edge.weight, 0.0), 1.0)
        if edge.extras is None or edge.extras.confidence is None:
            return strength
        since = parse_rfc3339_timestamp(split_edge_times_from_attributes(edge.attributes).updated_at)
        return strength * decayed_confidence(
            ConfidenceAtTime(edge.extras.confidence, since), self._now, self._half_life
        )

    def entities(self, memories: Sequence[str]) -> dict[str, list[EntityWithRelevance]]:
        """Return the entities that some memories are about, most relevant first."""
        return list_entities_of_memories(self._reader, memories)

    def _find(self, name: str) -> str | None:
        """Return the id of the entity with a name; past names are not known. Raises Conflict for an ambiguous name."""
        with self._reader.current_rows() as rows:
            found = _find_current(self._store, rows, name, self._now)
        return self._reader.find_merge_survivor(name) if found is None else found

    def _relations(self, entity: str, apart: tuple[str, ...] = NON_ENTITY_RELATIONS) -> Iterable[EdgeRow]:
        """Return the current relations of a node in either direction, except some types."""
        return self._reader.strongest_edges(entity, apart, MAX_ENTITY_RELATIONS)


def _find_current(store: OpenStore, rows: RowsSnapshot, text: str, now: int) -> str | None:
    """Return the id of the entity with an id or name, or None. Raises Conflict for an ambiguous name."""
    draft = MemoryWriteBatchDraft(PendingCommitGroupState(rows, store.memories, now))
    by_id = draft.find_current_nodes((text,))
    return by_id[0].id if by_id else draft.find_entity_named(text)


def list_entities_of_memories(reader: GraphReader, memories: Collection[str]) -> dict[str, list[EntityWithRelevance]]:
    """Return the entities that some memories are about, most relevant first."""
    edges = reader.outgoing_of(memories, (IS_ABOUT_RELATION,))
    return group_entities_by_memory(edges, reader.nodes({edge.target for edge in edges}))
