"""Rows from columns of values, as the engine and snapshots hold them: the fields in order, then the extras' in order.

Who wrote the extras tells whether there are any: None where there are none. Columns of extras may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kgserve.model.rows import EdgeExtras, EdgeRow, NodeExtras, NodeRow

NODE_FIELDS = len(NodeRow.__struct_fields__) - 1
EDGE_FIELDS = len(EdgeRow.__struct_fields__) - 1
NODE_EXTRAS = NodeExtras.__struct_fields__
EDGE_EXTRAS = EdgeExtras.__struct_fields__
_AUTHOR_OF_NODE = NODE_EXTRAS.index("created_by")
_AUTHOR_OF_EDGE = EDGE_EXTRAS.index("created_by")

RowTuple = tuple[Any, ...]
"""The fields of a row in order; its extras may be left out when there are none."""


def node_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Nodes; times are microseconds."""
    plain, extras = columns[:NODE_FIELDS], columns[NODE_FIELDS:]
    if len(extras) != len(NODE_EXTRAS) or _all_none(extras[_AUTHOR_OF_NODE]):
        return zip(*plain, strict=True)
    return _joined(plain, map(node_extras, zip(*extras, strict=True)))


def edge_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Edges; times are microseconds."""
    plain, extras = columns[:EDGE_FIELDS], columns[EDGE_FIELDS:]
    if len(extras) != len(EDGE_EXTRAS) or _all_none(extras[_AUTHOR_OF_EDGE]):
        return zip(*plain, strict=True)
    return _joined(plain, map(edge_extras, zip(*extras, strict=True)))


def node_extras(values: Sequence[Any]) -> NodeExtras | None:
    """The extras of one node, or None."""
    summary, tags, freshness_at, author, valid_from, valid_to, conflicts = values
    if author is None:
        return None
    return NodeExtras(
        summary or "", tuple(tags or ()), freshness_at, author, valid_from, valid_to, tuple(conflicts or ())
    )


def edge_extras(values: Sequence[Any]) -> EdgeExtras | None:
    """The extras of one edge, or None."""
    return None if values[_AUTHOR_OF_EDGE] is None else EdgeExtras(*values)


def node_values(row: RowTuple) -> RowTuple:
    """The inverse of `node_tuples` for one row: its fields and those of its extras."""
    extras: NodeExtras | None = row[NODE_FIELDS] if len(row) > NODE_FIELDS else None
    if extras is None:
        return (*row[:NODE_FIELDS], *_NO_NODE_EXTRAS)
    return (
        *row[:NODE_FIELDS],
        extras.summary or None,
        extras.tags or None,
        extras.freshness_at,
        extras.created_by,
        extras.valid_from,
        extras.valid_to,
        extras.conflicts or None,
    )


def edge_values(row: RowTuple) -> RowTuple:
    """As `node_values`, of an edge."""
    extras: EdgeExtras | None = row[EDGE_FIELDS] if len(row) > EDGE_FIELDS else None
    if extras is None:
        return (*row[:EDGE_FIELDS], *_NO_EDGE_EXTRAS)
    return (*row[:EDGE_FIELDS], extras.ordinal, extras.created_by, extras.valid_from, extras.valid_to)


_NO_NODE_EXTRAS = (None,) * len(NODE_EXTRAS)
_NO_EDGE_EXTRAS = (None,) * len(EDGE_EXTRAS)


def _joined(plain: Sequence[Sequence[Any]], extras: Iterable[Any]) -> Iterator[RowTuple]:
    return ((*row, more) for row, more in zip(zip(*plain, strict=True), extras, strict=True))


def _all_none(column: Sequence[Any]) -> bool:
    return column.count(None) == len(column)
