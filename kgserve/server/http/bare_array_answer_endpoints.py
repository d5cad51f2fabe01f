"""Endpoints that return bare arrays: recalled memories, the hierarchy of a memory, and versions of an entity."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Request, Response, get, post

from kgserve.api import examples, memory_examples
from kgserve.api.memory_operation_table import EMPTY_RECALL
from kgserve.api.operation import READ_ERRORS, ApiBodyExample, ApiOperation, build_litestar_opt
from kgserve.errors import InvalidInput, NoStore
from kgserve.graph import history_queries
from kgserve.graph.answers import EntityVersion
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import EntityHistoryParameters, EntityHistoryRequest
from kgserve.memory import hierarchy, multi_store_recall
from kgserve.memory.hierarchy_models import (
    DescendantMemoriesQuery,
    DescendantMemoriesRequest,
    MemoryAncestorOrDescendant,
    MemoryHierarchyPage,
    MemoryHierarchyQuery,
    MemoryParentChainRequest,
)
from kgserve.memory.memory_models import RecallAnswer, RecalledMemory, RecallQuery, RecallRequest
from kgserve.memory.retain_forget_recall_models import AgentRecallQuery, AgentRecallRequest
from kgserve.platform.codecs import decode_json
from kgserve.server.http.operation_endpoints import build_response_from_encoded_json
from kgserve.server.http.request_decoding import (
    STORE_SELECTION_PARAMETERS,
    RequestHandlerDependencies,
    decode_json_body,
    decode_path_parameter,
    decode_query_parameters,
    get_request_dependencies,
    get_request_store,
    get_request_store_name,
    is_missing_default_store,
)
from kgserve.storage.model.attribute_filters import AttributeScalar

_LINK_HEADER = (("Link", "The next page, as `<…>; rel=next`, if there may be one"),)
_RECALL_LISTS = frozenset({"types", "tags", "also"})
_SEARCH_MEMORIES = ApiOperation(
    id="searchMemories",
    role="read",
    tag="memories",
    summary="Find memories, as a bare array",
    note="Headers carry the rest of the recall answer.",
    query=RecallQuery,
    answer=ApiBodyExample(RecalledMemory, memory_examples.RECALL_ANSWER_EXAMPLE.hits, many=True),
    errors=(*READ_ERRORS, "conflict", "gone"),
    headers=(
        ("Kgserve-Withheld", "Counts of matching memories that were omitted, by reason, as JSON"),
        ("Kgserve-Degraded", "`true`: semantic search uses words and letters only"),
        ("Kgserve-Index-Sequence", "Sequence of the last commit in the indexes"),
        ("Kgserve-Deleted-Entity", "The requested entity, as JSON in ASCII, if it was deleted"),
    ),
    of_default=True,
)
_RECALL_MEMORIES = ApiOperation(
    id="recallMemories",
    role="read",
    tag="memories",
    summary="Find memories with the defaults for agents, as a bare array",
    note="Ten memories of at most 2,000 tokens, with their neighbours in the graph. `query` is an alias of `q`.",
    query=AgentRecallQuery,
    answer=_SEARCH_MEMORIES.answer,
    errors=_SEARCH_MEMORIES.errors,
    headers=_SEARCH_MEMORIES.headers,
    of_default=True,
)
_RECALL_MEMORIES_BY = _RECALL_MEMORIES._replace(
    id="recallMemoriesBy",
    summary="Find memories with the defaults for agents, from a JSON body",
    note="Like GET, for long questions.",
    query=None,
    request=ApiBodyExample(AgentRecallRequest, AgentRecallRequest(query="which PostgreSQL?")),
    errors=(*_SEARCH_MEMORIES.errors, "too_large", "unsupported"),
)


@get("/api/memories/search", opt=build_litestar_opt(_SEARCH_MEMORIES))
async def search_memories(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the memories that match a question, ranked by relevance and confidence: the `hits` of POST.

    `types`, `tags` and `also` may be repeated. Headers carry the other fields of POST's answer.
    """
    return await _array(request, _recall_request(request, RecallQuery))


@get("/api/v1/recall", opt=build_litestar_opt(_RECALL_MEMORIES))
async def recall_memories_by_get(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the ten memories that match a question best, with their neighbours in the graph, up to 2,000 tokens.

    `limit`, `expand` and `budget` change these defaults. `types`, `tags` and `also` may be repeated.
    """
    return await _array(request, _recall_request(request, AgentRecallQuery))


@post("/api/v1/recall", status_code=200, opt=build_litestar_opt(_RECALL_MEMORIES_BY))
async def recall_memories_by_post(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return the same answer as GET, for questions that are too long for a URL."""
    service = get_request_dependencies(request)
    asked = await decode_json_body(request.scope["headers"], request.receive, service, AgentRecallRequest)
    return await _array(request, asked)


async def _array(request: Request[Any, Any, Any], asked: RecallRequest) -> Response[bytes]:
    found = await _recall(request, get_request_dependencies(request), asked)
    response = build_response_from_encoded_json(msgspec.json.encode(found.hits))
    response.headers["kgserve-withheld"] = msgspec.json.encode(found.withheld).decode()
    response.headers["kgserve-degraded"] = str(found.degraded).lower()
    response.headers["kgserve-index-sequence"] = str(found.index_sequence)
    if found.deleted_entity:
        # Header values must be ASCII; msgspec would write UTF-8.
        response.headers["kgserve-deleted-entity"] = json.dumps(msgspec.to_builtins(found.deleted_entity))
    return response


async def _recall(
    request: Request[Any, Any, Any], service: RequestHandlerDependencies, asked: RecallRequest
) -> RecallAnswer:
    graph = get_request_store(request.scope, service)
    try:
        return await service.admission.run("reads", multi_store_recall.recall_best_memories, graph, asked)
    except NoStore as error:
        if not is_missing_default_store(error, graph):
            raise
        return EMPTY_RECALL


def _recall_request(request: Request[Any, Any, Any], kind: type[RecallQuery | AgentRecallQuery]) -> RecallRequest:
    given = decode_query_parameters(
        request.scope["query_string"], kind, repeated=_RECALL_LISTS, passed=STORE_SELECTION_PARAMETERS
    )
    values = msgspec.structs.asdict(given)
    if isinstance(given, AgentRecallQuery):
        values["query"] = _one_query(given.query, values.pop("same_query"))
    if given.metadata is not None:
        values["metadata"] = _metadata(given.metadata)
    return RecallRequest(**values)


def _one_query(query: str | None, same: str | None) -> str:
    found = same if query is None else query
    if found is None:
        raise InvalidInput.at("q", "is required; send the question")
    if same is not None and same != found:
        raise InvalidInput.at("query", "differs from q; send one of them")
    return found


def _metadata(text: str) -> dict[str, AttributeScalar]:
    try:
        return decode_json(text.encode(), dict[str, AttributeScalar])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput.at("metadata", "must be a JSON object of texts, numbers, true, false and null") from error


_ENTITY_HISTORY = ApiOperation(
    id="entityHistory",
    role="read",
    tag="history",
    summary="List the versions of an entity, oldest first, as a bare array",
    note="The query or a header names [the store](rest.md#which-store).",
    query=EntityHistoryParameters,
    answer=ApiBodyExample(EntityVersion, examples.ENTITY_HISTORY_EXAMPLE, many=True),
    errors=(*READ_ERRORS, "conflict"),
    of_default=True,
    headers=_LINK_HEADER,
)


@get("/api/v1/entities/{id:str}/history", opt=build_litestar_opt(_ENTITY_HISTORY))
async def get_entity_versions(request: Request[Any, Any, Any]) -> Response[bytes]:
    """List the versions of an entity with the time in which each was true; an end of null means that it still is.

    The time is the valid time that the writer gave, or else the time of recording. Versions of a superseded memory are
    ordered by valid time, the current one last; corrections are not versions. For any other node, each recorded state
    is a version.

    Percent-encode the entity's id as one segment. A page ends at `limit`, or at 16 MiB of text. The header `Link` names
    the next page, which begins after the `sequence` of the last version.
    """
    service = get_request_dependencies(request)
    wanted = decode_query_parameters(
        request.scope["query_string"], EntityHistoryParameters, passed=STORE_SELECTION_PARAMETERS
    )
    asked = EntityHistoryRequest(entity_id=decode_path_parameter(request, "id"), **msgspec.structs.asdict(wanted))
    store = get_request_store_name(request.scope, service)
    found = await service.admission.run(
        "reads", history_queries.list_entity_versions, service.graphs.graph(store), asked
    )
    response = build_response_from_encoded_json(
        await service.admission.run("reads", msgspec.json.encode, found.versions)
    )
    if found.next_after is not None:
        target = f"/api/v1/entities/{quote(asked.entity_id, safe='')}/history?store={quote(store)}&limit={wanted.limit}"
        response.headers["link"] = f"<{target}&after_sequence={found.next_after}>; rel=next"
    return response


_MEMORY_PATH = "/api/v1/memories/{id:str}"
_HIERARCHY_ERRORS = (*READ_ERRORS, "conflict", "gone", "too_large")


def _operation(name: str, summary: str, asked: type[msgspec.Struct], *, paged: bool, note: str = "") -> ApiOperation:
    return ApiOperation(
        id=name,
        role="read",
        tag="memories",
        summary=summary,
        query=asked,
        answer=ApiBodyExample(MemoryAncestorOrDescendant, memory_examples.PLACED_MEMORIES_EXAMPLE, many=True),
        errors=_HIERARCHY_ERRORS,
        of_default=True,
        headers=_LINK_HEADER if paged else (),
        note=note,
    )


_CHILDREN = _operation(
    *("childrenOfMemory", "List the memories directly below one", DescendantMemoriesQuery),
    paged=True,
    note="A bare array ordered by id.",
)
_DESCENDANTS = _operation(
    *("descendantsOfMemory", "List the memories below one, at any depth", DescendantMemoriesQuery),
    paged=True,
    note="A bare array ordered by id; each memory has its `depth`.",
)
_ANCESTORS = _operation(
    "ancestorsOfMemory", "List the memories above one, nearest first", MemoryHierarchyQuery, paged=False
)


@get(f"{_MEMORY_PATH}/children", opt=build_litestar_opt(_CHILDREN))
async def get_child_memories(request: Request[Any, Any, Any]) -> Response[bytes]:
    """List the memories directly below one that are true now, or at the time of `as_of`, ordered by id."""
    return await _page(request, "children", hierarchy.list_child_memories)


@get(f"{_MEMORY_PATH}/descendants", opt=build_litestar_opt(_DESCENDANTS))
async def get_descendant_memories(request: Request[Any, Any, Any]) -> Response[bytes]:
    """List the memories below one that are true now, or at the time of `as_of`, ordered by id, with their depth.

    A page ends at `limit`, or after 20,000 examined memories: it may be short, or empty, with a `Link` to the next one.
    With `as_of` the limit is 10,000 memories in total.
    """
    return await _page(request, "descendants", hierarchy.list_descendant_memories)


@get(f"{_MEMORY_PATH}/ancestors", opt=build_litestar_opt(_ANCESTORS))
async def get_memory_parent_chain(request: Request[Any, Any, Any]) -> Response[bytes]:
    """List the memories above one that are true now, or at the time of `as_of`, nearest first, at most 100."""
    wanted, service = (
        decode_query_parameters(request.scope["query_string"], MemoryHierarchyQuery, passed=STORE_SELECTION_PARAMETERS),
        get_request_dependencies(request),
    )
    asked = MemoryParentChainRequest(memory_id=decode_path_parameter(request, "id"), **msgspec.structs.asdict(wanted))
    graph = service.graphs.graph(get_request_store_name(request.scope, service))
    return build_response_from_encoded_json(
        msgspec.json.encode(await service.admission.run("reads", hierarchy.list_memory_parent_chain, graph, asked))
    )


async def _page(
    request: Request[Any, Any, Any],
    name: str,
    ask: Callable[[StoreHandle, DescendantMemoriesRequest], MemoryHierarchyPage],
) -> Response[bytes]:
    wanted, service = (
        decode_query_parameters(
            request.scope["query_string"], DescendantMemoriesQuery, passed=STORE_SELECTION_PARAMETERS
        ),
        get_request_dependencies(request),
    )
    asked = DescendantMemoriesRequest(memory_id=decode_path_parameter(request, "id"), **msgspec.structs.asdict(wanted))
    store = get_request_store_name(request.scope, service)
    found = await service.admission.run("reads", ask, service.graphs.graph(store), asked)
    response = build_response_from_encoded_json(msgspec.json.encode(found.memories))
    if found.next is not None:
        again = {"store": store} | msgspec.structs.asdict(wanted) | {"cursor": found.next}
        parameters = urlencode({key: value for key, value in again.items() if value is not None})
        target = f"/api/v1/memories/{quote(asked.memory_id, safe='')}/{name}?{parameters}"
        response.headers["link"] = f"<{target}>; rel=next"
    return response
