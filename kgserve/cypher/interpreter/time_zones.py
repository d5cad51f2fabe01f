"""Time zones of temporal values: offsets from UTC in seconds, and regions of the IANA database by name.

The database of the ``tzdata`` package is preferred to the system's, so that every machine gives the same answers:
distributions differ in the local times before 1970.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kgserve.errors import InvalidInput

ZoneReference: TypeAlias = int | str
"""Offset from UTC in seconds, or name of a region."""

MAX_OFFSET_SECONDS = 18 * 3600
OFFSET_PATTERN = r"Z|[+-]\d{2}(?::?\d{2}(?::?\d{2})?)?"
REGION_PATTERN = r"[A-Za-z][A-Za-z0-9_+ -]*(?:/[A-Za-z0-9_+ -]+)*"
_OFFSET = re.compile(r"(Z)|([+-])(\d{2})(?::?(\d{2})(?::?(\d{2}))?)?", re.IGNORECASE)
_REGION = re.compile(REGION_PATTERN)
_MAX_REGION_CHARACTERS = 64
_SIXTY = 60
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
_CYCLE_SECONDS = 146_097 * 86_400
_FIRST_SECOND = int((datetime(2, 1, 1) - _EPOCH).total_seconds())  # noqa: DTZ001
_LAST_SECOND = int((datetime(9990, 1, 1) - _EPOCH).total_seconds())  # noqa: DTZ001


def parse_time_zone(text: str) -> ZoneReference:
    """Parse a time zone: ``Z``, ``+01:00``, ``+0100``, ``+01`` or a name. Raises InvalidInput."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        name = text.replace(" ", "_")
        _load_region(name)
        return name
    if match[1]:
        return 0
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[2:])
    offset = (hours * _SIXTY + minutes) * _SIXTY + seconds
    if minutes >= _SIXTY or seconds >= _SIXTY or offset > MAX_OFFSET_SECONDS:
        raise InvalidInput(f"{text} is no offset from UTC; offsets reach from -18:00 to +18:00")
    return -offset if match[2] == "-" else offset


def format_utc_offset(offset: int) -> str:
    """Return an offset as ``+01:00``, with seconds if it has them, or ``Z`` for UTC."""
    if not offset:
        return "Z"
    minutes, seconds = divmod(abs(offset), _SIXTY)
    text = f"{'-' if offset < 0 else '+'}{minutes // _SIXTY:02}:{minutes % _SIXTY:02}"
    return f"{text}:{seconds:02}" if seconds else text


def find_utc_offset(zone: ZoneReference, instant: int) -> int:
    """Return a zone's offset at a time in seconds since 1970 in UTC."""
    if isinstance(zone, int):
        return zone
    moment = _EPOCH + timedelta(seconds=_map_to_range(instant))
    region = _load_region(zone)
    return _to_seconds(region.fromutc(moment.replace(tzinfo=region)).utcoffset())


def resolve_local_time(zone: ZoneReference, local: int, preferred: int | None = None) -> tuple[int, int]:
    """Resolve a local time in a time zone; return it and its UTC offset, both in seconds.

    A time that a change of the clock skips is moved forward by the gap. A time that occurs twice is the one with the
    preferred offset, else the first.
    """
    if isinstance(zone, int):
        return local, zone
    region = _load_region(zone)
    moment = (_EPOCH + timedelta(seconds=_map_to_range(local))).replace(tzinfo=region)
    first = _to_seconds(moment.utcoffset())
    second = _to_seconds(moment.replace(fold=1).utcoffset())
    if first == second:
        return local, first
    if preferred == second and find_utc_offset(zone, local - second) == second:
        return local, second
    instant = local - first
    offset = find_utc_offset(zone, instant)
    return instant + offset, offset


def _map_to_range(seconds: int) -> int:
    """Return a time in the years 2 to 9990 at which zones have the same offset."""
    if seconds < _FIRST_SECOND:
        return _FIRST_SECOND
    if seconds > _LAST_SECOND:
        return seconds - (seconds - _LAST_SECOND + _CYCLE_SECONDS - 1) // _CYCLE_SECONDS * _CYCLE_SECONDS
    return seconds


def _to_seconds(offset: timedelta | None) -> int:
    return round(offset.total_seconds()) if offset is not None else 0


@lru_cache(maxsize=1024)
def _load_region(name: str) -> ZoneInfo:
    if len(name) <= _MAX_REGION_CHARACTERS and _REGION.fullmatch(name):
        try:
            return _read_region(name)
        except (OSError, ValueError, ZoneInfoNotFoundError):
            pass
    raise InvalidInput(
        f"there is no time zone {name[:_MAX_REGION_CHARACTERS]!r}; write an offset such as +01:00, "
        "or a name such as Europe/Stockholm"
    )


def _read_region(name: str) -> ZoneInfo:
    try:
        with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (ModuleNotFoundError, OSError):
        return ZoneInfo(name)
