"""Vectors as rows of a matrix, in a memory-mapped file or, if few, in memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kgserve.platform.durable_files import write_all_bytes

MAX_IN_MEMORY_ROWS = 2_000
"""Maximum rows kept in memory: 3 MB with 384 dimensions.

The system can reclaim pages of a mapped file, but not these.
"""
IDLE_PAGES_SECONDS = 10.0
SCATTERED_READ_COST = 4
"""Cost of reading a scattered row, relative to a row read in sequence."""

# Files grow ahead of their content, sparsely, to avoid remapping for every few rows.
_MIN_FILE_ROWS = 1024
_MIN_IN_MEMORY_ROWS = 16
_MATRIX_BATCH_ROWS = 16_000
# Scattered rows are copied in batches that fit the CPU cache; ten times as many take twice as long.
_PICK_BATCH_ROWS = 1_000

FloatMatrix = NDArray[np.float32]
RowIndexes = NDArray[np.int64]


class VectorFile:
    """Consecutive float32 rows in a file.

    One thread writes rows that are not yet published; any thread may read published rows.
    """

    def __init__(self, path: Path, dimensions: int) -> None:
        """Map the existing rows; the file is created with the first rows."""
        self.path = path
        self._dimensions = dimensions
        self._open_descriptor: int | None = None
        self._mapping: mmap.mmap | None = None
        self.rows: FloatMatrix = np.empty((0, dimensions), np.float32)
        if path.exists() and (count := path.stat().st_size // self._row_bytes):
            with self._descriptor() as descriptor:
                self.rows = self._mapped(descriptor, count)

    @classmethod
    def create_unlinked(cls, folder: Path, dimensions: int) -> VectorFile:
        """Create an empty unlinked file in a folder; it disappears with its last user or the process."""
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="rows-", dir=folder)
        file = cls(Path(name), dimensions)
        file._open_descriptor = descriptor
        weakref.finalize(file, os.close, descriptor)
        file.path.unlink()
        return file

    def write(self, first: int, vectors: FloatMatrix) -> None:
        """Overwrite rows from position ``first`` on. Raises OSError if the disk is full."""
        end = first + len(vectors)
        with self._descriptor() as descriptor:
            # Written rather than mapped: a full disk raises an error here but kills the process there.
            os.lseek(descriptor, first * self._row_bytes, os.SEEK_SET)
            write_all_bytes(descriptor, np.ascontiguousarray(vectors, "<f4").tobytes())
            if end > len(self.rows):
                room = end + max(_MIN_FILE_ROWS, end // 4)
                os.ftruncate(descriptor, room * self._row_bytes)
                self.rows = self._mapped(descriptor, room)

    def copy(self, places: Sequence[int], path: Path) -> VectorFile:
        """Copy the given rows into a new file."""
        path.unlink(missing_ok=True)
        copied = VectorFile(path, self._dimensions)
        for first in range(0, len(places), _MATRIX_BATCH_ROWS):
            copied.write(first, self.rows[np.asarray(places[first : first + _MATRIX_BATCH_ROWS], np.int64)])
        return copied

    def release_pages(self) -> None:
        """Return the memory of all pages that were read. The system reads them again when they are needed."""
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)

    @property
    def _row_bytes(self) -> int:
        return 4 * self._dimensions

    @contextmanager
    def _descriptor(self) -> Generator[int]:
        if self._open_descriptor is not None:
            yield self._open_descriptor
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _mapped(self, descriptor: int, count: int) -> FloatMatrix:
        self._mapping = mmap.mmap(descriptor, count * self._row_bytes, prot=mmap.PROT_READ)
        return np.frombuffer(self._mapping, "<f4").reshape(count, self._dimensions)


class VectorRows:
    """Vectors of an index, in memory while they are few, otherwise in an unlinked file.

    The data can be restored from the saved index or the embedding cache. One thread appends; readers hold the lock of
    the index.
    """

    def __init__(self, folder: Path, dimensions: int) -> None:
        """Start with no rows; ``folder`` is where a file is created when needed."""
        self._folder = folder
        self._dimensions = dimensions
        self._count = 0
        self._read_at = 0.0
        self._file: VectorFile | None = None
        self._buffer: FloatMatrix = np.empty((0, dimensions), np.float32)

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> FloatMatrix:
        """All rows; valid only until the next append."""
        self._read_at = time.monotonic()
        return self._buffer[: self._count]

    def append(self, vectors: FloatMatrix) -> None:
        """Append rows. Raises OSError if the disk is full; nothing is changed then."""
        end = self._count + len(vectors)
        if self._file is None and end <= MAX_IN_MEMORY_ROWS:
            self._append_in_memory(vectors, end)
        else:
            file = self._file or self._move_to_file()
            file.write(self._count, vectors)
            self._file, self._buffer = file, file.rows
        self._count = end

    def truncate(self, count: int) -> None:
        """Remove the rows from position ``count`` on."""
        self._count = min(count, self._count)

    def adopt(self, rows: FloatMatrix) -> None:
        """Use the rows of a mapped file without copying them; the object must be empty."""
        self._buffer, self._count = rows, len(rows)

    def release_idle_pages(self) -> None:
        """Return the memory of a file's pages, if they have been read, but not in the last ten seconds."""
        if self._file is not None and 0 < self._read_at < time.monotonic() - IDLE_PAGES_SECONDS:
            self._read_at = 0.0
            self._file.release_pages()

    def _append_in_memory(self, vectors: FloatMatrix, end: int) -> None:
        if end > len(self._buffer):
            room = np.empty(
                (min(max(end + end // 2, _MIN_IN_MEMORY_ROWS), MAX_IN_MEMORY_ROWS), self._dimensions), np.float32
            )
            room[: self._count] = self.values
            self._buffer = room
        self._buffer[self._count : end] = vectors

    def _move_to_file(self) -> VectorFile:
        file = VectorFile.create_unlinked(self._folder, self._dimensions)
        for first in range(0, self._count, _MATRIX_BATCH_ROWS):
            file.write(first, self.values[first : first + _MATRIX_BATCH_ROWS])
        return file


def dot_products(rows: FloatMatrix, places: RowIndexes, query: FloatMatrix) -> FloatMatrix:
    """Return the float32 products of a query with the rows at ``places``, which may repeat, in their order.

    At most 1,000 rows are copied at a time.
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
