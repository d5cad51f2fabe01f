"""Several ways to ask the same, their answers joined by reciprocal rank fusion."""

from __future__ import annotations

import time

from kgserve.model import fusion
from kgserve.model.answers import BatchHit, BatchSearchAnswer, Node
from kgserve.model.requests import BatchSearchRequest, SearchRequest, SearchVariant
from kgserve.ops.scene import Moment, at_moment
from kgserve.ops.search import Finder, await_sequence, opened
from kgserve.store.pool import StorePool
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer

DEFAULT_LIMIT = 20
MAX_PER_QUERY = 50
MAX_TOTAL = 100


def batch_search(
    pool: StorePool,
    indexer: Indexer | None,
    store: str,
    request: BatchSearchRequest,
    historian: Historian | None = None,
) -> BatchSearchAnswer:
    """Join the hits of 1 to 8 variants. Raises what `search` raises; an error of one variant is the answer of all."""
    started = time.perf_counter()
    moment = Moment(request.as_of, request.valid_at, historian)
    with pool.lease(store) as leased:
        indexes = opened(indexer).of(leased)
        words_alone = all(variant.mode == "keyword" for variant in request.queries)
        await_sequence(indexes, request.at_least, words_alone=words_alone)
        nodes: dict[str, Node] = {}
        rankings: list[list[str]] = []
        with at_moment(leased, indexes, moment) as scene:
            if scene.at is not None:
                await_sequence(indexes, scene.at, words_alone=words_alone)
            for variant in request.queries:
                hits = Finder(scene, _alone(variant)).page(_clamped(variant.limit, MAX_PER_QUERY), 0)
                nodes.update((hit.node.id, hit.node) for hit in hits)
                rankings.append([hit.node.id for hit in hits])
        sequence = indexes.seen(words_alone=words_alone) if scene.at is None else scene.at
        degraded = opened(indexer).embedder.degraded
    scores = fusion.reciprocal(rankings)
    best = list(scores)[: _clamped(request.limit, MAX_TOTAL)]
    return BatchSearchAnswer(
        hits=[BatchHit(node=nodes[key], score=scores[key], queries_matched=_matched(key, rankings)) for key in best],
        query_count=len(rankings),
        unique_hits=len(scores),
        per_query_hits=[len(ranking) for ranking in rankings],
        degraded=degraded,
        index_sequence=sequence,
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def _alone(variant: SearchVariant) -> SearchRequest:
    return SearchRequest(
        query=variant.query,
        mode=variant.mode,
        types=variant.types,
        id_prefix=variant.id_prefix,
        min_similarity=variant.min_similarity,
        tags=variant.tags,
        fresh_only=variant.fresh_only,
    )


def _clamped(limit: int, most: int) -> int:
    return DEFAULT_LIMIT if limit <= 0 else min(limit, most)


def _matched(key: str, rankings: list[list[str]]) -> list[int]:
    return [place for place, ranking in enumerate(rankings) if key in ranking]
