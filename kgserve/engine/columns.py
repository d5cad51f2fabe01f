"""Rows to Arrow tables and back. Column names are short, for they enter the scope of the query that scans them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import starmap
from typing import Any

import pyarrow as pa

from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow

_TIME = pa.timestamp("us")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)


def engine_time(microseconds: int) -> datetime:
    """A time as the engine takes it: without time zone, in UTC."""
    return _NAIVE_EPOCH + timedelta(microseconds=microseconds)


def microseconds(moment: datetime) -> int:
    """The inverse of `engine_time`."""
    return (moment - _NAIVE_EPOCH) // _MICROSECOND


def ids_table(ids: Iterable[str]) -> pa.Table:
    """One column ``i``."""
    return pa.table({"i": pa.array(ids, pa.string())})


def nodes_table(rows: Collection[NodeRow]) -> pa.Table:
    """Columns ``i t c a v s m n``: the fields of `NodeRow` in order."""
    return pa.table(
        {
            "i": pa.array([row.id for row in rows], pa.string()),
            "t": pa.array([row.type for row in rows], pa.string()),
            "c": pa.array([row.content for row in rows], pa.string()),
            "a": pa.array([row.attributes for row in rows], pa.string()),
            "v": pa.array([row.version for row in rows], pa.int64()),
            "s": pa.array([row.sequence for row in rows], pa.int64()),
            "m": pa.array([row.created_at for row in rows], pa.int64()).cast(_TIME),
            "n": pa.array([row.updated_at for row in rows], pa.int64()).cast(_TIME),
        }
    )


def edges_table(rows: Collection[EdgeRow]) -> pa.Table:
    """Columns ``f o r w a v s``: the fields of `EdgeRow` in order."""
    return pa.table(
        {
            "f": pa.array([row.source for row in rows], pa.string()),
            "o": pa.array([row.target for row in rows], pa.string()),
            "r": pa.array([row.relation_type for row in rows], pa.string()),
            "w": pa.array([row.weight for row in rows], pa.float64()),
            "a": pa.array([row.attributes for row in rows], pa.string()),
            "v": pa.array([row.version for row in rows], pa.int64()),
            "s": pa.array([row.sequence for row in rows], pa.int64()),
        }
    )


def keys_table(keys: Collection[EdgeKey]) -> pa.Table:
    """Columns ``f o r``: the keys of edges."""
    columns = zip(*keys, strict=True)
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip("for", columns, strict=True)})


def node_row(values: list[Any]) -> NodeRow:
    """A node from the values of one result row, in the order of the fields."""
    node_id, node_type, content, attributes, version, sequence, created, updated = values
    return NodeRow(
        node_id, node_type, content, attributes, version, sequence, microseconds(created), microseconds(updated)
    )


def edge_row(values: list[Any]) -> EdgeRow:
    """An edge from the values of one result row, in the order of the fields."""
    return EdgeRow(*values)


def node_rows(table: pa.Table) -> Iterator[NodeRow]:
    """Nodes from an Arrow table whose columns are the fields in order."""
    return starmap(NodeRow, zip(*map(_values, table.columns), strict=True))


def edge_rows(table: pa.Table) -> Iterator[EdgeRow]:
    """Edges from an Arrow table whose columns are the fields in order."""
    return starmap(EdgeRow, zip(*map(_values, table.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
