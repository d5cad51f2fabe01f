"""Change sets that are too much for memory: what they come to, found on disk, a part of the keys at a time.

Every row goes to one of many files by its key, in the order of the journal. What is said last of a key is then known
from one file alone, and that fits into memory. The rows that are left are merged in the order of their sequences: the
engine finds rows by sequence faster when they lie in about that order.
"""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec
import xxhash

from kgserve.decoding import msgpack_decoder
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow, RowTuple

Row = TypeVar("Row", NodeRow, EdgeRow)
PARTS = 256
"""Files, all of which are open while they are merged; 100 GB of rows make parts of 400 MB."""
_LENGTH_BYTES = 4
_BUFFERED_BYTES = 64 << 20
_READ_BYTES = 1 << 16

_encode = msgspec.msgpack.Encoder().encode


class Spill(Generic[Row]):
    """Rows put and keys removed, in a folder of its own, which goes when it is closed."""

    def __init__(self, folder: Path, kind: type[Row]) -> None:
        folder.mkdir()
        self._folder = folder
        self._decode = msgpack_decoder(kind | bytes).decode
        self._decode_key = msgpack_decoder(str | EdgeKey).decode
        self._buffers = [bytearray() for _ in range(PARTS)]
        self._buffered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, row: Row) -> None:
        """The row of its key from now on."""
        self._write(_key(row), _encode(row))

    def put_tuples(self, rows: Iterable[RowTuple], width: int) -> None:
        """The same with rows as tuples, whose first ``width`` fields are the key."""
        for row in rows:
            self._write(row[0] if width == 1 else row[:width], _encode(row))

    def remove(self, key: str | EdgeKey) -> None:
        """No row has this key from now on."""
        self._write(key, _encode(_encode(key)))

    def rows(self) -> Iterator[Row]:
        """The rows that are left, by sequence. Only once, and nothing may be added afterwards."""
        self._flush()
        for part in range(PARTS):
            self._settle(self._path(part))
        return heapq.merge(*(self._read(self._path(part)) for part in range(PARTS)), key=_sequence)

    def _write(self, key: str | EdgeKey, record: bytes) -> None:
        buffer = self._buffers[xxhash.xxh3_64_intdigest(_encode(key)) % PARTS]
        buffer += len(record).to_bytes(_LENGTH_BYTES)
        buffer += record
        self._buffered += _LENGTH_BYTES + len(record)
        if self._buffered >= _BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        for part, buffer in enumerate(self._buffers):
            with self._path(part).open("ab") as file:
                file.write(buffer)
            buffer.clear()
        self._buffered = 0

    def _settle(self, path: Path) -> None:
        """Replace a part by the rows that are left of it, in the order of their sequences."""
        left: dict[Any, Row] = {}
        records = 0
        for record in self._read(path):
            records += 1
            if isinstance(record, bytes):
                left.pop(self._decode_key(record), None)
            else:
                left[_key(record)] = record
        rows = sorted(left.values(), key=_sequence)
        if len(rows) < records or any(one is not other for one, other in zip(rows, left.values(), strict=True)):
            with path.open("wb") as file:
                for row in rows:
                    encoded = _encode(row)
                    file.write(len(encoded).to_bytes(_LENGTH_BYTES) + encoded)

    def _read(self, path: Path) -> Iterator[Any]:
        with path.open("rb", buffering=_READ_BYTES) as file:
            while record := _next(file):
                yield self._decode(record)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}"


def _next(file: BinaryIO) -> bytes:
    return file.read(int.from_bytes(file.read(_LENGTH_BYTES)))


def _key(row: NodeRow | EdgeRow) -> str | EdgeKey:
    return row.id if isinstance(row, NodeRow) else row.key


def _sequence(row: NodeRow | EdgeRow) -> int:
    return row.sequence
