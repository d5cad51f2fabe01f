"""A service that speaks OpenAI's embeddings format: ``POST {base}/embeddings``."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.decoding import decode_json
from kgserve.errors import Unavailable
from kgserve.outbound import address_of, headers_of

PATIENCE = 30.0
"""Seconds that one batch may take, all attempts together."""
MAX_ATTEMPTS = 5
PROMPT = 5.0
"""The same for somebody who waits for an answer, in `PROMPT_ATTEMPTS`; and for so long nobody asks again in vain."""
PROMPT_ATTEMPTS = 2
LONGEST_TEXT = 24_000
"""Characters of a text that are sent: about what such models read."""
SHORTEST_CUT = 500
KNOWN_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
}

_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
_REFUSED_CONTENT = {400, 413, 422}


class _Row(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Row]


class _Refused(Exception):
    """The service does not take these texts as they are."""


class OpenAIEmbedder:
    """Embeds over HTTP, in batches, with patience for a service that is busy. The key is never logged or shown."""

    degraded = False

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
        self._patience, self._attempts = (PROMPT, PROMPT_ATTEMPTS) if prompt else (PATIENCE, MAX_ATTEMPTS)
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
            rows = self._embed_some([texts[index][:LONGEST_TEXT] for index in some])
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
            if len(texts[0]) <= SHORTEST_CUT:
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
                self._down = time.monotonic() + PROMPT, trouble
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
    if response.status_code in _REFUSED_CONTENT:
        raise _Refused(said)
    if response.status_code not in _PASSING:
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
        data = decode_json(content, _Answer).data
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
