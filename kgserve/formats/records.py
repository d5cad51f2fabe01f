"""What readers find in a file: lines of the exchange format and faults, each with its place in that file."""

from __future__ import annotations

import tempfile
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from kgserve.model.answers import ImportAnswer, LineError

BLOCK_BYTES = 256 << 10
"""Bytes of lines that are sent at a time."""
MAX_LINE_BYTES = 8 << 20
MAX_FAULTS = 100
"""Faults that are kept to be shown; all are counted."""
_HELD_BYTES = 8 << 20

_encode = msgspec.json.Encoder().encode


class Found(NamedTuple):
    """A line of the exchange format, without its end; ``number`` is where it comes from."""

    number: int
    line: bytes
    edge: bool


class Wrong(NamedTuple):
    """What cannot be taken, and why."""

    number: int
    message: str


Record = Found | Wrong


class Part(NamedTuple):
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
    return Found(number, line, edge)


def edges_last(records: Iterable[Record]) -> Iterator[Record]:
    """The same with all edges behind all nodes; edges wait in a temporary file when there are many."""
    numbers = array("q")
    with tempfile.SpooledTemporaryFile(max_size=_HELD_BYTES) as waiting:
        for record in records:
            if isinstance(record, Found) and record.edge:
                numbers.append(record.number)
                waiting.write(record.line + b"\n")
            else:
                yield record
        waiting.seek(0)
        for number in numbers:
            yield Found(number, waiting.readline()[:-1], edge=True)


class Conversion:
    """Lines to send, made from the parts of an import; it remembers where in the user's files each comes from.

    Consecutive lines from consecutive rows take no memory, every break in that 24 bytes.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
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
            if size >= BLOCK_BYTES:
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
        answer.errors = [*self.faults, *map(self._placed, answer.errors)][:MAX_FAULTS]
        answer.error_count += self.fault_count
        answer.edges_skipped = [self._placed(skipped) for skipped in answer.edges_skipped]
        answer.lines = self.records
        answer.ok = answer.error_count == 0
        return answer

    def _placed(self, error: LineError) -> LineError:
        where, number = self.place(error.line)
        return LineError(line=number, message=f"{where}: {error.message}")

    def _where(self, part: int, number: int) -> str:
        name, unit, _ = self._parts[part]
        return f"{name} {unit} {number}" if name else f"{unit} {number}"

    def _note(self, part: int, wrong: Wrong) -> None:
        self.fault_count += 1
        if len(self.faults) < MAX_FAULTS:
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
            yield Found(number, text, edge=False)
