"""Streaming of JSON lines: lines into blocks of a request body, and blocks of an answer into lines."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

import anyio.to_thread
import msgspec
from typing_extensions import override

from kgserve.admin.store_admin_models import StoreSettingsExportLine
from kgserve.client.errors import Interrupted, Unintelligible, build_error_from_problem_document
from kgserve.errors import InvalidInput
from kgserve.graph.answers import ProblemDetails
from kgserve.graph.request_bodies import (
    ConflictingVersionNdjsonLine,
    EdgeInput,
    EdgeNdjsonLine,
    NodeInput,
    NodeNdjsonLine,
)
from kgserve.platform.codecs import convert_plain_value_to_type, json_decoder

T = TypeVar("T")

UPLOAD_BLOCK_BYTES = 256 << 10
"""Maximum size of an uploaded block in bytes."""

ImportLine = Mapping[str, Any] | NodeInput | EdgeInput | StoreSettingsExportLine
"""A line of an import: a mapping with ``kind``, or a Struct. The kind of inject's Structs is added automatically."""

ImportSource = str | os.PathLike[str] | bytes | Iterable[ImportLine | bytes] | AsyncIterable[ImportLine | bytes]
"""Source of an import: a file's path, lines, or pieces of text (bytes) that may end within a line."""

_encode = msgspec.json.Encoder().encode


class ImportUpload:
    """Body of an import. Reads its source once, while it is sent."""

    def __init__(self, source: ImportSource) -> None:
        self._source = source
        self.begun = False

    @property
    def is_repeatable(self) -> bool:
        """True if the source can be read again with the same result."""
        return isinstance(self._source, str | os.PathLike | bytes)

    def blocks(self) -> Generator[bytes]:
        """Yield the body in blocks. Raises InvalidInput for an invalid line."""
        if isinstance(self._source, AsyncIterable):
            raise InvalidInput("this client is not asynchronous; pass import_ a synchronous iterable")
        self.begun = True
        if isinstance(self._source, str | os.PathLike):
            with Path(self._source).open("rb") as file:
                yield from iter(partial(file.read, UPLOAD_BLOCK_BYTES), b"")
            return
        pending = _BlockBuffer()
        for item in (self._source,) if isinstance(self._source, bytes) else self._source:
            if pending.add(item):
                yield pending.take()
        if rest := pending.take():
            yield rest

    async def blocks_async(self) -> AsyncGenerator[bytes]:
        """Yield the body in blocks; sources that may block are read in a thread."""
        if not isinstance(self._source, AsyncIterable):
            blocks = self.blocks()
            while block := await anyio.to_thread.run_sync(next, blocks, b""):
                yield block
            return
        self.begun = True
        pending = _BlockBuffer()
        async for item in self._source:
            if pending.add(item):
                yield pending.take()
        if rest := pending.take():
            yield rest


class _BlockBuffer:
    """Buffer that collects lines into blocks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, item: ImportLine | bytes) -> bool:
        """Add a line. Return True when the buffer has the size of a block."""
        part = item if isinstance(item, bytes) else _line(item)
        self._parts.append(part)
        self._size += len(part)
        return self._size >= UPLOAD_BLOCK_BYTES

    def take(self) -> bytes:
        block = b"".join(self._parts)
        self._parts, self._size = [], 0
        return block


def encode_json_body(value: Any) -> bytes:
    """Encode a value as JSON. Raises InvalidInput when that is impossible."""
    try:
        body = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"the value cannot be encoded as JSON: {error}") from error
    # The encoder writes numbers that are not finite as null.
    if b"null" in body:
        for path, number in _find_non_finite_numbers(value, ""):
            raise InvalidInput(f"{path.lstrip('.') or 'the value'} is {number}, which is not a finite number")
    return body


def _find_non_finite_numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the paths of infinite numbers and NaN."""
    match value:
        case float():
            if not math.isfinite(value):
                yield path, value
        case msgspec.Struct():
            yield from _find_non_finite_numbers(msgspec.structs.asdict(value), path)
        case Mapping():
            for name, each in cast("Mapping[Any, Any]", value).items():
                yield from _find_non_finite_numbers(each, f"{path}.{name}")
        case list() | tuple():
            for number, each in enumerate(cast("Sequence[Any]", value)):
                yield from _find_non_finite_numbers(each, f"{path}[{number}]")
        case _:
            pass


def _line(item: ImportLine) -> bytes:
    match item:
        case NodeNdjsonLine() | EdgeNdjsonLine() | StoreSettingsExportLine() | Mapping():
            return encode_json_body(item) + b"\n"
        case NodeInput() | EdgeInput():
            kind = "node" if isinstance(item, NodeInput) else "edge"
            return encode_json_body({"kind": kind, **msgspec.to_builtins(item)}) + b"\n"
        case _:  # pyright: ignore[reportUnnecessaryComparison] - callers may not check types
            raise InvalidInput(f"a line of an import must be a mapping, a Struct or bytes, not {type(item).__name__}")


class StreamDecoder(Protocol[T]):
    """Incremental decoder of a streamed answer."""

    about: dict[str, Any]

    def feed(self, block: bytes) -> list[T]:
        """Return the items that ``block`` completes."""
        ...

    def finish(self) -> list[T]:
        """Return the remaining items. Raises Interrupted when the answer is incomplete."""
        ...


class JsonLinesDecoder(StreamDecoder[T]):
    """Decoder of JSON lines."""

    def __init__(self, decode: Callable[[bytes], list[T]]) -> None:
        """Initialize with ``decode``, which takes complete lines."""
        self.about: dict[str, Any] = {}
        self._decode = decode
        self._rest = b""

    @override
    def feed(self, block: bytes) -> list[T]:
        whole, newline, rest = block.rpartition(b"\n")
        if not newline:
            self._rest += block
            return []
        lines, self._rest = self._rest + whole, rest
        return self._decode_lines(lines)

    @override
    def finish(self) -> list[T]:
        lines, self._rest = self._rest, b""
        try:
            return self._decode_lines(lines) if lines else []
        except Unintelligible as error:
            raise Interrupted("the answer ended within a line") from error

    def _decode_lines(self, lines: bytes) -> list[T]:
        try:
            return self._decode(lines)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unintelligible(f"the answer is not from kgserve: {error}") from error


ExportLine = NodeNdjsonLine | EdgeNdjsonLine | ConflictingVersionNdjsonLine | StoreSettingsExportLine
_export_lines = json_decoder(ExportLine).decode_lines
_row_lines = json_decoder(list[Any] | dict[str, Any]).decode_lines


def make_export_decoder() -> StreamDecoder[ExportLine]:
    """Return a decoder of exported nodes and edges."""
    return JsonLinesDecoder[ExportLine](_export_lines)


class CypherRowDecoder(JsonLinesDecoder[list[Any]]):
    """Decoder of Cypher rows. ``about`` holds the columns and types once they have arrived, and counts at the end."""

    def __init__(self) -> None:
        super().__init__(self._rows)

    @override
    def finish(self) -> list[list[Any]]:
        rows = super().finish()
        if "row_count" not in self.about:
            raise Interrupted("the rows ended before their closing line")
        return rows

    def _rows(self, lines: bytes) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for line in _row_lines(lines):
            if isinstance(line, list):
                rows.append(line)
            elif "detail" in line:
                raise build_error_from_problem_document(convert_plain_value_to_type(line, ProblemDetails))
            else:
                self.about.update(line)
        return rows


SEQUENCE_RESPONSE_HEADER = "kgserve-sequence"
"""Response header of an export: the sequence of its snapshot."""


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Yield a temporary file that replaces ``path`` at the end; an error leaves the existing file unchanged."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
