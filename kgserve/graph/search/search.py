"""Finding nodes by words, by meaning, by both together, and by what they are related to."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.cache import QueryVectors
from kgserve.errors import InvalidInput, NoStore, Unavailable
from kgserve.graph import context as texts
from kgserve.graph import render
from kgserve.graph.answers import (
    BatchHit,
    BatchSearchAnswer,
    ContextAnswer,
    Edge,
    Node,
    SearchAnswer,
    SearchHit,
)
from kgserve.graph.federated_traversal import NodeLocation, beside
from kgserve.graph.handle import Graph
from kgserve.graph.render import shown_then
from kgserve.graph.requests import BatchSearchRequest, ContextRequest, SearchRequest, SearchVariant
from kgserve.graph.search import fusion
from kgserve.graph.search.attribute_filter import Holders, IndexesAmong, WithHeads
from kgserve.graph.search.fusion import HUB, Match, Neighbours, Ranked
from kgserve.graph.temporal import MAX_SHOWN, Past, survivor_at, world_moment
from kgserve.graph.validate import Faults, asked_attributes, named_twice
from kgserve.memory.api import RecallRequest
from kgserve.platform.metrics.observation import part
from kgserve.projections.conflict_index import Heads
from kgserve.projections.history.history import History
from kgserve.projections.history_follower import HistoryFollower
from kgserve.projections.indexer import Indexer
from kgserve.projections.indexes import Indexes, IndexesAsOf
from kgserve.projections.text import Filter
from kgserve.storage.model.attributes import Condition, has_all
from kgserve.storage.model.batch import conflicts
from kgserve.storage.model.filters import NodeFilter
from kgserve.storage.model.rows import EdgeRow, NodeRow
from kgserve.storage.model.walk import Walk, by_levels, clamp
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.walk import walk
from kgserve.storage.rows.ways import survivor
from kgserve.stores.store import OpenStore

EVERY_EDGE = 1 << 62
# One more than a hub has shows that it is one.
_ENOUGH = HUB + 1


class GraphReader(ABC):
    """Nodes and edges that are there; with ``valid_at``, a moment of the world in microseconds, that were true then."""

    def __init__(self, valid_at: int | None) -> None:
        self._valid_at = valid_at

    def rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among some ids, by id."""
        found = self._rows(ids)
        return found if self._valid_at is None else {key: row for key, row in found.items() if self._holds(row)}

    def states(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among some ids, by id, whether they were true or not."""
        return self._rows(ids)

    def edges(self, node_id: str) -> list[EdgeRow]:
        """All true edges of a node, in either direction, whose ends need not be true."""
        return [edge for edge in self._all_around(node_id) if self._holds(edge)]

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """The other ends of each node's edges, in either direction, with weights; at most 33 each."""
        around = {node_id: self._around(node_id) for node_id in ids}
        there = self._true({end for edges in around.values() for edge in edges for end in edge.key[:2]})
        return {
            node_id: [
                (end, edge.weight)
                for edge in edges
                if (end := edge.source if edge.target == node_id else edge.target) in there
            ][:_ENOUGH]
            for node_id, edges in around.items()
        }

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """The edges that a walk in both directions finds."""
        return by_levels(_walk(start, depth, max_nodes), start, self._followed).edges

    def outgoing(self, node_id: str) -> list[EdgeRow]:
        """Edges that start at a node, at most about 1,000; their ends need not be true."""
        return [edge for edge in self._some_outgoing(node_id) if self._holds(edge)]

    def _followed(self, ids: Collection[str]) -> Iterator[EdgeRow]:
        edges = [edge for node_id in ids for edge in self.edges(node_id)]
        there = self._true({end for edge in edges for end in edge.key[:2]})
        return (edge for edge in edges if edge.source in there and edge.target in there)

    def _true(self, ids: set[str]) -> Collection[str]:
        # An edge that is there has its ends.
        return ids if self._valid_at is None else self.rows(ids)

    def _holds(self, row: NodeRow | EdgeRow) -> bool:
        return self._valid_at is None or row.holds_at(self._valid_at)

    def found_as(self, node_id: str) -> str:
        """The node that is meant by an id: the one that it was merged into, unless everything is looked at."""
        return node_id if self._valid_at is None else self._survivor(node_id)

    @abstractmethod
    def _survivor(self, node_id: str) -> str:
        """The node itself, or the one that it has come to by merges."""

    @abstractmethod
    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among some ids, true or not."""

    @abstractmethod
    def _around(self, node_id: str) -> list[EdgeRow]:
        """True edges of a node in either direction: all of them, or more than a hub has."""

    @abstractmethod
    def _all_around(self, node_id: str) -> list[EdgeRow]:
        """All edges of a node, in either direction."""

    @abstractmethod
    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        """Edges that start at a node, at most about 1,000."""


class PresentSurroundings(GraphReader):
    """The graph as it is."""

    def __init__(self, rows: Rows, valid_at: int | None) -> None:
        super().__init__(valid_at)
        self.present = rows

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """See `GraphReader.neighbours`."""
        names = self.present.delta.ids
        found = self._many_ends(ids)
        ends = iter(names([end for each in found.values() for end, _ in each]))
        return {node_id: [(next(ends), weight) for _, weight in each] for node_id, each in found.items()}

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """See `GraphReader.walk`."""
        wanted = msgspec.structs.replace(_walk(start, depth, max_nodes), valid_at=self._valid_at)
        return list(self.present.rows_of(walk(self.present, wanted).edges))

    def _many_ends(self, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        rows, numbers = self.present, {node_id: self.present.number(node_id) for node_id in ids}
        few: list[int] = []
        if self._valid_at is not None and rows.dated:
            few = [node for node in dict.fromkeys(numbers.values()) if node >= 0 and self._has_few(node)]
        at_once = self._true_ends(few, self._valid_at) if few and self._valid_at is not None else {}
        return {
            node_id: at_once[node][:_ENOUGH] if node in at_once else self._ends(node_id)
            for node_id, node in numbers.items()
        }

    def _has_few(self, node: int) -> bool:
        base, delta = self.present.base, self.present.delta
        out = base.degree(node, outgoing=True) + len(delta.out.get(node, ()))
        return max(out, base.degree(node, outgoing=False) + len(delta.into.get(node, ()))) <= MAX_SHOWN

    def _true_ends(self, nodes: Sequence[int], moment: int) -> dict[int, list[tuple[int, float]]]:
        """The true neighbours of some nodes that are no hubs; one node after the other would take ten times as long."""
        rows, found = self.present, {node: list[tuple[int, float]]() for node in nodes}
        for outgoing in (True, False):
            edges = rows.holding(rows.around(np.array(nodes), outgoing=outgoing), moment)
            ends = rows.ends(edges)
            owners, others = ends if outgoing else ends[::-1]
            for owner, other, weight in zip(owners.tolist(), others.tolist(), rows.weights(edges), strict=True):
                found[owner].append((other, weight))
        return found

    def _ends(self, node_id: str) -> list[tuple[int, float]]:
        rows, node = self.present, self.present.number(node_id)
        found: list[tuple[int, float]] = []
        if node < 0:
            return found
        dated = self._valid_at is not None and rows.dated
        for outgoing in (True, False):
            few = not dated and rows.base.degree(node, outgoing=outgoing) <= MAX_SHOWN
            found += self._few_ends(node, outgoing=outgoing) if few else self._some_ends(node, outgoing=outgoing)
        return found[:_ENOUGH]

    def _few_ends(self, node: int, *, outgoing: bool) -> list[tuple[int, float]]:
        edges, weights = self.present.edges_of(node, outgoing=outgoing), self.present.base.weights
        own = zip(edges.numbers[:_ENOUGH], edges.ends[:_ENOUGH], strict=True)
        found: list[tuple[int, float]] = [(end, weights[number]) for number, end in own]
        if edges.changed:
            found += [(end, cast("EdgeRow", version.row).weight) for _, end, version in edges.changed[:_ENOUGH]]
        return found

    def _some_ends(self, node: int, *, outgoing: bool) -> Iterable[tuple[int, float]]:
        rows = self.present
        edges = rows.around(np.array([node]), outgoing=outgoing)
        if self._valid_at is not None and rows.dated:
            # With so many it is taken for a hub, however few of them are true.
            edges = rows.holding(edges.first(MAX_SHOWN), self._valid_at)
        edges = edges.first(_ENOUGH)
        return zip(rows.ends(edges)[outgoing].tolist(), rows.weights(edges), strict=True)

    def _survivor(self, node_id: str) -> str:
        return survivor(self.present, node_id)

    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        return self.present.nodes(ids)

    def _around(self, node_id: str) -> list[EdgeRow]:
        return self._all_around(node_id)

    def _all_around(self, node_id: str) -> list[EdgeRow]:
        return [*self.present.outgoing(node_id), *self.present.incoming(node_id)]

    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        return list(islice(self.present.outgoing(node_id), MAX_SHOWN + 1))


class PastSurroundings(GraphReader):
    """The graph as of a commit."""

    def __init__(self, history: HistoryFollower, at: int, valid_at: int | None) -> None:
        super().__init__(valid_at)
        self.history = history
        self.at = at

    def _survivor(self, node_id: str) -> str:
        return self.history.look(lambda history: survivor_at(history, node_id, self.at))

    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        def look(history: History) -> dict[str, NodeRow]:
            states = ((node_id, history.node_at(node_id, self.at)) for node_id in ids)
            return {node_id: state.row for node_id, state in states if state is not None}

        return self.history.look(look)

    def _around(self, node_id: str) -> list[EdgeRow]:
        enough = _ENOUGH if self._valid_at is None else EVERY_EDGE
        return [edge for edge in self._edges(node_id, enough) if self._holds(edge)]

    def _all_around(self, node_id: str) -> list[EdgeRow]:
        return self._edges(node_id, EVERY_EDGE)

    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        return [s.row for s in self.history.look(lambda h: h.outgoing(node_id, self.at, MAX_SHOWN + 1))]

    def _edges(self, node_id: str, limit: int) -> list[EdgeRow]:
        def look(history: History) -> list[EdgeRow]:
            found = (*history.outgoing(node_id, self.at, limit), *history.incoming(node_id, self.at, limit))
            return [state.row for state in found]

        return self.history.look(look)


def _walk(start: str, depth: int, max_nodes: int) -> Walk:
    return Walk(start, depth, "both", None, None, max_nodes)


class StoreSearch(msgspec.Struct):
    """A store at a moment: ``at`` is the commit, None for now, ``valid_at`` the time in the world in microseconds.

    ``heads`` are the versions in conflict, if they are to be found, too.
    """

    store: OpenStore
    at: int | None
    valid_at: int | None
    around: GraphReader
    indexes: Indexes | IndexesAsOf
    present: Indexes
    indexer: Indexer
    past: Past | None = None
    words_alone: bool = False
    heads: Heads | None = None

    @property
    def queries(self) -> QueryVectors:
        """Texts that are searched for as vectors."""
        return self.present.queries

    @property
    def sequence(self) -> int:
        """The commit that was looked at, or the last one that the indexes have seen."""
        return self.present.seen(words_alone=self.words_alone) if self.at is None else self.at

    def shown(self, rows: Sequence[NodeRow]) -> list[Node]:
        """Nodes as callers see them; those of then with whether they count yet."""
        return [*map(render.node, rows)] if self.past is None else shown_then(self.store, self.past, rows)

    def among(self, wanted: tuple[Condition, ...]) -> IndexesAmong:
        """The indexes for nodes alone that have some attributes."""
        then = (self.around.history, self.around.at) if isinstance(self.around, PastSurroundings) else None

        def passing(ids: Collection[str]) -> set[str]:
            return {row.id for row in self.around.rows(ids).values() if has_all(row.attributes, wanted)}

        return IndexesAmong(self.indexes, Holders(self.store, wanted, then), passing)

    @property
    def degraded(self) -> bool:
        """Whether meaning is not understood, for want of a model."""
        return self.present.degraded


@contextmanager
def at_moment(store: OpenStore, indexer: Indexer, past: Past | None, valid_at: str | None) -> Generator[StoreSearch]:
    """The store as it was; the indexes may have yet to see the commit. Raises InvalidInput, and what `Past.of` does."""
    moment, present = world_moment(valid_at, store, past), indexer.of(store)
    if past is not None:
        history, at = past.of(store)
        around = PastSurroundings(history, at, moment)
        yield StoreSearch(store, at, moment, around, IndexesAsOf(present, history, at), present, indexer, past)
        return
    with store.reading() as rows:
        yield StoreSearch(store, None, moment, PresentSurroundings(rows, moment), present, present, indexer)


MAX_LIMIT = 100
MAX_PER_QUERY = 50
DEFAULT_LIMIT = 20
AT_LEAST_SECONDS = 10.0
GRAPH_STARTS = 5
GRAPH_NODES = 1000
# Hits asked for beyond those wanted: entities may have been deleted since the index saw them.
_SPARE = 10
# How deep the two lists are read: a page further down is answered from deeper lists, but what comes before it keeps its
# place, or else a hit would be on two pages or on none.
_POOLS = (fusion.POOL, 10 * fusion.POOL, 110 * fusion.POOL)

Vector = NDArray[np.float32]
_Asked = TypeVar("_Asked", SearchRequest, SearchVariant)


class RankedEntity(msgspec.Struct, frozen=True):
    """A ranked entity with the scores of the two lists as they were, before they were made comparable."""

    ranked: Ranked
    keyword: float | None
    semantic: float | None


def search(graph: Graph, request: SearchRequest) -> SearchAnswer:
    """Answers with the best nodes, best first. `hybrid` (the default) joins words, meaning and relations.

    `at_least` makes sure that the indexes have seen a write: give the `sequence` that it answered with. With `as_of`
    hits, rows and relations are those of then; only how rare each word is, is counted over past and present texts.

    Raises Unavailable while an index is being opened, does not come to `at_least` in time or is begun anew meanwhile,
    and Conflict when the store's vectors are of another model.
    """
    started = time.perf_counter()
    request = _by_types(request)
    attributes = {"kgserve.store": graph.name, "kgserve.search.mode": request.mode}
    with (
        searching(graph, request, words_alone=request.mode == "keyword") as searched,
        # Behind the wait, from which a request may be put off and begun again.
        graph.pool.observation.span("search", attributes),
    ):
        searched.heads = _heads(graph, searched, request.at_least)
        hits = Finder(searched, request).page(max(1, min(request.limit, MAX_LIMIT)), request.offset)
        degraded, sequence = searched.degraded, searched.sequence
    return SearchAnswer(hits=hits, degraded=degraded, index_sequence=sequence, took_ms=since(started))


def search_batch(graph: Graph, request: BatchSearchRequest) -> BatchSearchAnswer:
    """Runs 1 to 8 variants and joins them by reciprocal rank fusion (k = 60); ties keep the order of appearance.

    Raises what a search raises; an error of one variant is the answer of all.
    """
    started = time.perf_counter()
    nodes: dict[str, Node] = {}
    rankings: list[list[str]] = []
    with searching(graph, request, words_alone=all(each.mode == "keyword" for each in request.queries)) as searched:
        searched.heads = _heads(graph, searched, request.at_least)
        for variant in request.queries:
            hits = Finder(searched, _alone(_by_types(variant))).page(_clamped(variant.limit, MAX_PER_QUERY), 0)
            # Of a node in conflict the version counts that was found first.
            nodes = {hit.node.id: hit.node for hit in reversed(hits)} | nodes
            rankings.append([*dict.fromkeys(hit.node.id for hit in hits)])
        degraded, sequence = searched.degraded, searched.sequence
    scores = fusion.reciprocal(rankings)
    best = list(scores)[: _clamped(request.limit, MAX_LIMIT)]
    return BatchSearchAnswer(
        hits=[BatchHit(node=nodes[key], score=scores[key], queries_matched=_matched(key, rankings)) for key in best],
        query_count=len(rankings),
        unique_hits=len(scores),
        per_query_hits=[len(ranking) for ranking in rankings],
        degraded=degraded,
        index_sequence=sequence,
        took_ms=since(started),
    )


def _heads(graph: Graph, searched: StoreSearch, at_least: int | None) -> Heads | None:
    """The versions in conflict, where there are any; as of a commit the search of the past has them."""
    store, historian = searched.store, graph.graphs.historian
    may_have = store.heads_mark or store.description.conflict_policy == "manual"
    if historian is None or searched.at is not None or not may_have:
        return None
    history, heads = historian.found(store), searched.present.heads
    if history is None or history.turned_off:
        return None
    history.wait(at_least or 0, AT_LEAST_SECONDS)
    # One that is being opened has not been looked at by anybody yet.
    with suppress(Unavailable):
        return heads if heads.follow(history) else None
    return None


def context(graph: Graph, request: ContextRequest) -> ContextAnswer:
    """Answers with the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text is never over the budget. With `also` the nodes of several stores come best first, each with its store.
    With `follow_symlinks` come those that edges into and out of other stores relate them to.

    Raises what a search raises.
    """
    limit = max(1, min(request.limit, MAX_LIMIT))
    if not request.also:
        parts = [_gathered(graph, request, limit, label=graph.name if request.follow_symlinks else "")]
    else:
        graphs = several(graph, request.also, request.as_of)
        apart = {each.name: request if each is graph else alone(request) for each in graphs}
        top = max(_gathered(each, apart[each.name], 1).top for each in graphs)
        parts = [_gathered(each, apart[each.name], limit, top, each.name) for each in graphs]
    best = sorted((each for part in parts for each in part.found), key=lambda found: -found[0])[:limit]
    entries = _with_linked(graph, request, best, limit) if request.follow_symlinks else [entry for _, entry in best]
    made = (texts.markdown if request.format == "markdown" else texts.as_json)(entries, request.budget)
    told = entries[: made.count]
    return ContextAnswer(
        text=made.text,
        tokens=made.tokens,
        ids=[each.node.id for each in told],
        stores=[each.store for each in told] if request.also or request.follow_symlinks else msgspec.UNSET,
        truncated=made.truncated,
        degraded=any(part.degraded for part in parts),
        index_sequence=next((part.sequence for part in parts if part.store == graph.name), 0),
    )


def _with_linked(
    graph: Graph, request: ContextRequest, best: list[tuple[float, texts.ContextEntry]], limit: int
) -> list[texts.ContextEntry]:
    """What was found, and among it, with half of its score, what is linked to it and passes the same filters."""
    scores = {NodeLocation(entry.store, entry.node.id): score for score, entry in best}
    found = beside(graph, scores, request, limit)
    wanted = NodeFilter(types=tuple(request.types or ()), attributes=asked_attributes(request.attributes))
    more = [
        (score, texts.ContextEntry(node, (), store)) for score, store, row, node in found.nodes if wanted.matches(row)
    ]
    entries = [entry for _, entry in sorted((*best, *more), key=lambda each: -each[0])[:limit]]
    return texts.linked(entries, found.links)


class _StoreMatches(NamedTuple):
    """What of one store fits a question, with scores, best first; ``top`` is the best score of words alone."""

    store: str
    found: list[tuple[float, texts.ContextEntry]]
    top: float
    degraded: bool
    sequence: int


def _gathered(graph: Graph, request: ContextRequest, limit: int, top: float = 0.0, label: str = "") -> _StoreMatches:
    wanted = SearchRequest(query=request.query, types=request.types, attributes=request.attributes)
    with searching(graph, request, words_alone=False) as searched:
        finder = Finder(searched, wanted, top)
        hits = finder.page(limit, 0)
        nodes = [hit.node for hit in hits]
        entries = texts.entries(nodes, _between(searched.around, nodes), label)
        scores = [hit.score for hit in hits]
        found = [*zip(scores, entries, strict=True)]
        return _StoreMatches(graph.name, found, finder.top, searched.degraded, searched.sequence)


def several(graph: Graph, also: Sequence[str], as_of: int | str | None) -> list[Graph]:
    """The stores that are asked together, the request's own first, if it is there.

    Raises NoStore for one that is not there, and InvalidInput for a commit, which is one store's.
    """
    if as_of is not None and Past(None, as_of).is_sequence:
        raise InvalidInput.at("as_of", "a sequence is of one store alone; with also, give a time")
    return graph.beside(also)


R = TypeVar("R", ContextRequest, RecallRequest)


def alone(request: R) -> R:
    """What another store is asked: the commit to wait for is of the request's own store."""
    return msgspec.structs.replace(request, at_least=None)


class SearchArguments(Protocol):
    """What any way of searching has."""

    @property
    def at_least(self) -> int | None:
        """The commit that the indexes must have seen."""

    @property
    def as_of(self) -> int | str | None:
        """The commit, or the time, as of which the store is looked at."""

    @property
    def valid_at(self) -> str | None:
        """The moment of the world."""


@contextmanager
def searching(
    graph: Graph, asked: SearchArguments, *, words_alone: bool, patience: float = 0.0
) -> Generator[StoreSearch]:
    """The store at the moment that is asked for, once its indexes, or that of words alone, have seen what they must.

    ``patience``: so many seconds they have to see what the store holds, where the request names no commit.
    """
    indexer = graph.graphs.indexer
    if indexer is None:
        raise Unavailable("indexes are turned off on this server; there is no search", retry_after=3600)
    with graph.lease() as store:
        indexes = indexer.of(store)
        indexes.require()
        with part("index_wait"):
            await_sequence(indexes, asked.at_least, words_alone=words_alone)
            if patience > 0 and asked.at_least is None and asked.as_of is None:
                indexes.catch_up(patience, words_alone=words_alone)
        with at_moment(store, indexer, graph.past(asked.as_of), asked.valid_at) as searched:
            searched.words_alone = words_alone
            if searched.at is not None:
                await_sequence(indexes, searched.at, words_alone=words_alone, why="as_of")
            yield searched
            if (needed := asked.at_least) is not None and indexes.seen(words_alone=words_alone) < needed:
                # Begun anew meanwhile: a request that can be put off is, until they have seen it again.
                await_sequence(indexes, needed, words_alone=words_alone)
                raise Unavailable("the indexes were begun anew meanwhile; ask again", retry_after=1)


def since(started: float) -> float:
    """Milliseconds since a reading of the performance counter."""
    return round((time.perf_counter() - started) * 1000, 3)


def _between(around: GraphReader, nodes: list[Node]) -> list[Edge]:
    ids = {node.id for node in nodes}
    return [render.edge(row) for node in nodes for row in around.outgoing(node.id) if row.target in ids]


def _alone(variant: SearchVariant) -> SearchRequest:
    return SearchRequest(
        query=variant.query,
        mode=variant.mode,
        types=variant.types,
        id_prefix=variant.id_prefix,
        min_similarity=variant.min_similarity,
        tags=variant.tags,
        attributes=variant.attributes,
        fresh_only=variant.fresh_only,
    )


def _by_types(asked: _Asked) -> _Asked:
    """What was asked, with its types under that name; empty `kinds` are all. Raises InvalidInput where both differ."""
    if not asked.kinds:
        return asked
    faults = Faults()
    types = named_twice(faults, "kinds", asked.kinds, "types", asked.types)
    faults.raise_any()
    return msgspec.structs.replace(asked, types=types, kinds=None)


def _clamped(limit: int, most: int) -> int:
    return DEFAULT_LIMIT if limit <= 0 else min(limit, most)


def _matched(key: str, rankings: list[list[str]]) -> list[int]:
    return [place for place, ranking in enumerate(rankings) if key in ranking]


def await_sequence(
    indexes: Indexes, sequence: int | None, *, words_alone: bool, why: Literal["at_least", "as_of"] = "at_least"
) -> None:
    """Wait until both indexes, or that of words alone, have seen a commit.

    Raises Unavailable after ten seconds, Conflict when the vectors are of another model, and InvalidInput for a commit
    that is yet to come.
    """
    indexes.store.reach(sequence or 0)
    present = indexes.store.state.sequence
    if sequence is not None and sequence > present:
        raise InvalidInput.at("at_least", f"is a sequence that the store has not reached; it is at {present}")
    # The first search of a store that was just opened waits for its indexes to be there at all.
    if indexes.reach(sequence or 0, AT_LEAST_SECONDS, why, words_alone=words_alone):
        return
    if not words_alone and indexes.has_meaning:
        indexes.vector.require()
    if sequence is not None:
        raise indexes.not_seen(sequence, words_alone=words_alone)


def wait_for(graph: Graph, sequence: int, seconds: float) -> None:
    """Give the indexes some time to see a commit. Whether they have is not said. Raises NotFound."""
    if graph.graphs.indexer is not None:
        with graph.lease() as store:
            graph.graphs.indexer.of(store).reach(min(sequence, store.state.sequence), seconds, "own")


def behind(graph: Graph, seen: int) -> int:
    """How many commits came after the one that the indexes have seen. Raises NotFound but for a default store."""
    try:
        with graph.lease() as store:
            return max(store.state.sequence - seen, 0)
    except NoStore:
        if graph.is_default:
            return 0
        raise


class Finder:
    """One search of one store."""

    def __init__(self, searched: StoreSearch, request: SearchRequest, top: float = 0.0) -> None:
        """``top``: the best score that words have in other stores, by which those of this one are measured."""
        self.top = top
        self._searched = searched
        self._around = searched.around
        self._attributes = asked_attributes(request.attributes) if request.attributes else ()
        indexes = searched.among(self._attributes) if self._attributes else searched.indexes
        self._heads = searched.heads
        self._indexes = indexes if self._heads is None else WithHeads(indexes, searched.present, self._heads)
        self._queries = searched.queries
        self._request = request
        types = None if request.types is None else frozenset(request.types)
        fresh_at = time.time_ns() // 1000 if request.fresh_only else None
        tags = frozenset(request.tags or ())
        self._only = Filter(types, request.id_prefix, tags, searched.valid_at, fresh_at)
        self._narrow = not self._only.is_empty or bool(self._attributes)
        self._vector: Vector | None = None

    def page(self, limit: int, offset: int) -> list[SearchHit]:
        """Some hits, as callers see them."""
        ranked = self._rank(limit + offset)
        rows = [*islice(self._passing(ranked, limit + min(offset, MAX_LIMIT)), offset, offset + limit)]
        nodes = self._searched.shown([row for _, row in rows])
        return [self._hit(found, node) for (found, _), node in zip(rows, nodes, strict=True)]

    def _rank(self, wanted: int) -> list[RankedEntity]:
        match self._request.mode:
            case "keyword":
                return [_single(Match(s, keyword=s), key, s, None) for key, s in self._words(wanted + _SPARE).items()]
            case "semantic":
                return [
                    _single(Match(s, semantic=s), key, None, s) for key, s in self._meaning(wanted + _SPARE).items()
                ]
            case "hybrid":
                return self._deep_enough(wanted + _SPARE)
            case "graph":
                return self._graph()

    def _words(self, pool: int) -> dict[str, float]:
        request = self._request
        if request.syntax:
            return self._indexes.words(request.query, pool, self._only, "syntax")
        return self._indexes.words(request.query, pool, self._only, "plain" if request.mode == "keyword" else "forms")

    def _meaning(self, pool: int) -> dict[str, float]:
        self._searched.present.require(meaning=True)
        least = self._request.min_similarity
        found = self._indexes.meaning(self._embedded(), pool, self._only)
        return found if least is None else {key: near for key, near in found.items() if near >= least}

    def _embedded(self) -> Vector:
        vector = self._vector
        if vector is None:
            vector = self._vector = self._queries.of(self._request.query)
        return vector

    def _similarities(self, ids: Iterable[str]) -> dict[str, float]:
        vectors = self._indexes.vectors_of(list(ids)) if self._searched.present.has_meaning else {}
        if not vectors:
            return {}
        near = np.stack(list(vectors.values())) @ self._embedded()
        return dict(zip(vectors, near.tolist(), strict=True))

    def _deep_enough(self, wanted: int) -> list[RankedEntity]:
        found: dict[str, RankedEntity] = {}
        for pool in _POOLS:
            hits = self._hybrid(pool)
            for hit in hits:
                found.setdefault(hit.ranked.id, hit)
            if len(found) >= wanted or len(hits) < pool:
                break
        return list(found.values())

    def _hybrid(self, pool: int) -> list[RankedEntity]:
        words, meaning = self._words(pool), self._meaning(pool) if self._searched.present.has_meaning else {}
        # What only the words found has a similarity, too; what only the meaning found mostly holds none of the words.
        meaning |= self._similarities(key for key in words if key not in meaning)
        self.top = max(self.top, max(words.values(), default=0.0))
        matches = (
            fusion.weighted(words, meaning, self._request.alpha, self.top)
            if self._request.fusion == "weighted"
            else fusion.reciprocal_matches(words, meaning)
        )
        nearby = None
        if self._request.neighbours:
            scores = {key: match.score for key, match in matches.items()}
            nearby = fusion.spread(scores, fusion.look_around(scores, self._neighbours))
        return [RankedEntity(hit, words.get(hit.id), meaning.get(hit.id)) for hit in fusion.rank(matches, nearby)]

    def _neighbours(self, keys: Sequence[str]) -> Neighbours:
        if self._heads is None:
            return self._around.neighbours(keys)
        return self._around.neighbours([key for key in keys if self._head(key) is None])

    def _graph(self) -> list[RankedEntity]:
        starts = self._starts()
        reached: dict[str, list[tuple[str, float]]] = {}
        for start in starts:
            for one, other, weight in self._edges_around(start):
                reached.setdefault(one, []).append((other, weight))
                reached.setdefault(other, []).append((one, weight))
        ways = fusion.paths(starts, reached)
        similar = self._similarities(ways)
        found = [
            RankedEntity(_by_way(key, strength * max(similar.get(key, 0.0), 0.0), hops), None, similar.get(key))
            for key, (strength, hops) in ways.items()
        ]
        return sorted(found, key=lambda hit: (-hit.ranked.score, hit.ranked.hops, hit.ranked.id))

    def _starts(self) -> dict[str, float]:
        if self._request.start_id is not None:
            start = self._around.found_as(self._request.start_id)
            if not self._around.rows([start]):
                raise InvalidInput.at("start_id", f"there is no node {self._request.start_id!r}")
            return {start: 1.0}
        ranked = self._hybrid(fusion.POOL)
        best = islice(self._passing(ranked, 2 * GRAPH_STARTS), GRAPH_STARTS)
        return {row.id: found.ranked.score for found, row in reversed([*best])}

    def _edges_around(self, start: str) -> list[tuple[str, str, float]]:
        depth = max(1, clamp(self._request.depth))
        edges = self._around.walk(start, depth, GRAPH_NODES)
        return [(edge.source, edge.target, edge.weight) for edge in edges]

    def _passing(self, ranked: Sequence[RankedEntity], at_once: int) -> Iterable[tuple[RankedEntity, NodeRow]]:
        """The entities that exist and pass the filter, with their rows, a page of look-ups at a time."""
        for first in range(0, len(ranked), at_once):
            some = ranked[first : first + at_once]
            rows = self._rows([found.ranked.id for found in some])
            for found in some:
                row = rows.get(found.ranked.id)
                if row is not None and (not self._narrow or self._passes(row)):
                    yield found, row

    def _rows(self, keys: Sequence[str]) -> dict[str, NodeRow]:
        """The rows behind some keys: of nodes that are there, and of versions that nothing has superseded since."""
        heads = {key: row for key in keys if (row := self._head(key)) is not None}
        if not heads:
            return self._around.rows(keys)
        there = self._around.states([row.id for row in heads.values()])
        named = {key: row for key, row in heads.items() if row.id in there and row.version in conflicts(there[row.id])}
        held = {key: row for key, row in named.items() if self._only.passes_row(row)}
        return self._around.rows([key for key in keys if key not in heads]) | held

    def _head(self, key: str) -> NodeRow | None:
        return None if self._heads is None else self._heads.row(key)

    def _passes(self, row: NodeRow) -> bool:
        had = not self._attributes or has_all(row.attributes, self._attributes)
        return had and self._only.passes_row(row)

    def _hit(self, found: RankedEntity, node: Node) -> SearchHit:
        explained = self._request.mode in {"graph", "hybrid"}
        if self._head(found.ranked.id) is not None:
            node.is_current = True
        return SearchHit(
            node=node,
            score=found.ranked.score,
            keyword_score=found.keyword,
            semantic_score=found.semantic,
            hops=found.ranked.hops if explained else None,
            why=found.ranked.why if self._request.explain else None,
        )


def _single(match: Match, key: str, keyword: float | None, semantic: float | None) -> RankedEntity:
    return RankedEntity(Ranked(key, match.score, match), keyword, semantic)


def _by_way(key: str, score: float, hops: int) -> Ranked:
    if hops == 0:
        return Ranked(key, score, Match(score))
    return Ranked(key, score, None, (fusion.Nearby(score, "the start", hops),))
