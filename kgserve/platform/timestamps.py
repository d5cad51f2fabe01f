"""Timestamps: integer microseconds since 1970 in UTC internally, RFC 3339 text externally."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE_MICROSECOND = timedelta(microseconds=1)
DAY_MICROSECONDS = 86_400_000_000
_MIN_TIME = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // ONE_MICROSECOND
_MAX_TIME = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // ONE_MICROSECOND
_RFC3339_PATTERN = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")

_GIVEN_TIME_PATTERN = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[Tt ](?P<hour>\d\d:\d\d)(?P<second>:\d\d(?:\.\d{1,9})?)?"
    r" ?(?P<zone>[Zz]|UTC|[+-]\d\d:?\d\d)?)?"
)
"""A day, or a time that may lack seconds and time zone."""


def format_rfc3339_timestamp(microseconds: int) -> str:
    """Return a time as RFC 3339 in UTC with six decimals, so that text order is time order."""
    second, rest = divmod(microseconds, 1_000_000)
    return f"{_format_second(second)}.{rest:06}Z"


@lru_cache(maxsize=4096)
def _format_second(second: int) -> str:
    """Format a whole second. Cached, since many times fall into the same second."""
    return (_EPOCH + timedelta(seconds=second)).isoformat(timespec="seconds").removesuffix("+00:00")


@lru_cache(maxsize=4096)
def parse_stored_time(text: str) -> int:
    """Parse the output of `format_time`. Cached, since rows written together share their times."""
    return datetime_to_epoch_microseconds(datetime.fromisoformat(text))


def parse_rfc3339_timestamp(text: str) -> int:
    """Return the microseconds since 1970 of an RFC 3339 time. Raises ValueError for any other text."""
    if not is_rfc3339(text):
        raise ValueError("expected an RFC 3339 time such as 2025-07-15T12:00:00Z")
    microseconds = datetime_to_epoch_microseconds(datetime.fromisoformat(text.upper().replace(" ", "T")))
    if not is_representable_time(microseconds):
        raise ValueError("is outside the years 1 to 9999 in UTC")
    return microseconds


def complete_time_to_rfc3339(text: str) -> str | None:
    """Complete a day, or a time without seconds or time zone, to RFC 3339; the default zone is UTC.

    Returns None if the text is neither.
    """
    found = _GIVEN_TIME_PATTERN.fullmatch(text.strip())
    if found is None:
        return None
    zone = (found["zone"] or "Z").upper().replace("UTC", "Z")
    zone = zone if zone == "Z" or ":" in zone else f"{zone[:3]}:{zone[3:]}"
    whole = f"{found['day']}T{found['hour'] or '00:00'}{found['second'] or ':00'}{zone}"
    try:
        parse_rfc3339_timestamp(whole)
    except ValueError:
        return None
    return whole


def has_time_zone(text: str) -> bool:
    """Return whether a day or a time includes its time zone."""
    found = _GIVEN_TIME_PATTERN.fullmatch(text.strip())
    return found is not None and found["zone"] is not None


def is_rfc3339(text: str) -> bool:
    """Return whether a text has the form of an RFC 3339 time, even if no such day exists."""
    return _RFC3339_PATTERN.fullmatch(text) is not None


def datetime_to_epoch_microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970 of a timezone-aware datetime."""
    return (moment - _EPOCH) // ONE_MICROSECOND


def is_representable_time(microseconds: int) -> bool:
    """Return whether a time lies within the years 1 to 9999, which text can express."""
    return _MIN_TIME <= microseconds <= _MAX_TIME
