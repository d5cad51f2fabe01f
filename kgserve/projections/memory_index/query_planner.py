"""Selection of the memories that match a filter: along the smallest suitable index, or in the order of a list."""
# ruff: noqa: S608 - built from constants only

from __future__ import annotations

import heapq
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from kgserve.platform.sqlite_files import to_named_sql_parameters
from kgserve.projections.memory_index import hierarchy
from kgserve.projections.memory_index import memory_index_sql as sql
from kgserve.projections.memory_index.confidence_decay import (
    MIN_DECAY_KEY,
    MIN_UNDECAYING_KEY,
    compute_decay_key_of_min_confidence,
)
from kgserve.projections.memory_index.entries import (
    TALLY_BOUNDED,
    TALLY_MEMORY_TAG,
    TALLY_MEMORY_TYPE,
    TALLY_SOURCE,
    TALLY_TOTAL,
    get_decay_epoch_length_in_sort_keys,
)
from kgserve.storage.model.node_and_memory_filters import ANY_WITHDRAWAL, MAX_SCANNED_NODES, MemoryFilter

MAX_SORTED_MEMORIES = 5_000
"""Maximum result size for which fetching and sorting is preferred to a scan in index order."""
_MAX_SORT_VALUE = (1 << 63) - 1
_LOG2_OF_ZERO = -1e300

MemorySortKey = Literal["created", "updated", "confidence", "accessed"]


class MemoryPageStart(NamedTuple):
    """Start of a page of a list: after a memory with this value and id, and half-life if sorted by confidence.

    ``skip`` memories after that are skipped.
    """

    value: int = _MAX_SORT_VALUE
    id: str = ""
    half: int = -1
    skip: int = 0

    @property
    def is_start(self) -> bool:
        """True for the first page."""
        return self.value == _MAX_SORT_VALUE


class MemoryIdPage(NamedTuple):
    """Ids of a page, and the place of the next page; None on the last one."""

    ids: list[str]
    next: MemoryPageStart | None


class _AccessPath(NamedTuple):
    """Access path: FROM clause that uses an index, number of its entries, and a condition that it implies."""

    source: str
    size: int
    implies: str = ""

    def query(self, wanted: MemoryFilter, conditions: Sequence[str]) -> str:
        """Return the query from FROM on."""
        actives = ", ".join(map(str, _active_values(wanted)))
        rest = [text for text in conditions if text != self.implies]
        return " AND ".join([f"{self.source} m.active IN ({actives})", *rest])


StatementParameters = dict[str, Any]


def select_memory_ids(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], limit: int) -> list[str]:
    """Return up to ``limit`` ids of matching memories."""
    text, values = _selection(reader, wanted, halves)
    return [each for (each,) in reader.execute(f"SELECT m.id {text} LIMIT :limit", {**values, "limit": limit})]


def count_matching_memories(reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], most: int) -> int:
    """Return the number of matching memories, at most ``most``."""
    text, values = _selection(reader, wanted, halves)
    query = f"SELECT count(*) FROM (SELECT 1 {text} LIMIT :limit)"
    return reader.execute(query, {**values, "limit": most}).fetchone()[0]


def select_sorted_memory_id_page(
    reader: sqlite3.Connection,
    wanted: MemoryFilter,
    halves: Sequence[int],
    order: MemoryListOrder,
    limit: int,
    also: Callable[[str], bool] | None = None,
) -> MemoryIdPage:
    """Return the next page of a list: greatest value first, then greatest id.

    ``also`` is an additional filter, applied to memories that match.
    """
    found = _sorted_rows(reader, wanted, halves, order)
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
        at = MemoryPageStart(value, id_, half, skip)
    return MemoryIdPage(chosen, None)


def compute_log2_confidence_from_decay_key(half: int, key: int, now: int) -> float:
    """Return the logarithm to base 2 of the effective confidence that a key represents."""
    if key <= MIN_DECAY_KEY:
        return _LOG2_OF_ZERO
    return (
        (key - now) / half
        if half
        else math.log2((key - MIN_UNDECAYING_KEY) / (1 << 52))
        if key > MIN_UNDECAYING_KEY
        else _LOG2_OF_ZERO
    )


def _key_of(log2: float, half: int, now: int) -> int:
    """Return the approximate inverse of `compute_log2_confidence_from_decay_key`."""
    if log2 <= _LOG2_OF_ZERO:
        return MIN_DECAY_KEY
    found = now + log2 * half if half else MIN_UNDECAYING_KEY + 2.0 ** (52 + min(log2, 0.0))
    return round(min(max(found, MIN_DECAY_KEY), 2 * MIN_UNDECAYING_KEY - 2048.0))


# Conditions


def _conditions(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int]
) -> tuple[list[str], StatementParameters]:
    """Return the conditions on a memory ``m``, without that of being active, and their values."""
    texts: list[str] = []
    values: StatementParameters = {"at": wanted.moment}
    if wanted.includes_former_versions or (
        not wanted.ended and wanted.moment is not None and _has_bounded_memories(reader)
    ):
        texts.append(_IS_IN_FORCE_AT)
    elif wanted.ended and wanted.ended != ANY_WITHDRAWAL:
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
        texts.append(hierarchy.IS_DESCENDANT)
    if wanted.orphans:
        texts.append(hierarchy.IS_ORPHAN)
    if wanted.among is not None:
        # No memory has an empty id; an empty list would leave nothing to look up in the index.
        own = to_named_sql_parameters("among", sorted(wanted.among) or [""])
        values |= own
        texts.append(f"m.id IN ({', '.join(f':{name}' for name in own)})")
    texts += [text for field, text in _SIMPLE_CONDITIONS.items() if getattr(wanted, field) not in (None, "")]
    values |= {field: getattr(wanted, field) for field in (*_SIMPLE_CONDITIONS, "entity", "under", "ended")}
    if wanted.min_confidence > 0:
        texts += _confidence_conditions(reader, wanted, halves, values)
    return texts, values


_IS_IN_FORCE_AT = "(m.start IS NULL OR m.start <= :at) AND (m.stop IS NULL OR m.stop > :at)"
_IS_ABOUT_IN_FORCE_AT = "(start IS NULL OR start <= :at) AND (stop IS NULL OR stop > :at)"
_SIMPLE_CONDITIONS = {
    "created_from": "m.created >= :created_from",
    "created_to": "m.created <= :created_to",
    "source": "m.source = :source",
    "layer": "m.layer = :layer",
}


def _confidence_conditions(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], values: StatementParameters
) -> Iterator[str]:
    values["min_confidence"] = wanted.min_confidence
    for at, half in enumerate(halves):
        values[f"half{at}"] = half
        values[f"key{at}"] = compute_decay_key_of_min_confidence(wanted.min_confidence, wanted.now, half or None)
    keys = " OR ".join(f"(m.half = :half{at} AND m.key >= :key{at})" for at in range(len(halves)))
    yield f"({keys})"
    # Memories set later than now have not decayed yet, although their keys suggest a higher confidence.
    if reader.execute(sql.SELECT_HAS_FUTURE, (wanted.now,)).fetchone()[0]:
        yield "m.confidence >= :min_confidence"


def _active_values(wanted: MemoryFilter) -> tuple[int, ...]:
    return (
        (1, 0) if wanted.ended == ANY_WITHDRAWAL or wanted.includes_former_versions else (0,) if wanted.ended else (1,)
    )


def _has_bounded_memories(reader: sqlite3.Connection) -> bool:
    return read_memory_tally(reader, TALLY_BOUNDED, "") > 0


def read_memory_tally(reader: sqlite3.Connection, kind: str, name: str) -> int:
    """Return the stored count of an aggregate, given its kind (such as "type" or "tag") and name."""
    found = reader.execute(sql.SELECT_MEMORY_TALLY, (kind, name)).fetchone()
    return found[0] if found else 0


# Sets


def _selection(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int]
) -> tuple[str, StatementParameters]:
    """Return the query from FROM on, and its values."""
    conditions, values = _conditions(reader, wanted, halves)
    return _choose_access_path(reader, wanted, halves, values).query(wanted, conditions), values


def _choose_access_path(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], values: StatementParameters
) -> _AccessPath:
    """Return the access path with the fewest entries. Ended memories have no tallies, so index entries are counted."""
    paths = [
        _AccessPath("FROM memory AS m INDEXED BY memory_created WHERE", read_memory_tally(reader, TALLY_TOTAL, ""))
    ]
    if wanted.ended or wanted.includes_former_versions:
        paths = [_AccessPath(paths[0].source, _MAX_SORT_VALUE)]
        paths += [
            _AccessPath(_by_tag(at), _count_entries(reader, _TAGGED, [tag])) for at, tag in enumerate(wanted.tags)
        ]
        if wanted.types:
            size = sum(_count_entries(reader, _OF_TYPE, [each]) for each in set(wanted.types))
            paths.append(_AccessPath(_FROM_MEMORY_BY_TYPE, size))
    else:
        paths += [
            _AccessPath(_by_tag(at), read_memory_tally(reader, TALLY_MEMORY_TAG, tag))
            for at, tag in enumerate(wanted.tags)
        ]
        if wanted.source:
            paths.append(_AccessPath(_FROM_MEMORY_BY_SOURCE, read_memory_tally(reader, TALLY_SOURCE, wanted.source)))
        if wanted.types:
            size = sum(read_memory_tally(reader, TALLY_MEMORY_TYPE, each) for each in set(wanted.types))
            paths.append(_AccessPath(_FROM_MEMORY_BY_TYPE, size))
    if wanted.among is not None:
        paths.append(_AccessPath(_FROM_MEMORY_BY_ID, len(wanted.among)))
    if wanted.entity:
        paths.append(_AccessPath(_FROM_MEMORY_BY_ENTITY, _count_entries(reader, _ABOUT_ENTITY, [wanted.entity])))
    if wanted.under:
        paths.append(
            _AccessPath(
                hierarchy.build_descendants_from_clause(reader),
                hierarchy.count_memory_descendants(reader, wanted.under, 20 * MAX_SORTED_MEMORIES),
                hierarchy.IS_DESCENDANT,
            )
        )
    best = min(paths, key=lambda path: path.size)
    if (
        wanted.min_confidence > 0
        and not (wanted.ended or wanted.includes_former_versions)
        and best.size > MAX_SORTED_MEMORIES
    ):
        strong = sum(_count_strong(reader, half, values[f"key{at}"]) for at, half in enumerate(halves))
        best = min(
            best, _AccessPath("FROM memory AS m INDEXED BY memory_key WHERE", strong), key=lambda path: path.size
        )
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


def _count_entries(reader: sqlite3.Connection, of: str, values: Sequence[str]) -> int:
    """Return the number of entries of an index, at most 100,000."""
    return reader.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM {of} LIMIT {20 * MAX_SORTED_MEMORIES})", values
    ).fetchone()[0]


def _count_strong(reader: sqlite3.Connection, half: int, least: int) -> int:
    """Return the approximate number of memories of a half-life whose key is at least ``least``."""
    return reader.execute(
        sql.COUNT_FADING_FROM_EPOCH, (half, least // get_decay_epoch_length_in_sort_keys(half))
    ).fetchone()[0]


# Lists

_SortedRow = tuple[tuple[float, str], str, int, int, bool]
"""Sort key, id, value, half-life, and whether the memory matches."""


def _sorted_rows(
    reader: sqlite3.Connection, wanted: MemoryFilter, halves: Sequence[int], order: MemoryListOrder
) -> Iterator[_SortedRow]:
    conditions, values = _conditions(reader, wanted, halves)
    is_narrow = any((wanted.tags, wanted.entity, wanted.under, wanted.types, wanted.source)) or wanted.among is not None
    path = _choose_access_path(reader, wanted, halves, values) if is_narrow else None
    if path is not None and path.size <= MAX_SORTED_MEMORIES:
        text = path.query(wanted, conditions)
        rows = reader.execute(f"SELECT m.{order.column}, m.id, {order.half}, 1 {text}", values)
        return iter(sorted(order.steps(rows), reverse=True))
    fits = f"({' AND '.join(conditions) or '1'})"
    queries = _ordered_queries(wanted, halves, order)
    statements = ((f"SELECT m.{order.column}, m.id, {order.half}, {fits} {text}", own) for text, own in queries)
    return heapq.merge(
        *[order.steps(reader.execute(text, {**values, **own})) for text, own in statements], reverse=True
    )


def _ordered_queries(
    wanted: MemoryFilter, halves: Sequence[int], order: MemoryListOrder
) -> Iterator[tuple[str, StatementParameters]]:
    """Yield queries along the index, each in order, which together return all memories, matching or not."""
    column = order.column
    source = f"FROM memory AS m INDEXED BY memory_{column} WHERE m.active = :active"
    behind = f"(m.{column}, m.id) < (:value, :id) ORDER BY m.{column} DESC, m.id DESC LIMIT {MAX_SCANNED_NODES + 1}"
    if column == "created":
        bounds = [
            _SIMPLE_CONDITIONS[name] for name in ("created_from", "created_to") if getattr(wanted, name) is not None
        ]
        source = " AND ".join([source, *bounds])
    for active in _active_values(wanted):
        if column == "key":
            for half in halves:
                least = compute_decay_key_of_min_confidence(wanted.min_confidence, wanted.now, half or None)
                own = {"active": active, "half": half, "least": least, **order.start(half)}
                yield f"{source} AND m.half = :half AND m.key >= :least AND {behind}", own
        else:
            yield f"{source} AND {behind}", {"active": active, **order.start(0)}


class MemoryListOrder:
    """Sort order of a list, and the start of a page. Confidences are compared as of ``now``."""

    def __init__(self, now: int, sort: MemorySortKey, place: MemoryPageStart) -> None:
        self.column = "key" if sort == "confidence" else sort
        # Columns that do not matter are not read from the row.
        self.half = "m.half" if sort == "confidence" else "0"
        self.place = place
        self._now = now
        self._after = self._rank(place.value, place.half, place.id)

    def steps(self, rows: Iterator[tuple[int, str, int, int]]) -> Iterator[_SortedRow]:
        """Yield the rows after the start of the page."""
        for value, id_, half, fits in rows:
            rank = self._rank(value, half, id_)
            if self.place.is_start or rank < self._after:
                yield rank, id_, value, half, bool(fits)

    def start(self, half: int) -> StatementParameters:
        """Return the start of the query for one half-life; it may include rows before the start of the page."""
        place = self.place
        if self.column != "key" or place.is_start or half == place.half:
            return {"value": place.value, "id": place.id}
        return {
            "value": _key_of(
                compute_log2_confidence_from_decay_key(place.half, place.value, self._now), half, self._now
            )
            + 4,
            "id": "",
        }

    def _rank(self, value: int, half: int, id_: str) -> tuple[float, str]:
        if self.column != "key":
            return value, id_
        return (compute_log2_confidence_from_decay_key(half, value, self._now) if half >= 0 else 0.0), id_
