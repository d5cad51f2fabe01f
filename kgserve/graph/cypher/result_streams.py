"""Results of reading statements as text: JSON, NDJSON or CSV."""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import IO, Any, Literal, NamedTuple

import msgspec

from kgserve.errors import InvalidInput, TimedOut
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import (
    DEFAULT_RESULT_ROWS,
    MAX_RESULT_BYTES,
    ResultCursor,
    StatementCancellation,
    cap_statement_time_limit,
    first_row_too_large_error,
)
from kgserve.graph.cypher.point_lookup import PathCountNeedsEngine
from kgserve.graph.cypher.statement_execution import (
    StatementRouter,
    execute_read_statement,
    get_remembered_statement_route,
    start_engine_read_statement,
)
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import translate_os_error
from kgserve.platform.nonblocking_reads import WouldBlock

MAX_RESULT_MEMORY_BYTES = 4 << 20
MAX_RESULT_STREAM_BYTES = 1 << 30
RESULT_BLOCK_BYTES = 256 << 10
_CSV_BATCH_ROWS = 100

ResultTextFormat = Literal["json", "ndjson", "csv"]

_encode = msgspec.json.Encoder().encode
_EMPTY_ROWS_JSON = b'"rows":[]'


class CypherResultTextStream:
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


def stream_statement_result(
    graph: StoreHandle, request: CypherRequest, form: ResultTextFormat, control: StatementCancellation | None = None
) -> CypherResultTextStream:
    """Return all rows of a reading statement, or ``max_rows`` of them, as at most 1 GiB of text.

    JSON is one `CypherAnswer`, of 1,000 rows by default and at most 64 MiB. NDJSON begins with a line of columns and
    types and ends with one that counts the rows and says whether more exist. CSV has a header line, then rows. Raises
    what `run` raises.
    """
    if request.mode != "read":
        raise InvalidInput("mode: only reading statements can be streamed; request application/json")
    control = control or StatementCancellation()
    most = DEFAULT_RESULT_ROWS if form == "json" and request.max_rows is None else request.max_rows
    return _write_stream(
        lambda write: execute_read_statement(graph, request, most, control, write),
        form,
        cap_statement_time_limit(graph, request),
        control,
        time.perf_counter(),
    )


def _write_stream(
    read: Callable[[Callable[[ResultCursor], None]], None],
    form: ResultTextFormat,
    seconds: float,
    control: StatementCancellation,
    started: float,
) -> CypherResultTextStream:
    """Return the text that ``read`` writes; it calls its argument for each attempt to read the result."""
    file = tempfile.SpooledTemporaryFile(MAX_RESULT_MEMORY_BYTES)  # noqa: SIM115 - closed by the reader

    def write(cursor: ResultCursor) -> None:
        file.seek(0)
        file.truncate()
        # The time limit applies to JSON, which is returned at once; streams may take longer.
        until = time.perf_counter() + seconds - cursor.seconds if form == "json" else None
        _write_result(file, cursor, form, started, until, control)

    try:
        read(write)
    except OSError as error:
        file.close()
        raise translate_os_error(error, "keeping the rows of a statement") from error
    except BaseException:
        file.close()
        raise
    return CypherResultTextStream(file)


class StartedEngineReadStatement:
    """Reading statement with a known text that the engine has been sent. `finish` must be called."""

    def __init__(self, graph: StoreHandle, request: CypherRequest, control: StatementCancellation) -> None:
        """Send a statement to the engine of a store without blocking. Raises WouldBlock."""
        self._started = time.perf_counter()
        self._control = control
        self._seconds = cap_statement_time_limit(graph, request)
        self._router = StatementRouter(request)
        most = DEFAULT_RESULT_ROWS if request.max_rows is None else request.max_rows
        self._read = start_engine_read_statement(graph.nonblocking_handle(), self._router, most, control)
        self.descriptor = self._read.descriptor
        """File descriptor that is readable once the engine has answered."""

    def try_finish(self) -> bytes | None:
        """Return the JSON of `stream_statement_result`; None if `finish` must wait for more. Raises as it does."""
        if not self._read.try_open():
            return None
        with closing(self.finish()) as text:
            return b"".join(text)

    def finish(self) -> CypherResultTextStream:
        """Return the result of `stream_statement_result`. Blocks."""
        return _write_stream(
            lambda write: self._read.use(self._router.named(write)),
            "json",
            self._seconds,
            self._control,
            self._started,
        )


def try_answer_known_point_lookup(graph: StoreHandle, request: CypherRequest) -> bytes | None:
    """Return the JSON of `stream_statement_result` without blocking; None if it is no known lookup or would block."""
    if get_remembered_statement_route(request) != "lookup":
        return None
    with (
        suppress(WouldBlock, PathCountNeedsEngine),
        closing(stream_statement_result(graph.nonblocking_handle(), request, "json")) as text,
    ):
        return b"".join(text)
    return None


def _write_result(
    file: IO[bytes],
    cursor: ResultCursor,
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
        raise first_row_too_large_error()
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


def _json_pieces(cursor: ResultCursor) -> Iterator[_TextChunk]:
    # No row of JSON holds a line break.
    return (piece._replace(text=piece.text.replace(b"\n", b",")) for piece in _ndjson_pieces(cursor))


def _json_head(cursor: ResultCursor) -> bytes:
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


def _ndjson_head(cursor: ResultCursor) -> bytes:
    return _encode({"columns": cursor.columns, "types": cursor.types}) + b"\n"


def _ndjson_pieces(cursor: ResultCursor) -> Iterator[_TextChunk]:
    return (_TextChunk(part.lines, part.count, part.lines.rfind(b"\n") + 1) for part in cursor.parts())


def _ndjson_tail(count: int, truncated: bool, took_ms: float) -> bytes:
    return _encode({"row_count": count, "truncated": truncated, "took_ms": took_ms}) + b"\n"


def _csv_pieces(cursor: ResultCursor) -> Iterator[_TextChunk]:
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
    head: Callable[[ResultCursor], bytes]
    pieces: Callable[[ResultCursor], Iterator[_TextChunk]]
    tail: Callable[[int, bool, float], bytes]
    most_bytes: int = MAX_RESULT_STREAM_BYTES
    surplus: int = 0
    """Bytes after the last row that only separate rows."""


_RESULT_FORMATS: dict[ResultTextFormat, _TextFormat] = {
    "json": _TextFormat(_json_head, _json_pieces, _json_tail, MAX_RESULT_BYTES, len(",")),
    "ndjson": _TextFormat(_ndjson_head, _ndjson_pieces, _ndjson_tail),
    "csv": _TextFormat(lambda cursor: _encode_csv([cursor.columns]), _csv_pieces, lambda *_: b""),
}
