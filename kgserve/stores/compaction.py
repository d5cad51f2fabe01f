"""Compaction: a snapshot of all rows, so that rebuilds replay less journal, and a new engine file.

A snapshot is due once the journal has grown by 64 MiB (a setting) or by half of the last snapshot, whichever is more.
Packed frames count with their unpacked size, because a rebuild reads that much.

The engine never merges its log into its file while in service, and never frees the memory it retains for updated rows.
A new file replaces the old one when the log exceeds the same threshold relative to the file, or when the retained
memory exceeds its own. Compaction starts after a second without writes, or at once when a threshold is exceeded twice
over.

A store that is idle for 10 s returns the space of replaced and deleted rows, if that is a fifth of their texts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

import structlog

from kgserve.errors import KgserveError, StorageFull, Unavailable
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.projections.cypher_engine.engine.files import delete_engine_file
from kgserve.projections.cypher_engine.projection import EngineFileProjection
from kgserve.storage.current_rows_rebuild import MAX_KEPT_SNAPSHOTS
from kgserve.storage.disk_space import require_disk_space_for_rebuild
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import measure_unsnapshotted_bytes
from kgserve.storage.rows.current_rows import BaseSegmentStagedBeforeDelete, CurrentRowsProjection
from kgserve.storage.rows.row_json_encoder import RowsDamaged
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

IMMEDIATE_COMPACTION_PRESSURE = 2
_COMPACTION_RETRY_SECONDS = 60.0
COMPACTION_DELAY_SECONDS = 30.0
COMPACTION_POLL_SECONDS = 0.1
JOURNAL_CONSUMER_TIMEOUT_SECONDS = 5.0
"""Time to wait for consumers of the journal before an erasure fails, to be repeated later."""
_JOURNAL_CONSUMER_POLL_SECONDS = 0.01
# Memory that the engine may retain for updates; less for small stores, whose files are cheap to rebuild.
_MIN_RETAINED_BYTES = 16 * MEBIBYTE
_MAX_RETAINED_BYTES = 96 * MEBIBYTE


class Compactor:
    """Decides when a store needs compaction, and runs it in the background."""

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        engine: EngineFileProjection,
        take_snapshot: Callable[[], int],
        settings: Settings,
        background: Callable[[Callable[[], None]], object],
        needed_from: Sequence[Callable[[], int]] = (),
    ) -> None:
        """Create the compactor of one store.

        ``take_snapshot`` takes a snapshot and returns its sequence. ``needed_from`` returns the first journal sequence
        that each consumer still has to read; the journal is kept from the earliest of these.
        """
        self._layout = layout
        self._journal = journal
        self._engine = engine
        self._take_snapshot = take_snapshot
        self._needed_from = needed_from
        self._settings = settings
        self._background = background
        self._finished = threading.Event()
        self._finished.set()
        self._not_before = self._reclaim_not_before = 0.0
        self._compacting = threading.Lock()
        self._next_check_bytes = 0
        self._failed = False
        self.done = 0

    def wanted(self) -> bool:
        """Return whether to compact once the store is idle. Start at once if compaction is overdue."""
        pressure = max(self._journal_pressure(), self._engine_pressure(), float(self._failed))
        if pressure < 1 or not self._finished.is_set() or time.monotonic() < self._not_before:
            return False
        if pressure < IMMEDIATE_COMPACTION_PRESSURE:
            return True
        self.start()
        return False

    def start_if_wanted(self) -> None:
        """Start compaction in the background if a threshold is exceeded."""
        if self.wanted():
            self.start()

    def retry_failed(self) -> None:
        """Retry a failed compaction after a delay."""
        if self._failed:
            self.start_if_wanted()

    def start(self) -> None:
        """Start compaction in the background."""
        self._finished.clear()
        self._background(self.run)

    def start_reclaiming(self, rewrite_rows: Callable[[], None]) -> None:
        """Start to return the disk space of replaced and deleted rows in the background, unless it was tried just now.

        The engine never shrinks its file, so a closed one is deleted and an open one is replaced.
        """

        def reclaim() -> int:
            if not self._engine.forget():
                self._renew_engine()
            rewrite_rows()
            return self._journal.last

        if self._finished.is_set() and time.monotonic() >= self._reclaim_not_before:
            self._reclaim_not_before = time.monotonic() + _COMPACTION_RETRY_SECONDS
            self._finished.clear()
            self._background(partial(self._run, reclaim))

    def wait(self) -> None:
        """Block until no compaction is running."""
        self._finished.wait()

    def run(self) -> None:
        """Compact now, in this thread. A failure is logged and changes nothing."""
        self._run(self._compact)

    def _run(self, compact: Callable[[], int]) -> None:
        self._finished.clear()
        started = time.perf_counter()
        name = self._layout.name
        log.info("compaction_started", store=name)
        try:
            with self._compacting:
                sequence = compact()
        except (KgserveError, OSError) as error:
            self._not_before = time.monotonic() + _COMPACTION_RETRY_SECONDS
            if (closing := self._engine.options.closing) and closing.is_set():
                log.info("compaction_broken_off", store=name)
            else:
                self._failed = True
                log.exception("compaction_failed", store=name, error=str(error))
        else:
            self.done += 1
            self._failed = False
            seconds = round(time.perf_counter() - started, 3)
            log.info("compaction_done", store=name, sequence=sequence, seconds=seconds)
        finally:
            self._finished.set()

    def erase(self, before: int) -> None:
        """Remove all data that is no longer current as of commit ``before``.

        Takes a snapshot, renews the engine file and truncates the journal, of which nothing is retained beyond what is
        needed. Blocks. Raises Unavailable if a consumer does not read the journal in time or the store is closing, and
        the errors of taking a snapshot and of building an engine file.
        """
        with self._compacting:
            while not (self._engine.forget() or self._renew_engine()):
                pass  # it was closed meanwhile, so `forget` succeeds on the next attempt
            if self._take_snapshot() < before:
                raise Unavailable("the newest snapshot does not include the deletion; try again", retry_after=2)
            self._wait_for_consumers(before)
            for each in snapshot.list_journal_snapshots(self._layout.journal)[:1]:
                snapshot.verify_snapshot(each)
            snapshot.remove_old_snapshots(self._layout.journal, 1)
            self._journal.remove_segments_before(before, 0)
            self._next_check_bytes = 0

    def _wait_for_consumers(self, sequence: int) -> None:
        """Wait until no consumer still has to read the journal up to a commit. Raises Unavailable."""
        until = time.monotonic() + JOURNAL_CONSUMER_TIMEOUT_SECONDS
        closing = self._engine.options.closing or threading.Event()
        while any(needed() <= sequence for needed in self._needed_from):
            if time.monotonic() > until or closing.wait(_JOURNAL_CONSUMER_POLL_SECONDS):
                raise Unavailable("the journal is still being read by others; try again shortly", retry_after=2)

    def _journal_pressure(self) -> float:
        """Return the journal growth since the last snapshot, as a fraction of its threshold."""
        size = self._journal.bytes + self._journal.compression_savings_after(0)
        if size < self._next_check_bytes:
            return 0.0
        grown, before = measure_unsnapshotted_bytes(self._layout, self._journal)
        room = max(self._settings.compact_wal_mb * MEBIBYTE, before // 2)
        # Skip this check until the journal could have reached its threshold.
        self._next_check_bytes = size + max(room - grown, 0)
        return grown / room

    def _engine_pressure(self) -> float:
        """Return the engine's log size or retained memory, whichever is larger, as a fraction of its threshold."""
        if not self._engine.is_open:
            return 0.0
        file_bytes, log_bytes = self._engine.bytes()
        log_room = max(self._settings.compact_wal_mb * MEBIBYTE, file_bytes // 2)
        kept_room = min(max(2 * file_bytes, _MIN_RETAINED_BYTES), _MAX_RETAINED_BYTES)
        return max(log_bytes / log_room, self._engine.retained_bytes / kept_room)

    def _compact(self) -> int:
        if self._engine_pressure() >= 1:
            self._renew_engine()
            # A snapshot yields to writes and can take long. Taking it now would delay the next engine file.
            if self._journal_pressure() < 1:
                return self._engine.state.sequence
        sequence = self._take_snapshot()
        self._next_check_bytes = 0
        self._drop_old()
        return sequence

    def _renew_engine(self) -> bool:
        """Build a new engine file of the current rows and swap it in once it has caught up. Readers do not wait.

        Returns False if the old engine was closed or widened meanwhile; the new file is then discarded.
        """
        view = self._engine
        require_disk_space_for_rebuild(self._layout.root, sum(view.bytes()))
        with view.keep_open() as is_open:
            if not is_open:
                return False
            engine = view.build_from_journal(view.next_path(), "", view.width)
            with view.commits:
                log.info("compaction_swapping", store=self._layout.name)
                if not view.is_open or engine.width < view.width:
                    engine.retire()
                    delete_engine_file(engine.path)
                    log.info("engine_not_renewed", store=self._layout.name, reason="it was closed, or got columns")
                    return False
                view.replace(engine)
                view.state = engine.state
                view.follow(self._journal.last)
        return True

    def _drop_old(self) -> None:
        oldest = snapshot.remove_old_snapshots(self._layout.journal, MAX_KEPT_SNAPSHOTS)
        oldest = min([oldest, *(needed() - 1 for needed in self._needed_from)])
        self._journal.remove_segments_before(oldest, self._settings.journal_retention_mb * MEBIBYTE)


class DeltaMerger:
    """Merges the delta of a store's current rows into a new base, in one thread at a time.

    ``renew`` is called if the old base turns out to be damaged.
    """

    def __init__(self, name: str, rows: CurrentRowsProjection, renew: Callable[[], None]) -> None:
        self._name = name
        self._rows = rows
        self._renew = renew
        self._idle = threading.Event()
        self._idle.set()
        self._claim_lock = threading.Lock()
        self._is_staging = False

    def wait(self) -> None:
        """Block until no merge is running, except one of `stage_deletion`, which may be waiting for the caller."""
        while not self._is_staging and not self._idle.wait(COMPACTION_POLL_SECONDS):
            pass

    def wait_until_idle(self) -> None:
        """Block until no merge is running."""
        self._idle.wait()

    def throttle_writes(self) -> None:
        """Block writes while the delta is overfull and a merge is running."""
        if self._rows.is_overfull and not self._idle.is_set() and not self._is_staging:
            log.warning("writes_held_back", store=self._name, changed=self._rows.delta_version_count)
            self._idle.wait(COMPACTION_DELAY_SECONDS)

    def start_if_due(self, *, idle: bool = False) -> None:
        """Start a merge in a thread of its own if the delta exceeds its limits."""
        if self._rows.needs_merge(idle=idle) and self._begin():
            # Not the shared background thread: writes may have to wait for this merge.
            threading.Thread(target=self._fold, name=f"fold-{self._name}", daemon=True).start()

    def at_once(self, *, copying: bool = False) -> None:
        """Merge now, unless a merge is running; with ``copying``, leave no unused texts. Blocks."""
        if self._begin():
            self._fold(copying=copying)

    def erase(self) -> None:
        """Rewrite all base files now, so that they hold only current rows. Blocks.

        Raises StorageFull, Unavailable, and RowsDamaged if the old base is damaged.
        """
        while not self._begin():
            self._idle.wait(COMPACTION_POLL_SECONDS)
        try:
            self._rows.fold(copying=True)
        finally:
            self._idle.set()

    @contextmanager
    def stage_deletion(self, check: Callable[[], None] = lambda: None) -> Generator[BaseSegmentStagedBeforeDelete]:
        """Yield a staged base, from which rows can be removed before the commit that deletes them.

        Waits for a running merge, calling ``check`` at intervals.
        """
        while not self._begin(foreseeing=True):
            self._idle.wait(COMPACTION_POLL_SECONDS)
            check()
        try:
            with self._rows.stage_deletion() as foreseen:
                yield foreseen
        finally:
            self._is_staging = False
            self._idle.set()
            self.start_if_due()

    def _begin(self, *, foreseeing: bool = False) -> bool:
        """Claim the merge, and return whether no other thread holds it."""
        with self._claim_lock:
            if not self._idle.is_set():
                return False
            # Set before `_idle` is cleared: the writer must not wait for a staged base.
            self._is_staging = foreseeing
            self._idle.clear()
            return True

    def _fold(self, *, copying: bool = False) -> None:
        try:
            self._rows.fold(copying=copying)
        except RowsDamaged:
            log.exception("rows_damaged", store=self._name)
            self._idle.set()
            self._renew()
        except (KgserveError, OSError) as error:
            # Nothing is lost: the journal has all changes, and the next write tries again.
            log.error("rows_not_folded", store=self._name, exc_info=None if isinstance(error, StorageFull) else error)
        finally:
            self._idle.set()
