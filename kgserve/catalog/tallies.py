"""Counts by type and by tag that are kept, and never made by a scan.

A tag `prefix:value` counts three times: as a tag, for its prefix, and as a value of that prefix, so that each of them
is found by frequency in one index.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator

from kgserve.catalog import statements as sql

TYPES = "type"
RELATION_TYPES = "relation_type"
TAGS = "tag"
PREFIXES = "prefix"
_VALUES = "value:"
# Sorting fewer than these is faster than to pass over the rest, the most frequent first.
_FEW = 5_000
_LAST = chr(0x10FFFF)
_HALVES, _BEHIND_HALVES = 0xD800, 0xE000

Count = tuple[str, str, int]


def values_of(prefix: str) -> str:
    """The kind of tally that holds the values of a prefix."""
    return _VALUES + prefix


def split_tag(tag: str) -> tuple[str, str] | None:
    """The prefix of a tag, and its value; None when nothing is in front of a colon."""
    prefix, colon, value = tag.partition(":")
    return (prefix, value) if prefix and colon else None


def by_kind(kind: str, counts: Counter[str]) -> list[Count]:
    """Counts of one kind that are not zero."""
    return [(kind, name, count) for name, count in counts.items() if count]


def of_tags(tags: Counter[str]) -> list[Count]:
    """What a change of counts by tag comes to in all."""
    prefixes: Counter[str] = Counter()
    values: list[Count] = []
    for tag, count in tags.items():
        if count and (parts := split_tag(tag)):
            prefixes[parts[0]] += count
            values.append((values_of(parts[0]), parts[1], count))
    return [*by_kind(TAGS, tags), *by_kind(PREFIXES, prefixes), *values]


def add(connection: sqlite3.Connection, counts: Iterable[Count]) -> None:
    """Change counts; what comes to nothing is no longer there."""
    changes = list(counts)
    connection.executemany(sql.TALLY, changes)
    if less := [(kind, name) for kind, name, count in changes if count < 0]:
        connection.executemany(sql.TALLY_END, less)


def count_of(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """One count; 0 when it is not there."""
    found = connection.execute(sql.COUNT, (kind, name)).fetchone()
    return found[0] if found else 0


def most(connection: sqlite3.Connection, kind: str, limit: int) -> list[tuple[str, int]]:
    """The most frequent of a kind, by count and then by name."""
    return connection.execute(sql.MOST, {"kind": kind, "limit": limit}).fetchall()


def most_tags(connection: sqlite3.Connection, start: str, limit: int) -> Iterator[tuple[str, int]]:
    """The most frequent tags that start so."""
    parts = split_tag(start)
    kind, first = (values_of(parts[0]), parts[1]) if parts else (TAGS, start)
    before = start.removesuffix(first)
    found = _most_between(connection, kind, first, limit) if first else most(connection, kind, limit)
    return ((before + name, count) for name, count in found)


def _most_between(connection: sqlite3.Connection, kind: str, first: str, limit: int) -> list[tuple[str, int]]:
    values = {"kind": kind, "first": first, "behind": behind(first), "limit": _FEW}
    (number,) = connection.execute(sql.HOW_MANY, values).fetchone()
    query = sql.FEW_BETWEEN if number < _FEW else sql.MOST_BETWEEN
    return connection.execute(query, {**values, "limit": limit}).fetchall()


def behind(start: str) -> str | bytes:
    """What SQLite puts behind all texts that start so, and before what follows them. Halves of pairs are no text."""
    kept = start.rstrip(_LAST)
    if not kept:
        return b""  # behind all texts
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_BEHIND_HALVES if following == _HALVES else following)
