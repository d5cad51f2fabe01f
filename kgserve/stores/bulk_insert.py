"""Bulk insert: many new rows as one commit, planned by columns and merged into the next base at once.

It applies to plain rows that the store does not have. All others are left to `kgserve.storage.write_planner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple, Self, cast

import msgspec
import numpy as np
from typing_extensions import override

from kgserve.storage.model.change_set import ChangeSet, PackedChangeSet, StoreState
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON
from kgserve.storage.model.store_rows_digest import add_packed_rows_to_digest
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.base_segment_merge_columns import RowColumnsToMerge
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.new_row_columns import (
    CommitStamp,
    NewEdgeColumns,
    NewNodeColumns,
    build_new_edge_columns,
    build_new_node_columns,
    encode_new_edges_as_messagepack,
    encode_new_nodes_as_messagepack,
)
from kgserve.storage.write_planner import (
    MAX_REPORTED_ROWS,
    UnwrittenRequestRow,
    WriteReport,
    choose_commit_time,
    describe_missing_endpoints,
)
from kgserve.stores.writer_thread import PlannedWrite


class RowsWithoutOptionalFields(NamedTuple):
    """Checked rows without optional fields, each key at most once. ``None`` keeps the stored value.

    The positions are those in the request. ``cost`` is about how many bytes of memory the rows take.
    """

    node_positions: Sequence[int]
    ids: list[str]
    types: list[str]
    contents: list[str | None]
    attributes: list[str | None]
    edge_positions: Sequence[int]
    sources: list[str]
    targets: list[str]
    relation_types: list[str]
    weights: list[float | None]
    cost: int

    def to_batch(self) -> WriteBatch:
        """Return the same rows as a batch."""
        edges = zip(self.sources, self.targets, self.relation_types, strict=True)
        return WriteBatch(
            nodes=[*map(NodeUpsert, self.node_positions, self.ids, self.types, self.contents, self.attributes)],
            edges=[*map(EdgeUpsert, self.edge_positions, edges, self.weights)],
            touch=False,
            partial=True,
            cost=self.cost,
        )


class _InsertedEdges(NamedTuple):
    """Edges between existing and new nodes, with their ends as in `EdgeColumnsForSegmentMerge`, and the other edges."""

    rows: NewEdgeColumns
    source: NumberArray
    target: NumberArray
    skipped: list[UnwrittenRequestRow]

    @classmethod
    def found(cls, base: MappedRowBaseSegment, places: dict[str, int], plain: RowsWithoutOptionalFields) -> Self:
        """Look the ends of edges up; ``places`` are the new nodes, as `EdgeColumnsForSegmentMerge` refers to them."""
        columns: list[list[Any]] = [plain.sources, plain.targets, plain.relation_types]
        columns.append(_with_default(plain.weights, 1.0))
        others = [*{*plain.sources, *plain.targets} - places.keys()]
        numbers = base.find_numbers(others).tolist()
        places = places | {end: number for end, number in zip(others, numbers, strict=True) if number >= 0}
        skipped: list[UnwrittenRequestRow] = []
        if -1 in numbers:
            keys = [*zip(*columns[:3], strict=True)]
            stays = [source in places and target in places for source, target, _ in keys]
            columns = [[*compress(column, stays)] for column in columns]
            skipped = [
                UnwrittenRequestRow(at, "edge", describe_missing_endpoints(key[:2], places), key)
                for at, key, stay in zip(plain.edge_positions, keys, stays, strict=True)
                if not stay
            ]
        count = len(columns[0])
        source, target = (np.fromiter(map(places.__getitem__, column), np.int64, count) for column in columns[:2])
        return cls(NewEdgeColumns(*columns), source, target, skipped)

    def any_exists(self, base: MappedRowBaseSegment) -> bool:
        """Return True if the base has any of the edges."""
        known = np.flatnonzero((self.source >= 0) & (self.target >= 0))
        if not (base.edges and len(known)):
            return False
        own = (base.source.astype(np.int64) << 32) | base.target
        asked = (self.source[known] << 32) | self.target[known]
        places = np.minimum(np.searchsorted(own, asked), len(own) - 1)
        joined = known[own[places] == asked].tolist()
        names = [*self.rows.relation_types]
        return any(base.edge_number(int(self.source[at]), int(self.target[at]), names[at]) >= 0 for at in joined)


class PlannedBulkInsert(PlannedWrite):
    """Planned commit of a bulk insert, relative to a base segment with all current rows."""

    def __init__(
        self,
        rows: CurrentRowsProjection,
        base: MappedRowBaseSegment,
        nodes: NewNodeColumns,
        order: list[int],
        edges: _InsertedEdges,
        cost: int,
    ) -> None:
        """Prefer `plan_bulk_insert_of_new_rows`; ``order`` sorts the nodes by id."""
        self._rows, self._base = rows, base
        self._nodes, self._order, self._edges = nodes, order, edges
        self._cost = cost

    @property
    @override
    def cost(self) -> int:
        return self._cost

    @override
    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, WriteReport]:
        stamp = CommitStamp(state.sequence + 1, choose_commit_time(now, state.time))
        nodes, edges = (
            encode_new_nodes_as_messagepack(self._nodes, stamp),
            encode_new_edges_as_messagepack(self._edges.rows, stamp),
        )
        skipped = self._edges.skipped
        change = PackedChangeSet(
            sequence=stamp.sequence,
            time=stamp.time,
            nodes_created=cast("Any", [*map(msgspec.Raw, nodes)]),
            edges_created=cast("Any", [*map(msgspec.Raw, edges)]),
            digest=add_packed_rows_to_digest(add_packed_rows_to_digest(state.digest, nodes), edges).to_bytes(16),
            nodes=state.nodes + len(nodes),
            edges=state.edges + len(edges),
        )
        report = WriteReport(
            nodes_created=len(nodes),
            edges_created=len(edges),
            skipped=skipped[:MAX_REPORTED_ROWS],
            skipped_count=len(skipped),
            sequence=stamp.sequence,
        )
        return change, report

    @override
    def show(self, change: ChangeSet) -> None:
        stamp = CommitStamp(change.sequence, change.time)
        rows, source, target, _ = self._edges
        columns = RowColumnsToMerge(
            build_new_node_columns(self._nodes, self._order, stamp),
            build_new_edge_columns(rows, source, target, stamp),
        )
        self._rows.apply_new(change, self._base, columns)


def plan_bulk_insert_of_new_rows(
    projection: CurrentRowsProjection, plain: RowsWithoutOptionalFields
) -> PlannedBulkInsert | None:
    """Plan a bulk insert of rows that the store does not have; None if it has any, or if there are too few.

    Edges to missing nodes are left out. For the writer thread, in a store without a kind whitelist and without versions
    of deleted nodes.
    """
    ids, rows = plain.ids, projection.rows()
    if not projection.is_bulk(len(ids) + len(plain.sources)):
        return None
    if rows.has_merges or MERGED_INTO_RELATION in plain.relation_types:
        return None
    if (rows.base.find_numbers(ids) >= 0).any() or not rows.delta.node_numbers.keys().isdisjoint(ids):
        return None
    if not projection.merge_delta():
        return None
    base = projection.rows().base
    # Python compares texts by code points, which is the order of their UTF-8.
    order = sorted(range(len(ids)), key=ids.__getitem__)
    places = dict(zip((ids[at] for at in order), range(-1, -len(ids) - 1, -1), strict=True))
    edges = _InsertedEdges.found(base, places, plain)
    if not (ids or edges.rows.sources) or edges.any_exists(base):
        return None
    nodes = NewNodeColumns(
        ids,
        plain.types,
        _with_default(plain.contents, ""),
        _with_default(plain.attributes, EMPTY_ATTRIBUTES_JSON),
    )
    return PlannedBulkInsert(projection, base, nodes, order, edges, plain.cost)


def _with_default(values: list[Any], default: Any) -> list[Any]:
    return [default if value is None else value for value in values] if None in values else values
