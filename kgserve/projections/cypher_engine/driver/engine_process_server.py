"""Server loop of an engine process: it owns one engine file and answers requests on several channels.

Each channel has a session and a thread. The session of the first channel writes, all others read. The process exits
when the server closes the control channel, or on request.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from kgserve.errors import EngineFailed, InvalidInput, KgserveError, StorageFull, Unavailable
from kgserve.projections.cypher_engine.driver import (
    bulk_copy,
    cypher_statement_execution,
    engine_file_opening_and_build,
)
from kgserve.projections.cypher_engine.driver.apply_changes import apply_net_change_to_engine
from kgserve.projections.cypher_engine.driver.cypher_statement_execution import EngineStatementResult
from kgserve.projections.cypher_engine.driver.dry_run_row_diff import DryRunRowComparison
from kgserve.projections.cypher_engine.driver.error_translation import OUT_OF_MEMORY_MESSAGE
from kgserve.projections.cypher_engine.driver.prepared_statement_session import (
    EngineFileFacts,
    PreparedStatementSession,
)
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Database
from kgserve.projections.cypher_engine.engine.protocol import (
    ApplyNetChangeRequest,
    BeginDryRun,
    BuildEngineFileRequest,
    BuildSmallEngineFileRequest,
    CloseEngineFileRequest,
    CloseResultRequest,
    CompareDryRunRowsRequest,
    DumpRowsRequest,
    EndDryRunRequest,
    EngineErrorReply,
    EngineFileOptions,
    EngineInternalQueryRequest,
    EngineRequest,
    EngineStatementReply,
    EngineSuccessReply,
    InterruptRequest,
    NextRowChunkRequest,
    OpenEngineFileRequest,
    OpenFileReply,
    ResultChunk,
    RunStatementRequest,
    ScratchCopyUnreliable,
    StoreStateMessage,
    encode_message,
    receive_engine_request,
)
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet

FIRST_PART_ROWS = 20
RESULT_PART_MAX_ROWS = 500
RESULT_PART_BYTES = 1 << 20
# Divisor of the page cache for one slice of a dump, which needs several times its size.
_SHARE = 8
_json_lines = msgspec.json.Encoder().encode_lines


class ServedEngineFile:
    """Engine file of this process, once opened."""

    def __init__(self) -> None:
        self.options = EngineFileOptions()
        self._database: Database | None = None
        self.writer: PreparedStatementSession | None = None
        self.facts = EngineFileFacts()

    def build(self, asked: BuildEngineFileRequest) -> None:
        """Build a new file from a folder of rows, and leave it closed."""
        path, state = Path(asked.path), asked.state.state
        engine_file_opening_and_build.build_cypher_engine_file_from_row_files(
            path, Path(asked.rows), state, asked.options, width=NodeEdgeColumnSet(asked.width)
        )

    def make(self, asked: BuildSmallEngineFileRequest) -> OpenFileReply:
        """Build a new file from a few rows, and open it."""
        path, state = Path(asked.path), asked.state.state
        writer = self._serve(
            asked.options,
            engine_file_opening_and_build.build_engine_file_from_rows(
                path, asked.rows.net, state, asked.options, width=NodeEdgeColumnSet(asked.width)
            ),
        )
        return OpenFileReply(asked.state, writer.width, current=True)

    def open(self, asked: OpenEngineFileRequest) -> OpenFileReply:
        """Open an existing file."""
        writer = self._serve(
            asked.options, engine_file_opening_and_build.open_engine_file_with_writer(Path(asked.path), asked.options)
        )
        return OpenFileReply(
            StoreStateMessage.of(bulk_copy.read_engine_commit_state(writer)),
            writer.width,
            engine_file_opening_and_build.is_engine_file_schema_current(writer),
        )

    def _serve(
        self, options: EngineFileOptions, opened: engine_file_opening_and_build.OpenDatabase
    ) -> PreparedStatementSession:
        """Put a file in service, and limit the memory of this process."""
        self.options = options
        self._database, self.writer = opened
        self.facts.forget()
        _bound_memory(options.memory_bytes)
        return self.writer

    def session(self) -> PreparedStatementSession:
        """Return a new session with the column set of the writing session."""
        if self._database is None or self.writer is None:
            raise EngineFailed("the engine has no file open")
        session = PreparedStatementSession(self._database, self.writer.width, self.facts)
        session.slice_bytes = self.options.cache_bytes // _SHARE
        return session

    def close(self) -> None:
        """Close the file without a checkpoint."""
        writer, self.writer, opened, self._database = self.writer, None, self._database, None
        if writer is not None and opened is not None:
            writer.close()
            opened.close()


class EngineChannelServer:
    """Request loop of one channel; answers requests in order."""

    def __init__(self, connection: Connection, file: ServedEngineFile, *, writes: bool) -> None:
        self._connection = connection
        self._file = file
        self._writes = writes
        self._session: PreparedStatementSession | None = None
        self._trial_session: PreparedStatementSession | None = None
        self._open_results = ExitStack()
        self._parts: Generator[ResultChunk] | None = None
        self._prefetched: ResultChunk | Exception | None = None
        self._requests = 0
        self._interrupting = threading.Lock()
        # Number of the request in progress. Interrupts apply only to it: one that hits a closing session crashes the
        # engine.
        self._current_request = 0

    def serve(self) -> None:
        """Answer requests until the server closes the channel."""
        while True:
            try:
                request = receive_engine_request(self._connection)
            except (EOFError, OSError):
                return
            self._connection.send_bytes(encode_message(self._answer(request)))
            if self._parts is not None and self._prefetched is None:
                # Prefetch the next part while the server processes this one.
                self._prefetched = self._next_part()

    def interrupt(self, request: int) -> None:
        """Stop the running statement if it belongs to request number ``request``. Safe to call from another thread."""
        with self._interrupting:
            session = self.session_of() if self._current_request == request else None
            if session is not None:
                session.interrupt()

    def session_of(self) -> PreparedStatementSession | None:
        """Return the session in which this channel's statements run."""
        return self._file.writer if self._writes else self._session

    def _answer(self, request: EngineRequest) -> EngineSuccessReply | EngineErrorReply:
        try:
            return EngineSuccessReply(msgspec.Raw(encode_message(self._handle(request))))
        except KgserveError as error:
            self._discard_session()
            errors = error.errors if isinstance(error, InvalidInput) else ()
            return EngineErrorReply(type(error).__name__, str(error), [*errors])
        except MemoryError:
            self._discard_session()
            return EngineErrorReply(StorageFull.__name__, OUT_OF_MEMORY_MESSAGE)
        except ScratchCopyUnreliable:
            self._discard_session()
            return EngineErrorReply(ScratchCopyUnreliable.__name__, "")
        except Exception as error:  # noqa: BLE001  # every error is reported to the server
            self._discard_session()
            return EngineErrorReply(EngineFailed.__name__, f"the engine failed: {type(error).__name__}: {error}")

    def _handle(self, request: EngineRequest) -> Any:
        self._requests += 1
        try:
            self._current_request = self._requests
            return self._handlers[type(request)](self, request)
        finally:
            with self._interrupting:
                self._current_request = 0

    def _ensure_session(self) -> PreparedStatementSession:
        session = self.session_of()
        if session is None:
            session = self._session = self._file.session()
        return session

    def _discard_session(self) -> None:
        """Discard the session: its transaction state is undefined after an error."""
        self._parts = self._prefetched = None
        self._open_results.pop_all()
        if not self._writes and self._session is not None:
            self._session.close()
            self._session = None

    def _build(self, asked: BuildEngineFileRequest) -> None:
        self._file.build(asked)

    def _make(self, asked: BuildSmallEngineFileRequest) -> OpenFileReply:
        return self._file.make(asked)

    def _open(self, asked: OpenEngineFileRequest) -> OpenFileReply:
        return self._file.open(asked)

    def _change(self, asked: ApplyNetChangeRequest) -> None:
        try:
            apply_net_change_to_engine(self._ensure_session(), asked.net, asked.state and asked.state.state)
        finally:
            self._file.facts.forget()

    def _query(self, asked: EngineInternalQueryRequest) -> list[list[Any]]:
        session = self._ensure_session()
        session.limit(asked.seconds)
        return session.rows(asked.text, asked.parameters)  # pyright: ignore[reportArgumentType]

    def _dump(self, asked: DumpRowsRequest) -> StoreStateMessage:
        return StoreStateMessage.of(bulk_copy.dump_engine_tables_to_parquet(self._ensure_session(), Path(asked.folder)))

    def _read(self, asked: RunStatementRequest) -> EngineStatementReply:
        session = self._ensure_session()
        session.limit(asked.seconds)
        how = (
            cypher_statement_execution.open_write_statement_result
            if asked.writes
            else cypher_statement_execution.open_read_statement_result
        )
        cursor = self._open_results.enter_context(how(session, asked.statement))
        most = cursor.total if asked.most is None else asked.most
        self._parts, self._prefetched = _parts(cursor, most), None
        return EngineStatementReply(cursor.columns, cursor.types, cursor.total, self._next(None))

    def _next(self, _asked: NextRowChunkRequest | None) -> ResultChunk:
        if self._parts is None:
            return ResultChunk(b"", 0, more=False)
        made, self._prefetched = self._prefetched or self._next_part(), None
        if isinstance(made, Exception):
            raise made
        if not made.more:
            self._leave(None)
        return made

    def _next_part(self) -> ResultChunk | Exception:
        assert self._parts is not None  # noqa: S101
        try:
            return next(self._parts)
        except Exception as error:  # noqa: BLE001  # raised when the server requests the part
            return error

    def _leave(self, _asked: CloseResultRequest | None) -> None:
        self._parts = self._prefetched = None
        self._open_results.close()

    def _begin_trial(self, _asked: BeginDryRun) -> None:
        self._trial_session = self._file.session()
        self._trial_session.run("BEGIN TRANSACTION READ ONLY")

    def _compare(self, asked: CompareDryRunRowsRequest) -> Any:
        assert self._trial_session is not None  # noqa: S101
        session = self._ensure_session()
        session.limit(0)
        return DryRunRowComparison(session, self._trial_session, asked).find_row_changes()

    def _end_trial(self, _asked: EndDryRunRequest) -> None:
        before, self._trial_session = self._trial_session, None
        if before is not None:
            before.run("COMMIT")
            before.close()

    def _close(self, _asked: CloseEngineFileRequest) -> None:
        self._file.close()

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        BuildEngineFileRequest: _build,
        BuildSmallEngineFileRequest: _make,
        OpenEngineFileRequest: _open,
        ApplyNetChangeRequest: _change,
        EngineInternalQueryRequest: _query,
        RunStatementRequest: _read,
        NextRowChunkRequest: _next,
        CloseResultRequest: _leave,
        DumpRowsRequest: _dump,
        BeginDryRun: _begin_trial,
        CompareDryRunRowsRequest: _compare,
        EndDryRunRequest: _end_trial,
        CloseEngineFileRequest: _close,
    }


def serve_engine_requests(control: Connection, channels: list[Connection]) -> None:
    """Serve requests until the server closes the control channel, then exit the process immediately."""
    file = ServedEngineFile()
    served = [EngineChannelServer(connection, file, writes=number == 0) for number, connection in enumerate(channels)]
    for channel in served:
        threading.Thread(target=channel.serve, daemon=True).start()
    try:
        while True:
            request = receive_engine_request(control)
            if isinstance(request, InterruptRequest):
                served[request.channel].interrupt(request.request)
            else:
                control.send_bytes(b"")
    except (EOFError, OSError):
        os._exit(0)


def _parts(cursor: EngineStatementResult, most: int) -> Generator[ResultChunk]:
    """Yield at most ``most`` rows in parts of at most 1 MiB, which bounds the receiver's memory.

    The first part has few rows, so that it arrives quickly.
    """
    most, sent, batch_rows = min(most, cursor.total), 0, FIRST_PART_ROWS
    while True:
        rows = cursor.take(min(batch_rows, most - sent))
        text = _json_lines(rows)
        sent += len(rows)
        more = bool(rows) and sent < most
        for start in range(0, max(len(text), 1), RESULT_PART_BYTES):
            piece = text[start : start + RESULT_PART_BYTES]
            yield ResultChunk(piece, piece.count(b"\n"), more or start + RESULT_PART_BYTES < len(text))
        if not more:
            return
        batch_rows = max(1, min(RESULT_PART_MAX_ROWS, len(rows) * RESULT_PART_BYTES // max(len(text), 1)))


def _bound_memory(extra_bytes: int) -> None:
    """Limit the process to ``extra_bytes`` above the address space used now.

    0 sets no limit, and neither does a system without /proc, such as macOS, which does not enforce one.
    """
    figures = Path("/proc/self/statm")
    if not extra_bytes or not figures.exists():
        return
    used_bytes = int(figures.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + extra_bytes, resource.RLIM_INFINITY))
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot limit the memory of the engine's process: {error}") from error
