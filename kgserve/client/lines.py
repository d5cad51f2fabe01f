"""The exchange format on its way: lines into blocks of a request's body, blocks of an answer's body into lines."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import anyio.to_thread
import msgspec
from typing_extensions import override

from kgserve.admin.api import StoreLine
from kgserve.client.failures import Interrupted, Unintelligible, of_problem
from kgserve.errors import InvalidInput
from kgserve.graph.answers import Problem
from kgserve.graph.requests import EdgeInput, EdgeLine, HeadLine, NodeInput, NodeLine
from kgserve.platform.codecs import convert, json_decoder

T = TypeVar("T")

UPLOAD_BLOCK_BYTES = 256 << 10
"""Bytes of a body that are sent at a time."""

Line = Mapping[str, Any] | NodeInput | EdgeInput | StoreLine
"""One line: a mapping with ``kind``, or a Struct. Structs of inject are given their kind here."""

Source = str | os.PathLike[str] | bytes | Iterable[Line | bytes] | AsyncIterable[Line | bytes]
"""What an import is made of: a file's path, lines, or text in pieces that may end anywhere (bytes)."""

_encode = msgspec.json.Encoder().encode


class Upload:
    """The body of an import, taken from its source once, as it is sent."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.begun = False

    @property
    def is_repeatable(self) -> bool:
        """Whether it comes out the same when it is taken once more."""
        return isinstance(self._source, str | os.PathLike | bytes)

    def blocks(self) -> Generator[bytes]:
        """The body, block by block. Raises InvalidInput for a line that is none."""
        if isinstance(self._source, AsyncIterable):
            raise InvalidInput("this client is not asynchronous; give import_ an iterable that can be looped over")
        self.begun = True
        if isinstance(self._source, str | os.PathLike):
            with Path(self._source).open("rb") as file:
                yield from iter(partial(file.read, UPLOAD_BLOCK_BYTES), b"")
            return
        pending = _Pending()
        for item in (self._source,) if isinstance(self._source, bytes) else self._source:
            if pending.add(item):
                yield pending.take()
        if rest := pending.take():
            yield rest

    async def blocks_async(self) -> AsyncGenerator[bytes]:
        """The same; sources that may block are read in a thread."""
        if not isinstance(self._source, AsyncIterable):
            blocks = self.blocks()
            while block := await anyio.to_thread.run_sync(next, blocks, b""):
                yield block
            return
        self.begun = True
        pending = _Pending()
        async for item in self._source:
            if pending.add(item):
                yield pending.take()
        if rest := pending.take():
            yield rest


class _Pending:
    """Lines that wait until they are a block."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, item: Line | bytes) -> bool:
        """Whether there is enough for a block."""
        part = item if isinstance(item, bytes) else _line(item)
        self._parts.append(part)
        self._size += len(part)
        return self._size >= UPLOAD_BLOCK_BYTES

    def take(self) -> bytes:
        block = b"".join(self._parts)
        self._parts, self._size = [], 0
        return block


def json_body(value: Any) -> bytes:
    """A value as JSON. Raises InvalidInput when it has no such form."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"this cannot be written as JSON: {error}") from error


def _line(item: Line) -> bytes:
    match item:
        case NodeLine() | EdgeLine() | StoreLine() | Mapping():
            return json_body(item) + b"\n"
        case NodeInput() | EdgeInput():
            kind = "node" if isinstance(item, NodeInput) else "edge"
            return json_body({"kind": kind, **msgspec.to_builtins(item)}) + b"\n"
        case _:  # pyright: ignore[reportUnnecessaryComparison] - callers may not check types
            raise InvalidInput(f"a line of an import is a mapping, a Struct or bytes, not {type(item).__name__}")


class Decoder(Protocol[T]):
    """Takes an answer's body as it comes and gives what is whole in it."""

    about: dict[str, Any]

    def feed(self, block: bytes) -> list[T]:
        """What has become whole."""
        ...

    def finish(self) -> list[T]:
        """The rest. Raises Interrupted when something is missing."""
        ...


class LineDecoder(Generic[T]):
    """Lines of JSON, each decoded by itself."""

    def __init__(self, decode: Callable[[bytes], list[T]]) -> None:
        """``decode`` takes whole lines."""
        self.about: dict[str, Any] = {}
        self._decode = decode
        self._rest = b""

    def feed(self, block: bytes) -> list[T]:
        """What has become whole."""
        whole, newline, rest = block.rpartition(b"\n")
        if not newline:
            self._rest += block
            return []
        lines, self._rest = self._rest + whole, rest
        return self._decoded(lines)

    def finish(self) -> list[T]:
        """The last line, when it has no end. Raises Interrupted when it is a part of one."""
        lines, self._rest = self._rest, b""
        try:
            return self._decoded(lines) if lines else []
        except Unintelligible as error:
            raise Interrupted("the answer broke off in the middle of a line") from error

    def _decoded(self, lines: bytes) -> list[T]:
        try:
            return self._decode(lines)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unintelligible(f"the answer is not one of kgserve's: {error}") from error


ExportLine = NodeLine | EdgeLine | HeadLine | StoreLine
_export_lines = json_decoder(ExportLine).decode_lines
_row_lines = json_decoder(list[Any] | dict[str, Any]).decode_lines


def export_decoder() -> Decoder[ExportLine]:
    """Nodes and edges of an export."""
    return LineDecoder[ExportLine](_export_lines)


class RowDecoder(LineDecoder[list[Any]]):
    """Rows of a Cypher answer; ``about`` has the columns and types once they came, and counts in the end."""

    def __init__(self) -> None:
        super().__init__(self._rows)

    @override
    def finish(self) -> list[list[Any]]:
        """The rest. Raises Interrupted when the closing line never came."""
        rows = super().finish()
        if "row_count" not in self.about:
            raise Interrupted("the rows broke off before their end")
        return rows

    def _rows(self, lines: bytes) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for line in _row_lines(lines):
            if isinstance(line, list):
                rows.append(line)
            elif "detail" in line:
                raise of_problem(convert(line, Problem))
            else:
                self.about.update(line)
        return rows


SEQUENCE_RESPONSE_HEADER = "kgserve-sequence"
"""Header of an export: the commit that it shows."""


@contextmanager
def complete(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A file beside ``path`` that takes its place in the end; whatever goes wrong inside leaves what was there."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
