"""What agents are given beside tools: stores and their nodes as resources, the instructions, and a prompt.

``kgserve://stores`` is the list, ``kgserve://NAME`` a store, ``kgserve://NAME/ID`` a node, with name and id
percent-encoded. A store that is called ``stores`` is ``kgserve://%73tores``: what is compared is the URI as sent.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import msgspec
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

from kgserve.access.caller import Hidden
from kgserve.errors import Internal, InvalidInput, KgserveError, NotFound
from kgserve.mcp.calls import Threads, internal_error, visit_of
from kgserve.mcp.tools import describe
from kgserve.mcp.values import first_fitting
from kgserve.model.answers import NodeAnswer
from kgserve.model.queries import NodeRequest
from kgserve.ops import reading, stores
from kgserve.ops.graph import Graph, Graphs, as_struct

log = structlog.get_logger()

Context = ServerRequestContext[Any, Any]

SCHEME = "kgserve://"
STORES = f"{SCHEME}stores"
JSON = "application/json"
PAGE = 100
EDGE_BYTES = 500_000
RESOURCE_NOT_FOUND = -32002

_TEMPLATES = types.ListResourceTemplatesResult(
    resource_templates=[
        types.ResourceTemplate(
            name="store",
            title="A store",
            uri_template="kgserve://{store}",
            description="What a store holds: types with counts and examples, relation types with counts",
            mime_type=JSON,
        ),
        types.ResourceTemplate(
            name="entity",
            title="An entity",
            uri_template="kgserve://{store}/{id}",
            description="One entity with its relations; the id is percent-encoded",
            mime_type=JSON,
        ),
    ]
)


class Resources:
    """The resources over some stores."""

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self._graphs = graphs
        self._threads = threads

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """The list of stores, then each store, by name. The cursor is the last name of the page before."""
        after = unquote(params.cursor) if params and params.cursor else ""
        graphs = self._graphs.seen_by(visit_of(context).caller)
        names = await self._threads.read(graphs.pool.names)
        later = [name for name in names if name > after]
        page = [_store(name) for name in later[:PAGE]]
        cursor = quote(later[PAGE - 1]) if len(later) > PAGE else None
        return types.ListResourcesResult(resources=page if after else [_LIST, *page], next_cursor=cursor)

    async def templates(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        """What can be read beyond the list."""
        return _TEMPLATES

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """One resource as JSON. Raises MCPError."""
        visit = visit_of(context)
        try:
            graphs = self._graphs.seen_by(visit.caller)
            text = await self._threads.read(lambda: msgspec.json.encode(_found(graphs, params.uri)).decode())
        except (NotFound, InvalidInput) as error:
            if isinstance(error, Hidden):
                visit.denied("404", act="resources/read", store=error.store)
            code = types.INVALID_PARAMS if context.protocol_version >= "2026" else RESOURCE_NOT_FOUND
            raise MCPError(code, str(error), {"uri": params.uri}) from None
        except Internal:
            log.exception("internal_error", uri=params.uri)
            raise MCPError(types.INTERNAL_ERROR, internal_error()) from None
        except KgserveError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        except Exception:
            log.exception("internal_error", uri=params.uri)
            raise MCPError(types.INTERNAL_ERROR, internal_error()) from None
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)]
        )


def _found(graphs: Graphs, uri: str) -> msgspec.Struct:
    if uri == STORES:
        return stores.list_stores(graphs)
    if not uri.startswith(SCHEME):
        raise NotFound(f"{uri[:200]!r} is not a resource of this server; its URIs start with {SCHEME}")
    name, slash, node = uri.removeprefix(SCHEME).partition("/")
    graph = graphs.graph(unquote(name))
    return _node(graph, unquote(node)) if slash else describe(graph)


def _node(graph: Graph, node: str) -> NodeAnswer:
    found = as_struct(reading.get_node(graph, NodeRequest(node_id=node)), NodeAnswer)
    outgoing, incoming = (first_fitting(edges, EDGE_BYTES) for edges in (found.outgoing, found.incoming))
    cut = len(outgoing) < len(found.outgoing) or len(incoming) < len(found.incoming)
    return msgspec.structs.replace(
        found, outgoing=outgoing, incoming=incoming, edges_truncated=found.edges_truncated or cut
    )


_LIST = types.Resource(
    name="stores", title="All stores", uri=STORES, description="Names, counts and sizes of all stores", mime_type=JSON
)


def uri_of(store: str) -> str:
    """The URI of a store."""
    return f"{SCHEME}%73tores" if store == "stores" else f"{SCHEME}{quote(store, safe='')}"


def _store(name: str) -> types.Resource:
    description = f"What the store {name} holds"
    return types.Resource(name=name, uri=uri_of(name), description=description, mime_type=JSON)


INSTRUCTIONS = """\
kgserve keeps knowledge graphs: stores of entities (id, type, content, attributes) and typed, weighted relations.
Recall first: get_context with the question, or search_knowledge; then traverse_knowledge_graph or get_entity from an \
id that was found.
Before writing to a store read describe_store, and reuse its types, relation types and ways of making ids.
Record with inject_knowledge_graph: stable ids, one fact per entity, relations as VERBS_IN_CAPITALS. Sending the same \
again is harmless. The sequence it answers, given as at_least to a search, makes that search find what was written.
What was true and is no longer: retire_entity or retire_relation, not delete. To change what others write, too: \
get_entity, then put_node with its version as based_on_version. Every state is kept: entity_history tells them, as_of \
reads what the store knew at a time, valid_at what was true in the world at a time.
`index` is the name of the store; with a default store it may be left out."""

RECORD_AND_RECALL = "record_and_recall"

_PROMPTS = types.ListPromptsResult(
    prompts=[
        types.Prompt(
            name=RECORD_AND_RECALL,
            title="Record and recall",
            description="How to keep what is worth remembering in a knowledge graph, and how to find it again",
            arguments=[
                types.PromptArgument(name="store", description="Name of the store to use", required=False),
                types.PromptArgument(name="topic", description="What the work is about", required=False),
            ],
        )
    ]
)

_TEXT = """\
Use the kgserve tools as your memory{about}. {which}

Recall, before you answer or change anything:
1. get_context with the question in plain words. If little comes back, search_batch with two or three other wordings.
2. From the ids that fit, traverse_knowledge_graph (depth 1 or 2) shows what depends on what; get_entity gives one \
entity whole.
3. Cite ids when you rely on what you found. Say so when nothing was found; do not invent.

Record, when something will matter later (decisions and their reasons, requirements, who owns what, where code lives):
1. describe_store first: reuse the types, relation types and id patterns that are there.
2. inject_knowledge_graph with everything that belongs together in one call. An entity has a stable id such as \
req-login or adr-007, a type such as requirement or decision, and as content one or two sentences that make sense \
alone. Relations say how: IMPLEMENTED_BY, DEPENDS_ON, DECIDED_IN.
3. Look at edges_skipped in the answer: those ends did not exist.
4. To correct, inject the same id again; a field that is left out keeps its value. What was never true, \
delete_graph_relation or delete_graph_entity removes.
5. What was true and is no longer, retire: retire_entity or retire_relation with valid_to. Set valid_from and valid_to \
when you know since and until when something is true.
6. To rewrite an entity that others write, too, get_entity first, then put_node the whole of it with that version as \
based_on_version. A conflict_manual error says what to read and how to settle it.
7. To find it right away, pass the answer's sequence as at_least.

Look back, when it matters what was so, or why it changed:
- valid_at (a time): what was true in the world then. Without it what is true now is found, with "any" all.
- as_of (a time, or a sequence): what the store knew then. Both go together, on searches, reads, lists and walks.
- entity_history: the states of one entity and what each changed; revert_entity goes back to one.

Do not record secrets, or what the repository itself already says better."""


async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """The one prompt."""
    return _PROMPTS


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """Its text. Raises MCPError for another name."""
    if params.name != RECORD_AND_RECALL:
        raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name[:80]!r}; there is {RECORD_AND_RECALL}")
    given = params.arguments or {}
    store, topic = given.get("store", "").strip(), given.get("topic", "").strip()
    which = (
        f"The store is {store!r}: pass it as index."
        if store
        else "list_stores names the stores; index may be left out when there is a default store."
    )
    text = _TEXT.format(about=f" for this: {topic}" if topic else "", which=which)
    return types.GetPromptResult(
        description="How to record and recall with kgserve",
        messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))],
    )
