"""Texts to vectors: what every embedder offers, how its work is counted, and which one the settings mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from kgserve.embedding.hashing import HashingEmbedder
from kgserve.embedding.local import REST_SECONDS, LocalEmbedder, PatientEmbedder
from kgserve.embedding.model_files import checked_manifest, model_folder
from kgserve.embedding.openai import OpenAIEmbedder
from kgserve.errors import Unavailable
from kgserve.metrics.observation import Embedding, part
from kgserve.settings import Settings

log = structlog.get_logger()


class Embedder(Protocol):
    """Turns texts into vectors; safe to share between threads."""

    @property
    def model_id(self) -> str:
        """Identifies vectors: two embedders with the same id give the same vectors."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of every vector. A service may have to be asked once: then this blocks, and raises Unavailable."""
        ...

    @property
    def degraded(self) -> bool:
        """True when vectors stand for letters and words, not for meaning."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, one row per text, shape (len(texts), dimensions).

        Blocks; any number of texts, split inside. Raises Unavailable when the model or service cannot answer.
        """
        ...

    def close(self) -> None:
        """Release memory, threads and connections; what is being embedded ends properly."""
        ...


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


def load_embedder(settings: Settings) -> Embedder:
    """The embedder that ``settings`` mean, in well under a second and without asking any network.

    A local model that is missing or damaged is replaced by the hashing embedder with one warning. Raises InvalidInput
    when an embedding service is asked for without a usable address.
    """
    match settings.embedding_provider:
        case "openai":
            return _service(settings, prompt=True)
        case "local":
            return _local(settings)
        case "hashing":
            return HashingEmbedder()


def for_indexing(settings: Settings, embedder: Embedder) -> Embedder:
    """The embedder that indexes where ``embedder`` answers queries: of the same model, or the same one.

    A local model's threads are made by a thread that gives way, so they do, too. A service is given more time.
    """
    if isinstance(embedder, OpenAIEmbedder):
        return _service(settings)
    if not isinstance(embedder, LocalEmbedder):
        return embedder
    threads, batch = settings.embedding_threads, settings.embedding_batch
    patient = LocalEmbedder(embedder.folder, embedder.manifest, threads=threads, batch=batch, rest=REST_SECONDS)
    return PatientEmbedder(embedder, patient)


def _service(settings: Settings, *, prompt: bool = False) -> Embedder:
    return OpenAIEmbedder(
        settings.embedding_url,
        settings.embedding_model,
        settings.embedding_key,
        batch=settings.embedding_batch,
        prompt=prompt,
    )


def _local(settings: Settings) -> Embedder:
    folder = model_folder(settings, settings.embedding_model)
    try:
        manifest = checked_manifest(folder, settings.embedding_model)
    except Unavailable as fault:
        log.warning("embedding_degraded", reason=fault.message, instead=HashingEmbedder.model_id)
        return HashingEmbedder()
    return LocalEmbedder(folder, manifest, threads=settings.embedding_threads, batch=settings.embedding_batch)
