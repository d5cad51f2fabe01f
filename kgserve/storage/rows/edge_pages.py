"""Pages of one node's edges in display order, reading only the edges of the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import cast

import numpy as np

from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, edge_created_at
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import MAX_INT64, NumberArray
from kgserve.storage.rows.row_delta import BaseAndDeltaEdges, encode_edge_version
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

EdgeSortKey = Callable[[NumberArray], NumberArray]
"""Sort key: maps positions in the list of edges to values."""


def filter_edges_by_type(rows: RowsSnapshot, found: BaseAndDeltaEdges, kinds: Collection[str]) -> BaseAndDeltaEdges:
    """Return the edges whose relation type is one of ``kinds``; all edges if it is empty."""
    if not kinds:
        return found
    relations = rows.base.relation[found.base]
    codes = {rows.base.code(kind) for kind in kinds}
    own = found.base[np.logical_or.reduce([relations == code for code in codes])]
    return BaseAndDeltaEdges(
        own, [each for each in found.changed if cast("EdgeRow", each[1].row).relation_type in kinds]
    )


def incoming_edges_of_type(rows: RowsSnapshot, node_id: str, kind: str) -> list[EdgeRow]:
    """Return a node's incoming edges of a relation type; of other edges only the type is read."""
    number = rows.number(node_id)
    if number < 0:
        return []
    return [*rows.rows_of(filter_edges_by_type(rows, rows.edges_around(np.array([number]), outgoing=False), (kind,)))]


def exclude_edges_of_types(rows: RowsSnapshot, found: BaseAndDeltaEdges, kinds: Collection[str]) -> BaseAndDeltaEdges:
    """Return the edges whose relation type is none of ``kinds``."""
    relations = rows.base.relation[found.base]
    own = found.base[~np.isin(relations, [rows.base.code(kind) for kind in kinds])]
    return BaseAndDeltaEdges(
        own, [each for each in found.changed if cast("EdgeRow", each[1].row).relation_type not in kinds]
    )


def filter_edges_by_min_weight(rows: RowsSnapshot, found: BaseAndDeltaEdges, least: float) -> BaseAndDeltaEdges:
    """Return the edges with at least a weight."""
    own = found.base[rows.base.weight[found.base] >= least]
    return BaseAndDeltaEdges(own, [each for each in found.changed if cast("EdgeRow", each[1].row).weight >= least])


def filter_valid_edges(
    rows: RowsSnapshot, found: BaseAndDeltaEdges, moment: int, *, outgoing: bool
) -> BaseAndDeltaEdges:
    """Return the edges of one valid node that are valid at a valid time, and whose other ends are.

    Same result as `RowsSnapshot.filter_valid` at half the cost.
    """
    valid_edges = rows.filter_valid_edges(found, moment)
    own, changed = valid_edges.base, valid_edges.changed
    ends = (rows.base.target if outgoing else rows.base.source)[own].astype(np.int64)
    others = np.array([rows.delta.edge_endpoints(number)[1 if outgoing else 0] for number, _ in changed], np.int64)
    there = rows.valid_nodes_mask(others, moment).tolist()
    own = own[rows.valid_nodes_mask(ends, moment)]
    return BaseAndDeltaEdges(own, [each for each, holds in zip(changed, there, strict=True) if holds])


def encode_page_of_edges(
    rows: RowsSnapshot, found: BaseAndDeltaEdges, start: int, limit: int
) -> tuple[list[bytes], bool]:
    """Return a page of one node's edges as JSON, and True if more follow.

    Order: ordinal, edges without one last; then creation time and key. Every edge is examined, as columns.
    """
    if not start and len(found) <= limit:
        if not found.changed:
            base, own = rows.base, found.base
            order = np.lexsort((own, base.created[own], base.ordinals(own))) if len(own) > 1 else slice(None)
            return rows.edge_texts(BaseAndDeltaEdges(own[order], [])), False
        if not len(found.base):
            in_order = sorted(found.changed, key=lambda each: _edge_sort_key(cast("EdgeRow", each[1].row)))
            return [encode_edge_version(version) for _, version in in_order], False
    own, changed = found.base, [cast("EdgeRow", version.row) for _, version in found.changed]
    count = len(own)

    def joined(
        places: NumberArray, of_base: Callable[[NumberArray], NumberArray], of_row: Callable[[int], int]
    ) -> NumberArray:
        if not changed:
            return of_base(own[places])
        behind = places[places >= count]
        ahead = of_base(own[places[places < count]])
        return np.concatenate((ahead, np.array([of_row(at - count) for at in behind.tolist()], np.int64)))

    def ordinals(places: NumberArray) -> NumberArray:
        return joined(places, rows.base.ordinals, lambda at: _ordinal(changed[at]))

    def ages(places: NumberArray) -> NumberArray:
        return joined(places, rows.base.created.__getitem__, lambda at: edge_created_at(changed[at]))

    def spots(places: NumberArray) -> NumberArray:
        return joined(
            places, lambda own: 2 * own + 1, lambda at: _rank_in_base(rows.base, found.changed[at][0], changed[at])
        )

    def ranks(places: NumberArray) -> NumberArray:
        # Several new edges may sort between the same two of the base.
        order = sorted((changed[at - count].key, at) for at in places[places >= count].tolist())
        rank = {at: number for number, (_, at) in enumerate(order)}
        return joined(places, np.zeros_like, lambda at: rank[at + count])

    chosen = partially_sort_rank_range(
        (ordinals, ages, spots, ranks), np.arange(len(found)), start, start + limit
    ).tolist()
    texts = [
        rows.base.edge(int(own[at])) if at < count else encode_edge_version(found.changed[at - count][1])
        for at in chosen
    ]
    return texts, start + limit < len(found)


def _rank_in_base(base: MappedRowBaseSegment, number: int, row: EdgeRow) -> int:
    """Return the rank of an edge on a scale where edges of the base have odd ranks."""
    return 2 * number + 1 if number < base.edges else 2 * base.place(row.key)


def partially_sort_rank_range(keys: Sequence[EdgeSortKey], places: NumberArray, start: int, end: int) -> NumberArray:
    """Return the positions with ranks ``start`` to ``end`` in the order of ``keys``; only that range is sorted.

    Only that range is sorted, and later keys are evaluated only for ties.
    """
    end = min(end, len(places))
    if start >= end:
        return places[:0]
    if not keys:
        return places[start:end]
    values = keys[0](places)
    parted = np.partition(values, (start, end - 1))
    low, high = parted[start], parted[end - 1]
    below = int(np.count_nonzero(values < low))
    first, last = places[values == low], places[values == high]
    if low == high:
        return partially_sort_rank_range(keys[1:], first, start - below, end - below)
    between = places[(values > low) & (values < high)]
    between = between[np.lexsort([key(between) for key in reversed(keys)])]
    return np.concatenate(
        (
            partially_sort_rank_range(keys[1:], first, start - below, len(first)),
            between,
            partially_sort_rank_range(keys[1:], last, 0, end - below - len(first) - len(between)),
        )
    )


def _edge_sort_key(row: EdgeRow) -> tuple[int, int, EdgeKey]:
    return _ordinal(row), edge_created_at(row), row.key


def _ordinal(row: EdgeRow) -> int:
    ordinal = row.extras.ordinal if row.extras is not None else None
    return MAX_INT64 if ordinal is None else ordinal
