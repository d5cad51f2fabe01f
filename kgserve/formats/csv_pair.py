"""CSV as kgserve writes it: a file of nodes and one of edges, RFC 4180, UTF-8, attributes and tags as JSON text."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from io import TextIOWrapper
from typing import Any, BinaryIO

from kgserve.errors import InvalidInput
from kgserve.formats.lines import (
    EDGE_COLUMNS,
    EDGE_FIELDS,
    EDGES,
    MAX_LINE_BYTES,
    NODE_COLUMNS,
    NODES,
    BadCell,
    Lines,
    Part,
    Record,
    Wrong,
    json_text,
    kind_of,
    record,
    tags_text,
    values_of,
)
from kgserve.model import fields
from kgserve.model.fields import NODE, Field

Sink = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens the file of nodes or of edges, one after the other."""

ENCODING = "utf-8"
_MAX_ROW = 16 << 20
# The module's limit is for the whole process, and 128 KiB; a content may have 1 MiB.
csv.field_size_limit(MAX_LINE_BYTES)


def write_csv(blocks: Iterable[bytes], sink: Sink) -> int:
    """Write an export; the number of its lines."""
    lines = Lines(blocks)
    with sink(NODES) as file:
        _write(file, NODE_COLUMNS, (_cells(NODES, values_of(node)) for batch in lines.nodes() for node in batch))
    with sink(EDGES) as file:
        _write(file, EDGE_COLUMNS, (_cells(EDGES, values_of(edge)) for batch in lines.edges() for edge in batch))
    return lines.count


def _write(file: BinaryIO, header: tuple[str, ...], rows: Iterable[list[Any]]) -> None:
    text = TextIOWrapper(file, encoding=ENCODING, newline="", write_through=False)
    try:
        # With both characters in the line's end, texts that hold one of them are quoted.
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(header)
        writer.writerows(rows)
    finally:
        text.detach()


def _cells(kind: str, values: tuple[Any, ...]) -> list[Any]:
    cells = list(values)
    for place, text_of in _TEXTS[kind]:
        cells[place] = text_of(cells[place])
    return cells


def _texts(known: tuple[Field, ...]) -> list[tuple[int, Callable[[Any], str]]]:
    """Where a cell is not the value itself, and what it is then. The writer's own numbers come back as they were."""
    special = {"attributes": json_text, "tags": tags_text}
    return [(place, special[field.name]) for place, field in enumerate(known) if field.name in special]


_TEXTS = {NODES: _texts(NODE.exchanged), EDGES: _texts(EDGE_FIELDS)}
_TYPES = {field.wire: field.type for field in (*NODE.exchanged, *EDGE_FIELDS)}


class Table:
    """A CSV file being read: its header, then its rows with their numbers, as a spreadsheet counts them."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        stack: ExitStack,
        *,
        delimiter: str = ",",
        quote: str = '"',
        encoding: str = ENCODING,
    ) -> None:
        """Read the header; ``stack`` lets go of the file. Raises InvalidInput when there is no header."""
        self.name = name
        # Bytes that are none of the encoding become halves of surrogate pairs: their row is refused, not the file.
        self._encoding = encoding
        codec = "utf-8-sig" if encoding.lower().replace("_", "-") in {"utf-8", "utf8"} else encoding
        self._text = TextIOWrapper(file, encoding=codec, errors="surrogateescape", newline="")
        stack.callback(self._text.detach)
        self._taken = 0
        self._number = 1
        self._rows = csv.reader(self._lines(), delimiter=delimiter, quotechar=quote, strict=True)
        try:
            self.header = next(self._rows, [])
        except csv.Error as error:
            raise InvalidInput(f"{name}: the header cannot be read as CSV: {error}") from None
        if not any(self.header):
            raise InvalidInput(f"{name}: has no header; the first row must name the columns")

    def rows(self) -> Iterator[tuple[int, dict[str, str] | str]]:
        """Number and cells of each row, or what is wrong with it; rows without anything are passed over."""
        width = len(self.header)
        while True:
            self._number = number = self._number + 1
            self._taken = 0
            try:
                cells = next(self._rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, f"is no row of CSV: {error}"
                continue
            if len(cells) == width:
                yield number, dict(zip(self.header, cells, strict=True))
            elif cells:
                yield number, f"has {len(cells)} cells where the header has {width}"

    def _lines(self) -> Iterator[str]:
        """The file's lines. One that has no end, or a row of them, would fill the memory."""
        while line := self._line():
            self._taken += len(line)
            if self._taken > _MAX_ROW:
                raise InvalidInput(f"{self.name} row {self._number}: is longer than {_MAX_ROW:,} characters")
            yield line

    def _line(self) -> str:
        try:
            return self._text.readline(_MAX_ROW + 1)
        except UnicodeError as error:
            place = f"{self.name} row {self._number}"
            raise InvalidInput(f"{place}: is no text in {self._encoding}: {error}") from None


class CsvTable:
    """A CSV file that `write_csv` wrote, or one with some of its columns. Raises InvalidInput for other columns."""

    def __init__(self, file: BinaryIO, name: str, stack: ExitStack) -> None:
        self._table = Table(file, name, stack)
        self.kind = kind_of(name, self._table.header)

    def part(self) -> Part:
        """Its rows, counted as a spreadsheet does: the header is row 1."""
        return Part(self._table.name, "row", _records(self._table, self.kind))


def _records(table: Table, kind: str) -> Iterator[Record]:
    for number, cells in table.rows():
        if isinstance(cells, str):
            yield Wrong(number, cells)
            continue
        try:
            values: dict[str, Any] = {
                column: _value(column, text) for column, text in cells.items() if text or column == "content"
            }
        except BadCell as error:
            yield Wrong(number, str(error))
        else:
            yield record(kind, number, values)


def _value(column: str, text: str) -> Any:
    match _TYPES[column]:
        case fields.WHOLE:
            return whole_number(column, text)
        case fields.REAL:
            return real_number(column, text)
        case _:
            return text


def whole_number(column: str, text: str) -> int:
    """An integer. Raises BadCell."""
    try:
        return int(text)
    except ValueError:
        raise BadCell(f"{column} is {text[:80]!r}, which is no integer") from None


def real_number(column: str, text: str) -> float:
    """A number that JSON can hold. Raises BadCell."""
    try:
        value = float(text)
    except ValueError:
        raise BadCell(f"{column} is {text[:80]!r}, which is no number") from None
    if value - value != 0:
        raise BadCell(f"{column} is {text[:80]!r}, which is no finite number")
    return value
