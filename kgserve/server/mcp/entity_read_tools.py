"""Tools that read entities and relations: one entity, lists, and graph traversal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from kgserve.errors import InvalidInput
from kgserve.graph import answers, node_reads, request_bodies, url_parameters
from kgserve.graph.as_of_resolution import MAX_EDGES_PER_DIRECTION
from kgserve.graph.compat import versioned_nodes_api
from kgserve.graph.compat.versioned_nodes_api import EdgeList
from kgserve.graph.store_handle import StoreHandle, decode_answer_struct
from kgserve.graph.url_parameters import MAX_EDGES_OFFSET, MAX_NODES_OFFSET, MAX_PAGE_ROWS
from kgserve.server.mcp.shared_tool_arguments import (
    AsOfField,
    AttributesField,
    IdField,
    ReadToolArguments,
    RelationTypesField,
    TagsField,
    TypesField,
    ValidAtField,
    VersionField,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    MAX_SUBJECT_CHARS,
    ToolReply,
    build_tool_reply,
    describe_time_scope,
    format_count,
    format_edge_arrow,
    format_edge_fields,
    format_edge_line,
    format_node_fields,
    format_node_line,
    quote_text,
    take_items_fitting_reply,
    trim_timestamp_text_to_seconds,
)
from kgserve.server.mcp.tool_structured_content import (
    MAX_DETAIL_CHARS,
    MAX_TEASER_CHARS,
    MAX_WHOLE_CONTENT_CHARS,
    build_graph_list_items_within_length,
    build_traversed_node_teaser,
    convert_to_builtins_without_defaults,
    encode,
    encode_json_text,
    is_missing_linked_node,
    omit_oversized_attributes,
    shorten_tags,
    take_items_within_json_size,
    take_lines_within_length,
    truncate_text,
)
from kgserve.storage.model import breadth_first_traversal

_RELATIONS_PER_PAGE = 100
_MAX_WHOLE_ATTRIBUTES_CHARS = 4_000
_MAX_WHOLE_TAGS_CHARS = 1_500
_MIN_EDGES_CHARS = 3_000
_NODES_HEADING = "=== Nodes ==="
_EDGES_HEADING = "=== Edges ==="
_NARROW_WALK_HINT = "use a smaller depth, start nearer to what you need, or ask with query_cypher"
_EMPTY_NODES_RESULT: dict[str, Any] = {"nodes": []}
_EMPTY_WALK_RESULT: dict[str, Any] = {"nodes": [], "edges": [], "count": 0, "truncated": False}


@add_request_fields_to_arguments(request_bodies.TraverseRequest, "min_weight", "max_depth", "edge_kinds")
class TraverseArguments(ReadToolArguments, kw_only=True):
    """Start, depth and filters of a traversal."""

    start_id: IdField
    depth: Annotated[
        int, Meta(ge=0, le=breadth_first_traversal.MAX_WALK_DEPTH, description="Hops; 0: the start alone")
    ] = 1
    relation_types: RelationTypesField = UNSET
    direction: Annotated[breadth_first_traversal.TraversalDirection, Meta(description="Direction of relations")] = (
        "outgoing"
    )
    max_nodes: Annotated[
        int, Meta(ge=1, le=request_bodies.MAX_TRAVERSED_NODES, description="Maximum nodes, nearest first")
    ] = request_bodies.MAX_TRAVERSED_NODES
    follow_symlinks: Annotated[bool, Meta(description="Include other stores")] = False
    as_of: AsOfField = UNSET
    valid_at: ValidAtField = UNSET


class GetEntityArguments(ReadToolArguments, kw_only=True):
    """Node to read."""

    id: IdField
    content_offset: Annotated[int, Meta(ge=0, description="Characters of its content to skip")] = 0
    relations_offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Relations to skip")] = 0
    direction: Annotated[breadth_first_traversal.TraversalDirection, Meta(description="Which relations to show")] = (
        "both"
    )
    version: Annotated[VersionField, Meta(description="Only this version, without relations")] | UnsetType = UNSET
    follow_symlinks: Annotated[bool, Meta(description="Include incoming relations of other stores")] = False
    as_of: AsOfField = UNSET
    valid_at: ValidAtField = UNSET


class ListEntitiesArguments(ReadToolArguments, kw_only=True):
    """Filters and page of a list of entities; or count only, or entities by id."""

    types: TypesField = UNSET
    tags: TagsField = UNSET
    attributes: AttributesField = UNSET
    ids: (
        Annotated[list[IdField], Meta(max_length=MAX_PAGE_ROWS, description="Only these, in this order")] | UnsetType
    ) = UNSET
    count: Annotated[bool, Meta(description="Only the number")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Maximum entities")] = 50
    offset: Annotated[int, Meta(ge=0, le=MAX_NODES_OFFSET, description="Entities to skip")] = 0
    cursor: Annotated[str, Meta(description="next_cursor of the previous page")] | UnsetType = UNSET
    compact: Annotated[bool, Meta(description="Without contents and attributes")] = True
    as_of: AsOfField = UNSET
    valid_at: ValidAtField = UNSET


class ListRelationsArguments(ReadToolArguments, kw_only=True):
    """Relations of one entity in one direction."""

    id: IdField
    direction: Annotated[
        Literal["outgoing", "incoming"], Meta(description="Relations that start, or end, at the entity")
    ] = "outgoing"
    relation_types: RelationTypesField = UNSET
    follow_symlinks: Annotated[bool, Meta(description="Include incoming ones of other stores")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_ROWS, description="Maximum relations")] = 50
    offset: Annotated[int, Meta(ge=0, le=MAX_EDGES_OFFSET, description="Relations to skip")] = 0
    as_of: AsOfField = UNSET
    valid_at: ValidAtField = UNSET


def _get_entity(graph: StoreHandle, given: GetEntityArguments) -> answers.NodeWithEdgesAnswer:
    if given.version and (given.as_of or given.valid_at or given.follow_symlinks):
        raise InvalidInput("version: cannot be combined with as_of, valid_at or follow_symlinks; omit them")
    found = decode_answer_struct(
        node_reads.get_node(graph, convert_arguments_to_request(url_parameters.GetNodeRequest, given)),
        answers.NodeWithEdgesAnswer,
    )
    if given.direction != "both":
        [other] = {"outgoing", "incoming"} - {given.direction}
        # The flag is set if either side has more.
        truncated = found.edges_truncated and len(getattr(found, given.direction)) >= MAX_EDGES_PER_DIRECTION
        found = replace(found, **{other: []}, edges_truncated=truncated)
    if not given.relations_offset or given.version:
        return found
    wanted = convert_arguments_to_request(url_parameters.IncomingEdgesRequest, given)
    wanted.offset, wanted.limit = given.relations_offset, _RELATIONS_PER_PAGE
    pages = {
        name: decode_answer_struct(
            node_reads.read_node_edge_page_as_json(graph, wanted, outgoing=name == "outgoing"),
            versioned_nodes_api.EdgeList,
        )
        for name in ("outgoing", "incoming")
        if given.direction in (name, "both")
    }
    truncated = any(page.next_offset is not None for page in pages.values())
    edges = {name: page.edges for name, page in pages.items()}
    return replace(found, **edges, edges_truncated=truncated)


def _list_entities(
    graph: StoreHandle, given: ListEntitiesArguments
) -> answers.ListedNodePage | answers.NodesByIdAnswer | answers.CountNodesAnswer:
    if given.ids:
        found = node_reads.get_nodes(graph, convert_arguments_to_request(request_bodies.GetNodesByIdRequest, given))
        return decode_answer_struct(found, answers.NodesByIdAnswer)
    if given.count:
        if given.as_of:
            raise InvalidInput("count: cannot be combined with as_of; list the entities instead")
        return node_reads.count_matching_nodes(
            graph, convert_arguments_to_request(request_bodies.CountNodesRequest, given)
        )
    found = _page(graph, given, given.limit)
    # A page that is too large is read again with a smaller limit, so that its cursor matches its end.
    while (fitting := count_nodes_fitting_reply(found.nodes, detail=given.detail)) < len(found.nodes):
        found = _page(graph, given, fitting)
    return found


def _page(graph: StoreHandle, given: ListEntitiesArguments, limit: int) -> answers.ListedNodePage:
    wanted = convert_arguments_to_request(url_parameters.NodeListParameters, given)
    wanted.type, wanted.tag, wanted.limit = given.types or [], given.tags or [], limit
    wanted.attributes = msgspec.json.encode(given.attributes).decode() if given.attributes else None
    return decode_answer_struct(node_reads.list_nodes(graph, wanted), answers.ListedNodePage)


def _list_relations(graph: StoreHandle, given: ListRelationsArguments) -> versioned_nodes_api.EdgeList:
    wanted = convert_arguments_to_request(url_parameters.IncomingEdgesRequest, given)
    wanted.kinds = given.relation_types or []
    found = node_reads.read_node_edge_page_as_json(graph, wanted, outgoing=given.direction == "outgoing")
    return decode_answer_struct(found, versioned_nodes_api.EdgeList)


@build_tool_reply.register
def _traverse_reply(found: answers.TraverseAnswer, given: TraverseArguments, _store: str) -> ToolReply:
    when = describe_time_scope(given)
    head = f"Traversal from {quote_text(given.start_id)} (depth {given.depth}){when} — "
    head += f"{len(found.nodes)} nodes, {len(found.edges)} edges"
    if not found.nodes:
        hint = f"there is no node {quote_text(given.start_id)}{when}; use search_knowledge to find ids"
        values = {"nodes": [], "edges": [], "count": 0, "truncated": False}
        return ToolReply(f"{head}\n\n{_NODES_HEADING}", values, hint=hint)
    edge_room = min(MAX_SUBJECT_CHARS * 2 // 5, len(encode(found.edges)))
    shown = take_lines_within_length(map(_walked_node_line, found.nodes), MAX_SUBJECT_CHARS - edge_room)
    reached = found.nodes[: len(shown)]
    nodes = (
        build_graph_list_items_within_length(reached, MAX_SUBJECT_CHARS - edge_room, detail=True)
        if given.detail
        else take_items_within_json_size(map(build_traversed_node_teaser, reached), MAX_SUBJECT_CHARS - edge_room)
    )
    ids = {(node.get("store"), node["id"]) for node in nodes}
    between = [edge for edge in found.edges if ids.issuperset(_ends(edge))]
    links = take_lines_within_length(map(_walked_edge_line, between), edge_room)
    edges = build_graph_list_items_within_length(between[: len(links)], edge_room, detail=given.detail)
    left = (len(found.nodes) - len(nodes), len(found.edges) - len(edges))
    more = ""
    if any(left) or found.truncated:
        beyond = ", and more are reachable" if found.truncated else ""
        more = f"{left[0]:,} nodes and {left[1]:,} edges are not shown{beyond}: {_NARROW_WALK_HINT}"
    lines = [
        head,
        "",
        _NODES_HEADING,
        *shown[: len(nodes)],
        *(["", _EDGES_HEADING, *links[: len(edges)]] if edges else []),
    ]
    hint, redirected = describe_merge_redirect(found.redirected_from)
    values = {"nodes": nodes, "edges": edges, "count": len(nodes), "truncated": bool(more), **redirected}
    return ToolReply("\n".join(lines), values, more, hint)


def _ends(edge: answers.Edge) -> tuple[tuple[str | None, str], tuple[str | None, str]]:
    """Return the ends of an edge, each with its store if the walk spans several."""
    store = edge.store or None
    return (store, edge.source), (edge.to_graph or store, edge.target)


def _walked_node_line(node: answers.ReachedNode) -> str:
    """Format a node of a walk like the Memory Engine: a star marks the start, the content is shortened."""
    named = f"  [{' ' if node.depth else '*'}] id={quote_text(node.id)}"
    store = f" store={quote_text(node.store)}" if node.store else ""
    if is_missing_linked_node(node):
        return f"{named}{store} does not exist"
    whole = replace(node, summary=UNSET, tags=UNSET, attributes={})
    content = f" content={quote_text(truncate_text(node.content, MAX_TEASER_CHARS, '...'))}" if node.content else ""
    return f"{named} type={quote_text(node.type)}{content}{store}{format_node_fields(whole)}"


def _walked_edge_line(edge: answers.Edge) -> str:
    """Format an edge of a walk like the Memory Engine, always with its weight."""
    facts = "".join(f" {fact}" for fact in format_edge_fields(edge) if not fact.startswith("weight="))
    return f"  {format_edge_arrow(edge)} (weight={_weight(edge.weight)}){facts}"


def _weight(weight: float) -> str:
    """Format a weight with two decimals, or with four significant digits if two decimals would round it."""
    text = f"{weight:.2f}"
    return text if float(text) == weight else f"{weight:.4g}"


@build_tool_reply.register
def _get_entity_reply(found: answers.NodeWithEdgesAnswer, given: GetEntityArguments, _store: str) -> ToolReply:
    whole = found.node
    end = given.content_offset + MAX_WHOLE_CONTENT_CHARS
    node = replace(
        whole,
        content=whole.content[given.content_offset : end],
        attributes=omit_oversized_attributes(whole.attributes, _MAX_WHOLE_ATTRIBUTES_CHARS),
        tags=whole.tags and shorten_tags(whole.tags, _MAX_WHOLE_TAGS_CHARS),
    )
    room = _MIN_EDGES_CHARS + (MAX_WHOLE_CONTENT_CHARS - len(node.content)) // 2
    sides = {"outgoing": found.outgoing, "incoming": found.incoming}
    shown = {
        name: build_graph_list_items_within_length(edges, room, detail=given.detail) for name, edges in sides.items()
    }
    cut = found.edges_truncated or any(len(shown[name]) < len(edges) for name, edges in sides.items())
    values: dict[str, Any] = {"node": _node_values(node, detail=given.detail), **shown, "edges_truncated": cut}
    more: list[str] = []
    if end < len(whole.content) or given.content_offset:
        values["content_length"] = len(whole.content)
    if end < len(whole.content):
        more.append(f"the content has {len(whole.content):,} characters: continue with content_offset={end}")
    if cut:
        # A side with more relations than were read has as many as a page, so it is the longest.
        longest = max(map(len, sides.values()))
        offset = given.relations_offset + min(
            len(shown[name])
            for name, edges in sides.items()
            if len(shown[name]) < len(edges) or (found.edges_truncated and len(edges) == longest)
        )
        more.append(f"not all edges are shown: use relations_offset={offset}, or one direction")
    if node.attributes is not whole.attributes:
        more.append("the attributes are too long: read parts with query_cypher and substring()")
    if node.tags is not whole.tags:
        more.append("the tags are too long for one reply")
    edges = {name: kept[: len(shown[name])] for name, kept in sides.items()}
    hint, redirected = describe_merge_redirect(found.redirected_from)
    text = _entity_text(node, edges, describe_time_scope(given))
    return ToolReply(text, values | redirected, "; ".join(more), hint, verbatim=node.content)


def describe_merge_redirect(source: str | UnsetType) -> tuple[str, dict[str, Any]]:
    """Return the hint and values for a node that was merged into the returned one."""
    if not source:
        return "", {}
    return f"{quote_text(source)} was merged into this entity", {"redirected_from": source}


def _node_values(node: answers.Node, *, detail: bool) -> dict[str, Any]:
    if detail:
        return msgspec.to_builtins(node)
    stamps = {
        "version": node.version,
        "updated_at": trim_timestamp_text_to_seconds(node.updated_at),
        "created_by": node.created_by,
    }
    return {
        "content": "",
        **convert_to_builtins_without_defaults(node),
        **{name: value for name, value in stamps.items() if value},
    }


def _entity_text(node: answers.Node, edges: dict[str, list[answers.Edge]], when: str) -> str:
    author = f" by {quote_text(node.created_by)}" if node.created_by else ""
    changed = trim_timestamp_text_to_seconds(node.updated_at)
    head = f"{quote_text(node.id)} ({node.type}){when}, version {node.version}, changed {changed}{author}"
    facts = format_node_fields(replace(node, attributes={})).strip()
    lines = [head, *([facts] if facts else []), *([node.content] if node.content else [])]
    lines += [f"Attributes: {encode_json_text(node.attributes)}"] if node.attributes else []
    lines += ["Outgoing:", *map(format_edge_line, edges["outgoing"])] if edges["outgoing"] else []
    lines += ["Incoming:", *map(format_edge_line, edges["incoming"])] if edges["incoming"] else []
    kept = take_lines_within_length(lines, MAX_SUBJECT_CHARS + 500)
    return "\n".join(kept) + ("\n…" if len(kept) < len(lines) else "")


def count_nodes_fitting_reply(nodes: Sequence[answers.ListedNode], *, detail: bool) -> int:
    """Return how many of a page's first nodes fit into a reply, at least 1."""
    return max(len(take_items_fitting_reply(nodes, format_node_line, detail=detail, content=MAX_DETAIL_CHARS)[0]), 1)


@build_tool_reply.register
def _list_entities_reply(found: answers.ListedNodePage, given: ListEntitiesArguments, store: str) -> ToolReply:
    nodes, lines = take_items_fitting_reply(
        found.nodes, format_node_line, detail=given.detail, content=MAX_DETAIL_CHARS
    )
    more = f"the next page: cursor={quote_text(found.next_cursor)}, without offset" if found.next_cursor else ""
    head = f"{format_count(len(nodes), 'entity', 'entities')} of {quote_text(store)}{describe_time_scope(given)}"
    return ToolReply("\n".join([head, *lines]), {"nodes": nodes, "next_cursor": found.next_cursor}, more)


@build_tool_reply.register
def _some_entities_reply(found: answers.NodesByIdAnswer, given: ListEntitiesArguments, store: str) -> ToolReply:
    nodes, lines = take_items_fitting_reply(
        found.nodes,
        format_node_line,
        detail=given.detail,
        content=MAX_TEASER_CHARS if given.compact else MAX_DETAIL_CHARS,
    )
    more = f"{len(found.nodes) - len(nodes):,} did not fit: request fewer ids" if len(nodes) < len(found.nodes) else ""
    missing = take_items_within_json_size(found.missing, MAX_SUBJECT_CHARS // 4)
    merged = [
        f"{quote_text(source)} was merged into {quote_text(to)}" for source, to in (found.redirected or {}).items()
    ]
    none = [f"there is no {', '.join(map(quote_text, missing))}"] if missing else []
    hint = "; ".join(take_items_within_json_size([*none, *merged], MAX_SUBJECT_CHARS // 2))
    head = f"{format_count(len(nodes), 'entity', 'entities')} of {quote_text(store)}{describe_time_scope(given)}"
    values = {"nodes": nodes} | ({"missing": missing} if missing else {})
    return ToolReply("\n".join([head, *lines]), values, more, hint)


@build_tool_reply.register
def _counted_reply(found: answers.CountNodesAnswer, given: ListEntitiesArguments, store: str) -> ToolReply:
    least = "" if found.exact else "at least "
    text = (
        f"{least}{format_count(found.count, 'entity', 'entities')} of {quote_text(store)}{describe_time_scope(given)}"
    )
    return ToolReply(text, {"count": found.count} | ({} if found.exact else {"exact": False}))


@build_tool_reply.register
def _list_relations_reply(found: EdgeList, given: ListRelationsArguments, _store: str) -> ToolReply:
    edges, lines = take_items_fitting_reply(found.edges, format_edge_line, detail=given.detail)
    next_offset = found.next_offset if len(edges) == len(found.edges) else given.offset + len(edges)
    more = "" if next_offset is None else f"the next page: offset={next_offset}"
    count = format_count(len(edges), f"{given.direction} relation")
    head = f"{count} of {quote_text(given.id)}{describe_time_scope(given)}"
    return ToolReply("\n".join([head, *lines]), {"edges": edges, "next_offset": next_offset}, more)


ENTITY_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "get_entity",
        "Read one entity",
        "When an id is known: everything about the entity or memory, with its relations.",
        GetEntityArguments,
        "reading the entity",
        _get_entity,
        nothing={"node": None},
    ),
    McpTool(
        "traverse_knowledge_graph",
        "Walk the graph from an entity",
        "When dependencies of an entity matter, in either direction: the entities within `depth` hops and their "
        "relations.",
        TraverseArguments,
        "walking the graph",
        lambda graph, given: decode_answer_struct(
            node_reads.traverse_graph(graph, convert_arguments_to_request(request_bodies.TraverseRequest, given)),
            answers.TraverseAnswer,
        ),
        nothing=_EMPTY_WALK_RESULT,
    ),
    McpTool(
        "list_entities",
        "List entities",
        "When all entities of a kind are needed: those of any of `types`, with all `tags` and `attributes`, by id, in "
        "pages; with `count` only their number; or the entities in `ids`.",
        ListEntitiesArguments,
        "listing entities",
        _list_entities,
        nothing=_EMPTY_NODES_RESULT,
    ),
    McpTool(
        "list_relations",
        "List the relations of an entity",
        "Relations that start or end at one entity, in pages: by ordinal, those without one last, then by age.",
        ListRelationsArguments,
        "listing relations",
        _list_relations,
    ),
)
