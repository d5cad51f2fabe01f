"""Rows from columns of values, as the engine and snapshots hold them: the fields in order, then the extras' in order.

Who wrote the extras tells whether there are any: None where there are none. Columns of extras may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from kgserve.model.fields import AUTHOR, EDGE, NO_EDGE_EXTRAS, NO_EXTRAS, NODE, EdgeExtras, Fields, NodeExtras, names

NODE_FIELDS, EDGE_FIELDS = len(NODE.plain), len(EDGE.plain)
NODE_EXTRAS, EDGE_EXTRAS = names(NODE.extras), names(EDGE.extras)

RowTuple = tuple[Any, ...]
"""The fields of a row in order; its extras may be left out when there are none."""

_AUTHOR_OF_NODE, _AUTHOR_OF_EDGE = NODE_EXTRAS.index(AUTHOR), EDGE_EXTRAS.index(AUTHOR)
_astuple = msgspec.structs.astuple
_NONE, _NONE_OF_EDGE = _astuple(NO_EXTRAS), _astuple(NO_EDGE_EXTRAS)


def node_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Nodes; times are microseconds."""
    return _tuples(columns, NODE, _AUTHOR_OF_NODE, node_extras)


def edge_tuples(columns: Sequence[Sequence[Any]]) -> Iterable[RowTuple]:
    """Edges; times are microseconds."""
    return _tuples(columns, EDGE, _AUTHOR_OF_EDGE, edge_extras)


def node_extras(values: Sequence[Any]) -> NodeExtras | None:
    """The extras of one node, or None."""
    return None if values[_AUTHOR_OF_NODE] is None else NodeExtras(*_filled(values, _NONE))


def edge_extras(values: Sequence[Any]) -> EdgeExtras | None:
    """The extras of one edge, or None."""
    return None if values[_AUTHOR_OF_EDGE] is None else EdgeExtras(*_filled(values, _NONE_OF_EDGE))


def node_values(row: RowTuple) -> RowTuple:
    """The inverse of `node_tuples` for one row: its fields and those of its extras."""
    extras: NodeExtras | None = row[NODE_FIELDS] if len(row) > NODE_FIELDS else None
    return (*row[:NODE_FIELDS], *(_NO_NODE_EXTRAS if extras is None else stored_node_extras(extras)))


def edge_values(row: RowTuple) -> RowTuple:
    """As `node_values`, of an edge."""
    extras: EdgeExtras | None = row[EDGE_FIELDS] if len(row) > EDGE_FIELDS else None
    return (*row[:EDGE_FIELDS], *(_NO_EDGE_EXTRAS if extras is None else stored_edge_extras(extras)))


def stored_node_extras(extras: NodeExtras) -> list[Any]:
    """What stands in the columns of extras: nothing for empty texts and lists, but for who wrote them."""
    return _stored(extras, _AUTHOR_OF_NODE)


def stored_edge_extras(extras: EdgeExtras) -> list[Any]:
    """As `stored_node_extras`, of an edge."""
    return _stored(extras, _AUTHOR_OF_EDGE)


_NO_NODE_EXTRAS = (None,) * len(NODE_EXTRAS)
_NO_EDGE_EXTRAS = (None,) * len(EDGE_EXTRAS)


def _stored(extras: NodeExtras | EdgeExtras, author: int) -> list[Any]:
    values: list[Any] = [None if value in ("", ()) else value for value in _astuple(extras)]
    values[author] = extras.created_by
    return values


def _filled(values: Sequence[Any], empty: tuple[Any, ...]) -> Iterator[Any]:
    """The inverse of `_stored`; lists become tuples."""
    for value, none in zip(values, empty, strict=True):
        yield none if value is None else tuple(value) if none == () else value


def _tuples(
    columns: Sequence[Sequence[Any]], fields: Fields, author: int, extras_of: Callable[[Sequence[Any]], Any]
) -> Iterable[RowTuple]:
    plain, extras = columns[: len(fields.plain)], columns[len(fields.plain) :]
    if len(extras) != len(fields.extras) or _all_none(extras[author]):
        return zip(*plain, strict=True)
    return _joined(plain, map(extras_of, zip(*extras, strict=True)))


def _joined(plain: Sequence[Sequence[Any]], extras: Iterable[Any]) -> Iterator[RowTuple]:
    return ((*row, more) for row, more in zip(zip(*plain, strict=True), extras, strict=True))


def _all_none(column: Sequence[Any]) -> bool:
    return column.count(None) == len(column)
