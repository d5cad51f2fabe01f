"""Samples of the graph for drawings, from the current rows: edges around and between nodes, degrees, types."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, cast

import msgspec
import numpy as np

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.breadth_first_traversal import TraversalRequest
from kgserve.storage.model.node_edge_rows import EdgeRow
from kgserve.storage.rows.base_segment import MAX_BASE_READ_BATCH_ROWS
from kgserve.storage.rows.base_segment_file_format import MAX_INT64, MIN_INT64, NumberArray
from kgserve.storage.rows.breadth_first_row_traversal import ColumnarGraphTraversal
from kgserve.storage.rows.row_delta import InMemoryRowsDelta, RowVersion
from kgserve.storage.rows.rows_snapshot import RowsSnapshot


class IncidentEdges(NamedTuple):
    """Edges around the nodes of a level: index of the node in the level, the other end, and the weight.

    ``cut`` is true if there are more edges than the limit.
    """

    owner: NumberArray
    end: NumberArray
    weight: NumberArray
    cut: bool


class EdgeByNodeNumbers(NamedTuple):
    """Edge with the numbers of its two nodes; validity bounds in microseconds, None if unbounded."""

    source: int
    target: int
    relation_type: str
    weight: float
    valid_from: int | None
    valid_to: int | None


class GraphOverviewStartNodes(NamedTuple):
    """Initial nodes of a graph overview; ``whole`` if they are the entire graph."""

    nodes: NumberArray
    whole: bool


def build_edge_by_node_numbers(source: int, target: int, row: EdgeRow) -> EdgeByNodeNumbers:
    """Return the row of an edge between two nodes as a `EdgeByNodeNumbers`."""
    extras = row.extras
    bounds = (None, None) if extras is None else (extras.valid_from, extras.valid_to)
    return EdgeByNodeNumbers(source, target, row.relation_type, row.weight, *bounds)


class _NodeType(msgspec.Struct):
    """Type field of a node's JSON."""

    type: str


_type_of = json_decoder(_NodeType).decode


def read_types_of_nodes(rows: RowsSnapshot, numbers: NumberArray) -> list[str]:
    """Return the types of nodes."""
    return [
        _type_of(text + b"}").type
        for start in range(0, len(numbers), MAX_BASE_READ_BATCH_ROWS)
        for text in rows.node_texts(numbers[start : start + MAX_BASE_READ_BATCH_ROWS], 0)
    ]


def _count_within(rows: RowsSnapshot, level: NumberArray, left: int, *, outgoing: bool) -> int:
    """Return how many nodes can be examined before their base edges exceed ``left``, including the last one."""
    count = rows.base.nodes
    if not count:
        return len(level)
    starts = rows.base.out_at if outgoing else rows.base.in_at
    own = np.minimum(level, count - 1)
    sizes = np.where(level < count, starts[own + 1].astype(np.int64) - starts[own], 0)
    return int(np.searchsorted(np.cumsum(sizes), left)) + 1


def count_degrees(rows: RowsSnapshot, numbers: NumberArray) -> list[int]:
    """Return the numbers of edges at nodes, regardless of type and validity; a loop counts twice."""
    found = _base_degrees(rows, numbers).tolist()
    delta = rows.delta
    if delta.edges:
        for place, number in enumerate(numbers.tolist()):
            for lists in (delta.out, delta.into):
                noted = lists.get(number)
                if noted is not None:
                    found[place] += sum(_degree_change(rows, edge, delta.edges[edge]) for edge in noted[:])
    return found


def _base_degrees(rows: RowsSnapshot, numbers: NumberArray) -> NumberArray:
    base = rows.base
    found = np.zeros(len(numbers), np.int64)
    own = numbers < base.nodes
    at = numbers[own]
    found[own] = base.out_at[at + 1].astype(np.int64) - base.out_at[at] + base.in_at[at + 1] - base.in_at[at]
    return found


def _degree_change(rows: RowsSnapshot, edge: int, newest: RowVersion) -> int:
    version = newest.at(rows.at)
    return 0 if version is None else (version.row is not None) - (edge < rows.base.edges)


def find_most_connected(rows: RowsSnapshot, count: int, types: Collection[str] | None) -> list[int]:
    """Return the nodes with the highest degrees, ties by id.

    Candidates are the best-connected nodes of the base and those whose edges changed. If all of them were deleted, the
    next base finds others.
    """
    numbers = np.union1d(rows.base.best_connected, _most_connected_changed(rows, 8 * count + 100)).astype(np.int64)
    numbers = np.array([number for number in numbers.tolist() if rows.has_node_number(number)], np.int64)
    if types is not None and len(numbers):
        numbers = numbers[[each in types for each in read_types_of_nodes(rows, numbers)]]
    ordered = rows.in_order(numbers)
    by_degree = np.array(count_degrees(rows, ordered), np.int64)
    best = np.argsort(-by_degree, kind="stable")[:count]
    return ordered[best[by_degree[best] > 0]].tolist()


def _most_connected_changed(rows: RowsSnapshot, count: int) -> NumberArray:
    """Return the nodes with changed edges that have the highest upper bounds of their degree."""
    delta: InMemoryRowsDelta = rows.delta
    parts: list[tuple[NumberArray, NumberArray]] = []
    for lists in (delta.out.copy(), delta.into.copy()):
        numbers = np.fromiter(lists, np.int64, len(lists))
        parts.append((numbers, np.fromiter(map(len, lists.values()), np.int64, len(lists))))
    numbers, places = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    most = _base_degrees(rows, numbers) + np.bincount(places, np.concatenate([part[1] for part in parts]), len(numbers))
    return numbers[np.argsort(-most, kind="stable")[:count]]


def choose_graph_overview_start_nodes(
    rows: RowsSnapshot, count: int, max_nodes: int, types: Collection[str] | None
) -> GraphOverviewStartNodes:
    """Return the start nodes of an overview: the `count` best connected, or all if at most `max_nodes` exist."""
    if rows.state.nodes <= max_nodes:
        return GraphOverviewStartNodes(rows.in_order(np.concatenate([*rows.node_slices()])), whole=True)
    return GraphOverviewStartNodes(np.array(find_most_connected(rows, count, types), np.int64), whole=False)


def find_incident_edges(
    rows: RowsSnapshot, numbers: NumberArray, wanted: TraversalRequest, limit: int
) -> IncidentEdges:
    """Return at most `limit` of the edges around nodes that a traversal follows."""
    ways = [way for way in (True, False) if wanted.direction != ("incoming" if way else "outgoing")]
    parts = [_incident_one_way(rows, numbers, wanted, limit // len(ways), outgoing=way) for way in ways]
    owner, end, weight = (np.concatenate(column) for column in zip(*(part[:3] for part in parts), strict=True))
    return IncidentEdges(owner, end, weight, any(part.cut for part in parts))


def _incident_one_way(
    rows: RowsSnapshot, numbers: NumberArray, wanted: TraversalRequest, limit: int, *, outgoing: bool
) -> IncidentEdges:
    near = numbers[: _count_within(rows, numbers, limit, outgoing=outgoing)]
    found = ColumnarGraphTraversal(rows, wanted, None).traversed_edges(near, outgoing=outgoing)
    source, target = rows.edge_endpoints(found)
    owner, end = (source, target) if outgoing else (target, source)
    weight = np.array(rows.weights(found), np.float64)
    cut = len(near) < len(numbers) or len(owner) > limit
    by_number = np.argsort(numbers)
    places = by_number[np.searchsorted(numbers, owner[:limit], sorter=by_number)]
    return IncidentEdges(places, end[:limit], weight[:limit], cut)


def find_edges_between(
    rows: RowsSnapshot, numbers: NumberArray, wanted: TraversalRequest
) -> tuple[list[EdgeByNodeNumbers], bool]:
    """Return the edges between nodes that a traversal follows, and True if the result is truncated."""
    if not len(numbers):
        return [], False
    found, cut = ColumnarGraphTraversal(rows, wanted, None).between(np.sort(numbers))
    base, own = rows.base, found.base
    source, target = base.edge_ends(own)
    begun, ended = base.edge_bounds(own)
    columns = (source, target, base.relation[own], base.weight[own], begun, ended)
    names = base.names
    edges = [
        EdgeByNodeNumbers(
            s, t, names[code], weight, None if first == MIN_INT64 else first, None if last == MAX_INT64 else last
        )
        for s, t, code, weight, first, last in zip(*(column.tolist() for column in columns), strict=True)
    ]
    for number, version in found.changed:
        edges.append(build_edge_by_node_numbers(*rows.delta.edge_endpoints(number), cast("EdgeRow", version.row)))
    return edges, cut
