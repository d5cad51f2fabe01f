"""Projection that keeps the history of each open store up to date, in a thread of its own."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

import structlog
from typing_extensions import override

from kgserve.errors import Conflict, JournalDamaged, Unavailable
from kgserve.platform.durable_files import fsync_folder
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.timestamps import DAY_MICROSECONDS, format_rfc3339_timestamp
from kgserve.projections.background_projection import ReadinessAnnouncingProjection
from kgserve.projections.base import ProjectionEraseRequest, StoreFollowedByProjections
from kgserve.projections.history.history_sql import HISTORY_PAGE_BYTES
from kgserve.projections.history.recovery import (
    delete_store_history_files,
    describe_history_gap,
    move_history_aside,
    open_or_repair_history_file,
)
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile, is_database_damage_error
from kgserve.projections.update_scheduler import ProjectionThread, lower_thread_priority
from kgserve.projections.workers import PeriodicProjectionWorker
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.disk_space import measure_free_space_for_deletion
from kgserve.storage.journal.replay import read_cross_store_links_as_of
from kgserve.storage.journal.snapshot import (
    list_journal_snapshots,
    parse_snapshot_sequence,
    read_snapshot_cross_store_links,
    read_snapshot_edges,
    read_snapshot_nodes,
    verify_snapshot,
)
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.projection_statuses import HistoryGap, HistoryStatus
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

log = structlog.get_logger()

Found = TypeVar("Found")

# Bulk imports are applied afterwards, at 150,000 rows a second, or as soon as a caller needs them.
IMPORT_DELAY_SECONDS = 15.0
HISTORY_FOLLOW_POLL_SECONDS = 0.1
PRUNE_INTERVAL_SECONDS = 3600.0
"""Interval between prunings of expired states, in addition to those at opening and after a change of settings."""
SIZE_PRUNE_DIVISOR = 8
"""Fraction (1/N) of a history's commits that is pruned at a time while its file is too large."""
MAX_GAPS_SHOWN = 100
SCRUB_INTERVAL_SECONDS = 3600.0
"""Interval between complete reads of a history file, which find damage on disk before a reader does."""
SCRUB_POLL_SECONDS = 5.0
SCRUB_BATCH_PAGES = 256
SCRUB_PAUSE_SECONDS = 1 / 16
"""Pause between batches of 1 MiB, which limits scrubbing to 16 MiB a second."""


class HistoryProjection(ReadinessAnnouncingProjection):
    """Background projection that applies every change set to a store's history file.

    Commits that the journal no longer has are skipped. While the store's settings disable history, it has no file and
    no position.
    """

    name = "history"
    rows_at_once = 5_000

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store)
        self._path = store.layout.history
        self._history: HistoryFile | None = None
        self._suspected = False
        self.damage: str | None = None
        """Damage found when the file was last opened, and how it was handled."""
        self._scrubbed = 0
        self.scrubbed_at: int | None = None
        # Opening reads the whole file, which counts as a scrub.
        self._scrub_ended = time.monotonic()
        self._requested = 0
        self._behind_since: float | None = None
        self._pruning: Generator[int] | None = None
        self._prune_up_to = self._pruned_up_to = 0
        self._max_bytes = store.settings.history_mb * MEBIBYTE
        self.prune_wanted = True

    @property
    def is_disabled(self) -> bool:
        """True if the store keeps no history."""
        return self.store.description.history == "none"

    @property
    def first_needed_sequence(self) -> int:
        """First commit that must be read from the journal again after a power failure now. Raises OSError."""
        if self.is_disabled:
            return NO_SEQUENCE_LIMIT
        history = self._history
        if history is None:
            return 1
        # Commits are checkpointed into the synced main file: SQLite silently drops the rest of a damaged write-ahead
        # log.
        with suppress(sqlite3.Error):
            history.checkpoint_and_seal()
            fsync_folder(self._path.parent)
        return history.checkpointed_sequence + 1

    def look(self, question: Callable[[HistoryFile], Found]) -> Found:
        """Return the result of ``question`` on the history. Raises Conflict if history is disabled for the store.

        Raises Unavailable while the history is being opened, or rebuilt after damage.
        """
        self.require()
        history = self._history
        if history is None or self._predates_reenabling(history):
            raise Unavailable("the history is being opened", retry_after=1)
        try:
            return question(history)
        except sqlite3.DatabaseError as error:
            if not is_database_damage_error(error):
                raise Unavailable(f"the history cannot be read now: {error}", retry_after=2) from error
            log.exception("history_damage_met", store=self.store.name)
            self.schedule_damage_check()
            message = "the history file is damaged; it is being checked, and its intact parts are kept"
            raise Unavailable(message, retry_after=2) from error

    def schedule_damage_check(self) -> None:
        """Have the whole file checked for damage, and its damaged parts set aside."""
        self._suspected = True
        self.wake()

    @property
    def history(self) -> HistoryFile | None:
        """The history, while its file is open."""
        return self._history

    @property
    def scrubbed_bytes(self) -> int:
        """Progress of the current scrub, in bytes."""
        return self._scrubbed * HISTORY_PAGE_BYTES

    def is_scrub_due(self, seconds: float) -> bool:
        """Return whether a scrub is in progress, or the last one ended at least ``seconds`` ago."""
        if self._history is None or self._suspected or self.error is not None:
            return False
        return self._scrubbed > 0 or time.monotonic() - self._scrub_ended >= seconds

    def scrub(self, pages: int) -> bool:
        """Compare the next ``pages`` pages on disk with their checksums. Return whether more remain."""
        try:
            return self._scrub(pages)
        except (OSError, sqlite3.Error) as error:
            # The file is being closed, or the disk cannot be read; opening it again will report that.
            log.warning("history_not_scrubbed", store=self.store.name, error=str(error))
            self._scrubbed, self._scrub_ended = 0, time.monotonic()
            return False

    def _scrub(self, pages: int) -> bool:
        history = self._history
        if history is None or self._suspected:
            return False
        if not history.is_in_place:
            log.error("history_file_gone", store=self.store.name, file=self._path.name)
            self.schedule_damage_check()
            return False
        found, count = history.scrub(self._scrubbed + 1, pages)
        if found:
            log.error("history_damage_found", store=self.store.name, pages=found[:10], number=len(found))
            self.schedule_damage_check()
        self._scrubbed += pages
        if self._scrubbed < count and not found:
            return True
        self._scrubbed, self.scrubbed_at, self._scrub_ended = 0, time.time_ns() // 1000, time.monotonic()
        return False

    def listed_gaps(self) -> list[HistoryGap]:
        """Return the gaps as responses show them, at most 100."""
        gaps = [] if self._history is None else self._history.gaps[:MAX_GAPS_SHOWN]
        return [HistoryGap(part=gap.table, first=gap.first, last=gap.last) for gap in gaps]

    def status(self) -> HistoryStatus | None:
        """Return the extent, gaps and scrub progress of the history; None while its file is not open."""
        history = self._history
        if history is None:
            return None
        return HistoryStatus(
            oldest=history.oldest,
            bytes=history.bytes,
            gaps=self.listed_gaps(),
            scrubbed_bytes=self.scrubbed_bytes,
            scrubbed_at=format_rfc3339_timestamp(self.scrubbed_at) if self.scrubbed_at else None,
            damage=self.damage,
        )

    def require(self) -> None:
        """Raise Conflict if history is disabled for the store."""
        if self.is_disabled:
            name = self.store.name
            raise Conflict(
                f"the history of store {name!r} is turned off, so only its current state can be read. To keep it from "
                f'now on, change the settings: PATCH /api/memory/{name} with {{"history": "all"}}'
            )

    def prune(self, before: int) -> int:
        """Delete the states that had ended by a commit, in slices. Return their number. Raises what `look` raises."""
        measure_free_space_for_deletion(self.store.layout.root.parent)
        slices = self.look(lambda history: history.prune_in_slices(before))
        removed = 0
        while (count := self.look(lambda _: next(slices, None))) is not None:
            removed += count
        return removed

    def schedule_pruning(self) -> None:
        """Schedule the deletion of states that have expired according to the settings."""
        self.prune_wanted = True
        self.wake()

    def expired_sequence(self, now: int) -> int:
        """Return the commit up to which ended states have expired at ``now`` (microseconds); 0 if none have."""
        days = self.store.description.history
        return (
            self.look(lambda history: history.sequence_at(now - days * DAY_MICROSECONDS))
            if isinstance(days, int)
            else 0
        )

    def expired_up_to_now(self) -> int:
        """Return `due` at the current time; 0 while the system clock is not trustworthy."""
        if not RETENTION_CLOCK.is_trusted(self.store.clock.idle):
            return 0
        return self.expired_sequence(RETENTION_CLOCK.now())

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        self._requested = max(self._requested, sequence)
        return super().wait(sequence, seconds)

    @override
    def close(self) -> None:
        self._pruning = None
        if self._history is not None:
            self._history.close()
            self._history = None

    @override
    def step(self) -> bool:
        self._continue()
        if self.is_disabled:
            self._remove()
            return False
        if self._suspected:
            self._suspected = False
            self._reopen()
        try:
            if self._history is not None and self._predates_reenabling(self._history):
                self._remove()
            more = super().step()
            return self._prune_slice() or more
        except sqlite3.DatabaseError as error:
            # The step is retried a second later, after a check of the file if it is damaged.
            if is_database_damage_error(error):
                self._suspected = True
            raise

    @override
    def _move(self, sequence: int) -> None:
        self._publish_conflict_generation()
        super()._move(sequence)
        self._wake_others()

    def _publish_conflict_generation(self) -> None:
        self.store.heads_mark = 0 if self._history is None else self._history.heads_mark

    def _wake_others(self) -> None:
        for wake in self.store.after_history:
            wake()

    @override
    def _open(self) -> int:
        self.close()
        history = self._open_verified()
        if self._predates_reenabling(history) and history.sequence:
            history.close()
            self._remove()
            history = self._open_verified()
        self._history = history
        self._publish_conflict_generation()
        # History was enabled again: commits of the time without history are not applied.
        if self._predates_reenabling(history):
            self.rebuild_wanted = True
        return history.sequence

    def _open_verified(self) -> HistoryFile:
        complete = self.store.journal.oldest == 1 and self.store.description.history_from == 0
        history, damage = open_or_repair_history_file(self._path, self.store.name, journal_is_complete=complete)
        self.damage = damage or self.damage
        return history

    def _reopen(self) -> None:
        """Open the file again, which checks it. Waiting callers keep waiting."""
        self._sequence, self._pruned_up_to = -1, 0
        self.close()
        self._wake_others()

    def _predates_reenabling(self, history: HistoryFile) -> bool:
        """Return whether the history contains, or would contain, commits older than its re-enabling."""
        return history.oldest < min(self.store.description.history_from, self.store.state.sequence)

    def _remove(self) -> None:
        self.close()
        self._publish_conflict_generation()
        delete_store_history_files(self._path)
        # Waiting callers keep waiting: the next step opens it again.
        self._suspected, self._sequence, self._pruned_up_to = False, -1, 0
        self._wake_others()

    def _prune_slice(self) -> bool:
        """Prune a slice of expired states, if pruning is due. Return whether more remains."""
        if self.prune_wanted:
            self.prune_wanted = False
            self._prune_up_to = self.expired_up_to_now()
            more = self._prune_up_to > self._pruned_up_to
            self._pruning = self._opened().prune_in_slices(self._prune_up_to) if more else None
        if self._pruning is None and self._is_too_large():
            self._prune_oldest(self._opened())
        if self._pruning is None:
            return False
        started = time.perf_counter()
        if next(self._pruning, None) is None:
            self._pruning, self._pruned_up_to = None, self._prune_up_to
        self._yield_to_requests(time.perf_counter() - started)
        return self._pruning is not None or self._is_too_large()

    def _is_too_large(self) -> bool:
        return 0 < self._max_bytes < self._path.stat().st_size and self._opened().bytes > self._max_bytes

    def _prune_oldest(self, history: HistoryFile) -> None:
        """Start pruning the oldest part of the history; current states are always kept."""
        known, size = history.sequence - history.oldest, history.bytes
        if known <= 0:
            # Checked again once the file has grown.
            self._max_bytes = size + size // SIZE_PRUNE_DIVISOR
            return
        self._prune_up_to = history.oldest + -(-known // SIZE_PRUNE_DIVISOR)
        self._pruning = history.prune_in_slices(self._prune_up_to)
        log.warning("history_too_large", store=self.store.name, bytes=size, forgets_before=self._prune_up_to)

    @override
    def _advance(self, last: int) -> None:
        if self._is_deferred():
            self._stopping.wait(HISTORY_FOLLOW_POLL_SECONDS)
            return
        started = time.perf_counter()
        super()._advance(last)
        if self.sequence >= last:
            self._behind_since = None
            if self._opened().has_open_gaps:
                self._restore()
        self._yield_to_requests(time.perf_counter() - started)

    def _is_deferred(self) -> bool:
        """Return whether to wait for an active writer, since no caller needs the new commits. The wait is limited."""
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        is_deferrable = self.store.writing and self.sequence >= self._requested
        return is_deferrable and time.monotonic() - self._behind_since < IMPORT_DELAY_SECONDS

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        self._opened().take([*changes])

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        if self._history is not None:
            self._history.erase(erasure.ids, erasure.former, erasure.through)
            self._publish_conflict_generation()

    def _restore(self) -> None:
        """Restore missing current states from the rows."""
        with self.store.reading() as rows:
            if rows.at != self.sequence:
                return
            self._restore_from(rows)
        self._wake_others()

    def _restore_from(self, rows: RowsSnapshot) -> None:
        links = chain.from_iterable(read_cross_store_links_as_of(self.store.layout, self.store.journal, rows.at))
        self._opened().restore(rows.all_nodes(), rows.all_edges(), links, rows.at, rows.state.time)
        gaps = [*map(describe_history_gap, self._opened().gaps)]
        log.warning("history_has_gaps", store=self.store.name, sequence=rows.at, gaps=gaps)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        # An older snapshot restores more of the past; commits between the file and the snapshot become a gap.
        snapshot = self._older_snapshot()
        if snapshot is None:
            self._apply_present(rows)
            return rows.at
        return self._apply_snapshot(snapshot)

    def _apply_present(self, rows: RowsSnapshot) -> None:
        history = self._opened()
        if history.sequence > rows.at:
            # This history belongs to a different sequence of commits; neither mix nor delete it.
            set_aside_path = self._set_aside()
            log.error("history_of_other_commits", store=self.store.name, set_aside=str(set_aside_path))
            history = self._opened()
        if (history.sequence or history.gaps) and not self._predates_reenabling(history):
            self._restore_from(rows)
            return
        if rows.at and self.store.description.history_from == 0 and self.store.journal.oldest > 1:
            self._report_loss(rows.at)
            self._restore_from(rows)
            return
        links = chain.from_iterable(read_cross_store_links_as_of(self.store.layout, self.store.journal, rows.at))
        history.reset_to(rows.all_nodes(), rows.all_edges(), rows.at, rows.state.time, links)

    def _apply_snapshot(self, snapshot: Path) -> int:
        manifest = verify_snapshot(snapshot)
        history = self._opened()
        if not history.sequence and not history.gaps:
            self._report_loss(manifest.sequence)
        links = chain.from_iterable(read_snapshot_cross_store_links(snapshot))
        history.restore(
            read_snapshot_nodes(snapshot), read_snapshot_edges(snapshot), links, manifest.sequence, manifest.time
        )
        gaps = [*map(describe_history_gap, history.gaps)]
        log.warning("history_has_gaps", store=self.store.name, sequence=manifest.sequence, gaps=gaps)
        return manifest.sequence

    def _older_snapshot(self) -> Path | None:
        """Return the oldest intact snapshot newer than the file, None if none exists.

        The journal must be complete from that snapshot on.
        """
        journal, history = self.store.journal, self._opened()
        if journal.oldest == 1 or self._predates_reenabling(history) or self.store.description.history_from:
            return None
        first = max(journal.oldest - 1, history.sequence + 1)
        for snapshot in reversed(list_journal_snapshots(self.store.layout.journal)):
            if first <= parse_snapshot_sequence(snapshot) <= journal.last:
                with suppress(JournalDamaged):
                    verify_snapshot(snapshot)
                    return snapshot
        return None

    def _report_loss(self, sequence: int) -> None:
        """Report that no file contains the history before a commit; it becomes a gap."""
        oldest = self.store.journal.oldest
        self.damage = f"the file was missing and the journal begins at sequence {oldest}: older history is lost"
        log.error("history_begins_late", store=self.store.name, sequence=sequence, journal_begins_at=oldest)

    def _set_aside(self) -> Path | None:
        self.close()
        set_aside_path = move_history_aside(self._path)
        self._history = self._open_verified()
        return set_aside_path

    def _opened(self) -> HistoryFile:
        if self._history is None:
            raise Unavailable("the history is being closed or reopened; try again shortly")
        return self._history


class HistoryWorker(PeriodicProjectionWorker[StoreFollowedByProjections, HistoryProjection]):
    """Worker that keeps the history of every open store up to date."""

    of_copies = True

    def __init__(self, prune_seconds: float = PRUNE_INTERVAL_SECONDS) -> None:
        super().__init__(ProjectionThread("historian"), "pruner", prune_seconds)
        self._scrubber = threading.Thread(target=self._scrub_all, name="history-scrubber", daemon=True)
        self._scrubber.start()

    @override
    def close(self) -> None:
        super().close()
        self._scrubber.join()

    def of(self, store: StoreFollowedByProjections) -> HistoryProjection:
        """Return the history of an open store.

        Raises Conflict if the store keeps no history, and Unavailable while the store closes.
        """
        found = self._of(store, "the store is closing, so its history cannot be read now; try again shortly")
        found.require()
        return found

    @override
    def _begun(self, store: StoreFollowedByProjections) -> HistoryProjection:
        follower = HistoryProjection(store)
        store.needed_from.append(lambda: follower.first_needed_sequence)
        store.after_change.append(follower.schedule_pruning)
        return follower

    @override
    def _remind(self, own: HistoryProjection) -> None:
        own.schedule_pruning()

    def _scrub_all(self) -> None:
        """Scrub the histories one after another at a limited rate, each again an hour after its last scrub."""
        lower_thread_priority()
        while not self._closed.wait(SCRUB_POLL_SECONDS):
            for own in self._all_states():
                while own.is_scrub_due(SCRUB_INTERVAL_SECONDS) and not self._closed.wait(SCRUB_PAUSE_SECONDS):
                    own.scrub(SCRUB_BATCH_PAGES)
