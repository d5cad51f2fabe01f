"""An engine's file as the server sees it: open in a process of its own, written by one session and read by some."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from kgserve.cypher.guard import Statement
from kgserve.platform.metrics.observation import SlowLog, add_part
from kgserve.platform.settings import MEBIBYTE, EngineName, Settings
from kgserve.projections.cypher_engine.engine.files import size
from kgserve.projections.cypher_engine.engine.process import KILL_GRACE_SECONDS, Channel, ProcessDied, fork_server
from kgserve.projections.cypher_engine.engine.protocol import (
    Build,
    Change,
    Close,
    Dump,
    FileOptions,
    Head,
    Leave,
    Make,
    Next,
    Open,
    Opened,
    Query,
    Read,
    RowsPart,
    State,
)
from kgserve.projections.cypher_engine.engine.turns import FairPool, asker
from kgserve.storage.layout import wal_path
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.fields import ColumnSet

MIN_PROCESS_OVERHEAD_MB = 256
"""What an engine's process may take beside its page cache, at the least."""
_IDLE_PROCESS_MB = 96
"""What it has before it is asked anything."""
_MAX_SLOW_QUERY_CHARS = 500
_ENGINE_RETRY_DELAY_SECONDS = 0.005
_VECTOR_ROWS = 2048
_RETAINED_BYTES_PER_VECTOR = 190_000
_RETAINED_BYTES_PER_EDGE = 6_000


class EngineOptions(msgspec.Struct, frozen=True):
    """How an engine's file is opened and asked: ``readers`` are statements at once, times are in seconds.

    Statements that take long are noted in ``slow``, as those of ``store``; once that is ``closing`` no file is made.
    """

    file: FileOptions = FileOptions()
    engine: EngineName = "kuzu"
    readers: int = 4
    read_timeout: float = 10.0
    store: str = ""
    slow: SlowLog | None = None
    closing: threading.Event | None = None

    @classmethod
    def of(cls, settings: Settings, store: str, slow: SlowLog, closing: threading.Event) -> Self:
        """What the engine files of a store are opened with."""
        beside = settings.engine_memory_mb - settings.buffer_pool_mb - _IDLE_PROCESS_MB
        return cls(
            file=FileOptions(
                cache_bytes=settings.buffer_pool_mb * MEBIBYTE,
                threads=settings.engine_threads,
                memory_bytes=max(beside, MIN_PROCESS_OVERHEAD_MB) * MEBIBYTE,
            ),
            engine=settings.engine,
            readers=settings.read_connections,
            read_timeout=settings.query_timeout,
            store=store,
            slow=slow,
            closing=closing,
        )


class Session:
    """A channel to the engine's process, for one thread at a time."""

    def __init__(self, channel: Channel, options: EngineOptions, width: ColumnSet) -> None:
        """``width``: the columns that the file has."""
        self.channel = channel
        self.width = width
        self.seconds = 0.0
        self._options = options

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[list[Any]]:
        """All rows of a statement of our own, times as text. Raises errors of `kgserve.errors`."""
        asked = Query(query, dict(parameters or {}), self.seconds)
        return self.channel.ask(asked, list[list[Any]], self._patience)

    def run(self, query: str) -> None:
        """Run a statement of our own."""
        self.rows(query)

    def dump(self, folder: Path) -> StoreState:
        """Write all rows to nodes.parquet and edges.parquet in a folder, from one snapshot; the state they are of."""
        return self.channel.ask(Dump(str(folder)), State).state

    def interrupt(self) -> None:
        """Stop the statement that runs now; for another thread to call."""
        self.channel.interrupt()

    @contextmanager
    def reading(self, statement: Statement, most: int | None = None, *, writes: bool = False) -> Generator[Cursor]:
        """The rows of a statement of a caller's, at most so many. Raises errors made for who wrote it.

        One that ``writes`` may change the file, which must be one that nobody serves.
        """
        started = time.perf_counter()
        self.channel.statement = statement
        try:
            head = self.channel.ask(Read(statement, self.seconds, most, writes), Head, self._patience)
        finally:
            self._account(time.perf_counter() - started, statement)
        cursor = Cursor(self.channel, head, self._patience)
        cursor.seconds = time.perf_counter() - started
        try:
            yield cursor
        finally:
            cursor.leave()

    @property
    def _patience(self) -> float | None:
        return self.seconds + KILL_GRACE_SECONDS if self.seconds else None

    def _account(self, seconds: float, statement: Statement) -> None:
        add_part("engine", seconds)
        slow = self._options.slow
        if slow is not None and seconds >= slow.seconds:
            parts = {"engine": seconds}
            slow.note("query", seconds, parts, store=self._options.store, query=statement.shape[:_MAX_SLOW_QUERY_CHARS])


class Cursor:
    """The open result of a statement. ``total`` is how many rows it has, ``seconds`` what it took until they came."""

    def __init__(self, channel: Channel, head: Head, patience: float | None) -> None:
        self.columns, self.types, self.total = head.columns, head.types, head.total
        self.seconds = 0.0
        self._channel = channel
        self._part = head.first
        self._patience = patience

    def parts(self) -> Iterator[RowsPart]:
        """The text of all rows, cut anywhere. Raises errors of `kgserve.errors`."""
        yield self._part
        while self._part.more:
            self._part = self._channel.ask(Next(), RowsPart, self._patience)
            yield self._part

    def lines(self) -> Iterator[bytes]:
        """The rows one by one, without their line breaks."""
        begun: list[bytes] = []
        for part in self.parts():
            *whole, last = part.lines.split(b"\n")
            for line in whole:
                yield b"".join((*begun, line))
                begun.clear()
            begun.append(last)

    def leave(self) -> None:
        """Ask for no more."""
        if self._part.more and not self._channel.process.is_lost:
            self._channel.ask(Leave())


class Engine:
    """An open engine file in service: one writing session, a bounded number of reading ones."""

    def __init__(self, path: Path, options: EngineOptions, making: Make | None = None) -> None:
        """Open an existing file, or the one that is made. Raises EngineFailed when the engine will not have it."""
        process = fork_server(options.engine).process(options.readers, options.store)
        try:
            asked = making or Open(str(path), options.file)
            opened = process.channels[0].ask(asked, Opened, broken_off=options.closing if making else None)
        except BaseException:
            process.close()
            raise
        self.path = path
        self.state = opened.state.state
        """The state of its last commit."""
        self.width = ColumnSet(opened.width)
        """The columns that it has."""
        self.is_current = opened.current
        """Whether its tables are those of this version; if not, it is to be built anew."""
        # Memory that the engine gives back only when this file is replaced, about.
        self.kept_bytes = 0
        self._options = options
        self._process = process
        writer, *readers = (Session(channel, options, self.width) for channel in process.channels)
        self.writer = writer
        self._readers = FairPool(readers)
        self._leases = 0
        self._retired = False
        self._lock = threading.Lock()
        self._is_whole = False
        self.closed = False

    @property
    def is_lost(self) -> bool:
        """Whether its process has ended though nobody closed it: nobody knows what the file holds."""
        return self._process.is_lost and not self._is_whole

    def apply(self, net: NetChange, state: StoreState, *, recorded: bool = True) -> None:
        """Apply a change in one transaction. After an error the engine must be retired.

        Unless the state is ``recorded``, the file does not say how far it has come.
        """
        self.writer.channel.ask(Change.of(net, state if recorded else None, linked=self.width is ColumnSet.LINKS))
        self.kept_bytes += kept_versions(net, state)
        if recorded:
            self.state = state

    @contextmanager
    def reader(self, timeout: float | None = None) -> Generator[Session]:
        """Borrow a reading session; ``timeout`` in seconds for each statement, 0 for none.

        Raises Unavailable when none is free within the read time limit.
        """
        caller = asker.get()
        session = self._borrow(caller)
        try:
            session.seconds = self._options.read_timeout if timeout is None else timeout
            yield session
        except ProcessDied as error:
            error.alone = self._leases == 1
            raise
        finally:
            self._return(caller, session)

    @property
    def waiting(self) -> int:
        """Statements that wait for a session."""
        return self._readers.waiting

    @property
    def resident(self) -> int:
        """Bytes of memory that its process has for itself; 0 once that has ended."""
        return self._process.resident

    @property
    def process(self) -> int:
        """The number that the system knows its process by."""
        return self._process.number

    @property
    def statements(self) -> list[str]:
        """The shapes of the callers' statements that its process is at, or was at when it ended."""
        return self._process.statements

    def bytes(self) -> tuple[int, int]:
        """Size of the file and of its log."""
        return size(self.path), size(wal_path(self.path))

    def retire(self) -> None:
        """Take no new readers; close when the last one has left."""
        with self._lock:
            self._retired = True
            idle = self._leases == 0
        if idle:
            self._close()

    def wait_closed(self, seconds: float) -> None:
        """Block until the last reader of a retired engine has left, or so long."""
        deadline = time.monotonic() + seconds
        while not (self.closed or self.is_lost) and time.monotonic() < deadline:
            time.sleep(_ENGINE_RETRY_DELAY_SECONDS)

    def retire_if_idle(self) -> bool:
        """As `retire`, unless somebody reads; whether it is closed now."""
        with self._lock:
            if self._leases:
                return False
            self._retired = True
        self._close()
        return True

    def _borrow(self, caller: str) -> Session:
        session = self._readers.take(caller, self._options.read_timeout)
        with self._lock:
            if not self._retired:
                self._leases += 1
                return session
        self._readers.give_back(caller, session)
        raise Retired

    def _return(self, caller: str, session: Session) -> None:
        session.channel.statement = None
        self._readers.give_back(caller, session)
        with self._lock:
            self._leases -= 1
            last = self._retired and self._leases == 0
        if last:
            self._close()

    def _close(self) -> None:
        try:
            if not self._process.is_lost:
                self.writer.channel.ask(Close())
                self._is_whole = True
        finally:
            self._process.close()
            self.closed = self._is_whole


class Retired(Exception):
    """The engine was replaced between looking it up and using it: look it up again."""


def build(
    path: Path, rows: Path | Change, state: StoreState, options: EngineOptions, width: ColumnSet = ColumnSet.PLAIN
) -> Engine:
    """Make a new engine file of rows that come to a state, check its counts, open it. Nobody may know the file yet.

    The rows are in a folder, or few. The file has the columns that its rows need, and those of a ``width`` in any case.
    Raises EngineFailed and StorageFull, and Unavailable once the store is closing.
    """
    if isinstance(rows, Change):
        return Engine(path, options, Make(str(path), rows, State.of(state), options.file, width))
    # What was needed for building goes with the process.
    process = fork_server(options.engine).process(0, options.store)
    try:
        # However large the rows are: what they take is known, and they are our own.
        file = msgspec.structs.replace(options.file, memory_bytes=0)
        process.channels[0].ask(Build(str(path), str(rows), State.of(state), file, width), broken_off=options.closing)
    finally:
        process.close()
    return Engine(path, options)


def kept_versions(net: NetChange, state: StoreState) -> int:
    """About the bytes that the engine keeps for a change until its file is replaced, beside those in its log.

    Every SET keeps the former values of 2,048 rows: 27 kB a column, measured, whether one of those rows changed or all.
    """
    vectors = min(len(net.nodes_updated), state.nodes // _VECTOR_ROWS + 1)
    return vectors * _RETAINED_BYTES_PER_VECTOR + len(net.edges_updated) * _RETAINED_BYTES_PER_EDGE
