"""Server-side handle of an engine file, which is open in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.platform.metrics.app_metrics_and_request_context import SlowOperationLog, add_request_part_seconds
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.settings import MEBIBYTE, EngineName, Settings
from kgserve.projections.cypher_engine.engine.fair_pool import FairPool, current_caller
from kgserve.projections.cypher_engine.engine.files import file_size
from kgserve.projections.cypher_engine.engine.process import (
    KILL_GRACE_SECONDS,
    EngineProcessDied,
    EngineRequestChannel,
    get_engine_fork_server,
)
from kgserve.projections.cypher_engine.engine.protocol import (
    ApplyNetChangeRequest,
    BuildEngineFileRequest,
    BuildSmallEngineFileRequest,
    CloseEngineFileRequest,
    CloseResultRequest,
    DumpRowsRequest,
    EngineFileOptions,
    EngineInternalQueryRequest,
    EngineStatementReply,
    NextRowChunkRequest,
    OpenEngineFileRequest,
    OpenFileReply,
    ResultChunk,
    RunStatementRequest,
    StoreStateMessage,
)
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.store_folder_layout import engine_wal_path

MIN_PROCESS_OVERHEAD_MB = 256
"""Minimum memory in MB of an engine process in addition to its page cache."""
_IDLE_PROCESS_MB = 96
"""Memory in MB of an idle engine process."""
_MAX_SLOW_QUERY_CHARS = 500
_ENGINE_RETRY_DELAY_SECONDS = 0.005
_VECTOR_ROWS = 2048
_RETAINED_BYTES_PER_VECTOR = 190_000
_RETAINED_BYTES_PER_EDGE = 6_000


class EngineOptions(msgspec.Struct, frozen=True):
    """Options for opening and querying an engine file.

    ``readers``: number of concurrent read statements. ``read_timeout``: seconds per statement. Slow statements are
    recorded in ``slow`` under the name ``store``. Once ``closing`` is set, no new file is built.
    """

    file: EngineFileOptions = EngineFileOptions()
    engine: EngineName = "kuzu"
    readers: int = 4
    read_timeout: float = 10.0
    store: str = ""
    slow: SlowOperationLog | None = None
    closing: threading.Event | None = None

    @classmethod
    def of(cls, settings: Settings, store: str, slow: SlowOperationLog, closing: threading.Event) -> Self:
        """Return the options for the engine files of a store."""
        overhead_mb = settings.engine_memory_mb - settings.buffer_pool_mb - _IDLE_PROCESS_MB
        return cls(
            file=EngineFileOptions(
                cache_bytes=settings.buffer_pool_mb * MEBIBYTE,
                threads=settings.engine_threads,
                memory_bytes=max(overhead_mb, MIN_PROCESS_OVERHEAD_MB) * MEBIBYTE,
            ),
            engine=settings.engine,
            readers=settings.read_connections,
            read_timeout=settings.query_timeout,
            store=store,
            slow=slow,
            closing=closing,
        )


class EngineProcessSession:
    """Session with an engine process over one request channel; not thread-safe."""

    def __init__(self, channel: EngineRequestChannel, options: EngineOptions, width: NodeEdgeColumnSet) -> None:
        """Bind the session to a channel; ``width`` is the column set of the file."""
        self.channel = channel
        self.width = width
        self.seconds = 0.0
        self._sent_at = 0.0
        self._options = options

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[list[Any]]:
        """Return all rows of an internal statement, with times as text. Raises errors from `kgserve.errors`."""
        asked = EngineInternalQueryRequest(query, dict(parameters or {}), self.seconds)
        return self.channel.ask(asked, list[list[Any]], self._answer_timeout)

    def run(self, query: str) -> None:
        """Run an internal statement, and discard its result."""
        self.rows(query)

    def dump(self, folder: Path) -> StoreState:
        """Write all rows to nodes.parquet and edges.parquet from one snapshot, and return its state."""
        return self.channel.ask(DumpRowsRequest(str(folder)), StoreStateMessage).state

    def interrupt(self) -> None:
        """Stop the running statement. Safe to call from another thread."""
        self.channel.interrupt()

    @contextmanager
    def reading(
        self, statement: GuardedCypherStatement, most: int | None = None, *, writes: bool = False
    ) -> Generator[EngineResultCursor]:
        """Run a caller's statement and yield a cursor over at most ``most`` rows. Raises errors in the caller's terms.

        With ``writes`` the statement may change the file, which must be a scratch copy.
        """
        self.send(statement, most, writes=writes)
        with self.receiving() as cursor:
            yield cursor

    def send(self, statement: GuardedCypherStatement, most: int | None, *, writes: bool = False) -> None:
        """Send a caller's statement, whose reply `receiving` must read next. Raises EngineProcessDied."""
        self._sent_at = time.perf_counter()
        self.channel.statement = statement
        self.channel.send(RunStatementRequest(statement, self.seconds, most, writes))

    @contextmanager
    def receiving(self) -> Generator[EngineResultCursor]:
        """Yield a cursor over the rows of the statement that was sent. Raises errors in the caller's terms."""
        started, statement = self._sent_at, self.channel.statement
        try:
            head = self.channel.receive(EngineStatementReply, self._answer_timeout)
        finally:
            if statement is not None:
                self._account(time.perf_counter() - started, statement)
        cursor = EngineResultCursor(self.channel, head, self._answer_timeout)
        cursor.seconds = time.perf_counter() - started
        try:
            yield cursor
        finally:
            cursor.close_result()

    @property
    def _answer_timeout(self) -> float | None:
        return self.seconds + KILL_GRACE_SECONDS if self.seconds else None

    def _account(self, seconds: float, statement: GuardedCypherStatement) -> None:
        add_request_part_seconds("engine", seconds)
        slow = self._options.slow
        if slow is not None and seconds >= slow.seconds:
            parts = {"engine": seconds}
            slow.note("query", seconds, parts, store=self._options.store, query=statement.shape[:_MAX_SLOW_QUERY_CHARS])


class EngineResultCursor:
    """Open result of a statement. ``total``: number of rows. ``seconds``: time until the first rows arrived."""

    def __init__(self, channel: EngineRequestChannel, head: EngineStatementReply, patience: float | None) -> None:
        self.columns, self.types, self.total = head.columns, head.types, head.total
        self.seconds = 0.0
        self._channel = channel
        self._part = head.first
        self._answer_timeout = patience

    @property
    def has_more(self) -> bool:
        """True if the process must be asked for further rows."""
        return self._part.more

    def parts(self) -> Iterator[ResultChunk]:
        """Yield the text of all rows in pieces that may split a row. Raises errors from `kgserve.errors`."""
        yield self._part
        while self._part.more:
            self._part = self._channel.ask(NextRowChunkRequest(), ResultChunk, self._answer_timeout)
            yield self._part

    def lines(self) -> Iterator[bytes]:
        """Yield the rows one by one, without line breaks."""
        begun: list[bytes] = []
        for part in self.parts():
            *whole, last = part.lines.split(b"\n")
            for line in whole:
                yield b"".join((*begun, line))
                begun.clear()
            begun.append(last)

    def close_result(self) -> None:
        """Close the result; no further rows can be read."""
        if self._part.more and not self._channel.process.has_died:
            self._channel.ask(CloseResultRequest())


class EngineHandle:
    """Open engine file in service, with one writing session and a bounded number of reading sessions."""

    def __init__(self, path: Path, options: EngineOptions, making: BuildSmallEngineFileRequest | None = None) -> None:
        """Open an existing file, or build the one described by ``making``.

        Raises EngineFailed if it cannot be opened.
        """
        process = get_engine_fork_server(options.engine).process(options.readers, options.store)
        try:
            asked = making or OpenEngineFileRequest(str(path), options.file)
            opened = process.channels[0].ask(asked, OpenFileReply, broken_off=options.closing if making else None)
        except BaseException:
            process.close()
            raise
        self.path = path
        self.state = opened.state.state
        """State of its last commit."""
        self.width = NodeEdgeColumnSet(opened.width)
        """Column set of the file."""
        self.is_current = opened.current
        """True if its schema is that of this version; otherwise the file must be rebuilt."""
        # Estimated memory that the engine releases only when this file is replaced.
        self.kept_bytes = 0
        self._options = options
        self._process = process
        writer, *readers = (EngineProcessSession(channel, options, self.width) for channel in process.channels)
        self.writer = writer
        self._readers = FairPool(readers)
        self._leases = 0
        self._retired = False
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._is_released = False
        self._is_cleanly_closed = False
        self.closed = False

    @property
    def has_died(self) -> bool:
        """True if the process ended unexpectedly; the content of the file is then unknown."""
        return self._process.has_died and not self._is_cleanly_closed

    def apply(self, net: NetChange, state: StoreState, *, recorded: bool = True) -> None:
        """Apply a change in one transaction. After an error the caller must retire the engine.

        Without ``recorded``, the state is not stored in the file.
        """
        self.writer.channel.ask(
            ApplyNetChangeRequest.of(net, state if recorded else None, linked=self.width is NodeEdgeColumnSet.LINKS)
        )
        self.kept_bytes += estimate_change_bytes_kept_by_engine(net, state)
        if recorded:
            self.state = state

    @contextmanager
    def reader(self, timeout: float | None = None, *, block: bool = True) -> Generator[EngineProcessSession]:
        """Borrow a reading session; ``timeout`` is the limit of each statement in seconds, 0 for none.

        Raises Unavailable if no session becomes free within the read time limit; without ``block`` WouldBlock if none
        is free now.
        """
        caller = current_caller.get()
        session = self._borrow(caller, block=block)
        try:
            session.seconds = self._options.read_timeout if timeout is None else timeout
            yield session
        except EngineProcessDied as error:
            error.alone = self._leases == 1
            raise
        finally:
            self._return(caller, session, block=block)

    @property
    def waiting(self) -> int:
        """Number of statements that wait for a session."""
        return self._readers.waiting

    @property
    def private_memory_bytes(self) -> int:
        """Private memory of the process in bytes; 0 after it has ended."""
        return self._process.private_memory_bytes

    @property
    def process(self) -> int:
        """Process id."""
        return self._process.number

    @property
    def statements(self) -> list[str]:
        """Shapes of the callers' statements that are running, or were running when the process ended."""
        return self._process.statements

    def bytes(self) -> tuple[int, int]:
        """Return the sizes of the file and its log in bytes."""
        return file_size(self.path), file_size(engine_wal_path(self.path))

    def retire(self) -> None:
        """Stop accepting readers, and close once the last one has finished."""
        with self._lock:
            self._retired = True
            idle = self._leases == 0
        if idle:
            self._close()

    def wait_closed(self, seconds: float) -> None:
        """Block until a retired engine is closed, or for ``seconds``."""
        deadline = time.monotonic() + seconds
        while not (self.closed or self.has_died) and time.monotonic() < deadline:
            time.sleep(_ENGINE_RETRY_DELAY_SECONDS)

    def retire_if_idle(self) -> bool:
        """Retire the engine if no reader is active; return whether it is closed."""
        with self._lock:
            if self._leases:
                return False
            self._retired = True
        self._close()
        return True

    def _borrow(self, caller: str, *, block: bool) -> EngineProcessSession:
        session = self._readers.take(caller, self._options.read_timeout) if block else self._readers.take_free(caller)
        if session is None:
            raise WouldBlock
        with self._lock:
            if not self._retired:
                self._leases += 1
                return session
        self._readers.release(caller, session)
        raise EngineReplaced

    def _return(self, caller: str, session: EngineProcessSession, *, block: bool) -> None:
        session.channel.statement = None
        self._readers.release(caller, session)
        with self._lock:
            self._leases -= 1
            last = self._retired and self._leases == 0
        if last and block:
            self._close()
        elif last:
            threading.Thread(target=self._close, name=f"close engine of {self._options.store}").start()

    def _close(self) -> None:
        """Close the file and release the process, once. A concurrent call waits until that is done."""
        with self._closing:
            # Descriptors that were closed twice could be those of other files.
            if self._is_released:
                return
            self._is_released = True
            try:
                if not self._process.has_died:
                    self.writer.channel.ask(CloseEngineFileRequest())
                    self._is_cleanly_closed = True
            finally:
                self._process.close()
                self.closed = self._is_cleanly_closed


class EngineReplaced(Exception):
    """Raised when the engine was replaced between lookup and use; the caller looks it up again."""


def build_engine_file(
    path: Path,
    rows: Path | ApplyNetChangeRequest,
    state: StoreState,
    options: EngineOptions,
    width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN,
) -> EngineHandle:
    """Build a new engine file from rows that result in ``state``, verify its counts, and open it.

    The rows are in a folder, or in a `ApplyNetChangeRequest` if they are few. The file must not be in use. It has the
    columns that its rows need, and at least those of ``width``. Raises EngineFailed, StorageFull, or Unavailable once
    the store is closing.
    """
    if isinstance(rows, ApplyNetChangeRequest):
        return EngineHandle(
            path,
            options,
            BuildSmallEngineFileRequest(str(path), rows, StoreStateMessage.of(state), options.file, width),
        )
    # Memory used for building is released with the process.
    process = get_engine_fork_server(options.engine).process(0, options.store)
    try:
        # No memory limit: the rows are our own and their needs are known.
        file = msgspec.structs.replace(options.file, memory_bytes=0)
        process.channels[0].ask(
            BuildEngineFileRequest(str(path), str(rows), StoreStateMessage.of(state), file, width),
            broken_off=options.closing,
        )
    finally:
        process.close()
    return EngineHandle(path, options)


def estimate_change_bytes_kept_by_engine(net: NetChange, state: StoreState) -> int:
    """Estimate the bytes that the engine retains for a change until its file is replaced, in addition to its log.

    Each SET retains the previous values of 2,048 rows, 27 kB per column, regardless of how many of them changed.
    """
    vectors = min(len(net.nodes_updated), state.nodes // _VECTOR_ROWS + 1)
    return vectors * _RETAINED_BYTES_PER_VECTOR + len(net.edges_updated) * _RETAINED_BYTES_PER_EDGE
