"""Temporal values and functions of openCypher: the interface for the rest of the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeGuard, cast

from kgserve.cypher.interpreter import durations, iso8601_temporal_parser, time_zones
from kgserve.cypher.interpreter.temporal_components import read_temporal_component
from kgserve.cypher.interpreter.temporal_construction import (
    TYPE_NAMES,
    build_duration_from_map,
    build_temporal_from_map,
    build_temporal_from_python_datetime,
    convert_temporal_value,
    require_integer,
)
from kgserve.cypher.interpreter.temporal_truncation import truncate_temporal_value
from kgserve.cypher.interpreter.temporal_values import (
    SECOND_NANOSECONDS,
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    TemporalInstant,
    TemporalValue,
    ZonedDateTime,
    datetime_from_epoch_nanoseconds,
)
from kgserve.errors import InvalidInput

_RANKS: dict[type[Any], int] = {kind: rank for rank, kind in enumerate(TYPE_NAMES)}
COLUMN_TYPES: dict[type[Any], str] = {
    ZonedDateTime: "ZONED DATETIME",
    LocalDateTime: "LOCAL DATETIME",
    CalendarDate: "DATE",
    OffsetTime: "ZONED TIME",
    LocalTime: "LOCAL TIME",
    DurationValue: "DURATION",
}


class TemporalFunction(NamedTuple):
    """Function of a temporal type; call it with evaluated arguments and the statement's time."""

    implementation: Callable[..., Any]
    min_arguments: int
    max_arguments: int

    def __call__(self, *arguments: Any, now: datetime) -> Any:
        """Return the function's value; null if an argument is null. Raises InvalidInput."""
        if any(argument is None for argument in arguments):
            return None
        return self.implementation(*arguments, now=now)


def is_temporal_value(value: Any) -> TypeGuard[TemporalValue]:
    """Return whether a value is a date, time or duration."""
    return type(value) in _RANKS


def get_temporal_component(value: Any, name: str) -> Any:
    """Return a component of a temporal value, such as ``year``. Raises InvalidInput for an unknown name."""
    return read_temporal_component(value, name)


def temporal_type_name(value: Any) -> str:
    """Return the name of a temporal type in results: ``DATE``, ``ZONED DATETIME`` and so on."""
    return COLUMN_TYPES[type(value)]


# Order


def compare_temporal_values(left: Any, right: Any) -> int | None:
    """Return -1, 0 or 1; None if ``<`` does not apply: to different types, and to durations."""
    if type(left) is not type(right) or not is_temporal_value(left) or isinstance(left, DurationValue):
        return None
    first, second = temporal_sort_key(left), temporal_sort_key(right)
    return (first > second) - (first < second)


def temporal_type_sort_rank(value: Any) -> int:
    """Return the position of a value's type among the temporal types in ORDER BY: 0 for datetime to 5 for duration."""
    return _RANKS[type(value)]


def temporal_sort_key(value: Any) -> tuple[Any, ...]:
    """Return a key that orders values of one temporal type; durations by their average length.

    Values at the same instant are ordered by offset from west to east, then by the name of the zone.
    """
    match value:
        case CalendarDate():
            return (value.days,)
        case LocalTime():
            return (value.nanoseconds,)
        case LocalDateTime():
            return value.days, value.nanoseconds
        case OffsetTime():
            return value.nanoseconds - value.offset * SECOND_NANOSECONDS, value.offset
        case ZonedDateTime():
            return value.instant, value.offset, value.region or ""
        case _:
            return value.average_seconds, value.nanoseconds, value.months, value.days


# Arithmetic


def add_duration(left: Any, right: Any) -> Any:
    """Add a duration to a temporal value, in either order. Raises InvalidInput."""
    if is_temporal_value(left) and isinstance(right, DurationValue):
        return durations.shift_by_duration(left, right)
    if isinstance(left, DurationValue) and is_temporal_value(right):
        return durations.shift_by_duration(right, left)
    raise InvalidInput("`+` adds a duration to a date, time or duration; two points in time cannot be added")


def subtract_duration(left: Any, right: Any) -> Any:
    """Subtract a duration from a temporal value. Raises InvalidInput."""
    if is_temporal_value(left) and isinstance(right, DurationValue):
        return durations.shift_by_duration(left, right, -1)
    raise InvalidInput(
        "`-` subtracts a duration from a date, time or duration; use duration.between(a, b) for a difference"
    )


def multiply_duration(left: Any, right: Any) -> Any:
    """Multiply a duration by a number, in either order. Raises InvalidInput."""
    duration, factor = (left, right) if isinstance(left, DurationValue) else (right, left)
    if not isinstance(duration, DurationValue):
        raise InvalidInput("`*` multiplies a duration by a number; dates and times cannot be multiplied")
    return durations.scale_duration(duration, durations.to_exact_number(factor, "the factor"))


def divide_duration(left: Any, right: Any) -> Any:
    """Divide a duration by a number. Raises InvalidInput."""
    if not isinstance(left, DurationValue):
        raise InvalidInput("`/` divides a duration by a number; dates and times cannot be divided")
    divisor = durations.to_exact_number(right, "the divisor")
    if not divisor:
        raise InvalidInput("a duration cannot be divided by zero")
    return durations.scale_duration(left, Fraction(1) / divisor)


# Functions


def _construct(kind: type[TemporalInstant], *arguments: Any, now: datetime) -> TemporalInstant:
    if not arguments:
        return build_temporal_from_python_datetime(kind, now, 0)
    (argument,) = arguments
    if isinstance(argument, str):
        return iso8601_temporal_parser.parse_iso8601_temporal_value(kind, argument)
    if isinstance(argument, dict):
        return build_temporal_from_map(kind, cast("dict[str, Any]", argument), now)
    if is_temporal_value(argument) and not isinstance(argument, DurationValue):
        return convert_temporal_value(kind, argument)
    raise InvalidInput(f"{TYPE_NAMES[kind]}() takes a string, a map or a temporal value, not {_describe(argument)}")


def _construct_duration(argument: Any, *, now: datetime) -> DurationValue:
    del now
    if isinstance(argument, str):
        return iso8601_temporal_parser.parse_iso8601_duration(argument)
    if isinstance(argument, dict):
        return build_duration_from_map(cast("dict[str, Any]", argument))
    if isinstance(argument, DurationValue):
        return argument
    raise InvalidInput(f"duration() takes a string, a map or a duration, not {_describe(argument)}")


def _describe(value: Any) -> str:
    if is_temporal_value(value):
        return f"a {TYPE_NAMES[type(value)]}"
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "a list", dict: "a map"}
    return names.get(type(value), "this value")


def _tell_time(kind: type[TemporalInstant], *zones: Any, now: datetime) -> TemporalInstant:
    zone: time_zones.ZoneReference = 0
    if zones:
        text = zones[0].get("timezone") if isinstance(zones[0], dict) else zones[0]
        if not isinstance(text, str):
            raise InvalidInput(f"{TYPE_NAMES[kind]} takes the name of a time zone, not {_describe(zones[0])}")
        zone = time_zones.parse_time_zone(text)
    return build_temporal_from_python_datetime(kind, now, zone)


def _tell_real_time(kind: type[TemporalInstant], *zones: Any, now: datetime) -> TemporalInstant:
    return _tell_time(kind, *zones, now=datetime.now(now.tzinfo or UTC))


def _truncate(kind: type[TemporalInstant], unit: Any, *arguments: Any, now: datetime) -> TemporalInstant:
    name = TYPE_NAMES[kind]
    value = arguments[0] if arguments else build_temporal_from_python_datetime(kind, now, 0)
    fields = arguments[1] if len(arguments) > 1 else {}
    if not isinstance(unit, str):
        raise InvalidInput(f"{name}.truncate() takes the name of a unit first, not {_describe(unit)}")
    if not is_temporal_value(value) or isinstance(value, DurationValue):
        raise InvalidInput(f"{name}.truncate() truncates a date or time, not {_describe(value)}")
    if not isinstance(fields, dict):
        raise InvalidInput(f"{name}.truncate() takes a map of components last, not {_describe(fields)}")
    return truncate_temporal_value(kind, unit, value, cast("dict[str, Any]", fields), now)


def _count_from_epoch(seconds: Any, nanoseconds: Any, *, now: datetime) -> ZonedDateTime:
    del now
    whole = require_integer(seconds, "the number of seconds") * SECOND_NANOSECONDS
    return datetime_from_epoch_nanoseconds(whole + require_integer(nanoseconds, "the number of nanoseconds"), 0)


def _count_milliseconds_from_epoch(milliseconds: Any, *, now: datetime) -> ZonedDateTime:
    del now
    return datetime_from_epoch_nanoseconds(require_integer(milliseconds, "the number of milliseconds") * 1_000_000, 0)


def _measure(
    measure: Callable[[TemporalInstant, TemporalInstant], DurationValue], start: Any, end: Any, *, now: datetime
) -> DurationValue:
    del now
    for value in (start, end):
        if not is_temporal_value(value) or isinstance(value, DurationValue):
            raise InvalidInput(f"a duration is measured between dates and times, not {_describe(value)}")
    return measure(start, end)


def _collect_functions() -> dict[str, TemporalFunction]:
    functions: dict[str, TemporalFunction] = {}
    for kind, name in TYPE_NAMES.items():
        if kind is DurationValue:
            continue
        functions[name] = TemporalFunction(partial(_construct, kind), 0, 1)
        functions[f"{name}.truncate"] = TemporalFunction(partial(_truncate, kind), 1, 3)
        functions[f"{name}.transaction"] = TemporalFunction(partial(_tell_time, kind), 0, 1)
        functions[f"{name}.statement"] = TemporalFunction(partial(_tell_time, kind), 0, 1)
        functions[f"{name}.realtime"] = TemporalFunction(partial(_tell_real_time, kind), 0, 1)
    functions["datetime.fromepoch"] = TemporalFunction(_count_from_epoch, 2, 2)
    functions["datetime.fromepochmillis"] = TemporalFunction(_count_milliseconds_from_epoch, 1, 1)
    functions["duration"] = TemporalFunction(_construct_duration, 1, 1)
    functions["duration.between"] = TemporalFunction(partial(_measure, durations.compute_duration_between), 2, 2)
    functions["duration.inmonths"] = TemporalFunction(
        partial(_measure, durations.compute_duration_in_whole_months), 2, 2
    )
    functions["duration.indays"] = TemporalFunction(partial(_measure, durations.compute_duration_in_whole_days), 2, 2)
    functions["duration.inseconds"] = TemporalFunction(partial(_measure, durations.compute_duration_in_seconds), 2, 2)
    return functions


FUNCTIONS: dict[str, TemporalFunction] = _collect_functions()
"""Functions by lower-case name with namespace, such as ``datetime.truncate``."""
