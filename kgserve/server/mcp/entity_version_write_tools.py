"""Tools that write complete versions of entities."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from kgserve.errors import ConflictManual
from kgserve.graph import answers, versioned_writes
from kgserve.graph.compat import versioned_nodes_api
from kgserve.graph.compat.versioned_nodes_api import (
    PutNodeAnswer,
    PutSubgraphAnswer,
    PutSubgraphNodeResult,
    SubgraphEdgeResult,
)
from kgserve.server.mcp.shared_tool_arguments import (
    UNLISTED_FIELD,
    ArgumentsType,
    AuthorField,
    FieldNamesToolArguments,
    LabelField,
    NameField,
    StoreToolArguments,
    TimeField,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    MAX_SUBJECT_CHARS,
    ToolReply,
    build_tool_reply,
    format_count,
    format_node_fields,
    join_lines_fitting_reply,
    quote_text,
)
from kgserve.server.mcp.tool_structured_content import build_graph_list_item, fits_json_size, truncate_text
from kgserve.storage.model.node_edge_fields import MAX_TAGS

_MAX_ERROR_CHARS = 120
_Based = Annotated[int, Meta(ge=0, lt=1 << 53, description="The version that you read; omitted: overwrite any")] | None


@add_request_fields_to_arguments(versioned_nodes_api.PutNodeRequest, "graph_id", "lineage_id", "kind", "metadata")
class PutNodeArguments(FieldNamesToolArguments, kw_only=True):
    """Complete version of a node: omitted fields become empty."""

    id: Annotated[NameField, Meta(description="Omitted: a new node with a new id")] | UnsetType = UNSET
    type: LabelField | UnsetType = UNSET
    content: str = ""
    summary: Annotated[str, Meta(description="Short form of the content")] | UnsetType = UNSET
    tags: Annotated[list[NameField], Meta(max_length=MAX_TAGS)] | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    freshness_at: Annotated[str, Meta(max_length=64, description="RFC 3339; stale from then on")] | UnsetType = UNSET
    created_by: AuthorField = UNSET
    valid_from: TimeField = UNSET
    valid_to: TimeField = UNSET
    # None instead of UNSET, because 0 differs from an omitted value here.
    based_on_version: _Based = None
    lineage_id: Annotated[NameField | UnsetType, UNLISTED_FIELD] = UNSET
    kind: Annotated[NameField | UnsetType, UNLISTED_FIELD] = UNSET
    metadata: Annotated[dict[str, Any] | UnsetType, UNLISTED_FIELD] = UNSET


class SubgraphNodeArguments(versioned_nodes_api.SubgraphNodeInput, kw_only=True):
    """Complete node of a subgraph: omitted fields become empty. Without an id a new node is created."""

    ref: Annotated[NameField, Meta(description="Name for relations of this call")] | None = None
    id: NameField | None = None
    type: NameField | None = None
    attributes: dict[str, Any] | None = None
    lineage_id: Annotated[NameField | None, UNLISTED_FIELD] = None
    kind: Annotated[NameField | None, UNLISTED_FIELD] = None
    metadata: Annotated[dict[str, Any] | None, UNLISTED_FIELD] = None


class SubgraphEdgeArguments(versioned_nodes_api.SubgraphEdgeInput, kw_only=True):
    """Edge of a subgraph to write, as an item of a tool's arguments."""

    source: Annotated[NameField, Meta(description="A ref of this call, or an existing id")] | None = field(
        name="from", default=None
    )
    target: Annotated[NameField, Meta(description="Likewise")] | None = field(name="to", default=None)
    relation_type: NameField | None = None
    attributes: dict[str, Any] | None = None
    from_ref: Annotated[NameField | None, UNLISTED_FIELD] = None
    from_lineage: Annotated[NameField | None, UNLISTED_FIELD] = None
    to_ref: Annotated[NameField | None, UNLISTED_FIELD] = None
    to_lineage: Annotated[NameField | None, UNLISTED_FIELD] = None
    kind: Annotated[NameField | None, UNLISTED_FIELD] = None
    metadata: Annotated[dict[str, Any] | None, UNLISTED_FIELD] = None


class PutSubgraphArguments(StoreToolArguments, kw_only=True):
    """Nodes, then edges, each written independently."""

    nodes: Annotated[
        list[SubgraphNodeArguments], Meta(description=f"At most {versioned_nodes_api.MAX_SUBGRAPH_NODES}")
    ] = []  # noqa: RUF012 - msgspec copies it
    edges: Annotated[
        list[SubgraphEdgeArguments], Meta(description=f"At most {versioned_nodes_api.MAX_SUBGRAPH_EDGES}")
    ] = []  # noqa: RUF012 - msgspec copies it
    apart: ClassVar[Mapping[str, type[msgspec.Struct]]] = {
        "nodes": SubgraphNodeArguments,
        "edges": SubgraphEdgeArguments,
    }


def build_put_subgraph_request(given: PutSubgraphArguments) -> versioned_nodes_api.PutSubgraphRequest:
    """Return the request for the arguments, with the field names of versioned writes."""
    nodes: list[SubgraphNodeArguments | versioned_nodes_api.UndecodableSubgraphItem] = [*given.nodes]
    edges: list[SubgraphEdgeArguments | versioned_nodes_api.UndecodableSubgraphItem] = [*given.edges]
    refs = {node.ref for node in nodes if node.ref}
    return versioned_nodes_api.PutSubgraphRequest(
        nodes=[
            node if isinstance(node, versioned_nodes_api.UndecodableSubgraphItem) else _node_spec(node)
            for node in nodes
        ],
        edges=[
            edge if isinstance(edge, versioned_nodes_api.UndecodableSubgraphItem) else _edge_spec(edge, refs)
            for edge in edges
        ],
    )


def _node_spec(node: SubgraphNodeArguments) -> versioned_nodes_api.SubgraphNodeInput:
    return _spec(versioned_nodes_api.SubgraphNodeInput, node, {"lineage_id": node.id, **_named(node.type, node)})


def _edge_spec(edge: SubgraphEdgeArguments, refs: AbstractSet[str | None]) -> versioned_nodes_api.SubgraphEdgeInput:
    return _spec(versioned_nodes_api.SubgraphEdgeInput, edge, _ends(edge, refs) | _named(edge.relation_type, edge))


def _named(kind: str | None, given: SubgraphNodeArguments | SubgraphEdgeArguments) -> dict[str, Any]:
    return {"kind": kind, "metadata": given.attributes}


def _ends(edge: SubgraphEdgeArguments, refs: AbstractSet[str | None]) -> dict[str, Any]:
    ends = (("from", edge.source), ("to", edge.target))
    return {f"{side}_ref" if end in refs else f"{side}_lineage": end for side, end in ends}


def _spec(kind: type[ArgumentsType], given: msgspec.Struct, ours: dict[str, Any]) -> ArgumentsType:
    """Build a spec from its own field names and ours; where both are used, its own name wins."""
    values = {name: getattr(given, name) for name in kind.__struct_fields__}
    return kind(**{name: ours.get(name) if value is None else value for name, value in values.items()})


@build_tool_reply.register
def _put_reply(found: PutNodeAnswer, _given: PutNodeArguments, _store: str) -> ToolReply:
    node = found.node
    named = f"{quote_text(node.id)} ({node.type})"
    done = f"Created {named}" if found.created else f"{named} is now"
    hints: list[str] = []
    if found.replaced_version:
        hints.append(
            f"this replaced version {found.replaced_version}, which is not its based_on_version; entity_history "
            "shows what was overwritten"
        )
    if found.cleared:
        hints.append(f"now empty, because they were omitted: {', '.join(found.cleared)}")
    effects = {"replaced_version": found.replaced_version, "cleared": found.cleared}
    text = f"{done} at version {node.version}{format_node_fields(node)}. Sequence {found.sequence}."
    values = {"ok": True, **build_written_node_reply_values(node), "created": found.created, "sequence": found.sequence}
    return ToolReply(text, values | {name: value for name, value in effects.items() if value}, hint="; ".join(hints))


def build_written_node_reply_values(node: answers.Node) -> dict[str, Any]:
    """Return the written node with its version and the beginning of its content."""
    return {"node": {"version": node.version, **build_graph_list_item(node, detail=False)}}


def build_conflicting_head_tool_reply(error: ConflictManual) -> ToolReply:
    """Return the reply for a node that became a conflicting head, in the format of `put_node`."""
    node: answers.Node = error.node
    others = ", ".join(map(str, node.conflicts or ()))
    hint = (
        f"to resolve it read each other head (get_entity with id={quote_text(node.id)} and version={others}), "
        "merge them "
        f"with yours, and put_node the result with id={quote_text(node.id)} and based_on_version={node.version}. "
        "Until then all of these versions are kept"
    )
    values = {"ok": False, **build_written_node_reply_values(node), "created": False, "sequence": node.sequence}
    return ToolReply(f"conflict_manual: {error}.", values, hint=hint)


@build_tool_reply.register
def _put_subgraph_reply(found: PutSubgraphAnswer, _given: PutSubgraphArguments, store: str) -> ToolReply:
    created = sum(node.created for node in found.nodes)
    nodes = format_count(sum(not node.error for node in found.nodes), "node")
    edges = format_count(sum(not edge.error for edge in found.edges), "edge")
    lines = [f'Stored in "{store}": {nodes} ({created} new) and {edges}. Sequence {found.sequence}.']
    wrong = [f"  nodes[{place}]: {node.error}" for place, node in enumerate(found.nodes) if node.error]
    wrong += [f"  edges[{place}]: {edge.error}" for place, edge in enumerate(found.edges) if edge.error]
    made = [
        f"  nodes[{place}]: {quote_text(node.lineage_id)}, version {node.version}"
        for place, node in enumerate(found.nodes)
        if node.lineage_id
    ]
    lines += [f"Not stored as requested, {len(wrong)}:", *wrong] if wrong else []
    lines += ["Versions written:", *made] if made else []
    existing = [f"edges[{place}]" for place, edge in enumerate(found.edges) if edge.created is False]
    lines += [f"Existed already, the results list the replaced values: {', '.join(existing)}."] if existing else []
    values = msgspec.to_builtins(found)
    if fits_json_size(values, MAX_SUBJECT_CHARS):
        return ToolReply(join_lines_fitting_reply(lines), values)
    values["nodes"] = list(map(_short_node_result, found.nodes))
    values["edges"] = list(map(_short_edge_result, found.edges))
    more = "refs, ids of edges and long errors were omitted because of their size; the order is as sent"
    return ToolReply(join_lines_fitting_reply(lines), values, more)


def _short_node_result(result: PutSubgraphNodeResult) -> dict[str, Any]:
    short = replace(result, ref=None, error=result.error and truncate_text(result.error, _MAX_ERROR_CHARS))
    return msgspec.to_builtins(short)


def _short_edge_result(result: SubgraphEdgeResult) -> dict[str, Any]:
    if result.error:
        return {"error": truncate_text(result.error, _MAX_ERROR_CHARS)}
    return {"created": False} if result.created is False else {}


VERSION_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "put_node",
        "Write a version of an entity",
        "Write one complete entity as its next version: omitted fields become empty, and the answer lists them. "
        "With based_on_version, the version that you read, no later change is overwritten silently: the answer names "
        "it, or, if the store's conflict policy is manual, keeps both and explains how to resolve the conflict.",
        PutNodeArguments,
        "writing the entity",
        lambda graph, given: versioned_writes.put_whole_node_version(
            graph, convert_arguments_to_request(versioned_nodes_api.PutNodeRequest, given)
        ),
        "overwrites",
        retry_hint="get_entity, or search_knowledge with its words, shows whether it was written",
    ),
    McpTool(
        "put_subgraph",
        "Write entities and relations independently",
        "Write versions of up to 50 entities, then up to 100 relations, which may name new entities by `ref`. Each is "
        "independent: one result for each, in order. For an atomic batch: inject_knowledge_graph.",
        PutSubgraphArguments,
        "writing the subgraph",
        lambda graph, given: versioned_writes.put_subgraph(graph, build_put_subgraph_request(given)),
        "overwrites",
        retry_hint="get_entity, or search_knowledge with their words, shows which of them were written",
        is_long=True,
    ),
)
