"""Compaction: a snapshot of all rows, so that rebuilding need not begin at 1, and a new file for the engine.

A snapshot is due once the journal has grown by 64 MiB (a setting), or by half of the last snapshot, whichever is more;
frames that are packed count as what they are unpacked, for that is what a rebuild reads.
The engine never writes its log into its file while in service, so a new file takes over once the log has outgrown the
same measure against the file, or the memory that the engine keeps for updated rows its own: nobody bounds that, and
only another file frees it. It begins once no write has come for a second, or at once when it is twice due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import structlog

from kgserve.errors import KgserveError, Unavailable
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.projections.cypher_engine.engine.files import remove
from kgserve.projections.cypher_engine.projection import EngineProjection
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import unsnapshotted_bytes
from kgserve.storage.layout import Layout, require_room
from kgserve.storage.rebuild import MAX_SNAPSHOTS
from kgserve.storage.rows.encoding import RowsDamaged
from kgserve.storage.rows.view import RowsView, StagedBase

log = structlog.get_logger()

IMMEDIATE_COMPACTION_PRESSURE = 2
_COMPACTION_RETRY_SECONDS = 60.0
COMPACTION_DELAY_SECONDS = 30.0
COMPACTION_POLL_SECONDS = 0.1
# Memory that the engine may keep for updates: a new file for a small store is cheap, so it may keep less.
_MIN_RETAINED_BYTES = 16 * MEBIBYTE
_MAX_RETAINED_BYTES = 96 * MEBIBYTE


class Compactor:
    """Decides when a store is compacted, and does it in the background."""

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        engine: EngineProjection,
        take_snapshot: Callable[[], int],
        settings: Settings,
        background: Callable[[Callable[[], None]], object],
        needed_from: Sequence[Callable[[], int]] = (),
    ) -> None:
        """The journal is kept from the first sequence on that any of ``needed_from`` names.

        ``take_snapshot`` answers with the sequence that the newest is then of.
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
        self._not_before = 0.0
        self._compacting = threading.Lock()
        self._look_again_at = 0
        self._failed = False
        self.done = 0

    def wanted(self) -> bool:
        """Whether to compact once the store is idle; begins at once when it cannot wait that long."""
        pressure = max(self._journal_pressure(), self._engine_pressure(), float(self._failed))
        if pressure < 1 or not self._finished.is_set() or time.monotonic() < self._not_before:
            return False
        if pressure < IMMEDIATE_COMPACTION_PRESSURE:
            return True
        self.start()
        return False

    def start_if_wanted(self) -> None:
        """Begin when something has outgrown its threshold."""
        if self.wanted():
            self.start()

    def start_again(self) -> None:
        """Begin when the last one failed a while ago."""
        if self._failed:
            self.start_if_wanted()

    def start(self) -> None:
        """Begin in the background."""
        self._finished.clear()
        self._background(self.run)

    def wait(self) -> None:
        """Block until none is under way."""
        self._finished.wait()

    def run(self) -> None:
        """Compact now, in this thread; a failure is logged and nothing has changed."""
        self._finished.clear()
        started = time.perf_counter()
        name = self._layout.name
        log.info("compaction_started", store=name)
        try:
            with self._compacting:
                sequence = self._compact()
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
        """Leave nothing of what was so up to a commit: a snapshot of now, a new engine file, and no journal before.

        Nothing is retained of the journal for its own sake. Blocks. Raises Unavailable while somebody has yet to read
        what is to go, and what taking a snapshot and making a file raise.
        """
        with self._compacting:
            while not (self._engine.forget() or self._renew_engine()):
                pass  # who closed it meanwhile has left a file, which can be forgotten
            sequence = self._take_snapshot()
            if min(sequence, *(needed() - 1 for needed in self._needed_from)) < before:
                raise Unavailable("somebody has yet to read what the journal holds; try again shortly", retry_after=2)
            for each in snapshot.list_snapshots(self._layout.journal)[:1]:
                snapshot.verify(each)
            snapshot.remove_but_newest(self._layout.journal, 1)
            self._journal.drop_before(before, 0)
            self._look_again_at = 0

    def _journal_pressure(self) -> float:
        """How far the journal has outgrown its threshold since the last snapshot; 1 is there."""
        size = self._journal.bytes + self._journal.spared_after(0)
        if size < self._look_again_at:
            return 0.0
        grown, before = unsnapshotted_bytes(self._layout, self._journal)
        room = max(self._settings.compact_wal_mb * MEBIBYTE, before // 2)
        # Until it can be due there is nothing to look at.
        self._look_again_at = size + max(room - grown, 0)
        return grown / room

    def _engine_pressure(self) -> float:
        """How far the engine's log, or the memory that it keeps, has outgrown its threshold; 1 is there."""
        if not self._engine.is_open:
            return 0.0
        file_bytes, log_bytes = self._engine.bytes()
        log_room = max(self._settings.compact_wal_mb * MEBIBYTE, file_bytes // 2)
        kept_room = min(max(2 * file_bytes, _MIN_RETAINED_BYTES), _MAX_RETAINED_BYTES)
        return max(log_bytes / log_room, self._engine.kept_bytes / kept_room)

    def _compact(self) -> int:
        if self._engine_pressure() >= 1:
            self._renew_engine()
            # A snapshot gives way to writes, and takes long then: the next file must not have to wait for it.
            if self._journal_pressure() < 1:
                return self._engine.state.sequence
        sequence = self._take_snapshot()
        self._look_again_at = 0
        self._drop_old()
        return sequence

    def _renew_engine(self) -> bool:
        """Put a new file in service, of the present rows, once it has caught up; nobody waits for it to be made.

        Whether it is: when the old one was closed meanwhile, or got columns, there is nothing that it could replace.
        """
        view = self._engine
        require_room(self._layout.root, sum(view.bytes()))
        with view.staying_open() as is_open:
            if not is_open:
                return False
            engine = view.rebuilt(view.next_path(), "", view.width)
            with view.commits:
                log.info("compaction_swapping", store=self._layout.name)
                if not view.is_open or engine.width < view.width:
                    engine.retire()
                    remove(engine.path)
                    log.info("engine_not_renewed", store=self._layout.name, reason="it was closed, or got columns")
                    return False
                view.replace(engine)
                view.state = engine.state
                view.follow(self._journal.last)
        return True

    def _drop_old(self) -> None:
        oldest = snapshot.remove_but_newest(self._layout.journal, MAX_SNAPSHOTS)
        oldest = min([oldest, *(needed() - 1 for needed in self._needed_from)])
        self._journal.drop_before(oldest, self._settings.journal_retention_mb * MEBIBYTE)


class DeltaMerger:
    """Makes new bases of a store's present rows, one thread at a time.

    ``renew`` is called when the old one turns out to be damaged.
    """

    def __init__(self, name: str, rows: RowsView, renew: Callable[[], None]) -> None:
        self._name = name
        self._rows = rows
        self._renew = renew
        self._idle = threading.Event()
        self._idle.set()
        self._begins = threading.Lock()
        self._is_foreseeing = False

    def wait(self) -> None:
        """Block until nobody makes a base, but for who foresees one and may wait for the caller."""
        while not self._is_foreseeing and not self._idle.wait(COMPACTION_POLL_SECONDS):
            pass

    def settle(self) -> None:
        """Block until nobody makes a base."""
        self._idle.wait()

    def hold_back(self) -> None:
        """Block while the changes beside the base are far too many and a new one is being made."""
        if self._rows.is_overfull and not self._idle.is_set() and not self._is_foreseeing:
            log.warning("writes_held_back", store=self._name, changed=self._rows.changed)
            self._idle.wait(COMPACTION_DELAY_SECONDS)

    def begin_if_wanted(self, *, idle: bool = False) -> None:
        """Have a base made beside everything else, if the changes have outgrown their limits."""
        if self._rows.wants_fold(idle=idle) and self._begin():
            # A thread of its own, for writes may come to wait for it.
            threading.Thread(target=self._fold, name=f"fold-{self._name}", daemon=True).start()

    def at_once(self) -> None:
        """Make one now, unless somebody is at it. Blocks."""
        if self._begin():
            self._fold()

    def erase(self) -> None:
        """Make one now of what the rows are, with nothing else in its files. Blocks.

        Raises StorageFull, Unavailable, and RowsDamaged when the old one is not whole.
        """
        while not self._begin():
            self._idle.wait(COMPACTION_POLL_SECONDS)
        try:
            self._rows.fold(copying=True)
        finally:
            self._idle.set()

    @contextmanager
    def foreseeing(self, check: Callable[[], None] = lambda: None) -> Generator[StagedBase]:
        """Rows to leave some out of before the commit that takes them away.

        Waits for who makes a base; ``check`` is called now and then meanwhile.
        """
        while not self._begin(foreseeing=True):
            self._idle.wait(COMPACTION_POLL_SECONDS)
            check()
        try:
            with self._rows.foreseeing() as foreseen:
                yield foreseen
        finally:
            self._is_foreseeing = False
            self._idle.set()
            self.begin_if_wanted()

    def _begin(self, *, foreseeing: bool = False) -> bool:
        """Whether nobody else makes a base; from here on the caller does."""
        with self._begins:
            if not self._idle.is_set():
                return False
            # Said first, for the writer must not wait for who foresees one.
            self._is_foreseeing = foreseeing
            self._idle.clear()
            return True

    def _fold(self) -> None:
        try:
            self._rows.fold()
        except RowsDamaged:
            log.exception("rows_damaged", store=self._name)
            self._idle.set()
            self._renew()
        except (KgserveError, OSError):
            # The journal has everything; it is tried again after the next write.
            log.exception("rows_not_folded", store=self._name)
        finally:
            self._idle.set()
