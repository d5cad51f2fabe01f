"""Cypher engine of a store as a projection: it follows the journal and is open only while statements arrive.

A statement waits until the engine includes every commit acknowledged before the statement arrived. While statements
arrive, the engine applies each commit immediately, in the background. After a minute without statements its file is
closed, and then brought up to date occasionally.
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
from kgserve.platform.durable_files import translate_storage_errors
from kgserve.platform.metrics.app_metrics_and_request_context import SlowOperationLog
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.settings import Settings
from kgserve.platform.sqlite_files import remove_path
from kgserve.projections.base import Projection
from kgserve.projections.cypher_engine.engine import files
from kgserve.projections.cypher_engine.engine.engine_handle import (
    EngineHandle,
    EngineOptions,
    EngineProcessSession,
    EngineReplaced,
)
from kgserve.projections.cypher_engine.engine.files import format_cypher_engine_name_and_version
from kgserve.projections.cypher_engine.rebuild import EngineFileBuildRequest, rebuild_cypher_engine_file
from kgserve.storage import store_folder_layout
from kgserve.storage.disk_space import require_disk_space_for_rebuild
from kgserve.storage.journal.journal import Journal
from kgserve.storage.model.change_set import ChangeSet, NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import EngineCleanCloseMarker, StoreLayout

log = structlog.get_logger()

NO_STATEMENT_YET = float("-inf")
FOLLOW_AFTER_STATEMENT_SECONDS = 60.0
"""Seconds after a statement during which commits are applied immediately; then the file is closed."""
CATCH_UP_THRESHOLD_ROWS = 20_000
CATCH_UP_THRESHOLD_SHARE = 0.25
CATCH_UP_QUIET_SECONDS = 10.0
MAX_CATCH_UP_DELAY_SECONDS = 300.0
"""Maximum seconds that a closed file stays behind.

It catches up earlier if writing has paused and the missed rows exceed the threshold or that share of all rows.
"""
MIN_REBUILD_LOG_BYTES = 16 << 20
"""Minimum log size for a rebuild: a log larger than this and its file takes three times as long to replay."""
MIN_CATCH_UP_FREE_BYTES = 4 << 20
SLOT_POLL_SECONDS = 0.01
"""Seconds between attempts to get a free slot."""


class EngineProcessLimiter:
    """Limit on the engine files open in all stores together; each takes a process with its own memory.

    If all slots are taken, the least recently queried store without active readers gives up its slot.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._slots: dict[EngineFileProjection, float] = {}
        self._waiting: list[object] = []
        self._lock = threading.Lock()

    @property
    def slots_in_use(self) -> int:
        """Number of slots in use."""
        return len(self._slots)

    def acquire(self, holder: EngineFileProjection, seconds: float) -> None:
        """Take a slot unless the holder has one. Raises Unavailable if none becomes free within ``seconds``."""
        deadline = time.monotonic() + seconds
        ticket = object()
        with self._lock:
            self._waiting.append(ticket)
        try:
            while not self._try_acquire(holder, ticket):
                if self._waiting[0] is ticket and any(other.give_way() for other in self._least_recently_asked()):
                    continue
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"all {self.most} engine processes are in use by other stores; try again shortly, or raise"
                        " KGSERVE_ENGINE_PROCESSES",
                        retry_after=2,
                    )
                time.sleep(SLOT_POLL_SECONDS)
        finally:
            with self._lock:
                self._waiting.remove(ticket)

    def release(self, holder: EngineFileProjection) -> None:
        """Release the holder's slot, if it has one."""
        with self._lock:
            self._slots.pop(holder, None)

    def _try_acquire(self, holder: EngineFileProjection, ticket: object) -> bool:
        """Return whether the holder has a slot, taking a free one if it is first in the queue."""
        with self._lock:
            is_free = self._waiting[0] is ticket and len(self._slots) < self.most
            if holder not in self._slots and is_free:
                self._slots[holder] = time.monotonic()
            return holder in self._slots

    def _least_recently_asked(self) -> list[EngineFileProjection]:
        """Return the holders, least recently queried first; a slot just taken counts as a query."""
        with self._lock:
            taken = dict(self._slots)
        return sorted(taken, key=lambda holder: max(holder.asked_at, taken[holder]))


class EngineFileProjection(Projection):
    """Engine file of a store, open or closed, and its position in the journal.

    Hold ``commits`` while applying a change, healing or replacing the file. ``found_damaged`` is the fault found in a
    file that was closed cleanly.
    """

    name = "engine"

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        rows: CurrentRowsProjection,
        settings: Settings,
        slow: SlowOperationLog,
        closing: threading.Event,
    ) -> None:
        """Create the projection without opening the file."""
        super().__init__(layout, journal, rows)
        self._rows = rows
        self.layout = layout
        self.journal = journal
        self.options = EngineOptions.of(settings, layout.name, slow, closing)
        self.begun = self.losses = self.rebuilds = 0
        self.places = EngineProcessLimiter(1)
        self.found_damaged: str | None = None
        self.failed: str | None = None
        self.commits = threading.RLock()
        self._engine: EngineHandle | None = None
        self._stays_open = False
        mark = layout.engine_mark()
        self.state = mark.state if mark else StoreState()
        self.asked_at = NO_STATEMENT_YET
        self._behind_rows = 0
        self._written_at = time.monotonic()
        # Compared by digest, because commits without rows do not count as missed.
        self._behind_since: float | None = None if self.state.digest == rows.state.digest else time.monotonic()

    @property
    @override
    def sequence(self) -> int:
        """Last commit applied to the file, open or closed."""
        return self.state.sequence

    @property
    def is_open(self) -> bool:
        """True if the file is open."""
        return self._engine is not None

    @property
    def is_in_demand(self) -> bool:
        """True if a statement arrived within the last minute."""
        return time.monotonic() - self.asked_at < FOLLOW_AFTER_STATEMENT_SECONDS

    @property
    def lag(self) -> int:
        """Number of commits not yet applied."""
        return max(self.journal.last - self.state.sequence, 0)

    @property
    def retained_bytes(self) -> int:
        """Estimated memory in bytes that is released only by replacing the engine."""
        return engine.kept_bytes if (engine := self._engine) is not None else 0

    @property
    def waiting(self) -> int:
        """Number of statements waiting for a session."""
        return engine.waiting if (engine := self._engine) is not None else 0

    @property
    def private_memory_bytes(self) -> int:
        """Private memory of the engine process in bytes; 0 without a process."""
        return engine.private_memory_bytes if (engine := self._engine) is not None else 0

    @property
    def width(self) -> NodeEdgeColumnSet:
        """Column set of the engine in service."""
        return NodeEdgeColumnSet.PLAIN if (engine := self._engine) is None else engine.width

    def bytes(self) -> tuple[int, int]:
        """Return the sizes of the engine's file and log in bytes."""
        engine = self._engine
        path = engine.path if engine is not None else self.layout.engine
        return files.file_size(path), files.file_size(store_folder_layout.engine_wal_path(path))

    @contextmanager
    def reading(
        self,
        timeout: float | None = None,
        *,
        width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN,
        asked: bool = True,
        block: bool = True,
    ) -> Generator[EngineProcessSession]:
        """Yield a reading session that sees every acknowledged commit; ``timeout`` in seconds, 0 for none.

        The file has at least the columns of ``width``. With ``asked``, the file stays open for another minute. Raises
        Unavailable if the engine cannot be opened or does not catch up in time; without ``block``, WouldBlock if it is
        not open, has not caught up, or has no free session.
        """
        patience = timeout or self.options.read_timeout
        sequence = self.journal.last
        with contextlib.ExitStack() as lease:
            while True:
                if asked:
                    self.asked_at = time.monotonic()
                engine = self._engine
                if engine is None or engine.has_died or self.state.sequence < sequence or engine.width < width:
                    if not block:
                        raise WouldBlock
                    engine = self._wait_until_caught_up(sequence, patience, width, asked=asked)
                with contextlib.suppress(EngineReplaced):
                    session = lease.enter_context(engine.reader(timeout, block=block))
                    break
            yield session

    def _wait_until_caught_up(
        self, sequence: int, patience: float, width: NodeEdgeColumnSet, *, asked: bool
    ) -> EngineHandle:
        """Return the engine once it includes commit ``sequence``; another thread may be applying it."""
        if not self.commits.acquire(timeout=patience):
            raise Unavailable("the engine is still applying recent writes; try again shortly", retry_after=2)
        try:
            if asked:  # it may just have given up its slot and been marked idle
                self.asked_at = time.monotonic()
            self.follow(sequence)
            engine = self._engine
            assert engine is not None  # noqa: S101
            if engine.width < width:
                engine = self._widen("a statement names columns that the file lacks", width)
            return engine
        except EngineFailed as error:
            # Causes include a full disk. The next statement tries again.
            log.exception("engine_not_built", store=self.layout.name)
            raise Unavailable(f"the engine's file cannot be built now: {error}", retry_after=10) from error
        finally:
            self.commits.release()

    def record_journaled_commits(self, rows: int) -> None:
        """Record that commits with ``rows`` rows were added to the journal. Called by the writing thread."""
        if not rows:  # not worth starting a process; the next statement applies them
            return
        self._behind_rows += rows
        self._written_at = time.monotonic()
        if self._behind_since is None:
            self._behind_since = self._written_at

    def tend(self, *, writing: bool = False) -> None:
        """Catch up if due, and close the file if it is idle. Blocks; raises what `follow` raises.

        ``writing``: writes are in progress, so an idle file waits.
        """
        if self._is_due(writing=writing):
            with self.commits:
                if self._is_due(writing=writing):  # it may have given up its slot and must not take another
                    self.follow(self.journal.last)
        if self._is_idle():
            with self.commits:
                if self._is_idle():  # recheck: waiting for the lock may have taken long
                    self._close_if_idle("no statements for a minute")

    def _is_idle(self) -> bool:
        return self._engine is not None and not self.is_in_demand and not self._stays_open

    def _is_due(self, *, writing: bool) -> bool:
        """Return whether there is something to apply now. Holding ``commits`` needlessly would block `give_way`."""
        engine = self._engine
        if self.is_in_demand:
            return engine is None or engine.has_died or self.lag > 0
        return self._is_worth_catching_up(writing=writing)

    def _is_worth_catching_up(self, *, writing: bool) -> bool:
        if self._behind_since is None or not self.lag:
            return False
        now = time.monotonic()
        threshold = max(CATCH_UP_THRESHOLD_ROWS, CATCH_UP_THRESHOLD_SHARE * (self.state.nodes + self.state.edges))
        paused = not writing and now - self._written_at > CATCH_UP_QUIET_SECONDS
        return now - self._behind_since > MAX_CATCH_UP_DELAY_SECONDS or (paused and self._behind_rows > threshold)

    def follow(self, sequence: int) -> None:
        """Apply the journal up to at least commit ``sequence``. The caller holds ``commits``.

        Raises StorageFull or Unavailable if no engine can be built.
        """
        self._discard_if_lost()
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
        require_disk_space_for_rebuild(self.layout.root, MIN_CATCH_UP_FREE_BYTES)
        super()._advance(last)

    @override
    def _move(self, sequence: int) -> None:
        """Do nothing: the position is the engine's state."""

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        self.heal("the journal begins after the last applied commit")
        return self.sequence

    def _discard_if_lost(self) -> None:
        """Drop an engine whose process has ended.

        The content of its file is unknown, so it is rebuilt from the journal.
        """
        engine = self._engine
        if engine is not None and engine.has_died:
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
            # After any error the content of this engine is unknown.
            log.exception("apply_failed", store=self.layout.name, rows=len(net))
            self.heal(f"applying {len(net)} rows failed: {error}")
        else:
            self.state = state

    def heal(self, reason: str) -> None:
        """Rebuild the engine from the journal and put it in service; statements wait for it."""
        self.failed = reason
        self._retire()
        self._rebuild_and_replace(reason, NodeEdgeColumnSet.PLAIN)
        self.rebuilds += 1
        self.failed = None

    def _widen(self, reason: str, width: NodeEdgeColumnSet) -> EngineHandle:
        """Rebuild the engine with the columns of ``width``. Raises StorageFull if the disk has no room for it."""
        require_disk_space_for_rebuild(self.layout.root, sum(self.bytes()))
        log.info("columns_for_extras", store=self.layout.name, width=width.name.lower())
        return self._rebuild_and_replace(reason, width)

    def _rebuild_and_replace(self, reason: str, width: NodeEdgeColumnSet) -> EngineHandle:
        engine = self.build_from_journal(self.next_path(), reason, width)
        self.replace(engine)
        self.state = engine.state
        return engine

    def build_from_journal(
        self, path: Path, reason: str, width: NodeEdgeColumnSet, *, may_lag: bool = False
    ) -> EngineHandle:
        """Build a file from the journal, and return it open; with ``may_lag`` it may lack the last commits.

        Raises StorageFull, Unavailable, JournalDamaged or EngineFailed.
        """
        self._behind_rows, self._behind_since = 0, None
        request = EngineFileBuildRequest(reason, width, may_lag)
        try:
            with translate_storage_errors("rebuilding the engine"):
                return rebuild_cypher_engine_file(self.layout, self.journal, self._rows, self.options, path, request)
        except BaseException:
            files.delete_engine_file(path)
            raise

    @contextmanager
    def keep_open(self) -> Generator[bool]:
        """Keep an idle file open during the block, in which it is to be replaced; yield whether it is open.

        It may still be closed to give its slot to another store.
        """
        with self.commits:
            self._stays_open = self.is_open
        try:
            yield self._stays_open
        finally:
            self._stays_open = False

    def replace(self, engine: EngineHandle) -> None:
        """Put another engine in service."""
        self.layout.remove_engine_marker()
        self._retire()
        self._put_in_service(engine, "a new file")

    def _put_in_service(self, engine: EngineHandle, file: str) -> EngineHandle:
        self._engine = engine
        self.rebuild_wanted = False
        self.begun += 1
        log.info("engine_begun", store=self.layout.name, process=engine.process, file=file)
        return engine

    def _retire(self) -> None:
        old, self._engine = self._engine, None
        if old is not None:
            old.retire()
            # On POSIX an open file may be unlinked; active readers are not affected.
            files.delete_engine_file(old.path)

    def forget(self) -> bool:
        """Delete the file unless it is open; the next statement rebuilds it. Return whether it was closed."""
        with self.commits:
            if self._engine is not None:
                return False
            self.layout.remove_engine_marker()
            for path in self.layout.root.glob("graph*"):
                remove_path(path)
            return True

    def next_path(self) -> Path:
        """Return a path for a new engine file; it gets the usual name when it is closed."""
        return self.layout.root / f"graph.{self.journal.last}-{time.monotonic_ns()}.kuzu"

    def give_way(self) -> bool:
        """Close the file to free its slot for another store, unless it is in use; return whether it is closed."""
        if not self.commits.acquire(blocking=False):
            return False
        try:
            if done := self._close_if_idle("another store needs the slot"):
                self.asked_at = NO_STATEMENT_YET
            return done
        except KgserveError:
            # The process hung and was killed; the next caller discards it.
            return False
        finally:
            self.commits.release()

    def _close_if_idle(self, reason: str) -> bool:
        """Close the file if it has no reader, and record its state; return whether it is closed."""
        self._discard_if_lost()
        engine = self._engine
        if engine is not None:
            if not engine.retire_if_idle():
                return False
            self._record_closed(engine, reason)
        self.places.release(self)
        return True

    def _record_closed(self, engine: EngineHandle, reason: str) -> None:
        self._engine = None
        log.info("engine_ended", store=self.layout.name, process=engine.process, reason=reason)
        if self.failed is None and engine.closed:
            self._mark_closed(engine)

    @override
    def close(self) -> None:
        with self.commits:
            engine = self._engine
            if engine is not None:
                engine.retire()
                engine.wait_closed(self.options.read_timeout + 5)
                self._record_closed(engine, "the store is closing")
            self.places.release(self)

    def _mark_closed(self, engine: EngineHandle) -> None:
        """Give a closed engine's files their usual names, and record their state."""
        home = self.layout.engine
        if engine.path != home:
            files.delete_engine_file(home)
            if (engine_log := store_folder_layout.engine_wal_path(engine.path)).exists():
                engine_log.rename(store_folder_layout.engine_wal_path(home))
            engine.path.rename(home)
        self.layout.mark_engine(self.state, format_cypher_engine_name_and_version(self.options.engine))

    def _start(self) -> EngineHandle:
        """Open the file as it was left, or rebuild it; always rebuild a file of another engine edition.

        Raises JournalDamaged, StorageFull or Unavailable.
        """
        # Background work takes a slot only if no statement has to wait for it.
        self.places.acquire(self, self.options.read_timeout if self.is_in_demand else 0)
        mark = self.layout.engine_mark()
        self.layout.remove_engine_marker()
        if mark is not None and (
            mark.engine != format_cypher_engine_name_and_version(self.options.engine) or self._is_rebuild_cheaper()
        ):
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
                return self._put_in_service(engine, "as it was left")
        self.found_damaged = reason
        return self._build(reason)

    def _is_rebuild_cheaper(self) -> bool:
        """Return whether rebuilding the file is cheaper than opening it and catching up."""
        file, log_ = self.bytes()
        missed = self._behind_rows > max(CATCH_UP_THRESHOLD_ROWS, (self.state.nodes + self.state.edges) // 2)
        return missed or log_ > max(MIN_REBUILD_LOG_BYTES, file)

    def _open_as_left(self, mark: EngineCleanCloseMarker) -> EngineHandle:
        engine = EngineHandle(self.layout.engine, self.options)
        try:
            if engine.state != mark.state:
                raise EngineFailed("the engine's state differs from the state recorded when it was closed")
            if not engine.is_current:
                raise EngineFailed("the engine's file has another schema")
        except BaseException:
            engine.retire()
            raise
        return engine

    def _build(self, reason: str) -> EngineHandle:
        """Rebuild the file; the ``reason`` is empty for a first build or one that only saves time."""
        files = list(self.layout.root.glob("graph*"))
        for path in files:
            remove_path(path)
        if not files and self.found_damaged is None:
            reason = ""
        # The caller applies the commits that a snapshot lacks. If that fails, `heal` builds from the current rows.
        engine = self.build_from_journal(self.layout.engine, reason, NodeEdgeColumnSet.PLAIN, may_lag=True)
        self.state = engine.state
        self.rebuilds += bool(reason)
        return self._put_in_service(engine, "rebuilt" if reason else "a new file")
