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

from kgserve.arrow import arrow_type, pa
from kgserve.model.fields import EDGE, ENDS, NODE, TIME, Field, names
from kgserve.worker.session import Session

_NAIVE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)


def engine_time(microseconds: int) -> datetime:
    """A time as the engine takes it: without time zone, in UTC."""
    return _NAIVE_EPOCH + timedelta(microseconds=microseconds)


def microseconds(moment: datetime) -> int:
    """The inverse of `engine_time`."""
    return (moment - _NAIVE_EPOCH) // _MICROSECOND


def arrow_array(field: Field, values: Sequence[Any]) -> pa.Array:
    """A column of a field's values; of times, in microseconds."""
    if field.type is TIME:
        return pa.array(values, pa.int64()).cast(TIME.arrow)
    return pa.array(values, arrow_type(field.type.arrow))


_NODE: LiteralString = ", ".join(f"e.{name}" for name in names(NODE.plain))
_EDGE: LiteralString = ", ".join(f"k.{name}" for name in names(EDGE.plain[ENDS:]))
_WHOLE_NODE: LiteralString = ", ".join(f"e.{name}" for name in names(NODE.whole))
_WHOLE_EDGE: LiteralString = ", ".join(f"k.{name}" for name in names(EDGE.whole[ENDS:]))


class Query(msgspec.Struct, frozen=True):
    """A text that returns the fields, and one that returns the extras after them."""

    fields: LiteralString
    whole: LiteralString

    def text(self, session: Session) -> LiteralString:
        """The one that suits a session's file."""
        return self.whole if session.whole else self.fields


def node_query(before: LiteralString) -> Query:
    """A query that returns ``e``; ``before`` ends in RETURN and what comes first."""
    return Query(f"{before} {_NODE}", f"{before} {_WHOLE_NODE}")


def edge_query(before: LiteralString) -> Query:
    """A query that returns ``k``; ``before`` ends in RETURN and its two ends."""
    return Query(f"{before} {_EDGE}", f"{before} {_WHOLE_EDGE}")
