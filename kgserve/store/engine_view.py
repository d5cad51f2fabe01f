"""The engine of a store as what it is: a view of the journal, in service, rebuilt or replaced at any time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import structlog

from kgserve.engine import database, read, schema
from kgserve.engine.database import Engine, EngineOptions, Retired
from kgserve.engine.session import Session
from kgserve.errors import EngineFailed, KgserveError, Unavailable
from kgserve.journal.files import reserve, storage_error
from kgserve.journal.journal import Journal
from kgserve.model.change import NetChange, StoreState
from kgserve.store.layout import CloseMark, FileMark, Layout, file_mark
from kgserve.store.rebuild import rebuild
from kgserve.store.room import require_room

log = structlog.get_logger()


class EngineView:
    """Holds the engine in service and the store's state; ``dated``: there may be rows that say when they are true.

    ``found_damaged`` says what was wrong with the file of a store that had been closed cleanly.

    ``commits`` is to be held by whoever applies a change, heals or replaces: one writer, one at a time.
    """

    def __init__(self, layout: Layout, journal: Journal, options: EngineOptions) -> None:
        """Open the engine's file as it was left, or build it anew. Raises JournalDamaged or StorageFull."""
        self.layout = layout
        self.journal = journal
        self.options = options
        self.rebuilds = 0
        self.found_damaged: str | None = None
        self.commits = threading.RLock()
        self._behind: str | None = None
        self._engine, self.state = self._open()
        # Whether a row says when it is true. Rows that no longer do make no difference until it is opened again.
        self.dated = self.whole and read.are_dated(self.writer)

    @property
    def writer(self) -> Session:
        """The session that writes; for the holder of ``commits``."""
        return self._engine.writer

    @contextmanager
    def reading(self, timeout: float | None = None) -> Generator[Session]:
        """A reading session on the engine in service; ``timeout`` in seconds, 0 for none."""
        if self._behind is not None:
            # After a commit that failed, this engine has been seen to answer as if it were empty.
            raise Unavailable("the engine is being rebuilt from the journal; try again shortly", retry_after=2)
        with contextlib.ExitStack() as lease:
            yield self._lease(lease, timeout)

    def _lease(self, lease: contextlib.ExitStack, timeout: float | None) -> Session:
        while True:
            with contextlib.suppress(Retired):
                return lease.enter_context(self._engine.reader(timeout))

    @property
    def kept_bytes(self) -> int:
        """About the memory that only replacing the engine gives back."""
        return self._engine.kept_bytes

    def bytes(self) -> tuple[int, int]:
        """Size of the engine's file and of its log."""
        return self._engine.bytes()

    def apply(self, net: NetChange, state: StoreState) -> None:
        """Apply what the journal has already. If this engine fails, the next one has it too.

        Raises StorageFull or Unavailable when no engine could be built; `recover` tries again.
        """
        self.dated = self.dated or (self.whole and net.has_validity)
        try:
            self._engine.apply(net, state)
        except Exception as error:
            # Whatever it was, the journal is ahead of this engine now.
            log.exception("apply_failed", store=self.layout.name, rows=len(net))
            self.heal(f"applying {len(net)} rows failed: {error}")
        self.state = state

    def reserve(self, size: int) -> None:
        """Set room aside for the engine's log to take a change of about this size. Raises StorageFull."""
        try:
            reserve(database.wal_path(self._engine.path), size)
        except OSError as error:
            raise storage_error(error, "making room for a write") from error

    def recover(self) -> None:
        """Try again what `apply` could not do; nothing when it could."""
        if self._behind is not None:
            self.heal(self._behind)

    def heal(self, reason: str) -> None:
        """Build the engine anew from the journal and put it in service; reads wait for it."""
        self._behind = reason
        self._renew(reason, whole=False)
        self.rebuilds += 1
        self._behind = None

    def widen(self) -> None:
        """Put an engine in service that has columns for extras, if this one has none; reads go on meanwhile.

        Raises StorageFull when there is no room for it.
        """
        if not self.whole:
            require_room(self.layout.root, sum(self.bytes()))
            log.info("columns_for_extras", store=self.layout.name)
            self._renew("a row has extras", whole=True)

    @property
    def whole(self) -> bool:
        """Whether the engine in service has columns for extras."""
        return self._engine.whole

    def _renew(self, reason: str, *, whole: bool) -> None:
        path = self.next_path()
        try:
            state = rebuild(self.layout, self.journal, self.options, path, reason, whole=whole)
            engine = Engine(path, self.options)
        except OSError as error:
            database.remove(path)
            raise storage_error(error, "rebuilding the engine") from error
        except BaseException:
            database.remove(path)
            raise
        self.replace(engine)
        self.state = state

    def replace(self, engine: Engine) -> None:
        """Put an engine with the same rows in service."""
        old, self._engine = self._engine, engine
        old.retire()
        # On POSIX an open file may be unlinked: readers that are still on it are not disturbed.
        database.remove(old.path)

    def next_path(self) -> Path:
        """A name for a new engine file; at a clean close it is given the usual one."""
        return self.layout.root / f"graph.{self.journal.last}-{time.monotonic_ns()}.kuzu"

    def close(self) -> tuple[FileMark, FileMark] | None:
        """Close the engine and give its files their usual names; how they are, or None if they are not to be used."""
        engine = self._engine
        engine.retire()
        _wait_until(lambda: engine.closed, self.options.read_timeout + 5)
        if self._behind is not None or not engine.closed:
            return None
        home = self.layout.engine
        if engine.path != home:
            if (engine_log := database.wal_path(engine.path)).exists():
                engine_log.rename(database.wal_path(home))
            engine.path.rename(home)
        return file_mark(home), file_mark(database.wal_path(home))

    def _open(self) -> tuple[Engine, StoreState]:
        mark = self.layout.close_mark()
        reason = self._why_not(mark)
        if reason is None and mark is not None:
            try:
                return self._open_as_left(mark), mark.state
            except KgserveError as error:
                reason = str(error)
        if mark is not None:
            self.found_damaged = reason
        return self._build(reason or "")

    def _why_not(self, mark: CloseMark | None) -> str | None:
        """Why the engine's file cannot be taken as it is."""
        home = self.layout.engine
        if mark is None:
            return "the store was not closed cleanly"
        if (file_mark(home), file_mark(database.wal_path(home))) != (mark.engine, mark.engine_log):
            return "the engine's files are not as they were left"
        if mark.journal != self.journal.end:
            return "the journal is not as it was left"
        return None

    def _open_as_left(self, mark: CloseMark) -> Engine:
        engine = Engine(self.layout.engine, self.options)
        try:
            if engine.state != mark.state:
                raise EngineFailed("the engine does not hold the state that it was left in")
            if not schema.is_current(engine.writer):
                raise EngineFailed("the engine's file has another schema")
        except BaseException:
            engine.retire()
            raise
        return engine

    def _build(self, reason: str) -> tuple[Engine, StoreState]:
        for path in self.layout.root.glob("graph*"):
            path.unlink()
        state = rebuild(self.layout, self.journal, self.options, self.layout.engine, reason)
        if state.sequence:
            self.rebuilds += 1
        return Engine(self.layout.engine, self.options), state


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
