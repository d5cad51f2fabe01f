"""Breadth-first traversal: every node once, at its shortest distance, and all edges between the nodes found.

A level is processed at once, in columns: its edges, those to follow, their other ends. This takes about 15 steps of ten
microseconds even for few edges, so a small traversal follows edges one by one instead.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import msgspec
import numpy as np

from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.storage.model.breadth_first_traversal import MAX_WALK_EDGES, TraversalRequest, TraversalResult
from kgserve.storage.model.node_edge_rows import EdgeRow
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.row_delta import AdjacentEdges, BaseAndDeltaEdges, RowVersion
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_SMALL_TRAVERSAL_EDGES = 200


class TraversalTooLarge(WouldBlock):
    """The traversal meets more edges than allowed."""


class _SmallWalkExceeded(Exception):
    """The traversal meets too many edges to follow them one by one."""


class TraversalLevelsByNodeNumber(msgspec.Struct, frozen=True):
    """Traversal result: node numbers of each level, ordered by id, and the edges between all of them."""

    levels: list[NumberArray]
    edges: BaseAndDeltaEdges
    truncated: bool

    @property
    def count(self) -> int:
        """Number of nodes."""
        return sum(map(len, self.levels))


def traverse_rows_breadth_first(
    rows: RowsSnapshot, wanted: TraversalRequest, allowed: int | None = None
) -> TraversalLevelsByNodeNumber:
    """Traverse the rows of one snapshot breadth-first. An unknown start reaches nothing.

    Raises TraversalTooLarge when it meets more than ``allowed`` edges.
    """
    start = rows.number(wanted.start)
    if start < 0 or not _is_valid(rows, start, wanted.valid_at):
        return TraversalLevelsByNodeNumber([], _NOTHING_GATHERED, truncated=False)
    with suppress(_SmallWalkExceeded):
        return _SmallWalk(rows, wanted).run(start)
    return ColumnarGraphTraversal(rows, wanted, allowed).run(start)


def encode_traversal_edges_as_json(rows: RowsSnapshot, found: TraversalLevelsByNodeNumber) -> bytes:
    """Return the edges of a traversal as JSON, the elements of an array."""
    return b",".join(rows.edge_texts(found.edges))


def encode_traversal_nodes_as_json(rows: RowsSnapshot, found: TraversalLevelsByNodeNumber, now: int) -> bytes:
    """Return the nodes of a traversal with their depths as JSON array elements; ``now`` decides on staleness."""
    parts: list[bytes] = []
    for depth, level in enumerate(found.levels):
        end = b',"depth":%d}' % depth
        parts.append((end + b",").join(rows.node_texts(level, now)) + end)
    return b",".join(parts)


def load_traversal_result(rows: RowsSnapshot, found: TraversalLevelsByNodeNumber) -> TraversalResult:
    """Return the result of a traversal with its nodes and edges loaded as rows."""
    nodes = [
        (row, depth)
        for depth, level in enumerate(found.levels)
        for number in level.tolist()
        if (row := rows.node_row(number)) is not None
    ]
    return TraversalResult(nodes, list(rows.rows_of(found.edges)), found.truncated)


class ColumnarGraphTraversal:
    """Graph traversal that processes each level as columns."""

    def __init__(self, rows: RowsSnapshot, wanted: TraversalRequest, allowed: int | None) -> None:
        self._rows = rows
        self._wanted = wanted
        self._remaining_edges = allowed
        types = wanted.relation_types
        self._codes = None if types is None else [rows.base.code(name) for name in types]
        self._dated = wanted.valid_at is not None and rows.has_validity_bounds

    def run(self, start: int) -> TraversalLevelsByNodeNumber:
        """Traverse from a node."""
        wanted = self._wanted
        seen = np.array([start], np.int64)
        levels = [seen]
        truncated = False
        for _ in range(wanted.depth):
            beyond = self._unseen_neighbors(levels[-1], seen)
            room = wanted.max_nodes - len(seen)
            truncated = len(beyond) > room
            level = self._rows.in_order(beyond)[:room] if len(beyond) else beyond
            if not len(level):
                break
            levels.append(level)
            seen = np.sort(np.concatenate((seen, level)))
            if truncated:
                break
        edges, cut = self.between(seen)
        return TraversalLevelsByNodeNumber(levels, edges, truncated or cut)

    def _unseen_neighbors(self, level: NumberArray, seen: NumberArray) -> NumberArray:
        """Return the unseen nodes that edges of a level lead to."""
        ends: list[NumberArray] = []
        if self._wanted.direction != "incoming":
            ends.append(self._rows.edge_endpoints(self.traversed_edges(level, outgoing=True))[1])
        if self._wanted.direction != "outgoing":
            ends.append(self._rows.edge_endpoints(self.traversed_edges(level, outgoing=False))[0])
        found = _distinct(ends[0] if len(ends) == 1 else np.concatenate(ends))
        found = found[~_membership_mask(found, seen)]
        if self._dated and len(found):
            found = found[self._rows.valid_nodes_mask(found, cast("int", self._wanted.valid_at))]
        return found

    def between(self, seen: NumberArray) -> tuple[BaseAndDeltaEdges, bool]:
        """Return the edges between sorted nodes, and True if the result is truncated."""
        # Each edge is found from either end; use the direction with fewer edges, as hubs have many.
        base = self._rows.base
        outgoing = _count_around(base.out_at, seen) <= _count_around(base.in_at, seen)
        found = self.traversed_edges(seen, outgoing=outgoing)
        inside = _membership_mask(self._rows.edge_endpoints(found)[1 if outgoing else 0], seen)
        own = len(found.base)
        base = found.base[inside[:own]]
        base = base if outgoing else np.sort(base)
        changed = [each for each, there in zip(found.changed, inside[own:].tolist(), strict=True) if there]
        if len(base) + len(changed) <= MAX_WALK_EDGES:
            return BaseAndDeltaEdges(base, changed), False
        base = base[:MAX_WALK_EDGES]
        return BaseAndDeltaEdges(base, changed[: MAX_WALK_EDGES - len(base)]), True

    def traversed_edges(self, level: NumberArray, *, outgoing: bool) -> BaseAndDeltaEdges:
        """Return the edges of nodes that the traversal follows."""
        found = self._rows.edges_around(level, outgoing=outgoing)
        self._count(len(found.base) + len(found.changed))
        wanted, base, own = self._wanted, self._rows.base, found.base
        if self._codes is not None:
            own = own[np.isin(base.relation[own], self._codes)]
        if wanted.min_weight is not None:
            own = own[base.weight[own] >= wanted.min_weight]
        if self._dated and base.has_validity_bounds:
            own = own[base.valid_edges_mask(own, cast("int", wanted.valid_at))]
        changed = found.changed
        if wanted.filtered:
            changed = [each for each in changed if wanted.follows(cast("EdgeRow", each[1].row))]
        return BaseAndDeltaEdges(own, changed)

    def _count(self, edges: int) -> None:
        if self._remaining_edges is not None:
            self._remaining_edges -= edges
            if self._remaining_edges < 0:
                raise TraversalTooLarge


class _SmallWalk:
    """Traversal that follows edges one by one. Raises _SmallWalkExceeded if they are too many."""

    def __init__(self, rows: RowsSnapshot, wanted: TraversalRequest) -> None:
        self._rows = rows
        self._wanted = wanted
        self._remaining_edges = MAX_SMALL_TRAVERSAL_EDGES
        types = wanted.relation_types
        self._codes = None if types is None else {rows.base.code(name) for name in types}
        self._valid_at = wanted.valid_at if rows.has_validity_bounds else None
        dated = self._valid_at is not None and rows.base.has_validity_bounds
        self._filters = types is not None or wanted.min_weight is not None or dated
        self._outgoing: dict[int, AdjacentEdges] = {}

    def run(self, start: int) -> TraversalLevelsByNodeNumber:
        wanted = self._wanted
        levels = [[start]]
        seen = {start}
        truncated = False
        for _ in range(wanted.depth):
            beyond = self._unseen_neighbors(levels[-1]) - seen
            if self._valid_at is not None:
                beyond = self._rows.filter_valid_nodes(beyond, self._valid_at)
            room = wanted.max_nodes - len(seen)
            truncated = len(beyond) > room
            level = self._rows.some_in_order(beyond)[:room]
            if not level:
                break
            levels.append(level)
            seen.update(level)
            if truncated:
                break
        return TraversalLevelsByNodeNumber(
            [np.array(level) for level in levels], self._between(levels, seen), truncated
        )

    def _unseen_neighbors(self, level: list[int]) -> set[int]:
        found: set[int] = set()
        direction = self._wanted.direction
        for node in level:
            if direction != "incoming":
                self._add_ends(found, self._outgoing_edges(node))
            if direction != "outgoing":
                self._add_ends(found, self._followed_edges(node, outgoing=False))
        return found

    @staticmethod
    def _add_ends(found: set[int], edges: AdjacentEdges) -> None:
        found.update(edges.ends)
        if edges.changed:
            found.update(end for _, end, _ in edges.changed)

    def _between(self, levels: list[list[int]], seen: set[int]) -> BaseAndDeltaEdges:
        base: list[int] = []
        changed: list[tuple[int, RowVersion]] = []
        for level in levels:
            for node in level:
                edges = self._outgoing_edges(node)
                base += [number for number, end in zip(edges.numbers, edges.ends, strict=True) if end in seen]
                changed += [(number, version) for number, end, version in edges.changed if end in seen]
        return BaseAndDeltaEdges(np.array(base, np.int64), changed)

    def _outgoing_edges(self, node: int) -> AdjacentEdges:
        found = self._outgoing.get(node)
        if found is None:
            found = self._outgoing[node] = self._followed_edges(node, outgoing=True)
        return found

    def _followed_edges(self, node: int, *, outgoing: bool) -> AdjacentEdges:
        """Return the edges of a node that the traversal follows."""
        wanted = self._wanted
        if self._rows.base.degree(node, outgoing=outgoing) > self._remaining_edges:
            raise _SmallWalkExceeded
        found = self._rows.edges_of(node, outgoing=outgoing)
        self._remaining_edges -= len(found.numbers) + len(found.changed)
        if self._remaining_edges < 0:
            raise _SmallWalkExceeded
        return self._filter_edges(found) if self._filters or (found.changed and wanted.filtered) else found

    def _filter_edges(self, edges: AdjacentEdges) -> AdjacentEdges:
        wanted, base = self._wanted, self._rows.base
        own = zip(edges.numbers, edges.ends, strict=True)
        if (codes := self._codes) is not None:
            own = [each for each in own if base.relations[each[0]] in codes]
        if (least := wanted.min_weight) is not None:
            own = [each for each in own if base.weights[each[0]] >= least]
        if (moment := self._valid_at) is not None and base.has_validity_bounds:
            own = [each for each in own if base.is_edge_valid_at(each[0], moment)]
        numbers, ends = zip(*own, strict=True) if (own := [*own]) else ((), ())
        return AdjacentEdges(
            numbers, ends, [each for each in edges.changed if wanted.follows(cast("EdgeRow", each[2].row))]
        )


def _is_valid(rows: RowsSnapshot, node: int, moment: int | None) -> bool:
    return moment is None or not rows.has_validity_bounds or rows.is_node_valid_at(node, moment)


def _count_around(starts: NumberArray, nodes: NumberArray) -> int:
    """Return the number of edges of nodes in a base, given the column of list starts."""
    own = nodes[nodes < len(starts) - 1]
    return int((starts[own + 1].astype(np.int64) - starts[own]).sum())


def _distinct(numbers: NumberArray) -> NumberArray:
    """Return the sorted distinct numbers; np.unique would hash them, which takes ten times as long."""
    found = np.sort(numbers)
    return found[np.flatnonzero(np.diff(found, prepend=-1))]


def _membership_mask(numbers: NumberArray, some: NumberArray) -> NumberArray:
    """Return which numbers are in ``some``, which is sorted and not empty."""
    places = np.searchsorted(some, numbers)
    places[places == len(some)] = 0
    return some[places] == numbers


_NOTHING_GATHERED = BaseAndDeltaEdges(np.empty(0, np.int64), [])
