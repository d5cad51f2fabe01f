"""The versions in conflict of a store, found as what is present is: a small index of them, made when somebody searches.

What is named beside a node is over, and so in no index of the present; the history knows which versions those are. In
stores without any, that is one look at a number in memory.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kgserve.projections.base import FollowedStore
from kgserve.projections.history.history import RowState
from kgserve.projections.history_follower import HistoryFollower
from kgserve.projections.keyword import Frequencies, KeywordIndex, Reading
from kgserve.projections.text import Filter, Text
from kgserve.storage.model.rows import NodeRow

MAX_CONFLICT_HEADS = 10_000
"""Versions that are searched: those of the first nodes by their ids."""
CONFLICT_EMBEDDING_BATCH_SIZE = 64
"""Vectors that one question makes; the next makes more."""

Vector = NDArray[np.float32]


class ConflictIndex:
    """Versions that nodes name beside themselves, each by a key of its own; any thread may ask."""

    def __init__(self, store: FollowedStore, embedded: Callable[[list[str]], Vector]) -> None:
        """``embedded`` gives the vectors of texts."""
        self._folder = store.layout.views / "heads"
        self._embedded = embedded
        self._lock = threading.Lock()
        self._index: KeywordIndex | None = None
        self._mark: tuple[int, tuple[str, ...]] | None = None
        self._texts: dict[str, Text] = {}
        self._rows: dict[str, NodeRow] = {}
        self._vectors: dict[str, Vector] = {}

    def follow(self, history: HistoryFollower) -> bool:
        """Take in what the history has come to; whether there are any. Raises Unavailable while it cannot be read."""
        mark = history.store.heads_mark, history.store.description.indexed_attributes
        if mark == self._mark:
            return bool(self._rows)
        with self._lock:
            self._take(history.look(lambda known: known.heads(MAX_CONFLICT_HEADS)) if mark[0] else [], mark[1])
            self._mark = mark
        return bool(self._rows)

    def row(self, key: str) -> NodeRow | None:
        """The version that has a key."""
        return self._rows.get(key)

    def words(self, query: str, limit: int, only: Filter, reading: Reading, other: Frequencies) -> dict[str, float]:
        """Those with the words of a query, with BM25 scores; words are as rare as among these and the others."""
        index = self._index
        found = index.search(query, limit, only, reading=reading, other=other) if index else []
        return {hit.id: hit.score for hit in found}

    def meaning(self, vector: Vector, only: Filter) -> dict[str, float]:
        """Cosine similarities of those that pass."""
        near = self.vectors_of([key for key, row in self._rows.items() if only.passes_row(row)])
        return {key: float(each @ vector) for key, each in near.items()}

    def vectors_of(self, keys: Iterable[str]) -> dict[str, Vector]:
        """The vectors of those that mean something; of many new ones, some at each question."""
        texts, vectors = self._texts, self._vectors
        meanings = {key: text.meaning for key in keys if (text := texts.get(key)) is not None and text.meaning}
        if new := [key for key in meanings if key not in vectors][:CONFLICT_EMBEDDING_BATCH_SIZE]:
            # Another thread may do so, too: what is then lost is made once more.
            vectors = vectors | dict(zip(new, self._embedded([meanings[key] for key in new]), strict=True))
            self._vectors = vectors
        return {key: vectors[key] for key in meanings if key in vectors}

    def clear(self) -> None:
        """Let go of all, in memory and on the disk."""
        with self._lock:
            self._index, self._mark = None, None
            self._texts, self._rows, self._vectors = {}, {}, {}
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, states: Sequence[RowState[NodeRow]], indexed: Sequence[str]) -> None:
        found = [(Text.of(state.row, indexed, state.first, state.last), state.row) for state in states]
        texts = {text.key: text for text, _ in found}
        if self._index is None and texts:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._index = KeywordIndex(self._folder)
        if self._index is not None:
            new = [text for key, text in texts.items() if key not in self._texts and text.has_words]
            self._index.write(new, self._texts.keys() - texts.keys(), 1)
        self._texts, self._rows = texts, {text.key: row for text, row in found}
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in texts}
