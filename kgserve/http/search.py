"""POST /api/memory/{store}/search, /search/batch and /context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import post

from kgserve.http import examples
from kgserve.http.direct import Call, direct
from kgserve.http.operation import READ, Body, Operation, described
from kgserve.http.service import Answer
from kgserve.model.answers import BatchSearchAnswer, ContextAnswer, SearchAnswer
from kgserve.model.requests import BatchSearchRequest, ContextRequest, SearchRequest
from kgserve.ops import batch_search as batch_ops
from kgserve.ops import context as context_ops
from kgserve.ops import search as ops

_ERRORS = (*READ, "too_large", "unsupported", "conflict")

_SEARCH = Operation(
    id="search",
    role="read",
    tag="search",
    summary="Find nodes by words, by meaning, and by what they are related to",
    request=Body(SearchRequest, examples.SEARCH),
    answer=Body(SearchAnswer, examples.FOUND),
    errors=_ERRORS,
)
_BATCH = Operation(
    id="searchBatch",
    role="read",
    tag="search",
    summary="Ask the same in several ways and join the answers",
    request=Body(BatchSearchRequest, examples.BATCH_SEARCH),
    answer=Body(BatchSearchAnswer, examples.BATCH_FOUND),
    errors=_ERRORS,
)
_CONTEXT = Operation(
    id="context",
    role="read",
    tag="search",
    summary="Get text about a question that fits a budget of tokens",
    request=Body(ContextRequest, examples.CONTEXT),
    answer=Body(ContextAnswer, examples.CONTEXT_FOUND),
    errors=_ERRORS,
)


@direct(post("/api/memory/{store:str}/search", status_code=200, opt=described(_SEARCH)))
def search(call: Call[SearchRequest]) -> Answer:
    """Answers with the best nodes, best first. `hybrid` (the default) joins words, meaning and relations.

    `at_least` makes sure that the indexes have seen a write: give the `sequence` that it answered with. With `as_of`
    hits, rows and relations are those of then; only how rare each word is, is counted over past and present texts.
    """
    return _asked(ops.search, call)


@direct(post("/api/memory/{store:str}/search/batch", status_code=200, opt=described(_BATCH)))
def search_batch(call: Call[BatchSearchRequest]) -> Answer:
    """Runs 1 to 8 variants and joins them by reciprocal rank fusion (k = 60); ties keep the order of appearance."""
    return _asked(batch_ops.batch_search, call)


@direct(post("/api/memory/{store:str}/context", status_code=200, opt=described(_CONTEXT)))
def context(call: Call[ContextRequest]) -> Answer:
    """Answers with the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text is never over the budget.
    """
    return _asked(context_ops.context, call)


def _asked(work: Callable[..., Any], call: Call[Any]) -> Answer:
    service = call.service
    return service.reading(work, service.pool, service.indexer, call.text("store"), call.body, service.historian)
