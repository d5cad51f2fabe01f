"""The vectors of an index as one matrix: in memory while they are few, else in a file that is mapped.

The file has no name and ends with the process: what it holds is in the saved index and in the cache of embeddings.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kgserve.journal.files import write_all

IN_MEMORY = 2_000
"""Rows; with 384 dimensions 3 MB. Pages of a file can be taken back by the system, those of memory cannot."""

_LEAST_ROOM = 64
_ROWS_AT_ONCE = 4_096
# What hnswlib 0.8 writes before its elements, and of it what is needed: their number, size, and places inside.
_HEADER = struct.Struct("<6Qi")
_HEADER_BYTES = 96

Vectors = NDArray[np.float32]


class Rows:
    """One thread appends; who has the lock of the index reads."""

    def __init__(self, folder: Path, dimensions: int) -> None:
        """Begin with no rows; a file, if there has to be one, is made in ``folder``."""
        self._folder = folder
        self._dimensions = dimensions
        self._count = 0
        self._descriptor: int | None = None
        self._room: Vectors = np.empty((0, dimensions), np.float32)

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Vectors:
        """All rows; not to be kept."""
        return self._room[: self._count]

    def append(self, vectors: Vectors) -> None:
        """Add rows at the end. Raises OSError when there is no room for them on the disk; then nothing is changed."""
        end = self._count + len(vectors)
        if self._descriptor is None and end <= IN_MEMORY:
            self._append_in_memory(vectors, end)
        else:
            self._append_to_file(vectors, end)
        self._count = end

    def adopt(self, rows: Vectors) -> None:
        """Have the rows of a mapped file in place of none, without a copy of them."""
        self._room, self._count = rows, len(rows)

    def _append_in_memory(self, vectors: Vectors, end: int) -> None:
        if end > len(self._room):
            room = np.empty((min(max(end + end // 2, _LEAST_ROOM), IN_MEMORY), self._dimensions), np.float32)
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = vectors

    def _append_to_file(self, vectors: Vectors, end: int) -> None:
        descriptor = self._moved_out() if self._descriptor is None else self._descriptor
        # Written, not put into the mapping: a full disk is an error here, and would end the process there.
        os.lseek(descriptor, self._count * self._row_bytes, os.SEEK_SET)
        write_all(descriptor, np.ascontiguousarray(vectors, "<f4").tobytes())
        if end > len(self._room) or self._descriptor is None:
            self._map(descriptor, end + end // 4)
        self._descriptor = descriptor

    def _moved_out(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="rows-", dir=self._folder)
        weakref.finalize(self, os.close, descriptor)
        Path(name).unlink()
        for first in range(0, self._count, _ROWS_AT_ONCE):
            write_all(descriptor, self.values[first : first + _ROWS_AT_ONCE].tobytes())
        return descriptor

    def _map(self, descriptor: int, room: int) -> None:
        # Ahead of what is in it, sparse, so that it need not be mapped again for each few rows.
        os.ftruncate(descriptor, room * self._row_bytes)
        mapped = mmap.mmap(descriptor, room * self._row_bytes, prot=mmap.PROT_READ)
        self._room = np.frombuffer(mapped, "<f4").reshape(room, self._dimensions)

    @property
    def _row_bytes(self) -> int:
        return 4 * self._dimensions


def rows_of_graph(path: Path, labels: int, dimensions: int) -> Iterator[Vectors]:
    """The vectors in a file of hnswlib in the order of their labels, which are 0, 1, …; some thousands at a time.

    Asked of hnswlib itself, a vector takes 25 µs and more, and all other threads wait. Raises ValueError when the
    file does not look as those of hnswlib 0.8 do.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    _, _, count, size, label_at, vector_at, _ = _HEADER.unpack_from(header)
    if count != labels or label_at + 8 > size or vector_at + 4 * dimensions > size:
        raise ValueError(f"{path} is not laid out as expected")
    content = np.memmap(path, np.uint8, "r")
    element = np.dtype(
        {
            "names": ["label", "vector"],
            "formats": ["<u8", ("<f4", (dimensions,))],
            "offsets": [label_at, vector_at],
            "itemsize": size,
        }
    )
    elements = np.ndarray(count, element, content, _HEADER_BYTES)
    order = np.argsort(elements["label"], kind="stable")
    if not np.array_equal(elements["label"][order], np.arange(count)):
        raise ValueError(f"{path} holds other labels than expected")
    for first in range(0, count, _ROWS_AT_ONCE):
        yield elements["vector"][order[first : first + _ROWS_AT_ONCE]]
