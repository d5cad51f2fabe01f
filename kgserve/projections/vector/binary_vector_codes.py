"""Binary codes of vectors: one bit per dimension, set where the component is positive.

The Hamming distance of two codes estimates the angle between their vectors. Comparing codes reads a 32nd of the bytes
of comparing vectors, so that a large part of an index can be scanned for candidates, whose cosines are then computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kgserve.projections.filter_columns import Mask

SignCode = NDArray[np.uint64]

_WORD_BITS = 64
_MIN_CAPACITY = 1024
# Codes compared at a time: their distances and intermediate results fit the processor's cache.
_SCAN_BATCH_CODES = 16_384


class BinaryVectorCodes:
    """Codes of the vectors of an index, by label. One thread appends; readers hold the lock of the index."""

    def __init__(self, dimensions: int) -> None:
        self._words = -(-dimensions // _WORD_BITS)
        # A column of each 64 dimensions, so that a scan reads consecutive memory.
        self._columns: NDArray[np.uint64] = np.empty((self._words, 0), np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, vectors: NDArray[np.float32]) -> None:
        """Append the codes of vectors of shape (count, dimensions)."""
        end = self._count + len(vectors)
        if end > self._columns.shape[1]:
            columns = np.empty((self._words, max(end + end // 4, _MIN_CAPACITY)), np.uint64)
            columns[:, : self._count] = self._columns[:, : self._count]
            self._columns = columns
        self._columns[:, self._count : end] = self._encode(vectors)
        self._count = end

    def nearest(self, query: NDArray[np.float32], count: int, passing: Mask) -> NDArray[np.intp]:
        """Return ``count`` of the labels in a mask, those with the smallest Hamming distances; ties by label."""
        labels = np.flatnonzero(passing)
        if len(labels) <= count:
            return labels
        code = self._encode(query[np.newaxis])[:, 0]
        scattered = len(labels) * _SCATTERED_CODE_COST < len(passing)
        distances = self._distances(code, labels) if scattered else self._distances(code, None)[labels]
        return labels[_smallest(distances, count)]

    def _distances(self, code: SignCode, labels: NDArray[np.intp] | None) -> NDArray[np.uint16]:
        """Return the Hamming distances of the codes at some labels, or of all codes."""
        total = self._count if labels is None else len(labels)
        distances = np.zeros(total, np.uint16)
        for first in range(0, total, _SCAN_BATCH_CODES):
            part = slice(first, first + _SCAN_BATCH_CODES)
            some = distances[part]
            for column, word in zip(self._columns, code, strict=True):
                codes = column[: self._count][part] if labels is None else column[labels[part]]
                some += np.bitwise_count(codes ^ word)
        return distances

    def _encode(self, vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
        """Return the codes of vectors, of shape (words, count)."""
        bits = np.zeros((len(vectors), self._words * _WORD_BITS), np.bool_)
        bits[:, : vectors.shape[1]] = vectors > 0
        return np.packbits(bits, axis=1).view(np.uint64).T


# Reading the codes of scattered labels costs about this many times as much as reading consecutive ones.
_SCATTERED_CODE_COST = 4


def _smallest(distances: NDArray[np.uint16], count: int) -> NDArray[np.intp]:
    """Return the places of the smallest values; among equal ones the first."""
    threshold = np.partition(distances, count - 1)[count - 1]
    below = np.flatnonzero(distances < threshold)
    equal = np.flatnonzero(distances == threshold)[: count - len(below)]
    return np.sort(np.concatenate([below, equal]))
