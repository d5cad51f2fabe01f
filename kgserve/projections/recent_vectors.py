"""Vectors of the most recent memories, which the vector index may not contain yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_RECENT_VECTORS = 2_000
_INITIAL_RECENT_VECTORS = 64


class RecentVectorBuffer:
    """Fixed-size buffer of unit vectors by id; the oldest are evicted first. For the writing thread of one store.

    All vectors must be of one model. They share one matrix, so a query is a single matrix product.
    """

    def __init__(self, most: int = MAX_RECENT_VECTORS) -> None:
        self._most = most
        self._ids: list[str] = []
        self._row_of: dict[str, int] = {}
        self._matrix = np.empty((0, 0), np.float32)
        self._next = 0

    def add(self, node_id: str, vector: NDArray[np.float32]) -> None:
        """Add or replace a vector."""
        row_number = self._row_of.get(node_id)
        if row_number is None:
            row_number = self._allocate_row(len(vector))
            self._row_of.pop(self._ids[row_number], None)
            self._ids[row_number] = node_id
            self._row_of[node_id] = row_number
        self._matrix[row_number] = vector

    def find_similar(self, vector: NDArray[np.float32], threshold: float) -> dict[str, float]:
        """Return the ids with cosine similarity above a threshold, with their similarities."""
        similarities = self._matrix[: len(self._ids)] @ vector if self._ids else np.empty(0, np.float32)
        row_numbers = np.flatnonzero(similarities > threshold).tolist()
        return {self._ids[row_number]: float(similarities[row_number]) for row_number in row_numbers}

    def _allocate_row(self, width: int) -> int:
        """Return the row for a vector of length ``width``: a new row, or that of the oldest vector."""
        row_number = self._next % self._most
        self._next += 1
        if row_number == len(self._ids):
            self._ids.append("")
        if row_number >= len(self._matrix):
            grown = np.zeros((min(max(2 * row_number, _INITIAL_RECENT_VECTORS), self._most), width), np.float32)
            grown[:row_number] = self._matrix[:row_number] if row_number else 0.0
            self._matrix = grown
        return row_number
