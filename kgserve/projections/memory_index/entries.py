"""Row of a memory in the memory index, and its contribution to the aggregates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp
from kgserve.projections.memory_index.confidence_decay import (
    MIN_DECAY_KEY,
    ConfidenceAtTime,
    MemoryHalfLives,
    compute_decay_sort_key,
    confidence_stated_at,
    decayed_confidence,
    get_later_confidence,
)
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory

TALLY_MEMORY_TYPE, TALLY_MEMORY_TAG, TALLY_SOURCE, TALLY_LAYER, TALLY_DAY = "type", "tag", "source", "layer", "day"
TALLY_TOTAL, TALLY_BOUNDED, TALLY_ENDED, TALLY_ENTITY_TYPE, TALLY_RELATION = (
    "total",
    "bounded",
    "ended",
    "entity",
    "relation",
)
_LASTING_EPOCH = 1 << 46


class MemoryIndexRow(NamedTuple):
    """Row of one memory, in the order of the columns. Times are microseconds; a ``half`` of 0 means no decay."""

    id: str
    type: str
    created: int
    updated: int
    stated: float
    stated_at: int
    confidence: float
    since: int
    half: int
    key: int
    accessed: int
    hash: bytes
    print: bytes
    layer: int | None
    source: str
    importance: float | None
    ended: str
    belongs_to: str
    active: int
    start: int | None
    stop: int | None

    def with_access(self, access: MemoryAccessRecord | None, half_lives: MemoryHalfLives) -> MemoryIndexRow:
        """Return the entry after an access, with the half-lives of a store."""
        used = ConfidenceAtTime(access.confidence, access.last) if access else None
        worth, half = (
            get_later_confidence(ConfidenceAtTime(self.stated, self.stated_at), used),
            half_lives.of(self.type),
        )
        return self._replace(
            confidence=worth.confidence,
            since=worth.since,
            half=half or 0,
            key=compute_decay_sort_key(worth, half),
            accessed=access.last if access else 0,
        )


class MemoryMetadata(NamedTuple):
    """Confidence, access and placement of a memory, without its text. Times are microseconds.

    ``confidence`` is the value as of ``since``, after the last access; a ``half`` of 0 means no decay. ``is_active``:
    it has not ended, and is not a former version.
    """

    id: str
    type: str
    created: int
    updated: int
    confidence: float
    since: int
    half: int
    access_count: int
    accessed_at: int | None
    layer: int | None
    source: str
    importance: float | None
    ended: str
    belongs_to: str
    is_active: int
    start: int | None
    stop: int | None

    def effective(self, now: int) -> float:
        """Return the confidence at a moment, after decay."""
        return decayed_confidence(ConfidenceAtTime(self.confidence, self.since), now, self.half or None)

    def is_valid_at(self, moment: int) -> bool:
        """Return whether the memory is valid at a moment of valid time."""
        return (self.start is None or self.start <= moment) and (self.stop is None or moment < self.stop)

    def with_access(self, access: MemoryAccessRecord | None) -> MemoryMetadata:
        """Return the memory after an access that is not in the index yet."""
        if access is None:
            return self
        worth = get_later_confidence(
            ConfidenceAtTime(self.confidence, self.since), ConfidenceAtTime(access.confidence, access.last)
        )
        return self._replace(
            confidence=worth.confidence, since=worth.since, access_count=access.count, accessed_at=access.last
        )


def memory_metadata_from_row(row: NodeRow) -> MemoryMetadata:
    """Return the state of a memory from its row alone, without accesses."""
    extras = row.extras or NO_EXTRAS
    return MemoryMetadata(
        *(
            row.id,
            row.type,
            row.created_at,
            row.updated_at,
            extras.confidence or 0.0,
            confidence_stated_at(row),
            0,
            0,
            None,
        ),
        extras.layer,
        extras.source,
        extras.importance,
        extras.ended,
        extras.belongs_to,
        int(is_current_unwithdrawn_memory(row)),
        extras.valid_from,
        extras.valid_to,
    )


def build_memory_index_row(
    row: NodeRow, access: MemoryAccessRecord | None, half_lives: MemoryHalfLives
) -> MemoryIndexRow:
    """Return the index entry of a node that is a memory."""
    extras = row.extras or NO_EXTRAS
    stated, since = extras.confidence or 0.0, confidence_stated_at(row)
    entry = MemoryIndexRow(
        *(row.id, row.type, row.created_at, row.updated_at, stated, since, stated, since, 0, 0, 0),
        hash_normalized_text(row.content),
        fingerprint_wording(row.content),
        extras.layer,
        extras.source,
        extras.importance,
        extras.ended,
        extras.belongs_to,
        int(is_current_unwithdrawn_memory(row)),
        extras.valid_from,
        extras.valid_to,
    )
    return entry.with_access(access, half_lives)


class MemoryAggregateChanges:
    """Pending changes of the memory index's aggregates: counts, and sums of confidences."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.terms: Counter[tuple[int, int]] = Counter()
        self.sums: dict[tuple[int, int], float] = {}

    def add_memory(self, entry: MemoryIndexRow | None, tags: Iterable[str], by: int) -> None:
        """Add (1) or remove (-1) a memory with its tags."""
        if entry is None:
            return
        if entry.ended:
            self.counts[TALLY_ENDED, entry.ended] += by
        if entry.active:
            for tally_key in _tally_keys(entry):
                self.counts[tally_key] += by
            for tag in tags:
                self.counts[TALLY_MEMORY_TAG, tag] += by
            self._add(entry, by)

    def _add(self, entry: MemoryIndexRow, by: int) -> None:
        epoch, term = split_decay_key_into_epoch_and_term(entry.half, entry.key, entry.confidence)
        self.terms[entry.half, epoch] += by
        self.sums[entry.half, epoch] = self.sums.get((entry.half, epoch), 0.0) + by * term


def split_decay_key_into_epoch_and_term(half: int, key_: int, confidence: float) -> tuple[int, float]:
    """Return the epoch in which a confidence is summed, and its term there: 2 to the power of its half-lives in it."""
    epoch, rest = divmod(key_, get_decay_epoch_length_in_sort_keys(half))
    if half == 0 or key_ == MIN_DECAY_KEY:
        return epoch, min(max(confidence, 0.0), 1.0)
    return epoch, 2.0 ** (rest / half)


def get_decay_epoch_length_in_sort_keys(half: int) -> int:
    """Return the length of a decay epoch in keys: one half-life, or 1/64 of the confidence range without decay."""
    return half or _LASTING_EPOCH


def compute_decay_epoch_confidence_sum(epoch: int, sum_: float, half: int, now: int) -> float:
    """Return the sum of an epoch's confidences, decayed to a moment."""
    return sum_ * 2.0 ** ((epoch * half - now) / half) if half else sum_


def _tally_keys(entry: MemoryIndexRow) -> Iterable[tuple[str, str]]:
    yield TALLY_TOTAL, ""
    if entry.start is not None or entry.stop is not None:
        yield TALLY_BOUNDED, ""
    yield TALLY_MEMORY_TYPE, entry.type
    yield TALLY_DAY, format_epoch_day(entry.created // DAY_MICROSECONDS)
    if entry.source:
        yield TALLY_SOURCE, entry.source
    if entry.layer is not None:
        yield TALLY_LAYER, str(entry.layer)


@lru_cache(maxsize=4096)
def format_epoch_day(number: int) -> str:
    """Return the date of a day since 1970, in UTC."""
    return format_rfc3339_timestamp(number * DAY_MICROSECONDS)[:10]
