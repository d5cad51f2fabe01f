"""Temporal values: immutable, hashable, equal by type and fields, printed in ISO 8601.

Nanoseconds of a time are counted from midnight, days from 1970-01-01, offsets in seconds east of UTC.
No library on PyPI fits: they end at the year 9999 or at microseconds, and none builds dates from quarters and weeks.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter import calendar_dates, time_zones
from kgserve.cypher.interpreter.time_zones import ZoneReference
from kgserve.errors import InvalidInput

SECOND_NANOSECONDS = 1_000_000_000
DAY_SECONDS = 86_400
DAY_NANOSECONDS = DAY_SECONDS * SECOND_NANOSECONDS
_MAX_UNSIGNED_YEAR = 9999
_MAX_INTEGER = 2**63 - 1
_MONTH_SECONDS = 2_629_746


class CalendarDate(msgspec.Struct, frozen=True, gc=False):
    """``DATE``: a calendar date."""

    days: int

    @override
    def __str__(self) -> str:
        return format_cypher_date(self.days)


class LocalTime(msgspec.Struct, frozen=True, gc=False):
    """``LOCAL TIME``: a time of day without a zone."""

    nanoseconds: int

    @override
    def __str__(self) -> str:
        return format_cypher_time_of_day(self.nanoseconds)


class OffsetTime(msgspec.Struct, frozen=True, gc=False):
    """``ZONED TIME``: a time of day at an offset from UTC."""

    nanoseconds: int
    offset: int

    @override
    def __str__(self) -> str:
        return format_cypher_time_of_day(self.nanoseconds) + time_zones.format_utc_offset(self.offset)


class LocalDateTime(msgspec.Struct, frozen=True, gc=False):
    """``LOCAL DATETIME``: a day and a time of day without a zone."""

    days: int
    nanoseconds: int

    @override
    def __str__(self) -> str:
        return f"{format_cypher_date(self.days)}T{format_cypher_time_of_day(self.nanoseconds)}"


class ZonedDateTime(msgspec.Struct, frozen=True, gc=False):
    """``ZONED DATETIME``: a local day and time of day, and the offset there; ``region`` names the zone, if any."""

    days: int
    nanoseconds: int
    offset: int
    region: str | None = None

    @override
    def __str__(self) -> str:
        text = f"{format_cypher_date(self.days)}T{format_cypher_time_of_day(self.nanoseconds)}{time_zones.format_utc_offset(self.offset)}"
        return text if self.region is None else f"{text}[{self.region}]"

    @property
    def zone(self) -> ZoneReference:
        """Region if the zone has a name, else the offset."""
        return self.offset if self.region is None else self.region

    @property
    def instant(self) -> int:
        """Nanoseconds since 1970 in UTC."""
        return self.days * DAY_NANOSECONDS + self.nanoseconds - self.offset * SECOND_NANOSECONDS


class DurationValue(msgspec.Struct, frozen=True, gc=False):
    """``DURATION``: months, days and seconds apart; ``nanoseconds`` are 0 to 999,999,999, also of negative seconds."""

    months: int = 0
    days: int = 0
    seconds: int = 0
    nanoseconds: int = 0

    @override
    def __str__(self) -> str:
        return _format_duration(self)

    @property
    def total_nanoseconds(self) -> int:
        """Seconds and nanoseconds as one number."""
        return self.seconds * SECOND_NANOSECONDS + self.nanoseconds

    @property
    def average_seconds(self) -> int:
        """Length in seconds with months of average length."""
        return self.months * _MONTH_SECONDS + self.days * DAY_SECONDS + self.seconds


TemporalInstant: TypeAlias = CalendarDate | LocalTime | OffsetTime | LocalDateTime | ZonedDateTime
TemporalValue: TypeAlias = TemporalInstant | DurationValue


def new_duration(months: int, days: int, nanoseconds: int) -> DurationValue:
    """Create a duration. Raises InvalidInput if a part does not fit into 64 bits."""
    seconds, rest = divmod(nanoseconds, SECOND_NANOSECONDS)
    duration = DurationValue(months, days, seconds, rest)
    if max(abs(months), abs(days), abs(seconds), abs(duration.average_seconds)) > _MAX_INTEGER:
        raise InvalidInput("the duration is too long; its length in seconds must fit into 64 bits")
    return duration


def new_local_datetime(days: int, nanoseconds: int) -> LocalDateTime:
    """Create a local datetime; nanoseconds beyond a day carry over. Raises InvalidInput if out of range."""
    carry, rest = divmod(nanoseconds, DAY_NANOSECONDS)
    return LocalDateTime(calendar_dates.check_epoch_days_range(days + carry), rest)


def new_zoned_datetime(days: int, nanoseconds: int, zone: ZoneReference, preferred: int | None = None) -> ZonedDateTime:
    """Create a zoned datetime at a local time; ``preferred`` is the offset for a time that occurs twice."""
    seconds, fraction = divmod(days * DAY_NANOSECONDS + nanoseconds, SECOND_NANOSECONDS)
    local, offset = time_zones.resolve_local_time(zone, seconds, preferred)
    return _join_zoned(local * SECOND_NANOSECONDS + fraction, offset, zone)


def datetime_from_epoch_nanoseconds(instant: int, zone: ZoneReference) -> ZonedDateTime:
    """Return the datetime of an instant in nanoseconds since 1970. Raises InvalidInput if out of range."""
    offset = time_zones.find_utc_offset(zone, instant // SECOND_NANOSECONDS)
    return _join_zoned(instant + offset * SECOND_NANOSECONDS, offset, zone)


def _join_zoned(local: int, offset: int, zone: ZoneReference) -> ZonedDateTime:
    days, nanoseconds = divmod(local, DAY_NANOSECONDS)
    region = zone if isinstance(zone, str) else None
    return ZonedDateTime(calendar_dates.check_epoch_days_range(days), nanoseconds, offset, region)


# Parts


def get_epoch_day_of_temporal_value(value: TemporalInstant) -> int | None:
    """Return the day of a temporal value since 1970-01-01; None if it has none."""
    return None if isinstance(value, LocalTime | OffsetTime) else value.days


def get_time_of_day_nanoseconds(value: TemporalInstant) -> int | None:
    """Return the time of day of a temporal value in nanoseconds; None if it has none."""
    return None if isinstance(value, CalendarDate) else value.nanoseconds


def get_temporal_zone(value: TemporalInstant) -> ZoneReference | None:
    """Return the time zone of a temporal value; None if it has none."""
    if isinstance(value, ZonedDateTime):
        return value.zone
    return value.offset if isinstance(value, OffsetTime) else None


# Text


def format_cypher_date(days: int) -> str:
    """Return a day as ``2015-06-24``; years beyond 9999 have a sign."""
    year, month, day = calendar_dates.epoch_days_to_year_month_day(days)
    if year < 0:
        return f"-{-year:04}-{month:02}-{day:02}"
    return f"{'+' if year > _MAX_UNSIGNED_YEAR else ''}{year:04}-{month:02}-{day:02}"


def format_cypher_time_of_day(nanoseconds: int) -> str:
    """Return a time of day as ``12:31``, with seconds and their fraction if they are not zero."""
    seconds, fraction = divmod(nanoseconds, SECOND_NANOSECONDS)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    if fraction:
        return f"{text}:{second:02}.{_format_fraction(fraction)}"
    return f"{text}:{second:02}" if second else text


def _format_fraction(nanoseconds: int) -> str:
    return f"{nanoseconds:09}".rstrip("0")


def _format_duration(value: DurationValue) -> str:
    date_part = [(abs(value.months) // 12, value.months, "Y"), (abs(value.months) % 12, value.months, "M")]
    date_part.append((abs(value.days), value.days, "D"))
    total = value.total_nanoseconds
    seconds, fraction = divmod(abs(total), SECOND_NANOSECONDS)
    time_part = [(seconds // 3600, total, "H"), (seconds // 60 % 60, total, "M")]
    text = "P" + "".join(_format_amounts(date_part))
    if not total:
        return text if text != "P" else "PT0S"
    text += "T" + "".join(_format_amounts(time_part))
    if not seconds % 60 and not fraction:
        return text
    decimals = f".{_format_fraction(fraction)}" if fraction else ""
    return f"{text}{'-' if total < 0 else ''}{seconds % 60}{decimals}S"


def _format_amounts(amounts: list[tuple[int, int, str]]) -> list[str]:
    """Return texts of amounts that are not zero; the second number of each has its sign."""
    return [f"{'-' if sign < 0 else ''}{amount}{unit}" for amount, sign, unit in amounts if amount]
