"""Background maintenance of memories: journals accesses, prunes, and consolidates duplicates.

One low-priority thread serves all stores. All due work is derived from rows and journal, so a restart loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import structlog
from typing_extensions import override

from kgserve.errors import KgserveError
from kgserve.memory import pruning
from kgserve.memory.consolidation import apply
from kgserve.memory.consolidation.apply import RunningConsolidation
from kgserve.memory.consolidation.candidates import ConsolidationCandidateQuery, plan_memory_consolidation_run
from kgserve.memory.consolidation.plan import MAX_SUGGESTIONS, ConsolidationPlan, ConsolidationRunRecord
from kgserve.memory.memory_models import MemoryMergeSuggestion
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_stored_time
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.projections.update_scheduler import ProjectionThread
from kgserve.projections.workers import PeriodicProjectionWorker
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

log = structlog.get_logger()

MAINTENANCE_INTERVAL_SECONDS = 5.0
"""Interval at which each store is checked."""
_MICROSECONDS_IN_HOUR = 3_600_000_000
_MAX_FRESH_MEMORIES = 5_000
_MIN_RECORDED_RUN_MEMORIES = 1_000
"""Number of new memories from which a run without findings is recorded, so that it is not repeated."""


class StoreMemoryMaintenance(BackgroundProjection):
    """Maintenance of the memories of one store; `flush` journals the due accesses of all stores."""

    name = "keeper"
    only_memories = True

    def __init__(self, store: OpenStore, indexes: CurrentAndPastTextIndexes | None, flush: Callable[[], None]) -> None:
        super().__init__(store)
        self.open_store = store
        self._indexes = indexes
        self._flush = flush
        self._created = 0
        # Memories written since the last run; None if they are too many to track.
        self._fresh: set[str] | None = set()
        self._last: ConsolidationRunRecord | None = None
        self._pruned_at = 0

    @property
    @override
    def wake_hooks(self) -> list[Callable[[], None]]:
        return []

    @property
    def settings(self) -> MemorySettings:
        """Memory settings of the store."""
        return self.open_store.description.memory

    @override
    def close(self) -> None:
        """Do nothing, as no file is open."""

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        """Do nothing, as it has no file."""

    @override
    def _open(self) -> int:
        if not self._has_memories():
            return self.open_store.state.sequence
        apply.mark_interrupted_consolidation_runs(self.open_store)
        # An interrupted run counts as not done: its memories remain fresh.
        ended = (run for _, run in apply.list_consolidation_runs(self.open_store) if run.status in {"done", "undone"})
        self._last = next((run for run in ended if run.trigger == "automatic"), None)
        return 0 if self._last is None else self._last.through

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        for change in changes:
            self._created += sum(row.is_memory for row in change.nodes_created)
            self._track_fresh(row.id for row in (*change.nodes_created, *change.nodes_updated) if row.is_memory)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        # Changes older than the journal are assumed to be enough for a run.
        self._created, self._fresh = max(self._created, self.settings.consolidation_interval), None
        return rows.at

    @override
    def _advance(self, last: int) -> None:
        self._flush()
        super()._advance(last)
        now = time.time_ns() // 1000
        if self.sequence == self.open_store.journal.last and self._has_memories():
            if RETENTION_CLOCK.is_trusted(self.open_store.clock.idle):
                self._prune(RETENTION_CLOCK.now())
            self._consolidate(now)

    def _track_fresh(self, ids: Iterable[str]) -> None:
        if self._fresh is not None:
            self._fresh.update(ids)
            if len(self._fresh) > _MAX_FRESH_MEMORIES:
                self._fresh = None

    def _prune(self, now: int) -> None:
        if self.settings.prune == "off" or now - self._pruned_at < self.settings.prune_hours * _MICROSECONDS_IN_HOUR:
            return
        found = pruning.find_prunable_memories(self.open_store, now, self._pause).ids
        if found:
            ids, sequence = pruning.prune_memories_in_batches(
                self.open_store, found, pruning.get_memory_prune_mode(self.settings), now, self._pause
            )
            log.info("memories_pruned", store=self.open_store.name, memories=len(ids), sequence=sequence)
        self._pruned_at = now

    def _consolidate(self, now: int) -> None:
        policy = self.settings.consolidation
        if policy == "off" or not self._is_due(now):
            return
        threshold, created = self.settings.consolidation_threshold, self._created
        apart = frozenset(each for _, run in apply.list_consolidation_runs(self.open_store) for each in run.apart)
        near, again = "merge" if policy == "full" else "suggest", self._last and self._last.similarity_threshold
        fresh = None if self._fresh is None or again not in {None, threshold} else frozenset(self._fresh)
        wanted = ConsolidationCandidateQuery(
            threshold, guard=self.settings.consolidation_guard, near=near, fresh=fresh, apart=apart
        )
        plan = plan_memory_consolidation_run(self.open_store, self._indexes, wanted, now, self._pause)
        if policy == "suggest":
            plan = msgspec.structs.replace(plan, clusters=[], suggestions=[*plan.clusters, *plan.suggestions])
        self._created = 0
        if plan.near_checked or self._indexes is None:  # memories not compared by vectors stay for the next run
            self._fresh = set()
        self._last = self._carry_out(plan, threshold, now, noted=created >= _MIN_RECORDED_RUN_MEMORIES)

    def _is_due(self, now: int) -> bool:
        if self._created == 0:
            return False
        last = (
            self.open_store.description.created_at if self._last is None else parse_stored_time(self._last.started_at)
        )
        settings = self.settings
        return (
            self._created >= settings.consolidation_interval
            or now - last >= settings.consolidation_hours * _MICROSECONDS_IN_HOUR
        )

    def _carry_out(self, plan: ConsolidationPlan, threshold: float, now: int, *, noted: bool) -> ConsolidationRunRecord:
        """Carry out a plan, and record the run if there is anything to report."""
        suggested = plan.suggestions[:MAX_SUGGESTIONS]
        record = ConsolidationRunRecord(
            status="running",
            trigger="automatic",
            similarity_threshold=threshold,
            guard=self.settings.consolidation_guard,
            through=plan.sequence,
            started_at=format_rfc3339_timestamp(now),
            suggestions=[MemoryMergeSuggestion([*each.ids], round(each.similarity, 4)) for each in suggested],
        )
        if plan.clusters or suggested or noted:
            run = RunningConsolidation(apply.generate_consolidation_run_id(now), record)
            left, report = apply.merge_memory_clusters(self.open_store, run, plan.clusters, self._pause)
            done = len(plan.clusters) - len(left)
            log.info("memories_consolidated", store=self.open_store.name, clusters=done, sequence=report.sequence)
        return record

    def _pause(self, worked: float) -> None:
        self._continue()
        self._flush()
        self._yield_to_requests(worked)


class MemoryMaintenance(PeriodicProjectionWorker[OpenStore, StoreMemoryMaintenance]):
    """Companion of the pool: maintains the memories of every open store."""

    def __init__(self, indexer: TextIndexWorker | None = None, tick: float = MAINTENANCE_INTERVAL_SECONDS) -> None:
        """Create the maintenance; `indexer` enables comparison by vectors, `tick` is in seconds."""
        self._indexer = indexer
        super().__init__(ProjectionThread("keeper"), "keeper-reminder", tick)

    def of(self, store: OpenStore) -> StoreMemoryMaintenance:
        """Return the maintenance of an open store. Raises Unavailable while it is closing."""
        return self._of(store, "this store is closing")

    def flush(self) -> None:
        """Start to journal the due accesses."""
        for projection in self._all_states():
            if projection.open_store.accesses.is_flush_due:
                projection.open_store.accesses.flush()

    @override
    def _begun(self, store: OpenStore) -> StoreMemoryMaintenance:
        return StoreMemoryMaintenance(store, self._indexes(store), self.flush)

    def _indexes(self, store: OpenStore) -> CurrentAndPastTextIndexes | None:
        try:
            return None if self._indexer is None else self._indexer.of(store)
        except KgserveError:
            return None

    @override
    def _remind(self, own: StoreMemoryMaintenance) -> None:
        own.wake()
