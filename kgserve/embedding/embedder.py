"""Texts to vectors, by a model on this machine, a service, or letters: what each offers, and which one is meant."""

from __future__ import annotations

import math
import re
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx
import msgspec
import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray

from kgserve.embedding.model_files import ModelManifest, checked_manifest, model_folder
from kgserve.errors import Unavailable
from kgserve.platform.allocator import give_back
from kgserve.platform.codecs import decode_json
from kgserve.platform.gil import cooperative
from kgserve.platform.metrics.observation import Embedding, part
from kgserve.platform.service_url import address_of, headers_of
from kgserve.platform.settings import Settings

if TYPE_CHECKING:
    from fastembed import TextEmbedding


log = structlog.get_logger()

CHARACTERS_PER_TOKEN = 32
"""Characters of a text that reach the tokenizer, per token that the model reads: beyond that nothing counts, and
5 MB would take seconds to split."""

INDEXING_MODEL_IDLE_SECONDS = 30.0
"""Without anything to index, until the copy of the model for indexing is let go: 100 MiB, and as much for its work."""
MAX_INTERACTIVE_CHARS = 1_000
"""Characters, with those that each text counts for beside its own: what takes as long as some queries, 0.05 s."""
TEXT_OVERHEAD_CHARS = 50


class LocalEmbedder:
    """Loads the model at the first use (under a second); runs in the callers' threads and ``threads`` more.

    With ``rest`` it lets the model go after so many seconds without use, and loads it again when it is needed.
    """

    degraded = False

    def __init__(
        self, folder: Path, manifest: ModelManifest, *, threads: int, batch: int, rest: float | None = None
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
        self.is_loading = False
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
                self.is_loading = True
                try:
                    self._model = self._load()
                finally:
                    self.is_loading = False
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

    @property
    def is_loading(self) -> bool:
        """Whether either copy of the model is being loaded."""
        return self._prompt.is_loading or self._patient.is_loading

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `LocalEmbedder.embed`."""
        few = sum(len(text) + TEXT_OVERHEAD_CHARS for text in texts) <= MAX_INTERACTIVE_CHARS
        chosen = self._prompt if few and self._prompt.is_loaded and not self._patient.is_loaded else self._patient
        return chosen.embed(texts)

    def close(self) -> None:
        """See `LocalEmbedder.close`."""
        self._patient.close()


def _readable(text: str) -> str:
    """The text without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()


BATCH_TIMEOUT_SECONDS = 30.0
"""Seconds that one batch may take, all attempts together."""
MAX_BATCH_ATTEMPTS = 5
PROMPT_TIMEOUT_SECONDS = 5.0
"""The same for a caller who waits, in `MAX_PROMPT_ATTEMPTS`; after a failure no batch is sent for as long."""
MAX_PROMPT_ATTEMPTS = 2
MAX_SENT_CHARS = 24_000
"""Characters of a text that are sent: about what such models read."""
MIN_CUT_CHARS = 500
KNOWN_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}

_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_REFUSED_CONTENT_STATUSES = {400, 413, 422}


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingAnswer(msgspec.Struct):
    data: list[_Row]


class _Refused(Exception):
    """The service does not take these texts as they are."""


class OpenAIEmbedder:
    """Embeds over HTTP, in batches, with patience for a service that is busy. The key is never logged or shown."""

    degraded = False
    is_loading = False

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "",
        *,
        batch: int = 16,
        backoff: float = 0.5,
        prompt: bool = False,
    ) -> None:
        """``url`` is the base, such as https://host/v1; ``backoff`` is the first pause in seconds, doubled each time.

        A ``prompt`` one is for callers who can do without: it gives up soon, and does not ask a service that was down
        just now. Raises InvalidInput for an address or a key that cannot be used.
        """
        base = address_of(url, "embedding_url")
        self.model_id = f"{model}@{base.host}{f':{base.port}' if base.port else ''}{base.path.rstrip('/')}"
        self._model = model
        self._batch = batch
        self._backoff = backoff
        self._dimensions = KNOWN_DIMENSIONS.get(model, 0)
        self._probing = threading.Lock()
        self._prompt = prompt
        self._patience, self._attempts = (
            (PROMPT_TIMEOUT_SECONDS, MAX_PROMPT_ATTEMPTS) if prompt else (BATCH_TIMEOUT_SECONDS, MAX_BATCH_ATTEMPTS)
        )
        self._down: tuple[float, Unavailable] | None = None
        self._client = httpx.Client(
            base_url=base,
            headers=headers_of(key, "embedding_key"),
            timeout=httpx.Timeout(self._patience, connect=5.0),
        )

    @property
    def dimensions(self) -> int:
        """Length of the vectors; of a model that is not known by name, the service is asked once."""
        with self._probing:
            if not self._dimensions:
                self._dimensions = self._embed_some(["dimensions"]).shape[1]
            return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), dimensions). Raises Unavailable when the service does not answer."""
        dimensions = self.dimensions
        vectors = np.empty((len(texts), dimensions), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), self._batch):
            some = order[start : start + self._batch]
            rows = self._embed_some([texts[index][:MAX_SENT_CHARS] for index in some])
            if rows.shape[1] != dimensions:
                raise Unavailable(f"{self.model_id} gave vectors of {rows.shape[1]} dimensions, not {dimensions}", 60)
            vectors[some] = rows
        return vectors

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _embed_some(self, texts: list[str]) -> NDArray[np.float32]:
        """One request; texts that the service refuses are tried in halves, a single one cut until it is taken."""
        try:
            return self._ask(texts)
        except _Refused as refusal:
            if len(texts) > 1:
                middle = len(texts) // 2
                return np.concatenate([self._embed_some(texts[:middle]), self._embed_some(texts[middle:])])
            if len(texts[0]) <= MIN_CUT_CHARS:
                raise Unavailable(f"{self.model_id} refused a text: {refusal}", 60) from None
            return self._embed_some([texts[0][: len(texts[0]) // 2]])

    def _ask(self, texts: list[str]) -> NDArray[np.float32]:
        # An empty text is an error there; a blank is not.
        body = {
            "model": self._model,
            "input": [text if text.strip() else " " for text in texts],
            "encoding_format": "float",
        }
        if self._down is not None and time.monotonic() < self._down[0]:
            raise Unavailable(self._down[1].message, self._down[1].retry_after)
        try:
            return _rows(self._patiently(msgspec.json.encode(body)), len(texts))
        except Unavailable as trouble:
            if self._prompt:
                self._down = time.monotonic() + PROMPT_TIMEOUT_SECONDS, trouble
            raise

    def _patiently(self, body: bytes) -> bytes:
        """The answer's body; a busy or failing service is asked again, with growing pauses, until patience ends."""
        deadline = time.monotonic() + self._patience
        trouble = ""
        for attempt in range(self._attempts):
            try:
                response = self._client.post("embeddings", content=body)
            except httpx.TransportError as error:
                trouble, pause = str(error) or type(error).__name__, 0.0
            except RuntimeError as error:  # httpx says so when the client is closed
                raise Unavailable(f"{self.model_id} cannot be asked: {error}") from None
            else:
                if response.is_success:
                    return response.content
                trouble, pause = _trouble(response), _retry_after(response)
            pause = max(pause, self._backoff * 2**attempt)
            if attempt + 1 == self._attempts or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
        raise Unavailable(f"{self.model_id} does not answer: {trouble}", 5)


def _trouble(response: httpx.Response) -> str:
    """What went wrong, if asking again may help. Raises _Refused or Unavailable if not."""
    said = f"status {response.status_code}: {response.text[:200]}"
    if response.status_code in _REFUSED_CONTENT_STATUSES:
        raise _Refused(said)
    if response.status_code not in _TRANSIENT_STATUSES:
        raise Unavailable(f"the embedding service at {response.url.host} answers with {said}", 60)
    return said


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the service asks for; 0 when it says nothing, or a date."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0


def _rows(content: bytes, count: int) -> NDArray[np.float32]:
    """The vectors of an answer in the order of the texts, each of length 1."""
    try:
        data = decode_json(content, _EmbeddingAnswer).data
        if sorted(row.index for row in data) != list(range(count)):
            raise ValueError(f"{len(data)} vectors for {count} texts")
        rows = np.array([row.embedding for row in sorted(data, key=lambda row: row.index)])
    except ValueError as error:  # msgspec's errors are ValueErrors, and so is numpy's for rows of unequal length
        raise Unavailable(f"the embedding service's answer cannot be used: {error}", 60) from None
    with np.errstate(over="ignore"):  # of absurd numbers, which the next line finds
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise Unavailable("the embedding service's answer cannot be used: a vector has no direction", 60)
    return (rows / lengths).astype(np.float32)


HASHING_DIMENSIONS = 384
GRAM_SIZES = (3, 4)
MAX_HASHED_TEXT_CHARS = 100_000
MAX_HASHED_WORD_CHARS = 64
"""Characters of a text, and of a word, that count: the rest is cut, so that no text takes more than milliseconds."""

_HASHED_WORD_PATTERN = re.compile(r"\w+")


class HashingEmbedder:
    """Vectors from letters alone, where there is no model: signed feature hashing, the same on every machine.

    Every word and every 3 and 4 letters of it pick a place and a sign in the vector by a fixed hash. Texts that share
    words, or parts of words, come out close; synonyms do not.
    """

    model_id = f"hashing-words-3-4-grams-{HASHING_DIMENSIONS}-v1"
    dimensions = HASHING_DIMENSIONS
    degraded = True
    is_loading = False

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), 384)."""
        vectors = np.zeros((len(texts), HASHING_DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(cooperative(texts)):
            vectors[row] = _vector(text)
        return vectors

    def close(self) -> None:
        """Nothing is held."""


def _vector(text: str) -> NDArray[np.float64]:
    plain = unicodedata.normalize("NFKC", text[:MAX_HASHED_TEXT_CHARS]).casefold()
    counts = Counter(word[:MAX_HASHED_WORD_CHARS] for word in _HASHED_WORD_PATTERN.findall(plain))
    if not counts:
        counts[plain.strip()] = 1  # punctuation, or nothing: still one place of its own
    words = [(_features(word), 1 + math.log(count)) for word, count in counts.items()]
    places = np.concatenate([places for (places, _), _ in words])
    weights = np.concatenate([weights * times for (_, weights), times in words])
    vector = np.bincount(places, weights, minlength=HASHING_DIMENSIONS)
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
    places = np.array([value % HASHING_DIMENSIONS for value in hashes], dtype=np.int64)
    signs = np.array([1.0 if value >> 63 else -1.0 for value in hashes])
    return places, signs * np.array([1.0, *[each] * len(grams)])


def _grams(word: str) -> Iterator[str]:
    """Groups of letters, the word's ends marked, so that ``<cat>`` and ``concatenate`` differ."""
    marked = f"<{word}>"
    for size in GRAM_SIZES:
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


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
    def is_loading(self) -> bool:
        """Whether the model is being read into memory, which takes seconds; others wait for that."""
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
    def is_loading(self) -> bool:
        """See `Embedder.is_loading`."""
        return self._embedder.is_loading

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
    patient = LocalEmbedder(
        embedder.folder, embedder.manifest, threads=threads, batch=batch, rest=INDEXING_MODEL_IDLE_SECONDS
    )
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
