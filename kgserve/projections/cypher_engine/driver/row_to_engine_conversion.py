"""Conversion of row values to engine values, and the column lists of row queries.

A query returns a row's fields, plus its extras if the file has columns for them. A file has these columns only once a
row of the store has extras, because unused columns slow down reads and enlarge the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import msgspec

from kgserve.platform.lazy_pyarrow import pa, parse_arrow_type
from kgserve.platform.timestamps import ONE_MICROSECOND
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    EDGE_ENDPOINTS,
    NODE,
    TIMESTAMP_TYPE,
    NodeEdgeColumnSet,
    RowField,
    get_row_field_names,
)

_NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def microseconds_to_naive_utc(microseconds: int) -> datetime:
    """Return microseconds since the epoch as a naive datetime in UTC, as the engine expects it."""
    return _NAIVE_EPOCH + timedelta(microseconds=microseconds)


def naive_utc_to_microseconds(moment: datetime) -> int:
    """Return the microseconds since the epoch of a naive UTC datetime; the inverse of `microseconds_to_naive_utc`."""
    return (moment - _NAIVE_EPOCH) // ONE_MICROSECOND


def to_arrow_column(field: RowField, values: Sequence[Any]) -> pa.Array:
    """Return an Arrow column of a field's values; times are given in microseconds."""
    if field.type is TIMESTAMP_TYPE:
        return pa.array(values, pa.int64()).cast(TIMESTAMP_TYPE.arrow)
    return pa.array(values, parse_arrow_type(field.type.arrow))


class QueryVariantsByColumnSet(msgspec.Struct, frozen=True):
    """Variants of one query that return the fields of each column set."""

    texts: tuple[LiteralString, ...]

    def text(self, session: PreparedStatementSession) -> LiteralString:
        """Return the query for the column set of the session's file."""
        return self.texts[session.width]


def build_node_queries_by_column_set(before: LiteralString) -> QueryVariantsByColumnSet:
    """Return variants of a query for the fields of the node ``e``, one per column set; ``before`` ends in RETURN."""
    return QueryVariantsByColumnSet(
        tuple(f"{before} {_column_list('e', NODE.columns(width))}" for width in NodeEdgeColumnSet)
    )


def build_edge_queries_by_column_set(before: LiteralString) -> QueryVariantsByColumnSet:
    """Return variants of a query for the fields of the edge ``k``, one per column set."""
    return QueryVariantsByColumnSet(
        tuple(f"{before} {_column_list('k', EDGE.columns(width)[EDGE_ENDPOINTS:])}" for width in NodeEdgeColumnSet)
    )


def _column_list(variable: LiteralString, fields: tuple[RowField, ...]) -> LiteralString:
    return ", ".join(f"{variable}.{name}" for name in get_row_field_names(fields))
