"""Vectors in a flat file: rows of float32, written behind each other and read through a mapping."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kgserve.journal.files import write_all

# The file grows ahead of what is in it, sparse, so that it need not be mapped again for each few rows.
_LEAST_ROOM = 1024
# Picked out, a row costs four times as much as in its place.
_DENSE = 4
_ROWS_AT_ONCE = 16_000
# Those that are picked out fit the processor's cache: with ten times as many they take twice as long.
_PICKED_AT_ONCE = 1_000

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]


class VectorFile:
    """One thread writes rows that nobody has been told of yet; any thread may read those that it knows of."""

    def __init__(self, path: Path, dimensions: int) -> None:
        self.path = path
        self._dimensions = dimensions
        self.rows: Vectors = self._mapped(path.stat().st_size // self._row_bytes if path.exists() else 0)

    def write(self, first: int, vectors: Vectors) -> None:
        """Put rows at a place and behind it, whatever was there. Raises OSError when there is no room for them."""
        end = first + len(vectors)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Written, not put into the mapping: a full disk is an error here, and would end the process there.
            os.lseek(descriptor, first * self._row_bytes, os.SEEK_SET)
            write_all(descriptor, np.ascontiguousarray(vectors, "<f4").tobytes())
            if end > len(self.rows):
                os.ftruncate(descriptor, (end + max(_LEAST_ROOM, end // 4)) * self._row_bytes)
        finally:
            os.close(descriptor)
        if end > len(self.rows):
            self.rows = self._mapped(end + max(_LEAST_ROOM, end // 4))

    def copy(self, places: Sequence[int], path: Path) -> VectorFile:
        """Some of the rows, in a file of their own."""
        path.unlink(missing_ok=True)
        copied = VectorFile(path, self._dimensions)
        for first in range(0, len(places), _ROWS_AT_ONCE):
            copied.write(first, self.rows[np.asarray(places[first : first + _ROWS_AT_ONCE], np.int64)])
        return copied

    @property
    def _row_bytes(self) -> int:
        return 4 * self._dimensions

    def _mapped(self, count: int) -> Vectors:
        shape = (count, self._dimensions)
        return np.asarray(np.memmap(self.path, "<f4", "r", shape=shape)) if count else np.empty(shape, np.float32)


def products(rows: Vectors, places: Places, query: Vectors) -> Vectors:
    """The products of a query with the rows at some places, which may repeat; float32, in their order.

    Not more than 1,000 rows are copied at a time.
    """
    if not len(places):
        return np.empty(0, np.float32)
    wanted = np.zeros(int(places.max()) + 1, np.bool_)
    wanted[places] = True
    scores = np.empty(len(wanted), np.float32)
    for first in range(0, len(wanted), _ROWS_AT_ONCE):
        some = np.flatnonzero(wanted[first : first + _ROWS_AT_ONCE]) + first
        if not len(some):
            continue
        span = slice(int(some[0]), int(some[-1]) + 1)
        if len(some) * _DENSE >= span.stop - span.start:
            scores[span] = rows[span] @ query
            continue
        for few in np.array_split(some, -(-len(some) // _PICKED_AT_ONCE)):
            scores[few] = rows[few] @ query
    return scores[places]
