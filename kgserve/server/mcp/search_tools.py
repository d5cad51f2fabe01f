"""Search tools: entities, and context for a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.errors import InvalidInput
from kgserve.graph import answers, request_bodies
from kgserve.graph.search import node_search
from kgserve.graph.store_handle import StoreHandle
from kgserve.platform.codecs import convert_plain_value_to_type
from kgserve.server.mcp.shared_tool_arguments import (
    UNLISTED_FIELD,
    IdField,
    OffsetField,
    QueryField,
    ReadToolArguments,
    TagsField,
    TypesField,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    ToolReply,
    build_tool_reply,
    format_count,
    format_node_fields,
    quote_text,
    take_items_fitting_reply,
)
from kgserve.server.mcp.tool_structured_content import MAX_EXCERPT_CHARS, truncate_text
from kgserve.storage.model import breadth_first_traversal
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES

MAX_CONTEXT_TOKENS = 25_000
_HITS_PER_VARIANT = 20
_VARIANT_OPTIONS = ("mode", "types", "tags", "attributes", "id_prefix", "fresh_only", "prefix")
EMPTY_HITS_RESULT: dict[str, Any] = {"hits": []}
_EMPTY_CONTEXT_RESULT: dict[str, Any] = {"text": "", "tokens": 0, "ids": [], "truncated": False}


@add_request_fields_to_arguments(
    request_bodies.SearchRequest,
    "min_similarity",
    "alpha",
    "fusion",
    "explain",
    "neighbours",
    "late",
    "syntax",
    "kinds",
)
class SearchKnowledgeArguments(ReadToolArguments, kw_only=True):
    """Query, mode and filters of a search."""

    query: QueryField | UnsetType = UNSET
    queries: (
        Annotated[
            list[QueryField],
            Meta(min_length=1, max_length=8, description="Or up to 8 wordings, merged into one ranking"),
        ]
        | UnsetType
    ) = UNSET
    mode: Annotated[
        Literal["hybrid", "keyword", "semantic", "graph"],
        Meta(description="hybrid: words, meaning, relations; graph: entities near the best hits"),
    ] = "hybrid"
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum hits")] = 8
    offset: Annotated[OffsetField, Meta(description="Hits to skip")] = 0
    types: TypesField = UNSET
    id_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES), UNLISTED_FIELD] = ""
    start_id: Annotated[IdField, Meta(description="Start in mode graph")] | UnsetType = UNSET
    depth: Annotated[int, Meta(ge=1, le=breadth_first_traversal.MAX_WALK_DEPTH, description="Hops in mode graph")] = 2
    tags: TagsField = UNSET
    fresh_only: Annotated[bool, Meta(description="Exclude stale")] = False
    prefix: Annotated[bool, Meta(description="Last word may be a beginning")] = False


@add_request_fields_to_arguments(request_bodies.MultiQuerySearchRequest)
class SearchBatchArguments(ReadToolArguments, kw_only=True):
    """Variants of one question, whose hits are combined."""

    queries: Annotated[list[request_bodies.SearchQueryVariant], Meta(min_length=1, max_length=8)]


@add_request_fields_to_arguments(request_bodies.LlmContextRequest, "format", "limit")
class GetContextArguments(ReadToolArguments, kw_only=True):
    """Question, and the token budget of the context."""

    query: QueryField
    budget: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS, description="Maximum tokens")] = 1200
    follow_symlinks: Annotated[bool, Meta(description="Include linked stores")] = False
    prefix: Annotated[bool, UNLISTED_FIELD] = False


def _search(graph: StoreHandle, given: SearchKnowledgeArguments) -> answers.SearchAnswer | answers.BatchSearchAnswer:
    if bool(given.query) == bool(given.queries):
        raise InvalidInput.at("query", "send either query, or several wordings of it as queries")
    if given.query:
        return node_search.search_store_nodes(graph, convert_arguments_to_request(request_bodies.SearchRequest, given))
    if given.mode == "graph":
        raise InvalidInput("mode: graph accepts one query only; send it as query")
    same = _variant(given)
    asked = convert_arguments_to_request(request_bodies.MultiQuerySearchRequest, given)
    asked.queries = [
        convert_plain_value_to_type({**same, "query": each}, request_bodies.SearchQueryVariant)
        for each in given.queries or ()
    ]
    return node_search.search_query_variants(graph, asked)


def _variant(given: SearchKnowledgeArguments) -> dict[str, Any]:
    values = {name: getattr(given, name) for name in _VARIANT_OPTIONS}
    return {"limit": _HITS_PER_VARIANT} | {name: value for name, value in values.items() if value}


@build_tool_reply.register
def _search_reply(found: answers.SearchAnswer, given: SearchKnowledgeArguments, _store: str) -> ToolReply:
    reply = _hits(found.hits, given.query or "", given.offset, detail=given.detail)
    if not reply.more and len(found.hits) == given.limit:
        reply = reply._replace(more=f"the next hits: offset={given.offset + len(found.hits)}")
    return _with_hints(reply, found, meaning=given.mode != "keyword")


@build_tool_reply.register
def _search_batch_reply(found: answers.BatchSearchAnswer, given: msgspec.Struct, _store: str) -> ToolReply:
    asked = [each if isinstance(each, str) else each.query for each in _queries(given)]
    detail = getattr(given, "detail", False)
    reply = _hits(found.hits, " / ".join(asked), 0, detail=detail)
    if detail:
        counts = {name: getattr(found, name) for name in ("query_count", "unique_hits", "per_query_hits")}
        reply = reply._replace(values=reply.values | counts)
    if not reply.more and found.unique_hits > len(found.hits):
        more = f"{found.unique_hits - len(found.hits):,} more hits: use a higher limit, or narrower queries"
        reply = reply._replace(more=more)
    return _with_hints(reply, found, meaning=True)


def _queries(given: msgspec.Struct) -> Sequence[Any]:
    return given.queries or () if isinstance(given, SearchKnowledgeArguments | SearchBatchArguments) else ()


def _hits(
    hits: Sequence[answers.SearchHit | answers.BatchSearchHit], query: str, offset: int, *, detail: bool
) -> ToolReply:
    head = format_count(len(hits), "hit")
    if not hits:
        head = f"{head} for {quote_text(truncate_text(query, MAX_EXCERPT_CHARS))}"
    numbers = iter(range(offset + 1, offset + len(hits) + 1))
    shown, lines = take_items_fitting_reply(
        hits, lambda hit: _hit_line(next(numbers), hit), detail=detail, content=MAX_EXCERPT_CHARS
    )
    if len(shown) == len(hits):
        return ToolReply("\n".join([head, *lines]), {"hits": shown})
    more = f"{len(hits) - len(shown):,} hits are not shown: use offset={offset + len(shown)} or a lower limit"
    return ToolReply("\n".join([head, *lines]), {"hits": shown}, more)


def _with_hints(
    reply: ToolReply,
    found: answers.SearchAnswer | answers.BatchSearchAnswer | answers.LlmContextAnswer,
    *,
    meaning: bool,
) -> ToolReply:
    hints, values = [found.notice] if found.notice else [], dict(reply.values)
    values |= {"notice": found.notice} if found.notice else {}
    if found.degraded and meaning:
        hints.append("this server has no embedding model: search with the exact words")
        values["degraded"] = True
    return reply._replace(hint="; ".join(hints), values=values)


def _hit_line(number: int, hit: answers.SearchHit | answers.BatchSearchHit) -> str:
    node = hit.node
    content = f"\n   {truncate_text(node.content, MAX_EXCERPT_CHARS)}" if node.content else ""
    facts = format_node_fields(node)
    return f"{number}. {quote_text(node.id)} ({node.type}), score {hit.score:.2f}{facts}{content}"


@build_tool_reply.register
def _context_reply(found: answers.LlmContextAnswer, given: GetContextArguments, _store: str) -> ToolReply:
    if not found.ids:
        text = f"Nothing was found for {quote_text(truncate_text(given.query, MAX_EXCERPT_CHARS))}."
        return ToolReply(text, {"text": "", "tokens": 0, "ids": [], "truncated": False})
    more = "the budget did not allow all of it: raise budget, or ask more narrowly" if found.truncated else ""
    values = {"text": found.text, "tokens": found.tokens, "ids": found.ids, "truncated": found.truncated}
    values |= {"stores": found.stores} if found.stores else {}
    return _with_hints(ToolReply(found.text, values, more), found, meaning=True)


SEARCH_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "get_context",
        "Get text about a question",
        "When a topic of the graph should be summarised: the best entities and their relations, as text of at most "
        "`budget` tokens with ids to cite.",
        GetContextArguments,
        "gathering context",
        lambda graph, given: node_search.build_llm_context(
            graph, convert_arguments_to_request(request_bodies.LlmContextRequest, given)
        ),
        nothing=_EMPTY_CONTEXT_RESULT,
    ),
    McpTool(
        "search_knowledge",
        "Search",
        "When an id is not known: finds entities by words and meaning, best first. For what was remembered: recall.",
        SearchKnowledgeArguments,
        "searching",
        _search,
        nothing=EMPTY_HITS_RESULT,
    ),
    McpTool(
        "search_batch",
        "Search in several ways at once",
        "Search with up to eight variants of a question, each with its own filters; hits form one ranking.",
        SearchBatchArguments,
        "searching",
        lambda graph, given: node_search.search_query_variants(
            graph, convert_arguments_to_request(request_bodies.MultiQuerySearchRequest, given)
        ),
        nothing=EMPTY_HITS_RESULT,
    ),
)
