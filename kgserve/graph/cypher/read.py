"""Cypher statements that read: their rows as an answer, or as a stream of text."""

from __future__ import annotations

import csv
import io
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any, Literal, NamedTuple, TypeVar

import msgspec

from kgserve.cypher import offers
from kgserve.cypher.fences import blank_fences
from kgserve.cypher.guard import Statement, examine
from kgserve.errors import InvalidInput, TimedOut, TooLarge
from kgserve.graph.answers import CypherAnswer, CypherWords
from kgserve.graph.handle import Graph, Graphs
from kgserve.graph.requests import CypherRequest
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import storage_error
from kgserve.projections.cypher_engine.engine.engine import Cursor, Session
from kgserve.projections.cypher_engine.engine.process import ProcessDied
from kgserve.storage.model.fields import EDGE, NODE, ColumnSet, names

DEFAULT_RESULT_ROWS = 1000
MAX_RESULT_BYTES = 64 << 20

_Answer = TypeVar("_Answer")
_EXTRA_PROPERTIES = frozenset(names(NODE.extras + EDGE.extras))
_MEMORY_PROPERTIES = frozenset(names(NODE.memory + EDGE.memory))
"""Properties whose columns a store's engine file may not have yet."""


class Interruption:
    """Stops a statement from another thread, whatever it is at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.wanted = False

    def interrupt(self) -> None:
        """Stop it. The engine does not hear it while it plans, so call this again until the statement has ended."""
        with self._lock:
            self.wanted = True
            if self._session is not None:
                self._session.interrupt()

    @contextmanager
    def over(self, session: Session) -> Generator[None]:
        """While inside, the session's statement can be stopped. Raises TimedOut when it was asked for before."""
        with self._lock:
            self.check()
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None

    def check(self) -> None:
        """Raise TimedOut when it was asked for."""
        if self.wanted:
            raise TimedOut("the statement was interrupted")


@contextmanager
def reading(
    graph: Graph, statement: Statement, seconds: float, most: int | None, control: Interruption
) -> Generator[Cursor]:
    """The open result of a statement that reads, so many rows at most. Columns for extras are made when named."""
    with (
        graph.lease() as store,
        store.engine.reading(seconds, width=width_named(statement)) as session,
        control.over(session),
        session.reading(statement, most) as cursor,
    ):
        yield cursor


def width_named(statement: Statement) -> ColumnSet:
    """The columns that a statement names. What is called as one of a memory must be a property, for many things are."""
    if statement.names_links:
        return ColumnSet.LINKS
    if statement.properties & _MEMORY_PROPERTIES:
        return ColumnSet.MEMORY
    return ColumnSet.EXTRAS if statement.words & _EXTRA_PROPERTIES else ColumnSet.PLAIN


def once_more(work: Callable[[], _Answer]) -> _Answer:
    """What ``work`` answers; it reads again if somebody else's statement may have cost the engine its process."""
    try:
        return work()
    except ProcessDied as error:
        if error.alone:
            raise
        return work()


def seconds_of(graph: Graph, request: CypherRequest) -> float:
    """The time limit of a statement: the one asked for, but no more than the server's."""
    longest = graph.graphs.settings.query_timeout
    return longest if request.timeout_ms is None else min(request.timeout_ms / 1000, longest)


def answer_of(cursor: Cursor) -> CypherAnswer:
    """All rows, or as many as an answer may hold."""
    rows: list[list[Any]] = []
    total = 0
    for line in cursor.lines():
        total += len(line)
        if total >= MAX_RESULT_BYTES and not rows:
            raise too_large()
        if total >= MAX_RESULT_BYTES:
            break
        rows.append(decode_json(line, list[Any]))
    return CypherAnswer(
        columns=cursor.columns,
        types=cursor.types,
        rows=rows,
        row_count=len(rows),
        truncated=cursor.total > len(rows),
        took_ms=0.0,
    )


def too_large() -> TooLarge:
    """What is said of an answer whose very first row is too much."""
    return TooLarge(f"the first row of the answer takes more than {MAX_RESULT_BYTES >> 20} MiB; ask for less of it")


MAX_IN_MEMORY_BYTES = 4 << 20
MAX_STREAM_BYTES = 1 << 30
RESULT_BLOCK_BYTES = 256 << 10
_CSV_BATCH_ROWS = 100

Format = Literal["json", "ndjson", "csv"]

_encode = msgspec.json.Encoder().encode
_EMPTY_ROWS_JSON = b'"rows":[]'


class RowStream:
    """Finished text of so many bytes, to be read block by block and then closed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(RESULT_BLOCK_BYTES):
            yield block

    def close(self) -> None:
        """Let the text go."""
        self._file.close()


def stream(graph: Graph, request: CypherRequest, form: Format, control: Interruption | None = None) -> RowStream:
    """All rows of a statement that reads, or ``max_rows`` of them; at most 1 GiB of text.

    JSON is one `CypherAnswer`, of 1,000 rows unless more are asked for and of 64 MiB at most. NDJSON begins with a line
    of columns and types and ends with one that counts the rows and says whether there were more; CSV has a line of
    names and then only rows. Raises what `run` raises.
    """
    if request.mode != "read":
        raise InvalidInput("mode: only statements that read can be streamed; ask for application/json")
    started = time.perf_counter()
    control = control or Interruption()
    statement = examine(blank_fences(request.query), request.params, writable=False)
    file = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by whoever reads it

    def written() -> None:
        file.seek(0)
        file.truncate()
        most = DEFAULT_RESULT_ROWS if form == "json" and request.max_rows is None else request.max_rows
        seconds = seconds_of(graph, request)
        with reading(graph, statement, seconds, most, control) as cursor:
            # Who wants it all at once wants it within the time limit; a stream may be long.
            until = time.perf_counter() + seconds - cursor.seconds if form == "json" else None
            _write(file, cursor, form, started, until, control)

    try:
        once_more(written)
    except OSError as error:
        file.close()
        raise storage_error(error, "keeping the rows of a statement") from error
    except BaseException:
        file.close()
        raise
    return RowStream(file)


def _write(
    file: IO[bytes], cursor: Cursor, form: Format, started: float, until: float | None, control: Interruption
) -> None:
    how = _RESULT_FORMATS[form]
    file.write(how.head(cursor))
    count, end = 0, file.tell()
    for piece in how.pieces(cursor):
        control.check()
        if until is not None and time.perf_counter() > until:
            raise TimedOut("the rows of the query took longer than its time limit; ask for fewer, or for NDJSON")
        at = file.tell()
        file.write(piece.text)
        if piece.rows:
            count, end = count + piece.rows, at + piece.whole
        if file.tell() >= how.most_bytes:
            break
    if cursor.total and not count and form == "json" and file.tell() > end:
        raise too_large()
    # Of a row that is too much only a part has come.
    file.seek(end - (how.surplus if count else 0))
    file.truncate()
    took = round((time.perf_counter() - started) * 1000, 3)
    file.write(how.tail(count, cursor.total > count, took))


class _Piece(NamedTuple):
    """Text of an answer in which so many rows end, and what of it are whole rows."""

    text: bytes
    rows: int
    whole: int


def _json_pieces(cursor: Cursor) -> Iterator[_Piece]:
    # No row of JSON holds a line break.
    return (piece._replace(text=piece.text.replace(b"\n", b",")) for piece in _ndjson_pieces(cursor))


def _json_head(cursor: Cursor) -> bytes:
    return _envelope(cursor.columns, cursor.types, 0, 0.0, truncated=False)[0] + _EMPTY_ROWS_JSON[:-1]


def _json_tail(count: int, truncated: bool, took_ms: float) -> bytes:
    return b"]" + _envelope([], [], count, took_ms, truncated=truncated)[1]


def _envelope(
    columns: list[str], types: list[str], count: int, took_ms: float, *, truncated: bool
) -> tuple[bytes, bytes]:
    """What stands before the rows of an answer, and behind them: quotes within a text would have backslashes."""
    answer = CypherAnswer(columns=columns, types=types, rows=[], row_count=count, truncated=truncated, took_ms=took_ms)
    before, _, behind = _encode(answer).partition(_EMPTY_ROWS_JSON)
    return before, behind


def _ndjson_head(cursor: Cursor) -> bytes:
    return _encode({"columns": cursor.columns, "types": cursor.types}) + b"\n"


def _ndjson_pieces(cursor: Cursor) -> Iterator[_Piece]:
    return (_Piece(part.lines, part.count, part.lines.rfind(b"\n") + 1) for part in cursor.parts())


def _ndjson_tail(count: int, truncated: bool, took_ms: float) -> bytes:
    return _encode({"row_count": count, "truncated": truncated, "took_ms": took_ms}) + b"\n"


def _csv_pieces(cursor: Cursor) -> Iterator[_Piece]:
    lines = cursor.lines()
    while some := [*islice(lines, _CSV_BATCH_ROWS)]:
        text = _csv([decode_json(line, list[Any]) for line in some])
        yield _Piece(text, len(some), len(text))


def _csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Lists and objects as JSON, truth as JSON has it, null as nothing."""
    return _encode(value).decode() if isinstance(value, list | dict | bool) else value


class _Form(NamedTuple):
    head: Callable[[Cursor], bytes]
    pieces: Callable[[Cursor], Iterator[_Piece]]
    tail: Callable[[int, bool, float], bytes]
    most_bytes: int = MAX_STREAM_BYTES
    surplus: int = 0
    """Bytes at the end of the last row that only stand between rows."""


_RESULT_FORMATS: dict[Format, _Form] = {
    "json": _Form(_json_head, _json_pieces, _json_tail, MAX_RESULT_BYTES, len(",")),
    "ndjson": _Form(_ndjson_head, _ndjson_pieces, _ndjson_tail),
    "csv": _Form(lambda cursor: _csv([cursor.columns]), _csv_pieces, lambda *_: b""),
}


def cypher_words(_graphs: Graphs) -> CypherWords:
    """Keywords, functions, procedures, and labels with their properties: what the shell completes, for other editors.

    They are the same for every store; its types and relation types are in its `stats`.
    """
    return CypherWords(
        keywords=[*offers.COMPLETION_KEYWORDS],
        functions=[*offers.COMPLETION_FUNCTIONS],
        procedures=[*offers.COMPLETION_PROCEDURES],
        labels=offers.LABELS,
    )
