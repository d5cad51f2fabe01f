"""Cypher statements that read: rows as an answer, or as a text stream."""

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

from kgserve.cypher import completion
from kgserve.cypher.code_fences import blank_code_fences
from kgserve.cypher.guard import GuardedStatement, guard_statement
from kgserve.errors import InvalidInput, TimedOut, TooLarge
from kgserve.graph.answers import CypherAnswer, CypherVocabulary
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import StoreHandle, StoreHandles
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import translate_os_error
from kgserve.projections.cypher_engine.engine.engine import EngineSession, StatementCursor
from kgserve.projections.cypher_engine.engine.process import ProcessDied
from kgserve.storage.model.fields import EDGE, NODE, ColumnSet, field_names_of

DEFAULT_RESULT_ROWS = 1000
MAX_RESULT_BYTES = 64 << 20

_Answer = TypeVar("_Answer")
_EXTRA_PROPERTIES = frozenset(field_names_of(NODE.extras + EDGE.extras))
_MEMORY_PROPERTIES = frozenset(field_names_of(NODE.memory + EDGE.memory))
"""Properties whose columns a store's engine file may not have yet."""


class StatementCancellation:
    """Cancellation of a statement from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: EngineSession | None = None
        self.wanted = False

    def interrupt(self) -> None:
        """Cancel the statement. The engine ignores this while it plans, so repeat it until the statement has ended."""
        with self._lock:
            self.wanted = True
            if self._session is not None:
                self._session.interrupt()

    @contextmanager
    def over(self, session: EngineSession) -> Generator[None]:
        """Allow cancellation of the statement of a session within a block. Raises TimedOut if already cancelled."""
        with self._lock:
            self.check()
            self._session = session
        try:
            yield
        finally:
            with self._lock:
                self._session = None

    def check(self) -> None:
        """Raise TimedOut if the statement was cancelled."""
        if self.wanted:
            raise TimedOut("the statement was interrupted")


@contextmanager
def open_result(
    graph: StoreHandle, statement: GuardedStatement, seconds: float, most: int | None, control: StatementCancellation
) -> Generator[StatementCursor]:
    """Yield the open result of a reading statement, with at most ``most`` rows.

    Columns of optional fields are created when the statement names them.
    """
    with (
        graph.lease() as store,
        store.engine.reading(seconds, width=required_columns(statement)) as session,
        control.over(session),
        session.reading(statement, most) as cursor,
    ):
        yield cursor


def required_columns(statement: GuardedStatement) -> ColumnSet:
    """Return the columns that a statement uses.

    Names of memory columns count only as properties, because they are common.
    """
    if statement.names_links:
        return ColumnSet.LINKS
    if statement.properties & _MEMORY_PROPERTIES:
        return ColumnSet.MEMORY
    return ColumnSet.EXTRAS if statement.words & _EXTRA_PROPERTIES else ColumnSet.PLAIN


def retry_after_crash(work: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``work``; retry once if another statement may have crashed the engine process."""
    try:
        return work()
    except ProcessDied as error:
        if error.alone:
            raise
        return work()


def time_limit_seconds(graph: StoreHandle, request: CypherRequest) -> float:
    """Return the time limit of a statement: the requested one, at most the server's."""
    longest = graph.graphs.settings.query_timeout
    return longest if request.timeout_ms is None else min(request.timeout_ms / 1000, longest)


def collect_answer(cursor: StatementCursor) -> CypherAnswer:
    """Return all rows, or as many as fit into an answer."""
    rows: list[list[Any]] = []
    total = 0
    for line in cursor.lines():
        total += len(line)
        if total >= MAX_RESULT_BYTES and not rows:
            raise first_row_too_large()
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


def first_row_too_large() -> TooLarge:
    """Return the error for an answer whose first row exceeds the limit."""
    return TooLarge(f"the first row of the answer exceeds {MAX_RESULT_BYTES >> 20} MiB; return less per row")


MAX_RESULT_MEMORY_BYTES = 4 << 20
MAX_RESULT_STREAM_BYTES = 1 << 30
RESULT_BLOCK_BYTES = 256 << 10
_CSV_BATCH_ROWS = 100

ResultTextFormat = Literal["json", "ndjson", "csv"]

_encode = msgspec.json.Encoder().encode
_EMPTY_ROWS_JSON = b'"rows":[]'


class ResultTextStream:
    """Completed result text, to be read in blocks and then closed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(RESULT_BLOCK_BYTES):
            yield block

    def close(self) -> None:
        """Release the text."""
        self._file.close()


def stream_statement(
    graph: StoreHandle, request: CypherRequest, form: ResultTextFormat, control: StatementCancellation | None = None
) -> ResultTextStream:
    """Return all rows of a reading statement, or ``max_rows`` of them, as at most 1 GiB of text.

    JSON is one `CypherAnswer`, of 1,000 rows by default and at most 64 MiB. NDJSON begins with a line of columns and
    types and ends with one that counts the rows and says whether more exist. CSV has a header line, then rows. Raises
    what `run` raises.
    """
    if request.mode != "read":
        raise InvalidInput("mode: only reading statements can be streamed; request application/json")
    started = time.perf_counter()
    control = control or StatementCancellation()
    statement = guard_statement(blank_code_fences(request.query), request.params, writable=False)
    file = tempfile.SpooledTemporaryFile(MAX_RESULT_MEMORY_BYTES)  # noqa: SIM115 - closed by the reader

    def written() -> None:
        file.seek(0)
        file.truncate()
        most = DEFAULT_RESULT_ROWS if form == "json" and request.max_rows is None else request.max_rows
        seconds = time_limit_seconds(graph, request)
        with open_result(graph, statement, seconds, most, control) as cursor:
            # The time limit applies to JSON, which is returned at once; streams may take longer.
            until = time.perf_counter() + seconds - cursor.seconds if form == "json" else None
            _write_result(file, cursor, form, started, until, control)

    try:
        retry_after_crash(written)
    except OSError as error:
        file.close()
        raise translate_os_error(error, "keeping the rows of a statement") from error
    except BaseException:
        file.close()
        raise
    return ResultTextStream(file)


def _write_result(
    file: IO[bytes],
    cursor: StatementCursor,
    form: ResultTextFormat,
    started: float,
    until: float | None,
    control: StatementCancellation,
) -> None:
    how = _RESULT_FORMATS[form]
    file.write(how.head(cursor))
    count, end = 0, file.tell()
    for piece in how.pieces(cursor):
        control.check()
        if until is not None and time.perf_counter() > until:
            raise TimedOut("reading the rows exceeded the time limit; request fewer rows, or NDJSON")
        at = file.tell()
        file.write(piece.text)
        if piece.rows:
            count, end = count + piece.rows, at + piece.whole
        if file.tell() >= how.most_bytes:
            break
    if cursor.total and not count and form == "json" and file.tell() > end:
        raise first_row_too_large()
    # Remove the partial last row.
    file.seek(end - (how.surplus if count else 0))
    file.truncate()
    took = round((time.perf_counter() - started) * 1000, 3)
    file.write(how.tail(count, cursor.total > count, took))


class _TextChunk(NamedTuple):
    """Text of an answer, the number of rows that end in it, and the length of the part with whole rows."""

    text: bytes
    rows: int
    whole: int


def _json_pieces(cursor: StatementCursor) -> Iterator[_TextChunk]:
    # No row of JSON holds a line break.
    return (piece._replace(text=piece.text.replace(b"\n", b",")) for piece in _ndjson_pieces(cursor))


def _json_head(cursor: StatementCursor) -> bytes:
    return _envelope(cursor.columns, cursor.types, 0, 0.0, truncated=False)[0] + _EMPTY_ROWS_JSON[:-1]


def _json_tail(count: int, truncated: bool, took_ms: float) -> bytes:
    return b"]" + _envelope([], [], count, took_ms, truncated=truncated)[1]


def _envelope(
    columns: list[str], types: list[str], count: int, took_ms: float, *, truncated: bool
) -> tuple[bytes, bytes]:
    """Return the text before the rows of an answer, and after them; quotes within texts are escaped."""
    answer = CypherAnswer(columns=columns, types=types, rows=[], row_count=count, truncated=truncated, took_ms=took_ms)
    before, _, behind = _encode(answer).partition(_EMPTY_ROWS_JSON)
    return before, behind


def _ndjson_head(cursor: StatementCursor) -> bytes:
    return _encode({"columns": cursor.columns, "types": cursor.types}) + b"\n"


def _ndjson_pieces(cursor: StatementCursor) -> Iterator[_TextChunk]:
    return (_TextChunk(part.lines, part.count, part.lines.rfind(b"\n") + 1) for part in cursor.parts())


def _ndjson_tail(count: int, truncated: bool, took_ms: float) -> bytes:
    return _encode({"row_count": count, "truncated": truncated, "took_ms": took_ms}) + b"\n"


def _csv_pieces(cursor: StatementCursor) -> Iterator[_TextChunk]:
    lines = cursor.lines()
    while some := [*islice(lines, _CSV_BATCH_ROWS)]:
        text = _encode_csv([decode_json(line, list[Any]) for line in some])
        yield _TextChunk(text, len(some), len(text))


def _encode_csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([[_csv_cell(value) for value in row] for row in rows])
    return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    """Return lists, objects and booleans as JSON, null as an empty cell."""
    return _encode(value).decode() if isinstance(value, list | dict | bool) else value


class _TextFormat(NamedTuple):
    head: Callable[[StatementCursor], bytes]
    pieces: Callable[[StatementCursor], Iterator[_TextChunk]]
    tail: Callable[[int, bool, float], bytes]
    most_bytes: int = MAX_RESULT_STREAM_BYTES
    surplus: int = 0
    """Bytes after the last row that only separate rows."""


_RESULT_FORMATS: dict[ResultTextFormat, _TextFormat] = {
    "json": _TextFormat(_json_head, _json_pieces, _json_tail, MAX_RESULT_BYTES, len(",")),
    "ndjson": _TextFormat(_ndjson_head, _ndjson_pieces, _ndjson_tail),
    "csv": _TextFormat(lambda cursor: _encode_csv([cursor.columns]), _csv_pieces, lambda *_: b""),
}


def list_cypher_vocabulary(_graphs: StoreHandles) -> CypherVocabulary:
    """Return keywords, functions, procedures, and labels with their properties, for completion in editors.

    They are the same for every store; its types and relation types are in its `stats`.
    """
    return CypherVocabulary(
        keywords=[*completion.COMPLETION_KEYWORDS],
        functions=[*completion.COMPLETION_FUNCTIONS],
        procedures=[*completion.COMPLETION_PROCEDURES],
        labels=completion.PROPERTIES_BY_LABEL,
    )
