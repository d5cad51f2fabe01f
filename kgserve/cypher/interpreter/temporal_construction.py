"""Construction of temporal values from maps of components, and from other temporal values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from kgserve.cypher.interpreter import calendar_dates, durations, time_zones
from kgserve.cypher.interpreter.temporal_values import (
    DAY_NANOSECONDS,
    SECOND_NANOSECONDS,
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    TemporalInstant,
    ZonedDateTime,
    datetime_from_epoch_nanoseconds,
    get_epoch_day_of_temporal_value,
    get_temporal_zone,
    get_time_of_day_nanoseconds,
    new_local_datetime,
    new_zoned_datetime,
)
from kgserve.cypher.interpreter.time_zones import ZoneReference
from kgserve.errors import InvalidInput

TYPE_NAMES: dict[type[Any], str] = {
    ZonedDateTime: "datetime",
    LocalDateTime: "localdatetime",
    CalendarDate: "date",
    OffsetTime: "time",
    LocalTime: "localtime",
    DurationValue: "duration",
}
"""Functions that construct the types, in the order of types in ORDER BY."""

_DATE_FIELDS = tuple(calendar_dates.DATE_SETTERS)
_TIME_FIELDS = ("hour", "minute", "second", "millisecond", "microsecond", "nanosecond")
_MAX_TIME_VALUES = {"hour": 23, "minute": 59, "second": 59}
_NANOSECONDS_BY_FIELD = {
    "hour": 3600 * SECOND_NANOSECONDS,
    "minute": 60 * SECOND_NANOSECONDS,
    "second": SECOND_NANOSECONDS,
    "millisecond": 1_000_000,
    "microsecond": 1_000,
    "nanosecond": 1,
}
_FRACTION_FIELDS = ("millisecond", "microsecond", "nanosecond")
_DATE_FORMS = (
    ("month", "day"),
    ("week", "dayOfWeek"),
    ("quarter", "dayOfQuarter"),
    ("ordinalDay",),
)
"""Ways to write a day of a year; a smaller field needs the greater one, and no two ways mix."""

_FIELDS: dict[type[TemporalInstant], tuple[str, ...]] = {
    CalendarDate: ("date", *_DATE_FIELDS, "timezone"),
    LocalTime: ("time", *_TIME_FIELDS, "timezone"),
    OffsetTime: ("time", *_TIME_FIELDS, "timezone"),
    LocalDateTime: ("datetime", "date", "time", *_DATE_FIELDS, *_TIME_FIELDS, "timezone"),
    ZonedDateTime: (
        *("datetime", "date", "time", *_DATE_FIELDS, *_TIME_FIELDS, "timezone"),
        *("epochSeconds", "epochMillis"),
    ),
}


class SelectedTemporalParts(msgspec.Struct):
    """Parts that other temporal values contribute to a new one; None for those that fields must give."""

    days: int | None = None
    nanoseconds: int | None = None
    zone: ZoneReference | None = None
    offset: int | None = None

    def select_days(self, value: TemporalInstant) -> None:
        """Take the day of a value. Raises InvalidInput if it has none."""
        self.days = get_epoch_day_of_temporal_value(value)
        if self.days is None:
            raise InvalidInput(f"a {TYPE_NAMES[type(value)]} has no date to select")

    def select_time(self, value: TemporalInstant) -> None:
        """Take the time of day and the zone of a value, if it has one. Raises InvalidInput if it has no time."""
        self.nanoseconds = get_time_of_day_nanoseconds(value)
        if isinstance(value, OffsetTime | ZonedDateTime):
            self.zone, self.offset = get_temporal_zone(value), value.offset
        if self.nanoseconds is None:
            raise InvalidInput(f"a {TYPE_NAMES[type(value)]} has no time to select")


# Conversion


def convert_temporal_value(kind: type[TemporalInstant], value: TemporalInstant) -> TemporalInstant:
    """Convert a temporal value to another type; missing parts become midnight and UTC. Raises InvalidInput."""
    parts = SelectedTemporalParts()
    if kind in (CalendarDate, LocalDateTime, ZonedDateTime):
        parts.select_days(value)
    if kind in (LocalTime, OffsetTime) or not isinstance(value, CalendarDate):
        parts.select_time(value)
    return _assemble(kind, parts, None)


def build_temporal_from_python_datetime(
    kind: type[TemporalInstant], moment: datetime, zone: ZoneReference
) -> TemporalInstant:
    """Build a temporal value of a type from a Python datetime, in a time zone."""
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = elapsed.days * 86_400 + elapsed.seconds
    return convert_temporal_value(
        kind, datetime_from_epoch_nanoseconds(seconds * SECOND_NANOSECONDS + elapsed.microseconds * 1_000, zone)
    )


# Construction


def build_temporal_from_map(
    kind: type[TemporalInstant], fields: Mapping[str, Any], now: datetime, base: TemporalInstant | None = None
) -> TemporalInstant:
    """Build a temporal value from a map of components, with ``base`` for missing ones. Raises InvalidInput."""
    values = _name_fields(kind, fields)
    zone = _read_zone(values)
    if zone is not None and len(values) == 1 and base is None:
        return build_temporal_from_python_datetime(kind, now, zone)
    if zone is not None and kind not in (OffsetTime, ZonedDateTime):
        raise InvalidInput(f"a {TYPE_NAMES[kind]} has no timezone; `timezone` cannot be combined with other components")
    if kind is OffsetTime and isinstance(zone, str):
        zone = time_zones.find_utc_offset(zone, int(now.timestamp()))
    parts = _select_parts(values, base, zone)
    if kind not in (LocalTime, OffsetTime):
        if parts.days is None:
            _check_date_order(values)
        parts.days = _assign_date(values, parts.days)
    if kind is not CalendarDate:
        _check_time_order(kind, values, parts)
        parts.nanoseconds = _assign_time(values, parts.nanoseconds or 0)
    return _assemble(kind, parts, zone)


def build_duration_from_map(fields: Mapping[str, Any]) -> DurationValue:
    """Build a duration from a map of amounts by unit. Raises InvalidInput."""
    values = _match_names("duration", fields, durations.DURATION_UNITS)
    return durations.build_duration_from_units(
        {unit: durations.to_exact_number(value, unit) for unit, value in values.items()}
    )


def _name_fields(kind: type[TemporalInstant], fields: Mapping[str, Any]) -> dict[str, Any]:
    return _match_names(TYPE_NAMES[kind], fields, _FIELDS[kind])


def _match_names(type_name: str, fields: Mapping[str, Any], allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return the values by the names as documented; the case of letters does not matter."""
    names = {name.lower(): name for name in allowed}
    values: dict[str, Any] = {}
    for name, value in fields.items():
        known = names.get(name.lower())
        if known is None:
            raise InvalidInput(f"a {type_name} has no component {name!r}; allowed are {', '.join(allowed)}")
        if value is None:
            raise InvalidInput(f"the component {name!r} of a {type_name} is null; leave it out, or give a value")
        values[known] = value
    if not values:
        raise InvalidInput(f"the map of a {type_name} is empty; it may have {', '.join(allowed)}")
    return values


def _read_zone(values: dict[str, Any]) -> ZoneReference | None:
    text = values.get("timezone")
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(f"timezone is {text!r}; it must be a string such as '+01:00' or 'Europe/Stockholm'")
    return time_zones.parse_time_zone(text)


def _select_parts(
    values: dict[str, Any], base: TemporalInstant | None, zone: ZoneReference | None
) -> SelectedTemporalParts:
    parts = SelectedTemporalParts()
    whole = _read_selector(values, "datetime")
    if whole is not None and ("date" in values or "time" in values):
        raise InvalidInput("`datetime` cannot be combined with `date` or `time`")
    for value in (base, whole, _read_epoch(values, zone)):
        if value is not None and get_epoch_day_of_temporal_value(value) is not None:
            parts.select_days(value)
        if value is not None and not isinstance(value, CalendarDate):
            parts.select_time(value)
    if (day := _read_selector(values, "date")) is not None:
        parts.select_days(day)
    if (time := _read_selector(values, "time")) is not None:
        parts.select_time(time)
    return parts


def _read_selector(values: dict[str, Any], name: str) -> TemporalInstant | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) not in TYPE_NAMES or isinstance(value, DurationValue):
        raise InvalidInput(f"{name} must be a date, time or datetime to select from")
    if name == "datetime" and get_epoch_day_of_temporal_value(value) is None:
        raise InvalidInput(f"a {TYPE_NAMES[type(value)]} has no date to select")
    return cast("TemporalInstant", value)


def _read_epoch(values: dict[str, Any], zone: ZoneReference | None) -> ZonedDateTime | None:
    names = [name for name in ("epochSeconds", "epochMillis") if name in values]
    if not names:
        return None
    others = [name for name in values if name not in ("timezone", *names, *_FRACTION_FIELDS)]
    if others or len(names) > 1:
        raise InvalidInput(f"`{names[0]}` cannot be combined with `{[*others, *names[1:]][0]}`")
    factor = SECOND_NANOSECONDS if names[0] == "epochSeconds" else 1_000_000
    value = require_integer(values[names[0]], names[0]) * factor
    if names[0] == "epochMillis" and "millisecond" in values:
        raise InvalidInput("`epochMillis` cannot be combined with `millisecond`")
    if names[0] == "epochMillis" and ("microsecond" in values or "nanosecond" in values):
        values["millisecond"] = value // 1_000_000 % 1_000
    return datetime_from_epoch_nanoseconds(value, zone or 0)


def require_integer(value: Any, name: str) -> int:
    """Return an integer. Raises InvalidInput for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(f"{name} is {value!r}; it must be an integer")


# Dates


def _assign_date(values: dict[str, Any], days: int | None) -> int:
    numbers = {name: require_integer(values[name], name) for name in _DATE_FIELDS if name in values}
    _check_date_forms(numbers)
    if days is None:
        days = calendar_dates.date_to_epoch_days(numbers.pop("year"))
        if "week" in numbers:
            days = calendar_dates.start_of_iso_week_year(calendar_dates.year_of(days))
    elif "week" in numbers and "year" in numbers:
        days = calendar_dates.set_iso_week_year(days, numbers.pop("year"))
    for name, setter in calendar_dates.DATE_SETTERS.items():
        if name in numbers:
            days = setter(days, numbers[name])
    return calendar_dates.check_epoch_days_range(days)


def _check_date_forms(values: dict[str, Any]) -> None:
    """Raise InvalidInput if a day is given in two ways."""
    used = [name for form in _DATE_FORMS for name in form[:1] if any(each in values for each in form)]
    if len(used) > 1:
        raise InvalidInput(f"the components of a date by `{used[0]}` and by `{used[1]}` cannot be combined")


def _check_date_order(values: dict[str, Any]) -> None:
    """Raise InvalidInput if a component is given without a greater one."""
    if "year" not in values:
        raise InvalidInput("`year` is missing; a date needs a year, or a `date` to start from")
    form = next((form for form in _DATE_FORMS if any(name in values for name in form)), _DATE_FORMS[0])
    if form[-1] in values and form[0] not in values:
        raise InvalidInput(f"`{form[-1]}` cannot be given without `{form[0]}`")
    time = next((name for name in ("time", "hour") if name in values), None)
    if time and form[-1] not in values:
        raise InvalidInput(f"`{time}` cannot be given without `{form[-1]}`")


# Times


def _check_time_order(kind: type[TemporalInstant], values: dict[str, Any], parts: SelectedTemporalParts) -> None:
    """Raise InvalidInput if a component is given without the greater ones."""
    if parts.nanoseconds is not None:
        return
    missing: str | None = None
    for name in ("hour", "minute", "second"):
        if name not in values:
            missing = missing or name
        elif missing:
            raise InvalidInput(f"`{name}` cannot be given without `{missing}`")
    fraction = next((name for name in _FRACTION_FIELDS if name in values), None)
    if fraction and missing:
        raise InvalidInput(f"`{fraction}` cannot be given without `{missing}`")
    if missing == "hour" and kind in (LocalTime, OffsetTime):
        raise InvalidInput("`hour` is missing; a time needs an hour, or a `time` to start from")


def _assign_time(values: dict[str, Any], nanoseconds: int) -> int:
    for name, most in _MAX_TIME_VALUES.items():
        if name in values:
            unit = _NANOSECONDS_BY_FIELD[name]
            old = nanoseconds // unit % (most + 1)
            nanoseconds += (_read_limited(values, name, most) - old) * unit
    if any(name in values for name in _FRACTION_FIELDS):
        nanoseconds += _read_fraction(values) - nanoseconds % SECOND_NANOSECONDS
    return nanoseconds


def _read_fraction(values: dict[str, Any]) -> int:
    """Return nanoseconds of a second; a unit counts only within the greater one that is given, too."""
    total, limit = 0, SECOND_NANOSECONDS
    for name in _FRACTION_FIELDS:
        unit = _NANOSECONDS_BY_FIELD[name]
        if name in values:
            total += _read_limited(values, name, limit // unit - 1) * unit
            limit = unit
    return total


def _read_limited(values: dict[str, Any], name: str, most: int) -> int:
    value = require_integer(values[name], name)
    if not 0 <= value <= most:
        raise InvalidInput(f"{name} is {value}; it must be 0 to {most}")
    return value


# Assembly


def _assemble(kind: type[TemporalInstant], parts: SelectedTemporalParts, zone: ZoneReference | None) -> TemporalInstant:
    """Return a value of parts; a zone that differs from the selected one keeps the instant."""
    days, nanoseconds = parts.days or 0, parts.nanoseconds or 0
    if kind is CalendarDate:
        return CalendarDate(days)
    if kind is LocalTime:
        return LocalTime(nanoseconds)
    if kind is LocalDateTime:
        return new_local_datetime(days, nanoseconds)
    if kind is OffsetTime:
        return _assemble_time(nanoseconds, parts.offset, zone)
    if parts.zone is None:
        return new_zoned_datetime(days, nanoseconds, zone or 0)
    value = new_zoned_datetime(days, nanoseconds, parts.zone, parts.offset)
    return value if zone is None else datetime_from_epoch_nanoseconds(value.instant, zone)


def _assemble_time(nanoseconds: int, selected: int | None, zone: ZoneReference | None) -> OffsetTime:
    offset = zone if isinstance(zone, int) else None
    if selected is None or offset is None:
        return OffsetTime(nanoseconds, offset or selected or 0)
    shifted = nanoseconds + (offset - selected) * SECOND_NANOSECONDS
    return OffsetTime(shifted % DAY_NANOSECONDS, offset)
