"""Rows to Arrow tables. Column names are short, for they enter the scope of the query that scans them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from kgserve.arrow import pa
from kgserve.model.rows import EdgeExtras, EdgeKey, EdgeRow, NodeExtras, NodeRow

_TIME = "timestamp[us]"
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


def whole_nodes_table(rows: Collection[NodeRow]) -> pa.Table:
    """Columns ``i t c a v s m n u g h b p q k``: the fields of `NodeRow` and of its extras, which each row has."""
    table = nodes_table(rows)
    extras = [row.extras or NodeExtras() for row in rows]
    for name, array in (
        ("u", pa.array([each.summary or None for each in extras], pa.string())),
        ("g", pa.array([each.tags or None for each in extras], pa.list_(pa.string()))),
        ("h", pa.array([each.freshness_at for each in extras], pa.int64()).cast(_TIME)),
        ("b", pa.array([each.created_by for each in extras], pa.string())),
        ("p", pa.array([each.valid_from for each in extras], pa.int64()).cast(_TIME)),
        ("q", pa.array([each.valid_to for each in extras], pa.int64()).cast(_TIME)),
        ("k", pa.array([each.conflicts or None for each in extras], pa.list_(pa.int64()))),
    ):
        table = table.append_column(name, array)
    return table


def whole_edges_table(rows: Collection[EdgeRow]) -> pa.Table:
    """Columns ``f o r w a v s d b p q``: the fields of `EdgeRow` and of its extras, which each row has."""
    table = edges_table(rows)
    extras = [row.extras or EdgeExtras() for row in rows]
    for name, array in (
        ("d", pa.array([each.ordinal for each in extras], pa.int64())),
        ("b", pa.array([each.created_by for each in extras], pa.string())),
        ("p", pa.array([each.valid_from for each in extras], pa.int64()).cast(_TIME)),
        ("q", pa.array([each.valid_to for each in extras], pa.int64()).cast(_TIME)),
    ):
        table = table.append_column(name, array)
    return table


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
