"""Search index of a store's conflicting versions, built when a search needs it.

A version in conflict with a node is a past state, so the indexes of current texts do not contain it. The history knows
these versions. In stores without conflicts, a check costs one comparison in memory.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kgserve.platform.text.languages import LanguageSetting
from kgserve.projections.base import StoreFollowedByProjections
from kgserve.projections.history.row_state_history import RowStateInterval
from kgserve.projections.history_follower import HistoryProjection
from kgserve.projections.indexed_text import EntitySearchFilter, IndexedEntityText
from kgserve.projections.keyword_index import DocumentFrequencies, KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.storage.model.node_edge_rows import NodeRow

MAX_CONFLICT_HEADS = 10_000
"""Number of versions that are searched: those of the first nodes in the order of their ids."""
CONFLICT_EMBEDDING_BATCH_SIZE = 64
"""Maximum number of texts that one query embeds; later queries embed the rest."""

Vector = NDArray[np.float32]


class ConflictingVersionsIndex:
    """Keyword and vector index of a store's conflicting versions, each under its own key. Thread-safe."""

    def __init__(self, store: StoreFollowedByProjections, embedded: Callable[[list[str]], Vector]) -> None:
        """Initialize an empty index. ``embedded`` returns the vectors of texts."""
        self._folder = store.layout.views / "heads"
        self._embed = embedded
        self._lock = threading.Lock()
        self._index: KeywordIndex | None = None
        self._version: tuple[int, tuple[str, ...], LanguageSetting] | None = None
        self._texts: dict[str, IndexedEntityText] = {}
        self._rows: dict[str, NodeRow] = {}
        self._vectors: dict[str, Vector] = {}

    def follow(self, history: HistoryProjection) -> bool:
        """Update the index from the history. Return whether any version is in conflict.

        Raises Unavailable while the history cannot be read.
        """
        described = history.store.description
        version = history.store.heads_mark, described.indexed_attributes, described.language
        if version == self._version:
            return bool(self._rows)
        with self._lock:
            self._update(
                history.look(lambda known: known.heads(MAX_CONFLICT_HEADS)) if version[0] else [], *version[1:]
            )
            self._version = version
        return bool(self._rows)

    def row(self, key: str) -> NodeRow | None:
        """Return the version with a key, None if there is no such version."""
        return self._rows.get(key)

    def search_keywords(
        self, query: KeywordQuery, limit: int, only: EntitySearchFilter, other: DocumentFrequencies
    ) -> dict[str, float]:
        """Return the versions that match the words of a query, with BM25 scores.

        Term rarity is computed over these versions and the texts of ``other`` together.
        """
        index = self._index
        found = index.search(query, limit, only, other=other) if index else []
        return {hit.id: hit.score for hit in found}

    def search_vectors(self, vector: Vector, only: EntitySearchFilter) -> dict[str, float]:
        """Return the cosine similarities to ``vector`` of the versions that pass the filter."""
        near = self.vectors_of([key for key, row in self._rows.items() if only.passes_row(row)])
        return {key: float(each @ vector) for key, each in near.items()}

    def vectors_of(self, keys: Iterable[str]) -> dict[str, Vector]:
        """Return the vectors of the versions with non-empty text. Each call embeds a limited number of new texts."""
        texts, vectors = self._texts, self._vectors
        meanings = {key: text.meaning for key in keys if (text := texts.get(key)) is not None and text.meaning}
        if new := [key for key in meanings if key not in vectors][:CONFLICT_EMBEDDING_BATCH_SIZE]:
            # Another thread may do the same; a vector lost to that race is computed again.
            vectors = vectors | dict(zip(new, self._embed([meanings[key] for key in new]), strict=True))
            self._vectors = vectors
        return {key: vectors[key] for key in meanings if key in vectors}

    def clear(self) -> None:
        """Discard the index, in memory and on disk."""
        with self._lock:
            self._index, self._version = None, None
            self._texts, self._rows, self._vectors = {}, {}, {}
            shutil.rmtree(self._folder, ignore_errors=True)

    def _update(
        self, states: Sequence[RowStateInterval[NodeRow]], indexed: Sequence[str], language: LanguageSetting
    ) -> None:
        found = [(IndexedEntityText.of(state.row, indexed, state.first, state.last), state.row) for state in states]
        texts = {text.key: text for text, _ in found}
        if self._version is not None and self._version[2] != language:
            self._index, self._texts = None, {}  # the same texts have other words
        if self._index is None and texts:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._index = KeywordIndex(self._folder, language=language)
        if self._index is not None:
            new = [text for key, text in texts.items() if key not in self._texts and text.has_words]
            self._index.write(new, self._texts.keys() - texts.keys(), 1)
        self._texts, self._rows = texts, {text.key: row for text, row in found}
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in texts}
