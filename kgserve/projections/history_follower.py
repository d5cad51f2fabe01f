"""Keeps the history of each open store in step, in a thread of its own."""

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
from kgserve.platform.durable_files import sync_folder
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.times import DAY_MICROSECONDS, format_time
from kgserve.projections.background import PeriodicWorker
from kgserve.projections.base import Erasure, FollowedStore
from kgserve.projections.follower import JournalFollower
from kgserve.projections.history.history import FOREVER, History, tells_damage
from kgserve.projections.history.recovery import describe_gap, open_history, remove_history, set_aside
from kgserve.projections.history.statements import HISTORY_PAGE_BYTES
from kgserve.projections.schedule import FollowerThread, lower_priority
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.journal.replay import all_links
from kgserve.storage.journal.snapshot import list_snapshots, read_edges, read_links, read_nodes, sequence_of, verify
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.statuses import HistoryGap, HistoryStatus
from kgserve.storage.rows.snapshot import Rows

log = structlog.get_logger()

Found = TypeVar("Found")

# An import is better left to itself: it is taken in afterwards, at 150,000 rows a second, or once somebody asks for it.
IMPORT_DELAY_SECONDS = 15.0
HISTORY_FOLLOW_POLL_SECONDS = 0.1
PRUNE_INTERVAL_SECONDS = 3600.0
"""How often the states are forgotten that a store keeps no longer, beside when it opens and its settings change."""
SIZE_PRUNE_DIVISOR = 8
"""Of a history that takes too much, this part of its commits goes; and again, until it does not."""
MAX_GAPS_SHOWN = 100
SCRUB_INTERVAL_SECONDS = 3600.0
"""How often each history is read whole, to find damage on the disk before a reader does."""
SCRUB_POLL_SECONDS = 5.0
SCRUB_BATCH_PAGES = 256
SCRUB_PAUSE_SECONDS = 1 / 16
"""A MiB each time: at most 16 MiB a second."""


class HistoryFollower(JournalFollower):
    """Takes every change set in turn. What the journal no longer has it begins without.

    While the store's settings turn it off, it has no file and stands nowhere.
    """

    name = "history"
    rows_at_once = 5_000

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        self._path = store.layout.history
        self._history: History | None = None
        self._suspected = False
        self.damage: str | None = None
        """What was found damaged when it was last opened, and what became of it."""
        self._scrubbed = 0
        self.scrubbed_at: int | None = None
        # All of it is read when it is opened.
        self._scrub_ended = time.monotonic()
        self._asked_for = 0
        self._behind_since: float | None = None
        self._pruning: Generator[int] | None = None
        self._pruning_to = self._pruned_to = 0
        self._most_bytes = store.settings.history_mb * MEBIBYTE
        self.prune_wanted = True

    @property
    def turned_off(self) -> bool:
        """Whether the store keeps no history."""
        return self.store.description.history == "none"

    @property
    def needs_from(self) -> int:
        """The first commit that it has yet to read from the journal, should the power fail now. Raises OSError."""
        if self.turned_off:
            return FOREVER
        history = self._history
        if history is None:
            return 1
        # Into the file itself, which is synced: of a log that is damaged SQLite drops the rest without a word.
        with suppress(sqlite3.Error):
            history.settle()
            sync_folder(self._path.parent)
        return history.settled + 1

    def look(self, question: Callable[[History], Found]) -> Found:
        """What ``question`` finds. Raises Conflict while it is turned off for the store.

        Raises Unavailable while the history is being opened, or made anew after damage.
        """
        self.require()
        history = self._history
        if history is None or self._is_from_before(history):
            raise Unavailable("the history is being opened", retry_after=1)
        try:
            return question(history)
        except sqlite3.DatabaseError as error:
            if not tells_damage(error):
                raise Unavailable(f"the history cannot be read now: {error}", retry_after=2) from error
            log.exception("history_damage_met", store=self.store.name)
            self.suspect()
            message = "a part of the history's file is damaged; the file is being checked, and what is whole is kept"
            raise Unavailable(message, retry_after=2) from error

    def suspect(self) -> None:
        """Have the whole file checked, and what is damaged set aside."""
        self._suspected = True
        self.wake()

    @property
    def history(self) -> History | None:
        """The file, while it is open."""
        return self._history

    @property
    def scrubbed_bytes(self) -> int:
        """How far the present look for damage has come."""
        return self._scrubbed * HISTORY_PAGE_BYTES

    def is_scrub_due(self, seconds: float) -> bool:
        """Whether a look for damage is in progress, or the last one is so many seconds ago."""
        if self._history is None or self._suspected or self.error is not None:
            return False
        return self._scrubbed > 0 or time.monotonic() - self._scrub_ended >= seconds

    def scrub(self, pages: int) -> bool:
        """Compare the next pages on the disk with their checksums; whether there are more."""
        try:
            return self._scrub(pages)
        except (OSError, sqlite3.Error) as error:
            # It is just being closed, or the disk cannot be read: opening it will say so.
            log.warning("history_not_scrubbed", store=self.store.name, error=str(error))
            self._scrubbed, self._scrub_ended = 0, time.monotonic()
            return False

    def _scrub(self, pages: int) -> bool:
        history = self._history
        if history is None or self._suspected:
            return False
        if not history.is_in_place:
            log.error("history_file_gone", store=self.store.name, file=self._path.name)
            self.suspect()
            return False
        found, count = history.scrub(self._scrubbed + 1, pages)
        if found:
            log.error("history_damage_found", store=self.store.name, pages=found[:10], number=len(found))
            self.suspect()
        self._scrubbed += pages
        if self._scrubbed < count and not found:
            return True
        self._scrubbed, self.scrubbed_at, self._scrub_ended = 0, time.time_ns() // 1000, time.monotonic()
        return False

    def shown_gaps(self) -> list[HistoryGap]:
        """What is missing, as answers say it; at most 100 gaps."""
        gaps = [] if self._history is None else self._history.gaps[:MAX_GAPS_SHOWN]
        return [HistoryGap(part=gap.table, first=gap.first, last=gap.last) for gap in gaps]

    def status(self) -> HistoryStatus | None:
        """What it knows, what is missing, and how far the look for damage has come; None while it is not open."""
        history = self._history
        if history is None:
            return None
        return HistoryStatus(
            oldest=history.oldest,
            bytes=history.bytes,
            gaps=self.shown_gaps(),
            scrubbed_bytes=self.scrubbed_bytes,
            scrubbed_at=format_time(self.scrubbed_at) if self.scrubbed_at else None,
            damage=self.damage,
        )

    def require(self) -> None:
        """Raise Conflict while it is turned off for the store."""
        if self.turned_off:
            name = self.store.name
            raise Conflict(
                f"the history of store {name!r} is turned off, and only the present can be read; to keep it from now "
                f'on, change the settings: PATCH /api/memory/{name} with {{"history": "all"}}'
            )

    def prune(self, before: int) -> int:
        """Forget the states that had ended by a commit, in slices; how many those were. Raises what `look` does."""
        slices = self.look(lambda history: history.pruning(before))
        removed = 0
        while (count := self.look(lambda _: next(slices, None))) is not None:
            removed += count
        return removed

    def prune_soon(self) -> None:
        """Have the states forgotten that the settings let go of by now, if there are any."""
        self.prune_wanted = True
        self.wake()

    def due(self, now: int) -> int:
        """The commit by which a state must have ended for the settings to let go of it; 0 when nothing is to go."""
        days = self.store.description.history
        return (
            self.look(lambda history: history.sequence_at(now - days * DAY_MICROSECONDS))
            if isinstance(days, int)
            else 0
        )

    def due_now(self) -> int:
        """Return `due` at present; 0 while the clock does not say how old the store's states are."""
        if not RETENTION_CLOCK.is_believed(self.store.clock.idle):
            return 0
        return self.due(RETENTION_CLOCK.now())

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        self._asked_for = max(self._asked_for, sequence)
        return super().wait(sequence, seconds)

    @override
    def close(self) -> None:
        """Release the file."""
        self._pruning = None
        if self._history is not None:
            self._history.close()
            self._history = None

    @override
    def step(self) -> bool:
        self._continue()
        if self.turned_off:
            self._remove()
            return False
        if self._suspected:
            self._suspected = False
            self._reopen()
        try:
            if self._history is not None and self._is_from_before(self._history):
                self._remove()
            more = super().step()
            return self._prune_a_little() or more
        except sqlite3.DatabaseError as error:
            # Tried again a second later, once the file has been checked if that is what it is.
            self._suspected = tells_damage(error)
            raise

    @override
    def _move(self, sequence: int) -> None:
        self._note_heads()
        super()._move(sequence)
        self._wake_others()

    def _note_heads(self) -> None:
        self.store.heads_mark = 0 if self._history is None else self._history.heads_mark

    def _wake_others(self) -> None:
        for wake in self.store.after_history:
            wake()

    @override
    def _open(self) -> int:
        self.close()
        history = self._opened_whole()
        if self._is_from_before(history) and history.sequence:
            history.close()
            self._remove()
            history = self._opened_whole()
        self._history = history
        self._note_heads()
        # Turned on again: what the journal holds of the time before is not taken up.
        self.rebuild_wanted = self.rebuild_wanted or self._is_from_before(history)
        return history.sequence

    def _opened_whole(self) -> History:
        told = self.store.journal.oldest == 1 and self.store.description.history_from == 0
        history, damage = open_history(self._path, self.store.name, told_by_journal=told)
        self.damage = damage or self.damage
        return history

    def _reopen(self) -> None:
        """Open it again, and check it. Who waits goes on waiting."""
        self._sequence, self._pruned_to = -1, 0
        self.close()
        self._wake_others()

    def _is_from_before(self, history: History) -> bool:
        """Whether it knows, or would learn, of a time before the history of this store was turned on again."""
        return history.oldest < min(self.store.description.history_from, self.store.state.sequence)

    def _remove(self) -> None:
        self.close()
        self._note_heads()
        remove_history(self._path)
        # Who waits goes on waiting: it is opened again with the next step.
        self._suspected, self._sequence, self._pruned_to = False, -1, 0
        self._wake_others()

    def _prune_a_little(self) -> bool:
        """Go on with forgetting what the settings let go of, if it is due; whether there is more of it to do."""
        if self.prune_wanted:
            self.prune_wanted = False
            self._pruning_to = self.due_now()
            more = self._pruning_to > self._pruned_to
            self._pruning = self._opened().pruning(self._pruning_to) if more else None
        if self._pruning is None and self._is_too_large():
            self._prune_oldest(self._opened())
        if self._pruning is None:
            return False
        started = time.perf_counter()
        if next(self._pruning, None) is None:
            self._pruning, self._pruned_to = None, self._pruning_to
        self._yield_to_requests(time.perf_counter() - started)
        return self._pruning is not None or self._is_too_large()

    def _is_too_large(self) -> bool:
        return 0 < self._most_bytes < self._path.stat().st_size and self._opened().bytes > self._most_bytes

    def _prune_oldest(self, history: History) -> None:
        """Begin to forget the oldest part of what is known; the present stays, however much that takes."""
        known, size = history.sequence - history.oldest, history.bytes
        if known <= 0:
            # Looked at again once it has grown.
            self._most_bytes = size + size // SIZE_PRUNE_DIVISOR
            return
        self._pruning_to = history.oldest + -(-known // SIZE_PRUNE_DIVISOR)
        self._pruning = history.pruning(self._pruning_to)
        log.warning("history_too_large", store=self.store.name, bytes=size, forgets_before=self._pruning_to)

    @override
    def _advance(self, last: int) -> None:
        if self._held_back():
            self._stopping.wait(HISTORY_FOLLOW_POLL_SECONDS)
            return
        started = time.perf_counter()
        super()._advance(last)
        if self.sequence >= last:
            self._behind_since = None
            if self._opened().has_open_gaps:
                self._restore()
        self._yield_to_requests(time.perf_counter() - started)

    def _held_back(self) -> bool:
        """Whether it waits for a writer, as nobody asks for what it has not seen; not for long."""
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        unasked = self.store.writing and self.sequence >= self._asked_for
        return unasked and time.monotonic() - self._behind_since < IMPORT_DELAY_SECONDS

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        self._opened().take([*changes])

    @override
    def _erase(self, erasure: Erasure) -> None:
        if self._history is not None:
            self._history.erase(erasure.ids, erasure.former, erasure.through)
            self._note_heads()

    def _restore(self) -> None:
        """Bring back what is missing of the present."""
        with self.store.reading() as rows:
            if rows.at != self.sequence:
                return
            self._bring(rows)
        self._wake_others()

    def _bring(self, rows: Rows) -> None:
        links = chain.from_iterable(all_links(self.store.layout, self.store.journal, rows.at))
        self._opened().restore(rows.all_nodes(), rows.all_edges(), links, rows.at, rows.state.time)
        gaps = [*map(describe_gap, self._opened().gaps)]
        log.warning("history_has_gaps", store=self.store.name, sequence=rows.at, gaps=gaps)

    @override
    def _apply_all(self, rows: Rows) -> int:
        """Take what snapshot and journal still have of the past, if that is more than the present.

        What lies between the file and the snapshot becomes a gap.
        """
        snapshot = self._older_snapshot()
        if snapshot is None:
            self._apply_present(rows)
            return rows.at
        return self._apply_snapshot(snapshot)

    def _apply_present(self, rows: Rows) -> None:
        history = self._opened()
        if history.sequence > rows.at:
            # Of another course of things. It is not to be mixed with this one, nor deleted.
            aside = self._set_aside()
            log.error("history_of_other_commits", store=self.store.name, set_aside=str(aside))
            history = self._opened()
        if (history.sequence or history.gaps) and not self._is_from_before(history):
            self._bring(rows)
            return
        if rows.at and self.store.description.history_from == 0 and self.store.journal.oldest > 1:
            self._note_loss(rows.at)
            self._bring(rows)
            return
        links = chain.from_iterable(all_links(self.store.layout, self.store.journal, rows.at))
        history.begin_at(rows.all_nodes(), rows.all_edges(), rows.at, rows.state.time, links)

    def _apply_snapshot(self, snapshot: Path) -> int:
        manifest = verify(snapshot)
        history = self._opened()
        if not history.sequence and not history.gaps:
            self._note_loss(manifest.sequence)
        links = chain.from_iterable(read_links(snapshot))
        history.restore(read_nodes(snapshot), read_edges(snapshot), links, manifest.sequence, manifest.time)
        gaps = [*map(describe_gap, history.gaps)]
        log.warning("history_has_gaps", store=self.store.name, sequence=manifest.sequence, gaps=gaps)
        return manifest.sequence

    def _older_snapshot(self) -> Path | None:
        """The oldest whole snapshot that the file lacks and from which the journal leads to the present."""
        journal, history = self.store.journal, self._opened()
        if journal.oldest == 1 or self._is_from_before(history) or self.store.description.history_from:
            return None
        first = max(journal.oldest - 1, history.sequence + 1)
        for snapshot in reversed(list_snapshots(self.store.layout.journal)):
            if first <= sequence_of(snapshot) <= journal.last:
                with suppress(JournalDamaged):
                    verify(snapshot)
                    return snapshot
        return None

    def _note_loss(self, sequence: int) -> None:
        """Report that the past before a commit is in no file any more. It becomes a gap."""
        oldest = self.store.journal.oldest
        self.damage = f"there was no file, and the journal begins at sequence {oldest}: what was before is lost"
        log.error("history_begins_late", store=self.store.name, sequence=sequence, journal_begins_at=oldest)

    def _set_aside(self) -> Path | None:
        self.close()
        aside = set_aside(self._path)
        self._history = self._opened_whole()
        return aside

    def _opened(self) -> History:
        if self._history is None:
            raise Unavailable("the history is not open")
        return self._history


class Historian(PeriodicWorker[FollowedStore, HistoryFollower]):
    """A companion of the pool: keeps the history of every store while it is open."""

    of_copies = True

    def __init__(self, prune_seconds: float = PRUNE_INTERVAL_SECONDS) -> None:
        super().__init__(FollowerThread("historian"), "pruner", prune_seconds)
        self._scrubber = threading.Thread(target=self._scrub_all, name="history-scrubber", daemon=True)
        self._scrubber.start()

    @override
    def close(self) -> None:
        super().close()
        self._scrubber.join()

    def of(self, store: FollowedStore) -> HistoryFollower:
        """The history of an open store. Raises Conflict when its settings turn it off, Unavailable when it closes."""
        found = self._of(store, "this store is just closing; its history cannot be read now")
        found.require()
        return found

    @override
    def _begun(self, store: FollowedStore) -> HistoryFollower:
        follower = HistoryFollower(store)
        store.needed_from.append(lambda: follower.needs_from)
        store.after_change.append(follower.prune_soon)
        return follower

    @override
    def _remind(self, own: HistoryFollower) -> None:
        own.prune_soon()

    def _scrub_all(self) -> None:
        """Look for damage in one history after the other, slowly, and again an hour after the last look at it."""
        lower_priority()
        while not self._closed.wait(SCRUB_POLL_SECONDS):
            for own in self._every():
                while own.is_scrub_due(SCRUB_INTERVAL_SECONDS) and not self._closed.wait(SCRUB_PAUSE_SECONDS):
                    own.scrub(SCRUB_BATCH_PAGES)
