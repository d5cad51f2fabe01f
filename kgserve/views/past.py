"""The indexes of what a store no longer holds: texts that were replaced or deleted, each with when it held.

They follow the history, from state to state in the order in which those ended, so that filling them anew and keeping
them in step is the same. What the history has forgotten they forget, too.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.errors import Unavailable
from kgserve.history.history import State
from kgserve.history.reading import Ended, Place, read_ended
from kgserve.model.rows import NodeRow
from kgserve.store.store import Store
from kgserve.views.embed import Embedder
from kgserve.views.embeddings import EmbeddingCache, embed_cached
from kgserve.views.filters import Filter
from kgserve.views.follower import View, folder_bytes
from kgserve.views.keyword import Frequencies, KeywordHit, KeywordIndex
from kgserve.views.past_vectors import PastVectors, forget
from kgserve.views.text import Text, past_key
from kgserve.views.vector import VectorHit

Found = TypeVar("Found")

STATES_AT_ONCE = 2_000
VECTORS_AT_ONCE = 128
# Looks at a history that is behind and does not get on, until the next commit.
PATIENT_LOOKS = 100


class PastState(msgspec.Struct, frozen=True):
    """How an index of the past stands; as `IndexState`."""

    name: Literal["past-keyword", "past-vector"]
    sequence: int
    entities: int
    pending: int
    bytes: int
    model: str
    error: str | None


class PastFollower(View):
    """Takes in the states that are over."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._history = store.layout.root / "history.sqlite"
        self._place = Place(0)
        self._looks = 0
        self._forgotten = 0

    @property
    def is_wanted(self) -> bool:
        """Whether the store keeps a history."""
        return self.store.settings.history and self.store.description.history != "none"

    def step(self) -> bool:
        """See `View.step`."""
        self._continue()
        if self.sequence < 0:
            self._begin_at(self._open())
        if self.refill_wanted or self.sequence > (self.store.journal.last if self.is_wanted else 0):
            self._start_over()
        more = self.is_wanted and self._advance()
        self.error = None
        return more

    def wait(self, sequence: int, seconds: float) -> bool:
        """See `View.wait`. The history must have seen the commit."""
        if self.sequence < sequence:
            self.wake()
        return super().wait(sequence, seconds)

    def _start_over(self) -> None:
        # First, so that whoever has searched meanwhile sees that there was not everything.
        self._begin_at(0)
        self.refill_wanted = False
        try:
            self._clear()
        except BaseException:
            self.refill_wanted = True
            raise

    @abstractmethod
    def count(self) -> int:
        """Texts in it. Raises Unavailable until it is open."""

    @abstractmethod
    def state(self) -> PastState:
        """How it stands."""

    @property
    def _reached(self) -> int:
        return 0 if self.refill_wanted else max(self.sequence, 0)

    @abstractmethod
    def _clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def _take(self, texts: list[Text], sequence: int, ended: int) -> None:
        """Take in texts, note the commit that it has come to, and forget what had ended by another."""

    def _advance(self) -> bool:
        started = time.perf_counter()
        found = read_ended(self._history, self._place, STATES_AT_ONCE)
        if found is not None:
            self._take_in(found)
        self._give_way(time.perf_counter() - started)
        more = found is not None and len(found.states) == STATES_AT_ONCE
        if not more and (found is None or found.seen < self.store.state.sequence):
            self._look_again()
        return more

    def _take_in(self, found: Ended) -> None:
        if found.states or self._forgotten < found.oldest:
            texts = runs(state for state in found.states if (state.last or 0) > found.oldest)
            self._take(texts, found.sequence, found.oldest)
        if found.sequence > self.sequence:
            self._looks = 0
        self._place, self._forgotten = found.place, found.oldest
        self._move(found.sequence)

    def _look_again(self) -> None:
        """Come back a moment later: the history is yet to see a commit, and nobody tells when it has."""
        self._looks += 1
        if self._looks < PATIENT_LOOKS:
            self.wake_later()

    def _begin_at(self, sequence: int) -> None:
        self._place, self._forgotten = Place(sequence + 1), 0
        self._move(sequence)


class PastKeywordFollower(PastFollower):
    """Words of the past, in a tantivy index as that of the present."""

    name = "past keyword"
    _index: KeywordIndex | None = None

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._folder = store.layout.views / "past-keyword"

    def search(
        self, text: str, limit: int, only: Filter, *, syntax: bool = False, beside: Frequencies | None = None
    ) -> list[KeywordHit]:
        """See `KeywordIndex.search`; hits bear ids. Raises Unavailable until it is open."""
        found = self._opened().search(text, limit, only, syntax=syntax, beside=beside)
        return [KeywordHit(past_key(hit.id).id, hit.score) for hit in found]

    def frequencies(self, text: str) -> Frequencies:
        """How often the terms of a text are in the index."""
        index = self._opened()
        return index.frequencies(index.terms(text))

    def count(self) -> int:
        """See `PastFollower.count`."""
        return len(self._opened())

    def state(self) -> PastState:
        """See `PastFollower.state`."""
        index = self._index
        entities = 0 if index is None else len(index)
        return PastState("past-keyword", self._reached, entities, 0, folder_bytes(self._folder), "tantivy", self.error)

    def close(self) -> None:
        """Release the index; every write has left it sealed."""
        self._index = None

    def _open(self) -> int:
        self._index = KeywordIndex(self._folder)
        return self._index.sequence

    def _clear(self) -> None:
        self._index = None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._index = KeywordIndex(self._folder)

    def _take(self, texts: list[Text], sequence: int, ended: int) -> None:
        index = self._opened()
        put = [index.lengthened(text) for text in texts if text.has_words]
        index.write(put, (), sequence, bulk=len(put) > VECTORS_AT_ONCE, ended=ended)

    def _opened(self) -> KeywordIndex:
        if self._index is None:
            raise Unavailable("the keyword index of the past is being opened", retry_after=1)
        return self._index


class PastVectorFollower(PastFollower):
    """Meanings of the past. Most of their vectors are in the cache, because they were of the present once."""

    name = "past vector"
    _index: PastVectors | None = None
    _cache: EmbeddingCache | None = None

    def __init__(self, store: Store, embedder: Embedder, check_model: Callable[[], None]) -> None:
        """Embed with ``embedder``; ``check_model`` raises when the store's vectors are of another model."""
        super().__init__(store)
        self._embedder = embedder
        self._check_model = check_model
        self._folder = store.layout.views / "past-vector"

    def search(self, vector: NDArray[np.float32], limit: int, only: Filter) -> list[VectorHit]:
        """See `PastVectors.search`. Raises Unavailable until it is open."""
        return self._look(lambda index: index.search(vector, limit, only))

    def vectors_of(self, ids: Sequence[str], as_of: int) -> dict[str, NDArray[np.float32]]:
        """See `PastVectors.vectors_of`."""
        return self._look(lambda index: index.vectors_of(ids, as_of))

    def count(self) -> int:
        """See `PastFollower.count`."""
        return self._look(len)

    def state(self) -> PastState:
        """See `PastFollower.state`."""
        index = self._index
        entities = 0 if index is None else len(index)
        size, model = folder_bytes(self._folder), self._embedder.model_id
        return PastState("past-vector", self._reached, entities, 0, size, model, self.error)

    def close(self) -> None:
        """Release the files."""
        for each in (self._index, self._cache):
            if each is not None:
                each.close()
        self._index = self._cache = None

    def step(self) -> bool:
        """See `View.step`; a damaged file is made anew."""
        try:
            return super().step()
        except sqlite3.DatabaseError:
            self.refill_wanted = True
            raise

    def _open(self) -> int:
        self._check_model()
        self.close()
        self._cache = EmbeddingCache(self.store.layout.views / "embeddings.sqlite")
        self._index = PastVectors(self._folder, self._embedder.dimensions, self._embedder.model_id)
        return self._index.sequence

    def _clear(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
        forget(self._folder)
        self._open()

    def _take(self, texts: list[Text], sequence: int, ended: int) -> None:
        self._check_model()
        index, cache = self._opened(), self._cache
        if cache is None:
            raise Unavailable("the cache of embeddings is closed")
        texts = [text for text in texts if text.content]
        for first in range(0, len(texts), VECTORS_AT_ONCE):
            self._continue()
            some = texts[first : first + VECTORS_AT_ONCE]
            contents = sorted({text.content for text in some} - index.known(some))
            vectors = embed_cached(self._embedder, cache, contents)
            index.write(some, dict(zip(contents, vectors, strict=True)), index.sequence, 0)
        index.write((), {}, sequence, ended)

    def _look(self, question: Callable[[PastVectors], Found]) -> Found:
        try:
            return question(self._opened())
        except sqlite3.DatabaseError as error:
            self.refill_wanted = True
            self.wake()
            raise Unavailable("the vectors of the past are damaged and are being made anew", retry_after=2) from error

    def _opened(self) -> PastVectors:
        if self._index is None:
            self._check_model()
            raise Unavailable("the vectors of the past are being opened", retry_after=1)
        return self._index


def runs(states: Iterable[State[NodeRow]]) -> list[Text]:
    """The texts of states that are over, in the order of their ends; states in a row that say the same are one."""
    found: dict[str, list[Text]] = {}
    for state in states:
        text = Text.of(state.row, state.first, state.last)
        before = found.setdefault(text.id, [])
        if before and before[-1].until == text.since and before[-1].says == text.says:
            text = msgspec.structs.replace(text, since=before.pop().since)
        before.append(text)
    return [text for texts in found.values() for text in texts]
