"""Recall as a bare array, for those who have only an address to ask by."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, get, post

from kgserve.decoding import decode_json
from kgserve.errors import FieldError, InvalidInput, NoStore
from kgserve.http.body import json_of
from kgserve.http.direct import graph_of, is_yet_to_be_made
from kgserve.http.parameters import OF_DEFAULT, query
from kgserve.http.service import Service, answer, service_of
from kgserve.model.attributes import Scalar
from kgserve.model.layers import AgentRecallQuery, AgentRecallRequest
from kgserve.model.memories import RecallAnswer, RecalledMemory, RecallQuery, RecallRequest
from kgserve.operations import memory_examples as examples
from kgserve.operations.memory_table import NOTHING_RECALLED
from kgserve.operations.operation import READ, Body, Operation, described
from kgserve.ops import recall

_LISTS = frozenset({"types", "tags", "also"})
_SEARCH = Operation(
    id="searchMemories",
    role="read",
    tag="memories",
    summary="Find memories, as a bare array",
    query=RecallQuery,
    answer=Body(RecalledMemory, examples.RECALLED.hits, many=True),
    errors=(*READ, "conflict", "gone"),
    headers=(
        ("Kgserve-Withheld", "How many memories match and were left out, by why, as JSON"),
        ("Kgserve-Degraded", "`true`: meaning is judged by words and letters alone"),
        ("Kgserve-Index-Sequence", "The commit that the indexes have seen"),
    ),
    of_default=True,
)


_AGENTS = Operation(
    id="recallMemories",
    role="read",
    tag="memories",
    summary="Find memories as agents do, as a bare array",
    query=AgentRecallQuery,
    answer=_SEARCH.answer,
    errors=_SEARCH.errors,
    headers=_SEARCH.headers,
    of_default=True,
)
_AGENTS_SEND = _AGENTS._replace(
    id="recallMemoriesBy",
    summary="The same by a body",
    query=None,
    request=Body(AgentRecallRequest, AgentRecallRequest(query="which PostgreSQL?")),
    errors=(*_SEARCH.errors, "too_large", "unsupported"),
)


@get("/api/memories/search", opt=described(_SEARCH))
async def search_memories(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The memories that fit a question, best and surest first: what POST answers with as `hits`.

    `types`, `tags` and `also` may be repeated. What else POST says of the answer is in headers.
    """
    return await _array(request, _asked(query(request, RecallQuery, repeated=_LISTS, passed=OF_DEFAULT)))


@get("/api/v1/recall", opt=described(_AGENTS))
async def recall_memories(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The ten memories that fit a question best, with what stands beside them, of at most 2,000 tokens.

    `limit`, `expand` and `budget` say otherwise. `types`, `tags` and `also` may be repeated.
    """
    return await _array(request, _asked(query(request, AgentRecallQuery, repeated=_LISTS, passed=OF_DEFAULT)))


@post("/api/v1/recall", status_code=200, opt=described(_AGENTS_SEND))
async def recall_memories_by(request: Request[Any, Any, Any]) -> Response[bytes]:
    """As GET answers, for questions that are too long for an address."""
    service = service_of(request)
    asked = await json_of(request.scope["headers"], request.receive, service, AgentRecallRequest)
    return await _array(request, asked)


async def _array(request: Request[Any, Any, Any], asked: RecallRequest) -> Response[bytes]:
    found = await _recalled(request, service_of(request), asked)
    response = answer(msgspec.json.encode(found.hits))
    response.headers["kgserve-withheld"] = msgspec.json.encode(found.withheld).decode()
    response.headers["kgserve-degraded"] = str(found.degraded).lower()
    response.headers["kgserve-index-sequence"] = str(found.index_sequence)
    return response


async def _recalled(request: Request[Any, Any, Any], service: Service, asked: RecallRequest) -> RecallAnswer:
    graph = graph_of(request.scope, service)
    try:
        return await service.call(recall.recall, graph, asked)
    except NoStore as error:
        if not is_yet_to_be_made(error, graph):
            raise
        return NOTHING_RECALLED


def _asked(given: RecallQuery | AgentRecallQuery) -> RecallRequest:
    values = msgspec.structs.asdict(given)
    if isinstance(given, AgentRecallQuery):
        values["query"] = _one_query(given.query, values.pop("same_query"))
    if given.metadata is not None:
        values["metadata"] = _metadata(given.metadata)
    return RecallRequest(**values)


def _one_query(query: str | None, same: str | None) -> str:
    found = same if query is None else query
    if found is None:
        message = "is required: what to look for"
        raise InvalidInput(f"q: {message}", (FieldError("q", message),))
    if same is not None and same != found:
        message = "says something else than q; send one of them"
        raise InvalidInput(f"query: {message}", (FieldError("query", message),))
    return found


def _metadata(text: str) -> dict[str, Scalar]:
    try:
        return decode_json(text.encode(), dict[str, Scalar])
    except (msgspec.MsgspecError, UnicodeError) as error:
        message = "is not a JSON object of texts, numbers, true, false and null"
        raise InvalidInput(f"metadata: {message}", (FieldError("metadata", message),)) from error
