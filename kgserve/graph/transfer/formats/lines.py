"""The lines of the exchange format: what readers find in files of others, and what writers are made from.

Readers give lines and faults, each with its place in the file; the columns that CSV and Parquet share are one for each
field of the lines, in their order. Writers get the lines of an export as records, in order and in bounded batches.
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
from kgserve.graph.answers import ImportAnswer, LineError, MergedLine
from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.fields import (
    EDGE,
    LINK_STORE_FIELD,
    NODE,
    STRING_TYPE,
    EdgeExtrasLine,
    Field,
    NodeExtrasLine,
)

EXPORT_BLOCK_BYTES = 256 << 10
"""Bytes of lines that are sent at a time."""
MAX_LINE_BYTES = 8 << 20
MAX_LISTED_FAULTS = 100
"""Faults that are kept to be shown; all are counted."""
_MAX_BUFFERED_BYTES = 8 << 20

_encode = msgspec.json.Encoder().encode


class FoundLine(NamedTuple):
    """A line of the exchange format, without its end; ``number`` is where it comes from."""

    number: int
    line: bytes
    edge: bool


class Wrong(NamedTuple):
    """What cannot be taken, and why."""

    number: int
    message: str


Record = FoundLine | Wrong


class InputPart(NamedTuple):
    """One file, or one table of it: how it is called, what its numbers count (row, line), and what is in it."""

    name: str
    unit: str
    records: Iterator[Record]


def node(number: int, values: dict[str, Any]) -> Record:
    """A node's line; values that are None are left out."""
    return _record(number, {"kind": "node", **values}, edge=False)


def edge(number: int, values: dict[str, Any]) -> Record:
    """An edge's line; values that are None are left out."""
    return _record(number, {"kind": "edge", **values}, edge=True)


def _record(number: int, values: dict[str, Any], *, edge: bool) -> Record:
    try:
        line = _encode({name: value for name, value in values.items() if value is not None})
    except UnicodeEncodeError:
        return Wrong(number, "holds text that is not Unicode: half a surrogate pair, or bytes of another encoding")
    except (OverflowError, ValueError, TypeError, RecursionError) as error:
        return Wrong(number, f"cannot be written as JSON: {error}")
    if len(line) > MAX_LINE_BYTES:
        return Wrong(number, f"comes to {len(line):,} bytes; {MAX_LINE_BYTES:,} are taken at most")
    return FoundLine(number, line, edge)


def edges_last(records: Iterable[Record]) -> Iterator[Record]:
    """The same with all edges behind all nodes; edges wait in a temporary file when there are many."""
    numbers = array("q")
    with tempfile.SpooledTemporaryFile(max_size=_MAX_BUFFERED_BYTES) as waiting:
        for record in records:
            if isinstance(record, FoundLine) and record.edge:
                numbers.append(record.number)
                waiting.write(record.line + b"\n")
            else:
                yield record
        waiting.seek(0)
        for number in numbers:
            yield FoundLine(number, waiting.readline()[:-1], edge=True)


class Conversion:
    """Lines to send, made from the parts of an import; it remembers where in the user's files each comes from.

    Consecutive lines from consecutive rows take no memory, every break in that 24 bytes.
    """

    def __init__(self, parts: Iterable[InputPart]) -> None:
        self._parts = list(parts)
        self._first_lines = array("q")
        self._first_numbers = array("q")
        self._part_of = array("q")
        self._expected = (-1, -1)
        self.lines = 0
        self.records = 0
        self.fault_count = 0
        self.faults: list[LineError] = []

    def blocks(self) -> Iterator[bytes]:
        """The lines, in blocks of whole ones; to be taken once."""
        lines: list[bytes] = []
        size = 0
        for line in self._sent():
            lines.append(line)
            size += len(line) + 1
            if size >= EXPORT_BLOCK_BYTES:
                yield b"\n".join([*lines, b""])
                lines, size = [], 0
        if lines:
            yield b"\n".join([*lines, b""])

    def _sent(self) -> Iterator[bytes]:
        for index, part in enumerate(self._parts):
            for record in part.records:
                self.records += 1
                if isinstance(record, Wrong):
                    self._note(index, record)
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
        """What the places are numbers of: rows or lines."""
        return "row" if any(part.unit == "row" for part in self._parts) else "line"

    def place(self, line: int) -> tuple[str, int]:
        """Where the line with this number, counted from 1, comes from, in words such as ``people.csv row 17``."""
        at = bisect_right(self._first_lines, line) - 1
        if at < 0:
            return f"line {line}", line
        number = self._first_numbers[at] + line - self._first_lines[at]
        return self._where(self._part_of[at], number), number

    def answered(self, answer: ImportAnswer) -> ImportAnswer:
        """The server's answer in terms of the user's files: places are put before the messages, faults are added."""
        answer.errors = [*self.faults, *map(self._placed, answer.errors)][:MAX_LISTED_FAULTS]
        answer.error_count += self.fault_count
        answer.edges_skipped = [self._placed(skipped) for skipped in answer.edges_skipped]
        answer.merged = [self._placed_merge(merged) for merged in answer.merged]
        answer.lines = self.records
        answer.ok = answer.error_count == 0
        return answer

    def _placed(self, error: LineError) -> LineError:
        where, number = self.place(error.line)
        return LineError(line=number, message=f"{where}: {error.message}")

    def _placed_merge(self, merged: MergedLine) -> MergedLine:
        where, number = self.place(merged.line)
        earlier, earlier_number = self.place(merged.earlier_line)
        message = f"{where} repeats {earlier}: {merged.message}"
        return MergedLine(line=number, earlier_line=earlier_number, message=message)

    def _where(self, part: int, number: int) -> str:
        name, unit, _ = self._parts[part]
        return f"{name} {unit} {number}" if name else f"{unit} {number}"

    def _note(self, part: int, wrong: Wrong) -> None:
        self.fault_count += 1
        if len(self.faults) < MAX_LISTED_FAULTS:
            where = self._where(part, wrong.number)
            self.faults.append(LineError(line=wrong.number, message=f"{where}: {wrong.message}"))


def text_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1; a line that is too long comes cut."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, line.removeprefix(BOM_UTF8) if number == 1 else line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES + 1)


def read_lines(file: BinaryIO) -> Iterator[Record]:
    """Lines of the exchange format as they are; blank ones are passed over."""
    for number, line in text_lines(file):
        text = line.strip()
        if len(line) > MAX_LINE_BYTES:
            yield Wrong(number, f"is longer than {MAX_LINE_BYTES:,} bytes")
        elif text:
            yield FoundLine(number, text, edge=False)


KIND_NODES = "nodes"
KIND_EDGES = "edges"

NODE_FILE_COLUMNS = tuple(field.wire for field in NODE.exchanged)
EDGE_FILE_FIELDS = (*EDGE.exchanged, Field(LINK_STORE_FIELD, STRING_TYPE, LINK_STORE_FIELD))
"""The fields of an edge or a link in files."""
EDGE_FILE_COLUMNS = tuple(field.wire for field in EDGE_FILE_FIELDS)

_decode = json_decoder(Any).decode


class BadCell(ValueError):
    """A cell that cannot be what its column says."""


def kind_of(name: str, columns: list[str]) -> str:
    """Whether a file with these columns holds nodes or edges. Raises InvalidInput naming the column that is amiss."""
    for kind, known, needed in (
        (KIND_NODES, NODE_FILE_COLUMNS, ("id",)),
        (KIND_EDGES, EDGE_FILE_COLUMNS, EDGE_FILE_COLUMNS[:3]),
    ):
        if all(column in columns for column in needed):
            _check(name, columns, known)
            return kind
    raise InvalidInput(
        f"{name}: these columns are neither those of nodes (id, type, …) nor those of edges (from, to, relation_type, "
        "…); CSV of other columns is imported with --mapping"
    )


def record(kind: str, number: int, values: dict[str, Any]) -> Record:
    """A row whose values are what JSON has; ``attributes`` and ``tags`` may still be JSON text."""
    try:
        for name, wanted in (("attributes", dict), ("tags", list)):
            if isinstance(values.get(name), str):
                values[name] = parsed(name, values[name], wanted)
    except BadCell as error:
        return Wrong(number, str(error))
    return node(number, values) if kind == KIND_NODES else edge(number, values)


def parsed(name: str, text: str, wanted: type[dict[str, Any] | list[Any]]) -> Any:
    """The JSON in a cell. Raises BadCell."""
    try:
        value = _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadCell(f"{name} is not JSON: {error}") from None
    if not isinstance(value, wanted):
        raise BadCell(f"{name} is JSON, but no {'object' if wanted is dict else 'array'}")
    return value


def _check(name: str, columns: list[str], known: tuple[str, ...]) -> None:
    for column in columns:
        if column not in known:
            fault = FieldError(f"{name}: {column}", "is no column of the exchange format")
            ours = ", ".join(known)
            raise InvalidInput(f"{name}: column {column!r} is not one of {ours}; a --mapping takes others", (fault,))
        if columns.count(column) > 1:
            raise InvalidInput(f"{name}: column {column!r} is there twice")


def tags_text(tags: list[str] | None) -> str:
    """Tags in one cell: a JSON array; nothing when there are none."""
    return _encode(tags).decode() if tags else ""


EMPTY_OBJECT = msgspec.Raw(b"{}")
DECODE_BATCH_BYTES = 1 << 20
"""Lines are decoded in batches of about this size, however large the blocks are that they come in."""


class NodeRecord(NodeExtrasLine, tag="node", tag_field="kind", gc=False):
    """A node's line; ``attributes`` is JSON text."""

    id: str
    type: str
    content: str = ""
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None
    created_at: str | None = None
    updated_at: str | None = None


class _Linked(EdgeExtrasLine, kw_only=True):
    to_graph: str | None = None


class EdgeRecord(_Linked, tag="edge", tag_field="kind", gc=False):
    """An edge's line, or a link's; ``attributes`` is JSON text."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float = 1.0
    attributes: msgspec.Raw = EMPTY_OBJECT
    version: int | None = None


values_of = msgspec.structs.astuple
"""What a record says, in the order of the fields that are exchanged; None for what its line leaves out."""


def json_text(raw: msgspec.Raw) -> str:
    """JSON that is kept as it came, as text."""
    return bytes(raw).decode()


class _Settings(msgspec.Struct, tag="store", tag_field="kind"):
    """The settings of the store: JSON lines alone have them."""


class _Head(msgspec.Struct, tag="head", tag_field="kind"):
    """A version beside a node: as `_Settings`."""


_decode_lines = json_decoder(NodeRecord | EdgeRecord | _Settings | _Head).decode_lines


class Lines:
    """An export taken apart: first `nodes`, then `edges`, each once and to its end. Blocks may end anywhere."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._batches = (_decode_lines(text) for text in _whole(blocks))
        self._first_edges: list[EdgeRecord] = []
        self.count = 0

    def nodes(self) -> Iterator[list[NodeRecord]]:
        """Batches of nodes."""
        for batch in self._batches:
            self.count += len(batch)
            nodes = [record for record in batch if isinstance(record, NodeRecord)]
            if nodes:
                yield nodes
            self._first_edges = [record for record in batch if isinstance(record, EdgeRecord)]
            if self._first_edges:
                return

    def edges(self) -> Iterator[list[EdgeRecord]]:
        """Batches of edges, after the nodes."""
        if self._first_edges:
            yield self._first_edges
        for batch in self._batches:
            self.count += len(batch)
            yield cast("list[EdgeRecord]", batch)


def _whole(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes cut at ends of lines."""
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
