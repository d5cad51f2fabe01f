"""Components of temporal values, which statements read as properties: ``d.year``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter import calendar_dates, time_zones
from kgserve.cypher.interpreter.temporal_construction import TYPE_NAMES
from kgserve.cypher.interpreter.temporal_values import (
    SECOND_NANOSECONDS,
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    TemporalValue,
    ZonedDateTime,
)
from kgserve.errors import InvalidInput

_DATE_COMPONENTS: dict[str, Callable[[int], int]] = {
    "year": calendar_dates.year_of,
    "quarter": calendar_dates.quarter_of,
    "month": calendar_dates.month_of,
    "week": calendar_dates.iso_week_of,
    "weekYear": calendar_dates.iso_week_year_of,
    "dayOfQuarter": calendar_dates.day_of_quarter,
    "day": calendar_dates.day_of_month,
    "ordinalDay": calendar_dates.day_of_year,
    "dayOfWeek": calendar_dates.iso_weekday_of,
    "weekDay": calendar_dates.iso_weekday_of,
}
_TIME_COMPONENTS: dict[str, Callable[[int], int]] = {
    "hour": lambda time: time // (3600 * SECOND_NANOSECONDS),
    "minute": lambda time: time // (60 * SECOND_NANOSECONDS) % 60,
    "second": lambda time: time // SECOND_NANOSECONDS % 60,
    "millisecond": lambda time: time % SECOND_NANOSECONDS // 1_000_000,
    "microsecond": lambda time: time % SECOND_NANOSECONDS // 1_000,
    "nanosecond": lambda time: time % SECOND_NANOSECONDS,
}
_OFFSET_COMPONENTS: dict[str, Callable[[int], int | str]] = {
    "offset": time_zones.format_utc_offset,
    "offsetMinutes": lambda offset: _divide(offset, 60),
    "offsetSeconds": lambda offset: offset,
}
_DURATION_COMPONENTS: dict[str, Callable[[DurationValue], int]] = {
    "years": lambda value: _divide(value.months, 12),
    "quarters": lambda value: _divide(value.months, 3),
    "months": lambda value: value.months,
    "weeks": lambda value: _divide(value.days, 7),
    "days": lambda value: value.days,
    "hours": lambda value: _divide(value.seconds, 3600),
    "minutes": lambda value: _divide(value.seconds, 60),
    "seconds": lambda value: value.seconds,
    "milliseconds": lambda value: value.total_nanoseconds // 1_000_000,
    "microseconds": lambda value: value.total_nanoseconds // 1_000,
    "nanoseconds": lambda value: value.total_nanoseconds,
    "quartersOfYear": lambda value: _remainder(_divide(value.months, 3), 4),
    "monthsOfQuarter": lambda value: _remainder(value.months, 3),
    "monthsOfYear": lambda value: _remainder(value.months, 12),
    "daysOfWeek": lambda value: _remainder(value.days, 7),
    "minutesOfHour": lambda value: _remainder(_divide(value.seconds, 60), 60),
    "secondsOfMinute": lambda value: _remainder(value.seconds, 60),
    "millisecondsOfSecond": lambda value: value.nanoseconds // 1_000_000,
    "microsecondsOfSecond": lambda value: value.nanoseconds // 1_000,
    "nanosecondsOfSecond": lambda value: value.nanoseconds,
}


def _divide(number: int, divisor: int) -> int:
    """Divide and round towards zero, as parts of a duration have its sign."""
    return -(-number // divisor) if number < 0 else number // divisor


def _remainder(number: int, divisor: int) -> int:
    return number - _divide(number, divisor) * divisor


def _timezone_of(value: OffsetTime | ZonedDateTime) -> str:
    if isinstance(value, ZonedDateTime) and value.region is not None:
        return value.region
    return time_zones.format_utc_offset(value.offset)


def _collect_readers(kind: type[Any]) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that read the components of a type, by name in lower case."""
    readers: dict[str, Callable[[Any], Any]] = {}
    if kind in (CalendarDate, LocalDateTime, ZonedDateTime):
        readers |= {name: _read_days(reader) for name, reader in _DATE_COMPONENTS.items()}
    if kind in (LocalTime, OffsetTime, LocalDateTime, ZonedDateTime):
        readers |= {name: _read_time(reader) for name, reader in _TIME_COMPONENTS.items()}
    if kind in (OffsetTime, ZonedDateTime):
        readers |= {name: _read_offset(reader) for name, reader in _OFFSET_COMPONENTS.items()}
        readers["timezone"] = _timezone_of
    if kind is ZonedDateTime:
        readers["epochSeconds"] = lambda value: value.instant // SECOND_NANOSECONDS
        readers["epochMillis"] = lambda value: value.instant // 1_000_000
    if kind is DurationValue:
        readers |= _DURATION_COMPONENTS
    return readers


def _read_days(reader: Callable[[int], int]) -> Callable[[Any], int]:
    return lambda value: reader(value.days)


def _read_time(reader: Callable[[int], int]) -> Callable[[Any], int]:
    return lambda value: reader(value.nanoseconds)


def _read_offset(reader: Callable[[int], int | str]) -> Callable[[Any], int | str]:
    return lambda value: reader(value.offset)


_READERS = {kind: _collect_readers(kind) for kind in TYPE_NAMES}
_READERS_BY_LOWER_NAME = {
    kind: {name.lower(): reader for name, reader in readers.items()} for kind, readers in _READERS.items()
}


def read_temporal_component(value: TemporalValue, name: str) -> int | str:
    """Read a component of a temporal value by its name in any case. Raises InvalidInput if the type lacks it."""
    reader = _READERS_BY_LOWER_NAME[type(value)].get(name.lower())
    if reader is None:
        names = ", ".join(_READERS[type(value)])
        raise InvalidInput(f"a {TYPE_NAMES[type(value)]} has no component {name!r}; it has {names}")
    return reader(value)


def list_temporal_components(value: TemporalValue) -> list[str]:
    """Return the names of a value's components."""
    return list(_READERS[type(value)])
