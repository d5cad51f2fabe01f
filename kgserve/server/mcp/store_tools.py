"""Tools for whole stores: list, describe, configure and drop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.admin import stores
from kgserve.admin.store_admin_models import (
    DropStoreAnswer,
    LinkedStoresAnswer,
    StoreList,
    StoreListParameters,
    StoreSettingsAnswer,
    StoreSettingsRequest,
    StoreSettingsSummary,
    StoreSummary,
)
from kgserve.errors import InvalidInput
from kgserve.graph import node_reads
from kgserve.graph.answers import ListedNodePage
from kgserve.graph.cross_store_links import get_cross_store_link_counts
from kgserve.graph.cypher.vocabulary import build_example_cypher_statement
from kgserve.graph.store_handle import StoreHandle, decode_answer_struct
from kgserve.graph.url_parameters import DropStoreParameters, NodeListParameters, TagListParameters
from kgserve.server.mcp.shared_tool_arguments import (
    StoreToolArguments,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    MAX_SUBJECT_CHARS,
    ToolReply,
    build_tool_reply,
    format_count,
    join_lines_fitting_reply,
    quote_text,
)
from kgserve.server.mcp.tool_structured_content import (
    MAX_TEASER_CHARS,
    OMITTED_ATTRIBUTES,
    encode_json_text,
    omit_oversized_attributes,
    shorten_tags,
    take_items_within_json_size,
    take_lines_within_length,
    truncate_text,
)
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES
from kgserve.storage.model.store_settings import MAX_DISPLAY_NAME_BYTES, ConflictPolicy
from kgserve.storage.model.type_and_tag_frequency_models import TagFrequency

_MAX_TYPES_WITH_EXAMPLES = 20
_EXAMPLES_PER_TYPE = 3
_MAX_SHOWN_EXAMPLES = 2
_MAX_SHOWN_TAGS = 20


class ListStoresArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Page of the stores, by name."""

    offset: Annotated[int, Meta(ge=0, le=1_000_000, description="Stores to skip")] = 0
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    prefix: Annotated[str, Meta(max_length=256, description="Only names that begin with this")] = ""


class DescribeStoreArguments(StoreToolArguments, kw_only=True):
    """Store to describe."""

    tags_prefix: Annotated[str, Meta(max_length=MAX_ID_BYTES, description="Only tags with this prefix, max 100")] = ""


@add_request_fields_to_arguments(StoreSettingsRequest, "name", "history", "memory")
class ConfigureStoreArguments(StoreToolArguments, kw_only=True):
    """Store, and the settings to change."""

    conflict_policy: (
        Annotated[ConflictPolicy, Meta(description="For a write based on an old version: it wins, or both are kept")]
        | UnsetType
    ) = UNSET
    # None instead of UNSET, because an empty text clears the description.
    description: (
        Annotated[str, Meta(max_length=MAX_DISPLAY_NAME_BYTES, description="For people; omitted: kept; empty: cleared")]
        | None
    ) = None
    create: Annotated[bool, Meta(description="Create a store with these settings; an existing one keeps its own")] = (
        False
    )


class ConfigureStoreResult(msgspec.Struct, kw_only=True):
    """Settings of a store; ``kept``: it was to be created and existed already."""

    settings: StoreSettingsAnswer
    created: bool
    kept: bool


class DropStoreArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Store to drop permanently; the default store does not apply."""

    index: Annotated[str, Meta(description="Name of the store")]
    confirm: Annotated[str, Meta(description="The name of the store again")] = ""


class NodeExample(msgspec.Struct, kw_only=True):
    """Example node that shows the form of ids and contents."""

    id: str
    content: str


class NodeTypeDescription(msgspec.Struct, kw_only=True):
    """Node type with count and examples."""

    type: str
    count: int
    examples: list[NodeExample]


class StoreOverview(msgspec.Struct, kw_only=True):
    """Description of a store's contents and settings."""

    name: str
    nodes: int
    edges: int
    sequence: Annotated[int, Meta(description="Sequence of the last commit")]
    types: Annotated[list[NodeTypeDescription], Meta(description="Most frequent first, at most 100")]
    relation_types: Annotated[dict[str, int], Meta(description="Edges by relation type, at most 100")]
    tags: Annotated[list[TagFrequency], Meta(description="Most frequent first, at most 100")]
    indexes_behind: Annotated[int, Meta(description="Commits that search does not include yet")]
    conflict_policy: ConflictPolicy
    description: str
    kind_whitelist: Annotated[list[str], Meta(description="Types that may be written; empty: all")]
    indexed_attributes: Annotated[list[str], Meta(description="Attributes that search indexes; *: all")]
    metadata: dict[str, Any]
    statement: Annotated[str, Meta(description="Example for query_cypher")]
    links: Annotated[LinkedStoresAnswer, Meta(description="Stores at the other end of relations, outbound and inbound")]


def _list_stores(graph: StoreHandle, given: ListStoresArguments) -> StoreList:
    names = stores.select_store_names(graph.graphs, StoreListParameters(prefix=given.prefix))
    page = names[given.offset : given.offset + given.limit]
    return StoreList(stores=stores.build_store_summaries(graph.graphs, page), count=len(names))


def _describe(graph: StoreHandle, given: DescribeStoreArguments) -> StoreOverview | StoreList:
    if graph.name:
        return build_store_description(graph, given.tags_prefix)
    return stores.list_stores(graph.graphs, StoreListParameters())


def build_store_description(graph: StoreHandle, tags_prefix: str = "") -> StoreOverview:
    """Return the description of a store. Raises NotFound."""
    held, settings = stores.get_store_stats(graph), stores.get_store_settings(graph)
    types = [
        NodeTypeDescription(
            type=type_,
            count=count,
            examples=_examples(graph, type_) if place < _MAX_TYPES_WITH_EXAMPLES else [],
        )
        for place, (type_, count) in enumerate(held.types.items())
    ]
    return StoreOverview(
        name=held.name,
        nodes=held.nodes,
        edges=held.edges,
        sequence=held.sequence,
        types=types,
        relation_types=held.relation_types,
        tags=node_reads.list_tags(graph, TagListParameters(prefix=tags_prefix)).tags,
        indexes_behind=max((index.lag for index in held.indexes if index.name in ("keyword", "vector")), default=0),
        conflict_policy=settings.conflict_policy,
        description=settings.name,
        kind_whitelist=settings.kind_whitelist,
        indexed_attributes=settings.indexed_attributes,
        metadata=settings.metadata,
        statement=build_example_cypher_statement(graph),
        links=get_cross_store_link_counts(graph),
    )


def _examples(graph: StoreHandle, type_: str) -> list[NodeExample]:
    page = decode_answer_struct(
        node_reads.list_nodes(graph, NodeListParameters(type=[type_], limit=_EXAMPLES_PER_TYPE)), ListedNodePage
    )
    return [NodeExample(id=node.id, content=truncate_text(node.content or "", MAX_TEASER_CHARS)) for node in page.nodes]


def _configure(graph: StoreHandle, given: ConfigureStoreArguments) -> ConfigureStoreResult:
    asked = convert_arguments_to_request(StoreSettingsRequest, given)
    asked.name = given.description
    if not given.create:
        return ConfigureStoreResult(settings=stores.update_store_settings(graph, asked), created=False, kept=False)
    created = stores.create_store(graph, asked).created
    return ConfigureStoreResult(settings=stores.get_store_settings(graph), created=created, kept=not created)


def _drop_store(graph: StoreHandle, given: DropStoreArguments) -> DropStoreAnswer:
    if given.confirm != given.index:
        raise InvalidInput.at("confirm", "must repeat the name of the store; nothing was dropped")
    return stores.drop_store(graph.graphs.graph(given.index), convert_arguments_to_request(DropStoreParameters, given))


@build_tool_reply.register
def _dropped_reply(found: DropStoreAnswer, _given: DropStoreArguments, _store: str) -> ToolReply:
    left = f" {format_count(found.inbound, 'relation')} of other stores still lead there." if found.inbound else ""
    text = f'Dropped the store "{found.dropped}" and everything in it.{left}'
    return ToolReply(text, msgspec.to_builtins(found))


@build_tool_reply.register
def _stores_reply(found: StoreList, given: msgspec.Struct, _store: str) -> ToolReply:
    listed = given if isinstance(given, ListStoresArguments) else ListStoresArguments()
    fitting = take_items_within_json_size(map(_store_values, found.stores), MAX_SUBJECT_CHARS)
    lines = take_lines_within_length(map(_store_line, fitting), MAX_SUBJECT_CHARS)
    named = fitting[: len(lines)]
    shown, chosen = listed.offset + len(lines), f" and prefix={listed.prefix}" if listed.prefix else ""
    more = f"the next stores: list_stores with offset={shown}{chosen}" if lines and shown < found.count else ""
    hint = "" if found.count else "there are no stores yet; inject_knowledge_graph creates one"
    text = "\n".join([format_count(found.count, "store"), *lines])
    return ToolReply(text, {"stores": named, "count": found.count}, more, hint)


def _store_line(each: dict[str, Any]) -> str:
    links = f", {each['links']['outbound']:,} links out, {each['links']['inbound']:,} in" if "links" in each else ""
    counts = f"  {each['name']}: {format_count(each['nodes'], 'node')}, {format_count(each['edges'], 'edge')}{links}"
    return ", ".join([counts, *_settings_texts(each)])


def _store_values(each: StoreSummary) -> dict[str, Any]:
    links = {"links": msgspec.to_builtins(each.links)} if each.links else {}
    chosen = _settings_values(each.settings, MAX_SUBJECT_CHARS // 40) if each.settings else {}
    return {"name": each.name, "nodes": each.nodes, "edges": each.edges} | links | chosen


def _settings_values(chosen: StoreSettingsSummary | StoreSettingsAnswer | StoreOverview, room: int) -> dict[str, Any]:
    """Return the nonempty settings of a store. Lists and metadata of more than ``room`` characters are shortened."""
    about = chosen.description if isinstance(chosen, StoreOverview) else chosen.name
    metadata = OMITTED_ATTRIBUTES if chosen.metadata is UNSET else omit_oversized_attributes(chosen.metadata, room)
    found = {
        "description": about,
        "kind_whitelist": shorten_tags(chosen.kind_whitelist, room),
        "indexed_attributes": shorten_tags(chosen.indexed_attributes, room),
        "metadata": metadata,
    }
    return {"conflict_policy": chosen.conflict_policy} | {name: value for name, value in found.items() if value}


def _settings_texts(values: dict[str, Any]) -> Iterator[str]:
    if "conflict_policy" in values:
        yield f"conflict policy {values['conflict_policy']}"
    if "kind_whitelist" in values:
        yield f"only these types may be written: {', '.join(values['kind_whitelist'])}"
    if "indexed_attributes" in values:
        yield f"search indexes the attributes {', '.join(values['indexed_attributes'])}"
    if "description" in values:
        yield f"description {quote_text(values['description'])}"
    if "metadata" in values:
        yield f"metadata {encode_json_text(values['metadata'])}"


@build_tool_reply.register
def _configured_reply(found: ConfigureStoreResult, _given: ConfigureStoreArguments, store: str) -> ToolReply:
    values = _settings_values(found.settings, MAX_SUBJECT_CHARS // 3)
    hint = "the store exists and keeps its settings; omit create to change them" if found.kept else ""
    done = f'{"Created" if found.created else "Settings of"} "{store}"'
    text = f"{done}: {', '.join(_settings_texts(values))}. Sequence {found.settings.sequence}."
    return ToolReply(text, {"name": store, "created": found.created, **values}, hint=hint)


@build_tool_reply.register
def _described_reply(found: StoreOverview, given: msgspec.Struct, _store: str) -> ToolReply:
    tags = found.tags if getattr(given, "tags_prefix", "") else found.tags[:_MAX_SHOWN_TAGS]
    types = take_items_within_json_size((_type_values(each) for each in found.types), MAX_SUBJECT_CHARS * 2 // 5)
    relations = dict(take_items_within_json_size(found.relation_types.items(), MAX_SUBJECT_CHARS // 7))
    shown_tags = take_items_within_json_size(((each.tag, each.count) for each in tags), MAX_SUBJECT_CHARS // 7)
    chosen = _settings_values(found, MAX_SUBJECT_CHARS // 12)
    lines = [f'Store "{found.name}": {format_count(found.nodes, "node")}, {format_count(found.edges, "edge")}']
    lines += [f"  {each}" for each in _settings_texts(chosen)]
    lines += ["Types:", *map(_type_line, types)] if types else []
    lines += ["Relation types:", *(f"  {name}: {count:,}" for name, count in relations.items())] if relations else []
    lines += ["Tags:", *(f"  {tag}: {count:,}" for tag, count in shown_tags)] if shown_tags else []
    values: dict[str, Any] = {
        "name": found.name,
        "nodes": found.nodes,
        "edges": found.edges,
        "types": types,
        "relation_types": relations,
    }
    values |= {"tags": dict(shown_tags)} if shown_tags else {}
    values |= chosen
    if found.statement:
        values["cypher"] = found.statement
        lines.append(f"Cypher, for example: {found.statement}")
    if linked := _links_by_store(found.links):
        values["links"] = linked
        sides = {"outbound": "Relations into other stores", "inbound": "Relations out of other stores into this one"}
        lines += [
            f"{sides[side]}: {', '.join(f'{to} ({n:,})' for to, n in each.items())}" for side, each in linked.items()
        ]
    hints: list[str] = []
    if found.indexes_behind:
        hints.append(f"search lags {format_count(found.indexes_behind, 'commit')} behind")
    left = len(shown_tags) < len(found.tags) or len(types) < len(found.types)
    more = "less frequent ones are omitted: use tags_prefix for tags with a prefix" if left else ""
    return ToolReply(join_lines_fitting_reply(lines), values, more, "; ".join(hints))


def _links_by_store(links: LinkedStoresAnswer) -> dict[str, dict[str, int]]:
    """Return the number of links by direction and store, as far as they fit."""
    sides = {"outbound": links.outbound, "inbound": links.inbound}
    named = {side: ((each.graph_id, each.edge_count) for each in found) for side, found in sides.items() if found}
    return {side: dict(take_items_within_json_size(each, MAX_SUBJECT_CHARS // 20)) for side, each in named.items()}


def _type_values(each: NodeTypeDescription) -> dict[str, Any]:
    examples = [
        {"id": one.id} | ({"content": one.content} if one.content else {})
        for one in each.examples[:_MAX_SHOWN_EXAMPLES]
    ]
    return {"type": each.type, "count": each.count} | ({"examples": examples} if examples else {})


def _type_line(each: dict[str, Any]) -> str:
    examples = ", ".join(
        quote_text(one["id"]) + (f" {quote_text(one['content'])}" if "content" in one else "")
        for one in each.get("examples", ())
    )
    return f"  {each['type']}: {each['count']:,}" + (f", such as {examples}" if examples else "")


_EMPTY_STORE_RESULT: dict[str, Any] = {"nodes": 0, "edges": 0, "types": [], "relation_types": {}}

STORE_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "describe_store",
        "Describe a store",
        "Before writing to a graph or Cypher: its types with examples, relation types and tags. Without a store: lists "
        "the stores.",
        DescribeStoreArguments,
        "describing the store",
        _describe,
        without_store=True,
        nothing=_EMPTY_STORE_RESULT,
    ),
    McpTool(
        "list_stores",
        "List the stores",
        "When it is not clear which store to use: all stores, with their counts.",
        ListStoresArguments,
        "listing the stores",
        _list_stores,
        without_store=True,
    ),
    McpTool(
        "configure_store",
        "Create a store, or change its settings",
        "When the user asks for a separate store, or for other settings: a description, the conflict policy, the "
        "types that may be written, metadata. Omitted settings stay. describe_store shows them.",
        ConfigureStoreArguments,
        "changing the settings",
        _configure,
        "writes",
        administers=True,
        makes_with="create",
    ),
    McpTool(
        "drop_store",
        "Drop a store",
        "Delete a store with everything in it, permanently. `confirm` must repeat its name. Only when the user "
        "explicitly asks for this.",
        DropStoreArguments,
        "dropping the store",
        _drop_store,
        "deletes",
        administers=True,
        without_store=True,
        retry_hint="list_stores shows whether the store still exists",
        is_long=True,
    ),
)
