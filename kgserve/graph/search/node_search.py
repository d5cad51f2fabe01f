"""Keyword, semantic, hybrid and graph search for nodes, and context for language models."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.cache import QueryVectorCache
from kgserve.errors import InvalidInput, NoStore, Unavailable
from kgserve.graph import llm_context_text as texts
from kgserve.graph import row_to_api_conversion
from kgserve.graph.answers import (
    BatchSearchAnswer,
    BatchSearchHit,
    Edge,
    LlmContextAnswer,
    Node,
    SearchAnswer,
    SearchHit,
)
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.federated_traversal import QualifiedNodeId, find_cross_store_linked_nodes
from kgserve.graph.graph_reader import GraphReader, open_graph_reader
from kgserve.graph.request_bodies import LlmContextRequest, MultiQuerySearchRequest, SearchQueryVariant, SearchRequest
from kgserve.graph.request_validation import (
    ValidationErrorCollector,
    convert_attribute_filter_to_conditions,
    get_value_of_aliased_field,
)
from kgserve.graph.search import score_fusion
from kgserve.graph.search.attribute_filtered_search import AttributeFilteredIndex, NodeAttributeMatcher
from kgserve.graph.search.conversation_turn_scores import TurnTokenMaxSimScores
from kgserve.graph.search.hybrid_rank import HybridRanking, HybridRankingCallbacks, KeywordAndSemanticHits
from kgserve.graph.search.late_interaction import compute_query_token_maxsim
from kgserve.graph.search.score_fusion import FUSION_POOL_HITS, EntityMatchScores, NeighbourWeights, RankedHit
from kgserve.graph.search.search_index_interface import SearchIndexAtCommit, SearchIndexWithConflictingVersions
from kgserve.graph.search.search_notices import SearchNotices
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.metrics.app_metrics_and_request_context import attribute_time_to_request_part
from kgserve.projections.conflicting_versions_index import ConflictingVersionsIndex
from kgserve.projections.indexed_text import EntitySearchFilter
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.storage.model.attribute_filters import AttributeCondition, matches_attribute_conditions
from kgserve.storage.model.breadth_first_traversal import clamp_traversal_depth
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import get_conflicting_node_head_versions
from kgserve.stores.open_store import OpenStore


class StoreSearchSnapshot(msgspec.Struct):
    """A store's graph, current or as of a commit, with the index of its texts, as one search sees them.

    ``indexes`` are those of the current texts. ``heads`` are versions in conflict, if they are searched, too.
    """

    store: OpenStore
    reader: GraphReader
    index: SearchIndexAtCommit
    indexes: CurrentAndPastTextIndexes
    words_alone: bool = False
    heads: ConflictingVersionsIndex | None = None

    @property
    def queries(self) -> QueryVectorCache:
        """Cache of query vectors."""
        return self.indexes.queries

    @property
    def sequence(self) -> int:
        """The commit that was searched, or the last one that the indexes contain."""
        return self.index.applied_sequence(words_alone=self.words_alone)

    def among(self, wanted: tuple[AttributeCondition, ...]) -> AttributeFilteredIndex:
        """Return the index, limited to nodes that have some attributes."""

        def passing(ids: Collection[str]) -> set[str]:
            return {
                row.id
                for row in self.reader.valid_nodes(ids).values()
                if matches_attribute_conditions(row.attributes, wanted)
            }

        return AttributeFilteredIndex(self.index, NodeAttributeMatcher(self.store, wanted, self.reader), passing)

    def token_scores(self, query: str, ids: Sequence[str]) -> TurnTokenMaxSimScores | None:
        """Return the scores of late interaction; None if the nodes have no tokens, and for a past moment."""
        if not self.indexes.has_vectors or not self.reader.is_current:
            return None
        return compute_query_token_maxsim(self.queries.tokens_of(query), self.indexes.vector.tokens, ids)

    @property
    def degraded(self) -> bool:
        """True if no embedding model is available for semantic search."""
        return self.indexes.degraded


@contextmanager
def open_store_search_snapshot(
    store: OpenStore, indexer: TextIndexWorker, past: PastMoment | None, valid_at: str | None
) -> Generator[StoreSearchSnapshot]:
    """Yield a search of a store, whose indexes may still lag behind the commit. Raises what `read_graph` does."""
    indexes = indexer.of(store)
    with open_graph_reader(store, past, valid_at) as reader:
        yield StoreSearchSnapshot(store, reader, reader.search_index(indexes), indexes)


MAX_SEARCH_LIMIT = 100
MAX_HITS_PER_QUERY = 50
DEFAULT_SEARCH_LIMIT = 20
AT_LEAST_TIMEOUT_SECONDS = 10.0
LATEST_VECTORS_TIMEOUT_SECONDS = 0.5
LATEST_WORDS_TIMEOUT_SECONDS = 5.0
MAX_TITLE_CHARS = 100
"""Length of the longest query that is compared with titles; longer ones are sentences."""
MAX_GRAPH_STARTS = 5
MAX_GRAPH_SEARCH_NODES = 1000
# Additional hits to read, because entities may have been deleted since they were indexed.
_DELETED_HITS_OVERFETCH = 10

EmbeddingArray = NDArray[np.float32]
_Asked = TypeVar("_Asked", SearchRequest, SearchQueryVariant)


class RankedHitWithRawScores(msgspec.Struct, frozen=True):
    """A ranked entity with its original keyword and semantic scores, before normalization."""

    ranked: RankedHit
    keyword: float | None
    semantic: float | None


def search_store_nodes(graph: StoreHandle, request: SearchRequest) -> SearchAnswer:
    """Return the best nodes, best first. `hybrid` (the default) combines keywords, meaning and relations.

    `at_least` waits until the indexes contain a write: pass the `sequence` of its answer. With `as_of`, hits, rows and
    relations are those of that moment; only word frequencies are counted over past and current texts.

    Raises Unavailable while an index is being opened, does not reach `at_least` in time or is rebuilt meanwhile, and
    Conflict when the store's vectors are of another model.
    """
    started = time.perf_counter()
    request = _with_types(request)
    attributes = {"kgserve.store": graph.name, "kgserve.search.mode": request.mode}
    with (
        open_search_snapshot_when_indexed(graph, request, words_alone=request.mode == "keyword") as searched,
        # After the wait, because a waiting request may be suspended and restarted.
        graph.pool.observation.span("search", attributes),
    ):
        searched.heads = _heads(graph, searched, request.at_least)
        finder = NodeSearchExecutor(searched, request)
        hits = finder.page(max(1, min(request.limit, MAX_SEARCH_LIMIT)), request.offset)
        degraded, sequence = searched.degraded, searched.sequence
        notice = finder.notices.text(has_hits=bool(hits), degraded=degraded)
    return SearchAnswer(
        hits=hits, degraded=degraded, notice=notice, index_sequence=sequence, took_ms=compute_elapsed_ms(started)
    )


def search_query_variants(graph: StoreHandle, request: MultiQuerySearchRequest) -> BatchSearchAnswer:
    """Run 1 to 8 variants and combine them by reciprocal rank fusion (k = 60); ties keep the order of appearance.

    Raises what a search raises; an error of one variant fails the whole request.
    """
    started = time.perf_counter()
    nodes: dict[str, Node] = {}
    rankings: list[list[str]] = []
    notices = SearchNotices()
    with open_search_snapshot_when_indexed(
        graph, request, words_alone=all(each.mode == "keyword" for each in request.queries)
    ) as searched:
        searched.heads = _heads(graph, searched, request.at_least)
        for variant in request.queries:
            finder = NodeSearchExecutor(searched, _to_search_request(_with_types(variant)), notices=notices)
            hits = finder.page(_clamp_limit(variant.limit, MAX_HITS_PER_QUERY), 0)
            # For a node in conflict, the version found first is used.
            nodes = {hit.node.id: hit.node for hit in reversed(hits)} | nodes
            rankings.append([*dict.fromkeys(hit.node.id for hit in hits)])
        degraded, sequence = searched.degraded, searched.sequence
    scores = score_fusion.reciprocal_rank_fusion(rankings)
    best = list(scores)[: _clamp_limit(request.limit, MAX_SEARCH_LIMIT)]
    return BatchSearchAnswer(
        hits=[
            BatchSearchHit(node=nodes[key], score=scores[key], queries_matched=_matching_queries(key, rankings))
            for key in best
        ],
        query_count=len(rankings),
        unique_hits=len(scores),
        per_query_hits=[len(ranking) for ranking in rankings],
        degraded=degraded,
        notice=notices.text(has_hits=bool(best), degraded=degraded),
        index_sequence=sequence,
        took_ms=compute_elapsed_ms(started),
    )


def _heads(graph: StoreHandle, searched: StoreSearchSnapshot, at_least: int | None) -> ConflictingVersionsIndex | None:
    """Return the index of versions in conflict, if any exist; a search of the past finds only what was current."""
    store, historian = searched.store, graph.graphs.historian
    may_have = store.heads_mark or store.description.conflict_policy == "manual"
    if historian is None or searched.index.is_past or not may_have:
        return None
    history, heads = historian.state_of_store(store), searched.indexes.heads
    if history is None or history.is_disabled:
        return None
    history.wait(at_least or 0, AT_LEAST_TIMEOUT_SECONDS)
    # An index that is still being opened contains no conflicts yet.
    with suppress(Unavailable):
        return heads if heads.follow(history) else None
    return None


def build_llm_context(graph: StoreHandle, request: LlmContextRequest) -> LlmContextAnswer:
    """Return the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text never exceeds the budget. With `also`, the best nodes of several stores are combined, each with its store.
    With `follow_symlinks`, nodes that edges into and out of other stores connect to them are included.

    Raises what a search raises.
    """
    limit = max(1, min(request.limit, MAX_SEARCH_LIMIT))
    notices = SearchNotices()
    if not request.also:
        label = graph.name if request.follow_symlinks else ""
        parts = [_search_one_store(graph, request, limit, notices, label=label)]
    else:
        graphs = stores_to_search(graph, request.also, request.as_of)
        by_store = {each.name: request if each is graph else drop_request_minimum_sequence(request) for each in graphs}
        top = max(_search_one_store(each, by_store[each.name], 1, notices).top for each in graphs)
        parts = [_search_one_store(each, by_store[each.name], limit, notices, top, each.name) for each in graphs]
    best = sorted((each for part in parts for each in part.found), key=lambda found: -found[0])[:limit]
    entries = _with_linked(graph, request, best, limit) if request.follow_symlinks else [entry for _, entry in best]
    made = (texts.render_llm_context_markdown if request.format == "markdown" else texts.render_llm_context_json)(
        entries, request.budget
    )
    included = entries[: made.count]
    degraded = any(part.degraded for part in parts)
    return LlmContextAnswer(
        text=made.text,
        tokens=made.tokens,
        ids=[each.node.id for each in included],
        stores=[each.store for each in included] if request.also or request.follow_symlinks else msgspec.UNSET,
        truncated=made.truncated,
        degraded=degraded,
        notice=notices.text(has_hits=bool(included), degraded=degraded),
        index_sequence=next((part.sequence for part in parts if part.store == graph.name), 0),
    )


def _with_linked(
    graph: StoreHandle, request: LlmContextRequest, best: list[tuple[float, texts.ContextNodeEntry]], limit: int
) -> list[texts.ContextNodeEntry]:
    """Return the entries with nodes linked to them, at half their score, that match the same filters."""
    scores = {QualifiedNodeId(entry.store, entry.node.id): score for score, entry in best}
    found = find_cross_store_linked_nodes(graph, scores, request, limit)
    wanted = NodeFilter(
        types=tuple(request.types or ()), attributes=convert_attribute_filter_to_conditions(request.attributes)
    )
    more = [
        (score, texts.ContextNodeEntry(node, (), store))
        for score, store, row, node in found.nodes
        if wanted.matches(row)
    ]
    entries = [entry for _, entry in sorted((*best, *more), key=lambda each: -each[0])[:limit]]
    return texts.attach_links_to_context_entries(entries, found.links)


class _StoreMatches(NamedTuple):
    """Matches of one store with scores, best first; ``top`` is the best keyword score."""

    store: str
    found: list[tuple[float, texts.ContextNodeEntry]]
    top: float
    degraded: bool
    sequence: int


def _search_one_store(
    graph: StoreHandle,
    request: LlmContextRequest,
    limit: int,
    notices: SearchNotices,
    top: float = 0.0,
    label: str = "",
) -> _StoreMatches:
    wanted = SearchRequest(
        query=request.query, types=request.types, attributes=request.attributes, prefix=request.prefix
    )
    with open_search_snapshot_when_indexed(graph, request, words_alone=False) as searched:
        finder = NodeSearchExecutor(searched, wanted, top, notices)
        hits = finder.page(limit, 0)
        nodes = [hit.node for hit in hits]
        entries = texts.build_llm_context_entries(nodes, _edges_between(searched.reader, nodes), label)
        scores = [hit.score for hit in hits]
        found = [*zip(scores, entries, strict=True)]
        return _StoreMatches(graph.name, found, finder.top, searched.degraded, searched.sequence)


def stores_to_search(graph: StoreHandle, also: Sequence[str], as_of: int | str | None) -> list[StoreHandle]:
    """Return the stores to search together, the store of the request first, if it exists.

    Raises NoStore for a missing one, and InvalidInput for a sequence, which is specific to one store.
    """
    if as_of is not None and PastMoment(None, as_of).is_sequence:
        raise InvalidInput.at("as_of", "a sequence applies to one store only; with `also`, use a time")
    return graph.handles_including(also)


R = TypeVar("R", bound=msgspec.Struct)


def drop_request_minimum_sequence(request: R) -> R:
    """Return the request without `at_least`, the minimum commit sequence, which applies to one store only."""
    return msgspec.structs.replace(request, at_least=None)


class CommonSearchParameters(Protocol):
    """Parameters that every kind of search has."""

    @property
    def at_least(self) -> int | None:
        """The commit that the indexes must contain."""

    @property
    def as_of(self) -> int | str | None:
        """The commit, or the time, to read the store as of."""

    @property
    def valid_at(self) -> str | None:
        """The valid time."""


@contextmanager
def open_search_snapshot_when_indexed(
    graph: StoreHandle, asked: CommonSearchParameters, *, words_alone: bool, patience: float = 0.0
) -> Generator[StoreSearchSnapshot]:
    """Yield a search of the store at the requested moment, once its indexes contain the required commit.

    words_alone: wait for the keyword index only. patience: seconds to wait for the indexes to catch up with the store,
    if the request names no commit.
    """
    indexer = graph.graphs.indexer
    if indexer is None:
        raise Unavailable("indexes are turned off on this server; search is not available", retry_after=3600)
    with graph.lease() as store:
        indexes = indexer.of(store)
        indexes.require()
        with attribute_time_to_request_part("index_wait"):
            wait_until_commit_indexed(indexes, asked.at_least, words_alone=words_alone)
            if patience > 0 and asked.at_least is None and asked.as_of is None:
                indexes.catch_up(patience, words_alone=words_alone)
            indexes.require_built(words_alone=words_alone)
        with open_store_search_snapshot(store, indexer, graph.resolve_as_of(asked.as_of), asked.valid_at) as searched:
            searched.words_alone = words_alone
            if searched.index.required_sequence is not None:
                wait_until_commit_indexed(
                    indexes, searched.index.required_sequence, words_alone=words_alone, why="as_of"
                )
            yield searched
            if (needed := asked.at_least) is not None and indexes.applied_sequence(words_alone=words_alone) < needed:
                # The indexes were rebuilt meanwhile: suspend the request, if possible, until they contain the commit.
                wait_until_commit_indexed(indexes, needed, words_alone=words_alone)
                raise Unavailable("the indexes were rebuilt meanwhile; try again", retry_after=1)


def compute_elapsed_ms(started: float) -> float:
    """Return the milliseconds since a reading of the performance counter."""
    return round((time.perf_counter() - started) * 1000, 3)


def _edges_between(reader: GraphReader, nodes: list[Node]) -> list[Edge]:
    ids = {node.id for node in nodes}
    return [
        row_to_api_conversion.build_api_edge_from_row(row)
        for node in nodes
        for row in reader.outgoing(node.id)
        if row.target in ids
    ]


def _to_search_request(variant: SearchQueryVariant) -> SearchRequest:
    return SearchRequest(
        query=variant.query,
        mode=variant.mode,
        types=variant.types,
        id_prefix=variant.id_prefix,
        min_similarity=variant.min_similarity,
        tags=variant.tags,
        attributes=variant.attributes,
        fresh_only=variant.fresh_only,
        prefix=variant.prefix,
    )


def _with_types(asked: _Asked) -> _Asked:
    """Return the request with `kinds` moved to `types`; empty `kinds` mean all. Raises InvalidInput if both differ."""
    if not asked.kinds:
        return asked
    faults = ValidationErrorCollector()
    types = get_value_of_aliased_field(faults, "kinds", asked.kinds, "types", asked.types)
    faults.raise_any()
    return msgspec.structs.replace(asked, types=types, kinds=None)


def _clamp_limit(limit: int, most: int) -> int:
    return DEFAULT_SEARCH_LIMIT if limit <= 0 else min(limit, most)


def _matching_queries(key: str, rankings: list[list[str]]) -> list[int]:
    return [place for place, ranking in enumerate(rankings) if key in ranking]


def wait_until_commit_indexed(
    indexes: CurrentAndPastTextIndexes,
    sequence: int | None,
    *,
    words_alone: bool,
    why: Literal["at_least", "as_of"] = "at_least",
) -> None:
    """Wait until both indexes, or the keyword index alone, contain a commit.

    Raises Unavailable after ten seconds, Conflict when the vectors are of another model, and InvalidInput for a future
    commit.
    """
    indexes.store.wait_for_replica(sequence or 0)
    current = indexes.store.state.sequence
    if sequence is not None and sequence > current:
        raise InvalidInput.at("at_least", f"is a sequence that the store has not reached; it is at {current}")
    # The first search after opening a store waits until its indexes are loaded.
    if indexes.wait_or_retry(sequence or 0, AT_LEAST_TIMEOUT_SECONDS, why, words_alone=words_alone):
        return
    if not words_alone and indexes.has_vectors:
        indexes.vector.require()
    if sequence is not None:
        raise indexes.not_caught_up_error(sequence, words_alone=words_alone)


def wait_for_latest_words(graph: StoreHandle, sequence: int | None = None) -> bool:
    """Wait for the indexes to contain a commit, by default the last one. Return whether its words are indexed.

    The wait for vectors is short, because a hit by words needs none. Raises NotFound.
    """
    if graph.graphs.indexer is None:
        return True
    with graph.lease() as store:
        indexes, last = graph.graphs.indexer.of(store), store.state.sequence
        wanted = last if sequence is None else min(sequence, last)
        return indexes.wait_or_retry(wanted, LATEST_VECTORS_TIMEOUT_SECONDS, "own") or indexes.catch_up(
            LATEST_WORDS_TIMEOUT_SECONDS, words_alone=True
        )


def count_unindexed_commits(graph: StoreHandle, seen: int) -> int:
    """Return the number of commits after the last one indexed. Raises NotFound, except for a default store."""
    try:
        with graph.lease() as store:
            return max(store.state.sequence - seen, 0)
    except NoStore:
        if graph.is_default:
            return 0
        raise


class NodeSearchExecutor:
    """Execution of one node search on one store: finds, ranks and pages the hits."""

    def __init__(
        self,
        searched: StoreSearchSnapshot,
        request: SearchRequest,
        top: float = 0.0,
        notices: SearchNotices | None = None,
    ) -> None:
        """``top``: the best keyword score in other stores, used to normalize the scores of this one.

        ``notices`` collects those of all searches of one answer. Raises InvalidInput for options that exclude another.
        """
        if request.syntax and request.prefix:
            raise InvalidInput.at("prefix", "cannot be combined with `syntax`; end a word of the query with * instead")
        self.top = top
        self.notices = SearchNotices() if notices is None else notices
        if request.mode != "keyword":
            self.notices.record_builds(searched.indexes)
        self._searched = searched
        self._reader = searched.reader
        self._attributes = convert_attribute_filter_to_conditions(request.attributes) if request.attributes else ()
        index = searched.among(self._attributes) if self._attributes else searched.index
        self._heads = searched.heads
        self._index = (
            index if self._heads is None else SearchIndexWithConflictingVersions(index, searched.indexes, self._heads)
        )
        self._queries = searched.queries
        self._request = request
        types = frozenset(request.types or ()) or None
        fresh_at = time.time_ns() // 1000 if request.fresh_only else None
        tags = frozenset(request.tags or ())
        self._filter = EntitySearchFilter(types, request.id_prefix, tags, self._reader.valid_at, fresh_at)
        self._is_filtered = not self._filter.is_empty or bool(self._attributes)
        self._vector: EmbeddingArray | None = None

    def page(self, limit: int, offset: int) -> list[SearchHit]:
        """Return a page of hits."""
        ranked = self._raise_titles(self._rank(limit + offset))
        rows = [*islice(self._passing(ranked, limit + min(offset, MAX_SEARCH_LIMIT)), offset, offset + limit)]
        nodes = self._reader.to_nodes([row for _, row in rows], row_to_api_conversion.build_api_node_from_row)
        return [self._hit(found, node) for (found, _), node in zip(rows, nodes, strict=True)]

    def _rank(self, wanted: int) -> list[RankedHitWithRawScores]:
        match self._request.mode:
            case "keyword":
                return [
                    _single_score_entity(EntityMatchScores(s, keyword=s), key, s, None)
                    for key, s in self._keyword_hits(
                        max(wanted + _DELETED_HITS_OVERFETCH, score_fusion.MIN_FUSION_POOL_HITS)
                    ).items()
                ]
            case "semantic":
                return [
                    _single_score_entity(EntityMatchScores(s, semantic=s), key, None, s)
                    for key, s in self._semantic_hits(wanted + _DELETED_HITS_OVERFETCH).items()
                ]
            case "hybrid":
                return self._hybrid_until_enough(wanted + _DELETED_HITS_OVERFETCH)
            case "graph":
                return self._graph_hits()

    def _raise_titles(self, ranked: list[RankedHitWithRawScores]) -> list[RankedHitWithRawScores]:
        """Return the ranking with the nodes first whose name, summary or id is the query, ignoring case."""
        title = self._request.query.strip().casefold()
        if self._request.mode not in {"hybrid", "keyword"} or self._request.syntax or len(title) > MAX_TITLE_CHARS:
            return ranked
        # The same ones for every page: the words of a title are in the first pool of the keyword index.
        worded = [found for found in ranked if found.keyword is not None][: score_fusion.MIN_FUSION_POOL_HITS]
        rows = self._rows([found.ranked.id for found in worded])
        titled = {key for key, row in rows.items() if _is_titled(row, title)}
        if not titled:
            return ranked
        top = ranked[0].ranked.score
        first = [
            msgspec.structs.replace(found, ranked=msgspec.structs.replace(found.ranked, score=top, is_title=True))
            for found in worded
            if found.ranked.id in titled
        ]
        return [*first, *(found for found in ranked if found.ranked.id not in titled)]

    def _keyword_hits(self, pool: int) -> dict[str, float]:
        request = self._request
        reading = "syntax" if request.syntax else "plain" if request.mode == "keyword" else "forms"
        query = KeywordQuery(request.query, reading, request.prefix)
        return self._index.search_keywords(query, pool, self._filter)

    def _semantic_hits(self, pool: int) -> dict[str, float]:
        self._searched.indexes.require(meaning=True)
        least = self._request.min_similarity
        found = self._index.search_vectors(self._query_vector(), pool, self._filter)
        return found if least is None else {key: near for key, near in found.items() if near >= least}

    def _query_vector(self) -> EmbeddingArray:
        vector = self._vector
        if vector is None:
            vector = self._vector = self._queries.of(self._request.query)
        return vector

    def _similarities(self, ids: Iterable[str]) -> dict[str, float]:
        vectors = self._index.vectors_of(list(ids)) if self._searched.indexes.has_vectors else {}
        if not vectors:
            return {}
        near = np.concatenate([*vectors.values()]).reshape(len(vectors), -1) @ self._query_vector()
        return dict(zip(vectors, near.tolist(), strict=True))

    def _hybrid_until_enough(self, wanted: int) -> list[RankedHitWithRawScores]:
        found: dict[str, RankedHitWithRawScores] = {}
        for pool in FUSION_POOL_HITS:
            hits = self._hybrid(pool)
            for hit in hits:
                found.setdefault(hit.ranked.id, hit)
            # Nodes that only relations lead to may fail the filter; the indexes have applied it to all others.
            enough = sum(hit.ranked.match is not None for hit in found.values()) if self._is_filtered else len(found)
            if enough >= wanted or len(hits) < pool:
                break
        return list(found.values())

    def _hybrid(self, pool: int) -> list[RankedHitWithRawScores]:
        words, meaning = (
            self._keyword_hits(pool),
            self._semantic_hits(pool) if self._searched.indexes.has_vectors else {},
        )
        if self._request.mode == "hybrid":
            self.notices.record_words(found=bool(words))
        # Keyword-only hits get a similarity, too; semantic-only hits mostly contain none of the words.
        meaning |= self._similarities(key for key in words if key not in meaning)
        functions = HybridRankingCallbacks(self._neighbours, self._passes, self._similarities, self._token_scores)
        ranking = HybridRanking(self._reader, self._index, self._request, functions, self.top)
        ranked = ranking.rank(KeywordAndSemanticHits(words, meaning))
        self.top = ranking.top
        return [RankedHitWithRawScores(hit, words.get(hit.id), meaning.get(hit.id)) for hit in ranked]

    def _token_scores(self, ids: Sequence[str]) -> TurnTokenMaxSimScores | None:
        """Return the scores of late interaction; None if it is turned off, or the past is searched."""
        if self._request.late is False or self._searched.index.is_past:
            return None
        return self._searched.token_scores(self._request.query, ids)

    def _neighbours(self, keys: Sequence[str]) -> NeighbourWeights:
        if self._heads is None:
            return self._reader.neighbours(keys)
        return self._reader.neighbours([key for key in keys if self._head(key) is None])

    def _graph_hits(self) -> list[RankedHitWithRawScores]:
        starts = self._graph_starts()
        reached: dict[str, list[tuple[str, float]]] = {}
        for start in starts:
            for one, other, weight in self._edges_around(start):
                reached.setdefault(one, []).append((other, weight))
                reached.setdefault(other, []).append((one, weight))
        ways = score_fusion.compute_best_path_strengths(starts, reached)
        similar = self._similarities(ways)
        found = [
            RankedHitWithRawScores(
                _ranked_by_path(key, strength * max(similar.get(key, 0.0), 0.0), hops), None, similar.get(key)
            )
            for key, (strength, hops) in ways.items()
        ]
        return sorted(found, key=lambda hit: (-hit.ranked.score, hit.ranked.hops, hit.ranked.id))

    def _graph_starts(self) -> dict[str, float]:
        if self._request.start_id is not None:
            start = self._reader.resolve_redirect(self._request.start_id)
            if not self._reader.valid_nodes([start]):
                raise InvalidInput.at("start_id", f"there is no node {self._request.start_id!r}")
            return {start: 1.0}
        ranked = self._hybrid(score_fusion.MIN_FUSION_POOL_HITS)
        best = islice(self._passing(ranked, 2 * MAX_GRAPH_STARTS), MAX_GRAPH_STARTS)
        return {row.id: found.ranked.score for found, row in reversed([*best])}

    def _edges_around(self, start: str) -> list[tuple[str, str, float]]:
        depth = max(1, clamp_traversal_depth(self._request.depth))
        edges = self._reader.walk(start, depth, MAX_GRAPH_SEARCH_NODES)
        return [(edge.source, edge.target, edge.weight) for edge in edges]

    def _passing(
        self, ranked: Sequence[RankedHitWithRawScores], batch_size: int
    ) -> Iterable[tuple[RankedHitWithRawScores, NodeRow]]:
        """Yield the entities that exist and match the filter, with their rows, looked up in batches."""
        for first in range(0, len(ranked), batch_size):
            some = ranked[first : first + batch_size]
            rows = self._rows([found.ranked.id for found in some])
            for found in some:
                row = rows.get(found.ranked.id)
                if row is not None and self._passes(row):
                    yield found, row

    def _rows(self, keys: Sequence[str]) -> dict[str, NodeRow]:
        """Return the rows of some keys: existing nodes, and versions that are still in conflict."""
        heads = {key: row for key in keys if (row := self._head(key)) is not None}
        if not heads:
            return self._reader.valid_nodes(keys)
        current = self._reader.valid_nodes([row.id for row in heads.values()])
        named = {
            key: row
            for key, row in heads.items()
            if row.id in current and row.version in get_conflicting_node_head_versions(current[row.id])
        }
        held = {key: row for key, row in named.items() if self._filter.passes_row(row)}
        return self._reader.valid_nodes([key for key in keys if key not in heads]) | held

    def _head(self, key: str) -> NodeRow | None:
        return None if self._heads is None else self._heads.row(key)

    def _passes(self, row: NodeRow) -> bool:
        return not self._is_filtered or self._matches_filter(row)

    def _matches_filter(self, row: NodeRow) -> bool:
        had = not self._attributes or matches_attribute_conditions(row.attributes, self._attributes)
        return had and self._filter.passes_row(row)

    def _hit(self, found: RankedHitWithRawScores, node: Node) -> SearchHit:
        explained = self._request.mode in {"graph", "hybrid"}
        if self._head(found.ranked.id) is not None:
            node.is_current = True
        return SearchHit(
            node=node,
            score=found.ranked.score,
            keyword_score=found.keyword,
            semantic_score=found.semantic,
            hops=found.ranked.hops if explained else None,
            why=found.ranked.why if self._request.explain else None,
        )


def _is_titled(row: NodeRow, title: str) -> bool:
    extras = row.extras or NO_EXTRAS
    return title in (row.id.casefold(), extras.name.casefold(), extras.summary.casefold())


def _single_score_entity(
    match: EntityMatchScores, key: str, keyword: float | None, semantic: float | None
) -> RankedHitWithRawScores:
    return RankedHitWithRawScores(RankedHit(key, match.score, match), keyword, semantic)


def _ranked_by_path(key: str, score: float, hops: int) -> RankedHit:
    if hops == 0:
        return RankedHit(key, score, EntityMatchScores(score))
    return RankedHit(key, score, None, (score_fusion.GraphProximityBoost(score, "the start", hops),))
