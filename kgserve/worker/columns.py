"""Values of rows as the engine takes them, alone and in columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kgserve.arrow import arrow_type, pa
from kgserve.model.fields import TIME, Field

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
