"""The interface of search indexes, and decorators that change the results of another index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.projections.conflicting_versions_index import ConflictingVersionsIndex
from kgserve.projections.indexed_text import EntitySearchFilter
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes

ScoredIds = dict[str, float]
"""Ids with scores, best first."""


class SearchIndex(Protocol):
    """A keyword and vector index of the texts of nodes."""

    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> ScoredIds:
        """Return the best nodes for the words of a query, with BM25 scores.

        Raises InvalidInput for a query that cannot be parsed, Unavailable while the index is behind.
        """
        ...

    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return the BM25 scores of each word of a query for some texts, with current word frequencies."""
        ...

    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> ScoredIds:
        """Return the nearest nodes, with cosine similarities. Raises Unavailable while the index is behind."""
        ...

    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of those nodes that have one."""
        ...


class SearchIndexAtCommit(SearchIndex, Protocol):
    """The index of a store after one commit."""

    is_past: bool
    """True for the indexes of a former moment, which have neither versions in conflict nor part tokens."""
    required_sequence: int | None
    """Commit that the indexes of the store must contain before this one is used; None: any."""

    def applied_sequence(self, *, words_alone: bool = False) -> int:
        """Return the last commit whose texts are found; with ``words_alone``, by keywords."""
        ...


class IndexDecorator(SearchIndex):
    """An index that forwards every search to another one; subclasses override what they change."""

    def __init__(self, index: SearchIndex) -> None:
        self._index = index

    @override
    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> ScoredIds:
        return self._index.search_keywords(query, limit, only)

    @override
    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        return self._index.bm25_scores(query, texts)

    @override
    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> ScoredIds:
        return self._index.search_vectors(vector, limit, only)

    @override
    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        return self._index.vectors_of(ids)


class SearchIndexWithConflictingVersions(IndexDecorator):
    """An index of the current texts that includes versions in conflict.

    These versions have keys of their own. Their attributes are not indexed and must be checked in their rows.
    """

    def __init__(self, index: SearchIndex, indexes: CurrentAndPastTextIndexes, heads: ConflictingVersionsIndex) -> None:
        super().__init__(index)
        self._indexes = indexes
        self._heads = heads

    @override
    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> ScoredIds:
        frequencies = self._indexes.keyword.frequencies(query)
        found = self._heads.search_keywords(query, limit, only, frequencies)
        return _best(super().search_keywords(query, limit, only) | found, limit)

    @override
    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> ScoredIds:
        found = self._heads.search_vectors(vector, only)
        return _best(super().search_vectors(vector, limit, only) | found, limit)

    @override
    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        return super().vectors_of(ids) | self._heads.vectors_of(ids)


def _best(hits: ScoredIds, limit: int) -> ScoredIds:
    return dict(sorted(hits.items(), key=lambda hit: -hit[1])[:limit])
