"""MCP resources: stores, their entities and a digest of their memories, each limited in size.

Hosts put a resource into a model's context unchanged. Therefore long contents, long attributes and many edges are
split: ``more`` lists the omitted parts with their URIs.

URIs: ``kgserve://stores`` (list of stores), ``kgserve://NAME`` (store), ``kgserve://NAME/ID`` (entity) and
``kgserve://NAME/memory`` (memory digest). Name and id are percent-encoded; a query selects a part of a long resource. A
store named ``stores`` is ``kgserve://%73tores``, and an entity ``memory`` is ``kgserve://NAME/%6Demory``, because URIs
are compared before decoding. ``kgserve://_tools`` lists the tools, and ``kgserve://_tools/NAME`` documents one with all
its arguments; names of stores never begin with an underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec
from mcp import MCPError, types

from kgserve.admin import stores
from kgserve.admin.store_admin_models import StoreListParameters, StoreSummary
from kgserve.errors import InvalidInput, NotFound, ServedElsewhere
from kgserve.graph import node_reads
from kgserve.graph.answers import Edge, Node, NodeWithEdgesAnswer
from kgserve.graph.compat.versioned_nodes_api import EdgeList
from kgserve.graph.llm_context_text import estimate_llm_token_count
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle, decode_answer_struct
from kgserve.graph.url_parameters import MAX_EDGES_OFFSET, GetNodeRequest, NodeEdgesRequest
from kgserve.memory.memory_models import Memory
from kgserve.memory.reflect_models import format_memory_line
from kgserve.memory.serialization import build_memories_from_rows, now_in_microseconds
from kgserve.platform.access.authentication import HiddenStore
from kgserve.platform.media_types import JSON_MEDIA_TYPE, TEXT_MEDIA_TYPE
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.projections.memory_index.query_planner import MemoryPageStart, MemorySortKey
from kgserve.server.admission import AdmissionControl
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.mcp.listed_tool_arguments import format_tool_documentation_markdown
from kgserve.server.mcp.store_tools import build_store_description
from kgserve.server.mcp.tool_calls import (
    Context,
    convert_errors_to_mcp,
    forward_mcp_method_to_store_owner,
    get_mcp_request_access_context,
    read_mcp_connection_options,
)
from kgserve.server.mcp.tool_structured_content import take_items_within_json_size
from kgserve.server.mcp.toolsets import TOOLS, resolve_called_tool
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

URI_SCHEME = "kgserve://"
STORES_URI = f"{URI_SCHEME}stores"
STORE_TEMPLATE = f"{URI_SCHEME}{{store}}"
MEMORY_TEMPLATE = f"{URI_SCHEME}{{store}}/memory"
ENTITY_TEMPLATE = f"{URI_SCHEME}{{store}}/{{id}}"
TOOLS_URI = f"{URI_SCHEME}_tools"
TOOL_TEMPLATE = f"{TOOLS_URI}/{{tool}}"

_MEMORY_SUFFIX = "/memory"
_PAGE_PARAMETERS = ("after", "content_offset", "attributes_offset", "outgoing_offset", "incoming_offset")
_PAGE_NUMBER = re.compile(r"[0-9]{1,12}")


class ParsedResourceUri(NamedTuple):
    """Parsed resource URI: an entity, a store, its memory digest (``remembered``), or without a store the list."""

    store: str | None = None
    node: str | None = None
    remembered: bool = False

    @property
    def uri(self) -> str:
        """URI of the resource."""
        if self.store is None:
            return STORES_URI
        store = "%73tores" if self.store == "stores" else quote(self.store, safe="")
        if self.node is None:
            return f"{URI_SCHEME}{store}{_MEMORY_SUFFIX if self.remembered else ''}"
        return f"{URI_SCHEME}{store}/{'%6Demory' if self.node == 'memory' else quote(self.node, safe='')}"


class ResourcePartSelector(NamedTuple):
    """Part of a long resource: the parameter that names a list or text, and its offset or cursor."""

    name: str
    value: str

    @property
    def offset(self) -> int:
        """Value as a number. Raises InvalidInput."""
        if not _PAGE_NUMBER.fullmatch(self.value):
            raise InvalidInput(f"{self.name}: must be a number of at least 0, such as {self.name}=1000")
        return int(self.value)


def parse_mcp_resource_uri(uri: str) -> tuple[ParsedResourceUri, ResourcePartSelector | None]:
    """Parse a resource URI. Raises NotFound for another scheme, InvalidInput for an unknown part."""
    if not uri.startswith(URI_SCHEME):
        raise NotFound(f"{uri[:200]!r} is not a resource of this server; its URIs start with {URI_SCHEME}")
    address, _, query = uri.partition("?")
    part = _part_of(query) if query else None
    if address == STORES_URI:
        return ParsedResourceUri(), part
    if address.endswith(_MEMORY_SUFFIX) and address.count("/") == URI_SCHEME.count("/") + 1:
        return ParsedResourceUri(
            unquote(address.removeprefix(URI_SCHEME).removesuffix(_MEMORY_SUFFIX)), remembered=True
        ), part
    name, slash, node = address.removeprefix(URI_SCHEME).partition("/")
    return ParsedResourceUri(unquote(name), unquote(node) if slash else None), part


def _part_of(query: str) -> ResourcePartSelector:
    name, _, value = query.partition("=")
    if name not in _PAGE_PARAMETERS or "&" in value:
        raise InvalidInput(f"?{query[:80]}: unknown parameter; use one of {', '.join(_PAGE_PARAMETERS)}")
    return ResourcePartSelector(name, unquote(value))


T = TypeVar("T")

_MEMORY_DESCRIPTION = "Pinned memories, preferences, latest decisions and best known facts, up to 1,500 tokens"
STORES_PER_PAGE = 100
MAX_RESOURCE_TEXT_CHARS = 20_000
"""Maximum characters of a content, or of attributes as JSON, in one part."""
MAX_RESOURCE_EDGES_BYTES = 20_000
"""Maximum bytes of edges in one direction in one part, as JSON."""
_MAX_RESOURCE_EDGES = 200
RESOURCE_NOT_FOUND = -32002
_MARKDOWN_MEDIA_TYPE = "text/markdown"

_TEMPLATES_RESULT = types.ListResourceTemplatesResult(
    resource_templates=[
        types.ResourceTemplate(
            name="store",
            title="A store",
            uri_template=STORE_TEMPLATE,
            description="Contents of a store: types with counts and examples, relation types with counts",
            mime_type=JSON_MEDIA_TYPE,
        ),
        types.ResourceTemplate(
            name="memory",
            title="Memory of a store",
            uri_template=MEMORY_TEMPLATE,
            description=_MEMORY_DESCRIPTION,
            mime_type=TEXT_MEDIA_TYPE,
        ),
        types.ResourceTemplate(
            name="entity",
            title="An entity",
            uri_template=ENTITY_TEMPLATE,
            description="One entity with its relations; the id is percent-encoded. Long entities come in parts: `more` "
            "lists the URIs of the omitted parts",
            mime_type=JSON_MEDIA_TYPE,
        ),
        types.ResourceTemplate(
            name="tool",
            title="A tool",
            uri_template=TOOL_TEMPLATE,
            description="A tool with all arguments that it accepts, also those that its schema does not list",
            mime_type=_MARKDOWN_MEDIA_TYPE,
        ),
    ]
)


class OmittedResourcePart(msgspec.Struct):
    """Omitted part of a resource, with its URI."""

    what: str
    uri: str


class EntityResource(msgspec.Struct, kw_only=True):
    """Entity with the first of its edges."""

    node: Node
    content_length: int
    outgoing: list[Edge]
    incoming: list[Edge]
    edges_truncated: bool
    more: list[OmittedResourcePart]


class EntityTextChunk(msgspec.Struct, kw_only=True):
    """Part of an entity's content, or of its attributes as JSON."""

    id: str
    offset: int
    text: str
    length: int
    more: list[OmittedResourcePart]


class EntityEdgesChunk(msgspec.Struct, kw_only=True):
    """Part of an entity's edges in one direction, in order."""

    id: str
    offset: int
    edges: list[Edge]
    more: list[OmittedResourcePart]


class StoresPage(msgspec.Struct, kw_only=True):
    """Page of the stores, by name; ``count`` is the total."""

    stores: list[StoreSummary]
    count: int
    more: list[OmittedResourcePart]


class ResourceHandlers:
    """Resource handlers for some stores."""

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl, forwarder: ClusterNodeHttpClient) -> None:
        self._graphs = graphs
        self._threads = threads
        self._forwarder = forwarder

    async def list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """List the resources: the list of stores, then each store by name. The cursor is the last name of a page."""
        after = unquote(params.cursor) if params and params.cursor else ""
        graphs = self._graphs.for_caller(get_mcp_request_access_context(context).caller)
        names = await self._threads.read(graphs.pool.names)
        later = [name for name in names if name > after]
        page = [each for name in later[:STORES_PER_PAGE] for each in (_store(name), _memory(name))]
        cursor = quote(later[STORES_PER_PAGE - 1]) if len(later) > STORES_PER_PAGE else None
        return types.ListResourcesResult(
            resources=page if after else [_STORES_RESOURCE, _TOOLS_RESOURCE, *page], next_cursor=cursor
        )

    async def templates(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
        """Return the resource templates."""
        return _TEMPLATES_RESULT

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Read one resource, as JSON or text. Raises MCPError."""
        if params.uri == TOOLS_URI or params.uri.startswith(f"{TOOLS_URI}/"):
            return _document_tools(context, params.uri)
        found = await self._run(context, params.uri, lambda graphs: _render(graphs, params.uri))
        if isinstance(found, ServedElsewhere):
            return await self._read_elsewhere(context, found, params.uri)
        kind, text = found
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=kind, text=text)]
        )

    async def _read_elsewhere(self, context: Context, served: ServedElsewhere, uri: str) -> types.ReadResourceResult:
        caller, headers = (
            get_mcp_request_access_context(context).caller,
            context.request.headers if context.request else {},
        )
        with convert_errors_to_mcp(uri=uri):
            asked = ("resources/read", {"uri": uri})
            try:
                found = await forward_mcp_method_to_store_owner(self._forwarder, served, caller, asked, headers)
            except MCPError as error:
                # The other node answered in the newest protocol revision.
                is_missing = error.code == types.INVALID_PARAMS and context.protocol_version < "2026"
                code = RESOURCE_NOT_FOUND if is_missing else error.code
                raise MCPError(code, error.message, error.data) from None
            return types.ReadResourceResult.model_validate(found)

    async def place(self, context: Context, uri: str) -> ParsedResourceUri:
        """Return the address of a URI for a subscription. Raises MCPError if its store does not exist."""
        return await self._run(context, uri, lambda graphs: _require_store(graphs, parse_mcp_resource_uri(uri)[0]))

    async def _run(self, context: Context, uri: str, question: Callable[[CallerStoreHandles], T]) -> T:
        visit = get_mcp_request_access_context(context)
        with convert_errors_to_mcp(uri=uri):
            try:
                graphs = self._graphs.for_caller(visit.caller)
                return await self._threads.read(lambda: question(graphs))
            except (NotFound, InvalidInput) as error:
                if isinstance(error, HiddenStore):
                    visit.record_refusal("404", act=context.method, store=error.store)
                code = types.INVALID_PARAMS if context.protocol_version >= "2026" else RESOURCE_NOT_FOUND
                raise MCPError(code, str(error), {"uri": uri}) from None


def _document_tools(context: Context, uri: str) -> types.ReadResourceResult:
    """Return the documentation of one tool, or the list of all. Raises MCPError for an unknown tool."""
    name = unquote(uri.removeprefix(TOOLS_URI).removeprefix("/"))
    tool = (
        resolve_called_tool(name, read_mcp_connection_options(context.request.scope).tools) if context.request else None
    )
    if name and tool is None:
        code = types.INVALID_PARAMS if context.protocol_version >= "2026" else RESOURCE_NOT_FOUND
        raise MCPError(code, f"unknown tool {name[:80]!r}; {TOOLS_URI} lists the tools", {"uri": uri})
    text = format_tool_index() if tool is None else format_tool_documentation_markdown(tool)
    contents = types.TextResourceContents(uri=uri, mime_type=_MARKDOWN_MEDIA_TYPE, text=text)
    return types.ReadResourceResult(contents=[contents])


def format_tool_index() -> str:
    """Return the names of all tools with their titles, by toolset, as Markdown."""
    lines = [f"# Tools\n\nAll can be called, listed or not. {TOOLS_URI}/NAME has the arguments of one.\n"]
    lines += [f"- `{tool.name}`: {tool.title}" for tool in TOOLS.values()]
    return "\n".join(lines) + "\n"


def _render(graphs: CallerStoreHandles, uri: str) -> tuple[str, str] | ServedElsewhere:
    """Return the media type and text of a resource, or the node that serves it."""
    try:
        found = _read(graphs, uri)
    except ServedElsewhere as elsewhere:
        return elsewhere
    return (
        (TEXT_MEDIA_TYPE, found) if isinstance(found, str) else (JSON_MEDIA_TYPE, msgspec.json.encode(found).decode())
    )


def _read(graphs: CallerStoreHandles, uri: str) -> msgspec.Struct | str:
    place, part = parse_mcp_resource_uri(uri)
    match place, part:
        case ParsedResourceUri(str() as store, None, True), None:
            return build_memory_digest(graphs.graph(store))
        case ParsedResourceUri(None), (None | ResourcePartSelector("after")):
            return _stores(graphs, part.value if part else "")
        case ParsedResourceUri(str() as store, None), None:
            return build_store_description(graphs.graph(store))
        case ParsedResourceUri(str() as store, str()), None:
            return _entity(graphs.graph(store), place)
        case ParsedResourceUri(str() as store, str()), ResourcePartSelector("content_offset" | "attributes_offset"):
            return _text_part(graphs.graph(store), place, part)
        case ParsedResourceUri(str() as store, str()), ResourcePartSelector("outgoing_offset" | "incoming_offset"):
            return _edges_part(graphs.graph(store), place, part)
        case _:
            raise InvalidInput(f"{place.uri} has no part {part.name if part else ''}")


def _require_store(graphs: CallerStoreHandles, place: ParsedResourceUri) -> ParsedResourceUri:
    if place.store is not None:
        graphs.pool.require(place.store)
    return place


def _stores(graphs: CallerStoreHandles, after: str) -> StoresPage:
    listed = stores.list_stores(graphs, StoreListParameters(limit=STORES_PER_PAGE, after=after))
    following = listed.next_after
    more = [] if following is None else [_more("the next stores", ParsedResourceUri(), "after", following)]
    return StoresPage(stores=listed.stores, count=listed.count, more=more)


def _entity(graph: StoreHandle, place: ParsedResourceUri) -> EntityResource:
    whole = _node(graph, place)
    outgoing, incoming = (_edges(graph, place, 0, outgoing=way) for way in (True, False))
    content = whole.content[:MAX_RESOURCE_TEXT_CHARS]
    attributes = msgspec.json.encode(whole.attributes)
    fits = len(attributes) <= MAX_RESOURCE_TEXT_CHARS
    more = [
        *_rest(place, "content", len(content), len(whole.content)),
        *([] if fits else [_more("the attributes, as JSON text", place, "attributes_offset", 0)]),
        *outgoing.more,
        *incoming.more,
    ]
    return EntityResource(
        node=msgspec.structs.replace(whole, content=content, attributes=whole.attributes if fits else {}),
        content_length=len(whole.content),
        outgoing=outgoing.edges,
        incoming=incoming.edges,
        edges_truncated=bool(outgoing.more or incoming.more),
        more=more,
    )


def _text_part(graph: StoreHandle, place: ParsedResourceUri, part: ResourcePartSelector) -> EntityTextChunk:
    node, what = _node(graph, place), part.name.removesuffix("_offset")
    whole = node.content if what == "content" else msgspec.json.encode(node.attributes).decode()
    text = whole[part.offset : part.offset + MAX_RESOURCE_TEXT_CHARS]
    more = _rest(place, what, part.offset + len(text), len(whole))
    return EntityTextChunk(id=node.id, offset=part.offset, text=text, length=len(whole), more=more)


def _edges_part(graph: StoreHandle, place: ParsedResourceUri, part: ResourcePartSelector) -> EntityEdgesChunk:
    return _edges(graph, place, part.offset, outgoing=part.name == "outgoing_offset")


def _node(graph: StoreHandle, place: ParsedResourceUri) -> Node:
    return decode_answer_struct(
        node_reads.get_node(graph, GetNodeRequest(node_id=place.node or "")), NodeWithEdgesAnswer
    ).node


def _edges(graph: StoreHandle, place: ParsedResourceUri, offset: int, *, outgoing: bool) -> EntityEdgesChunk:
    if offset > MAX_EDGES_OFFSET:
        raise InvalidInput(f"the offset exceeds {MAX_EDGES_OFFSET:,} edges; use query_cypher for further ones")
    request = NodeEdgesRequest(node_id=place.node or "", limit=_MAX_RESOURCE_EDGES, offset=offset)
    page = decode_answer_struct(node_reads.read_node_edge_page_as_json(graph, request, outgoing=outgoing), EdgeList)
    edges = take_items_within_json_size(page.edges, MAX_RESOURCE_EDGES_BYTES) or page.edges[:1]
    end = offset + len(edges)
    way = "outgoing" if outgoing else "incoming"
    is_last = page.next_offset is None and len(edges) == len(page.edges)
    more = [] if is_last else [_more(f"the next {way} relations", place, f"{way}_offset", end)]
    return EntityEdgesChunk(id=place.node or "", offset=offset, edges=edges, more=more)


def _rest(place: ParsedResourceUri, what: str, end: int, length: int) -> list[OmittedResourcePart]:
    if end >= length:
        return []
    return [_more(f"{what} from character {end:,} of {length:,}", place, f"{what}_offset", end)]


def _more(what: str, place: ParsedResourceUri, part: str, value: str | int) -> OmittedResourcePart:
    return OmittedResourcePart(what, f"{place.uri}?{part}={quote(str(value), safe='')}")


_STORES_RESOURCE = types.Resource(
    name="stores",
    title="All stores",
    uri=STORES_URI,
    description="Names, counts and sizes of all stores",
    mime_type=JSON_MEDIA_TYPE,
)
_TOOLS_RESOURCE = types.Resource(
    name="tools",
    title="All tools",
    uri=TOOLS_URI,
    description="Names of all tools, also of those that are not listed",
    mime_type=_MARKDOWN_MEDIA_TYPE,
)


def _memory(name: str) -> types.Resource:
    place = ParsedResourceUri(name, remembered=True)
    return types.Resource(
        name=f"{name} memory", uri=place.uri, description=_MEMORY_DESCRIPTION, mime_type=TEXT_MEDIA_TYPE
    )


def _store(name: str) -> types.Resource:
    return types.Resource(
        name=name,
        uri=ParsedResourceUri(name).uri,
        description=f"Contents of the store {name}",
        mime_type=JSON_MEDIA_TYPE,
    )


MAX_MEMORY_RESOURCE_TOKENS = 1_500
_MAX_MEMORY_LINE_CHARS = 300
"""Maximum characters of one memory; get_memory returns all of it."""
_FIRST_MEMORY_PLACE = MemoryPageStart()


class MemoryDigestSection(msgspec.Struct, frozen=True):
    """Section of the memory digest: title and memories."""

    title: str
    memories: Sequence[Memory]


def build_memory_digest(graph: StoreHandle) -> str:
    """Return a digest of a store's memories, up to 1,500 tokens; this does not count as access. Raises NoStore.

    It lists pinned memories, preferences, the newest decisions, and then the memories with the highest confidence. Each
    list comes from an index of the memory view, so the cost does not depend on the size of the store.
    """
    now = now_in_microseconds()
    with graph.lease() as store:
        wanted = MemoryFilter(now, min_confidence=store.description.memory.min_confidence)
        # The view does not contain accesses that are not journaled yet.
        store.accesses.flush_and_wait()

        def read_sections(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> list[MemoryDigestSection]:
            listed = set[str]()
            sections: list[MemoryDigestSection] = []
            for title, ids in _list_sections(memories, wanted):
                new = [each for each in ids if each not in listed]
                listed.update(new)
                found = rows.nodes(new)
                existing = [found[each] for each in new if each in found]
                sections.append(MemoryDigestSection(title, build_memories_from_rows(store, rows, existing, now)))
            return sections

        sections = store.memories.ask(read_sections)
    return format_memory_digest(graph.name, sections, now / 1_000_000)


def _list_sections(memories: MemoryIndexSqliteFile, wanted: MemoryFilter) -> Iterator[tuple[str, list[str]]]:
    def listed(sort: MemorySortKey, limit: int, *types: str) -> list[str]:
        return memories.list_memory_page(
            msgspec.structs.replace(wanted, types=types), sort, _FIRST_MEMORY_PLACE, limit
        ).ids

    yield "Pinned", memories.pinned(wanted.now, 20)
    yield "Preferences", listed("created", 10, "preference")
    yield "Newest decisions", listed("created", 10, "decision")
    yield "Also known", listed("confidence", 40)


def format_memory_digest(
    store: str, sections: Iterable[MemoryDigestSection], now: float, most: int = MAX_MEMORY_RESOURCE_TOKENS
) -> str:
    """Return the sections as text of at most ``most`` tokens; ``now`` is in seconds since 1970."""
    lines = [f'Memory of the store "{store}". recall finds more, get_memory returns one in full.']
    spent = estimate_llm_token_count(lines[0]) + 1
    for section in sections:
        head = [f"\n{section.title}:"]
        for memory in section.memories:
            line = f"- {format_memory_line(memory, now, _MAX_MEMORY_LINE_CHARS)}"
            cost = sum(estimate_llm_token_count(each) + 1 for each in (*head, line))
            if spent + cost > most:
                return "\n".join(lines)
            lines += [*head, line]
            spent += cost
            head = []
    return "\n".join(lines) if len(lines) > 1 else f'The store "{store}" remembers nothing yet; retain adds to it.'
