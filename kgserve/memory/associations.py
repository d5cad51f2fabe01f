"""What memories are about, and how entities are related: now, or as of a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from kgserve.graph.readers import GraphReader
from kgserve.graph.search.fusion import Neighbours
from kgserve.graph.weighted_nodes import NodeWeights, WeightedNodes
from kgserve.memory.api import MemoryEntity
from kgserve.memory.deduplication import MemoryDraft
from kgserve.memory.deleted_entities import DeletedSubject, find_deleted
from kgserve.memory.entities import NON_ENTITY_RELATIONS, no_entity
from kgserve.memory.presentation import entities_among
from kgserve.platform.times import time_of
from kgserve.projections.history_follower import Historian
from kgserve.projections.memory_index.decay import Confidence, effective
from kgserve.projections.memory_index.relation_types import RELATION_NEXT
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.rows import EdgeRow, edge_stamps
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.pending_state import PendingState
from kgserve.stores.store import OpenStore

MAX_ENTITY_RELATIONS = 1_000
"""So many relations of one entity are followed, the strongest ones."""
_NON_MEMORY_RELATIONS = (*NON_ENTITY_RELATIONS, CHILD_OF)


class EntityAssociations:
    """The entities of a store at the commit of a reader. ``half_life``, microseconds, is that of relations.

    ``deleted`` is the entity that was asked for, if it was deleted while memories were about it.
    """

    def __init__(
        self, store: OpenStore, reader: GraphReader, half_life: int | None, historian: Historian | None
    ) -> None:
        self.deleted: DeletedSubject | None = None
        self._store = store
        self._historian = historian
        self._reader = reader
        self._now = reader.now
        self._half_life = half_life
        self._is_entity: dict[str, bool] = {}

    def entity(self, name: str) -> str:
        """Return the id of what has a name, another name or an id, or had it when it was deleted.

        Raises NotFound, Conflict where several have the name, and what `find_deleted` raises.
        """
        found = self._find(name)
        if found is None or found not in self._reader.valid_nodes([found]):
            found = self._deleted(name)
        if found is None:
            near = self._store.memories.ask(lambda memories, _: memories.names_like(name))
            raise no_entity(near, name, self._store.name)
        return found

    def known(self, names: Collection[str]) -> dict[str, list[str]]:
        """The entities that some folded names stand for, by those names."""
        found = self._store.memories.ask(
            lambda memories, _: {name: [each.id for each in memories.named(name) if each.stands] for name in names}
        )
        there = self._reader.valid_nodes({node_id for ids in found.values() for node_id in ids})
        return {
            name: there_ids for name, ids in found.items() if (there_ids := [each for each in ids if each in there])
        }

    def related(self, entity: str) -> list[tuple[str, float]]:
        """The entities that one is related to, and what is left of each relation: its strength times its confidence."""
        edges = list(self._relations(entity))
        ends = [edge.target if edge.source == entity else edge.source for edge in edges]
        if new := set(ends) - self._is_entity.keys():
            there = self._reader.valid_nodes(new)
            self._is_entity |= {end: end in there and not there[end].is_memory for end in new}
        return [(end, self._worth(edge)) for end, edge in zip(ends, edges, strict=True) if self._is_entity[end]]

    def beside(self, memory: str, most: int, apart: tuple[str, ...] = ()) -> list[tuple[str, float, str]]:
        """What a memory is related to, what is left of each relation, and its type; of one with more nothing.

        But for relations of some types.
        """
        edges = list(islice(self._relations(memory, (*_NON_MEMORY_RELATIONS, *apart)), most + 1))
        if len(edges) > most:
            return []
        return [
            (edge.target if edge.source == memory else edge.source, self._worth(edge), edge.relation_type)
            for edge in edges
        ]

    def memories(self, entity: str) -> WeightedNodes:
        """The memories of an entity, whether they are true or not."""
        if self.deleted is None or self.deleted.entity.id != entity:
            return self._reader.sources_of(entity, IS_ABOUT)
        there = self._reader.valid_nodes(self.deleted.memories)
        return NodeWeights({each: relevance for each, relevance in self.deleted.memories.items() if each in there})

    def _deleted(self, name: str) -> str | None:
        found = find_deleted(self._historian, self._store, name)
        if found is None or found.entity.id in self._reader.valid_nodes([found.entity.id]):
            return None if found is None else found.entity.id
        if self._reader.sequence < found.entity.sequence:
            return None
        self.deleted = found
        return found.entity.id

    def _worth(self, edge: EdgeRow) -> float:
        strength = min(max(edge.weight, 0.0), 1.0)
        if edge.extras is None or edge.extras.confidence is None:
            return strength
        since = time_of(edge_stamps(edge.attributes).updated_at)
        return strength * effective(Confidence(edge.extras.confidence, since), self._now, self._half_life)

    def entities(self, memories: Sequence[str]) -> dict[str, list[MemoryEntity]]:
        """Whom and what some memories are about, each most relevant first."""
        return memory_entities(self._reader, memories)

    def turns(self, memories: Sequence[str]) -> Neighbours:
        """What is said right before and behind some turns of conversations, of each at most about 33; else nothing."""
        found: dict[str, list[tuple[str, float]]] = {}
        for turn, edge in self._reader.incident_of(memories, RELATION_NEXT):
            found.setdefault(turn, []).append((edge.target if edge.source == turn else edge.source, edge.weight))
        return found

    def _find(self, name: str) -> str | None:
        """The id of what is called so; what is called how is known of now alone. Raises Conflict for several."""
        with self._reader.current_rows() as rows:
            found = _called(self._store, rows, name, self._now)
        return self._reader.find_former(name) if found is None else found

    def _relations(self, entity: str, apart: tuple[str, ...] = NON_ENTITY_RELATIONS) -> Iterable[EdgeRow]:
        """The true relations of a node, in either direction, but for those of some types."""
        return self._reader.strongest_edges(entity, apart, MAX_ENTITY_RELATIONS)


def _called(store: OpenStore, rows: Rows, text: str, now: int) -> str | None:
    """The entity with an id, else the one that is called so. Raises Conflict where several are."""
    draft = MemoryDraft(PendingState(rows, store.memories, now))
    by_id = draft.there((text,))
    return by_id[0].id if by_id else draft.met(text)


def memory_entities(reader: GraphReader, memories: Collection[str]) -> dict[str, list[MemoryEntity]]:
    """Whom and what some memories are about, each most relevant first."""
    edges = reader.outgoing_of(memories, (IS_ABOUT,))
    return entities_among(edges, reader.nodes({edge.target for edge in edges}))
