"""Finding the memories that a filter wants: along the index with the fewest entries, or in the order of a list."""
# ruff: noqa: S608 - texts made of constants, values as parameters

from __future__ import annotations

import heapq
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from kgserve.platform.sqlite_files import named
from kgserve.projections.memory_index import closure
from kgserve.projections.memory_index import statements as sql
from kgserve.projections.memory_index.decay import FIRST_LASTING_KEY, MIN_DECAY_KEY, least_key
from kgserve.projections.memory_index.entries import (
    TALLY_BOUNDED,
    TALLY_MEMORY_TAG,
    TALLY_MEMORY_TYPE,
    TALLY_SOURCE,
    TALLY_TOTAL,
    length_of_epoch,
)
from kgserve.storage.model.filters import ANY_END, MAX_SCANNED_NODES, MemoryFilter

MAX_SORTED_MEMORIES = 5_000
"""So many are found and sorted sooner than the rest is passed over in order."""
_MAX_SORT_VALUE = (1 << 63) - 1
_LOG2_OF_ZERO = -1e300

Sort = Literal["created", "updated", "confidence", "accessed"]


class MemoryPlace(NamedTuple):
    """Where a page of a list begins: behind a memory by its value and its id, of a half-life if that is the order.

    ``skip`` memories of the list are passed over.
    """

    value: int = _MAX_SORT_VALUE
    id: str = ""
    half: int = -1
    skip: int = 0

    @property
    def is_start(self) -> bool:
        """Whether nothing is in front of it."""
        return self.value == _MAX_SORT_VALUE


class MemoryIdPage(NamedTuple):
    """The ids of a page, and where the next one begins: None when there is none."""

    ids: list[str]
    next: MemoryPlace | None


class _Way(NamedTuple):
    """A part of a query that goes along an index, how many entries that has, and a condition that all of them meet."""

    source: str
    size: int
    implies: str = ""

    def query(self, wanted: MemoryFilter, conditions: Sequence[str]) -> str:
        """The part of a query from FROM on."""
        actives = ", ".join(map(str, _actives(wanted)))
        rest = [text for text in conditions if text != self.implies]
        return " AND ".join([f"{self.source} m.active IN ({actives})", *rest])


Values = dict[str, Any]


def ids(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], limit: int) -> list[str]:
    """At most so many of the memories that are wanted."""
    text, values = _selection(reader, wanted, halves)
    return [each for (each,) in reader.execute(f"SELECT m.id {text} LIMIT :limit", {**values, "limit": limit})]


def how_many(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], most: int) -> int:
    """How many memories are wanted; it stops at ``most``."""
    text, values = _selection(reader, wanted, halves)
    query = f"SELECT count(*) FROM (SELECT 1 {text} LIMIT :limit)"
    return reader.execute(query, {**values, "limit": most}).fetchone()[0]


def page(
    reader: sqlite3.Connection,
    wanted: MemoryFilter,
    halves: Sequence[int],
    order: Order,
    limit: int,
    also: Callable[[str], bool] | None = None,
) -> MemoryIdPage:
    """The next memories in the order of a list: the greatest value first, and of equal ones the last id.

    ``also`` is asked of those that the filter lets pass.
    """
    found = _in_order(reader, wanted, halves, order)
    chosen: list[str] = []
    at = order.place
    for number, (_, id_, value, half, passes) in enumerate(found):
        fits = passes and (also is None or also(id_))
        if number == MAX_SCANNED_NODES or (fits and len(chosen) == limit):
            return MemoryIdPage(chosen, at)
        skip = at.skip
        if fits and skip:
            skip -= 1
        elif fits:
            chosen.append(id_)
        at = MemoryPlace(value, id_, half, skip)
    return MemoryIdPage(chosen, None)


def strength(half: int, key: int, now: int) -> float:
    """The effective confidence that a key means, as its logarithm to base 2."""
    if key <= MIN_DECAY_KEY:
        return _LOG2_OF_ZERO
    return (
        (key - now) / half
        if half
        else math.log2((key - FIRST_LASTING_KEY) / (1 << 52))
        if key > FIRST_LASTING_KEY
        else _LOG2_OF_ZERO
    )


def _key_of(log2: float, half: int, now: int) -> int:
    """The inverse of `strength`, about."""
    if log2 <= _LOG2_OF_ZERO:
        return MIN_DECAY_KEY
    found = now + log2 * half if half else FIRST_LASTING_KEY + 2.0 ** (52 + min(log2, 0.0))
    return round(min(max(found, MIN_DECAY_KEY), 2 * FIRST_LASTING_KEY - 2048.0))


# Conditions


def _conditions(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int]) -> tuple[list[str], Values]:
    """What a memory ``m`` must meet, but for its being active."""
    texts: list[str] = []
    values: Values = {"at": wanted.moment}
    if wanted.looks_back or (not wanted.ended and wanted.moment is not None and _any_bounded(reader)):
        texts.append(_IS_IN_FORCE_AT)
    elif wanted.ended and wanted.ended != ANY_END:
        texts.append("m.ended = :ended")
    if wanted.types:
        values |= {f"type{at}": each for at, each in enumerate(wanted.types)}
        texts.append(f"m.type IN ({', '.join(f':type{at}' for at in range(len(wanted.types)))})")
    for at, tag in enumerate(wanted.tags):
        values[f"tag{at}"] = tag
        texts.append(f"EXISTS (SELECT 1 FROM tagged WHERE tag = :tag{at} AND memory = m.number)")
    if wanted.entity:
        holds = "1" if wanted.moment is None else _IS_ABOUT_IN_FORCE_AT
        texts.append(f"EXISTS (SELECT 1 FROM about WHERE entity = :entity AND memory = m.number AND {holds})")
    if wanted.under:
        texts.append(closure.IS_BELOW)
    if wanted.orphans:
        texts.append(closure.IS_ORPHAN)
    if wanted.among is not None:
        # No memory has an empty id: without any there would be nothing to go along the index by.
        own = named("among", sorted(wanted.among) or [""])
        values |= own
        texts.append(f"m.id IN ({', '.join(f':{name}' for name in own)})")
    texts += [text for field, text in _SIMPLE_CONDITIONS.items() if getattr(wanted, field) not in (None, "")]
    values |= {field: getattr(wanted, field) for field in (*_SIMPLE_CONDITIONS, "entity", "under", "ended")}
    if wanted.min_confidence > 0:
        texts += _strong_enough(reader, wanted, halves, values)
    return texts, values


_IS_IN_FORCE_AT = "(m.start IS NULL OR m.start <= :at) AND (m.stop IS NULL OR m.stop > :at)"
_IS_ABOUT_IN_FORCE_AT = "(start IS NULL OR start <= :at) AND (stop IS NULL OR stop > :at)"
_SIMPLE_CONDITIONS = {
    "created_from": "m.created >= :created_from",
    "created_to": "m.created <= :created_to",
    "source": "m.source = :source",
    "layer": "m.layer = :layer",
}


def _strong_enough(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], values: Values
) -> Iterator[str]:
    values["min_confidence"] = wanted.min_confidence
    for at, half in enumerate(halves):
        values[f"half{at}"] = half
        values[f"key{at}"] = least_key(wanted.min_confidence, wanted.now, half or None)
    keys = " OR ".join(f"(m.half = :half{at} AND m.key >= :key{at})" for at in range(len(halves)))
    yield f"({keys})"
    # What was set later than now has not faded yet, though its key is that of a greater confidence.
    if reader.execute(sql.SELECT_HAS_FUTURE, (wanted.now,)).fetchone()[0]:
        yield "m.confidence >= :min_confidence"


def _actives(wanted: MemoryFilter) -> tuple[int, ...]:
    return (1, 0) if wanted.ended == ANY_END or wanted.looks_back else (0,) if wanted.ended else (1,)


def _any_bounded(reader: sqlite3.Connection) -> bool:
    return count(reader, TALLY_BOUNDED, "") > 0


def count(reader: sqlite3.Connection, kind: str, name: str) -> int:
    """What is counted under a kind and a name."""
    found = reader.execute(sql.SELECT_MEMORY_TALLY, (kind, name)).fetchone()
    return found[0] if found else 0


# Sets


def _selection(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int]) -> tuple[str, Values]:
    """The part of a query from FROM on, and its values."""
    conditions, values = _conditions(reader, wanted, halves)
    return _fewest(reader, wanted, halves, values).query(wanted, conditions), values


def _fewest(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], values: Values) -> _Way:
    """The index to go along. What has ended is not counted by type and tag: entries of an index are, up to a number."""
    ways = [_Way("FROM memory AS m INDEXED BY memory_created WHERE", count(reader, TALLY_TOTAL, ""))]
    if wanted.ended or wanted.looks_back:
        ways = [_Way(ways[0].source, _MAX_SORT_VALUE)]
        ways += [_Way(_by_tag(at), _entries(reader, _TAGGED, [tag])) for at, tag in enumerate(wanted.tags)]
        if wanted.types:
            size = sum(_entries(reader, _OF_TYPE, [each]) for each in set(wanted.types))
            ways.append(_Way(_FROM_MEMORY_BY_TYPE, size))
    else:
        ways += [_Way(_by_tag(at), count(reader, TALLY_MEMORY_TAG, tag)) for at, tag in enumerate(wanted.tags)]
        if wanted.source:
            ways.append(_Way(_FROM_MEMORY_BY_SOURCE, count(reader, TALLY_SOURCE, wanted.source)))
        if wanted.types:
            size = sum(count(reader, TALLY_MEMORY_TYPE, each) for each in set(wanted.types))
            ways.append(_Way(_FROM_MEMORY_BY_TYPE, size))
    if wanted.among is not None:
        ways.append(_Way(_FROM_MEMORY_BY_ID, len(wanted.among)))
    if wanted.entity:
        ways.append(_Way(_FROM_MEMORY_BY_ENTITY, _entries(reader, _ABOUT_ENTITY, [wanted.entity])))
    if wanted.under:
        ways.append(
            _Way(
                closure.all_below(reader),
                closure.size(reader, wanted.under, 20 * MAX_SORTED_MEMORIES),
                closure.IS_BELOW,
            )
        )
    best = min(ways, key=lambda way: way.size)
    if wanted.min_confidence > 0 and not (wanted.ended or wanted.looks_back) and best.size > MAX_SORTED_MEMORIES:
        strong = sum(_strong(reader, half, values[f"key{at}"]) for at, half in enumerate(halves))
        best = min(best, _Way("FROM memory AS m INDEXED BY memory_key WHERE", strong), key=lambda way: way.size)
    return best


_FROM_MEMORY_BY_SOURCE = "FROM memory AS m INDEXED BY memory_source WHERE m.active AND m.source = :source AND"
_FROM_MEMORY_BY_ID = "FROM memory AS m INDEXED BY sqlite_autoindex_memory_1 WHERE"
_FROM_MEMORY_BY_ENTITY = "FROM about AS a CROSS JOIN memory AS m ON m.number = a.memory WHERE a.entity = :entity AND"


def _by_tag(at: int) -> str:
    return f"FROM tagged AS t CROSS JOIN memory AS m ON m.number = t.memory WHERE t.tag = :tag{at} AND"


_FROM_MEMORY_BY_TYPE = "FROM memory AS m INDEXED BY memory_type WHERE"
_ABOUT_ENTITY = "about WHERE entity = ?"
_TAGGED = "tagged WHERE tag = ?"
_OF_TYPE = "memory INDEXED BY memory_type WHERE active IN (0, 1) AND type = ?"


def _entries(reader: sqlite3.Connection, of: str, values: Sequence[str]) -> int:
    """How many entries an index has; it stops at 100,000."""
    return reader.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM {of} LIMIT {20 * MAX_SORTED_MEMORIES})", values
    ).fetchone()[0]


def _strong(reader: sqlite3.Connection, half: int, least: int) -> int:
    """How many memories of a half-life have a key that is not below one, and some more."""
    return reader.execute(sql.COUNT_FADING_FROM_EPOCH, (half, least // length_of_epoch(half))).fetchone()[0]


# Lists

_Step = tuple[tuple[float, str], str, int, int, bool]
"""What is sorted by, the id, the value, the half-life, and whether it fits."""


def _in_order(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], order: Order) -> Iterator[_Step]:
    conditions, values = _conditions(reader, wanted, halves)
    is_narrow = any((wanted.tags, wanted.entity, wanted.under, wanted.types, wanted.source)) or wanted.among is not None
    way = _fewest(reader, wanted, halves, values) if is_narrow else None
    if way is not None and way.size <= MAX_SORTED_MEMORIES:
        text = way.query(wanted, conditions)
        rows = reader.execute(f"SELECT m.{order.column}, m.id, {order.half}, 1 {text}", values)
        return iter(sorted(order.steps(rows), reverse=True))
    fits = f"({' AND '.join(conditions) or '1'})"
    strands = _strands(wanted, halves, order)
    asked = ((f"SELECT m.{order.column}, m.id, {order.half}, {fits} {text}", own) for text, own in strands)
    return heapq.merge(*[order.steps(reader.execute(text, {**values, **own})) for text, own in asked], reverse=True)


def _strands(wanted: MemoryFilter, halves: Sequence[int], order: Order) -> Iterator[tuple[str, Values]]:
    """Queries along the index, each in order, which together give everything, be it wanted or not."""
    column = order.column
    source = f"FROM memory AS m INDEXED BY memory_{column} WHERE m.active = :active"
    behind = f"(m.{column}, m.id) < (:value, :id) ORDER BY m.{column} DESC, m.id DESC LIMIT {MAX_SCANNED_NODES + 1}"
    if column == "created":
        bounds = [
            _SIMPLE_CONDITIONS[name] for name in ("created_from", "created_to") if getattr(wanted, name) is not None
        ]
        source = " AND ".join([source, *bounds])
    for active in _actives(wanted):
        if column == "key":
            for half in halves:
                least = least_key(wanted.min_confidence, wanted.now, half or None)
                own = {"active": active, "half": half, "least": least, **order.start(half)}
                yield f"{source} AND m.half = :half AND m.key >= :least AND {behind}", own
        else:
            yield f"{source} AND {behind}", {"active": active, **order.start(0)}


class Order:
    """The order of a list, and where a page of it begins. For confidence it is that of the moment ``now``."""

    def __init__(self, now: int, sort: Sort, place: MemoryPlace) -> None:
        self.column = "key" if sort == "confidence" else sort
        # What does not matter is not read from the row either.
        self.half = "m.half" if sort == "confidence" else "0"
        self.place = place
        self._now = now
        self._after = self._rank(place.value, place.half, place.id)

    def steps(self, rows: Iterator[tuple[int, str, int, int]]) -> Iterator[_Step]:
        """Rows, of those behind the place."""
        for value, id_, half, fits in rows:
            rank = self._rank(value, half, id_)
            if self.place.is_start or rank < self._after:
                yield rank, id_, value, half, bool(fits)

    def start(self, half: int) -> Values:
        """Where a query for one half-life begins: at the place, or not behind it."""
        place = self.place
        if self.column != "key" or place.is_start or half == place.half:
            return {"value": place.value, "id": place.id}
        return {"value": _key_of(strength(place.half, place.value, self._now), half, self._now) + 4, "id": ""}

    def _rank(self, value: int, half: int, id_: str) -> tuple[float, str]:
        if self.column != "key":
            return value, id_
        return (strength(half, value, self._now) if half >= 0 else 0.0), id_
