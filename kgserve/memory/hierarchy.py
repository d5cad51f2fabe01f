"""What stands above and below a memory: now from the memory view, of the past by going along the relations of then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kgserve.errors import NotFound, TooLarge
from kgserve.graph.handle import Graph
from kgserve.graph.search.search import PastSurroundings, PresentSurroundings, StoreSearch
from kgserve.graph.temporal import EVERY_EDGE
from kgserve.graph.validate import checked_label
from kgserve.memory.api import MemoryEntity
from kgserve.memory.associations import Associations, entities_at
from kgserve.memory.hierarchy_api import AncestorsRequest, BelowRequest, PlacedMemory, PlacedPage
from kgserve.memory.presentation import fields_of, now_in_microseconds, settings_of, shown_fields
from kgserve.memory.store_memory import memory_in
from kgserve.projections.history.history import History
from kgserve.projections.history_follower import HistoryFollower
from kgserve.projections.memory_index.closure import BelowPage, MemoryDepth
from kgserve.projections.memory_index.decay import half_lives_of
from kgserve.projections.memory_index.memories import Memories
from kgserve.projections.memory_index.projection import MemoriesDamaged
from kgserve.storage.model.names import IS_ABOUT
from kgserve.storage.model.parents import MAX_DEPTH, is_upward, newest
from kgserve.storage.model.rows import EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import stands
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import parents
from kgserve.stores.store import OpenStore

MOST_THEN = 10_000
"""So many memories are gone along, at most, to know what stood below one in the past."""


def children(graph: Graph, request: BelowRequest) -> PlacedPage:
    """The memories directly below one that are true now, in the order of their ids. None of them counts as used.

    Raises NotFound, and with `as_of` TooLarge for more than 10,000, Gone, and Conflict where no history is kept.
    """
    return _below(graph, request, near=True)


def descendants(graph: Graph, request: BelowRequest) -> PlacedPage:
    """The memories below one at any depth that are true now, in the order of their ids. None of them counts as used.

    A page that has looked at 20,000 memories ends there. Raises what `children` does.
    """
    return _below(graph, request, near=False)


def ancestors(graph: Graph, request: AncestorsRequest) -> list[PlacedMemory]:
    """The memories above one that are true now, the nearest first, at most 100. Raises what `children` does."""
    past = graph.past(request.as_of)
    with graph.lease() as store:
        if past is not None:
            moment, (history, at) = past.moment(store), past.of(store)
            then = PastHierarchy(history, at)
            start = then.memory(request.memory_id, graph.name)
            return then.shown(store, list(_fitting(then.above(start.id), then, moment, request.layer)), moment)
        memory_id, now = found_memory(store, request.memory_id, graph.name).id, now_in_microseconds()
        return store.memories.ask(
            lambda memories, rows: _shown(store, rows, memories.above(memory_id, now, request.layer), now)
        )


def found_memory(store: OpenStore, memory_id: str, name: str) -> NodeRow:
    """A memory in force of the store of a name, or the one that has taken it in. Raises InvalidInput and NotFound."""
    checked_label(memory_id)
    with store.reading() as rows:
        return memory_in(rows, memory_id, name)


def _below(graph: Graph, request: BelowRequest, *, near: bool) -> PlacedPage:
    past, after = graph.past(request.as_of), request.cursor or ""
    with graph.lease() as store:
        if past is not None:
            moment, (history, at) = past.moment(store), past.of(store)
            then = PastHierarchy(history, at)
            start = then.memory(request.memory_id, graph.name)
            found = sorted(_fitting(then.below(start.id, near=near), then, moment, request.layer))
            page = [each for each in found if each.id > after][: request.limit + 1]
            more = page[request.limit - 1].id if len(page) > request.limit else None
            return PlacedPage(then.shown(store, page[: request.limit], moment), more)
        memory_id, now = found_memory(store, request.memory_id, graph.name).id, now_in_microseconds()

        def look(memories: Memories, rows: Rows) -> PlacedPage:
            page: BelowPage = memories.beneath(memory_id, now, request.layer, after, request.limit, near=near)
            return PlacedPage(_shown(store, rows, page.found, now), page.next)

        return store.memories.ask(look)


def _shown(store: OpenStore, rows: Rows, places: Sequence[MemoryDepth], now: int) -> list[PlacedMemory]:
    found = rows.nodes([place.id for place in places])
    if len(found) != len(places) or not all(map(stands, found.values())):
        raise MemoriesDamaged("it names a memory that is not there")
    memories = shown_fields(store, rows, [*found.values()], now)
    return [PlacedMemory(**fields, depth=place.depth) for fields, place in zip(memories, places, strict=True)]


# The past


class PastHierarchy:
    """The hierarchy as of a commit."""

    def __init__(self, history: HistoryFollower, at: int) -> None:
        self._history = history
        self._at = at
        self._nodes: dict[str, NodeRow | None] = {}

    def memory(self, memory_id: str, store: str) -> NodeRow:
        """A memory that was in force. Raises NotFound."""
        row = self.node(memory_id)
        if not stands(row):
            raise NotFound(f"there was no memory {memory_id!r} in force in store {store!r} at that moment")
        return row

    def node(self, node_id: str) -> NodeRow | None:
        """A node as it was."""
        if node_id not in self._nodes:
            state = self._history.look(lambda history: history.node_at(node_id, self._at))
            self._nodes[node_id] = None if state is None else state.row
        return self._nodes[node_id]

    def parent(self, memory_id: str) -> str | None:
        """What a memory stood below."""
        edges = filter(is_upward, self._edges(memory_id, outgoing=True))
        edge = newest(edge for edge in edges if stands(self.node(edge.target)))
        return None if edge is None else edge.target

    def above(self, memory_id: str) -> Iterator[MemoryDepth]:
        """What stood above a memory, the nearest first."""
        seen, at = {memory_id}, memory_id
        for depth in range(1, MAX_DEPTH + 1):
            parent = self.parent(at)
            if parent is None or parent in seen:
                return
            seen.add(at := parent)
            yield MemoryDepth(at, depth)

    def below(self, memory_id: str, *, near: bool = False) -> Iterator[MemoryDepth]:
        """What stood below a memory, level by level. Raises TooLarge."""
        seen, level = {memory_id}, [memory_id]
        for depth in range(1, 2 if near else MAX_DEPTH + 1):
            level = [child for each in level for child in self._children(each) if child not in seen]
            seen.update(level)
            yield from (MemoryDepth(child, depth) for child in level)
            if len(seen) > MOST_THEN:
                raise TooLarge(
                    f"more than {MOST_THEN} memories stood below {memory_id!r} then; ask for those below its children"
                )

    def shown(self, store: OpenStore, places: Sequence[MemoryDepth], moment: int) -> list[PlacedMemory]:
        """Some memories as they were, worth what their rows say."""
        return [self._shown(store, place, moment) for place in places]

    def _shown(self, store: OpenStore, place: MemoryDepth, moment: int) -> PlacedMemory:
        row = self.node(place.id)
        if row is None:
            raise NotFound(f"memory {place.id!r} is no longer known as it was")
        about = self._entities(place.id)
        fields = fields_of(half_lives_of(settings_of(store)), row, None, about, moment, self.parent(place.id))
        return PlacedMemory(**fields, depth=place.depth)

    def _entities(self, memory_id: str) -> list[MemoryEntity]:
        edges = [edge for edge in self._edges(memory_id, outgoing=True) if edge.relation_type == IS_ABOUT]
        there = {edge.target: row for edge in edges if (row := self.node(edge.target)) is not None}
        return entities_at(edges, there)

    def _children(self, memory_id: str) -> list[str]:
        sources = [edge.source for edge in self._edges(memory_id, outgoing=False) if is_upward(edge)]
        if len(sources) > MOST_THEN:
            raise TooLarge(
                f"more than {MOST_THEN} memories stood below {memory_id!r} then; that is too many to be told"
            )
        return [child for child in sources if stands(self.node(child)) and self.parent(child) == memory_id]

    def _edges(self, memory_id: str, *, outgoing: bool) -> list[EdgeRow]:
        def look(history: History) -> list[EdgeRow]:
            find = history.outgoing if outgoing else history.incoming
            return [state.row for state in find(memory_id, self._at, EVERY_EDGE)]

        return self._history.look(look)


def _fitting(
    places: Iterable[MemoryDepth], then: PastHierarchy, moment: int, layer: int | None
) -> Iterator[MemoryDepth]:
    """Those that were true, and of a layer."""
    for place in places:
        row = then.node(place.id)
        own = row.extras.layer if row is not None and row.extras is not None else None
        if row is not None and row.holds_at(moment) and layer in (None, own):
            yield place


# Recall


def parents_of(searched: StoreSearch, ids: Sequence[str]) -> dict[str, str]:
    """What some memories stand below at the moment that is looked at."""
    around = searched.around
    if isinstance(around, PresentSurroundings):
        return parents(around.present, ids)
    if isinstance(around, PastSurroundings):
        then = PastHierarchy(around.history, around.at)
        return {memory_id: parent for memory_id in ids if (parent := then.parent(memory_id)) is not None}
    return {}


class Below(NamedTuple):
    """A memory, and what stands below it."""

    id: str
    memories: Associations


def below(searched: StoreSearch, memory_id: str, name: str) -> Below:
    """A memory and what stands below it at the moment that is looked at. Raises NotFound."""
    around, store = searched.around, searched.store
    if isinstance(around, PastSurroundings):
        then = PastHierarchy(around.history, around.at)
        start = then.memory(memory_id, name)
        return Below(start.id, _Below([place.id for place in then.below(start.id)]))
    found = found_memory(store, memory_id, name).id
    return Below(found, _BelowNow(store, found))


class _Below(Associations):
    """By id."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = dict.fromkeys(ids, 1.0)

    def __len__(self) -> int:
        return len(self._ids)

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        return {node_id: 1.0 for node_id in ids if node_id in self._ids}

    def first(self, count: int) -> dict[str, float]:
        return dict([*self._ids.items()][:count])


class _BelowNow(Associations):
    """As the memory view knows it."""

    def __init__(self, store: OpenStore, memory_id: str) -> None:
        self._store = store
        self._id = memory_id

    def __len__(self) -> int:
        return self._store.memories.ask(lambda memories, _: memories.size_below(self._id, MOST_THEN + 1))

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        known = list(ids)
        found = self._store.memories.ask(lambda memories, _: memories.among_below(self._id, known))
        return {node_id: 1.0 for node_id in known if node_id in found}

    def first(self, count: int) -> dict[str, float]:
        return dict.fromkeys(self._store.memories.ask(lambda memories, _: memories.some_below(self._id, count)), 1.0)


class Both(Associations):
    """What belongs to two things at once, as much as to the first of them."""

    def __init__(self, one: Associations, other: Associations) -> None:
        self._one = one
        self._other = other

    def __len__(self) -> int:
        return min(len(self._one), len(self._other))

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        """See `Associations.among`."""
        return self._one.among(self._other.among(ids))

    def first(self, count: int) -> dict[str, float]:
        """See `Associations.first`."""
        return self._one.among(self._other.first(count))
