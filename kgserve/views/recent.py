"""The vectors of the memories that came last: the vector index may not know them yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST = 2_000


class Recent:
    """Vectors by id, of length 1; the oldest go first. For the writing thread of one store."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def add(self, node_id: str, vector: NDArray[np.float32]) -> None:
        """Note one."""
        self._vectors.pop(node_id, None)
        self._vectors[node_id] = vector
        if len(self._vectors) > self._most:
            del self._vectors[next(iter(self._vectors))]

    def near(self, vector: NDArray[np.float32], threshold: float) -> dict[str, float]:
        """Those whose cosine is above a threshold."""
        if not self._vectors:
            return {}
        similarities = np.stack([*self._vectors.values()]) @ vector
        found = zip(self._vectors, similarities.tolist(), strict=True)
        return {node_id: similarity for node_id, similarity in found if similarity > threshold}
