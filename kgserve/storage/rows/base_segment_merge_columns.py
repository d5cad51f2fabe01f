"""Changed rows to merge into a base segment, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, edge_created_at
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import MAX_INT64, MIN_INT64, NumberArray
from kgserve.storage.rows.row_json_encoder import (
    compute_edge_extras_flags,
    compute_node_extras_flags,
    encode_edge_as_json,
    encode_node_as_unclosed_json,
)
from kgserve.storage.rows.suffix_dictionary import RemovedRowTextSuffixes


class NodeRowForBaseSegment(msgspec.Struct, frozen=True, gc=False):
    """Node row to merge into a base segment, its number there or -1, and its JSON if already encoded."""

    row: NodeRow
    number: int = -1
    data: bytes | None = None


class EdgeRowForBaseSegment(msgspec.Struct, frozen=True, gc=False):
    """Edge row to merge into a base segment, its number there or -1, and its JSON if already encoded."""

    row: EdgeRow
    number: int = -1
    data: bytes | None = None


class RowChangesForBaseSegment(msgspec.Struct):
    """Changes to merge into a base segment, as rows: new and updated ones, and the numbers of deleted ones."""

    nodes: list[NodeRowForBaseSegment]
    edges: list[EdgeRowForBaseSegment]
    nodes_gone: list[int]
    edges_gone: list[int]
    linked: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there are no changes of rows."""
        return not (self.nodes or self.edges or self.nodes_gone or self.edges_gone)


class NodeColumnsToMerge(NamedTuple):
    """Columns of nodes to merge into a base segment, sorted by id: their numbers there or -1, and open JSON.

    suffixes: what was removed from the ends of the texts; None if that is still to be done.

    bounds: validity bounds of the nodes that have any, with their index.
    """

    ids: list[bytes]
    numbers: NumberArray
    texts: list[bytes]
    flags: NumberArray
    suffixes: RemovedRowTextSuffixes | None = None
    bounds: Sequence[tuple[int, int, int]] = ()


class EdgeColumnsForSegmentMerge(NamedTuple):
    """Columns of edges to merge into a base segment, in any order: their numbers there or -1, keys, and JSON.

    source, target: number of a node in the base, or ``~index`` of a node in the `NodeColumnsToMerge`.

    relation: index in ``names``.

    bounds, ordinals: values of the edges that have any, with their index.
    """

    numbers: NumberArray
    source: NumberArray
    target: NumberArray
    relation: NumberArray
    names: list[str]
    weight: NumberArray
    created: NumberArray
    texts: list[bytes]
    flags: NumberArray
    suffixes: RemovedRowTextSuffixes | None = None
    bounds: Sequence[tuple[int, int, int]] = ()
    ordinals: Sequence[tuple[int, int]] = ()


class RowColumnsToMerge(NamedTuple):
    """Changes to merge into a base segment, as columns: new and updated rows, and the numbers of deleted ones."""

    nodes: NodeColumnsToMerge
    edges: EdgeColumnsForSegmentMerge
    nodes_gone: Sequence[int] = ()
    edges_gone: Sequence[int] = ()
    linked: bool = False


def convert_row_changes_to_merge_columns(
    base: MappedRowBaseSegment, changes: RowChangesForBaseSegment
) -> RowColumnsToMerge:
    """Convert row changes to merge into a base segment into columns."""
    keyed = sorted(((put.row.id.encode(), put) for put in changes.nodes), key=itemgetter(0))
    nodes = [put for _, put in keyed]
    return RowColumnsToMerge(
        NodeColumnsToMerge(
            [key for key, _ in keyed],
            np.array([put.number for put in nodes], np.int64),
            [put.data or encode_node_as_unclosed_json(put.row) for put in nodes],
            np.array([compute_node_extras_flags(put.row.extras) for put in nodes], np.uint8),
            bounds=_bounds([put.row for put in nodes]),
        ),
        _edge_columns(base, changes.edges, {put.row.id: ~at for at, put in enumerate(nodes)}),
        changes.nodes_gone,
        changes.edges_gone,
        changes.linked,
    )


def _edge_columns(
    base: MappedRowBaseSegment, puts: list[EdgeRowForBaseSegment], places: dict[str, int]
) -> EdgeColumnsForSegmentMerge:
    """Return the columns of edges; ``places`` are the new nodes, as `EdgeColumnsForSegmentMerge` refers to them."""
    # Columns are read in the order of the rows, which is their order in memory.
    rows = [put.row for put in puts]
    sources, targets = [row.source for row in rows], [row.target for row in rows]
    ends = {*sources, *targets}
    places = {end: base.number(end) if (place := places.get(end)) is None else place for end in ends}
    names = list(dict.fromkeys(row.relation_type for row in rows))
    codes = {name: code for code, name in enumerate(names)}
    return EdgeColumnsForSegmentMerge(
        np.array([put.number for put in puts], np.int64),
        np.array([places[each] for each in sources], np.int64),
        np.array([places[each] for each in targets], np.int64),
        np.array([codes[row.relation_type] for row in rows], np.int64),
        names,
        np.array([row.weight for row in rows], np.float64),
        np.array([edge_created_at(row) for row in rows], np.int64),
        [put.data or encode_edge_as_json(put.row) for put in puts],
        np.array([compute_edge_extras_flags(row.extras) for row in rows], np.uint8),
        bounds=_bounds(rows),
        ordinals=[
            (at, row.extras.ordinal)
            for at, row in enumerate(rows)
            if row.extras is not None and row.extras.ordinal is not None
        ],
    )


def _bounds(rows: Sequence[NodeRow | EdgeRow]) -> list[tuple[int, int, int]]:
    """Return the validity bounds of the rows that have any, with their index."""
    having = ((at, row.extras) for at, row in enumerate(rows) if row.extras is not None)
    return [
        (at, _value_or(extras.valid_from, MIN_INT64), _value_or(extras.valid_to, MAX_INT64))
        for at, extras in having
        if extras.valid_from is not None or extras.valid_to is not None
    ]


def _value_or(value: int | None, default: int) -> int:
    return default if value is None else value
