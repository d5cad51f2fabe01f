"""Parser of temporal values in the forms of ISO 8601 that openCypher accepts."""

from __future__ import annotations

import re
from fractions import Fraction

from kgserve.cypher.interpreter import calendar_dates, durations, time_zones
from kgserve.cypher.interpreter.temporal_values import (
    SECOND_NANOSECONDS,
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    TemporalInstant,
    ZonedDateTime,
    new_zoned_datetime,
)
from kgserve.cypher.interpreter.time_zones import ZoneReference
from kgserve.errors import InvalidInput

_DATE = r"""(?:
    (?P<year>\d{4}|[+-]\d{1,9})
    (?: -W(?P<week>\d{1,2})(?:-(?P<week_day>\d))?
      | -Q(?P<quarter>\d)(?:-(?P<quarter_day>\d{1,2}))?
      | -(?P<ordinal>\d{3})
      | -(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?
    )?
  | (?P<short_year>\d{4})
    (?: W(?P<short_week>\d{2})(?P<short_week_day>\d)?
      | Q(?P<short_quarter>\d)(?P<short_quarter_day>\d{2})?
      | (?P<short_ordinal>\d{3})
      | (?P<short_month>\d{2})(?P<short_day>\d{2})?
    )
)"""
_TIME = r"""(?:
    (?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:[.,](?P<fraction>\d{1,9}))?)?
  | (?P<short_hour>\d{2})(?:(?P<short_minute>\d{2})(?:(?P<short_second>\d{2})(?:[.,](?P<short_fraction>\d{1,9}))?)?)?
)"""
_OFFSET = rf"(?P<offset>{time_zones.OFFSET_PATTERN})?"
_ZONE = _OFFSET + r"(?:\[(?P<region>[^\[\]]{1,64})\])?"
_FLAGS = re.VERBOSE | re.IGNORECASE | re.ASCII
_PATTERNS: dict[type[TemporalInstant], tuple[re.Pattern[str], str]] = {
    CalendarDate: (re.compile(_DATE, _FLAGS), "2015-06-24"),
    LocalTime: (re.compile(rf"T?{_TIME}", _FLAGS), "12:50:35.556"),
    OffsetTime: (re.compile(rf"T?{_TIME}{_OFFSET}", _FLAGS), "12:50:35.556+01:00"),
    LocalDateTime: (re.compile(rf"{_DATE}(?:T{_TIME})?", _FLAGS), "2015-06-24T12:50:35.556"),
    ZonedDateTime: (re.compile(rf"{_DATE}(?:T{_TIME}{_ZONE})?", _FLAGS), "2015-06-24T12:50:35.556+01:00"),
}
_NUMBER = r"[+-]?\d+(?:[.,]\d+)?"
_DURATION = re.compile(
    rf"""(?P<sign>[+-])?P(?=[\dT+-])
    (?:(?P<years>{_NUMBER})Y)?(?:(?P<months>{_NUMBER})M)?(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?
    (?:T(?=[\d+-])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?""",
    _FLAGS,
)
_CLOCK_DURATION = re.compile(
    r"""(?P<sign>[+-])?P(?:(?P<years>\d{4})-(?P<months>\d{2})-(?P<days>\d{2})
      | (?P<short_years>\d{4})(?P<short_months>\d{2})(?P<short_days>\d{2}))
    (?:T(?:(?P<hours>\d{2}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}(?:[.,]\d{1,9})?))?
      | (?P<short_hours>\d{2})(?P<short_minutes>\d{2})(?P<short_seconds>\d{2}(?:[.,]\d{1,9})?)?))?""",
    _FLAGS,
)
_MAX_CLOCK_AMOUNTS = {"years": 9999, "months": 12, "days": 31, "hours": 24, "minutes": 59, "seconds": 60}
_MAX_TEXT_CHARACTERS = 200
_DATE_PARTS = ("quarter", "month", "week", "ordinal", "quarter_day", "week_day", "day")
_SETTER_NAMES = {"ordinal": "ordinalDay", "quarter_day": "dayOfQuarter", "week_day": "dayOfWeek"}


def parse_iso8601_temporal_value(kind: type[TemporalInstant], text: str) -> TemporalInstant:
    """Parse a date, time or datetime in ISO 8601. Raises InvalidInput."""
    pattern, example = _PATTERNS[kind]
    match = pattern.fullmatch(text) if len(text) <= _MAX_TEXT_CHARACTERS else None
    if match is None:
        raise InvalidInput(f"{text[:_MAX_TEXT_CHARACTERS]!r} cannot be parsed; write it as in {example!r}")
    parts = match.groupdict()
    if kind is CalendarDate:
        return CalendarDate(_read_date(parts))
    if kind is LocalTime:
        return LocalTime(_read_time(parts))
    if kind is OffsetTime:
        return OffsetTime(_read_time(parts), _read_offset(parts) or 0)
    if kind is LocalDateTime:
        return LocalDateTime(_read_date(parts), _read_time(parts))
    return _read_zoned(parts, text)


def _read_zoned(parts: dict[str, str | None], text: str) -> ZonedDateTime:
    days, nanoseconds, offset = _read_date(parts), _read_time(parts), _read_offset(parts)
    zone: ZoneReference = offset or 0
    if parts["region"]:
        zone = time_zones.parse_time_zone(parts["region"])
    value = new_zoned_datetime(days, nanoseconds, zone, offset)
    if offset is not None and value.offset != offset:
        raise InvalidInput(f"in {text!r}, the offset is not one that the time zone has at this time")
    return value


def _read_date(parts: dict[str, str | None]) -> int:
    year = int(parts["year"] or parts["short_year"] or 0)
    calendar_dates.check_year_range(year)
    numbers = {name: parts[name] or parts[f"short_{name}"] for name in _DATE_PARTS}
    days = calendar_dates.date_to_epoch_days(year)
    if numbers["week"]:
        days = calendar_dates.start_of_iso_week_year(year)
    for name, digits in numbers.items():
        if digits:
            days = calendar_dates.DATE_SETTERS[_SETTER_NAMES.get(name, name)](days, int(digits))
    return calendar_dates.check_epoch_days_range(days)


def _read_time(parts: dict[str, str | None]) -> int:
    """Return nanoseconds since midnight, zero for a text without a time."""
    hour, minute, second = (int(parts[name] or parts[f"short_{name}"] or 0) for name in ("hour", "minute", "second"))
    fraction = parts["fraction"] or parts["short_fraction"] or ""
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004
        raise InvalidInput(f"there is no time {hour:02}:{minute:02}:{second:02}")
    return ((hour * 60 + minute) * 60 + second) * SECOND_NANOSECONDS + int(fraction.ljust(9, "0"))


def _read_offset(parts: dict[str, str | None]) -> int | None:
    text = parts["offset"]
    zone = None if text is None else time_zones.parse_time_zone(text)
    return zone if isinstance(zone, int) else None


def parse_iso8601_duration(text: str) -> DurationValue:
    """Parse a duration in ISO 8601, such as ``P1Y2M3DT4H5M6.7S`` or ``P2012-02-02T14:37:21``."""
    is_short = len(text) <= _MAX_TEXT_CHARACTERS
    if is_short and (match := _CLOCK_DURATION.fullmatch(text)):
        amounts = _read_clock_amounts(match.groupdict(), text)
    elif is_short and (match := _DURATION.fullmatch(text)):
        amounts = {
            unit: _read_number(digits) for unit, digits in match.groupdict().items() if digits and unit != "sign"
        }
    else:
        raise InvalidInput(f"{text[:_MAX_TEXT_CHARACTERS]!r} cannot be parsed; write it as in 'P1Y2M3DT4H5M6.7S'")
    if match["sign"] == "-":
        amounts = {unit: -amount for unit, amount in amounts.items()}
    return durations.build_duration_from_units(amounts)


def _read_clock_amounts(parts: dict[str, str | None], text: str) -> dict[str, Fraction]:
    amounts = {unit: _read_number(parts[unit] or parts[f"short_{unit}"] or "0") for unit in _MAX_CLOCK_AMOUNTS}
    for unit, most in _MAX_CLOCK_AMOUNTS.items():
        if amounts[unit] > most:
            raise InvalidInput(f"in {text!r}, the {unit} are more than {most}")
    return amounts


def _read_number(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "."))
