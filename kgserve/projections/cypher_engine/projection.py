"""The engine of a store as what it is: a follower of the journal that answers Cypher, open only while it is asked.

A statement waits until the engine has what had been acknowledged when it came. While statements come, the engine
follows each commit at once, in the background; when none has come for a minute its file is closed, and brought up to
date now and then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import structlog
from typing_extensions import override

from kgserve.errors import EngineFailed, KgserveError, StorageFull, Unavailable
from kgserve.platform.durable_files import storing
from kgserve.platform.metrics.observation import SlowLog
from kgserve.platform.settings import Settings
from kgserve.platform.sqlite_files import remove_path
from kgserve.projections.base import Projection
from kgserve.projections.cypher_engine.engine import files
from kgserve.projections.cypher_engine.engine.engine import Engine, EngineOptions, Retired, Session
from kgserve.projections.cypher_engine.engine.files import edition
from kgserve.projections.cypher_engine.rebuild import rebuild
from kgserve.storage import layout
from kgserve.storage.journal.journal import Journal
from kgserve.storage.layout import EngineMark, Layout, require_room
from kgserve.storage.model.change import ChangeSet, NetChange, StoreState
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.view import RowsView

log = structlog.get_logger()

NEVER_ASKED = float("-inf")
FOLLOW_AFTER_STATEMENT_SECONDS = 60.0
"""For so long after a statement the engine follows at once; then its file is closed."""
CATCH_UP_THRESHOLD_ROWS = 20_000
CATCH_UP_THRESHOLD_SHARE = 0.25
CATCH_UP_QUIET_SECONDS = 10.0
MAX_CATCH_UP_DELAY_SECONDS = 300.0
"""A closed file is brought up to date once it is so many rows, or such a share of them, behind and writing has paused;
or once it has been behind for so long."""
MIN_REBUILD_LOG_BYTES = 16 << 20
"""A file whose log is longer, and longer than itself, is made anew: replaying it takes three times as long."""
CATCH_UP_ROOM_BYTES = 4 << 20
SLOT_POLL_SECONDS = 0.01
"""Between two looks for a free place."""


class EnginePlaces:
    """How many engine files all stores together have open: each takes a process, and memory that is its own.

    Who needs one more than there may be has it from the store that was not asked for longest, of those that nobody
    reads from at that moment.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: dict[EngineProjection, float] = {}
        self._waiting: list[object] = []
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How many are taken."""
        return len(self._taken)

    def acquire(self, holder: EngineProjection, seconds: float) -> None:
        """Get a place, if it has none yet. Raises Unavailable when all are in use for so many seconds."""
        deadline = time.monotonic() + seconds
        ticket = object()
        with self._lock:
            self._waiting.append(ticket)
        try:
            while not self._try_acquire(holder, ticket):
                if self._waiting[0] is ticket and any(other.give_way() for other in self._longest_unasked()):
                    continue
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"all {self.most} engines' processes are at work for other stores; try again shortly, or have"
                        " KGSERVE_ENGINE_PROCESSES raised",
                        retry_after=2,
                    )
                time.sleep(SLOT_POLL_SECONDS)
        finally:
            with self._lock:
                self._waiting.remove(ticket)

    def release(self, holder: EngineProjection) -> None:
        """Give the place back, if it has one."""
        with self._lock:
            self._taken.pop(holder, None)

    def _try_acquire(self, holder: EngineProjection, ticket: object) -> bool:
        """Whether there is a place for it: one that it has, or a free one when it is the first who waits."""
        with self._lock:
            is_free = self._waiting[0] is ticket and len(self._taken) < self.most
            if holder not in self._taken and is_free:
                self._taken[holder] = time.monotonic()
            return holder in self._taken

    def _longest_unasked(self) -> list[EngineProjection]:
        """Those who have a place. Who has just got it is about to use it, however long that was waited for."""
        with self._lock:
            taken = dict(self._taken)
        return sorted(taken, key=lambda holder: max(holder.asked_at, taken[holder]))


class EngineProjection(Projection):
    """The engine's file, open or closed, and how far it has come.

    ``commits`` is to be held by whoever applies a change, heals or replaces: one at a time. ``found_damaged`` says what
    was wrong with a file that had been closed cleanly.
    """

    name = "engine"

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        rows: RowsView,
        settings: Settings,
        slow: SlowLog,
        closing: threading.Event,
    ) -> None:
        """Open nothing yet."""
        super().__init__(layout, journal, rows)
        self._rows = rows
        self.layout = layout
        self.journal = journal
        self.options = EngineOptions.of(settings, layout.name, slow, closing)
        self.begun = self.losses = self.rebuilds = 0
        self.places = EnginePlaces(1)
        self.found_damaged: str | None = None
        self.failed: str | None = None
        self.commits = threading.RLock()
        self._engine: Engine | None = None
        self._stays_open = False
        mark = layout.engine_mark()
        self.state = mark.state if mark else StoreState()
        self.asked_at = NEVER_ASKED
        self._behind_rows = 0
        self._written_at = time.monotonic()
        # By the digest: of commits without rows it may have missed as many as there are.
        self._behind_since: float | None = None if self.state.digest == rows.state.digest else time.monotonic()

    @property
    @override
    def sequence(self) -> int:
        """The last commit that the file has seen, open or closed."""
        return self.state.sequence

    @property
    def is_open(self) -> bool:
        """Whether its file is open."""
        return self._engine is not None

    @property
    def is_asked(self) -> bool:
        """Whether statements have come within the last minute."""
        return time.monotonic() - self.asked_at < FOLLOW_AFTER_STATEMENT_SECONDS

    @property
    def lag(self) -> int:
        """Commits that it has not seen yet."""
        return max(self.journal.last - self.state.sequence, 0)

    @property
    def kept_bytes(self) -> int:
        """About the memory that only replacing the engine gives back."""
        return engine.kept_bytes if (engine := self._engine) is not None else 0

    @property
    def waiting(self) -> int:
        """Statements that wait for their turn."""
        return engine.waiting if (engine := self._engine) is not None else 0

    @property
    def resident(self) -> int:
        """Bytes of memory of its process's own; 0 while it has none."""
        return engine.resident if (engine := self._engine) is not None else 0

    @property
    def width(self) -> ColumnSet:
        """The columns that the engine in service has."""
        return ColumnSet.PLAIN if (engine := self._engine) is None else engine.width

    def bytes(self) -> tuple[int, int]:
        """Size of the engine's file and of its log."""
        engine = self._engine
        path = engine.path if engine is not None else self.layout.engine
        return files.size(path), files.size(layout.wal_path(path))

    @contextmanager
    def reading(
        self, timeout: float | None = None, *, width: ColumnSet = ColumnSet.PLAIN, asked: bool = True
    ) -> Generator[Session]:
        """A reading session that sees every commit of now; ``timeout`` in seconds, 0 for none.

        It has the columns of a ``width``. Its file stays open for a minute if that is ``asked`` for. Raises
        Unavailable while the engine cannot be had.
        """
        patience = timeout or self.options.read_timeout
        sequence = self.journal.last
        with contextlib.ExitStack() as lease:
            while True:
                if asked:
                    self.asked_at = time.monotonic()
                engine = self._engine
                if engine is None or engine.is_lost or self.state.sequence < sequence or engine.width < width:
                    engine = self._caught_up(sequence, patience, width, asked=asked)
                with contextlib.suppress(Retired):
                    session = lease.enter_context(engine.reader(timeout))
                    break
            yield session

    def _caught_up(self, sequence: int, patience: float, width: ColumnSet, *, asked: bool) -> Engine:
        """The engine once it has seen a commit; another thread may be at it."""
        if not self.commits.acquire(timeout=patience):
            raise Unavailable("the engine is still taking in what was written; try again shortly", retry_after=2)
        try:
            if asked:  # it may just have given way, and taken itself for one that nobody asks
                self.asked_at = time.monotonic()
            self.follow(sequence)
            engine = self._engine or self._start()
            if engine.width < width:
                engine = self._widen("a statement names what the file has no columns for", width)
            return engine
        except EngineFailed as error:
            # A full disk does that, among others. The next statement tries again.
            log.exception("engine_not_built", store=self.layout.name)
            raise Unavailable(f"the engine's file cannot be made now: {error}", retry_after=10) from error
        finally:
            self.commits.release()

    def committed(self, rows: int) -> None:
        """Commits with so many rows have been added to the journal. For the writing thread."""
        if not rows:  # not worth a process; who asks has it take them in
            return
        self._behind_rows += rows
        self._written_at = time.monotonic()
        if self._behind_since is None:
            self._behind_since = self._written_at

    def tend(self, *, writing: bool = False) -> None:
        """Follow if that is due, close the file when nobody asks. Blocks; raises what `follow` does.

        ``writing`` says that writes are under way, which a file that nobody asks can wait for.
        """
        if self._is_due(writing=writing):
            with self.commits:
                if self._is_due(writing=writing):  # it may have given way meanwhile, and must not take a place for that
                    self.follow(self.journal.last)
        if self._is_needless():
            with self.commits:
                if self._is_needless():  # it may have been waited for long
                    self._close_if_idle("nobody asked for a minute")

    def _is_needless(self) -> bool:
        return self._engine is not None and not self.is_asked and not self._stays_open

    def _is_due(self, *, writing: bool) -> bool:
        """Whether there is something to follow, now; who holds ``commits`` without a need cannot give way."""
        engine = self._engine
        if self.is_asked:
            return engine is None or engine.is_lost or self.lag > 0
        return self._is_worth_it(writing=writing)

    def _is_worth_it(self, *, writing: bool) -> bool:
        if self._behind_since is None or not self.lag:
            return False
        now = time.monotonic()
        worth = max(CATCH_UP_THRESHOLD_ROWS, CATCH_UP_THRESHOLD_SHARE * (self.state.nodes + self.state.edges))
        paused = not writing and now - self._written_at > CATCH_UP_QUIET_SECONDS
        return now - self._behind_since > MAX_CATCH_UP_DELAY_SECONDS or (paused and self._behind_rows > worth)

    def follow(self, sequence: int) -> None:
        """Apply what the journal has, up to a commit at least; for the holder of ``commits``.

        Raises StorageFull or Unavailable when no engine could be built.
        """
        self._let_go_if_lost()
        self._open_if_closed()
        while self.sequence < sequence:
            self._step(self.journal.last)

    @override
    def _open_if_closed(self) -> None:
        if self._engine is None:
            self._open()

    @override
    def _open(self) -> int:
        self._start()
        return self.sequence

    @override
    def _advance(self, last: int) -> None:
        self._behind_rows, self._behind_since = 0, None
        require_room(self.layout.root, CATCH_UP_ROOM_BYTES)
        super()._advance(last)

    @override
    def _move(self, sequence: int) -> None:
        """Where it stands is what the engine says, whose state moves with it."""

    @override
    def _apply_all(self, rows: Rows) -> int:
        self.heal("the journal begins after what it has seen")
        return self.sequence

    def _let_go_if_lost(self) -> None:
        """Nobody knows what a file holds whose process has ended: it is made anew, which the journal bears."""
        engine = self._engine
        if engine is not None and engine.is_lost:
            self.losses += 1
            log.warning("engine_lost", store=self.layout.name, process=engine.process, statements=engine.statements)
            self._engine = None
            engine.retire()

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        net, engine = NetChange(changes), self._engine
        state = net.state
        assert engine is not None  # noqa: S101
        assert state is not None  # noqa: S101
        try:
            if engine.width < (width := net.width):
                self._widen("a row has extras", width)
                return
            engine.apply(net, state)
        except StorageFull:
            raise
        except Exception as error:
            # Whatever it was, nobody knows what this engine holds now.
            log.exception("apply_failed", store=self.layout.name, rows=len(net))
            self.heal(f"applying {len(net)} rows failed: {error}")
        else:
            self.state = state

    def heal(self, reason: str) -> None:
        """Build the engine anew from the journal and put it in service; statements wait for it."""
        self.failed = reason
        self._retire()
        self._renew(reason, ColumnSet.PLAIN)
        self.rebuilds += 1
        self.failed = None

    def _widen(self, reason: str, width: ColumnSet) -> Engine:
        """An engine that has columns for some extras. Raises StorageFull when there is no room for it."""
        require_room(self.layout.root, sum(self.bytes()))
        log.info("columns_for_extras", store=self.layout.name, width=width.name.lower())
        return self._renew(reason, width)

    def _renew(self, reason: str, width: ColumnSet) -> Engine:
        engine = self.rebuilt(self.next_path(), reason, width)
        self.replace(engine)
        self.state = engine.state
        return engine

    def rebuilt(self, path: Path, reason: str, width: ColumnSet) -> Engine:
        """A file built from the journal, and open. Raises StorageFull, Unavailable, JournalDamaged or EngineFailed."""
        self._behind_rows, self._behind_since = 0, None
        try:
            with storing("rebuilding the engine"):
                return rebuild(self.layout, self.journal, self._rows, self.options, path, reason, width=width)
        except BaseException:
            files.remove(path)
            raise

    @contextmanager
    def staying_open(self) -> Generator[bool]:
        """Whether the file is open, which inside is not closed for not being asked: another one is to take its place.

        For the sake of another store it may be closed all the same.
        """
        with self.commits:
            self._stays_open = self.is_open
        try:
            yield self._stays_open
        finally:
            self._stays_open = False

    def replace(self, engine: Engine) -> None:
        """Put another engine in service."""
        self.layout.forget_engine_mark()
        self._retire()
        self._begin(engine, "a new file")

    def _begin(self, engine: Engine, file: str) -> Engine:
        self._engine = engine
        self.rebuild_wanted = False
        self.begun += 1
        log.info("engine_begun", store=self.layout.name, process=engine.process, file=file)
        return engine

    def _retire(self) -> None:
        old, self._engine = self._engine, None
        if old is not None:
            old.retire()
            # On POSIX an open file may be unlinked: readers that are still on it are not disturbed.
            files.remove(old.path)

    def forget(self) -> bool:
        """Remove the file unless it is open, to be built anew when a statement wants it; whether it was closed."""
        with self.commits:
            if self._engine is not None:
                return False
            self.layout.forget_engine_mark()
            for path in self.layout.root.glob("graph*"):
                remove_path(path)
            return True

    def next_path(self) -> Path:
        """A name for a new engine file; when it is closed it is given the usual one."""
        return self.layout.root / f"graph.{self.journal.last}-{time.monotonic_ns()}.kuzu"

    def give_way(self) -> bool:
        """Close the file for another store's sake, unless somebody is at it; whether it is closed now."""
        if not self.commits.acquire(blocking=False):
            return False
        try:
            if done := self._close_if_idle("another store is asked"):
                self.asked_at = NEVER_ASKED
            return done
        except KgserveError:
            # It hung, and has been ended; the next one to look lets go of it.
            return False
        finally:
            self.commits.release()

    def _close_if_idle(self, reason: str) -> bool:
        """Close the file, if nobody reads from it just now, and leave a mark of how it was left; whether it is."""
        self._let_go_if_lost()
        engine = self._engine
        if engine is not None:
            if not engine.retire_if_idle():
                return False
            self._ended(engine, reason)
        self.places.release(self)
        return True

    def _ended(self, engine: Engine, reason: str) -> None:
        self._engine = None
        log.info("engine_ended", store=self.layout.name, process=engine.process, reason=reason)
        if self.failed is None and engine.closed:
            self._mark_closed(engine)

    @override
    def close(self) -> None:
        """Close the file for good; who still reads from it is waited for."""
        with self.commits:
            engine = self._engine
            if engine is not None:
                engine.retire()
                engine.wait_closed(self.options.read_timeout + 5)
                self._ended(engine, "the store closes")
            self.places.release(self)

    def _mark_closed(self, engine: Engine) -> None:
        """Give a closed engine's files their usual names, and say how they are."""
        home = self.layout.engine
        if engine.path != home:
            files.remove(home)
            if (engine_log := layout.wal_path(engine.path)).exists():
                engine_log.rename(layout.wal_path(home))
            engine.path.rename(home)
        self.layout.mark_engine(self.state, edition(self.options.engine))

    def _start(self) -> Engine:
        """Open the file as it was left, or build it anew; always, when another engine left it.

        Raises JournalDamaged, StorageFull or Unavailable.
        """
        # What nobody waits for takes a place only where that keeps nobody waiting.
        self.places.acquire(self, self.options.read_timeout if self.is_asked else 0)
        mark = self.layout.engine_mark()
        self.layout.forget_engine_mark()
        if mark is not None and (mark.engine != edition(self.options.engine) or self._is_outgrown()):
            return self._build("")
        if mark is None:
            return self._build("the engine was not closed cleanly")
        reason = self.layout.engine_fault(mark, self.journal.oldest, self.journal.last)
        if reason is None:
            try:
                engine, self.state = self._open_as_left(mark), mark.state
            except KgserveError as error:
                reason = str(error)
            else:
                return self._begin(engine, "as it was left")
        self.found_damaged = reason
        return self._build(reason)

    def _is_outgrown(self) -> bool:
        """Whether building the file takes less than opening it, and what it has missed."""
        file, log_ = self.bytes()
        missed = self._behind_rows > max(CATCH_UP_THRESHOLD_ROWS, (self.state.nodes + self.state.edges) // 2)
        return missed or log_ > max(MIN_REBUILD_LOG_BYTES, file)

    def _open_as_left(self, mark: EngineMark) -> Engine:
        engine = Engine(self.layout.engine, self.options)
        try:
            if engine.state != mark.state:
                raise EngineFailed("the engine does not hold the state that it was left in")
            if not engine.is_current:
                raise EngineFailed("the engine's file has another schema")
        except BaseException:
            engine.retire()
            raise
        return engine

    def _build(self, reason: str) -> Engine:
        """Build the file anew, for a ``reason`` unless it is the first one or saves time."""
        files = list(self.layout.root.glob("graph*"))
        for path in files:
            remove_path(path)
        if not files and self.found_damaged is None:
            reason = ""
        engine = self.rebuilt(self.layout.engine, reason, ColumnSet.PLAIN)
        self.state = engine.state
        self.rebuilds += bool(reason)
        return self._begin(engine, "built anew" if reason else "a new file")
