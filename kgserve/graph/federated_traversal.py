"""Traversal across stores: breadth first, over up to sixteen stores, with one store leased at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from heapq import nlargest
from typing import NamedTuple, Protocol

import msgspec

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import Edge, Node, ReachedNode, TraverseAnswer
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.as_of_resolution import VALID_AT_NOW, to_redirected_from_value
from kgserve.graph.graph_reader import GraphReader, open_graph_reader
from kgserve.graph.request_bodies import TraverseRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.storage.model.breadth_first_traversal import MAX_WALK_EDGES, TraversalDirection, TraversalRequest
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow, EdgeKey, EdgeRow, NodeRow
from kgserve.stores.pool import StoreNotOpen

MAX_TRAVERSED_STORES = 16


class QualifiedNodeId(NamedTuple):
    """A node id in a store; the node need not exist."""

    store: str
    id: str


class _MissingNode(msgspec.Struct):
    """A `ReachedNode` that does not exist; no other field is known."""

    id: str
    depth: int
    store: str
    missing: bool = True


class LinkedNodes(NamedTuple):
    """Nodes at the other ends of links, with scores and stores, and all links between known nodes."""

    nodes: list[tuple[float, str, NodeRow, Node]]
    links: list[tuple[QualifiedNodeId, QualifiedNodeId, Edge]]


class BitemporalParameters(Protocol):
    """The parameters that select a moment: transaction time and valid time."""

    @property
    def as_of(self) -> int | str | None:
        """A commit or a time."""

    @property
    def valid_at(self) -> str | None:
        """A valid time."""


def _to_reached_node(row: NodeRow) -> ReachedNode:
    return row_to_api_conversion.build_api_traversal_node_from_row(row, 0)


class FederatedTraversal:
    """Traversal across stores in progress: nodes with their depths, and the edges visited, by store and key."""

    def __init__(self, graph: StoreHandle, request: TraverseRequest, wanted: TraversalRequest, held: ExitStack) -> None:
        self._graph = graph
        self._request = request
        self._wanted = wanted
        self._held = held
        self._readers: dict[str, GraphReader | None] = {}
        # Survivors of requested nodes that were merged.
        self._redirects: dict[QualifiedNodeId, QualifiedNodeId] = {}
        self.depths: dict[QualifiedNodeId, int] = {}
        self.rows: dict[QualifiedNodeId, NodeRow] = {}
        self.edges: dict[tuple[str, EdgeKey | CrossStoreLinkKey], EdgeRow | CrossStoreLinkRow] = {}
        self.truncated = False

    def run(self) -> str | None:
        """Traverse, and return the id of the start; None if it does not exist.

        Raises NotFound for its store, and Gone.
        """
        start = QualifiedNodeId(self._graph.name, self._wanted.start)
        with self._graph.lease():
            pass  # raises NotFound for a missing store
        frontier = self._visit({start: False}, 0)
        if not frontier:
            return None
        for depth in range(1, self._wanted.depth + 1):
            frontier = self._visit(self._expand(frontier), depth)
            if not frontier or self.truncated:
                break
        self._expand(frontier)
        return next(iter(self.depths)).id

    def _reader_of(self, store: str) -> GraphReader | None:
        """Return the reader of a store; None if it is missing, not accessible, or beyond the store limit."""
        if store not in self._readers:
            if len([reader for reader in self._readers.values() if reader is not None]) >= MAX_TRAVERSED_STORES:
                self.truncated = True
                return None
            self._readers[store] = self._open_reader(self._graph_of(store))
        return self._readers[store]

    def _graph_of(self, store: str) -> StoreHandle:
        """Return the handle of a store. Stores owned by another cluster node are read from a replica.

        No cluster node owns all stores that a traversal may visit.
        """
        return self._graph if store == self._graph.name else self._graph.graphs.allowing_stale_reads().graph(store)

    def _open_reader(self, graph: StoreHandle) -> GraphReader | None:
        past = graph.resolve_as_of(self._request.as_of)
        # The links into a store may have ended, even if none of its own rows have.
        valid_at = self._request.valid_at or (VALID_AT_NOW if past is None else None)
        try:
            with graph.lease() as store:
                reader = open_graph_reader(store, past, valid_at, links=True, lease=graph.lease)
                return self._held.enter_context(reader)
        except (NotFound, InvalidInput):
            return None

    def _visit(self, coming: Mapping[QualifiedNodeId, bool], depth: int) -> dict[str, list[str]]:
        """Assign a depth to new nodes, in order, up to the node limit; return those to expand, by store.

        A node whose value is true was named by a link, and is reported if it does not exist, but not if it is invalid.
        """
        frontier: dict[str, list[str]] = defaultdict(list)
        for store, named in sorted(_by_store(coming).items()):
            places = {*named}
            reader = self._reader_of(store)
            if reader is None and store not in self._readers:
                continue
            found = {} if reader is None else reader.resolved_nodes(places)
            invalid = set[str]() if reader is None else _find_invalid_nodes(reader, places - found.keys())
            for asked in sorted(places):
                row = found.get(asked)
                place = QualifiedNodeId(store, row.id if row is not None else asked)
                if row is not None:
                    self._redirects[QualifiedNodeId(store, asked)] = place
                is_left_out = row is None and (asked in invalid or not coming[place])
                if place in self.depths or is_left_out:
                    continue
                if len(self.depths) >= self._wanted.max_nodes:
                    self.truncated = True
                    return {}
                self.depths[place] = depth
                if row is not None:
                    self.rows[place] = row
                    frontier[store].append(row.id)
        return frontier

    def _expand(self, frontier: Mapping[str, list[str]]) -> dict[QualifiedNodeId, bool]:
        """Return the nodes that edges and links of some nodes lead to; the value is true for targets of links."""
        beyond: dict[QualifiedNodeId, bool] = {}
        for store, ids in sorted(frontier.items()):
            for place, by_link in self._neighbours(store, ids):
                if place not in self.depths:
                    beyond[place] = by_link or beyond.get(place, False)
                if len(self.edges) > MAX_WALK_EDGES:
                    self.truncated = True
                    return {}
        return beyond

    def _neighbours(self, store: str, ids: list[str]) -> Iterator[tuple[QualifiedNodeId, bool]]:
        reader = self._reader_of(store)
        if reader is None:
            return
        direction = self._wanted.direction
        wanted = msgspec.structs.replace(self._wanted, valid_at=reader.valid_at)
        for edge in filter(wanted.follows, reader.edges_of(ids, direction)):
            self.edges[store, edge.key] = edge
            yield QualifiedNodeId(store, edge.source), False
            yield QualifiedNodeId(store, edge.target), False
        for _, far, is_named in self._links_around(store, ids, reader):
            yield far, is_named

    def _links_around(
        self, store: str, ids: Collection[str], reader: GraphReader
    ) -> Iterator[tuple[QualifiedNodeId, QualifiedNodeId, bool]]:
        """Yield the near and the far end of each link, and whether the far one is its target."""
        direction = self._wanted.direction
        wanted = msgspec.structs.replace(self._wanted, valid_at=reader.valid_at)
        for link in reader.links_from(ids) if direction != "incoming" else ():
            if wanted.follows(link.edge):
                self.edges[store, link.key] = link
                yield QualifiedNodeId(store, link.edge.source), QualifiedNodeId(link.store, link.edge.target), True
        if direction == "outgoing":
            return
        merged = reader.merged_ids(ids)
        self._redirects |= {QualifiedNodeId(store, each): QualifiedNodeId(store, into) for each, into in merged.items()}
        for origin, link in self._graph.pool.inbound.to(store, [*ids, *merged]):
            if wanted.follows(link.edge):
                self.edges[origin, link.key] = link
                near = merged.get(link.edge.target, link.edge.target)
                yield QualifiedNodeId(store, near), QualifiedNodeId(origin, link.edge.source), False

    def expand_scores(self, near: Mapping[QualifiedNodeId, float], most: int) -> LinkedNodes:
        """Return the best nodes one link away from scored nodes; they inherit half of the score."""
        scores: dict[QualifiedNodeId, float] = {}
        for store, ids in _by_store(near).items():
            if (reader := self._reader_of(store)) is not None:
                for own, far, _ in self._links_around(store, ids, reader):
                    scores[far] = max(scores.get(far, 0.0), near[own] / 2)
        chosen = nlargest(most, scores.keys() - near.keys(), key=lambda place: (scores[place], place))
        self.depths = dict.fromkeys(near, 0)
        self._visit(dict.fromkeys(chosen, False), 1)
        found = {self._redirects.get(place, place): scores[place] for place in chosen}
        links = [
            (*self._ends(store, row), edge)
            for (store, _), row in self.edges.items()
            if (edge := self._edge(store, row))
        ]
        shown = self._visible_nodes()
        return LinkedNodes([(found[place], place.store, row, shown[place]) for place, row in self.rows.items()], links)

    def answer(self, start: str | None) -> bytes:
        """Return the result as JSON."""
        shown = self._visible_nodes()
        nodes = [shown.get(place) or _MissingNode(place.id, depth, place.store) for place, depth in self.depths.items()]
        edges = [edge for (store, _), row in self.edges.items() if (edge := self._edge(store, row)) is not None]
        reader = self._readers.get(self._graph.name)
        answer = TraverseAnswer(
            nodes=[],
            edges=edges[:MAX_WALK_EDGES],
            count=len(nodes),
            truncated=self.truncated or len(edges) > MAX_WALK_EDGES,
            sequence=reader.sequence if reader is not None else 0,
            redirected_from=msgspec.UNSET if start is None else to_redirected_from_value(self._wanted.start, start),
        )
        fields = {name: value for name, value in msgspec.structs.asdict(answer).items() if value is not msgspec.UNSET}
        return msgspec.json.encode(fields | {"nodes": nodes})

    def _visible_nodes(self) -> dict[QualifiedNodeId, ReachedNode]:
        """Return the nodes that exist, as answered."""
        found: dict[QualifiedNodeId, ReachedNode] = {}
        for store, ids in _by_store(self.rows).items():
            rows = [self.rows[QualifiedNodeId(store, node_id)] for node_id in ids]
            reader = self._reader_of(store)
            for node in reader.to_nodes(rows, _to_reached_node) if reader is not None else ():
                place = QualifiedNodeId(store, node.id)
                node.store, node.depth = store, self.depths[place]
                found[place] = node
        return found

    def _edge(self, store: str, row: EdgeRow | CrossStoreLinkRow) -> Edge | None:
        """Return an edge whose ends are both in the result, after merge redirects; else None."""
        near, far = self._ends(store, row)
        # The edge that marks a merge is not an edge between the nodes returned.
        merges = near == far and isinstance(row, EdgeRow) and row.source != row.target
        if near not in self.depths or far not in self.depths or merges:
            return None
        edge = (
            row_to_api_conversion.build_api_edge_from_cross_store_link(row)
            if isinstance(row, CrossStoreLinkRow)
            else row_to_api_conversion.build_api_edge_from_row(row)
        )
        edge.store = store
        if edge.target != far.id:
            edge.target, edge.redirected_from = far.id, edge.target
        return edge

    def _ends(self, store: str, row: EdgeRow | CrossStoreLinkRow) -> tuple[QualifiedNodeId, QualifiedNodeId]:
        """Return both ends of an edge, after merge redirects."""
        edge, into = (row.edge, row.store) if isinstance(row, CrossStoreLinkRow) else (row, store)
        ends = QualifiedNodeId(store, edge.source), QualifiedNodeId(into, edge.target)
        return self._redirects.get(ends[0], ends[0]), self._redirects.get(ends[1], ends[1])


def _find_invalid_nodes(reader: GraphReader, ids: Collection[str]) -> set[str]:
    """Return the ids that lead to existing nodes; what is not among the valid nodes is then invalid."""
    targets = reader.resolve_redirects(ids)
    existing = reader.nodes({*targets.values()})
    return {asked for asked, node_id in targets.items() if node_id in existing}


def _by_store(places: Iterable[QualifiedNodeId]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for place in places:
        found[place.store].append(place.id)
    return found


def traverse_stores(graph: StoreHandle, request: TraverseRequest, wanted: TraversalRequest) -> bytes:
    """Traverse edges and links, and return the answer as JSON.

    Raises NotFound for the store of the start, Gone, and InvalidInput for an ``as_of`` that is not a time, or is
    combined with a direction for which only the current state is known.
    """
    if graph.most_edges is not None:
        raise StoreNotOpen
    if (past := graph.resolve_as_of(request.as_of)) is not None:
        _check_moment(past, request)
    with ExitStack() as held:
        walk = FederatedTraversal(graph, request, wanted, held)
        return walk.answer(walk.run())


def find_cross_store_linked_nodes(
    graph: StoreHandle, near: Mapping[QualifiedNodeId, float], asked: BitemporalParameters, most: int
) -> LinkedNodes:
    """Return nodes one link away from some nodes, in stores that the caller may access.

    Incoming links are followed only in the current state, because past ones are unknown. Raises InvalidInput as
    `traverse_stores` does.
    """
    past = graph.resolve_as_of(asked.as_of)
    direction: TraversalDirection = "both" if past is None else "outgoing"
    request = TraverseRequest(start_id="", direction=direction, as_of=asked.as_of, valid_at=asked.valid_at)
    if past is not None:
        _check_moment(past, request)
    with ExitStack() as held:
        walk = FederatedTraversal(
            graph, request, TraversalRequest("", 1, direction, None, None, len(near) + most), held
        )
        return walk.expand_scores(near, most)


def _check_moment(past: PastMoment, request: TraverseRequest) -> None:
    if past.is_sequence:
        raise InvalidInput.at(
            "as_of", "must be a time when edges into other stores are followed: each store has its own sequence"
        )
    if request.direction not in ("outgoing", ""):
        raise InvalidInput.at(
            "direction", "must be outgoing with `as_of`: incoming links are known for the current state only"
        )
