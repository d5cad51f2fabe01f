"""Neighbours of the best hits of a recall, and the boosts that they receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from kgserve.graph.graph_reader import GraphReader
from kgserve.memory.entity_associations import EntityMemoryLookup
from kgserve.memory.recall_scoring import (
    CHILD_BOOST,
    MAX_BOOSTED_PER_SOURCE,
    MAX_BOOSTING_ENTITIES,
    MAX_BOOSTING_RELATIONS,
    PARENT_BOOST,
    RELATION_BOOST,
    SIBLING_BOOST,
    NeighbourBoost,
    compute_shared_entity_boost,
)

MAX_CHILDREN_COMPARED = 500
"""Maximum number of children of a memory among which the nearest are selected."""
MAX_ENTITY_MEMORIES_COMPARED = 50
"""Maximum number of memories of an entity, most relevant first, among which the nearest are selected."""
COMMON_ENTITY_MEMORIES = 2_000
"""Number of memories above which an entity is too common to boost any."""

SimilarityFunction = Callable[[Iterable[str]], dict[str, float]]
"""Function that returns the cosine of some memories with the query; unknown ones rank last."""


class NeighbourBoosts:
    """Boosts for neighbours of memories; at most 53 look-ups for ten memories."""

    def __init__(self, reader: GraphReader, about: EntityMemoryLookup, near: SimilarityFunction) -> None:
        self._reader = reader
        self._about = about
        self._near = near
        self._below = lru_cache(None)(self._nearest_below)

    def iterate_boosts(self, givers: Sequence[str], apart: tuple[str, ...] = ()) -> Iterator[NeighbourBoost]:
        """Yield the boosts from each memory to its neighbours; relations of types in `apart` are skipped.

        Receivers are not filtered and need not be memories.
        """
        above = self._reader.parents(givers)
        for giver in givers:
            for other, worth, kind in self._about.memory_neighbours(giver, MAX_BOOSTING_RELATIONS, apart):
                yield NeighbourBoost(giver, other, RELATION_BOOST * worth, "relation", 1, kind)
            for child in self._below(giver)[:MAX_BOOSTED_PER_SOURCE]:
                yield NeighbourBoost(giver, child, CHILD_BOOST, "child", 1)
            if (parent := above.get(giver)) is not None:
                yield NeighbourBoost(giver, parent, PARENT_BOOST, "parent", 1)
                siblings = (each for each in self._below(parent) if each != giver)
                for sibling in islice(siblings, MAX_BOOSTED_PER_SOURCE):
                    yield NeighbourBoost(giver, sibling, SIBLING_BOOST, "sibling", 2)
        yield from self._about_the_same(givers)

    def _about_the_same(self, givers: Sequence[str]) -> Iterator[NeighbourBoost]:
        entities = self._about.entities(givers)
        pairs = [(giver, each.id) for giver in givers for each in entities.get(giver, ())]
        wanted = [*dict.fromkeys(entity for _, entity in pairs)][:MAX_BOOSTING_ENTITIES]
        found = {entity: self._of_entity(entity) for entity in wanted}
        for giver, entity in pairs:
            share, memories = found.get(entity, (0.0, []))
            for memory in memories:
                yield NeighbourBoost(giver, memory, share, "entity", 2)

    def _of_entity(self, entity: str) -> tuple[float, list[str]]:
        memories = self._about.memories(entity)
        if len(memories) > COMMON_ENTITY_MEMORIES:
            return 0.0, []
        return compute_shared_entity_boost(len(memories)), self._nearest(
            memories.first(MAX_ENTITY_MEMORIES_COMPARED), MAX_BOOSTED_PER_SOURCE
        )

    def _nearest_below(self, memory_id: str) -> list[str]:
        return self._nearest(self._reader.children(memory_id, MAX_CHILDREN_COMPARED), MAX_BOOSTED_PER_SOURCE + 1)

    def _nearest(self, ids: Iterable[str], count: int) -> list[str]:
        known = list(ids)
        if len(known) <= count:
            return known
        near = self._near(known)
        return sorted(known, key=lambda node_id: -near.get(node_id, -2.0))[:count]
