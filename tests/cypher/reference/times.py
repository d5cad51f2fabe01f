"""Timestamps: parsing of literals, and their parts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.cypher.reference.values import EPOCH, CypherError, Timestamp, type_name

_TIMESTAMP = re.compile(
    r"(?P<date>\d{4}-\d{1,2}-\d{1,2})(?:[ T](?P<time>\d{1,2}:\d{2}:\d{2})(?:\.(?P<fraction>\d{1,6}))?)?"
)
_PARTS = ("year", "month", "day", "hour", "minute", "second")


def read_timestamp(text: str) -> Timestamp:
    """Parse `YYYY-MM-DD hh:mm:ss[.ffffff]` as UTC. Raises CypherError for anything else."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise CypherError(f"{text!r} is no timestamp")
    numbers = [int(each) for each in (*match["date"].split("-"), *(match["time"] or "0:0:0").split(":"))]
    try:
        moment = datetime(*numbers, tzinfo=UTC)
    except ValueError as error:
        raise CypherError(f"{text!r}: {error}") from None
    fraction = int((match["fraction"] or "0").ljust(6, "0"))
    return Timestamp((moment - EPOCH) // timedelta(microseconds=1) + fraction)


def date_part(part: str, moment: Any) -> int:
    """Return a part of a timestamp by its name."""
    if not isinstance(moment, Timestamp) or part not in _PARTS:
        raise CypherError(f"{part!r} of {type_name(moment)}")
    return int(getattr(moment.moment, part))
