"""The graph of a store as of a past commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np
from typing_extensions import override

from kgserve.errors import InvalidInput, TooLarge, Unavailable
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import Node
from kgserve.graph.as_of_resolution import (
    MAX_AS_OF_DIGITS,
    MAX_EDGES_PER_DIRECTION,
    NO_EDGE_LIMIT,
    require_history,
    resolve_merge_redirect_at_commit,
    wait_until_history_indexed,
)
from kgserve.graph.graph_reader import (
    MAX_DESCENDANTS,
    MAX_NEIGHBOURS,
    OVERVIEW_OVERFETCH_NODES,
    EdgePageRequest,
    EncodedNode,
    EncodedTraversalResult,
    ExportLineBlock,
    GraphReader,
    StoreLease,
    resolve_valid_at,
)
from kgserve.graph.search.score_fusion import NeighbourWeights
from kgserve.graph.search.search_index_interface import SearchIndexAtCommit
from kgserve.graph.weighted_nodes import WeightedNodes, WeightsByNodeId
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.projections.cross_store_links.cross_store_link_index import NO_LINK_LIMIT
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile
from kgserve.projections.history_follower import HistoryProjection, HistoryWorker
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives
from kgserve.projections.memory_index.entries import MemoryMetadata, memory_metadata_from_row
from kgserve.projections.memory_index.hierarchy import DescendantPage, MemoryAtDepth
from kgserve.projections.text_indexes import PAST_INDEX_TIMEOUT_SECONDS, CurrentAndPastTextIndexes, TextIndexesAsOf
from kgserve.storage.model.attribute_filters import AttributeCondition
from kgserve.storage.model.breadth_first_traversal import (
    MAX_WALK_EDGES,
    TraversalDirection,
    TraversalRequest,
    traverse_breadth_first,
)
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.memory_parents import (
    MAX_HIERARCHY_DEPTH,
    find_newest_memory_parent_edge,
    is_effective_memory_parent_edge,
)
from kgserve.storage.model.node_and_memory_filters import (
    NodeFilter,
    PagePosition,
    ResultPage,
    take_page_of_matching_items,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_created_at,
)
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.graph_drawing_samples import (
    EdgeByNodeNumbers,
    GraphOverviewStartNodes,
    IncidentEdges,
    build_edge_by_node_numbers,
    find_most_connected,
)
from kgserve.storage.rows.row_json_encoder import (
    build_edge_export_line,
    build_node_export_line,
    encode_cross_store_link_export_line,
    encode_edge_as_json,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

N = TypeVar("N", bound=Node)
Found = TypeVar("Found")
K = TypeVar("K")
R = TypeVar("R")

MAX_EDGE_STATES_READ = 50_000
"""Edge states read to find neighbours as of a commit; about half a second."""
MAX_EDGE_STATES_SCANNED = 500_000
"""Edge states scanned by key, without reading their rows, to find edges between nodes."""
MAX_EDGE_STATES_COUNTED = 200_000
"""Edge states counted for the degrees of all nodes as of a commit."""
MAX_EDGE_STATES_COUNTED_PER_NODE = 10_000
EXPORT_BATCH_ROWS = 5_000
"""Rows read per step of an export."""
MIN_LIST_BATCH_NODES, MAX_LIST_BATCH_NODES = 64, 1001
"""Bounds of the number of nodes read per step to fill a page."""
HISTORY_CATCH_UP_TIMEOUT_SECONDS = 0.25
"""Time to wait for the history to index a commit that has just superseded a version."""


class PastMoment(msgspec.Struct, frozen=True):
    """A past moment to read as of. ``as_of`` is a sequence or an RFC 3339 time."""

    historian: HistoryWorker | None
    as_of: int | str

    def of(self, store: OpenStore) -> tuple[HistoryProjection, int]:
        """Return the history of a store, and the commit to read: the given one, or the last one up to the time.

        A future moment means now. Raises InvalidInput, Gone for a moment no longer in the history, Unavailable while
        the history is behind, and Conflict when none is kept.
        """
        follower = require_history(self.historian, store)
        current = store.state.sequence
        at = min(self._sequence(follower, current), current)
        follower.look(lambda history: history.require_known(at))
        return follower, at

    def open(self, store: OpenStore, valid_at: str | None, lease: StoreLease | None) -> AsOfGraph:
        """Return the reader of a store as `PastGraphOpener` does.

        Raises as `of`, and InvalidInput for an invalid ``valid_at``.
        """
        follower, at = self.of(store)
        moment = self._moment_of(follower, at)
        opened = (
            make_history_opener_for_lease(store, follower)
            if lease is None
            else make_per_access_history_opener(lease, self)
        )
        return AsOfGraph(opened, at, resolve_valid_at(valid_at, moment), moment)

    def _moment_of(self, follower: HistoryProjection, at: int) -> int:
        """Return the time in microseconds; the time of the commit if a sequence is given."""
        if self.is_sequence:
            return follower.look(lambda history: history.time_of(at))
        return min(parse_rfc3339_timestamp(self._text), time.time_ns() // 1000)

    @property
    def is_sequence(self) -> bool:
        """True if the moment is a commit of one store, not a time."""
        return self._text.isascii() and self._text.isdecimal() and len(self._text) <= MAX_AS_OF_DIGITS

    @property
    def _text(self) -> str:
        return str(self.as_of)

    def _sequence(self, follower: HistoryProjection, current: int) -> int:
        if self.is_sequence:
            wait_until_history_indexed(follower, min(int(self.as_of), current))
            return int(self.as_of)
        try:
            moment = parse_rfc3339_timestamp(self._text)
        except ValueError as error:
            raise InvalidInput.at("as_of", f"must be a sequence or a time: {error}") from None
        wait_until_history_indexed(follower, current)
        return follower.look(lambda history: _sequence_at(history, moment))


def _sequence_at(history: HistoryFile, moment: int) -> int:
    found = history.sequence_at(moment, time.time_ns() // 1000)
    if found < history.sequence and history.time_of(found) != moment:
        history.require_known_after(found)
    return found


def _page_order(row: EdgeRow) -> tuple[bool, int, int, str, str, str]:
    ordinal = None if row.extras is None else row.extras.ordinal
    return ordinal is None, ordinal or 0, edge_created_at(row), row.source, row.target, row.relation_type


def _nodes_at(at: int, type_: str | None, after: str, limit: int, history: HistoryFile) -> list[tuple[str, NodeRow]]:
    return [(state.row.id, state.row) for state in history.nodes_at(at, type_, after, limit)]


def _edges_at(at: int, after: EdgeKey, limit: int, history: HistoryFile) -> list[tuple[EdgeKey, EdgeRow]]:
    return [(state.row.key, state.row) for state in history.edges_at(at, after, limit)]


def _links_at(
    at: int, after: CrossStoreLinkKey, limit: int, history: HistoryFile
) -> list[tuple[CrossStoreLinkKey, CrossStoreLinkRow]]:
    return [(state.row.key, state.row) for state in history.links_at(at, after, limit)]


def _node_at(history: HistoryFile, node_id: str, at: int) -> NodeRow | None:
    state = history.node_at(node_id, at)
    return None if state is None else state.row


HistoryOpener = Callable[[], AbstractContextManager[tuple[OpenStore, HistoryProjection]]]
"""Opens a store and its history for one access."""


def make_history_opener_for_lease(store: OpenStore, follower: HistoryProjection) -> HistoryOpener:
    """Return an opener for the history of a store that stays leased."""
    return lambda: nullcontext((store, follower))


def make_per_access_history_opener(lease: StoreLease, past: PastMoment) -> HistoryOpener:
    """Return an opener that leases the store for each access to its history, once that has caught up."""

    @contextmanager
    def opened() -> Generator[tuple[OpenStore, HistoryProjection]]:
        with lease() as store:
            yield store, past.of(store)[0]

    return opened


class AsOfGraph(GraphReader):
    """The graph as of a commit, read from the history of the store."""

    is_current = False

    def __init__(self, opened: HistoryOpener, sequence: int, valid_at: int | None = None, now: int = 0) -> None:
        super().__init__(sequence, valid_at, now)
        self._opened = opened
        self._nodes: dict[str, NodeRow | None] = {}
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}

    def _look(self, question: Callable[[HistoryFile], Found]) -> Found:
        with self._opened() as (_, follower):
            return follower.look(question)

    @override
    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        if new := [node_id for node_id in dict.fromkeys(ids) if node_id not in self._nodes]:
            self._nodes |= self._look(lambda history: {each: _node_at(history, each, self.sequence) for each in new})
        return {node_id: row for node_id in ids if (row := self._nodes[node_id]) is not None}

    def _node(self, node_id: str) -> NodeRow | None:
        return self.nodes((node_id,)).get(node_id)

    @override
    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        at = self.sequence
        return self._look(
            lambda history: {node_id: resolve_merge_redirect_at_commit(history, node_id, at) for node_id in ids}
        )

    @override
    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:
        return {}

    @override
    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        with self._opened() as (store, follower):
            with store.reading() as reading:
                current, last = reading.nodes([row.id for row in rows]), reading.at
            former = [row for row in rows if row.id not in current or current[row.id].version != row.version]

            def states(history: HistoryFile) -> dict[tuple[str, int], row_to_api_conversion.NodeVersionStatus | None]:
                found = (
                    row_to_api_conversion.find_former_node_version_status(history, row, current.get(row.id))
                    for row in former
                )
                return {(row.id, row.version): state for row, state in zip(former, found, strict=True)}

            known = follower.look(states) if former else {}
            if None in known.values() and follower.wait(last, HISTORY_CATCH_UP_TIMEOUT_SECONDS):
                known = follower.look(states)
        current_version = row_to_api_conversion.CURRENT_VERSION
        return [
            (known.get((row.id, row.version), current_version) or row_to_api_conversion.FORMER_VERSION).apply_to(
                convert(row)
            )
            for row in rows
        ]

    @override
    def edges_of(self, ids: Collection[str], direction: TraversalDirection) -> Iterator[EdgeRow]:

        def look(history: HistoryFile) -> list[EdgeRow]:
            return [edge for node_id in ids for edge in self._read(history, node_id, direction, NO_EDGE_LIMIT)]

        return iter(self._look(look))

    def _edges(self, node_id: str, direction: TraversalDirection, limit: int = NO_EDGE_LIMIT) -> list[EdgeRow]:
        return self._look(lambda history: self._read(history, node_id, direction, limit))

    def _read(self, history: HistoryFile, node_id: str, direction: TraversalDirection, limit: int) -> list[EdgeRow]:
        outgoing = history.outgoing(node_id, self.sequence, limit) if direction != "incoming" else []
        incoming = history.incoming(node_id, self.sequence, limit) if direction != "outgoing" else []
        return [state.row for state in (*outgoing, *incoming)]

    @override
    def links_from(self, ids: Collection[str], limit: int = NO_LINK_LIMIT) -> Iterator[CrossStoreLinkRow]:
        for node_id in ids:
            states = self._look(lambda history, each=node_id: history.links_from(each, self.sequence, limit))
            yield from (state.row for state in states)

    @override
    def valid_links(self, node_id: str, limit: int = NO_LINK_LIMIT) -> list[CrossStoreLinkRow]:
        found = self.links_from((node_id,), limit if self.valid_at is None else NO_LINK_LIMIT)
        return [row for row in found if self._is_valid(row.edge)][:limit]

    @override
    def encode_node(self, node_id: str) -> bytes | None:
        return self.encode_nodes((node_id,)).get(node_id)

    @override
    def encode_nodes(self, ids: Collection[str]) -> dict[str, bytes]:
        return dict(self._encode([*self.valid_nodes(ids).values()]))

    def _encode(self, rows: Sequence[NodeRow]) -> list[EncodedNode]:
        return [
            (node.id, msgspec.json.encode(node))
            for node in self.to_nodes(rows, row_to_api_conversion.build_api_node_from_row)
        ]

    @override
    def encode_edge_page(self, node_id: str, wanted: EdgePageRequest) -> tuple[list[bytes], bool, int]:
        found = self._edges(node_id, "outgoing" if wanted.outgoing else "incoming")
        if self.valid_at is not None:
            found = [*self._valid_between(found)]
        edges = [edge for edge in found if not wanted.relation_types or edge.relation_type in wanted.relation_types]
        edges.sort(key=_page_order)
        end = wanted.offset + wanted.limit
        return [*map(encode_edge_as_json, edges[wanted.offset : end])], end < len(edges), len(edges)

    @override
    def encode_walk(self, wanted: TraversalRequest) -> EncodedTraversalResult:
        start = self._node(wanted.start)
        if start is None or not self._is_valid(start):
            return EncodedTraversalResult(b"", b"", 0, truncated=False)

        def followed(ids: Collection[str]) -> Iterator[EdgeRow]:
            return filter(wanted.follows, self.edges_of(ids, wanted.direction))

        valid = None if self.valid_at is None else lambda ids: {*self.valid_nodes(ids)}
        found = traverse_breadth_first(wanted, wanted.start, followed, valid)
        rows = [*self.nodes(found.depths).values()]
        nodes = self.to_nodes(
            rows, lambda row: row_to_api_conversion.build_api_traversal_node_from_row(row, found.depths[row.id])
        )
        encoded = b",".join(map(msgspec.json.encode, nodes))
        return EncodedTraversalResult(
            encoded, b",".join(map(encode_edge_as_json, found.edges)), len(nodes), found.truncated
        )

    @override
    def list_nodes(self, wanted: NodeFilter, position: PagePosition, limit: int) -> ResultPage[EncodedNode]:
        type_ = wanted.types[0] if len(wanted.types) == 1 else None
        # Enough rows if all match, without tiny steps if few do.
        step = min(max(limit + position.skip + 1, MIN_LIST_BATCH_NODES), MAX_LIST_BATCH_NODES)
        pages = self._pages(partial(_nodes_at, self.sequence, type_), position.after, step)
        found = ((row.id, row, wanted.matches(row)) for rows in pages for row in rows)
        items, end = take_page_of_matching_items(found, position, limit)
        return ResultPage(self._encode(items), end)

    def _pages(
        self, read: Callable[[K, int, HistoryFile], list[tuple[K, R]]], after: K, step: int
    ) -> Iterator[list[R]]:
        """Yield the rows after a key, at most `step` at a time."""
        while found := self._look(partial(read, after, step)):
            yield [row for _, row in found]
            if len(found) < step:
                return
            after = found[-1][0]

    @override
    def export(self) -> Iterator[ExportLineBlock]:
        invalid = set[str]()
        for rows in self._pages(partial(_nodes_at, self.sequence, None), "", EXPORT_BATCH_ROWS):
            invalid |= {row.id for row in rows if not self._is_valid(row)}
            if kept := [row for row in rows if row.id not in invalid]:
                yield ExportLineBlock([*map(build_node_export_line, kept)], [])
        first = ("", "", "")
        for edges in self._pages(partial(_edges_at, self.sequence), first, EXPORT_BATCH_ROWS):
            if held := [row for row in edges if self._is_valid(row) and invalid.isdisjoint(row.key[:2])]:
                yield ExportLineBlock([], [*map(build_edge_export_line, held)])
        for links in self._pages(partial(_links_at, self.sequence), CrossStoreLinkKey("", first), EXPORT_BATCH_ROWS):
            if leading := [row for row in links if self._is_valid(row.edge) and row.edge.source not in invalid]:
                yield ExportLineBlock([], [*map(encode_cross_store_link_export_line, leading)])

    @override
    def outgoing(self, node_id: str) -> list[EdgeRow]:
        return [edge for edge in self._edges(node_id, "outgoing", MAX_EDGES_PER_DIRECTION + 1) if self._is_valid(edge)]

    @override
    def outgoing_of(self, ids: Collection[str], relation_types: Collection[str]) -> list[EdgeRow]:
        return [edge for edge in self.edges_of(ids, "outgoing") if edge.relation_type in relation_types]

    @override
    def incident_of(self, ids: Collection[str], relation_type: str) -> Iterator[tuple[str, EdgeRow]]:
        for node_id in ids:
            edges = (edge for edge in self.valid_edges(node_id) if edge.relation_type == relation_type)
            yield from ((node_id, edge) for edge in islice(edges, MAX_NEIGHBOURS))

    @override
    def strongest_edges(self, node_id: str, excluded: Collection[str], limit: int) -> Iterable[EdgeRow]:
        return (edge for edge in self.valid_edges(node_id) if edge.relation_type not in excluded)

    @override
    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        edges = (edge for edge in self.valid_edges(node_id) if edge.relation_type == relation_type)
        return WeightsByNodeId(
            {edge.source: min(max(edge.weight, 0.0), 1.0) for edge in edges if edge.target == node_id}
        )

    @override
    def neighbours(self, ids: Sequence[str]) -> NeighbourWeights:
        enough = MAX_NEIGHBOURS if self.valid_at is None else NO_EDGE_LIMIT
        around = {each: [edge for edge in self._edges(each, "both", enough) if self._is_valid(edge)] for each in ids}
        valid_ends = self._valid_ends([edge for edges in around.values() for edge in edges])
        return {
            node_id: [
                (end, edge.weight)
                for edge in edges
                if (end := edge.source if edge.target == node_id else edge.target) in valid_ends
            ][:MAX_NEIGHBOURS]
            for node_id, edges in around.items()
        }

    def _valid_ends(self, edges: Iterable[EdgeRow]) -> Collection[str]:
        ends = {end for edge in edges for end in edge.key[:2]}
        # An edge that exists has both its ends.
        return ends if self.valid_at is None else self.valid_nodes(ends)

    @override
    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        return traverse_breadth_first(
            TraversalRequest(start, depth, "both", None, None, max_nodes), start, self._valid_edges_of
        ).edges

    def _valid_edges_of(self, ids: Collection[str]) -> Iterator[EdgeRow]:
        return self._valid_between(self.edges_of(ids, "both"))

    def _valid_between(self, found: Iterable[EdgeRow]) -> Iterator[EdgeRow]:
        """Keep valid edges between valid nodes."""
        edges = [edge for edge in found if self._is_valid(edge)]
        valid_ends = self._valid_ends(edges)
        return (edge for edge in edges if edge.source in valid_ends and edge.target in valid_ends)

    @override
    def number(self, node_id: str) -> int:
        found = self._numbers.get(node_id)
        if found is None:
            found = self._numbers[node_id] = len(self._ids)
            self._ids.append(node_id)
        return found

    @override
    def numbered_node(self, number: int) -> NodeRow | None:
        return self._node(self._ids[number])

    @override
    def sort_by_id(self, numbers: NumberArray) -> NumberArray:
        return np.array(sorted(numbers.tolist(), key=self._ids.__getitem__), np.int64)

    @override
    def are_valid(self, numbers: NumberArray) -> NumberArray:
        found = self.valid_nodes([self._ids[number] for number in numbers.tolist()])
        return np.array([self._ids[number] in found for number in numbers.tolist()], np.bool_)

    @override
    def have_types(self, numbers: NumberArray, types: Collection[str] | None) -> NumberArray:
        if self.valid_at is None and types is None:
            return np.ones(len(numbers), np.bool_)
        ids = [self._ids[number] for number in numbers.tolist()]
        found = self.valid_nodes(ids)
        return np.array([each in found and (types is None or found[each].type in types) for each in ids], np.bool_)

    @override
    def best_connected(self, count: int, max_nodes: int, types: Collection[str] | None) -> GraphOverviewStartNodes:
        states = self._look(lambda history: history.nodes_at(self.sequence, None, None, max_nodes + 1))
        whole = len(states) <= max_nodes
        if whole:
            self._nodes |= {state.row.id: state.row for state in states}
            ids = [state.row.id for state in states]
        else:
            with self.current_rows() as rows:
                ids = rows.delta.ids(find_most_connected(rows, count + OVERVIEW_OVERFETCH_NODES, None))
        found = np.array([self.number(each) for each in ids], np.int64)
        found = found[self.are_valid(found)]
        found = found[self.have_types(found, types)]
        return GraphOverviewStartNodes(found if whole else found[:count], whole)

    @override
    def max_incident_edges(self, types: Collection[str] | None) -> int:
        return MAX_EDGE_STATES_READ

    @override
    def incident_edges(self, numbers: NumberArray, wanted: TraversalRequest, limit: int) -> IncidentEdges:
        return self._look(lambda history: self._incident(history, numbers, wanted, limit))

    def _incident(
        self, history: HistoryFile, numbers: NumberArray, wanted: TraversalRequest, limit: int
    ) -> IncidentEdges:
        found: list[tuple[int, int, float]] = []
        met, cut = 0, False
        for place, number in enumerate(numbers.tolist()):
            for outgoing in (True, False):
                if wanted.direction == ("incoming" if outgoing else "outgoing"):
                    continue
                read = history.outgoing if outgoing else history.incoming
                states = read(self._ids[number], self.sequence, limit - met + 1)
                cut = cut or len(states) > limit - met
                states = states[: limit - met]
                met += len(states)
                rows = (state.row for state in states if wanted.follows(state.row))
                found += [(place, self.number(row.target if outgoing else row.source), row.weight) for row in rows]
        owner, end, weight = zip(*found, strict=True) if found else ((), (), ())
        return IncidentEdges(np.array(owner, np.int64), np.array(end, np.int64), np.array(weight, np.float64), cut)

    @override
    def edges_between(self, numbers: NumberArray, wanted: TraversalRequest) -> tuple[list[EdgeByNodeNumbers], bool]:
        ids = [self._ids[number] for number in numbers.tolist()]
        listed, cut = self._look(lambda history: list_edge_state_numbers_between_nodes(history, ids))
        states = self._look(lambda history: history.edges_by_number_at(listed, self.sequence))
        rows = [state.row for state in states if wanted.follows(state.row)]
        edges = [build_edge_by_node_numbers(self.number(row.source), self.number(row.target), row) for row in rows]
        return edges[:MAX_WALK_EDGES], cut or len(edges) > MAX_WALK_EDGES

    @override
    def degrees(self, numbers: NumberArray) -> Sequence[int | None]:
        return self._look(lambda history: [*self._degrees(history, numbers)])

    def _degrees(self, history: HistoryFile, numbers: NumberArray) -> Iterator[int | None]:
        left = MAX_EDGE_STATES_COUNTED
        for number in numbers.tolist():
            most = min(left, MAX_EDGE_STATES_COUNTED_PER_NODE)
            count, looked_at = history.degree_at(self._ids[number], self.sequence, most)
            left -= min(looked_at, left)
            yield count if looked_at < most else None

    @override
    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        return {memory_id: parent for memory_id in ids if (parent := self._parent(memory_id)) is not None}

    def _parent(self, memory_id: str) -> str | None:
        edges = filter(is_effective_memory_parent_edge, self._edges(memory_id, "outgoing"))
        edge = find_newest_memory_parent_edge(
            edge for edge in edges if is_current_unwithdrawn_memory(self._node(edge.target))
        )
        return None if edge is None else edge.target

    @override
    def children(self, memory_id: str, limit: int) -> list[str]:
        return [place.id for place in islice(self._levels_below(memory_id, 1), limit)]

    @override
    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryAtDepth]:
        return [place for place in self._levels_above(memory_id) if self._is_placed(place, layer)]

    def _levels_above(self, memory_id: str) -> Iterator[MemoryAtDepth]:
        seen, at = {memory_id}, memory_id
        for depth in range(1, MAX_HIERARCHY_DEPTH + 1):
            parent = self._parent(at)
            if parent is None or parent in seen:
                return
            seen.add(at := parent)
            yield MemoryAtDepth(at, depth)

    @override
    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> DescendantPage:
        places = self._levels_below(memory_id, 1 if near else MAX_HIERARCHY_DEPTH)
        found = sorted(place for place in places if self._is_placed(place, layer))
        page = [each for each in found if each.id > after][: limit + 1]
        return DescendantPage(page[:limit], page[limit - 1].id if len(page) > limit else None)

    @override
    def weighted_descendants(self, memory_id: str) -> WeightedNodes:
        return WeightsByNodeId({place.id: 1.0 for place in self._levels_below(memory_id, MAX_HIERARCHY_DEPTH)})

    def _is_placed(self, place: MemoryAtDepth, layer: int | None) -> bool:
        row = self._node(place.id)
        own = row.extras.layer if row is not None and row.extras is not None else None
        return row is not None and row.is_valid_at(self.now) and layer in (None, own)

    def _levels_below(self, memory_id: str, depth: int) -> Iterator[MemoryAtDepth]:
        """Yield the descendants of a memory, level by level. Raises TooLarge."""
        seen, level = {memory_id}, [memory_id]
        for at in range(1, depth + 1):
            level = [child for each in level for child in self._children(each) if child not in seen]
            seen.update(level)
            yield from (MemoryAtDepth(child, at) for child in level)
            if len(seen) > MAX_DESCENDANTS:
                raise TooLarge(
                    f"memory {memory_id!r} had more than {MAX_DESCENDANTS} descendants at that moment;"
                    " query its children instead"
                )

    def _children(self, memory_id: str) -> list[str]:
        sources = [edge.source for edge in self._edges(memory_id, "incoming") if is_effective_memory_parent_edge(edge)]
        if len(sources) > MAX_DESCENDANTS:
            raise TooLarge(f"memory {memory_id!r} had more than {MAX_DESCENDANTS} children at that moment, the limit")
        return [
            child
            for child in sources
            if is_current_unwithdrawn_memory(self._node(child)) and self._parent(child) == memory_id
        ]

    @override
    def accesses(self, ids: Collection[str]) -> dict[str, MemoryAccessRecord]:
        return {}

    @override
    def memory_states(self, ids: Collection[str]) -> dict[str, MemoryMetadata]:
        return {key: memory_metadata_from_row(row) for key, row in self.nodes(ids).items() if row.is_memory}

    @override
    def confidences(self, memories: Sequence[NodeRow], half_lives: MemoryHalfLives) -> dict[str, float]:
        return read_stored_memory_confidences(memories)

    @property
    @override
    def last_visible_commit(self) -> int:
        return NO_SEQUENCE_LIMIT

    @override
    def search_index(self, indexes: CurrentAndPastTextIndexes) -> SearchIndexAtCommit:
        with self._opened() as (_, follower):
            return TextIndexesAsOf(indexes, follower, self.sequence)

    @override
    def nodes_formerly_matching(self, wanted: Sequence[AttributeCondition], seen: int) -> frozenset[str]:
        with self._opened() as (store, follower):
            # A state counts as ended only after the history has indexed the commit that ended it.
            if not follower.wait(seen, PAST_INDEX_TIMEOUT_SECONDS):
                raise Unavailable(f"the history has not indexed sequence {seen} yet", retry_after=2)
            return frozenset(store.catalog.find_ended_nodes_with(wanted, self.sequence))

    @override
    def find_merge_survivor(self, node_id: str) -> str | None:
        return self.resolve_redirect(node_id)

    @contextmanager
    def current_rows(self) -> Generator[RowsSnapshot]:
        """Open the current rows of the store for reading."""
        with self._opened() as (store, _), store.reading() as rows:
            yield rows


def list_edge_state_numbers_between_nodes(history: HistoryFile, ids: Iterable[str]) -> tuple[list[int], bool]:
    """Return the numbers of all states of edges between some nodes, and whether the scan limit was reached."""
    among = dict.fromkeys(ids)
    left = MAX_EDGE_STATES_SCANNED
    found: list[int] = []
    for node_id in among:
        listed = history.edge_state_numbers(node_id, left + 1)
        found += [number for number, target in listed[:left] if target in among]
        if len(listed) > left:
            return found, True
        left -= len(listed)
    return found, False


def read_stored_memory_confidences(memories: Iterable[NodeRow]) -> dict[str, float]:
    """Return the confidences stored in rows, without decay and access."""
    confidences = ((row.id, row.extras.confidence) for row in memories if row.extras)
    return {each: confidence for each, confidence in confidences if confidence is not None}
