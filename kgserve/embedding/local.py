"""A model on this machine, run by fastembed."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog
from numpy.typing import NDArray

from kgserve.allocator import give_back
from kgserve.embedding.model_files import Manifest
from kgserve.errors import Unavailable

if TYPE_CHECKING:
    from fastembed import TextEmbedding

log = structlog.get_logger()

CHARACTERS_PER_TOKEN = 32
"""Characters of a text that reach the tokenizer, per token that the model reads: beyond that nothing counts, and
5 MB would take seconds to split."""

REST_SECONDS = 30.0
"""Without anything to index, until the copy of the model for indexing is let go: 100 MiB, and as much for its work."""
FEW = 1_000
"""Characters, with those that each text counts for beside its own: what takes as long as some queries, 0.05 s."""
TEXT_WORTH = 50


class LocalEmbedder:
    """Loads the model at the first use (under a second); runs in the callers' threads and ``threads`` more.

    With ``rest`` it lets the model go after so many seconds without use, and loads it again when it is needed.
    """

    degraded = False

    def __init__(
        self, folder: Path, manifest: Manifest, *, threads: int, batch: int, rest: float | None = None
    ) -> None:
        self.manifest = manifest
        self.model_id = manifest.model_id
        self.dimensions = manifest.dimensions
        self._name = manifest.name
        self._longest = manifest.max_tokens * CHARACTERS_PER_TOKEN
        self.folder = folder
        self._threads = threads
        self._batch = batch
        self._rest = rest
        self._lock = threading.Lock()
        self._model: TextEmbedding | None = None
        self._closed = False
        self._at_work = 0
        self._used_at = 0.0
        self._watch: threading.Timer | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._model is not None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), dimensions).

        Texts of like length go together, so that little is computed for padding. Raises Unavailable when the model
        cannot be loaded, or is closed.
        """
        readable = [_readable(text[: self._longest]) for text in texts]
        order = sorted(range(len(texts)), key=lambda index: len(readable[index]))
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        with self._used() as model:
            rows = model.embed([readable[index] for index in order], batch_size=self._batch)
            for index, row in zip(order, rows, strict=True):
                vectors[index] = row
        return vectors

    def close(self) -> None:
        """Let the model go; what is being embedded ends properly."""
        with self._lock:
            self._closed = True
            self._model = None
            if self._watch is not None:
                self._watch.cancel()

    @contextmanager
    def _used(self) -> Generator[TextEmbedding]:
        with self._lock:
            if self._closed:
                raise Unavailable("the embedding model is closed")
            if self._model is None:
                self._model = self._load()
            model = self._model
            self._at_work += 1
        try:
            yield model
        finally:
            del model
            with self._lock:
                self._at_work -= 1
                self._used_at = time.monotonic()
                if self._rest is not None and self._watch is None and not self._closed:
                    self._look_in(self._rest)

    def _look_in(self, seconds: float) -> None:
        self._watch = threading.Timer(seconds, self._let_go)
        self._watch.name, self._watch.daemon = "model-rest", True
        self._watch.start()

    def _let_go(self) -> None:
        """Let the model go if it has not been used for a while; else look again when it might be so."""
        with self._lock:
            self._watch = None
            idle = time.monotonic() - self._used_at
            rest = self._rest or 0.0
            if self._closed or self._model is None:
                return
            if self._at_work or idle < rest:
                self._look_in(rest if self._at_work else rest - idle)
                return
            model, self._model = self._model, None
        # Without the lock: who needs it meanwhile loads another.
        del model
        give_back()

    def _load(self) -> TextEmbedding:
        from fastembed import TextEmbedding  # noqa: PLC0415 - half a second, and nobody may ever search

        try:
            # With a path of its own fastembed asks no hub. The cache folder is not used, but made: so it is this one.
            model = TextEmbedding(
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
        # What reading the file took, 30 MiB.
        give_back()
        return model


class PatientEmbedder:
    """For indexing: another copy of a model, whose threads give way and which is let go when there is nothing to index.

    A few texts go through the first copy if it is loaded, for which that is the work of some queries: a write now and
    then does not bring the second one.
    """

    degraded = False

    def __init__(self, prompt: LocalEmbedder, patient: LocalEmbedder) -> None:
        """``prompt`` answers queries and stays the caller's to close; ``patient`` indexes."""
        self._prompt = prompt
        self._patient = patient
        self.model_id = patient.model_id
        self.dimensions = patient.dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `LocalEmbedder.embed`."""
        few = sum(len(text) + TEXT_WORTH for text in texts) <= FEW
        chosen = self._prompt if few and self._prompt.is_loaded and not self._patient.is_loaded else self._patient
        return chosen.embed(texts)

    def close(self) -> None:
        """See `LocalEmbedder.close`."""
        self._patient.close()


def _readable(text: str) -> str:
    """The text without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
