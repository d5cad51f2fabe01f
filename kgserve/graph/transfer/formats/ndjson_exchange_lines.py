"""Lines of the exchange format: the output of all readers, and the input of all writers.

Readers yield lines and faults, each with its position in the file. CSV and Parquet have one column for each field of
the lines, in the same order. Writers get the lines of an export as records, in order and in bounded batches.
"""

from __future__ import annotations

import tempfile
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.answers import DuplicateImportLine, ImportAnswer, ImportLineError
from kgserve.platform.codecs import json_decoder
from kgserve.platform.duplicate_json_keys import decode_json_with_unique_keys
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    LINK_STORE_FIELD,
    NODE,
    STRING_TYPE,
    EdgeExtrasExportLine,
    NodeExtrasExportLine,
    RowField,
)

EXPORT_BLOCK_BYTES = 256 << 10
"""Bytes of lines per block."""
MAX_LINE_BYTES = 8 << 20
MAX_LISTED_FAULTS = 100
"""Faults listed in an answer; all are counted."""
_MAX_BUFFERED_BYTES = 8 << 20

_encode = msgspec.json.Encoder().encode


class NdjsonExchangeLine(NamedTuple):
    """A line of the exchange format (NDJSON), without its line end; ``number`` is its position in the source."""

    number: int
    line: bytes
    edge: bool


class RejectedImportRow(NamedTuple):
    """A row that cannot be imported, and why."""

    number: int
    message: str


ImportRecord = NdjsonExchangeLine | RejectedImportRow


class ImportSourceTable(NamedTuple):
    """One file, or one of its tables: its name, the unit of its numbers (row, line), and its records."""

    name: str
    unit: str
    records: Iterator[ImportRecord]


def encode_node_ndjson_line(number: int, values: dict[str, Any]) -> ImportRecord:
    """Encode a node as a line of the exchange format (NDJSON); values that are None are left out."""
    return _record(number, {"kind": "node", **values}, edge=False)


def encode_edge_ndjson_line(number: int, values: dict[str, Any]) -> ImportRecord:
    """Encode an edge as a line of the exchange format (NDJSON); values that are None are left out."""
    return _record(number, {"kind": "edge", **values}, edge=True)


def _record(number: int, values: dict[str, Any], *, edge: bool) -> ImportRecord:
    try:
        line = _encode({name: value for name, value in values.items() if value is not None})
    except UnicodeEncodeError:
        return RejectedImportRow(
            number, "contains text that is not Unicode: a lone surrogate, or bytes of another encoding"
        )
    except (OverflowError, ValueError, TypeError, RecursionError) as error:
        return RejectedImportRow(number, f"cannot be written as JSON: {error}")
    if len(line) > MAX_LINE_BYTES:
        return RejectedImportRow(number, f"has {len(line):,} bytes; the limit is {MAX_LINE_BYTES:,}")
    return NdjsonExchangeLine(number, line, edge)


def order_nodes_before_edges(records: Iterable[ImportRecord]) -> Iterator[ImportRecord]:
    """Yield all nodes, then all edges, which are buffered in a temporary file if they are many."""
    numbers = array("q")
    with tempfile.SpooledTemporaryFile(max_size=_MAX_BUFFERED_BYTES) as waiting:
        for record in records:
            if isinstance(record, NdjsonExchangeLine) and record.edge:
                numbers.append(record.number)
                waiting.write(record.line + b"\n")
            else:
                yield record
        waiting.seek(0)
        for number in numbers:
            yield NdjsonExchangeLine(number, waiting.readline()[:-1], edge=True)


class ImportLinesWithSourceMap:
    """Lines made from the parts of an import, with a mapping back to the places in the user's files.

    Consecutive lines of consecutive rows take no memory; every gap takes 24 bytes.
    """

    def __init__(self, parts: Iterable[ImportSourceTable]) -> None:
        self._parts = list(parts)
        self._first_lines = array("q")
        self._first_numbers = array("q")
        self._part_of = array("q")
        self._expected = (-1, -1)
        self.lines = 0
        self.records = 0
        self.fault_count = 0
        self.faults: list[ImportLineError] = []

    def blocks(self) -> Iterator[bytes]:
        """Yield the lines in blocks of whole lines. Can be iterated only once."""
        lines: list[bytes] = []
        size = 0
        for line in self._output_lines():
            lines.append(line)
            size += len(line) + 1
            if size >= EXPORT_BLOCK_BYTES:
                yield b"\n".join([*lines, b""])
                lines, size = [], 0
        if lines:
            yield b"\n".join([*lines, b""])

    def _output_lines(self) -> Iterator[bytes]:
        for index, part in enumerate(self._parts):
            for record in part.records:
                self.records += 1
                if isinstance(record, RejectedImportRow):
                    self._add_fault(index, record)
                    continue
                self.lines += 1
                if self._expected != (index, record.number):
                    self._first_lines.append(self.lines)
                    self._first_numbers.append(record.number)
                    self._part_of.append(index)
                self._expected = (index, record.number + 1)
                yield record.line

    @property
    def unit(self) -> str:
        """The unit of the positions: row or line."""
        return "row" if any(part.unit == "row" for part in self._parts) else "line"

    def place(self, line: int) -> tuple[str, int]:
        """Return the source of a line, counted from 1, as text such as ``people.csv row 17``, and its number."""
        at = bisect_right(self._first_lines, line) - 1
        if at < 0:
            return f"line {line}", line
        number = self._first_numbers[at] + line - self._first_lines[at]
        return self._format_place(self._part_of[at], number), number

    def translate_answer(self, answer: ImportAnswer) -> ImportAnswer:
        """Return the server's answer in terms of the user's files: with places in the messages, and faults added."""
        answer.errors = [*self.faults, *map(self._with_place, answer.errors)][:MAX_LISTED_FAULTS]
        answer.error_count += self.fault_count
        answer.edges_skipped = [self._with_place(skipped) for skipped in answer.edges_skipped]
        answer.merged = [self._with_places(merged) for merged in answer.merged]
        answer.lines = self.records
        answer.ok = answer.error_count == 0
        return answer

    def _with_place(self, error: ImportLineError) -> ImportLineError:
        where, number = self.place(error.line)
        return ImportLineError(line=number, message=f"{where}: {error.message}")

    def _with_places(self, merged: DuplicateImportLine) -> DuplicateImportLine:
        where, number = self.place(merged.line)
        earlier, earlier_number = self.place(merged.earlier_line)
        message = f"{where} repeats {earlier}: {merged.message}"
        return DuplicateImportLine(line=number, earlier_line=earlier_number, message=message)

    def _format_place(self, part: int, number: int) -> str:
        name, unit, _ = self._parts[part]
        return f"{name} {unit} {number}" if name else f"{unit} {number}"

    def _add_fault(self, part: int, wrong: RejectedImportRow) -> None:
        self.fault_count += 1
        if len(self.faults) < MAX_LISTED_FAULTS:
            where = self._format_place(part, wrong.number)
            self.faults.append(ImportLineError(line=wrong.number, message=f"{where}: {wrong.message}"))


def read_numbered_text_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers from 1; a line that is too long is truncated."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, line.removeprefix(BOM_UTF8) if number == 1 else line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def read_ndjson_exchange_lines(file: BinaryIO) -> Iterator[ImportRecord]:
    """Yield the lines of a file in the exchange format; blank ones are skipped."""
    for number, line in read_numbered_text_lines(file):
        text = line.strip()
        if len(line) > MAX_LINE_BYTES:
            yield RejectedImportRow(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
        elif text:
            yield NdjsonExchangeLine(number, text, edge=False)


KIND_NODES = "nodes"
KIND_EDGES = "edges"

NODE_FILE_COLUMNS = tuple(field.wire for field in NODE.exchanged)
EDGE_FILE_FIELDS = (*EDGE.exchanged, RowField(LINK_STORE_FIELD, STRING_TYPE, LINK_STORE_FIELD))
"""Fields of an edge or a link in files."""
EDGE_FILE_COLUMNS = tuple(field.wire for field in EDGE_FILE_FIELDS)


class InvalidCell(ValueError):
    """A cell whose value does not fit its column."""


def detect_node_or_edge_table(name: str, columns: list[str]) -> str:
    """Return whether a file with these columns holds nodes or edges. Raises InvalidInput naming a faulty column."""
    for kind, known, needed in (
        (KIND_NODES, NODE_FILE_COLUMNS, ("id",)),
        (KIND_EDGES, EDGE_FILE_COLUMNS, EDGE_FILE_COLUMNS[:3]),
    ):
        if all(column in columns for column in needed):
            _check_columns(name, columns, known)
            return kind
    raise InvalidInput(
        f"{name}: these columns are neither those of nodes (id, type, …) nor those of edges (from, to, relation_type, "
        "…); to import CSV with other columns, use --mapping"
    )


def table_row_to_ndjson_line(kind: str, number: int, values: dict[str, Any]) -> ImportRecord:
    """Return the exchange format line of a table row; ``attributes`` and ``tags`` may still be JSON text."""
    try:
        for name, wanted in (("attributes", dict), ("tags", list)):
            if isinstance(values.get(name), str):
                values[name] = parse_json_cell(name, values[name], wanted)
    except InvalidCell as error:
        return RejectedImportRow(number, str(error))
    return encode_node_ndjson_line(number, values) if kind == KIND_NODES else encode_edge_ndjson_line(number, values)


def parse_json_cell(name: str, text: str, wanted: type[dict[str, Any] | list[Any]]) -> Any:
    """Return the JSON value of a cell. Raises InvalidCell."""
    try:
        value = decode_json_with_unique_keys(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidCell(f"{name} is not JSON: {error}") from None
    if not isinstance(value, wanted):
        raise InvalidCell(f"{name} must be a JSON {'object' if wanted is dict else 'array'}")
    return value


def _check_columns(name: str, columns: list[str], known: tuple[str, ...]) -> None:
    for column in columns:
        if column not in known:
            fault = FieldError(f"{name}: {column}", "is not a column of the exchange format")
            ours = ", ".join(known)
            raise InvalidInput(
                f"{name}: column {column!r} is not one of {ours}; for other columns use --mapping", (fault,)
            )
        if columns.count(column) > 1:
            raise InvalidInput(f"{name}: column {column!r} occurs twice")


def encode_tags_cell(tags: list[str] | None) -> str:
    """Return tags as the text of one cell: a JSON array; empty without tags."""
    return _encode(tags).decode() if tags else ""


EMPTY_OBJECT = msgspec.Raw(b"{}")
DECODE_BATCH_BYTES = 1 << 20
"""Approximate size of the batches in which lines are decoded, independent of the size of the blocks."""


class ExportedNodeLine(NodeExtrasExportLine, tag="node", tag_field="kind", gc=False):
    """A node's line in an export; ``attributes`` is raw JSON."""

    id: str
    type: str
    content: str = ""
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None
    created_at: str | None = None
    updated_at: str | None = None


class _EdgeOrLink(EdgeExtrasExportLine, kw_only=True):
    to_graph: str | None = None


class ExportedEdgeLine(_EdgeOrLink, tag="edge", tag_field="kind", gc=False):
    """An edge's or a cross-store link's line in an export; ``attributes`` is raw JSON."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float = 1.0
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None


record_values = msgspec.structs.astuple
"""Values of a record in the order of the exchanged fields; None for those that its line leaves out."""


def raw_json_to_text(raw: msgspec.Raw) -> str:
    """Return raw JSON as text."""
    return bytes(raw).decode()


class _SettingsLine(msgspec.Struct, tag="store", tag_field="kind"):
    """The settings of the store; only JSON lines have them."""


class _HeadLine(msgspec.Struct, tag="head", tag_field="kind"):
    """A version in conflict with a node; only JSON lines have them."""


_decode_lines = json_decoder(ExportedNodeLine | ExportedEdgeLine | _SettingsLine | _HeadLine).decode_lines


class ExportNodeEdgeSplitter:
    """An export split into `nodes`, then `edges`; each must be iterated once and completely.

    Blocks may end anywhere.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._batches = (_decode_lines(text) for text in _split_at_line_ends(blocks))
        self._first_edges: list[ExportedEdgeLine] = []
        self.count = 0

    def nodes(self) -> Iterator[list[ExportedNodeLine]]:
        """Yield batches of nodes."""
        for batch in self._batches:
            self.count += len(batch)
            nodes = [record for record in batch if isinstance(record, ExportedNodeLine)]
            if nodes:
                yield nodes
            self._first_edges = [record for record in batch if isinstance(record, ExportedEdgeLine)]
            if self._first_edges:
                return

    def edges(self) -> Iterator[list[ExportedEdgeLine]]:
        """Yield batches of edges, after the nodes."""
        if self._first_edges:
            yield self._first_edges
        for batch in self._batches:
            self.count += len(batch)
            yield cast("list[ExportedEdgeLine]", batch)


def _split_at_line_ends(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes, split at line ends."""
    rest = b""
    for block in blocks:
        for start in range(0, len(block), DECODE_BATCH_BYTES):
            piece = rest + block[start : start + DECODE_BATCH_BYTES]
            end = piece.rfind(b"\n") + 1
            if end:
                yield piece[:end]
            rest = piece[end:]
    if rest:
        yield rest
