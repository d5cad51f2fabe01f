"""The keyword and the vector index of one open store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.cache import EmbeddingCache, QueryVectors, embed_cached
from kgserve.embedding.embedder import Embedder
from kgserve.errors import Conflict, Unavailable
from kgserve.store.store import Store
from kgserve.views.follower import IndexFollower, IndexState, folder_bytes
from kgserve.views.following import Step
from kgserve.views.keyword import Frequencies, KeywordHit, KeywordIndex
from kgserve.views.model_mark import read_model, write_model
from kgserve.views.past import PastKeywordFollower, PastState, PastVectorFollower
from kgserve.views.text import ANYTHING, Filter, Text
from kgserve.views.vector import VectorHit, VectorIndex

EMBED_AT_ONCE = 128
TEXTS_AT_ONCE = 500
SAVE_SECONDS = 300.0


class KeywordFollower(IndexFollower):
    """Keeps tantivy in step."""

    name = "keyword"
    _index: KeywordIndex | None = None

    def search(
        self,
        text: str,
        limit: int,
        only: Filter = ANYTHING,
        *,
        syntax: bool = False,
        beside: Frequencies | None = None,
    ) -> list[KeywordHit]:
        """See `KeywordIndex.search`. Raises Unavailable until the index is open."""
        return self._opened().search(text, limit, only, syntax=syntax, beside=beside)

    def frequencies(self, text: str) -> Frequencies:
        """How often the terms of a text are in the index."""
        index = self._opened()
        return index.frequencies(index.terms(text))

    def state(self) -> IndexState:
        """How it stands."""
        entities = len(self._index) if self._index else 0
        size = folder_bytes(self.store.layout.views / "keyword")
        return IndexState("keyword", self.reached, entities, self.pending, size, "tantivy", self.error)

    def close(self) -> None:
        """Release the index; every write has left it sealed."""
        self._index = None

    def _open(self) -> int:
        self._index = KeywordIndex(self.store.layout.views / "keyword")
        self.refill_wanted = self.refill_wanted or (self._index.fresh and self._refilling_is_shorter())
        return self._index.sequence

    def _clear(self) -> None:
        self._opened().clear()

    def _fill(self, texts: Iterator[Text], sequence: int) -> None:
        self._opened().write(self._counted(texts), (), sequence, bulk=True)

    def _follow(self, step: Step) -> None:
        self.pending = len(step.put)
        self._opened().write(self._counted(step.put), step.removed, step.sequence, bulk=len(step.put) > EMBED_AT_ONCE)

    def _counted(self, texts: Iterable[Text]) -> Iterator[Text]:
        started = time.perf_counter()
        for number, text in enumerate(texts, 1):
            self._continue()
            self.pending -= 1
            yield text
            if number % TEXTS_AT_ONCE == 0:
                self._give_way(time.perf_counter() - started)
                started = time.perf_counter()

    def _opened(self) -> KeywordIndex:
        if self._index is None:
            raise Unavailable("the keyword index is being opened", retry_after=1)
        return self._index


class VectorFollower(IndexFollower):
    """Keeps embeddings in step. A store remembers the model of its vectors; another model needs `kgserve reindex`."""

    name = "vector"
    _index: VectorIndex | None = None
    _cache: EmbeddingCache | None = None

    def __init__(self, store: Store, embedder: Embedder) -> None:
        super().__init__(store)
        self._embedder = embedder
        self._folder = store.layout.views / "vector"
        self._model_file = store.layout.views / "model"
        self._saved_at = time.monotonic()
        self._saved = 0

    def search(self, vector: NDArray[np.float32], limit: int, only: Filter = ANYTHING) -> list[VectorHit]:
        """See `VectorIndex.search`. Raises Unavailable until it is open, Conflict for another model's vectors."""
        return self._opened().search(vector, limit, only)

    def vectors_of(self, ids: list[str], as_of: int | None = None) -> dict[str, NDArray[np.float32]]:
        """See `VectorIndex.vectors_of`."""
        return self._opened().vectors_of(ids, as_of)

    def require(self) -> None:
        """Raises what `search` would if it could not be answered now."""
        self._opened()

    def state(self) -> IndexState:
        """How it stands."""
        entities = len(self._index) if self._index else 0
        size = folder_bytes(self._folder)
        model = self._remembered() or self._embedder.model_id
        return IndexState("vector", self.reached, entities, self.pending, size, model, self.error)

    def change_model(self) -> None:
        """Take the present model from now on: all vectors are made anew with the next step."""
        self._model_file.unlink(missing_ok=True)
        self.refill_wanted = True

    def close(self) -> None:
        """Save the vectors, so that opening again reads instead of computing."""
        if self._index is not None and self.sequence > self._saved and not self.refill_wanted:
            self._index.save(self.sequence)
        self._index = None
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def _open(self) -> int:
        self.check_model()
        # A service is asked for its dimensions, and may not answer: first, while there is nothing to close.
        dimensions = self._embedder.dimensions
        self._cache = self._cache or EmbeddingCache(self.store.layout.views / "embeddings.sqlite")
        self._index = VectorIndex(self._folder, dimensions, self._embedder.model_id, between=self._continue)
        self.refill_wanted = self.refill_wanted or (self._index.fresh and self._refilling_is_shorter())
        self._saved = self._index.sequence
        return self._index.sequence

    def _clear(self) -> None:
        self._opened().clear()

    def _fill(self, texts: Iterator[Text], sequence: int) -> None:
        self._remember()
        with_content = (text for text in texts if text.content)
        while some := list(islice(with_content, EMBED_AT_ONCE)):
            self._embed(some)
        self._opened().save(sequence)
        self._saved, self._saved_at = sequence, time.monotonic()

    def _follow(self, step: Step) -> None:
        self.check_model()
        self._remember()
        put = [text for text in step.put if text.content]
        self.pending = len(put)
        self._opened().remove([*step.removed, *(text.id for text in step.put if not text.content)])
        for first in range(0, len(put), EMBED_AT_ONCE):
            self._embed(put[first : first + EMBED_AT_ONCE])
        self.pending = 0
        if time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._opened().save(step.sequence)
            self._saved, self._saved_at = step.sequence, time.monotonic()

    def _embed(self, texts: list[Text]) -> None:
        self._continue()
        started = time.perf_counter()
        if self._cache is None:
            raise Unavailable("the embedding cache is closed")
        vectors = embed_cached(self._embedder, self._cache, [text.content for text in texts])
        ids, types = [text.id for text in texts], [text.type for text in texts]
        self._opened().put(ids, types, vectors, [text.since for text in texts], [text.marks for text in texts])
        self.pending = max(self.pending - len(texts), 0)
        self._give_way(time.perf_counter() - started)

    def check_model(self) -> None:
        """Raise Conflict when the store's vectors are of another model than the server's."""
        remembered = self._remembered()
        if remembered is not None and remembered != self._embedder.model_id:
            raise Conflict(
                f"the vectors of store {self.store.name!r} are of model {remembered}, the server's is "
                f"{self._embedder.model_id}; run `kgserve reindex {self.store.name}` to make them anew"
            )

    def _remembered(self) -> str | None:
        return read_model(self._model_file)

    def _remember(self) -> None:
        if self._remembered() is None:
            write_model(self._model_file, self._embedder.model_id)

    def _opened(self) -> VectorIndex:
        if self._index is None:
            self.check_model()
            raise Unavailable("the vector index is being opened", retry_after=1)
        return self._index


class Indexes:
    """The indexes of a store: of the present, and of what it no longer holds."""

    def __init__(self, store: Store, queries: QueryVectors, patient: Embedder) -> None:
        self.store = store
        self.queries = queries
        self.keyword = KeywordFollower(store)
        self.vector = VectorFollower(store, patient)
        self.past_keyword = PastKeywordFollower(store)
        self.past_vector = PastVectorFollower(store, patient, self.vector.check_model)

    def states(self) -> list[IndexState | PastState]:
        """How they stand; those of the past only while there is a history for them to follow."""
        past = [view.state() for view in (self.past_keyword, self.past_vector) if view.is_wanted]
        return [self.keyword.state(), self.vector.state(), *past]

    def seen(self, *, words_alone: bool = False) -> int:
        """The commit that both, or the keyword index alone, have seen."""
        return max(self.keyword.sequence if words_alone else min(self.keyword.sequence, self.vector.sequence), 0)

    def wait(self, sequence: int, seconds: float, *, words_alone: bool = False) -> bool:
        """Block until both, or the keyword index alone, have seen a commit; whether they have."""
        deadline = time.monotonic() + seconds
        followers = (self.keyword,) if words_alone else (self.keyword, self.vector)
        return all(follower.wait(sequence, max(deadline - time.monotonic(), 0)) for follower in followers)

    def words(self, query: str, limit: int, only: Filter, *, syntax: bool) -> dict[str, float]:
        """The best entities for the words of a query, with BM25 scores, best first. Raises what `search` does."""
        return {hit.id: hit.score for hit in self.keyword.search(query, limit, only, syntax=syntax)}

    def meaning(self, vector: NDArray[np.float32], limit: int, only: Filter) -> dict[str, float]:
        """The nearest entities, with cosine similarities, nearest first. Raises what `search` does."""
        return {hit.id: hit.similarity for hit in self.vector.search(vector, limit, only)}

    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors of those entities that have one."""
        return self.vector.vectors_of(ids)
