"""POST /api/memory/{store}/search, /search/batch and /context."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post

from kgserve.http import examples
from kgserve.http.body import read_json
from kgserve.http.operation import READ, Body, Operation, described
from kgserve.http.parameters import path_text
from kgserve.http.service import service_of
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


@post("/api/memory/{store:str}/search", status_code=200, opt=described(_SEARCH))
async def search(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers with the best nodes, best first. `hybrid` (the default) joins words, meaning and relations.

    `at_least` makes sure that the indexes have seen a write: give the `sequence` that it answered with. With `as_of`
    hits, rows and relations are those of then; only how rare each word is, is counted over past and present texts.
    """
    store = path_text(request, "store")
    wanted = await read_json(request, SearchRequest)
    service = service_of(request)
    return await service.read(ops.search, service.pool, service.indexer, store, wanted, service.historian)


@post("/api/memory/{store:str}/search/batch", status_code=200, opt=described(_BATCH))
async def search_batch(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Runs 1 to 8 variants and joins them by reciprocal rank fusion (k = 60); ties keep the order of appearance."""
    store = path_text(request, "store")
    wanted = await read_json(request, BatchSearchRequest)
    service = service_of(request)
    return await service.read(batch_ops.batch_search, service.pool, service.indexer, store, wanted, service.historian)


@post("/api/memory/{store:str}/context", status_code=200, opt=described(_CONTEXT))
async def context(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers with the best nodes and the edges between them as Markdown or JSON, with ids to cite.

    The text is never over the budget.
    """
    store = path_text(request, "store")
    wanted = await read_json(request, ContextRequest)
    service = service_of(request)
    return await service.read(context_ops.context, service.pool, service.indexer, store, wanted, service.historian)
