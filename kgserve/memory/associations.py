"""What memories are about, and how entities are related: now, or as of a commit."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kgserve.graph.search.fusion import HUB, Neighbours
from kgserve.graph.search.search import PresentSurroundings, StoreSearch
from kgserve.memory.api import MemoryEntity
from kgserve.memory.deduplication import Draft
from kgserve.memory.deleted_entities import DeletedSubject, find_deleted
from kgserve.memory.entities import no_entity
from kgserve.memory.presentation import entities_of, name_of
from kgserve.platform.times import time_of
from kgserve.projections.history_follower import Historian
from kgserve.projections.memory_index.decay import Worth, effective
from kgserve.projections.memory_index.relation_types import NEXT
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.redirects import MERGED_INTO
from kgserve.storage.model.rows import EdgeRow, NodeRow, edge_stamps
from kgserve.storage.rows.delta import Gathered
from kgserve.storage.rows.edge_page import not_of_kinds, of_kinds
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.pending_state import Ahead
from kgserve.stores.store import OpenStore

MOST_RELATIONS = 1_000
"""So many relations of one entity are followed, the strongest ones."""
# One more than a hub has shows that it is one.
_ENOUGH = HUB + 1
_APART = (IS_ABOUT, MERGED_INTO)
_BESIDE = (*_APART, CHILD_OF)

Numbers = NDArray[np.int64]
Relevances = NDArray[np.float64]


class Associations(ABC):
    """The memories of one entity with how much each is about it, 0 to 1."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def among(self, ids: Iterable[str]) -> dict[str, float]:
        """Those among some ids."""

    @abstractmethod
    def first(self, count: int) -> dict[str, float]:
        """At most so many: those that are most about it, of equals the youngest."""

    def slices(self, count: int) -> Iterator[dict[str, float]]:
        """All of them, so many at a time, in that order."""
        found = [*self.first(len(self)).items()]
        return (dict(found[first : first + count]) for first in range(0, len(found), count))


class Few(Associations):
    """By id."""

    def __init__(self, relevances: Mapping[str, float]) -> None:
        self._relevances = relevances

    def __len__(self) -> int:
        return len(self._relevances)

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        """See `Associations.among`."""
        return {node_id: self._relevances[node_id] for node_id in ids if node_id in self._relevances}

    def first(self, count: int) -> dict[str, float]:
        """See `Associations.first`."""
        best = sorted(self._relevances.items(), key=lambda each: -each[1])
        return dict(best[:count])


class _Numbered(Associations):
    """By the numbers of rows, so that of many only some have to be named."""

    def __init__(self, rows: Rows, numbers: Numbers, relevances: Relevances) -> None:
        order = np.argsort(numbers, kind="stable")
        self._rows = rows
        self._numbers, self._relevances = numbers[order], relevances[order]

    def __len__(self) -> int:
        return len(self._numbers)

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        known = list(ids)
        numbers = np.array([self._rows.number(node_id) for node_id in known], np.int64)
        places = np.searchsorted(self._numbers, numbers)
        return {
            node_id: float(self._relevances[place])
            for node_id, number, place in zip(known, numbers.tolist(), places.tolist(), strict=True)
            if place < len(self._numbers) and self._numbers[place] == number
        }

    def first(self, count: int) -> dict[str, float]:
        return next(self.slices(count), {})

    def slices(self, count: int) -> Iterator[dict[str, float]]:
        order = np.lexsort((-self._numbers, -self._relevances))
        for first in range(0, len(order), count):
            best = order[first : first + count]
            names = self._rows.delta.ids(self._numbers[best].tolist())
            yield dict(zip(names, self._relevances[best].tolist(), strict=True))


class EntityAssociations(ABC):
    """The entities of a store at a moment. ``now`` and ``half_life``, microseconds, are those of relations.

    ``deleted`` is the entity that was asked for, if it was deleted while memories were about it.
    """

    def __init__(self, searched: StoreSearch, now: int, half_life: int | None, historian: Historian | None) -> None:
        self.deleted: DeletedSubject | None = None
        self._searched = searched
        self._historian = historian
        self._around = searched.around
        self._now = now
        self._half_life = half_life
        self._is_entity: dict[str, bool] = {}

    def entity(self, name: str) -> str:
        """Return the id of what has a name, another name or an id, or had it when it was deleted.

        Raises NotFound, Conflict where several have the name, and what `find_deleted` raises.
        """
        found = self._find(name)
        if found is None or found not in self._around.rows([found]):
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
        there = self._around.rows({node_id for ids in found.values() for node_id in ids})
        return {
            name: there_ids for name, ids in found.items() if (there_ids := [each for each in ids if each in there])
        }

    def related(self, entity: str) -> list[tuple[str, float]]:
        """The entities that one is related to, and what is left of each relation: its strength times its confidence."""
        edges = list(self._relations(entity))
        ends = [edge.target if edge.source == entity else edge.source for edge in edges]
        if new := set(ends) - self._is_entity.keys():
            there = self._around.rows(new)
            self._is_entity |= {end: end in there and not there[end].is_memory for end in new}
        return [(end, self._worth(edge)) for end, edge in zip(ends, edges, strict=True) if self._is_entity[end]]

    def beside(self, memory: str, most: int, apart: tuple[str, ...] = ()) -> list[tuple[str, float, str]]:
        """What a memory is related to, what is left of each relation, and its type; of one with more nothing.

        But for relations of some types.
        """
        edges = list(islice(self._relations(memory, (*_BESIDE, *apart)), most + 1))
        if len(edges) > most:
            return []
        return [
            (edge.target if edge.source == memory else edge.source, self._worth(edge), edge.relation_type)
            for edge in edges
        ]

    def memories(self, entity: str) -> Associations:
        """The memories of an entity, whether they are true or not."""
        if self.deleted is None or self.deleted.entity.id != entity:
            return self._associated(entity)
        there = self._around.rows(self.deleted.memories)
        return Few({each: relevance for each, relevance in self.deleted.memories.items() if each in there})

    def _deleted(self, name: str) -> str | None:
        found, at = find_deleted(self._historian, self._store, name), self._searched.at
        if found is None or found.entity.id in self._around.rows([found.entity.id]):
            return None if found is None else found.entity.id
        if at is not None and at < found.entity.sequence:
            return None
        self.deleted = found
        return found.entity.id

    @property
    def _store(self) -> OpenStore:
        return self._searched.store

    def _worth(self, edge: EdgeRow) -> float:
        strength = min(max(edge.weight, 0.0), 1.0)
        if edge.extras is None or edge.extras.confidence is None:
            return strength
        since = time_of(edge_stamps(edge.attributes).updated_at)
        return strength * effective(Worth(edge.extras.confidence, since), self._now, self._half_life)

    @abstractmethod
    def _associated(self, entity: str) -> Associations:
        """The memories of an entity that is there, whether they are true or not."""

    @abstractmethod
    def entities(self, memories: Sequence[str]) -> dict[str, list[MemoryEntity]]:
        """Whom and what some memories are about, each most relevant first."""

    @abstractmethod
    def turns(self, memories: Sequence[str]) -> Neighbours:
        """What is said right before and behind some turns of conversations, of each at most about 33; else nothing."""

    @abstractmethod
    def _find(self, name: str) -> str | None:
        """The id of what is called so. Raises Conflict where that is not one alone."""

    @abstractmethod
    def _relations(self, entity: str, apart: tuple[str, ...] = _APART) -> Iterable[EdgeRow]:
        """The true relations of a node, in either direction, but for those of some types."""


class AboutNow(EntityAssociations):
    """As it is."""

    @cached_property
    def _rows(self) -> Rows:
        return cast("PresentSurroundings", self._around).present

    def _associated(self, entity: str) -> Associations:
        rows, number = self._rows, self._rows.number(entity)
        if number < 0:
            return Few({})
        found = self._true(of_kinds(rows, rows.around(np.array([number]), outgoing=False), (IS_ABOUT,)))
        weights = np.clip(np.array(rows.weights(found), np.float64), 0.0, 1.0)
        return _Numbered(rows, rows.ends(found)[0].astype(np.int64), weights)

    def entities(self, memories: Sequence[str]) -> dict[str, list[MemoryEntity]]:
        """See `EntityAssociations.entities`."""
        return entities_of(self._rows, memories)

    def turns(self, memories: Sequence[str]) -> Neighbours:
        """See `EntityAssociations.turns`."""
        rows = self._rows
        numbers = np.array([number for node_id in memories if (number := rows.number(node_id)) >= 0], np.int64)
        found: dict[str, list[tuple[str, float]]] = {}
        for outgoing in (True, False):
            edges = self._true(of_kinds(rows, rows.around(numbers, outgoing=outgoing), (NEXT,)))
            for edge in rows.rows_of(edges.first(_ENOUGH * len(numbers))):
                one, other = edge.key[:2] if outgoing else edge.key[1::-1]
                found.setdefault(one, []).append((other, edge.weight))
        return found

    def _find(self, name: str) -> str | None:
        return _called(self._store, self._rows, name, self._now)

    def _relations(self, entity: str, apart: tuple[str, ...] = _APART) -> Iterable[EdgeRow]:
        rows, number = self._rows, self._rows.number(entity)
        if number < 0:
            return
        for outgoing in (True, False):
            found = self._true(not_of_kinds(rows, rows.around(np.array([number]), outgoing=outgoing), apart))
            yield from rows.rows_of(_strongest(rows, found))

    def _true(self, found: Gathered) -> Gathered:
        moment = self._searched.valid_at
        return found if moment is None else self._rows.edges_holding(found, moment)


class AboutThen(EntityAssociations):
    """As it was; but what is called how is known of now alone."""

    def _associated(self, entity: str) -> Associations:
        about = (edge for edge in self._around.edges(entity) if edge.relation_type == IS_ABOUT)
        return Few({edge.source: min(max(edge.weight, 0.0), 1.0) for edge in about if edge.target == entity})

    def entities(self, memories: Sequence[str]) -> dict[str, list[MemoryEntity]]:
        """See `EntityAssociations.entities`."""
        about = {
            node_id: [edge for edge in self._around.outgoing(node_id) if edge.relation_type == IS_ABOUT]
            for node_id in memories
        }
        named = self._around.states({edge.target for edges in about.values() for edge in edges})
        return {node_id: entities_at(edges, named) for node_id, edges in about.items()}

    def turns(self, memories: Sequence[str]) -> Neighbours:
        """See `EntityAssociations.turns`."""
        found = {
            node_id: [edge for edge in self._around.edges(node_id) if edge.relation_type == NEXT][:_ENOUGH]
            for node_id in memories
        }
        return {
            node_id: [(edge.target if edge.source == node_id else edge.source, edge.weight) for edge in edges]
            for node_id, edges in found.items()
            if edges
        }

    def _find(self, name: str) -> str | None:
        with self._store.reading() as rows:
            found = _called(self._store, rows, name, self._now)
        return self._around.found_as(name) if found is None else found

    def _relations(self, entity: str, apart: tuple[str, ...] = _APART) -> Iterable[EdgeRow]:
        return (edge for edge in self._around.edges(entity) if edge.relation_type not in apart)


def about(
    searched: StoreSearch, now: int | None, half_life: int | None, historian: Historian | None
) -> EntityAssociations:
    """The entities of a store at the moment that is looked at."""
    kind = AboutNow if isinstance(searched.around, PresentSurroundings) else AboutThen
    return kind(searched, time.time_ns() // 1000 if now is None else now, half_life, historian)


def _called(store: OpenStore, rows: Rows, text: str, now: int) -> str | None:
    """The entity with an id, else the one that is called so. Raises Conflict where several are."""
    draft = Draft(Ahead(rows, store.memories, now))
    by_id = draft.there((text,))
    return by_id[0].id if by_id else draft.met(text)


def entities_at(edges: Sequence[EdgeRow], named: Mapping[str, NodeRow]) -> list[MemoryEntity]:
    """Whom and what edges of a memory name, of those that are there; the most relevant first."""
    found = [(edge, named[edge.target]) for edge in edges if edge.target in named]
    found.sort(key=lambda each: (-each[0].weight, each[0].target))
    return [
        MemoryEntity(id=row.id, name=name_of(row), entity_type=row.type, relevance=edge.weight) for edge, row in found
    ]


def _strongest(rows: Rows, found: Gathered) -> Gathered:
    if len(found.base) <= MOST_RELATIONS:
        return found
    best = np.argsort(-rows.base.weight[found.base], kind="stable")[:MOST_RELATIONS]
    return Gathered(found.base[np.sort(best)], found.changed)
