"""One open store, with its write path: plan, journal, apply, report."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import structlog

from kgserve.errors import KgserveError, Unavailable
from kgserve.platform.durable_files import translate_storage_errors
from kgserve.platform.metrics.app_metrics_and_request_context import PhaseTimer, StoreWriteCounters, Telemetry
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.settings import Settings
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.catalog.projection import NodeCatalogProjection
from kgserve.projections.cross_store_links.cross_store_link_index import CrossStoreLinkReader
from kgserve.projections.cross_store_links.projection import CrossStoreLinkProjection
from kgserve.projections.cypher_engine.projection import EngineFileProjection
from kgserve.projections.deleted_node_versions import DeletedNodeVersions
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives, memory_half_lives_from_settings
from kgserve.projections.memory_index.projection import MemoryIndexProjection
from kgserve.storage.changefeed import ChangeFeed
from kgserve.storage.commit_clock import CommitClock, read_last_journal_write_time, wall_time
from kgserve.storage.current_rows_rebuild import (
    open_or_rebuild_current_rows,
    rebuild_current_rows,
    recreate_empty_folder,
    take_snapshot,
)
from kgserve.storage.disk_space import require_disk_space_for_write
from kgserve.storage.journal import snapshot
from kgserve.storage.model.change_set import (
    ChangeSet,
    CrossStoreLinksCountAndDigest,
    StoreState,
    unpack_change_set_rows,
)
from kgserve.storage.model.store_rows_digest import digest_and_count_rows
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.model.write_batch import WriteBatch, WriteRules
from kgserve.storage.rows.row_json_encoder import RowsDamaged
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import (
    STORE_FORMAT,
    StoreDescription,
    StoreLayout,
    open_journal,
)
from kgserve.storage.write_planner import WritePlanningWorkspace, WriteReport, check_write_batch, plan_write_batch
from kgserve.stores.access_buffer import MemoryAccessBuffer
from kgserve.stores.bulk_insert import RowsWithoutOptionalFields, plan_bulk_insert_of_new_rows
from kgserve.stores.compaction import Compactor, DeltaMerger
from kgserve.stores.local_placement import StorePlacement
from kgserve.stores.pending_state import PendingCommitGroupState
from kgserve.stores.purge_record import PurgedCommitRange, PurgeTargets
from kgserve.stores.scratch_database import ScratchDatabase, ScratchEngineFileLruCache
from kgserve.stores.store_quota import StoreQuota
from kgserve.stores.write_planning_workspace import gather_planning_workspace, report_batch_if_noop
from kgserve.stores.writer_thread import (
    PlannedWrite,
    QueuedWrite,
    ReplicatedCommits,
    WriterThread,
    build_queued_write_batch,
)

log = structlog.get_logger()

IDLE_MERGE_DELAY_SECONDS = 2.0
RECLAIM_DELAY_SECONDS = 10.0
"""Time since the last commit after which even a small delta is merged into a new base, for faster reads and opens."""

_encode = msgspec.json.Encoder(order="deterministic").encode
_Listed = TypeVar("_Listed")
ScheduleInBackground = Callable[[Callable[[], None]], object]


class DigestCheckResult(msgspec.Struct, frozen=True):
    """Result of a digest check, which compares all rows with the journal's digest; ``time`` is in microseconds."""

    time: int
    ok: bool


class NodePurger(Protocol):
    """Purges nodes from a store."""

    def erase(self, find: Callable[[RowsSnapshot], PurgeTargets]) -> Future[PurgedCommitRange]:
        """Purge the nodes that ``find`` returns. The future completes when all is gone.

        ``find`` is called in the writer thread.
        """
        ...


class StoreDependencies(msgspec.Struct, frozen=True):
    """Dependencies shared by the stores of a pool. ``background`` schedules low-priority work."""

    settings: Settings
    background: ScheduleInBackground
    observation: Telemetry
    copies: ScratchEngineFileLruCache
    placement: StorePlacement


class OpenStore:
    """An open store. All changes happen in its writer thread; any thread may read concurrently."""

    is_provisional = False
    """True until `confirm_creation`, if the store was created provisionally."""
    _is_rebuild_due = False
    """True while a rebuild of damaged rows is scheduled or running."""

    def __init__(self, layout: StoreLayout, feed: ChangeFeed, around: StoreDependencies) -> None:
        """Open a store from its local files, repairing what a crash left behind."""
        settings, background = around.settings, around.background
        self.observation = around.observation
        self.count = StoreWriteCounters()
        self.name, self.quota = layout.name, StoreQuota(settings, layout.root)
        self.feed = feed
        self.layout = layout
        self.settings = settings
        self.description = layout.load_description()
        self._placement = around.placement
        self._describing = threading.Lock()
        # Called in the changing thread after a change of settings. Must not block.
        self.after_change: list[Callable[[], None]] = []
        # Set by the component that implements purging.
        self.eraser: NodePurger | None = None
        # Ids of running consolidations. An unfinished one that is not listed was interrupted.
        self.runs: set[str] = set()
        self.last_check: DigestCheckResult | None = None
        # Called in the writer thread after every group, once its callers have their reports. Must not block.
        self.after_commit: list[Callable[[], None]] = [self.feed.wake]
        # Called in the purging thread once the purged data has left the journal. Must not block.
        self.after_erasing: list[Callable[[], None]] = []
        # Called in the history's thread after it has applied commits. Must not block.
        self.after_history: list[Callable[[], None]] = []
        # Changes whenever the set of conflicting versions changes; 0 while no conflict exists.
        self.heads_mark = 0
        # Called about once a second while the store is open. Must not block.
        self.each_second: list[Callable[[], None]] = []
        # Each returns the first sequence that its consumer still has to read from the journal.
        self.needed_from: list[Callable[[], int]] = []
        shutil.rmtree(layout.scratch, ignore_errors=True)
        with contextlib.ExitStack() as undo:
            self.journal = open_journal(layout, settings.journal_segment_mb)
            self.journal.before_packing = self._raise_format
            undo.callback(self.journal.close)
            self.commits = around.placement.open_commit_log(layout.name, self.journal)
            self.rows = open_or_rebuild_current_rows(layout, self.journal)
            layout.mark_open()
            undo.pop_all()
        self._background = background
        self._closing = threading.Event()
        # Ids of nodes being purged, which snapshots must omit.
        self._forgotten: frozenset[str] = frozenset()
        self._committed_at = time.monotonic()
        newest = max(self.rows.state.time, read_last_journal_write_time(layout.journal))
        self.clock = CommitClock(layout.name, newest, is_shared=around.placement.is_shared)
        self.rows_sequence = self.rows.state.sequence
        self.folding, self.rows.on_damage = (
            DeltaMerger(layout.name, self.rows, self._renew_rows),
            self._schedule_rebuild,
        )
        self.engine = EngineFileProjection(
            layout, self.journal, self.rows, settings, self.observation.slow, self._closing
        )
        self.copy = ScratchDatabase(layout, self.journal, self.engine, self.rows, around.copies)
        self.catalog = NodeCatalogProjection(layout, self.journal, self.rows)
        self.memories = MemoryIndexProjection(layout, self.journal, self.rows, self._half_lives)
        self.links = CrossStoreLinkProjection(layout, self.journal, self.rows)
        self.ended = DeletedNodeVersions(layout, self.journal, self.rows)
        self.needed_from.append(lambda: self.rows.base_sequence + 1)
        self.feed.opened(self.state.sequence)
        take = self._take_snapshot
        self.compactor = Compactor(layout, self.journal, self.engine, take, settings, background, self.needed_from)
        self.accesses = MemoryAccessBuffer(
            self.submit, self.memories.accesses, self.name, counts=not self.commits.is_copy
        )
        self._writer = WriterThread(
            self.name, self._commit, self.compactor.start_if_wanted, settings.write_queue, self.count
        )

    @property
    def state(self) -> StoreState:
        """State as of the last commit that readers see."""
        return self.rows.state

    def confirm_creation(self) -> None:
        """Keep a store that was created provisionally, even if it stays empty. Raises OSError."""
        if self.is_provisional:
            self._placement.confirm_creation(self.name)
            self.is_provisional = False

    @property
    def queued(self) -> int:
        """Number of queued writes."""
        return self._writer.queued

    @property
    def writing(self) -> bool:
        """True if a write is running or queued."""
        return self._writer.busy

    def submit(
        self,
        batch: WriteBatch,
        wait: float = 0.0,
        future: Future[WriteReport] | None = None,
        call_later: Callable[[Callable[[], None]], object] | None = None,
    ) -> Future[WriteReport]:
        """Queue a write; the future returns its report once it is durable and applied.

        A small batch that changes nothing is not queued: its report has the last commit's sequence.

        wait: seconds to block while the queue is full before raising Unavailable. future: receives the report, instead
        of a new one. It raises InvalidInput, StorageFull or Unavailable. call_later: wakes the writer thread
        (`WriterThread.submit`).
        """
        self.require_local_owner()
        write = QueuedWrite(batch, future or Future())
        report = self._report_if_unchanged(batch)
        if report is None:
            return self._writer.submit(write, wait, call_later)
        self.observation.record_queue_wait(write.origin, 0.0)
        write.future.set_result(report)
        return write.future

    def _report_if_unchanged(self, batch: WriteBatch) -> WriteReport | None:
        """Return the report of a batch that changes nothing, without queueing it; None if the writer has to plan it.

        While earlier writes are queued, the batch waits for its turn behind them.
        """
        if not self._writer.is_idle:
            return None
        try:
            with self.rows.reading() as rows:
                return report_batch_if_noop(batch, rows, self._rules())
        except RowsDamaged:
            return None  # the writer rebuilds them

    def submit_prepared(
        self, prepare: Callable[[], WriteBatch | PlannedWrite | ReplicatedCommits], wait: float = 0.0
    ) -> Future[WriteReport]:
        """Queue a write whose batch or plan ``prepare`` builds in the writer thread.

        All earlier writes are committed by then, and no other write runs meanwhile. Raises the errors of `submit`; so
        does the future, along with those of ``prepare``.
        """
        return self._writer.submit(QueuedWrite(WriteBatch(), Future(), prepare), wait)

    def submit_decided(
        self, decide: Callable[[PendingCommitGroupState], WriteBatch], cost: int, wait: float = 0.0
    ) -> Future[WriteReport]:
        """Queue a write whose batch ``decide`` builds in the writer thread, from the pending state of its group.

        It is committed together with other writes, so ``decide`` must be quick. ``cost`` is the approximate size of its
        batch in bytes. Raises the errors of `submit`; so does the future, along with those of ``decide``.
        """
        self.require_local_owner()
        return self._writer.submit(QueuedWrite(WriteBatch(cost=cost), Future(), decide=decide), wait)

    def submit_plain(self, rows: RowsWithoutOptionalFields, wait: float = 0.0) -> Future[WriteReport]:
        """Queue checked rows, to be created in bulk where possible. Raises the errors of `submit`; so does the future.

        Edges to missing nodes are left out, and existing edges are not touched.
        """

        def prepare() -> WriteBatch | PlannedWrite:
            is_ended = not self.ended.is_empty and self.ended.versions(rows.ids, self.state.sequence)
            insert = None if is_ended or self._rules().kinds else plan_bulk_insert_of_new_rows(self.rows, rows)
            return insert or rows.to_batch()

        return self.submit_prepared(prepare, wait)

    def follow(self, changes: list[ChangeSet]) -> None:
        """Apply commits made by another server, and block until readers see them.

        Raises StorageFull and Unavailable.
        """
        self.submit_prepared(lambda: ReplicatedCommits(changes)).result()

    def follow_description(self, description: StoreDescription) -> None:
        """Take over the description of the store that this one is a copy of. Raises StorageFull."""
        with self._describing:
            if description == self.description:
                return
            with translate_storage_errors(f"changing the settings of store {self.name!r}"):
                self.description = self._placement.describe(self.layout, description)
            self.feed.publish_marker("store_changed", msgspec.to_builtins(description.settings))
        for wake in self.after_change:
            wake()

    def is_replica_behind(self, sequence: int, max_staleness: float) -> bool:
        """Return whether this is a replica that lacks a commit or is older than ``max_staleness`` seconds."""
        return self.commits.is_copy and (self.state.sequence < sequence or self.commits.age > max_staleness)

    def wait_for_replica(self, sequence: int, max_staleness: float = math.inf) -> None:
        """Update a replica that lacks a commit or is older than ``max_staleness`` seconds. Blocks.

        Raises Unavailable, and ServedElsewhere if the commit has not arrived yet or the log is out of reach.
        """
        if self.is_replica_behind(sequence, max_staleness):
            self.commits.require_log_contact()
            self.commits.catch_up(self)
            if self.is_replica_behind(sequence, max_staleness):
                self.commits.confirm()
                raise Unavailable(f"store {self.name!r} is being taken over; try again", retry_after=1)

    def require_local_owner(self) -> None:
        """Raise ServedElsewhere for a replica. Call it before operations that only the serving node supports."""
        if self.commits.is_copy:
            self.commits.confirm()

    def require_eraser(self) -> NodePurger:
        """Return the component that implements purging. Raises the errors of `require_local_owner`, and Unavailable."""
        self.require_local_owner()
        if self.eraser is None:
            raise Unavailable("this store is opening or closing; try again")
        return self.eraser

    def change_settings(self, change: Callable[[StoreSettings], StoreSettings]) -> bool:
        """Replace the settings by the result of ``change``, durably. Return whether they differ.

        Concurrent changes of settings wait; writes continue, and those planned later use the new settings. Raises
        StorageFull, Unavailable and the errors of ``change``.
        """
        with self._describing:
            before = self.description
            after = before.with_settings(change(before.settings), self.state.sequence)
            # Compared as JSON, since True == 1 in Python.
            if _encode(before.settings) == _encode(after.settings):
                return False
            with translate_storage_errors(f"changing the settings of store {self.name!r}"):
                self.description = self._placement.describe(self.layout, after)
            self.feed.publish_marker("store_changed", msgspec.to_builtins(after.settings))
        for wake in self.after_change:
            wake()
        return True

    @contextlib.contextmanager
    def reading(self) -> Generator[RowsSnapshot]:
        """Yield the rows of the last commit. Raises Unavailable if they are damaged; they are then rebuilt."""
        try:
            with self.rows.reading() as rows:
                yield rows
        except RowsDamaged as error:
            raise self._schedule_rebuild(error) from error

    @contextlib.contextmanager
    def reading_links(self) -> Generator[tuple[RowsSnapshot, CrossStoreLinkReader | None]]:
        """Yield the rows of the last commit and its links; None if the store has no links. Raises Unavailable."""
        try:
            with self.links.reading() as (links, rows):
                yield rows, links
        except RowsDamaged as error:
            raise self._schedule_rebuild(error) from error

    def _schedule_rebuild(self, error: RowsDamaged) -> Unavailable:
        """Schedule a rebuild of damaged rows unless one is due, and return the error for their reader."""
        if not self._is_rebuild_due:
            self._is_rebuild_due = True
            self._background(self._rebuild_damaged_rows)
        return Unavailable(
            f"the current rows are damaged and are being rebuilt; try again shortly: {error}", retry_after=2
        )

    def _rebuild_damaged_rows(self) -> None:
        try:
            self._renew_rows()
        except (KgserveError, OSError):
            # The next reader that meets the damage schedules it again.
            log.exception("rows_not_renewed", store=self.name)
        finally:
            self._is_rebuild_due = False

    def query_catalog(
        self,
        question: Callable[[NodeCatalog, RowsSnapshot], _Listed],
        *,
        by_attributes: bool = False,
        block: bool = True,
    ) -> _Listed:
        """Query the catalog, with an index on attributes if ``by_attributes``.

        Raises the errors of `NodeCatalogProjection.ask`, and without ``block`` WouldBlock where it would have to wait.
        """
        if not block:
            if by_attributes:
                raise WouldBlock
            return self.catalog.ask_without_blocking(question)
        return self.catalog.ask_by_attributes(question) if by_attributes else self.catalog.ask(question)

    def tend(self) -> None:
        """Bring engine, scratch copy, catalog and memory index up to date, and merge the delta, where due. Blocks."""
        for look in self.each_second:
            look()
        self._follow_settings()
        if self._is_idle():
            self.folding.start_if_due(idle=True)
            self.rows.forget()
            self.rows.sync()
            if self.rows.needs_rewrite and self._seconds_since_commit() > RECLAIM_DELAY_SECONDS:
                self.compactor.start_reclaiming(partial(self.folding.at_once, copying=True))
        self.engine.tend(writing=self.writing)
        self.copy.tend()
        self.catalog.tend()
        self.memories.tend()
        self.compactor.retry_failed()

    def _follow_settings(self) -> None:
        """Apply changed settings of the store to its replica."""
        if self.commits.is_copy and (away := self._placement.find_remote_store(self.name)) is not None:
            if away.description == self.description:
                return
            self.description = self.layout.describe(away.description)
            for wake in self.after_change:
                wake()

    def check(self) -> DigestCheckResult:
        """Compare current rows and the open engine's rows with the journal's digest. Blocks.

        Rebuilds what differs.
        """
        ok = all([self.check_rows(), self.links.check(), self.ended.check(), self.check_engine()])
        self.last_check = DigestCheckResult(wall_time(), ok)
        self.observation.checks.add("agreed" if ok else "failed")
        if ok:
            log.info("check_agreed", store=self.name, sequence=self.state.sequence)
        return self.last_check

    def check_rows(self) -> bool:
        """Return whether the current rows match the journal's digest, and rebuild them otherwise. Blocks."""
        reason = "they do not match the digest"
        with self.rows.reading() as rows:
            state = rows.state
            try:
                rows.base.check()
                found = digest_and_count_rows(rows.all_nodes(), rows.all_edges())
            except (RowsDamaged, msgspec.MsgspecError, ValueError) as error:
                found, reason = None, str(error)
        if found == (state.digest, state.nodes, state.edges):
            return True
        log.error("check_failed", store=self.name, view="rows", sequence=state.sequence, reason=reason)
        self._renew_rows()
        return False

    def check_engine(self) -> bool:
        """Return whether the engine's rows match the journal's digest, and rebuild them otherwise. Blocks.

        Returns True if the engine is not open.
        """
        if not self.engine.is_open:
            return True
        folder = recreate_empty_folder(self.layout.scratch / "check")
        try:
            with self.engine.reading(timeout=0, asked=False) as session:
                state = session.dump(folder)
            ok = snapshot.digest_and_count_snapshot_rows(folder) == (state.digest, state.nodes, state.edges)
            ok = ok and self._matches_links(snapshot.digest_and_count_cross_store_links(folder), state.sequence)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not ok:
            log.error("check_failed", store=self.name, view="engine", sequence=state.sequence)
            with self.engine.commits:
                self.engine.heal("its rows do not match the digest")
        return ok

    def _matches_links(self, found: CrossStoreLinksCountAndDigest | None, sequence: int) -> bool:
        """Return whether links as of a commit match the journal. Links that have changed since count as matching."""
        if found is None:
            return True
        with self.reading_links() as (_, links):
            if links is None:
                return found == CrossStoreLinksCountAndDigest()
            return links.last_change_sequence > sequence or found == links.state

    def end_segment(self) -> int:
        """Start a new journal segment, and return the last commit before it. Blocks."""
        ended: list[int] = []

        def prepare() -> WriteBatch:
            self.commits.begin_segment()
            ended.append(self.state.sequence)
            return WriteBatch()

        self.submit_prepared(prepare).result()
        return ended[0]

    def erase(self, before: int, ids: Collection[str]) -> None:
        """Remove all data that is no longer current as of commit ``before``, from all files and listeners. Blocks.

        Nodes in ``ids`` are removed including their last version. A journal segment must end at ``before``. Reads and
        writes continue meanwhile. The operation is idempotent. Raises Unavailable, StorageFull, and the errors of
        taking a snapshot and of building an engine file.
        """
        try:
            self.folding.erase()
        except RowsDamaged:
            log.exception("rows_damaged", store=self.name)
            self._renew_rows()
        self.copy.close()
        erasure = ProjectionEraseRequest((*ids,), (), before)
        self.catalog.erase(erasure)
        self.memories.erase(erasure)
        self.links.erase(erasure)
        self.ended.erase(erasure)
        self._forgotten = frozenset(ids)
        try:
            self.compactor.erase(before)
        finally:
            self._forgotten = frozenset()
        self.feed.drop_buffered_commits()
        for mark in self.after_erasing:
            mark()

    def cancel_compaction(self) -> None:
        """Cancel snapshots and engine files in progress, because the store is about to close."""
        self._closing.set()

    def close(self) -> None:
        """Finish the queued writes, close everything and write the clean-close marker."""
        self.cancel_compaction()
        self._writer.stop()
        self.compactor.wait()
        self.folding.wait_until_idle()
        links = self._links_at_close()
        with contextlib.ExitStack() as steps:
            # Callbacks run in reverse order, each even if others fail.
            steps.callback(self.journal.close)
            steps.callback(self.commits.note)
            for each in (self.memories, self.catalog, self.rows, self.ended, self.links, self.engine, self.copy):
                steps.callback(each.close)
        self.layout.mark_closed(self.state, self.journal.end, *links)
        log.info("store_closed", store=self.name, sequence=self.state.sequence, clean=True)

    def _links_at_close(self) -> tuple[int, int]:
        """Return the number of links and the last commit that changed any; (-1, -1) if unknown."""
        try:
            with self.reading_links() as (_, links):
                return (0, 0) if links is None else (links.state.count, links.last_change_sequence)
        except (Unavailable, sqlite3.Error):
            log.exception("links_not_counted", store=self.name)
            return -1, -1

    # Commits (writer thread)

    def _commit(self, writes: list[QueuedWrite]) -> None:
        laps = PhaseTimer()
        for write in writes:
            self.observation.record_queue_wait(write.origin, laps.started - write.queued_at)
        self._await_rows()
        laps.lap("held_back")
        if any(write.prepare is not None for write in writes):
            writes = [ready for write in writes if (ready := build_queued_write_batch(write)) is not None]
            laps.lap("prepare")
        changes, reports = self._plan(writes, self.clock.now())
        laps.lap("plan")
        size = sum(each.size for each in changes)
        if changes:
            frees_space = all(each.frees_space for each in changes)
            cost = sum(write.batch.cost for write in writes)
            require_disk_space_for_write(self.layout.root, cost, frees_space=frees_space)
            self.commits.append(changes)
            self.clock.record_stamp(changes[-1].time)
            laps.lap("journal")
            planned = writes[0].plan
            show = partial(self.rows.apply, changes) if planned is None else partial(planned.show, changes[0])
            self._show(changes, show)
            laps.lap("rows")
            self._committed_at = time.monotonic()
            self.rows_sequence = max((each.sequence for each in changes if each.size), default=self.rows_sequence)
            self.engine.record_journaled_commits(size)
            self.catalog.note_committed(size)
            if self.feed.is_heard or self.memories.is_in_demand or self.accesses.waiting:
                changes = [*map(unpack_change_set_rows, changes)]
            self._update_memory_index(changes)
        self.feed.record(changes, self.state.sequence)
        if changes:
            self.observation.record_commit_group(self.name, self.count, [write.origin for write in writes], laps, size)
        for write, report in reports:
            write.future.set_result(report)
        if changes:
            for wake in self.after_commit:
                wake()
            self.folding.start_if_due()
            if self.compactor.wanted():
                self._writer.wake_when_idle()

    def _await_rows(self) -> None:
        """Wait until the rows can take a commit, and add an earlier one that could not be shown."""
        self.folding.throttle_writes()
        if self.state.sequence < self.journal.last:
            self._renew_rows_now()

    def _show(self, changes: list[ChangeSet], show: Callable[[], None]) -> None:
        """Publish journaled commits to readers with ``show``; if that fails, rebuild the rows from the journal.

        Their callers get no error that can be avoided, because the commits are durable.
        """
        try:
            with self.links.apply_with_commit(changes):
                show()
        except Exception:
            log.exception("commit_not_shown", store=self.name, sequence=changes[-1].sequence)
            self._renew_rows_now()
            for wake in self.links.after_change:
                wake()
        try:
            self.ended.take(changes)
        except (KgserveError, OSError):
            # The next query reads them from the journal.
            log.exception("deletions_not_followed", store=self.name, sequence=changes[-1].sequence)

    def _update_memory_index(self, changes: list[ChangeSet]) -> None:
        """Pass the changes to the memory index and the access buffer, if in use."""
        if self.memories.is_in_demand:
            self.memories.record_commits(changes)
        if self.accesses.waiting:
            self.accesses.drop_superseded(changes)

    def _is_idle(self) -> bool:
        return not self.writing and self._seconds_since_commit() > IDLE_MERGE_DELAY_SECONDS

    def _seconds_since_commit(self) -> float:
        return time.monotonic() - self._committed_at

    def _take_snapshot(self) -> int:
        """Take a snapshot and merge the delta into a new base. Return the snapshot's sequence."""
        closing, idle, forgotten = self._closing, self._is_idle, self._forgotten
        # During a purge the snapshot is not replicated; the purge does that itself once all data is gone.
        with contextlib.nullcontext() if forgotten else self.commits.replicate_snapshot():
            taken = take_snapshot(self.layout, self.journal, self.rows, closing, idle, forgotten)
        self.folding.at_once()
        return taken.sequence

    def _renew_rows(self) -> None:
        """Rebuild the current rows in the writer thread, and wait for it."""

        def prepare() -> WriteBatch:
            self._renew_rows_now()
            return WriteBatch()

        self.submit_prepared(prepare).result()

    def _renew_rows_now(self) -> None:
        self.folding.wait()
        rebuild_current_rows(self.rows, self.layout, self.journal)

    def _raise_format(self) -> None:
        """Raise the store's format so that older versions of kgserve refuse to open it. Durable on return.

        Raises StorageFull and Unavailable.
        """
        with self._describing:
            if self.description.format < STORE_FORMAT:
                newer = msgspec.structs.replace(self.description, format=STORE_FORMAT)
                with translate_storage_errors(f"raising the format of store {self.name!r}"):
                    self.description = self.layout.describe(newer)

    def _plan(
        self, writes: list[QueuedWrite], now: int
    ) -> tuple[list[ChangeSet], list[tuple[QueuedWrite, WriteReport]]]:
        if writes and (followed := writes[0].followed) is not None:
            return followed.changes, [(writes[0], WriteReport(sequence=followed.changes[-1].sequence))]
        if writes and (planned := writes[0].plan) is not None:
            change, report = planned.change(self.state, now)
            self.quota.check_nodes(self.state.nodes, change.nodes)
            if not change.frees_space:
                self.quota.check_bytes()
            if self.rows.rows().linked and change.nodes_deleted:
                change = self.links.add_link_deletions(change)
                report.edges_deleted += len(change.links_deleted)
            return [change], [(writes[0], report)]
        pending = (
            PendingCommitGroupState(self.rows.rows(), self.memories, now)
            if any(write.decide for write in writes)
            else None
        )
        workspace = self.__gather_workspace(
            [write.batch for write in writes if write.decide is None], settle=pending is None
        )
        state, rules = self.state, self._rules()
        changes: list[ChangeSet] = []
        reports: list[tuple[QueuedWrite, WriteReport]] = []
        for write in writes:
            try:
                if pending is not None:
                    pending.sequence = state.sequence + 1
                batch = write.batch if pending is None else self._decide_batch(write, pending, workspace)
                check_write_batch(batch, workspace, rules)
                self.quota.check_batch(batch, state.nodes, workspace.nodes)
            except Exception as error:  # noqa: BLE001  # passed on to the caller
                write.future.set_exception(error)
                continue
            change, report = plan_write_batch(batch, workspace, state, now, rules)
            if change is not None:
                changes.append(change)
                state = change.state
                if pending is not None:
                    pending.apply_change_set(change)
            reports.append((write, report))
        return changes, reports

    def _decide_batch(
        self, write: QueuedWrite, pending: PendingCommitGroupState, workspace: WritePlanningWorkspace
    ) -> WriteBatch:
        """Return the batch of a write, after adding the rows it needs to the workspace."""
        if write.decide is None:
            return write.batch
        try:
            batch = write.decide(pending)
        except RowsDamaged as error:
            raise self._schedule_rebuild(error) from error
        workspace.add_stored_rows(self.__gather_workspace([batch], settle=False))
        return batch

    def __gather_workspace(self, batches: list[WriteBatch], *, settle: bool) -> WritePlanningWorkspace:
        try:
            workspace = gather_planning_workspace(self.rows.rows(), batches, settle=settle)
        except RowsDamaged:
            log.exception("rows_damaged", store=self.name)
            self._renew_rows_now()
            workspace = gather_planning_workspace(self.rows.rows(), batches, settle=settle)
        linked = self.rows.rows().linked
        if any(batch.links or (linked and (batch.delete_nodes or batch.delete_links)) for batch in batches):
            self.links.load_touched_links(workspace, batches)
        if not self.ended.is_empty:
            new = {put.id for batch in batches for put in batch.nodes if put.id not in workspace.nodes}
            workspace.ended = self.ended.versions(new, self.state.sequence) if new else {}
        return workspace

    def _half_lives(self) -> MemoryHalfLives:
        return memory_half_lives_from_settings(self.description.memory)

    def _rules(self) -> WriteRules:
        chosen = self.description
        keeps_history = self.settings.history and chosen.history != "none"
        return WriteRules(frozenset(chosen.kind_whitelist), chosen.conflict_policy == "manual", keeps_history)
