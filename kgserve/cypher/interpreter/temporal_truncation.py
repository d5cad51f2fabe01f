"""Truncation of temporal values to the start of a unit, and changes of components there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from kgserve.cypher.interpreter import calendar_dates, time_zones
from kgserve.cypher.interpreter.temporal_construction import TYPE_NAMES, build_temporal_from_map, convert_temporal_value
from kgserve.cypher.interpreter.temporal_values import (
    CalendarDate,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    TemporalInstant,
    ZonedDateTime,
    get_epoch_day_of_temporal_value,
    get_time_of_day_nanoseconds,
    new_zoned_datetime,
)
from kgserve.errors import InvalidInput

_TIME_UNITS = {
    "hour": 3_600_000_000_000,
    "minute": 60_000_000_000,
    "second": 1_000_000_000,
    "millisecond": 1_000_000,
    "microsecond": 1_000,
}
_DAY_UNITS: dict[str, Callable[[int], int]] = {
    "millennium": lambda days: _start_of_years(days, 1000),
    "century": lambda days: _start_of_years(days, 100),
    "decade": lambda days: _start_of_years(days, 10),
    "weekyear": lambda days: calendar_dates.start_of_iso_week_year(calendar_dates.iso_week_year_of(days)),
    "year": lambda days: _start_of_years(days, 1),
    "quarter": calendar_dates.start_of_quarter,
    "month": lambda days: calendar_dates.set_day_of_month(days, 1),
    "week": lambda days: calendar_dates.set_iso_weekday(days, 1),
    "day": lambda days: days,
}


def truncate_temporal_value(
    kind: type[TemporalInstant], unit: str, value: TemporalInstant, fields: Mapping[str, Any], now: datetime
) -> TemporalInstant:
    """Truncate a temporal value to a unit, and set the components of a map on it. Raises InvalidInput."""
    name = unit.lower()
    if name in _TIME_UNITS:
        start = _truncate_time(kind, unit, value, _TIME_UNITS[name])
    elif name in _DAY_UNITS:
        start = _truncate_days(kind, unit, value, _DAY_UNITS[name])
    else:
        units = ", ".join([*_DAY_UNITS, *_TIME_UNITS]).replace("weekyear", "weekYear")
        raise InvalidInput(f"there is no unit {unit!r}; use one of {units}")
    if not fields:
        return start
    return _set_fields(start, name, fields, now)


def _truncate_days(
    kind: type[TemporalInstant], unit: str, value: TemporalInstant, find_start: Callable[[int], int]
) -> TemporalInstant:
    if kind in (LocalTime, OffsetTime):
        if unit.lower() != "day":
            raise InvalidInput(f"a {TYPE_NAMES[kind]} cannot be truncated to the unit {unit!r}")
        return _with_time(kind, value, 0)
    days = get_epoch_day_of_temporal_value(value)
    if days is None:
        raise InvalidInput(f"a {TYPE_NAMES[type(value)]} has no date to truncate to the unit {unit!r}")
    start = calendar_dates.check_epoch_days_range(find_start(days))
    if kind is CalendarDate:
        return CalendarDate(start)
    if kind is LocalDateTime:
        return LocalDateTime(start, 0)
    return new_zoned_datetime(start, 0, value.zone if isinstance(value, ZonedDateTime) else 0)


def _truncate_time(kind: type[TemporalInstant], unit: str, value: TemporalInstant, nanoseconds: int) -> TemporalInstant:
    time = get_time_of_day_nanoseconds(value)
    if kind is CalendarDate or time is None:
        name = TYPE_NAMES[kind if kind is CalendarDate else type(value)]
        raise InvalidInput(f"a {name} has no time to truncate to the unit {unit!r}")
    return _with_time(kind, value, time - time % nanoseconds)


def _with_time(kind: type[TemporalInstant], value: TemporalInstant, nanoseconds: int) -> TemporalInstant:
    """Return a value as another type, at a time of the same day and in the same zone."""
    converted = convert_temporal_value(kind, value)
    match converted:
        case LocalTime():
            return LocalTime(nanoseconds)
        case OffsetTime():
            return OffsetTime(nanoseconds, converted.offset)
        case LocalDateTime():
            return LocalDateTime(converted.days, nanoseconds)
        case ZonedDateTime():
            return new_zoned_datetime(converted.days, nanoseconds, converted.zone, converted.offset)
        case CalendarDate():
            return converted


def _set_fields(start: TemporalInstant, unit: str, fields: Mapping[str, Any], now: datetime) -> TemporalInstant:
    """Set components on the start of a unit; a time zone among them keeps the local time."""
    values = {name: value for name, value in fields.items() if name.lower() != "timezone"}
    zone = next((value for name, value in fields.items() if name.lower() == "timezone"), None)
    if isinstance(zone, str):
        start = _move_to_zone(start, time_zones.parse_time_zone(zone), now)
    elif zone is not None or len(values) < len(fields):
        raise InvalidInput(f"timezone is {zone!r}; it must be a string such as '+01:00' or 'Europe/Stockholm'")
    if not values:
        return start
    names = {name.lower() for name in values}
    time = get_time_of_day_nanoseconds(start) or 0
    if unit in ("millisecond", "microsecond") and "millisecond" not in names and names & {"microsecond", "nanosecond"}:
        values["millisecond"] = time // 1_000_000 % 1_000
    if unit == "microsecond" and "microsecond" not in names and "nanosecond" in names:
        values["microsecond"] = time // 1_000 % 1_000
    return build_temporal_from_map(type(start), values, now, start)


def _move_to_zone(start: TemporalInstant, zone: time_zones.ZoneReference, now: datetime) -> TemporalInstant:
    if isinstance(start, OffsetTime):
        return OffsetTime(start.nanoseconds, time_zones.find_utc_offset(zone, int(now.timestamp())))
    if isinstance(start, ZonedDateTime):
        return new_zoned_datetime(start.days, start.nanoseconds, zone)
    raise InvalidInput(f"a {TYPE_NAMES[type(start)]} has no timezone to set")


def _start_of_years(days: int, count: int) -> int:
    year = calendar_dates.year_of(days)
    return calendar_dates.date_to_epoch_days(year - year % count)
