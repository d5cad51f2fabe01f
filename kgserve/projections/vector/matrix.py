"""Vectors as rows of a matrix: in a file that is mapped, or in memory while they are few."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kgserve.platform.durable_files import write_all

MAX_IN_MEMORY_ROWS = 2_000
"""Rows; with 384 dimensions 3 MB. Pages of a file can be taken back by the system, those of memory cannot."""
SCATTERED_READ_COST = 4
"""Picked out, a row costs so many times as much as in its place."""

# A file grows ahead of what is in it, sparse, so that it need not be mapped again for each few rows.
_MIN_FILE_ROWS = 1024
_MIN_IN_MEMORY_ROWS = 64
_MATRIX_BATCH_ROWS = 16_000
# Those that are picked out fit the processor's cache: with ten times as many they take twice as long.
_PICK_BATCH_ROWS = 1_000

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]


class VectorFile:
    """Rows of float32 behind each other in a file.

    One thread writes rows that nobody has been told of yet; any thread may read those that it knows of.
    """

    def __init__(self, path: Path, dimensions: int) -> None:
        """Have what is there; a file is made with the first rows."""
        self.path = path
        self._dimensions = dimensions
        self._kept: int | None = None
        self.rows: Vectors = np.empty((0, dimensions), np.float32)
        if path.exists() and (count := path.stat().st_size // self._row_bytes):
            with self._descriptor() as descriptor:
                self.rows = self._mapped(descriptor, count)

    @classmethod
    def without_name(cls, folder: Path, dimensions: int) -> VectorFile:
        """An empty file in a folder that nobody else can open; it ends with its last user, and with the process."""
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="rows-", dir=folder)
        file = cls(Path(name), dimensions)
        file._kept = descriptor
        weakref.finalize(file, os.close, descriptor)
        file.path.unlink()
        return file

    def write(self, first: int, vectors: Vectors) -> None:
        """Put rows at a place and behind it, whatever was there. Raises OSError when there is no room for them."""
        end = first + len(vectors)
        with self._descriptor() as descriptor:
            # Written, not put into the mapping: a full disk is an error here, and would end the process there.
            os.lseek(descriptor, first * self._row_bytes, os.SEEK_SET)
            write_all(descriptor, np.ascontiguousarray(vectors, "<f4").tobytes())
            if end > len(self.rows):
                room = end + max(_MIN_FILE_ROWS, end // 4)
                os.ftruncate(descriptor, room * self._row_bytes)
                self.rows = self._mapped(descriptor, room)

    def copy(self, places: Sequence[int], path: Path) -> VectorFile:
        """Some of the rows, in a file of their own."""
        path.unlink(missing_ok=True)
        copied = VectorFile(path, self._dimensions)
        for first in range(0, len(places), _MATRIX_BATCH_ROWS):
            copied.write(first, self.rows[np.asarray(places[first : first + _MATRIX_BATCH_ROWS], np.int64)])
        return copied

    @property
    def _row_bytes(self) -> int:
        return 4 * self._dimensions

    @contextmanager
    def _descriptor(self) -> Generator[int]:
        if self._kept is not None:
            yield self._kept
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _mapped(self, descriptor: int, count: int) -> Vectors:
        mapped = mmap.mmap(descriptor, count * self._row_bytes, prot=mmap.PROT_READ)
        return np.frombuffer(mapped, "<f4").reshape(count, self._dimensions)


class VectorRows:
    """The vectors of an index: in memory while they are few, else in a file without a name.

    What it holds is in the saved index and in the cache of embeddings. One thread appends; who has the lock of the
    index reads.
    """

    def __init__(self, folder: Path, dimensions: int) -> None:
        """Begin with no rows; a file, if there has to be one, is made in ``folder``."""
        self._folder = folder
        self._dimensions = dimensions
        self._count = 0
        self._file: VectorFile | None = None
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
        if self._file is None and end <= MAX_IN_MEMORY_ROWS:
            self._append_in_memory(vectors, end)
        else:
            file = self._file or self._moved_out()
            file.write(self._count, vectors)
            self._file, self._room = file, file.rows
        self._count = end

    def adopt(self, rows: Vectors) -> None:
        """Have the rows of a mapped file in place of none, without a copy of them."""
        self._room, self._count = rows, len(rows)

    def _append_in_memory(self, vectors: Vectors, end: int) -> None:
        if end > len(self._room):
            room = np.empty(
                (min(max(end + end // 2, _MIN_IN_MEMORY_ROWS), MAX_IN_MEMORY_ROWS), self._dimensions), np.float32
            )
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = vectors

    def _moved_out(self) -> VectorFile:
        file = VectorFile.without_name(self._folder, self._dimensions)
        for first in range(0, self._count, _MATRIX_BATCH_ROWS):
            file.write(first, self.values[first : first + _MATRIX_BATCH_ROWS])
        return file


def products(rows: Vectors, places: Places, query: Vectors) -> Vectors:
    """The products of a query with the rows at some places, which may repeat; float32, in their order.

    Not more than 1,000 rows are copied at a time.
    """
    if not len(places):
        return np.empty(0, np.float32)
    wanted = np.zeros(int(places.max()) + 1, np.bool_)
    wanted[places] = True
    scores = np.empty(len(wanted), np.float32)
    for first in range(0, len(wanted), _MATRIX_BATCH_ROWS):
        some = np.flatnonzero(wanted[first : first + _MATRIX_BATCH_ROWS]) + first
        if not len(some):
            continue
        span = slice(int(some[0]), int(some[-1]) + 1)
        if len(some) * SCATTERED_READ_COST >= span.stop - span.start:
            scores[span] = rows[span] @ query
            continue
        for few in np.array_split(some, -(-len(some) // _PICK_BATCH_ROWS)):
            scores[few] = rows[few] @ query
    return scores[places]
