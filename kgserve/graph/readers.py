"""One interface to the graph of a store: as it is now, or as it was after a commit.

A feature takes a `GraphReader` and need not know which of the two implementations it was given.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np

from kgserve.errors import TooLarge, Unavailable
from kgserve.graph import render
from kgserve.graph.answers import Node
from kgserve.graph.search.fusion import HUB, Neighbours
from kgserve.graph.temporal import EVERY_EDGE, MAX_SHOWN, Past, survivor_at, valid_moment
from kgserve.graph.weighted_nodes import NodeWeights, NumberedWeights, WeightedNodes
from kgserve.projections.history.history import History
from kgserve.projections.history_follower import HistoryFollower
from kgserve.projections.indexes import HISTORY_SECONDS, Indexes, IndexesAsOf
from kgserve.projections.links.links import EVERY, LinkReader
from kgserve.projections.memory_index.closure import BelowPage, MemoryDepth
from kgserve.projections.memory_index.memories import Memories
from kgserve.projections.memory_index.view import MemoriesDamaged
from kgserve.storage.model.attributes import Condition
from kgserve.storage.model.change import Access
from kgserve.storage.model.parents import MAX_DEPTH, is_upward, newest
from kgserve.storage.model.redirects import survivor_of
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.storage.model.soft_delete import stands
from kgserve.storage.model.walk import Direction, Walk, by_levels
from kgserve.storage.rows.delta import Gathered
from kgserve.storage.rows.edge_page import not_of_kinds, of_kinds
from kgserve.storage.rows.format import Numbers
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.walk import walk
from kgserve.storage.rows.ways import absorbed, merged_among, outgoing_of, parents
from kgserve.stores.store import OpenStore

N = TypeVar("N", bound=Node)
Found = TypeVar("Found")

MAX_NEIGHBOURS = HUB + 1
"""Neighbours read of one node: one more than a hub has shows that it is one."""
MAX_DESCENDANTS = 10_000
"""Memories visited to list what stood below one as of a commit."""
MAX_STATES_READ = 50_000
"""Edge states read to find neighbours as of a commit; about half a second."""
MAX_STATES_LISTED = 500_000
"""Edge states looked through, without being read, for edges between nodes."""
MAX_STATES_COUNTED = 200_000
"""Edge states counted for the degrees of all nodes as of a commit."""
MAX_STATES_COUNTED_PER_NODE = 10_000
MAX_LINKS_PER_NODE = 10_000
MAX_EDGES_MET = 500_000
"""Edges looked at to find neighbours in the current graph; about a tenth of a second."""
MAX_EDGES_MET_BY_TYPE = 100_000
"""The same where the types of the neighbours have to be read."""
OVERVIEW_OVERFETCH = 100
"""Additional nodes with many edges that an overview looks at, because some may not be valid."""
FRESH_SECONDS = 0.25
"""Seconds to wait for the history to see a commit that has just superseded a version."""


class IncidentEdges(NamedTuple):
    """Edges around the nodes of a level: the place of the node in the level, the other end, and the weight.

    ``cut``: whether there are more edges than the limit.
    """

    owner: Numbers
    end: Numbers
    weight: Numbers
    cut: bool


class NumberedEdge(NamedTuple):
    """An edge between two numbered nodes; bounds of its validity in microseconds, None where it has none."""

    source: int
    target: int
    relation_type: str
    weight: float
    valid_from: int | None
    valid_to: int | None


class OverviewStart(NamedTuple):
    """The nodes that an overview begins with, and whether they are the whole graph."""

    nodes: Numbers
    whole: bool


def number_edge(source: int, target: int, row: EdgeRow) -> NumberedEdge:
    """Return the row of an edge between two nodes as a `NumberedEdge`."""
    extras = row.extras
    bounds = (None, None) if extras is None else (extras.valid_from, extras.valid_to)
    return NumberedEdge(source, target, row.relation_type, row.weight, *bounds)


class GraphReader(ABC):
    """The graph of a store after one commit.

    ``sequence``: the commit. ``valid_at``: microseconds of valid time; methods that say "valid" leave out rows that
    were not true then. None: everything is valid. ``now``: microseconds, the time by which confidence has decayed.
    """

    has_memory_index: bool
    """Whether the memory index is of this commit; if not, memories are known by their rows alone."""

    def __init__(self, sequence: int, valid_at: int | None, now: int) -> None:
        self.sequence = sequence
        self.valid_at = valid_at
        self.now = now

    # Nodes

    @abstractmethod
    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the nodes of `ids` that exist, by id, valid or not."""

    def valid_nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the valid nodes of `ids`, by id."""
        return {key: row for key, row in self.nodes(ids).items() if self._is_valid(row)}

    @abstractmethod
    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        """Return for each id the id after following merge redirects."""

    def resolve_redirect(self, node_id: str) -> str:
        """Return a node's id after following merge redirects; unchanged where everything is valid."""
        return node_id if self.valid_at is None else self.resolve_redirects((node_id,))[node_id]

    def resolved_nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the valid nodes that `ids` lead to after merge redirects, by the id that was asked for."""
        targets = self.resolve_redirects(ids)
        rows = self.valid_nodes({*targets.values()})
        return {asked: rows[node_id] for asked, node_id in targets.items() if node_id in rows}

    @abstractmethod
    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:
        """Return the nodes that were merged into `ids`, each with that id; empty where that is not known."""

    @abstractmethod
    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        """Convert rows to nodes of the API, with the state of versions that are not the current ones."""

    # Edges and links

    @abstractmethod
    def edges_of(self, ids: Collection[str], direction: Direction) -> Iterator[EdgeRow]:
        """Yield all edges of some nodes, valid or not."""

    @abstractmethod
    def links_from(self, ids: Collection[str]) -> Iterator[LinkRow]:
        """Yield the edges that lead from some nodes into other stores."""

    def valid_edges(self, node_id: str) -> list[EdgeRow]:
        """Return all valid edges of a node in either direction; their other ends may be invalid."""
        return [edge for edge in self.edges_of((node_id,), "both") if self._is_valid(edge)]

    @abstractmethod
    def outgoing(self, node_id: str) -> list[EdgeRow]:
        """Return valid edges that start at a node, at most about 1,000; their other ends may be invalid."""

    @abstractmethod
    def outgoing_of(self, ids: Collection[str], relation_types: Collection[str]) -> list[EdgeRow]:
        """Return the edges of some types that start at `ids`, valid or not."""

    @abstractmethod
    def incident_of(self, ids: Collection[str], relation_type: str) -> Iterator[tuple[str, EdgeRow]]:
        """Yield the valid edges of a type with the node at which each was found; about `MAX_NEIGHBOURS` per node."""

    @abstractmethod
    def strongest_edges(self, node_id: str, excluded: Collection[str], limit: int) -> Iterable[EdgeRow]:
        """Return valid edges of a node but for some types; of the current graph the `limit` strongest per direction."""

    @abstractmethod
    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        """Return the nodes from which valid edges of a type lead to a node, with the edges' weights."""

    @abstractmethod
    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """Return the valid other ends of each node's valid edges with weights, at most `MAX_NEIGHBOURS` each."""

    @abstractmethod
    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """Return the edges that a walk in both directions finds."""

    def _is_valid(self, row: NodeRow | EdgeRow) -> bool:
        return self.valid_at is None or row.holds_at(self.valid_at)

    # The hierarchy of memories

    @abstractmethod
    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the parents of those memories that have one."""

    @abstractmethod
    def children(self, memory_id: str, limit: int) -> list[str]:
        """Return at most `limit` children of a memory."""

    @abstractmethod
    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryDepth]:
        """Return the memories of a layer above one that are true at `now`, the nearest first."""

    @abstractmethod
    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> BelowPage:
        """Return a page, in the order of ids, of the memories of a layer below one that are true at `now`.

        With ``near`` only its children. Raises TooLarge.
        """

    @abstractmethod
    def below(self, memory_id: str) -> WeightedNodes:
        """Return everything below a memory, with weights of 1. Raises TooLarge."""

    # What else depends on the commit

    @abstractmethod
    def accesses(self, ids: Collection[str]) -> dict[str, Access]:
        """Return what reading has done to some memories; nothing as of a commit."""

    @abstractmethod
    def search_index(self, indexes: Indexes) -> Indexes | IndexesAsOf:
        """Return the index of the texts that nodes had."""

    @abstractmethod
    def former_holders(self, wanted: Sequence[Condition], seen: int) -> frozenset[str]:
        """Return the nodes that had some attributes at this commit in a state that has ended since.

        ``seen``: the commit up to which the caller knows what has ended. Raises Unavailable while the history is
        behind.
        """

    @abstractmethod
    def find_former(self, node_id: str) -> str | None:
        """Return the node that an id led to, if it may be missing in the current graph; else None."""

    @abstractmethod
    def current_rows(self) -> AbstractContextManager[Rows]:
        """Open the current rows of the store."""


class CurrentGraph(GraphReader):
    """The graph after the last commit."""

    has_memory_index = True

    def __init__(
        self,
        store: OpenStore,
        rows: Rows,
        valid_at: int | None,
        links: LinkReader | None = None,
        memories: Memories | None = None,
    ) -> None:
        """``links`` and ``memories`` have to be of the same commit as ``rows``; None: not needed, or asked for."""
        super().__init__(rows.at, valid_at, time.time_ns() // 1000)
        self.rows = rows
        self._store = store
        self._links = links
        self._memories = memories

    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """See `GraphReader`."""
        return self.rows.nodes(ids)

    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        """See `GraphReader`."""
        merged = merged_among(self.rows, ids)
        return {node_id: survivor_of(merged, node_id) for node_id in ids}

    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:
        """See `GraphReader`."""
        return {merged: node_id for node_id in ids for merged in absorbed(self.rows, node_id)}

    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        """See `GraphReader`."""
        return [*map(convert, rows)]

    def edges_of(self, ids: Collection[str], direction: Direction) -> Iterator[EdgeRow]:
        """See `GraphReader`."""
        for node_id in ids:
            if direction != "incoming":
                yield from self.rows.outgoing(node_id)
            if direction != "outgoing":
                yield from self.rows.incoming(node_id)

    def links_from(self, ids: Collection[str]) -> Iterator[LinkRow]:
        """See `GraphReader`."""
        return iter(()) if self._links is None else self._links.from_any(ids)

    def outgoing(self, node_id: str) -> list[EdgeRow]:
        """See `GraphReader`."""
        return [edge for edge in islice(self.rows.outgoing(node_id), MAX_SHOWN + 1) if self._is_valid(edge)]

    def outgoing_of(self, ids: Collection[str], relation_types: Collection[str]) -> list[EdgeRow]:
        """See `GraphReader`."""
        return outgoing_of(self.rows, ids, relation_types)

    def incident_of(self, ids: Collection[str], relation_type: str) -> Iterator[tuple[str, EdgeRow]]:
        """See `GraphReader`."""
        rows = self.rows
        numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
        for outgoing in (True, False):
            edges = self._valid_around(numbers, outgoing=outgoing, relation_type=relation_type)
            for edge in rows.rows_of(edges.first(MAX_NEIGHBOURS * len(numbers))):
                yield (edge.source if outgoing else edge.target), edge

    def strongest_edges(self, node_id: str, excluded: Collection[str], limit: int) -> Iterable[EdgeRow]:
        """See `GraphReader`."""
        rows, number = self.rows, self.rows.number(node_id)
        for outgoing in (True, False) if number >= 0 else ():
            around = not_of_kinds(rows, rows.around(np.array([number]), outgoing=outgoing), excluded)
            yield from rows.rows_of(_strongest(rows, self._valid(around), limit))

    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        """See `GraphReader`."""
        rows, number = self.rows, self.rows.number(node_id)
        if number < 0:
            return NodeWeights({})
        found = self._valid_around(np.array([number]), outgoing=False, relation_type=relation_type)
        weights = np.clip(np.array(rows.weights(found), np.float64), 0.0, 1.0)
        return NumberedWeights(rows, rows.ends(found)[0].astype(np.int64), weights)

    def _valid_around(self, numbers: Numbers, *, outgoing: bool, relation_type: str) -> Gathered:
        return self._valid(of_kinds(self.rows, self.rows.around(numbers, outgoing=outgoing), (relation_type,)))

    def _valid(self, edges: Gathered) -> Gathered:
        return edges if self.valid_at is None else self.rows.edges_holding(edges, self.valid_at)

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """See `GraphReader`."""
        found = self._numbered_neighbours(ids)
        ends = iter(self.rows.delta.ids([end for each in found.values() for end, _ in each]))
        return {node_id: [(next(ends), weight) for _, weight in each] for node_id, each in found.items()}

    def _numbered_neighbours(self, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        rows, numbers = self.rows, {node_id: self.rows.number(node_id) for node_id in ids}
        few: list[int] = []
        if self.valid_at is not None and rows.dated:
            few = [node for node in dict.fromkeys(numbers.values()) if node >= 0 and self._has_few(node)]
        at_once = self._valid_neighbours(few, self.valid_at) if few and self.valid_at is not None else {}
        return {
            node_id: at_once[node][:MAX_NEIGHBOURS] if node in at_once else self._some_neighbours(node)
            for node_id, node in numbers.items()
        }

    def _has_few(self, node: int) -> bool:
        base, delta = self.rows.base, self.rows.delta
        out = base.degree(node, outgoing=True) + len(delta.out.get(node, ()))
        return max(out, base.degree(node, outgoing=False) + len(delta.into.get(node, ()))) <= MAX_SHOWN

    def _valid_neighbours(self, nodes: Sequence[int], moment: int) -> dict[int, list[tuple[int, float]]]:
        """Return the valid neighbours of nodes that are no hubs: ten times faster than one node after the other."""
        rows, found = self.rows, {node: list[tuple[int, float]]() for node in nodes}
        for outgoing in (True, False):
            edges = rows.holding(rows.around(np.array(nodes), outgoing=outgoing), moment)
            ends = rows.ends(edges)
            owners, others = ends if outgoing else ends[::-1]
            for owner, other, weight in zip(owners.tolist(), others.tolist(), rows.weights(edges), strict=True):
                found[owner].append((other, weight))
        return found

    def _some_neighbours(self, node: int) -> list[tuple[int, float]]:
        rows = self.rows
        found: list[tuple[int, float]] = []
        if node < 0:
            return found
        dated = self.valid_at is not None and rows.dated
        for outgoing in (True, False):
            few = not dated and rows.base.degree(node, outgoing=outgoing) <= MAX_SHOWN
            found += self._few_ends(node, outgoing=outgoing) if few else self._some_ends(node, outgoing=outgoing)
        return found[:MAX_NEIGHBOURS]

    def _few_ends(self, node: int, *, outgoing: bool) -> list[tuple[int, float]]:
        edges, weights = self.rows.edges_of(node, outgoing=outgoing), self.rows.base.weights
        own = zip(edges.numbers[:MAX_NEIGHBOURS], edges.ends[:MAX_NEIGHBOURS], strict=True)
        found: list[tuple[int, float]] = [(end, weights[number]) for number, end in own]
        if edges.changed:
            found += [(end, cast("EdgeRow", version.row).weight) for _, end, version in edges.changed[:MAX_NEIGHBOURS]]
        return found

    def _some_ends(self, node: int, *, outgoing: bool) -> Iterable[tuple[int, float]]:
        rows = self.rows
        edges = rows.around(np.array([node]), outgoing=outgoing)
        if self.valid_at is not None and rows.dated:
            # A node with this many edges counts as a hub, even if few of them are valid.
            edges = rows.holding(edges.first(MAX_SHOWN), self.valid_at)
        edges = edges.first(MAX_NEIGHBOURS)
        return zip(rows.ends(edges)[outgoing].tolist(), rows.weights(edges), strict=True)

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """See `GraphReader`."""
        wanted = Walk(start, depth, "both", None, None, max_nodes, self.valid_at)
        return list(self.rows.rows_of(walk(self.rows, wanted).edges))

    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        """See `GraphReader`."""
        return parents(self.rows, ids)

    def children(self, memory_id: str, limit: int) -> list[str]:
        """See `GraphReader`."""
        page = self._ask(lambda memories: memories.beneath(memory_id, self.now, None, "", limit, near=True))
        return [place.id for place in page.found]

    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryDepth]:
        """See `GraphReader`. Raises MemoriesDamaged."""
        return self._checked(self._ask(lambda memories: memories.above(memory_id, self.now, layer)))

    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> BelowPage:
        """See `GraphReader`. Raises MemoriesDamaged."""
        page = self._ask(lambda memories: memories.beneath(memory_id, self.now, layer, after, limit, near=near))
        self._checked(page.found)
        return page

    def _checked(self, places: list[MemoryDepth]) -> list[MemoryDepth]:
        found = self.rows.nodes([place.id for place in places])
        if len(found) != len(places) or not all(map(stands, found.values())):
            raise MemoriesDamaged("it names a memory that is not there")
        return places

    def below(self, memory_id: str) -> WeightedNodes:
        """See `GraphReader`."""
        return _Descendants(self._ask, memory_id)

    def _ask(self, question: Callable[[Memories], Found]) -> Found:
        if self._memories is not None:
            return question(self._memories)
        return self._store.memories.ask(lambda memories, _: question(memories))

    def accesses(self, ids: Collection[str]) -> dict[str, Access]:
        """See `GraphReader`."""
        return self._store.accesses.of(ids)

    def search_index(self, indexes: Indexes) -> Indexes:
        """See `GraphReader`."""
        return indexes

    def former_holders(self, wanted: Sequence[Condition], seen: int) -> frozenset[str]:  # noqa: ARG002
        """See `GraphReader`."""
        return frozenset()

    def find_former(self, node_id: str) -> str | None:  # noqa: ARG002
        """See `GraphReader`."""
        return None

    def current_rows(self) -> AbstractContextManager[Rows]:
        """See `GraphReader`."""
        return nullcontext(self.rows)


class _Descendants(WeightedNodes):
    """What stands below a memory, as the memory index knows it."""

    def __init__(self, ask: AskMemories, memory_id: str) -> None:
        self._ask = ask
        self._id = memory_id

    def __len__(self) -> int:
        return self._ask(lambda memories: memories.size_below(self._id, MAX_DESCENDANTS + 1))

    def among(self, ids: Iterable[str]) -> dict[str, float]:
        known = list(ids)
        found = self._ask(lambda memories: memories.among_below(self._id, known))
        return {node_id: 1.0 for node_id in known if node_id in found}

    def first(self, count: int) -> dict[str, float]:
        return dict.fromkeys(self._ask(lambda memories: memories.some_below(self._id, count)), 1.0)


class AskMemories(Protocol):
    """Asks the memory index of a store."""

    def __call__(self, question: Callable[[Memories], Found], /) -> Found:
        """Return the answer to the question."""
        ...


def _strongest(rows: Rows, edges: Gathered, limit: int) -> Gathered:
    if len(edges.base) <= limit:
        return edges
    best = np.argsort(-rows.base.weight[edges.base], kind="stable")[:limit]
    return Gathered(edges.base[np.sort(best)], edges.changed)


def _node_at(history: History, node_id: str, at: int) -> NodeRow | None:
    state = history.node_at(node_id, at)
    return None if state is None else state.row


Lease = Callable[[], AbstractContextManager[OpenStore]]
OpenHistory = Callable[[], AbstractContextManager[tuple[OpenStore, HistoryFollower]]]
"""Opens a store and its history for one look."""


def hold_history(store: OpenStore, follower: HistoryFollower) -> OpenHistory:
    """Return what opens the history of a store that stays leased."""
    return lambda: nullcontext((store, follower))


def lease_history(lease: Lease, past: Past) -> OpenHistory:
    """Return what leases a store for each look at its history, once that has caught up."""

    @contextmanager
    def opened() -> Generator[tuple[OpenStore, HistoryFollower]]:
        with lease() as store:
            yield store, past.of(store)[0]

    return opened


class AsOfGraph(GraphReader):
    """The graph after a commit, by the history of the store."""

    has_memory_index = False

    def __init__(self, opened: OpenHistory, sequence: int, valid_at: int | None = None, now: int = 0) -> None:
        super().__init__(sequence, valid_at, now)
        self._opened = opened
        self._nodes: dict[str, NodeRow | None] = {}

    def _look(self, question: Callable[[History], Found]) -> Found:
        with self._opened() as (_, follower):
            return follower.look(question)

    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """See `GraphReader`."""
        if new := [node_id for node_id in dict.fromkeys(ids) if node_id not in self._nodes]:
            self._nodes |= self._look(lambda history: {each: _node_at(history, each, self.sequence) for each in new})
        return {node_id: row for node_id in ids if (row := self._nodes[node_id]) is not None}

    def _node(self, node_id: str) -> NodeRow | None:
        return self.nodes((node_id,)).get(node_id)

    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        """See `GraphReader`."""
        at = self.sequence
        return self._look(lambda history: {node_id: survivor_at(history, node_id, at) for node_id in ids})

    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """See `GraphReader`."""
        return {}

    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        """See `GraphReader`. The current rows tell whether a version is current, the history what superseded it."""
        with self._opened() as (store, follower):
            with store.reading() as reading:
                current, last = reading.nodes([row.id for row in rows]), reading.at
            former = [row for row in rows if row.id not in current or current[row.id].version != row.version]
            if former:
                follower.wait(last, FRESH_SECONDS)
            states = follower.look(
                lambda history: {
                    (row.id, row.version): render.state_of_version(history, row, current.get(row.id)) for row in former
                }
            )
        unchanged = render.CURRENT_VERSION
        return [states.get((row.id, row.version), unchanged).shown_on(convert(row)) for row in rows]

    def edges_of(self, ids: Collection[str], direction: Direction) -> Iterator[EdgeRow]:
        """See `GraphReader`."""

        def look(history: History) -> list[EdgeRow]:
            return [edge for node_id in ids for edge in self._read(history, node_id, direction, EVERY_EDGE)]

        return iter(self._look(look))

    def _edges(self, node_id: str, direction: Direction, limit: int = EVERY_EDGE) -> list[EdgeRow]:
        return self._look(lambda history: self._read(history, node_id, direction, limit))

    def _read(self, history: History, node_id: str, direction: Direction, limit: int) -> list[EdgeRow]:
        outgoing = history.outgoing(node_id, self.sequence, limit) if direction != "incoming" else []
        incoming = history.incoming(node_id, self.sequence, limit) if direction != "outgoing" else []
        return [state.row for state in (*outgoing, *incoming)]

    def links_from(self, ids: Collection[str]) -> Iterator[LinkRow]:
        """See `GraphReader`."""

        def look(history: History) -> list[LinkRow]:
            return [state.row for each in ids for state in history.links_from(each, self.sequence, EVERY)]

        return iter(self._look(look))

    def outgoing(self, node_id: str) -> list[EdgeRow]:
        """See `GraphReader`."""
        return [edge for edge in self._edges(node_id, "outgoing", MAX_SHOWN + 1) if self._is_valid(edge)]

    def outgoing_of(self, ids: Collection[str], relation_types: Collection[str]) -> list[EdgeRow]:
        """See `GraphReader`."""
        return [edge for edge in self.edges_of(ids, "outgoing") if edge.relation_type in relation_types]

    def incident_of(self, ids: Collection[str], relation_type: str) -> Iterator[tuple[str, EdgeRow]]:
        """See `GraphReader`."""
        for node_id in ids:
            edges = (edge for edge in self.valid_edges(node_id) if edge.relation_type == relation_type)
            yield from ((node_id, edge) for edge in islice(edges, MAX_NEIGHBOURS))

    def strongest_edges(self, node_id: str, excluded: Collection[str], limit: int) -> Iterable[EdgeRow]:  # noqa: ARG002
        """See `GraphReader`."""
        return (edge for edge in self.valid_edges(node_id) if edge.relation_type not in excluded)

    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        """See `GraphReader`."""
        edges = (edge for edge in self.valid_edges(node_id) if edge.relation_type == relation_type)
        return NodeWeights({edge.source: min(max(edge.weight, 0.0), 1.0) for edge in edges if edge.target == node_id})

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """See `GraphReader`."""
        enough = MAX_NEIGHBOURS if self.valid_at is None else EVERY_EDGE
        around = {each: [edge for edge in self._edges(each, "both", enough) if self._is_valid(edge)] for each in ids}
        there = self._valid_ends([edge for edges in around.values() for edge in edges])
        return {
            node_id: [
                (end, edge.weight)
                for edge in edges
                if (end := edge.source if edge.target == node_id else edge.target) in there
            ][:MAX_NEIGHBOURS]
            for node_id, edges in around.items()
        }

    def _valid_ends(self, edges: Iterable[EdgeRow]) -> Collection[str]:
        ends = {end for edge in edges for end in edge.key[:2]}
        # An edge that exists has both its ends.
        return ends if self.valid_at is None else self.valid_nodes(ends)

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """See `GraphReader`."""
        return by_levels(Walk(start, depth, "both", None, None, max_nodes), start, self._valid_edges_of).edges

    def _valid_edges_of(self, ids: Collection[str]) -> Iterator[EdgeRow]:
        edges = [edge for edge in self.edges_of(ids, "both") if self._is_valid(edge)]
        there = self._valid_ends(edges)
        return (edge for edge in edges if edge.source in there and edge.target in there)

    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        """See `GraphReader`."""
        return {memory_id: parent for memory_id in ids if (parent := self._parent(memory_id)) is not None}

    def _parent(self, memory_id: str) -> str | None:
        edges = filter(is_upward, self._edges(memory_id, "outgoing"))
        edge = newest(edge for edge in edges if stands(self._node(edge.target)))
        return None if edge is None else edge.target

    def children(self, memory_id: str, limit: int) -> list[str]:
        """See `GraphReader`."""
        return [place.id for place in islice(self._levels_below(memory_id, 1), limit)]

    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryDepth]:
        """See `GraphReader`."""
        return [place for place in self._levels_above(memory_id) if self._is_placed(place, layer)]

    def _levels_above(self, memory_id: str) -> Iterator[MemoryDepth]:
        seen, at = {memory_id}, memory_id
        for depth in range(1, MAX_DEPTH + 1):
            parent = self._parent(at)
            if parent is None or parent in seen:
                return
            seen.add(at := parent)
            yield MemoryDepth(at, depth)

    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> BelowPage:
        """See `GraphReader`."""
        places = self._levels_below(memory_id, 1 if near else MAX_DEPTH)
        found = sorted(place for place in places if self._is_placed(place, layer))
        page = [each for each in found if each.id > after][: limit + 1]
        return BelowPage(page[:limit], page[limit - 1].id if len(page) > limit else None)

    def below(self, memory_id: str) -> WeightedNodes:
        """See `GraphReader`."""
        return NodeWeights({place.id: 1.0 for place in self._levels_below(memory_id, MAX_DEPTH)})

    def _is_placed(self, place: MemoryDepth, layer: int | None) -> bool:
        row = self._node(place.id)
        own = row.extras.layer if row is not None and row.extras is not None else None
        return row is not None and row.holds_at(self.now) and layer in (None, own)

    def _levels_below(self, memory_id: str, depth: int) -> Iterator[MemoryDepth]:
        """Yield what stood below a memory, level by level. Raises TooLarge."""
        seen, level = {memory_id}, [memory_id]
        for at in range(1, depth + 1):
            level = [child for each in level for child in self._children(each) if child not in seen]
            seen.update(level)
            yield from (MemoryDepth(child, at) for child in level)
            if len(seen) > MAX_DESCENDANTS:
                raise TooLarge(
                    f"more than {MAX_DESCENDANTS} memories stood below {memory_id!r} then;"
                    " ask for those below its children"
                )

    def _children(self, memory_id: str) -> list[str]:
        sources = [edge.source for edge in self._edges(memory_id, "incoming") if is_upward(edge)]
        if len(sources) > MAX_DESCENDANTS:
            raise TooLarge(
                f"more than {MAX_DESCENDANTS} memories stood below {memory_id!r} then; that is too many to be told"
            )
        return [child for child in sources if stands(self._node(child)) and self._parent(child) == memory_id]

    def accesses(self, ids: Collection[str]) -> dict[str, Access]:  # noqa: ARG002
        """See `GraphReader`."""
        return {}

    def search_index(self, indexes: Indexes) -> IndexesAsOf:
        """See `GraphReader`."""
        with self._opened() as (_, follower):
            return IndexesAsOf(indexes, follower, self.sequence)

    def former_holders(self, wanted: Sequence[Condition], seen: int) -> frozenset[str]:
        """See `GraphReader`."""
        with self._opened() as (store, follower):
            # A state that has just ended is known to have ended only once the history has seen the commit.
            if not follower.wait(seen, HISTORY_SECONDS):
                raise Unavailable(f"the history has not seen sequence {seen} yet", retry_after=2)
            return frozenset(store.catalog.having_had(wanted, self.sequence))

    def find_former(self, node_id: str) -> str | None:
        """See `GraphReader`."""
        return self.resolve_redirect(node_id)

    @contextmanager
    def current_rows(self) -> Generator[Rows]:
        """See `GraphReader`."""
        with self._opened() as (store, _), store.reading() as rows:
            yield rows


@contextmanager
def read_graph(
    store: OpenStore, past: Past | None, valid_at: str | None, *, links: bool = False, lease: Lease | None = None
) -> Generator[GraphReader]:
    """Read the graph of a leased store as of now, or of ``past``; ``valid_at`` left out is the same moment.

    ``links``: whether links of the current graph will be read. ``lease``: leases the store again for each look at its
    history, for readers that outlive the caller's lease; the files of current rows and links stay open anyway.

    Raises InvalidInput for what is no RFC 3339 time, and what `Past.of` raises.
    """
    if past is not None:
        follower, at = past.of(store)
        moment = past.moment(store)
        opened = hold_history(store, follower) if lease is None else lease_history(lease, past)
        yield AsOfGraph(opened, at, _valid_moment(valid_at, moment), moment)
        return
    with ExitStack() as held:
        rows, linked = held.enter_context(store.reading_links() if links else _reading(store))
        yield CurrentGraph(store, rows, _valid_moment(valid_at, time.time_ns() // 1000 if rows.dated else None), linked)


@contextmanager
def _reading(store: OpenStore) -> Generator[tuple[Rows, None]]:
    with store.reading() as rows:
        yield rows, None


def _valid_moment(text: str | None, left_out: int | None) -> int | None:
    return left_out if text is None else valid_moment(text)


def ask_hierarchy(store: OpenStore, past: Past | None, question: Callable[[GraphReader], Found]) -> Found:
    """Answer a question about the hierarchy of memories; what indexes and rows say is of one commit.

    The memory index is rebuilt if it turns out to be damaged. Raises what `Past.of` raises.
    """
    if past is None:
        return store.memories.ask(lambda memories, rows: question(CurrentGraph(store, rows, None, None, memories)))
    follower, at = past.of(store)
    return question(AsOfGraph(hold_history(store, follower), at, None, past.moment(store)))


def shown_then(store: OpenStore, past: Past, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
    """As `AsOfGraph.to_nodes`."""
    follower, at = past.of(store)
    return AsOfGraph(hold_history(store, follower), at).to_nodes(rows, convert)
