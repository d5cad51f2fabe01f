"""An embedder whose work is counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgserve.metrics.observation import Embedding, part
from kgserve.views.embed import Embedder


class MeteredEmbedder:
    """Another embedder, with every text counted and timed."""

    def __init__(self, embedder: Embedder, counted: Embedding) -> None:
        self._embedder = embedder
        self._counted = counted

    @property
    def model_id(self) -> str:
        """See `Embedder`."""
        return self._embedder.model_id

    @property
    def dimensions(self) -> int:
        """See `Embedder`."""
        return self._embedder.dimensions

    @property
    def degraded(self) -> bool:
        """See `Embedder`."""
        return self._embedder.degraded

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder`."""
        with self._counted.of(len(texts)), part("embedding"):
            return self._embedder.embed(texts)

    def close(self) -> None:
        """See `Embedder`."""
        self._embedder.close()
