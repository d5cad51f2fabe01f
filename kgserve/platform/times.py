"""Moments: microseconds since 1970 in UTC inside, RFC 3339 text outside."""

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
"""A day, or a time that may lack its seconds and its zone."""


def format_time(microseconds: int) -> str:
    """RFC 3339 in UTC, always with six decimals, so that the text sorts as the time does."""
    second, rest = divmod(microseconds, 1_000_000)
    return f"{_second(second)}.{rest:06}Z"


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    """A second as text: much is written within the same one."""
    return (_EPOCH + timedelta(seconds=second)).isoformat(timespec="seconds").removesuffix("+00:00")


@lru_cache(maxsize=4096)
def time_of(text: str) -> int:
    """The inverse of `format_time`. Rows that were written together have their times in common, so some are kept."""
    return microseconds_of(datetime.fromisoformat(text))


def parse_time(text: str) -> int:
    """Microseconds since 1970 of an RFC 3339 text. Raises ValueError for anything else."""
    if not has_form(text):
        raise ValueError("expected an RFC 3339 time such as 2025-07-15T12:00:00Z")
    microseconds = microseconds_of(datetime.fromisoformat(text.upper().replace(" ", "T")))
    if not is_within(microseconds):
        raise ValueError("is outside the years 1 to 9999 in UTC")
    return microseconds


def complete_time(text: str) -> str | None:
    """Complete a day, or a time without seconds or zone, to RFC 3339, in UTC unless it names a zone.

    None for what is neither.
    """
    found = _GIVEN_TIME_PATTERN.fullmatch(text.strip())
    if found is None:
        return None
    zone = (found["zone"] or "Z").upper().replace("UTC", "Z")
    zone = zone if zone == "Z" or ":" in zone else f"{zone[:3]}:{zone[3:]}"
    whole = f"{found['day']}T{found['hour'] or '00:00'}{found['second'] or ':00'}{zone}"
    try:
        parse_time(whole)
    except ValueError:
        return None
    return whole


def has_zone(text: str) -> bool:
    """Whether a day or a time names its zone."""
    found = _GIVEN_TIME_PATTERN.fullmatch(text.strip())
    return found is not None and found["zone"] is not None


def has_form(text: str) -> bool:
    """Whether a text is written as an RFC 3339 time is, be there such a day or not."""
    return _RFC3339_PATTERN.fullmatch(text) is not None


def microseconds_of(moment: datetime) -> int:
    """Microseconds since 1970 of a moment that knows its time zone."""
    return (moment - _EPOCH) // ONE_MICROSECOND


def is_within(microseconds: int) -> bool:
    """Whether a moment is in the years 1 to 9999, which texts can name."""
    return _MIN_TIME <= microseconds <= _MAX_TIME
