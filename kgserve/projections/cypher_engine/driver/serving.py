"""One engine file in a process of its own: requests come in on channels, each of which has a session and a thread.

The first channel's session writes, all others read. What the file holds is nobody else's; the process ends with the
server, or when it is told to.
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
from kgserve.projections.cypher_engine.driver import copying, database, statement
from kgserve.projections.cypher_engine.driver.apply import apply
from kgserve.projections.cypher_engine.driver.binding import Database
from kgserve.projections.cypher_engine.driver.failures import OUT_OF_MEMORY_MESSAGE
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.projections.cypher_engine.driver.statement import StatementResult
from kgserve.projections.cypher_engine.driver.trial import Comparison
from kgserve.projections.cypher_engine.engine.protocol import (
    Build,
    Change,
    Close,
    Compare,
    Done,
    Doubtful,
    Dump,
    Failed,
    FileOptions,
    Head,
    Interrupt,
    Leave,
    Make,
    Next,
    Open,
    Opened,
    Query,
    Read,
    Request,
    RowsPart,
    State,
    Tried,
    Try,
    encode,
    receive_request,
)
from kgserve.storage.model.fields import ColumnSet

FIRST_PART_ROWS = 20
RESULT_PART_MAX_ROWS = 500
RESULT_PART_BYTES = 1 << 20
# Of the page cache, what the rows of one slice of a dump may take: it needs several times that.
_SHARE = 8
_json_lines = msgspec.json.Encoder().encode_lines


class EngineFile:
    """The file of this process, once it is open."""

    def __init__(self) -> None:
        self.options = FileOptions()
        self._database: Database | None = None
        self.writer: DriverSession | None = None

    def build(self, asked: Build) -> None:
        """Make a new file, which stays closed."""
        path, state = Path(asked.path), asked.state.state
        database.build(path, Path(asked.rows), state, asked.options, width=ColumnSet(asked.width))

    def make(self, asked: Make) -> Opened:
        """Make a new file of few rows, and open it."""
        path, state = Path(asked.path), asked.state.state
        writer = self._serve(
            asked.options, database.make(path, asked.rows.net, state, asked.options, width=ColumnSet(asked.width))
        )
        return Opened(asked.state, writer.width, current=True)

    def open(self, asked: Open) -> Opened:
        """Open a file."""
        writer = self._serve(asked.options, database.open_for_service(Path(asked.path), asked.options))
        return Opened(State.of(copying.state(writer)), writer.width, database.is_current(writer))

    def _serve(self, options: FileOptions, opened: database.OpenFile) -> DriverSession:
        """Have a file in service; the memory of this process is bounded from here on."""
        self.options = options
        self._database, self.writer = opened
        _bound_memory(options.memory_bytes)
        return self.writer

    def session(self) -> DriverSession:
        """A session of its own, with the columns that the writing one knows of."""
        if self._database is None or self.writer is None:
            raise EngineFailed("the engine has no file open")
        session = DriverSession(self._database, self.writer.width)
        session.slice_bytes = self.options.cache_bytes // _SHARE
        return session

    def close(self) -> None:
        """Close the file as it is."""
        writer, self.writer, opened, self._database = self.writer, None, self._database, None
        if writer is not None and opened is not None:
            writer.close()
            opened.close()


class ChannelServer:
    """Answers the requests of one channel, in order."""

    def __init__(self, connection: Connection, file: EngineFile, *, writes: bool) -> None:
        self._connection = connection
        self._file = file
        self._writes = writes
        self._session: DriverSession | None = None
        self._before: DriverSession | None = None
        self._lasting = ExitStack()
        self._parts: Generator[RowsPart] | None = None
        self._ahead: RowsPart | Exception | None = None
        self._requests = 0
        self._interrupting = threading.Lock()
        # The request whose statements may be interrupted, while it is handled: else an interrupt could meet the next
        # one, or a session that is being closed, with which the engine crashes.
        self._at = 0

    def serve(self) -> None:
        """Answer until the server is gone."""
        while True:
            try:
                request = receive_request(self._connection)
            except (EOFError, OSError):
                return
            self._connection.send_bytes(encode(self._answer(request)))
            if self._parts is not None and self._ahead is None:
                # The next part is made while the server still looks at this one.
                self._ahead = self._made()

    def interrupt(self, request: int) -> None:
        """Stop the statement that runs, if it is of the so manieth request; for another thread."""
        with self._interrupting:
            session = self.session_of() if self._at == request else None
            if session is not None:
                session.interrupt()

    def session_of(self) -> DriverSession | None:
        """The session that statements of this channel run in."""
        return self._file.writer if self._writes else self._session

    def _answer(self, request: Request) -> Done | Failed:
        try:
            return Done(msgspec.Raw(encode(self._handled(request))))
        except KgserveError as error:
            self._forget()
            errors = error.errors if isinstance(error, InvalidInput) else ()
            return Failed(type(error).__name__, str(error), [*errors])
        except MemoryError:
            self._forget()
            return Failed(StorageFull.__name__, OUT_OF_MEMORY_MESSAGE)
        except Doubtful:
            self._forget()
            return Failed(Doubtful.__name__, "")
        except Exception as error:  # noqa: BLE001  # the server has to hear of it, whatever it is
            self._forget()
            return Failed(EngineFailed.__name__, f"the engine failed: {type(error).__name__}: {error}")

    def _handled(self, request: Request) -> Any:
        self._requests += 1
        try:
            self._at = self._requests
            return self._handlers[type(request)](self, request)
        finally:
            with self._interrupting:
                self._at = 0

    def _using(self) -> DriverSession:
        session = self.session_of()
        if session is None:
            session = self._session = self._file.session()
        return session

    def _forget(self) -> None:
        """After an error inside a transaction nobody knows what state a session is in."""
        self._parts = self._ahead = None
        self._lasting.pop_all()
        if not self._writes and self._session is not None:
            self._session.close()
            self._session = None

    def _build(self, asked: Build) -> None:
        self._file.build(asked)

    def _make(self, asked: Make) -> Opened:
        return self._file.make(asked)

    def _open(self, asked: Open) -> Opened:
        return self._file.open(asked)

    def _change(self, asked: Change) -> None:
        apply(self._using(), asked.net, asked.state and asked.state.state)

    def _query(self, asked: Query) -> list[list[Any]]:
        session = self._using()
        session.limit(asked.seconds)
        return session.rows(asked.text, asked.parameters)  # pyright: ignore[reportArgumentType]

    def _dump(self, asked: Dump) -> State:
        return State.of(copying.dump(self._using(), Path(asked.folder)))

    def _read(self, asked: Read) -> Head:
        session = self._using()
        session.limit(asked.seconds)
        how = statement.writing if asked.writes else statement.reading
        cursor = self._lasting.enter_context(how(session, asked.statement))
        most = cursor.total if asked.most is None else asked.most
        self._parts, self._ahead = _parts(cursor, most), None
        return Head(cursor.columns, cursor.types, cursor.total, self._next(None))

    def _next(self, _asked: Next | None) -> RowsPart:
        if self._parts is None:
            return RowsPart(b"", 0, more=False)
        made, self._ahead = self._ahead or self._made(), None
        if isinstance(made, Exception):
            raise made
        if not made.more:
            self._leave(None)
        return made

    def _made(self) -> RowsPart | Exception:
        assert self._parts is not None  # noqa: S101
        try:
            return next(self._parts)
        except Exception as error:  # noqa: BLE001  # it is raised when the server asks for the part
            return error

    def _leave(self, _asked: Leave | None) -> None:
        self._parts = self._ahead = None
        self._lasting.close()

    def _try(self, _asked: Try) -> None:
        self._before = self._file.session()
        self._before.run("BEGIN TRANSACTION READ ONLY")

    def _compare(self, asked: Compare) -> Any:
        assert self._before is not None  # noqa: S101
        session = self._using()
        session.limit(0)
        return Comparison(session, self._before, asked).difference()

    def _tried(self, _asked: Tried) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.run("COMMIT")
            before.close()

    def _close(self, _asked: Close) -> None:
        self._file.close()

    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {
        Build: _build,
        Make: _make,
        Open: _open,
        Change: _change,
        Query: _query,
        Read: _read,
        Next: _next,
        Leave: _leave,
        Dump: _dump,
        Try: _try,
        Compare: _compare,
        Tried: _tried,
        Close: _close,
    }


def serve(control: Connection, channels: list[Connection]) -> None:
    """Serve requests until the server is gone, then end this process, whatever it is at."""
    file = EngineFile()
    served = [ChannelServer(connection, file, writes=number == 0) for number, connection in enumerate(channels)]
    for channel in served:
        threading.Thread(target=channel.serve, daemon=True).start()
    try:
        while True:
            request = receive_request(control)
            if isinstance(request, Interrupt):
                served[request.channel].interrupt(request.request)
            else:
                control.send_bytes(b"")
    except (EOFError, OSError):
        os._exit(0)


def _parts(cursor: StatementResult, most: int) -> Generator[RowsPart]:
    """At most so many rows, in parts of 1 MiB at most: whoever takes them keeps no more at once, however long a row is.

    The first rows are few, so that they come soon.
    """
    most, sent, at_once = min(most, cursor.total), 0, FIRST_PART_ROWS
    while True:
        rows = cursor.take(min(at_once, most - sent))
        text = _json_lines(rows)
        sent += len(rows)
        more = bool(rows) and sent < most
        for start in range(0, max(len(text), 1), RESULT_PART_BYTES):
            piece = text[start : start + RESULT_PART_BYTES]
            yield RowsPart(piece, piece.count(b"\n"), more or start + RESULT_PART_BYTES < len(text))
        if not more:
            return
        at_once = max(1, min(RESULT_PART_MAX_ROWS, len(rows) * RESULT_PART_BYTES // max(len(text), 1)))


def _bound_memory(beside: int) -> None:
    """Have this process take no more than so many bytes beside what its file has reserved by now; 0 sets no bound."""
    if not beside:
        return
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (taken + beside, resource.RLIM_INFINITY))
    except (OSError, ValueError) as error:
        raise Unavailable(f"the memory of the engine's process cannot be bounded: {error}") from error
