"""Values of rows as the engine takes them, alone and in columns, and which columns a query of rows returns.

A query returns the fields of a row, and its extras where the file has columns for them. Columns that nobody uses are
not free: seven and four more, all null, cost reads a fifth, the engine's log a third and the building of a file two
thirds of what they take without. So a file has them only once a row of its store has extras.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import msgspec

from kgserve.platform.lazy_pyarrow import arrow_type, pa
from kgserve.platform.times import ONE_MICROSECOND
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.storage.model.fields import EDGE, EDGE_ENDPOINTS, NODE, TIMESTAMP_TYPE, ColumnSet, Field, names

_NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def engine_time(microseconds: int) -> datetime:
    """A time as the engine takes it: without time zone, in UTC."""
    return _NAIVE_EPOCH + timedelta(microseconds=microseconds)


def microseconds(moment: datetime) -> int:
    """The inverse of `engine_time`."""
    return (moment - _NAIVE_EPOCH) // ONE_MICROSECOND


def arrow_array(field: Field, values: Sequence[Any]) -> pa.Array:
    """A column of a field's values; of times, in microseconds."""
    if field.type is TIMESTAMP_TYPE:
        return pa.array(values, pa.int64()).cast(TIMESTAMP_TYPE.arrow)
    return pa.array(values, arrow_type(field.type.arrow))


class ColumnQueries(msgspec.Struct, frozen=True):
    """Texts that return the fields of each width."""

    texts: tuple[LiteralString, ...]

    def text(self, session: DriverSession) -> LiteralString:
        """The one that suits a session's file."""
        return self.texts[session.width]


def node_query(before: LiteralString) -> ColumnQueries:
    """A query that returns ``e``; ``before`` ends in RETURN and what comes first."""
    return ColumnQueries(tuple(f"{before} {_listed('e', NODE.columns(width))}" for width in ColumnSet))


def edge_query(before: LiteralString) -> ColumnQueries:
    """A query that returns ``k``; ``before`` ends in RETURN and its two ends."""
    return ColumnQueries(tuple(f"{before} {_listed('k', EDGE.columns(width)[EDGE_ENDPOINTS:])}" for width in ColumnSet))


def _listed(variable: LiteralString, fields: tuple[Field, ...]) -> LiteralString:
    return ", ".join(f"{variable}.{name}" for name in names(fields))
