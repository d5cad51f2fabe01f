"""Search limited to nodes with given attributes, which the search indexes do not contain.

The catalog lists the nodes that have the attributes. If they are few, the indexes search among these ids only. If they
are many, the search requests more hits than needed and keeps those that match. If too few match, the indexes get all
ids after all. Results are exact. The cost grows with the square root of the number of nodes, at worst with the number
of nodes that have the attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from itertools import islice
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.graph.graph_reader import GraphReader
from kgserve.graph.search.search_index_interface import IndexDecorator, ScoredIds, SearchIndex
from kgserve.projections.catalog.attribute_index import MAX_COUNTED_ATTRIBUTE_NODES
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.projections.indexed_text import EntitySearchFilter
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.storage.model.attribute_filters import AttributeCondition
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

MAX_FILTERED_HITS = 3_200
"""Hits examined before all matching ids are passed to the index."""
# Number of ids whose cost equals that of one more keyword or semantic hit, including its row.
_IDS_PER_KEYWORD_HIT, _IDS_PER_VECTOR_HIT = 4, 12
_FILTER_OVERFETCH_FACTOR = 1.5
# Assumed share of values that are too frequent to be counted.
_FREQUENT_VALUE_SHARE = 0.5
_FILTER_POOL_GROWTH = 4
_UNLIMITED_NODES = 1 << 62

_Found = TypeVar("_Found")


class NodeAttributeMatcher:
    """Matcher of the nodes of a store that have given attributes, now or as of the commit of a reader."""

    def __init__(self, store: OpenStore, wanted: tuple[AttributeCondition, ...], reader: GraphReader) -> None:
        self._store = store
        self._wanted = wanted
        self._reader = reader

    @property
    def estimated_fraction(self) -> float:
        """Estimated fraction of all current nodes that have the attributes."""
        nodes = max(self._store.state.nodes, 1)
        return math.prod(
            _FREQUENT_VALUE_SHARE if count == MAX_COUNTED_ATTRIBUTE_NODES else count / nodes for count in self._counts
        )

    @property
    def count(self) -> int:
        """Upper bound of the current matching nodes; at `MAX_COUNTED_ATTRIBUTE_NODES` they may be more."""
        return min(self._counts)

    @cached_property
    def _counts(self) -> list[int]:
        return self._ask(lambda catalog, _: catalog.count_by_attribute(self._wanted))

    def among(self, only: EntitySearchFilter) -> EntitySearchFilter:
        """Return the filter, limited to these nodes. Raises Unavailable while the history is behind."""
        ids, past = self._ids
        return msgspec.structs.replace(
            only,
            ids=ids if only.ids is None else ids & only.ids,
            past_ids=past if only.past_ids is None else past & only.past_ids,
        )

    @cached_property
    def _ids(self) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of nodes that have the attributes now, and of those that had them in a past state as of the commit."""
        ids, seen = self._ask(
            lambda catalog, rows: (
                catalog.find_matching_ids(NodeFilter(attributes=self._wanted), _UNLIMITED_NODES),
                rows.at,
            )
        )
        return frozenset(ids), self._reader.nodes_formerly_matching(self._wanted, seen)

    def _ask(self, question: Callable[[NodeCatalog, RowsSnapshot], _Found]) -> _Found:
        return self._store.query_catalog(question, by_attributes=True)


class AttributeFilteredIndex(IndexDecorator):
    """An index that finds only nodes with some attributes."""

    def __init__(
        self,
        index: SearchIndex,
        matcher: NodeAttributeMatcher,
        passing: Callable[[Collection[str]], Collection[str]],
        max_tried: int = MAX_FILTERED_HITS,
    ) -> None:
        """Filter ``index``; ``passing`` returns the nodes whose rows match. At most ``max_tried`` hits are examined."""
        super().__init__(index)
        self._max_tried = max_tried
        self._matcher = matcher
        self._passing = passing

    @override
    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> ScoredIds:
        found = super().search_keywords
        return self._search_filtered(lambda pool, narrow: found(query, pool, narrow), limit, only, _IDS_PER_KEYWORD_HIT)

    @override
    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> ScoredIds:
        found = super().search_vectors
        return self._search_filtered(lambda pool, narrow: found(vector, pool, narrow), limit, only, _IDS_PER_VECTOR_HIT)

    def _search_filtered(
        self,
        search: Callable[[int, EntitySearchFilter], ScoredIds],
        limit: int,
        only: EntitySearchFilter,
        ids_per_hit: int,
    ) -> ScoredIds:
        for pool in self._pool_sizes(limit, ids_per_hit):
            found = search(pool, only)
            passing = self._passing(found)
            if len(passing) >= limit or len(found) < pool:
                return dict(islice(((key, score) for key, score in found.items() if key in passing), limit))
        return search(limit, self._matcher.among(only))

    def _pool_sizes(self, limit: int, ids_per_hit: int) -> Iterator[int]:
        """Yield numbers of hits to request, while that is likely cheaper than passing all ids."""
        pool = int(_FILTER_OVERFETCH_FACTOR * limit / max(self._matcher.estimated_fraction, 1e-9)) + 1
        while pool <= self._max_tried and ids_per_hit * pool < self._matcher.count:
            yield pool
            pool *= _FILTER_POOL_GROWTH
