"""PackStream structures of dates, times and durations.

Times with a zone are instants in UTC from Bolt 5.0 on (tags ``I`` and ``i``); before, they are local times (``F`` and
``f``) unless the client asked for the newer form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter.calendar_dates import check_epoch_days_range, date_to_epoch_days
from kgserve.cypher.interpreter.temporal_values import (
    DAY_NANOSECONDS,
    DAY_SECONDS,
    SECOND_NANOSECONDS,
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    ZonedDateTime,
    datetime_from_epoch_nanoseconds,
    new_duration,
    new_local_datetime,
    new_zoned_datetime,
)
from kgserve.cypher.interpreter.time_zones import MAX_OFFSET_SECONDS, ZoneReference, parse_time_zone
from kgserve.errors import InvalidInput
from kgserve.server.bolt.packstream import PackStreamStructure, ProtocolViolation

DATE, TIME, LOCAL_TIME, LOCAL_DATETIME, DURATION = b"DTtdE"
UTC_DATETIME, UTC_DATETIME_IN_REGION, DATETIME, DATETIME_IN_REGION = b"IiFf"
_FIRST_SENT_DAY, _LAST_SENT_DAY = date_to_epoch_days(1), date_to_epoch_days(9999, 12, 31)


class BoltTemporalCodec:
    """Codec of temporal values as Bolt structures; ``is_utc`` selects the form of times with a zone."""

    def __init__(self, *, is_utc: bool) -> None:
        self._is_utc = is_utc
        offset_tag, region_tag = (UTC_DATETIME, UTC_DATETIME_IN_REGION) if is_utc else (DATETIME, DATETIME_IN_REGION)
        self._tags = offset_tag, region_tag
        self._readers: dict[int, tuple[tuple[type, ...], Callable[..., Any]]] = {
            DATE: ((int,), _read_date),
            TIME: ((int, int), _read_time),
            LOCAL_TIME: ((int,), _read_local_time),
            LOCAL_DATETIME: ((int, int), _read_local_datetime),
            DURATION: ((int, int, int, int), _read_duration),
            offset_tag: ((int, int, int), self._read_datetime),
            region_tag: ((int, int, str), self._read_datetime),
        }

    def writers(self) -> dict[type, Callable[[Any], PackStreamStructure]]:
        """Return the functions that turn values into structures, by class."""
        return {
            CalendarDate: lambda value: PackStreamStructure(DATE, (_check_sent_days(value.days),)),
            OffsetTime: lambda value: PackStreamStructure(TIME, (value.nanoseconds, value.offset)),
            LocalTime: lambda value: PackStreamStructure(LOCAL_TIME, (value.nanoseconds,)),
            LocalDateTime: _write_local_datetime,
            ZonedDateTime: self._write_datetime,
            DurationValue: lambda value: PackStreamStructure(
                DURATION, (value.months, value.days, value.seconds, value.nanoseconds)
            ),
        }

    def has_reader(self, tag: int) -> bool:
        """Return whether a tag is that of a temporal value."""
        return tag in self._readers

    def read(self, tag: int, fields: list[Any]) -> Any:
        """Return the value of a structure. Raises InvalidInput, and ProtocolViolation for fields of other types."""
        types, reader = self._readers[tag]
        if tuple(map(type, fields)) != types:
            raise ProtocolViolation(f"the structure with tag {tag:#04x} has fields of wrong types")
        return reader(*fields)

    def _write_datetime(self, value: ZonedDateTime) -> PackStreamStructure:
        seconds, nanoseconds = divmod(value.nanoseconds, SECOND_NANOSECONDS)
        seconds += value.days * DAY_SECONDS
        if self._is_utc:
            seconds -= value.offset
        _check_sent_days(value.days, seconds // DAY_SECONDS)
        return PackStreamStructure(self._tags[value.region is not None], (seconds, nanoseconds, value.zone))

    def _read_datetime(self, seconds: int, nanoseconds: int, zone: ZoneReference) -> ZonedDateTime:
        zone = parse_time_zone(zone) if isinstance(zone, str) else _check_offset(zone)
        total = seconds * SECOND_NANOSECONDS + _check_fraction(nanoseconds)
        if self._is_utc:
            return datetime_from_epoch_nanoseconds(total, zone)
        return new_zoned_datetime(*divmod(total, DAY_NANOSECONDS), zone)


def _write_local_datetime(value: LocalDateTime) -> PackStreamStructure:
    seconds, nanoseconds = divmod(value.nanoseconds, SECOND_NANOSECONDS)
    return PackStreamStructure(LOCAL_DATETIME, (_check_sent_days(value.days) * DAY_SECONDS + seconds, nanoseconds))


def _check_sent_days(*days: int) -> int:
    """Return the first day. Raises InvalidInput for one that drivers cannot read: they fail without a reason."""
    if min(days) < _FIRST_SENT_DAY or max(days) > _LAST_SENT_DAY:
        raise InvalidInput("drivers read only dates of the years 1 to 9999; return toString(…) of this one")
    return days[0]


def _read_date(days: int) -> CalendarDate:
    return CalendarDate(check_epoch_days_range(days))


def _read_time(nanoseconds: int, offset: int) -> OffsetTime:
    return OffsetTime(_check_time(nanoseconds), _check_offset(offset))


def _read_local_time(nanoseconds: int) -> LocalTime:
    return LocalTime(_check_time(nanoseconds))


def _read_local_datetime(seconds: int, nanoseconds: int) -> LocalDateTime:
    days, rest = divmod(seconds, DAY_SECONDS)
    return new_local_datetime(days, rest * SECOND_NANOSECONDS + _check_fraction(nanoseconds))


def _read_duration(months: int, days: int, seconds: int, nanoseconds: int) -> DurationValue:
    return new_duration(months, days, seconds * SECOND_NANOSECONDS + nanoseconds)


def _check_time(nanoseconds: int) -> int:
    if not 0 <= nanoseconds < DAY_NANOSECONDS:
        raise InvalidInput("a time of day must be less than 24 hours")
    return nanoseconds


def _check_fraction(nanoseconds: int) -> int:
    if not 0 <= nanoseconds < SECOND_NANOSECONDS:
        raise InvalidInput("the nanoseconds of a datetime must be 0 to 999,999,999")
    return nanoseconds


def _check_offset(offset: int) -> int:
    if abs(offset) > MAX_OFFSET_SECONDS:
        raise InvalidInput("the offset of a time zone must be -18:00 to +18:00")
    return offset
