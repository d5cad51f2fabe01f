"""One interface to the graph of a store: as it is now, or as it was after a commit.

A feature takes a `GraphReader` and need not know which of the two implementations it was given.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from typing_extensions import override

from kgserve.graph.answers import Node
from kgserve.graph.as_of_resolution import MAX_EDGES_PER_DIRECTION, VALID_AT_ANY, parse_valid_at
from kgserve.graph.search.score_fusion import MAX_PROPAGATION_DEGREE, NeighbourWeights
from kgserve.graph.search.search_index_interface import SearchIndexAtCommit
from kgserve.graph.weighted_nodes import WeightedNodes, WeightsByNodeId, WeightsByRowNumber
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.catalog.projection import CatalogDamaged
from kgserve.projections.cross_store_links.cross_store_link_index import NO_LINK_LIMIT, CrossStoreLinkReader
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives
from kgserve.projections.memory_index.entries import MemoryMetadata
from kgserve.projections.memory_index.hierarchy import DescendantPage, MemoryAtDepth
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.projections.memory_index.projection import MemoryIndexDamaged
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.storage.model.attribute_filters import AttributeCondition
from kgserve.storage.model.breadth_first_traversal import TraversalDirection, TraversalRequest
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.conversation_turns import NEXT_TURN_RELATION
from kgserve.storage.model.merge_redirects import follow_merge_redirect_chain
from kgserve.storage.model.node_and_memory_filters import (
    NO_NODE_FILTER,
    NodeFilter,
    PagePosition,
    ResultPage,
    take_page_of_matching_items,
)
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow, EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.breadth_first_row_traversal import (
    TraversalTooLarge,
    encode_traversal_edges_as_json,
    encode_traversal_nodes_as_json,
    traverse_rows_breadth_first,
)
from kgserve.storage.rows.edge_pages import (
    encode_page_of_edges,
    exclude_edges_of_types,
    filter_edges_by_type,
    filter_valid_edges,
)
from kgserve.storage.rows.graph_drawing_samples import (
    EdgeByNodeNumbers,
    GraphOverviewStartNodes,
    IncidentEdges,
    choose_graph_overview_start_nodes,
    count_degrees,
    find_edges_between,
    find_incident_edges,
    read_types_of_nodes,
)
from kgserve.storage.rows.memory_hierarchy_and_redirects import (
    find_all_nodes_merged_into,
    find_merge_redirect_chains,
    find_outgoing_edges_of_types,
    find_parents_of_memories,
)
from kgserve.storage.rows.row_delta import BaseAndDeltaEdges
from kgserve.storage.rows.row_json_encoder import (
    ExportedEdge,
    ExportedNode,
    convert_edge_json_to_export_line,
    convert_node_json_to_export_line,
    encode_cross_store_link_export_line,
    node_json_matches_filter,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

N = TypeVar("N", bound=Node)
Found = TypeVar("Found")
_Key = TypeVar("_Key", str, int)

MAX_NEIGHBOURS = MAX_PROPAGATION_DEGREE + 1
"""Neighbours read per node; one more than the hub limit, to detect hubs."""
MAX_TURN_STEPS = 2
"""Steps along a conversation within which turns share words and scores."""
MAX_TURNS_AROUND = 1_000
"""Turns whose adjacent turns are looked up in one search; conversations without branches have about 300."""
MAX_NONBLOCKING_READ_BYTES = 256 << 10
"""Bytes of nodes that a non-blocking read may return; it reads them from disk where they are not in memory."""
MAX_NONBLOCKING_SCANNED_NODES = 1_000
"""Nodes of the catalog that a non-blocking read may scan; about half a millisecond."""
MAX_DESCENDANTS = 10_000
"""Memories visited to list the descendants of a memory as of a commit."""
MAX_EDGES_SCANNED = 500_000
"""Edges scanned to find neighbours in the current graph; about a tenth of a second."""
MAX_EDGES_SCANNED_BY_TYPE = 100_000
"""Edges scanned where the types of the neighbours must be read."""
OVERVIEW_OVERFETCH_NODES = 100
"""Additional highly connected nodes read for an overview, because some may not be valid."""


class EdgePageRequest(NamedTuple):
    """Request for a page of a node's edges in one direction; empty relation types mean all."""

    outgoing: bool
    relation_types: Collection[str]
    offset: int
    limit: int


class EncodedTraversalResult(NamedTuple):
    """Result of a walk: the elements of two JSON arrays, the number of nodes, and whether a limit was reached."""

    nodes: bytes
    edges: bytes
    node_count: int
    truncated: bool


EncodedNode = tuple[str, bytes]
"""The id and the JSON of a node."""


class ExportLineBlock(NamedTuple):
    """Lines of nodes, or of edges and links."""

    nodes: list[ExportedNode]
    edges: list[ExportedEdge]


class GraphReader(ABC):
    """Read interface to the graph of a store after one commit.

    ``sequence``: the commit. ``valid_at``: microseconds of valid time; methods that say "valid" leave out rows that are
    not true at that time. None: everything is valid. ``now``: microseconds, the time up to which confidence decays.
    """

    is_current: bool
    """True if the memory index and token vectors are of this commit; if not, memories are read from their rows."""

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
        found = self.nodes(ids)
        return found if self.valid_at is None else {key: row for key, row in found.items() if self._is_valid(row)}

    def has_valid(self, node_id: str) -> bool:
        """Return whether a node exists and is valid."""
        number = self.number(node_id)
        return number >= 0 and bool(self.are_valid(np.array([number]))[0])

    @abstractmethod
    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        """Return for each id the id after following merge redirects."""

    def resolve_redirect(self, node_id: str) -> str:
        """Return a node's id after following merge redirects; unchanged where everything is valid."""
        return node_id if self.valid_at is None else self.resolve_redirects((node_id,))[node_id]

    def resolved_nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the valid nodes that `ids` lead to after merge redirects, by requested id."""
        targets = self.resolve_redirects(ids)
        rows = self.valid_nodes({*targets.values()})
        return {asked: rows[node_id] for asked, node_id in targets.items() if node_id in rows}

    @abstractmethod
    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:
        """Return the nodes that were merged into `ids`, each with that id; empty if unknown."""

    @abstractmethod
    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        """Convert rows to nodes of the API, with the state of versions that are not the current ones."""

    # Edges and links

    @abstractmethod
    def edges_of(self, ids: Collection[str], direction: TraversalDirection) -> Iterator[EdgeRow]:
        """Yield all edges of some nodes, valid or not."""

    @abstractmethod
    def links_from(self, ids: Collection[str], limit: int = NO_LINK_LIMIT) -> Iterator[CrossStoreLinkRow]:
        """Yield the edges that lead from some nodes into other stores; at least `limit` of a node that has more."""

    def valid_edges(self, node_id: str) -> list[EdgeRow]:
        """Return all valid edges of a node in either direction; their other ends may be invalid."""
        return [edge for edge in self.edges_of((node_id,), "both") if self._is_valid(edge)]

    @abstractmethod
    def valid_links(self, node_id: str, limit: int = NO_LINK_LIMIT) -> list[CrossStoreLinkRow]:
        """Return at most `limit` valid edges that lead from a node into other stores."""

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
        """Return valid edges of a node, without some types.

        The current graph returns the `limit` strongest per direction.
        """

    @abstractmethod
    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        """Return the nodes from which valid edges of a type lead to a node, with the edges' weights."""

    @abstractmethod
    def neighbours(self, ids: Sequence[str]) -> NeighbourWeights:
        """Return the valid other ends of each node's valid edges with weights, at most `MAX_NEIGHBOURS` each."""

    def turns_around(self, ids: Collection[str]) -> NeighbourWeights:
        """Return the turns of conversations among `ids` and up to two steps away, each with those next to it.

        Empty if the store has no turns now: most stores never had any, and a look into the past takes milliseconds.
        """
        with self.current_rows() as rows:
            if not rows.has_turns:
                return {}
        found: dict[str, list[tuple[str, float]]] = {}
        level = [*ids]
        for _ in range(MAX_TURN_STEPS + 1):
            around = dict[str, list[tuple[str, float]]]()
            for turn, edge in self.incident_of(level, NEXT_TURN_RELATION):
                around.setdefault(turn, []).append((edge.target if edge.source == turn else edge.source, edge.weight))
            found |= around
            level = _list_new_ends(around, found)
        return {key: [(end, weight) for end, weight in near if end in found] for key, near in found.items()}

    # Encoded as JSON

    @abstractmethod
    def encode_node(self, node_id: str) -> bytes | None:
        """Encode a node; None if no valid one exists."""

    @abstractmethod
    def encode_nodes(self, ids: Collection[str]) -> dict[str, bytes]:
        """Encode the valid nodes of `ids`, by id.

        Raises WouldBlock if a non-blocking read would read too much.
        """

    @abstractmethod
    def encode_edge_page(self, node_id: str, wanted: EdgePageRequest) -> tuple[list[bytes], bool, int]:
        """Encode a page of the valid edges of a valid node whose other ends are valid.

        Order: ordinal, edges without one last; then creation time and key. Also return whether more follow, and the
        number of edges on all pages. Raises TraversalTooLarge if a non-blocking read would visit too many edges.
        """

    @abstractmethod
    def encode_walk(self, wanted: TraversalRequest) -> EncodedTraversalResult:
        """Walk, and encode the result. Raises TraversalTooLarge if a non-blocking read would visit too many edges."""

    @abstractmethod
    def list_nodes(self, wanted: NodeFilter, position: PagePosition, limit: int) -> ResultPage[EncodedNode]:
        """Return a page of matching nodes, ordered by id; scans at most `MAX_SCANNED_NODES` nodes.

        Raises WouldBlock if a non-blocking read would wait, or read too much.
        """

    @abstractmethod
    def export(self) -> Iterator[ExportLineBlock]:
        """Yield the lines of all valid nodes, then of all valid edges between valid nodes, then of links."""

    @abstractmethod
    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """Return the edges that a walk in both directions finds."""

    def _is_valid(self, row: NodeRow | EdgeRow) -> bool:
        return self.valid_at is None or row.is_valid_at(self.valid_at)

    # Nodes by number

    @abstractmethod
    def number(self, node_id: str) -> int:
        """Return the number of a node; -1 if it is known not to exist."""

    @abstractmethod
    def numbered_node(self, number: int) -> NodeRow | None:
        """Return the node of a number, if it exists."""

    @abstractmethod
    def sort_by_id(self, numbers: NumberArray) -> NumberArray:
        """Return nodes in the order of their ids."""

    @abstractmethod
    def are_valid(self, numbers: NumberArray) -> NumberArray:
        """Return for each node whether it exists and is valid."""

    @abstractmethod
    def have_types(self, numbers: NumberArray, types: Collection[str] | None) -> NumberArray:
        """Return for each node whether it is valid and of one of some types; None: of any."""

    @abstractmethod
    def best_connected(self, count: int, max_nodes: int, types: Collection[str] | None) -> GraphOverviewStartNodes:
        """Return `count` nodes with most edges in the current graph, or all nodes if they are at most `max_nodes`."""

    @abstractmethod
    def max_incident_edges(self, types: Collection[str] | None) -> int:
        """Return the number of edges that a sample of nodes of some types may visit."""

    @abstractmethod
    def incident_edges(self, numbers: NumberArray, wanted: TraversalRequest, limit: int) -> IncidentEdges:
        """Return at most `limit` of the edges around some nodes that a walk follows."""

    @abstractmethod
    def edges_between(self, numbers: NumberArray, wanted: TraversalRequest) -> tuple[list[EdgeByNodeNumbers], bool]:
        """Return the edges between some nodes that a walk follows, and whether the list is incomplete."""

    @abstractmethod
    def degrees(self, numbers: NumberArray) -> Sequence[int | None]:
        """Return the number of edges that start or end at each node, valid or not; None: too many to count."""

    # The hierarchy of memories

    @abstractmethod
    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the parents of those memories that have one."""

    @abstractmethod
    def children(self, memory_id: str, limit: int) -> list[str]:
        """Return at most `limit` children of a memory."""

    @abstractmethod
    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryAtDepth]:
        """Return the memories of a layer above one that are true at `now`, the nearest first."""

    @abstractmethod
    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> DescendantPage:
        """Return a page, in the order of ids, of the memories of a layer below one that are true at `now`.

        With ``near`` only its children. Raises TooLarge.
        """

    @abstractmethod
    def weighted_descendants(self, memory_id: str) -> WeightedNodes:
        """Return everything below a memory, with weights of 1. Raises TooLarge."""

    # Other state as of the commit

    @abstractmethod
    def accesses(self, ids: Collection[str]) -> dict[str, MemoryAccessRecord]:
        """Return the access statistics of some memories; empty as of a commit."""

    @abstractmethod
    def memory_states(self, ids: Collection[str]) -> dict[str, MemoryMetadata]:
        """Return the states of the memories among some nodes."""

    @abstractmethod
    def confidences(self, memories: Sequence[NodeRow], half_lives: MemoryHalfLives) -> dict[str, float]:
        """Return the confidence of each memory: decayed to now, or as stored as of a commit."""

    @property
    @abstractmethod
    def last_visible_commit(self) -> int:
        """The last commit whose states may be shown in a history next to this graph."""

    @abstractmethod
    def search_index(self, indexes: CurrentAndPastTextIndexes) -> SearchIndexAtCommit:
        """Return the index of the texts of the nodes."""

    @abstractmethod
    def nodes_formerly_matching(self, wanted: Sequence[AttributeCondition], seen: int) -> frozenset[str]:
        """Return the nodes that had some attributes at this commit, in a state that has ended since.

        seen: the commit up to which the caller knows of ended states. Raises Unavailable while the history is behind.
        """

    @abstractmethod
    def find_merge_survivor(self, node_id: str) -> str | None:
        """Return the node that an id leads to, if it may be missing in the current graph; else None."""

    @abstractmethod
    def current_rows(self) -> AbstractContextManager[RowsSnapshot]:
        """Open the current rows of the store."""


class CurrentGraph(GraphReader):
    """The graph after the last commit."""

    is_current = True

    def __init__(
        self,
        store: OpenStore,
        rows: RowsSnapshot,
        valid_at: int | None,
        links: CrossStoreLinkReader | None = None,
        memories: MemoryIndexSqliteFile | None = None,
        max_edges: int | None = None,
    ) -> None:
        """Read ``rows``; ``links`` and ``memories``, if given, must be of the same commit.

        max_edges: edges that a non-blocking read may visit before it raises TraversalTooLarge.
        """
        super().__init__(rows.at, valid_at, time.time_ns() // 1000)
        self.rows = rows
        self._store = store
        self._links = links
        self._memories = memories
        self._max_edges = max_edges
        self._last_id: str | None = None
        self._last_number = -1

    @override
    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        return self.rows.nodes(ids)

    @override
    def resolve_redirects(self, ids: Collection[str]) -> dict[str, str]:
        if not self.rows.has_merges:
            return {node_id: node_id for node_id in ids}
        merged = find_merge_redirect_chains(self.rows, ids)
        return {node_id: follow_merge_redirect_chain(merged, node_id) for node_id in ids}

    @override
    def merged_ids(self, ids: Collection[str]) -> dict[str, str]:
        return {merged: node_id for node_id in ids for merged in find_all_nodes_merged_into(self.rows, node_id)}

    @override
    def to_nodes(self, rows: Sequence[NodeRow], convert: Callable[[NodeRow], N]) -> list[N]:
        return [*map(convert, rows)]

    @override
    def edges_of(self, ids: Collection[str], direction: TraversalDirection) -> Iterator[EdgeRow]:
        for node_id in ids:
            if direction != "incoming":
                yield from self.rows.outgoing(node_id)
            if direction != "outgoing":
                yield from self.rows.incoming(node_id)

    @override
    def links_from(self, ids: Collection[str], limit: int = NO_LINK_LIMIT) -> Iterator[CrossStoreLinkRow]:
        return iter(()) if self._links is None else self._links.find_by_sources(ids)

    @override
    def valid_links(self, node_id: str, limit: int = NO_LINK_LIMIT) -> list[CrossStoreLinkRow]:
        if self._links is None:
            return []
        found = self._links.outgoing(node_id, limit if self.valid_at is None else NO_LINK_LIMIT)
        return [row for row in found if self._is_valid(row.edge)][:limit]

    @override
    def encode_node(self, node_id: str) -> bytes | None:
        number = self.number(node_id)
        if number < 0 or not self._numbered_valid(number):
            return None
        return self.rows.node_text(number, self.now)

    @override
    def encode_nodes(self, ids: Collection[str]) -> dict[str, bytes]:
        numbers = {node_id: number for node_id in ids if (number := self.rows.number(node_id)) >= 0}
        if self.valid_at is not None and self.rows.has_validity_bounds:
            numbers = {node_id: number for node_id, number in numbers.items() if self._numbered_valid(number)}
        return {
            node_id: text + b"}" for node_id, text in zip(numbers, self._open_texts([*numbers.values()]), strict=True)
        }

    def _open_texts(self, numbers: list[int]) -> list[bytes]:
        """Return the open JSON of existing nodes."""
        if self._max_edges is not None and self.rows.node_bytes(numbers) > MAX_NONBLOCKING_READ_BYTES:
            raise WouldBlock
        return self.rows.node_texts(np.array(numbers, np.int64), self.now)

    def _numbered_valid(self, number: int) -> bool:
        return self.valid_at is None or self.rows.is_node_valid_at(number, self.valid_at)

    def _shown_edges(self, node_id: str, *, outgoing: bool) -> BaseAndDeltaEdges:
        rows = self.rows
        edges = rows.edges_around(np.array([self.number(node_id)]), outgoing=outgoing)
        if self._max_edges is not None and len(edges) > self._max_edges:
            raise TraversalTooLarge
        return edges if self.valid_at is None else filter_valid_edges(rows, edges, self.valid_at, outgoing=outgoing)

    @override
    def encode_edge_page(self, node_id: str, wanted: EdgePageRequest) -> tuple[list[bytes], bool, int]:
        edges = filter_edges_by_type(
            self.rows, self._shown_edges(node_id, outgoing=wanted.outgoing), wanted.relation_types
        )
        return *encode_page_of_edges(self.rows, edges, wanted.offset, wanted.limit), len(edges)

    @override
    def encode_walk(self, wanted: TraversalRequest) -> EncodedTraversalResult:
        found = traverse_rows_breadth_first(self.rows, wanted, self._max_edges)
        nodes, edges = (
            encode_traversal_nodes_as_json(self.rows, found, self.now),
            encode_traversal_edges_as_json(self.rows, found),
        )
        return EncodedTraversalResult(nodes, edges, found.count, found.truncated)

    @override
    def list_nodes(self, wanted: NodeFilter, position: PagePosition, limit: int) -> ResultPage[EncodedNode]:
        if wanted == NO_NODE_FILTER:
            nodes = ((found[0], found, True) for found in self.rows.numbered_ids_after(position.after))
            items, end = take_page_of_matching_items(nodes, position, limit)
            texts = self._open_texts([number for _, number in items])
            return ResultPage([(node_id, text + b"}") for (node_id, _), text in zip(items, texts, strict=True)], end)
        return self._store.query_catalog(
            lambda catalog, rows: self.with_rows(rows).list_from(catalog, wanted, position, limit),
            by_attributes=bool(wanted.attributes),
            block=self._max_edges is None,
        )

    def with_rows(self, rows: RowsSnapshot) -> CurrentGraph:
        """Return a reader of other rows of the store, without links and memories."""
        return CurrentGraph(self._store, rows, self.valid_at, max_edges=self._max_edges)

    def list_from(
        self, catalog: NodeCatalog, wanted: NodeFilter, position: PagePosition, limit: int
    ) -> ResultPage[EncodedNode]:
        """Return a page of a catalog of the same commit. Raises CatalogDamaged and WouldBlock."""
        max_scanned = None if self._max_edges is None else MAX_NONBLOCKING_SCANNED_NODES
        ids, end = catalog.list_matching_ids(wanted, position, limit, max_scanned)
        numbers = [number for node_id in ids if (number := self.rows.number(node_id)) >= 0]
        if len(numbers) != len(ids):
            raise CatalogDamaged("it lists a node that does not exist")
        texts = self._open_texts(numbers)
        if not all(node_json_matches_filter(text, wanted) for text in texts):
            raise CatalogDamaged("it lists a node that does not match")
        return ResultPage([(node_id, text + b"}") for node_id, text in zip(ids, texts, strict=True)], end)

    @override
    def export(self) -> Iterator[ExportLineBlock]:
        rows, moment = self.rows, self.valid_at
        for numbers in rows.node_slices():
            kept = numbers if moment is None else numbers[rows.valid_nodes_mask(numbers, moment)]
            if len(kept):
                yield ExportLineBlock(
                    self._with_accesses([*map(convert_node_json_to_export_line, rows.node_texts(kept, 0))]), []
                )
        for found in rows.edge_slices():
            held = found if moment is None else rows.filter_valid(found, moment)
            if len(held):
                yield ExportLineBlock([], [*map(convert_edge_json_to_export_line, rows.edge_texts(held))])
        for links in self._links.iterate_links() if self._links else ():
            if kept_links := [row for row in links if moment is None or self._is_held(row.edge)]:
                yield ExportLineBlock([], [*map(encode_cross_store_link_export_line, kept_links)])

    def _is_held(self, link: EdgeRow) -> bool:
        return self._is_valid(link) and self.has_valid(link.source)

    def _with_accesses(self, lines: list[ExportedNode]) -> list[ExportedNode]:
        memories = {line.id: line for line in lines if line.confidence is not msgspec.UNSET}
        for node_id, access in self.accesses(memories).items():
            memories[node_id].tell(access)
        return lines

    @override
    def outgoing(self, node_id: str) -> list[EdgeRow]:
        return [
            edge for edge in islice(self.rows.outgoing(node_id), MAX_EDGES_PER_DIRECTION + 1) if self._is_valid(edge)
        ]

    @override
    def outgoing_of(self, ids: Collection[str], relation_types: Collection[str]) -> list[EdgeRow]:
        return find_outgoing_edges_of_types(self.rows, ids, relation_types)

    @override
    def incident_of(self, ids: Collection[str], relation_type: str) -> Iterator[tuple[str, EdgeRow]]:
        rows = self.rows
        numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
        for outgoing in (True, False):
            edges = self._valid_around(numbers, outgoing=outgoing, relation_type=relation_type)
            for edge in rows.rows_of(edges.first(MAX_NEIGHBOURS * len(numbers))):
                yield (edge.source if outgoing else edge.target), edge

    @override
    def strongest_edges(self, node_id: str, excluded: Collection[str], limit: int) -> Iterable[EdgeRow]:
        rows, number = self.rows, self.rows.number(node_id)
        for outgoing in (True, False) if number >= 0 else ():
            around = exclude_edges_of_types(rows, rows.edges_around(np.array([number]), outgoing=outgoing), excluded)
            yield from rows.rows_of(_strongest(rows, self._valid(around), limit))

    @override
    def sources_of(self, node_id: str, relation_type: str) -> WeightedNodes:
        rows, number = self.rows, self.rows.number(node_id)
        if number < 0:
            return WeightsByNodeId({})
        found = self._valid_around(np.array([number]), outgoing=False, relation_type=relation_type)
        weights = np.clip(np.array(rows.weights(found), np.float64), 0.0, 1.0)
        return WeightsByRowNumber(rows, rows.edge_endpoints(found)[0].astype(np.int64), weights)

    @override
    def turns_around(self, ids: Collection[str]) -> NeighbourWeights:
        if not self.rows.has_turns:
            return {}
        found: dict[int, list[tuple[int, float]]] = {}
        level = [number for node_id in ids if (number := self.rows.number(node_id)) >= 0]
        for _ in range(MAX_TURN_STEPS + 1):
            around = self._adjacent_turns(np.array(level, np.int64))
            found |= around
            level = _list_new_ends(around, found)
        last = {number: [(end, weight) for end, weight in near if end in found] for number, near in found.items()}
        names = dict(zip(last, self.rows.delta.ids([*last]), strict=True))
        return {names[number]: [(names[end], weight) for end, weight in near] for number, near in last.items()}

    def _adjacent_turns(self, numbers: NumberArray) -> dict[int, list[tuple[int, float]]]:
        """Return the turns next to some nodes, by numbers; nodes with none are left out."""
        found: dict[int, list[tuple[int, float]]] = {}
        for outgoing in (True, False) if len(numbers) else ():
            edges = self._valid_around(numbers, outgoing=outgoing, relation_type=NEXT_TURN_RELATION)
            edges = edges.first(MAX_NEIGHBOURS * len(numbers))
            sources, targets = (ends.tolist() for ends in self.rows.edge_endpoints(edges))
            own, others = (sources, targets) if outgoing else (targets, sources)
            for one, other, weight in zip(own, others, self.rows.weights(edges), strict=True):
                found.setdefault(one, []).append((other, weight))
        return found

    def _valid_around(self, numbers: NumberArray, *, outgoing: bool, relation_type: str) -> BaseAndDeltaEdges:
        return self._valid(
            filter_edges_by_type(self.rows, self.rows.edges_around(numbers, outgoing=outgoing), (relation_type,))
        )

    def _valid(self, edges: BaseAndDeltaEdges) -> BaseAndDeltaEdges:
        return edges if self.valid_at is None else self.rows.filter_valid_edges(edges, self.valid_at)

    @override
    def neighbours(self, ids: Sequence[str]) -> NeighbourWeights:
        found = self._numbered_neighbours(ids)
        ends = iter(self.rows.delta.ids([end for each in found.values() for end, _ in each]))
        return {node_id: [(next(ends), weight) for _, weight in each] for node_id, each in found.items()}

    def _numbered_neighbours(self, ids: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
        rows, numbers = self.rows, {node_id: self.rows.number(node_id) for node_id in ids}
        few: list[int] = []
        if self.valid_at is not None and rows.has_validity_bounds:
            few = [node for node in dict.fromkeys(numbers.values()) if node >= 0 and self._has_few(node)]
        batched = self._valid_neighbours(few, self.valid_at) if few and self.valid_at is not None else {}
        return {
            node_id: batched[node][:MAX_NEIGHBOURS] if node in batched else self._some_neighbours(node)
            for node_id, node in numbers.items()
        }

    @property
    def _is_dated(self) -> bool:
        return self.valid_at is not None and self.rows.has_validity_bounds

    def _has_few(self, node: int) -> bool:
        base, delta = self.rows.base, self.rows.delta
        out = base.degree(node, outgoing=True) + len(delta.out.get(node, ()))
        return max(out, base.degree(node, outgoing=False) + len(delta.into.get(node, ()))) <= MAX_EDGES_PER_DIRECTION

    def _valid_neighbours(self, nodes: Sequence[int], moment: int) -> dict[int, list[tuple[int, float]]]:
        """Return the valid neighbours of nodes that are not hubs, for all of them together."""
        rows, found = self.rows, {node: list[tuple[int, float]]() for node in nodes}
        for outgoing in (True, False):
            edges = rows.filter_valid(rows.edges_around(np.array(nodes), outgoing=outgoing), moment)
            ends = rows.edge_endpoints(edges)
            owners, others = ends if outgoing else ends[::-1]
            for owner, other, weight in zip(owners.tolist(), others.tolist(), rows.weights(edges), strict=True):
                found[owner].append((other, weight))
        return found

    def _some_neighbours(self, node: int) -> list[tuple[int, float]]:
        rows = self.rows
        found: list[tuple[int, float]] = []
        if node < 0:
            return found
        delta = rows.delta
        if node < rows.base.nodes and node not in delta.out and node not in delta.into and not self._is_dated:
            return [*rows.base.weighted_ends(node, MAX_NEIGHBOURS)]
        for outgoing in (True, False):
            few = not self._is_dated and rows.base.degree(node, outgoing=outgoing) <= MAX_EDGES_PER_DIRECTION
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
        edges = rows.edges_around(np.array([node]), outgoing=outgoing)
        if self.valid_at is not None and rows.has_validity_bounds:
            # A node with more edges counts as a hub, even if few of them are valid.
            edges = rows.filter_valid(edges.first(MAX_EDGES_PER_DIRECTION), self.valid_at)
        edges = edges.first(MAX_NEIGHBOURS)
        return zip(rows.edge_endpoints(edges)[outgoing].tolist(), rows.weights(edges), strict=True)

    @override
    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        wanted = TraversalRequest(start, depth, "both", None, None, max_nodes, self.valid_at)
        return list(self.rows.rows_of(traverse_rows_breadth_first(self.rows, wanted).edges))

    @override
    def number(self, node_id: str) -> int:
        # Callers often look up the same node several times in a row.
        if node_id != self._last_id:
            self._last_id, self._last_number = node_id, self.rows.number(node_id)
        return self._last_number

    @override
    def numbered_node(self, number: int) -> NodeRow | None:
        return self.rows.node_row(number)

    @override
    def sort_by_id(self, numbers: NumberArray) -> NumberArray:
        return self.rows.in_order(numbers)

    @override
    def are_valid(self, numbers: NumberArray) -> NumberArray:
        if self.valid_at is None or not self.rows.has_validity_bounds:
            return np.ones(len(numbers), np.bool_)
        return self.rows.valid_nodes_mask(numbers, self.valid_at)

    @override
    def have_types(self, numbers: NumberArray, types: Collection[str] | None) -> NumberArray:
        fits = self.are_valid(numbers)
        if types is not None:
            fits[fits] = [each in types for each in read_types_of_nodes(self.rows, numbers[fits])]
        return fits

    @override
    def best_connected(self, count: int, max_nodes: int, types: Collection[str] | None) -> GraphOverviewStartNodes:
        found, whole = choose_graph_overview_start_nodes(self.rows, count + OVERVIEW_OVERFETCH_NODES, max_nodes, types)
        found = found[self.have_types(found, types)]
        return GraphOverviewStartNodes(found if whole else found[:count], whole)

    @override
    def max_incident_edges(self, types: Collection[str] | None) -> int:
        return MAX_EDGES_SCANNED if types is None else MAX_EDGES_SCANNED_BY_TYPE

    @override
    def incident_edges(self, numbers: NumberArray, wanted: TraversalRequest, limit: int) -> IncidentEdges:
        return find_incident_edges(self.rows, numbers, wanted, limit)

    @override
    def edges_between(self, numbers: NumberArray, wanted: TraversalRequest) -> tuple[list[EdgeByNodeNumbers], bool]:
        return find_edges_between(self.rows, numbers, wanted)

    @override
    def degrees(self, numbers: NumberArray) -> Sequence[int | None]:
        return count_degrees(self.rows, numbers)

    @override
    def parents(self, ids: Iterable[str]) -> dict[str, str]:
        return find_parents_of_memories(self.rows, ids)

    @override
    def children(self, memory_id: str, limit: int) -> list[str]:
        page = self._ask(lambda memories: memories.descendants(memory_id, self.now, None, "", limit, near=True))
        return [place.id for place in page.found]

    @override
    def ancestors(self, memory_id: str, layer: int | None) -> list[MemoryAtDepth]:
        return self._checked(self._ask(lambda memories: memories.ancestors_of(memory_id, self.now, layer)))

    @override
    def descendants(self, memory_id: str, layer: int | None, after: str, limit: int, *, near: bool) -> DescendantPage:
        page = self._ask(lambda memories: memories.descendants(memory_id, self.now, layer, after, limit, near=near))
        self._checked(page.found)
        return page

    def _checked(self, places: list[MemoryAtDepth]) -> list[MemoryAtDepth]:
        found = self.rows.nodes([place.id for place in places])
        if len(found) != len(places) or not all(map(is_current_unwithdrawn_memory, found.values())):
            raise MemoryIndexDamaged("it lists a memory that does not exist")
        return places

    @override
    def weighted_descendants(self, memory_id: str) -> WeightedNodes:
        return _Descendants(self._ask, memory_id)

    def _ask(self, question: Callable[[MemoryIndexSqliteFile], Found]) -> Found:
        if self._memories is not None:
            return question(self._memories)
        return self._store.memories.ask(lambda memories, _: question(memories))

    @override
    def accesses(self, ids: Collection[str]) -> dict[str, MemoryAccessRecord]:
        return self._store.accesses.of(ids)

    @override
    def memory_states(self, ids: Collection[str]) -> dict[str, MemoryMetadata]:
        found = self._ask(lambda memories: memories.live(ids))
        pending = self._store.accesses.pending(ids)
        return {key: each.with_access(pending.get(key)) for key, each in found.items()} if pending else found

    @override
    def confidences(self, memories: Sequence[NodeRow], half_lives: MemoryHalfLives) -> dict[str, float]:
        accesses = self.accesses([row.id for row in memories])
        return {row.id: half_lives.decayed_confidence(row, accesses.get(row.id), self.now) for row in memories}

    @property
    @override
    def last_visible_commit(self) -> int:
        return self.sequence

    @override
    def search_index(self, indexes: CurrentAndPastTextIndexes) -> SearchIndexAtCommit:
        return indexes

    @override
    def nodes_formerly_matching(self, wanted: Sequence[AttributeCondition], seen: int) -> frozenset[str]:
        return frozenset()

    @override
    def find_merge_survivor(self, node_id: str) -> str | None:
        return None

    @override
    def current_rows(self) -> AbstractContextManager[RowsSnapshot]:
        return nullcontext(self.rows)


class _Descendants(WeightedNodes):
    """The descendants of a memory, read from the memory index."""

    def __init__(self, ask: MemoryIndexQueryCallback, memory_id: str) -> None:
        self._ask = ask
        self._id = memory_id

    @override
    def __len__(self) -> int:
        return self._ask(lambda memories: memories.count_descendants(self._id, MAX_DESCENDANTS + 1))

    @override
    def weights_of(self, ids: Iterable[str]) -> dict[str, float]:
        known = list(ids)
        found = self._ask(lambda memories: memories.filter_descendants(self._id, known))
        return {node_id: 1.0 for node_id in known if node_id in found}

    @override
    def first(self, count: int) -> dict[str, float]:
        return dict.fromkeys(self._ask(lambda memories: memories.sample_descendants(self._id, count)), 1.0)


class MemoryIndexQueryCallback(Protocol):
    """Callback that queries the memory index of a store."""

    def __call__(self, question: Callable[[MemoryIndexSqliteFile], Found], /) -> Found:
        """Return the result of the query."""
        ...


def _strongest(rows: RowsSnapshot, edges: BaseAndDeltaEdges, limit: int) -> BaseAndDeltaEdges:
    if len(edges.base) <= limit:
        return edges
    best = np.argsort(-rows.base.weight[edges.base], kind="stable")[:limit]
    return BaseAndDeltaEdges(edges.base[np.sort(best)], edges.changed)


StoreLease = Callable[[], AbstractContextManager[OpenStore]]


class PastGraphOpener(Protocol):
    """Opener of the graph of a store as of a past moment."""

    def open(self, store: OpenStore, valid_at: str | None, lease: StoreLease | None) -> GraphReader:
        """Return the reader, with the parameters of `read_graph`."""
        ...


@contextmanager
def open_graph_reader(
    store: OpenStore,
    past: PastGraphOpener | None,
    valid_at: str | None,
    *,
    links: bool = False,
    lease: StoreLease | None = None,
    max_edges: int | None = None,
) -> Generator[GraphReader]:
    """Read the graph of a leased store: the current one, or as of ``past``; ``valid_at`` defaults to that moment.

    links: whether links of the current graph will be read. lease: leases the store again for each access to its
    history, for readers that outlive the caller's lease; the files of current rows and links stay open. max_edges:
    limit of a non-blocking read, as in `CurrentGraph`.

    Raises TraversalTooLarge for links in a non-blocking read, and InvalidInput for an invalid ``valid_at``.
    """
    if past is not None:
        yield past.open(store, valid_at, lease)
        return
    if links and max_edges is None:
        with store.reading_links() as (rows, linked):
            has_bounds = rows.has_validity_bounds or linked is not None
            yield CurrentGraph(store, rows, _current_moment(valid_at, has_bounds=has_bounds), linked)
        return
    with store.reading() as rows:
        if links and rows.linked:
            raise TraversalTooLarge
        yield CurrentGraph(
            store, rows, _current_moment(valid_at, has_bounds=rows.has_validity_bounds), max_edges=max_edges
        )


def _current_moment(valid_at: str | None, *, has_bounds: bool) -> int | None:
    return resolve_valid_at(valid_at, time.time_ns() // 1000 if valid_at is None and has_bounds else None)


def _list_new_ends(around: Mapping[_Key, list[tuple[_Key, float]]], found: Collection[_Key]) -> list[_Key]:
    """Return the turns next to some that are not found yet, as many as `MAX_TURNS_AROUND` leaves room for."""
    new = dict.fromkeys(end for near in around.values() for end, _ in near if end not in found)
    return [*islice(new, max(MAX_TURNS_AROUND - len(found), 0))]


def resolve_valid_at(text: str | None, left_out: int | None) -> int | None:
    """Return the requested valid time in microseconds; None: any. Raises InvalidInput for an invalid time."""
    return left_out if text is None else parse_valid_at(text)


def query_memory_hierarchy(
    store: OpenStore, past: PastGraphOpener | None, question: Callable[[GraphReader], Found]
) -> Found:
    """Run a query on the hierarchy of memories; indexes and rows are of the same commit.

    A damaged memory index is rebuilt.
    """
    if past is None:
        return store.memories.ask(lambda memories, rows: question(CurrentGraph(store, rows, None, None, memories)))
    return question(past.open(store, VALID_AT_ANY, None))
