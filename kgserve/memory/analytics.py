"""Statistics of a store's memories, maintained with every write or read from an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from typing import TypeVar

from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.entity_models import (
    ConfidenceBucket,
    ConfidenceHistogram,
    ConfidenceHistogramQuery,
    MemoryCountsQuery,
    MemoryGrowth,
    MemoryGrowthPeriod,
    MemoryGrowthQuery,
    MemoryTagCount,
    MemoryTagCounts,
    MemoryTypeCount,
    MemoryTypeCounts,
    StoredMemoryStatistics,
)
from kgserve.memory.serialization import now_in_microseconds
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.memory_index.entries import (
    TALLY_DAY,
    TALLY_ENDED,
    TALLY_ENTITY_TYPE,
    TALLY_MEMORY_TAG,
    TALLY_MEMORY_TYPE,
    TALLY_RELATION,
)
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.stores.open_store import OpenStore

T = TypeVar("T")

MAX_LISTED_TYPES = 100


def compute_stored_memory_statistics(graph: StoreHandle) -> StoredMemoryStatistics:
    """Return counts of memories, entities and relations, and the average confidence now.

    Counts cover memories that were not withdrawn, regardless of their validity. Raises NotFound.
    """
    with graph.lease() as store:
        now, least = now_in_microseconds(), store.description.memory.min_confidence

        def look(memories: MemoryIndexSqliteFile, sequence: int) -> StoredMemoryStatistics:
            total, created = memories.total(), memories.creation_time_range()
            second_parents, cycles = memories.count_ignored_parents()
            oldest, newest = map(format_rfc3339_timestamp, created) if created else (None, None)
            return StoredMemoryStatistics(
                total_memories=total,
                total_entities=memories.sum_of(TALLY_ENTITY_TYPE),
                total_relations=memories.sum_of(TALLY_RELATION),
                memories_by_type=dict(memories.tallies(TALLY_MEMORY_TYPE, MAX_LISTED_TYPES)),
                average_confidence=memories.decayed_confidence_of(now) / total if total else None,
                oldest_memory=oldest,
                newest_memory=newest,
                low_confidence_count=memories.below(least, now),
                ended=dict(memories.tallies(TALLY_ENDED, MAX_LISTED_TYPES)),
                second_parents=second_parents,
                cycles=cycles,
                sequence=sequence,
            )

        return _query_settled(store, look)


def get_new_memory_counts_by_period(graph: StoreHandle, request: MemoryGrowthQuery) -> MemoryGrowth:
    """Return counts of memories by day, week or month of creation, for the latest periods. Raises NotFound."""
    with graph.lease() as store:
        days = store.memories.ask(lambda memories, _: memories.by_name(TALLY_DAY))
    periods: Counter[str] = Counter()
    for day, count in days:
        periods[_period_start(day, request.by)] += count
    found: list[MemoryGrowthPeriod] = []
    total = 0
    for period, created in periods.items():
        total += created
        found.append(MemoryGrowthPeriod(period=period, created=created, total=total))
    return MemoryGrowth(by=request.by, periods=found[-request.limit :])


def count_memory_types(graph: StoreHandle, request: MemoryCountsQuery) -> MemoryTypeCounts:
    """Return counts of memories by type, the most frequent first. Raises NotFound."""
    with graph.lease() as store:
        found, total = store.memories.ask(
            lambda memories, _: (memories.tallies(TALLY_MEMORY_TYPE, request.limit), memories.total())
        )
    return MemoryTypeCounts(
        types=[MemoryTypeCount(memory_type=name, count=count, share=count / total) for name, count in found],
        total=total,
    )


def count_memory_tags(graph: StoreHandle, request: MemoryCountsQuery) -> MemoryTagCounts:
    """Return counts of memories by tag, the most frequent first. Raises NotFound."""
    with graph.lease() as store:
        found = store.memories.ask(lambda memories, _: memories.tallies(TALLY_MEMORY_TAG, request.limit))
    return MemoryTagCounts(tags=[MemoryTagCount(tag=tag, count=count) for tag, count in found])


def get_confidence_histogram(graph: StoreHandle, request: ConfidenceHistogramQuery) -> ConfidenceHistogram:
    """Return a histogram of the effective confidence in equal intervals of 0 to 1. Raises NotFound."""
    with graph.lease() as store:
        now, parts = now_in_microseconds(), request.buckets

        def look(memories: MemoryIndexSqliteFile, _: int) -> ConfidenceHistogram:
            total = memories.total()
            counts = enumerate(memories.histogram(now, parts))
            return ConfidenceHistogram(
                buckets=[
                    ConfidenceBucket(least=at / parts, most=(at + 1) / parts, count=count) for at, count in counts
                ],
                average=memories.decayed_confidence_of(now) / total if total else None,
                total=total,
            )

        return _query_settled(store, look)


def _query_settled(store: OpenStore, look: Callable[[MemoryIndexSqliteFile, int], T]) -> T:
    """Return the result of a query after all buffered uses are applied to the memory index."""
    store.accesses.flush_and_wait()
    return store.memories.ask(lambda memories, rows: look(memories, rows.at))


def _period_start(day: str, by: str) -> str:
    """Return the first day of the period that contains a day."""
    if by == "day":
        return day
    if by == "month":
        return f"{day[:8]}01"
    found = date.fromisoformat(day)
    try:
        return (found - timedelta(days=found.weekday())).isoformat()
    except OverflowError:
        return date.min.isoformat()
