"""Durations: construction, arithmetic, and differences between temporal values.

A fraction of a month is carried over to days with months of 30.436875 days, a fraction of a day to seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias, cast

from kgserve.cypher.interpreter import calendar_dates
from kgserve.cypher.interpreter.temporal_values import (
    DAY_NANOSECONDS,
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
    get_epoch_day_of_temporal_value,
    get_temporal_zone,
    get_time_of_day_nanoseconds,
    new_duration,
    new_local_datetime,
    new_zoned_datetime,
)
from kgserve.cypher.interpreter.time_zones import ZoneReference
from kgserve.errors import InvalidInput

ExactNumber: TypeAlias = int | Fraction

_MONTH_DAYS = Fraction(2_629_746, 86_400)
_MONTHS_BY_UNIT = {"years": 12, "quarters": 3, "months": 1}
_DAYS_BY_UNIT = {"weeks": 7, "days": 1}
_NANOSECONDS_BY_UNIT = {
    "hours": 3600 * SECOND_NANOSECONDS,
    "minutes": 60 * SECOND_NANOSECONDS,
    "seconds": SECOND_NANOSECONDS,
    "milliseconds": 1_000_000,
    "microseconds": 1_000,
    "nanoseconds": 1,
}
DURATION_UNITS = (*_MONTHS_BY_UNIT, *_DAYS_BY_UNIT, *_NANOSECONDS_BY_UNIT)


def to_exact_number(value: Any, name: str) -> ExactNumber:
    """Return the exact value of a number as it is written. Raises InvalidInput for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return Fraction(repr(value))
    raise InvalidInput(f"{name} is {value!r}; it must be a finite number")


def build_duration_from_units(amounts: Mapping[str, ExactNumber]) -> DurationValue:
    """Build a duration from amounts by unit, such as ``years``. Raises InvalidInput."""
    months: ExactNumber = 0
    days: ExactNumber = 0
    nanoseconds: ExactNumber = 0
    for unit, amount in amounts.items():
        if unit in _MONTHS_BY_UNIT:
            months += amount * _MONTHS_BY_UNIT[unit]
        elif unit in _DAYS_BY_UNIT:
            days += amount * _DAYS_BY_UNIT[unit]
        else:
            nanoseconds += amount * _NANOSECONDS_BY_UNIT[unit]
    return carry_duration_fractions(months, days, nanoseconds)


def carry_duration_fractions(months: ExactNumber, days: ExactNumber, nanoseconds: ExactNumber) -> DurationValue:
    """Return a duration of whole parts, the fractions of each carried over to the next smaller one."""
    whole_months = math.trunc(months)
    if months != whole_months:
        days += (months - whole_months) * _MONTH_DAYS
    whole_days = math.trunc(days)
    nanoseconds += (days - whole_days) * DAY_NANOSECONDS
    return new_duration(whole_months, whole_days, math.trunc(nanoseconds))


def scale_duration(duration: DurationValue, factor: ExactNumber) -> DurationValue:
    """Multiply a duration by a number. Raises InvalidInput if the result is too long."""
    return carry_duration_fractions(
        duration.months * factor, duration.days * factor, duration.total_nanoseconds * factor
    )


def add_or_subtract_durations(left: DurationValue, right: DurationValue, sign: int = 1) -> DurationValue:
    """Add two durations, or subtract the second if the sign is -1."""
    return new_duration(
        left.months + sign * right.months,
        left.days + sign * right.days,
        left.total_nanoseconds + sign * right.total_nanoseconds,
    )


# Shifts


def shift_by_duration(value: TemporalValue, duration: DurationValue, sign: int = 1) -> TemporalValue:
    """Shift a temporal value by a duration, back if the sign is -1: by months, then days, then the exact time."""
    months, days = sign * duration.months, sign * duration.days
    nanoseconds = sign * duration.total_nanoseconds
    match value:
        case DurationValue():
            return add_or_subtract_durations(value, duration, sign)
        case LocalTime():
            return LocalTime((value.nanoseconds + nanoseconds) % DAY_NANOSECONDS)
        case OffsetTime():
            return OffsetTime((value.nanoseconds + nanoseconds) % DAY_NANOSECONDS, value.offset)
        case CalendarDate():
            return CalendarDate(_shift_days(value.days, months, days + _divide_towards_zero(nanoseconds)))
        case LocalDateTime():
            return new_local_datetime(_shift_days(value.days, months, days), value.nanoseconds + nanoseconds)
        case ZonedDateTime():
            return _shift_zoned(_shift_zoned_days(value, months, days), nanoseconds)


def _divide_towards_zero(nanoseconds: int) -> int:
    """Return the whole days."""
    days = abs(nanoseconds) // DAY_NANOSECONDS
    return -days if nanoseconds < 0 else days


def _shift_days(days: int, months: int, more_days: int) -> int:
    return calendar_dates.check_epoch_days_range(
        (calendar_dates.add_months(days, months) if months else days) + more_days
    )


def _shift_zoned_days(value: ZonedDateTime, months: int, days: int) -> ZonedDateTime:
    if not months and not days:
        return value
    moved = _shift_days(value.days, months, days)
    return new_zoned_datetime(moved, value.nanoseconds, value.zone, value.offset)


def _shift_zoned(value: ZonedDateTime, nanoseconds: int) -> ZonedDateTime:
    return datetime_from_epoch_nanoseconds(value.instant + nanoseconds, value.zone) if nanoseconds else value


# Differences


def compute_duration_between(start: TemporalInstant, end: TemporalInstant) -> DurationValue:
    """Return the duration between two temporal values in months, days and seconds; without days, only seconds."""
    months = days = 0
    if get_epoch_day_of_temporal_value(start) is not None and get_epoch_day_of_temporal_value(end) is not None:
        months = _count_months(start, end)
        start = _move_days(start, months, 0)
        days = _count_days(start, end)
        start = _move_days(start, 0, days)
    return new_duration(months, days, _count_nanoseconds(start, end))


def compute_duration_in_whole_months(start: TemporalInstant, end: TemporalInstant) -> DurationValue:
    """Return the duration between two temporal values in whole months; zero if one has no day."""
    has_days = get_epoch_day_of_temporal_value(start) is not None and get_epoch_day_of_temporal_value(end) is not None
    return new_duration(_count_months(start, end) if has_days else 0, 0, 0)


def compute_duration_in_whole_days(start: TemporalInstant, end: TemporalInstant) -> DurationValue:
    """Return the duration between two temporal values in whole days; zero if one has no day."""
    has_days = get_epoch_day_of_temporal_value(start) is not None and get_epoch_day_of_temporal_value(end) is not None
    return new_duration(0, _count_days(start, end) if has_days else 0, 0)


def compute_duration_in_seconds(start: TemporalInstant, end: TemporalInstant) -> DurationValue:
    """Return the exact duration between two temporal values in seconds."""
    return new_duration(0, 0, _count_nanoseconds(start, end))


def _move_days(value: TemporalInstant, months: int, days: int) -> TemporalInstant:
    return cast("TemporalInstant", shift_by_duration(value, DurationValue(months, days)))


def _count_months(start: TemporalInstant, end: TemporalInstant) -> int:
    first, last = _to_local_days(start, end)
    months = calendar_dates.count_months_since_year_zero(last) - calendar_dates.count_months_since_year_zero(first)
    days = calendar_dates.day_of_month(last) - calendar_dates.day_of_month(first)
    if months > 0 > days:
        return months - 1
    return months + 1 if months < 0 < days else months


def _count_days(start: TemporalInstant, end: TemporalInstant) -> int:
    first, last = _to_local_days(start, end)
    return last - first


def _to_local_days(start: TemporalInstant, end: TemporalInstant) -> tuple[int, int]:
    """Return the days between which whole days are counted: the last one moves back if its time is not reached."""
    first, last = _align(start, end)
    if isinstance(first, ZonedDateTime) and isinstance(last, ZonedDateTime) and first.zone != last.zone:
        last = datetime_from_epoch_nanoseconds(last.instant, first.zone)
    if last.days > first.days and last.nanoseconds < first.nanoseconds:
        return first.days, last.days - 1
    if last.days < first.days and last.nanoseconds > first.nanoseconds:
        return first.days, last.days + 1
    return first.days, last.days


def _count_nanoseconds(start: TemporalInstant, end: TemporalInstant) -> int:
    first, last = _align(start, end)
    return _find_instant(last) - _find_instant(first)


def _align(
    start: TemporalInstant, end: TemporalInstant
) -> tuple[LocalDateTime | ZonedDateTime, LocalDateTime | ZonedDateTime]:
    """Complete two values: each takes a missing day and zone from the other; a missing time is midnight."""
    days = get_epoch_day_of_temporal_value(start), get_epoch_day_of_temporal_value(end)
    zones = get_temporal_zone(start), get_temporal_zone(end)
    first_days, last_days = days[0] if days[0] is not None else days[1], days[1] if days[1] is not None else days[0]
    return (
        _complete(start, first_days or 0, zones[0] if zones[0] is not None else zones[1]),
        _complete(end, last_days or 0, zones[1] if zones[1] is not None else zones[0]),
    )


def _complete(value: TemporalInstant, days: int, zone: ZoneReference | None) -> LocalDateTime | ZonedDateTime:
    if isinstance(value, ZonedDateTime):
        return value
    nanoseconds = get_time_of_day_nanoseconds(value) or 0
    return LocalDateTime(days, nanoseconds) if zone is None else new_zoned_datetime(days, nanoseconds, zone)


def _find_instant(value: LocalDateTime | ZonedDateTime) -> int:
    """Return nanoseconds since 1970, of a local datetime as if it were UTC."""
    if isinstance(value, ZonedDateTime):
        return value.instant
    return value.days * DAY_NANOSECONDS + value.nanoseconds
