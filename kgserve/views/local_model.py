"""A model on this machine, run by fastembed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog
from numpy.typing import NDArray

from kgserve.errors import Unavailable
from kgserve.views.model_files import Manifest

if TYPE_CHECKING:
    from fastembed import TextEmbedding

log = structlog.get_logger()

CHARACTERS_PER_TOKEN = 32
"""Characters of a text that reach the tokenizer, per token that the model reads: beyond that nothing counts, and
5 MB would take seconds to split."""


class LocalEmbedder:
    """Loads the model at the first use (under a second); runs in the callers' threads and ``threads`` more."""

    degraded = False

    def __init__(self, folder: Path, manifest: Manifest, *, threads: int, batch: int) -> None:
        self.manifest = manifest
        self.model_id = manifest.model_id
        self.dimensions = manifest.dimensions
        self._name = manifest.name
        self._longest = manifest.max_tokens * CHARACTERS_PER_TOKEN
        self.folder = folder
        self._threads = threads
        self._batch = batch
        self._lock = threading.Lock()
        self._model: TextEmbedding | None = None
        self._closed = False

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), dimensions).

        Texts of like length go together, so that little is computed for padding. Raises Unavailable when the model
        cannot be loaded, or is closed.
        """
        model = self._loaded()
        readable = [_readable(text[: self._longest]) for text in texts]
        order = sorted(range(len(texts)), key=lambda index: len(readable[index]))
        rows = model.embed([readable[index] for index in order], batch_size=self._batch)
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for index, row in zip(order, rows, strict=True):
            vectors[index] = row
        return vectors

    def close(self) -> None:
        """Let the model go; what is being embedded ends properly."""
        with self._lock:
            self._closed = True
            self._model = None

    def _loaded(self) -> TextEmbedding:
        with self._lock:
            if self._closed:
                raise Unavailable("the embedding model is closed")
            if self._model is None:
                self._model = self._load()
            return self._model

    def _load(self) -> TextEmbedding:
        from fastembed import TextEmbedding  # noqa: PLC0415 - half a second, and nobody may ever search

        try:
            # With a path of its own fastembed asks no hub. The cache folder is not used, but made: so it is this one.
            return TextEmbedding(
                self._name,
                specific_model_path=str(self.folder),
                cache_dir=str(self.folder),
                threads=self._threads,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:
            # The run-time's errors have no common class of their own.
            log.error("embedding_model_failed", folder=str(self.folder), reason=str(error))
            raise Unavailable(f"the embedding model in {self.folder} cannot be loaded: {error}", 60) from error


def _readable(text: str) -> str:
    """The text without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
