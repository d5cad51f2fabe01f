"""Texts to vectors: what every embedder offers, how its work is counted, and which one the settings mean."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray

from kgserve.embedding.local import REST_SECONDS, LocalEmbedder, PatientEmbedder
from kgserve.embedding.model_files import checked_manifest, model_folder
from kgserve.embedding.openai import OpenAIEmbedder
from kgserve.errors import Unavailable
from kgserve.metrics.observation import Embedding, part
from kgserve.settings import Settings

DIMENSIONS = 384
GRAM_SIZES = (3, 4)
LONGEST_TEXT = 100_000
LONGEST_WORD = 64
"""Characters of a text, and of a word, that count: the rest is cut, so that no text takes more than milliseconds."""

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Vectors from letters alone, where there is no model: signed feature hashing, the same on every machine.

    Every word and every 3 and 4 letters of it pick a place and a sign in the vector by a fixed hash. Texts that share
    words, or parts of words, come out close; synonyms do not.
    """

    model_id = f"hashing-words-3-4-grams-{DIMENSIONS}-v1"
    dimensions = DIMENSIONS
    degraded = True

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), 384)."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(texts):
            vectors[row] = _vector(text)
        return vectors

    def close(self) -> None:
        """Nothing is held."""


def _vector(text: str) -> NDArray[np.float64]:
    plain = unicodedata.normalize("NFKC", text[:LONGEST_TEXT]).casefold()
    counts = Counter(word[:LONGEST_WORD] for word in _WORD.findall(plain))
    if not counts:
        counts[plain.strip()] = 1  # punctuation, or nothing: still one place of its own
    words = [(_features(word), 1 + math.log(count)) for word, count in counts.items()]
    places = np.concatenate([places for (places, _), _ in words])
    weights = np.concatenate([weights * times for (_, weights), times in words])
    vector = np.bincount(places, weights, minlength=DIMENSIONS)
    length = float(np.linalg.norm(vector))
    if length == 0:  # every feature met its opposite
        vector[0] = length = 1.0
    return vector / length


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Places and signed weights of a word's features; the frequent words of a language come round again and again."""
    grams = list(_grams(word))
    each = 1 / math.sqrt(len(grams)) if grams else 0.0  # all groups of a word weigh together what the word does
    hashes = [xxhash.xxh3_64_intdigest(feature.encode("utf-8", "replace")) for feature in (f"={word}", *grams)]
    places = np.array([value % DIMENSIONS for value in hashes], dtype=np.int64)
    signs = np.array([1.0 if value >> 63 else -1.0 for value in hashes])
    return places, signs * np.array([1.0, *[each] * len(grams)])


def _grams(word: str) -> Iterator[str]:
    """Groups of letters, the word's ends marked, so that ``<cat>`` and ``concatenate`` differ."""
    marked = f"<{word}>"
    for size in GRAM_SIZES:
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


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
