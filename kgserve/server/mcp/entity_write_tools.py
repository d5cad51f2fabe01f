"""Tools that write, delete, merge and retire entities and relations."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from kgserve.errors import InvalidInput
from kgserve.graph import answers, mutations, node_merge, node_reads, request_bodies, url_parameters
from kgserve.graph.compat import versioned_nodes_api
from kgserve.graph.compat.versioned_nodes_api import RetireNodeOrEdgeAnswer
from kgserve.graph.node_merge_models import (
    MergeNodeIntoAnotherRequest,
    NodeMergeAnswer,
    UnmergeAnswer,
    UnmergeNodeRequest,
)
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import MAX_PAGE_ROWS
from kgserve.server.mcp.entity_history_tools import (
    EntityHistoryArguments,
    RevertEntityArguments,
    build_revert_entity_reply,
)
from kgserve.server.mcp.entity_version_write_tools import build_written_node_reply_values
from kgserve.server.mcp.shared_tool_arguments import (
    UNLISTED_FIELD,
    AttributesField,
    AuthorField,
    FieldNamesToolArguments,
    IdField,
    LabelField,
    StoreToolArguments,
    TagsField,
    TargetStoreField,
    TypesField,
    ValidToField,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    MAX_SUBJECT_CHARS,
    ToolReply,
    build_tool_reply,
    format_count,
    format_edge_arrow,
    format_store_suffix,
    join_lines_fitting_reply,
    list_nonzero_write_counts,
    quote_text,
    trim_zero_time_fraction,
)
from kgserve.server.mcp.tool_structured_content import take_items_within_json_size

_When = Annotated[str, Meta(max_length=64)] | None
_MAX_SHOWN_SKIPPED = 20
_FORGET_HINT = "forget with entity set to its id or name forgets these memories, too, and all that names it"


class InjectNodeArguments(request_bodies.NodeInput):
    """Node to create or update in an injected batch."""

    id: IdField
    type: LabelField | None = None
    content: str | None = None
    attributes: dict[str, Any] | None = None
    summary: str | None = None
    tags: list[str] | None = None
    freshness_at: Annotated[str | None, UNLISTED_FIELD] = None
    created_by: Annotated[str | None, UNLISTED_FIELD] = None
    valid_from: _When = None
    valid_to: _When = None


class InjectEdgeArguments(request_bodies.EdgeInput):
    """One edge among the arguments of an injected batch, to create or update."""

    source: IdField = field(name="from")
    target: IdField = field(name="to")
    relation_type: Annotated[LabelField, Meta(description="Such as DEPENDS_ON")]
    weight: Annotated[float | None, Meta(description="Default: 1")] = None
    attributes: dict[str, Any] | None = None
    ordinal: Annotated[int | None, UNLISTED_FIELD] = None
    created_by: Annotated[str | None, UNLISTED_FIELD] = None
    valid_from: _When = None
    valid_to: _When = None


@add_request_fields_to_arguments(request_bodies.InjectRequest, "touch")
class InjectKnowledgeGraphArguments(StoreToolArguments, kw_only=True):
    """Nodes and edges to create or update, in one atomic batch."""

    nodes: list[InjectNodeArguments] = []  # noqa: RUF012 - msgspec copies it
    edges: list[InjectEdgeArguments] = []  # noqa: RUF012 - msgspec copies it


class DeleteEntityArguments(StoreToolArguments, kw_only=True):
    """Nodes to delete, by id or by filters."""

    id: IdField | UnsetType = UNSET
    ids: Annotated[list[IdField], Meta(max_length=MAX_PAGE_ROWS, description="Or these")] | UnsetType = UNSET
    types: TypesField = UNSET
    tags: TagsField = UNSET
    attributes: AttributesField = UNSET
    dry_run: Annotated[bool, Meta(description="Only list what would be deleted")] = False


class DeleteRelationArguments(StoreToolArguments, kw_only=True):
    """Edge to delete."""

    source: IdField = field(name="from")
    target: IdField = field(name="to")
    relation_type: LabelField
    to_graph: TargetStoreField = UNSET


@add_request_fields_to_arguments(versioned_nodes_api.RetireVersionedNodeRequest)
class RetireEntityArguments(StoreToolArguments, kw_only=True):
    """Node, and the end of its valid time."""

    id: IdField
    valid_to: ValidToField = UNSET
    created_by: AuthorField = UNSET


@add_request_fields_to_arguments(versioned_nodes_api.RetireEdgeRequest)
class RetireRelationArguments(DeleteRelationArguments, kw_only=True):
    """Edge, and the end of its valid time."""

    valid_to: ValidToField = UNSET
    created_by: AuthorField = UNSET


class MergeEntitiesArguments(FieldNamesToolArguments, kw_only=True):
    """Entity to merge, and the one to merge it into; or a merge to undo."""

    id: Annotated[LabelField, Meta(description="Id to remove")]
    into: Annotated[LabelField, Meta(description="Id to keep")] | UnsetType = UNSET
    undo: Annotated[bool, Meta(description="Undo the merge of `id`")] = False
    created_by: Annotated[AuthorField, UNLISTED_FIELD] = UNSET


class RetireArguments(StoreToolArguments, kw_only=True):
    """Entity by id, or relation by ends and type, and the end of its valid time."""

    id: Annotated[LabelField, Meta(description="Id of an entity")] | UnsetType = UNSET
    source: Annotated[LabelField, Meta(description="Or start of a relation")] | UnsetType = field(
        name="from", default=UNSET
    )
    target: LabelField | UnsetType = field(name="to", default=UNSET)
    relation_type: LabelField | UnsetType = UNSET
    to_graph: TargetStoreField = UNSET
    valid_to: ValidToField = UNSET
    created_by: AuthorField = UNSET


def resolve_entity_or_relation_to_retire(given: RetireArguments) -> RetireEntityArguments | RetireRelationArguments:
    """Return the entity or relation to retire. Raises InvalidInput if the arguments name neither or both."""
    edge = (given.source, given.target, given.relation_type)
    if given.id and not any((*edge, given.to_graph)):
        return RetireEntityArguments(id=given.id, valid_to=given.valid_to, created_by=given.created_by)
    source, target, relation_type = edge
    if given.id or not (source and target and relation_type):
        raise InvalidInput.at("id", "send either the id of an entity, or from, to and relation_type of a relation")
    return RetireRelationArguments(
        source=source,
        target=target,
        relation_type=relation_type,
        to_graph=given.to_graph,
        valid_to=given.valid_to,
        created_by=given.created_by,
    )


def _delete_entity(
    graph: StoreHandle, given: DeleteEntityArguments
) -> Future[answers.DeleteNodeAnswer] | Future[answers.DeleteNodesAnswer]:
    filters = (given.ids, given.types, given.tags, given.attributes)
    if given.id and not any(filters) and not given.dry_run:
        return mutations.delete_node(graph, convert_arguments_to_request(url_parameters.NodeIdRequest, given))
    asked = convert_arguments_to_request(request_bodies.DeleteNodesRequest, given)
    if given.id:
        asked.ids = [given.id, *(given.ids or ())]
    return node_reads.delete_matching_nodes(graph, asked)


def _merge(graph: StoreHandle, given: MergeEntitiesArguments) -> Future[NodeMergeAnswer] | Future[UnmergeAnswer]:
    if given.undo:
        return node_merge.unmerge_node(graph, convert_arguments_to_request(UnmergeNodeRequest, given))
    if not given.into:
        raise InvalidInput.at("into", "is required, unless undo is true: the id of the entity to keep")
    return node_merge.merge_nodes(graph, convert_arguments_to_request(MergeNodeIntoAnotherRequest, given))


def _retire(graph: StoreHandle, given: RetireArguments) -> Future[versioned_nodes_api.RetireNodeOrEdgeAnswer]:
    named = resolve_entity_or_relation_to_retire(given)
    if isinstance(named, RetireEntityArguments):
        return mutations.end_node_valid_time(
            graph, convert_arguments_to_request(url_parameters.RetireNodeRequest, named)
        )
    return mutations.end_edge_valid_time(
        graph, convert_arguments_to_request(versioned_nodes_api.RetireEdgeRequest, named)
    )


@build_tool_reply.register
def _inject_reply(found: answers.InjectAnswer, given: msgspec.Struct, store: str) -> ToolReply:
    if isinstance(given, RevertEntityArguments):
        return build_revert_entity_reply(found, given.id, given.version)
    if isinstance(given, EntityHistoryArguments):
        return build_revert_entity_reply(found, given.id, given.revert_to or 0)
    made = ", ".join(_changed(found, "nodes") + _changed(found, "edges")) or "nothing"
    lines = [f'Stored in "{store}": {made}. Sequence {found.sequence}.', *describe_merged_batch_items(found)]
    counts = list_nonzero_write_counts(found) | ({"merged_count": found.merged_count} if found.merged_count else {})
    if not found.edges_skipped_count:
        return ToolReply(join_lines_fitting_reply(lines), counts, hint=describe_redirected_edge_ends(found.redirected))
    lines.append(f"Skipped {format_count(found.edges_skipped_count, 'edge')}:")
    lines += [f"  {format_edge_arrow(edge)}: {edge.reason}" for edge in found.edges_skipped[:_MAX_SHOWN_SKIPPED]]
    skipped = take_items_within_json_size(
        map(msgspec.to_builtins, found.edges_skipped[:_MAX_SHOWN_SKIPPED]), MAX_SUBJECT_CHARS // 2
    )
    hint = "add the missing nodes and send the skipped edges again"
    hint = "; ".join(filter(None, (hint, describe_redirected_edge_ends(found.redirected))))
    return ToolReply(join_lines_fitting_reply(lines), {**counts, "edges_skipped": skipped}, hint=hint)


def describe_merged_batch_items(found: answers.InjectAnswer) -> list[str]:
    """Return the line about items of a batch that were merged with an earlier item, if any."""
    if not found.merged:
        return []
    named = ", ".join(f"{each.path} and {each.earlier_path}" for each in found.merged[:_MAX_SHOWN_SKIPPED])
    return [f"Written as one, later values win: {named}."]


def describe_redirected_edge_ends(redirected: dict[str, str] | UnsetType) -> str:
    """Return the hint about edges whose ends were redirected because those nodes had been merged."""
    each = [
        f"{quote_text(source)} is {quote_text(to)}" for source, to in [*(redirected or {}).items()][:_MAX_SHOWN_SKIPPED]
    ]
    return f"ends that were merged were redirected: {', '.join(each)}" if each else ""


def _changed(found: answers.InjectAnswer, what: str) -> list[str]:
    words = {"created": "new", "updated": "changed", "unchanged": "unchanged"}
    numbers = ((getattr(found, f"{what}_{name}"), word) for name, word in words.items())
    return [f"{format_count(number, what[:-1])} {word}" for number, word in numbers if number]


@build_tool_reply.register
def _delete_entity_reply(found: answers.DeleteNodeAnswer, _given: DeleteEntityArguments, _store: str) -> ToolReply:
    if not found.existed:
        return ToolReply(
            f"There was no entity {quote_text(found.deleted_id)}; nothing changed.", msgspec.to_builtins(found)
        )
    text = f"Deleted {quote_text(found.deleted_id)} with {format_count(found.edges_deleted, 'edge')}."
    hint = ""
    if found.memories_about:
        text += f" {_memories_left(found)}"
        hint = _FORGET_HINT
    return ToolReply(text, msgspec.to_builtins(found), hint=hint)


@build_tool_reply.register
def _delete_entities_reply(found: answers.DeleteNodesAnswer, _given: DeleteEntityArguments, _store: str) -> ToolReply:
    done = "Would delete" if found.dry_run else "Deleted"
    ids = take_items_within_json_size(found.ids, MAX_SUBJECT_CHARS // 2)
    missing = take_items_within_json_size(found.missing, MAX_SUBJECT_CHARS // 4)
    text = f"{done} {format_count(found.count, 'entity', 'entities')} with {format_count(found.edges_deleted, 'edge')}"
    lines = [f"{text}{': ' + ', '.join(map(quote_text, ids)) if ids else ''}."]
    lines += [f"Not found, or not matching: {', '.join(map(quote_text, missing))}."] if missing else []
    lines += [_memories_left(found)] if found.memories_about else []
    values: dict[str, Any] = {"dry_run": found.dry_run, "count": found.count, "ids": ids}
    values |= {"missing": missing} if missing else {}
    if found.memories_about:
        values |= {"memories_about": found.memories_about, "memory_ids": found.memory_ids}
    more = "more entities match than one call deletes: repeat the call" if found.more else ""
    values |= {"edges_deleted": found.edges_deleted, "sequence": found.sequence}
    return ToolReply(join_lines_fitting_reply(lines), values, more, _FORGET_HINT if found.memories_about else "")


def _memories_left(found: answers.DeleteNodeAnswer | answers.DeleteNodesAnswer) -> str:
    """Return the sentence about memories that mention the deleted entities."""
    count, ids = found.memories_about or 0, found.memory_ids or []
    what = "it" if isinstance(found, answers.DeleteNodeAnswer) else "what is deleted"
    text = format_count(count, f"memory mentions {what} and stays", f"memories mention {what} and stay")
    return f"{text}: {', '.join(f'[{each}]' for each in ids)}{' and more' if count > len(ids) else ''}."


@build_tool_reply.register
def _merged_reply(found: NodeMergeAnswer, _given: MergeEntitiesArguments, _store: str) -> ToolReply:
    named = f"{quote_text(found.id)} into {quote_text(found.into)}"
    values: dict[str, Any] = {
        "id": found.id,
        "into": found.into,
        "changed": found.changed,
        **build_written_node_reply_values(found.node),
    }
    if not found.changed:
        return ToolReply(f"Merged {named} already; nothing changed.", values)
    counts = {"edges_moved": found.edges_moved, "edges_dropped": found.edges_dropped + found.loops_dropped}
    values |= {name: number for name, number in counts.items() if number}
    values |= {name: each for name in ("taken_over", "not_taken") if (each := getattr(found, name))}
    text = f"Merged {named}: {format_count(found.edges_moved, 'edge')} moved"
    text += f", copied: {', '.join(found.taken_over)}" if found.taken_over else ""
    kept = f"the two differ in {', '.join(found.not_taken)}, where {quote_text(found.into)} kept its own"
    hint = kept if found.not_taken else ""
    return ToolReply(f"{text}. Sequence {found.sequence}.", values | {"sequence": found.sequence}, hint=hint)


@build_tool_reply.register
def _unmerged_reply(found: UnmergeAnswer, _given: MergeEntitiesArguments, _store: str) -> ToolReply:
    if not found.changed:
        return ToolReply(f"{quote_text(found.id)} is not merged; nothing changed.", {"id": found.id, "changed": False})
    edges = format_count(found.edges_restored, "edge")
    text = f"Unmerged {quote_text(found.id)} from {quote_text(found.out_of or '')}, with {edges}"
    values = {"id": found.id, "out_of": found.out_of, "changed": True, **build_written_node_reply_values(found.node)}
    values |= {"edges_restored": found.edges_restored, "sequence": found.sequence}
    lost = [f"{format_edge_arrow(edge)}: {edge.reason}" for edge in found.not_restored[:_MAX_SHOWN_SKIPPED]]
    hint = f"not restored: {'; '.join(lost)}" if lost else ""
    return ToolReply(f"{text}. Sequence {found.sequence}.", values, hint=hint)


@build_tool_reply.register
def _delete_relation_reply(found: answers.DeleteEdgeAnswer, given: DeleteRelationArguments, _store: str) -> ToolReply:
    edge = f"{format_edge_arrow(given)}{format_store_suffix(given.to_graph)}"
    text = f"Deleted {edge}." if found.existed else f"There was no {edge}; nothing changed."
    return ToolReply(text, msgspec.to_builtins(found))


@build_tool_reply.register
def _retire_reply(found: RetireNodeOrEdgeAnswer, given: msgspec.Struct, _store: str) -> ToolReply:
    named = resolve_entity_or_relation_to_retire(given) if isinstance(given, RetireArguments) else given
    is_relation = isinstance(named, DeleteRelationArguments)
    what = (
        f"{format_edge_arrow(named)}{format_store_suffix(named.to_graph)}"
        if is_relation
        else quote_text(getattr(named, "id", ""))
    )
    end = trim_zero_time_fraction(found.valid_to)
    done = f"{what} is true until {end}" if found.changed else f"{what} had ended at {end} already; nothing changed"
    values = msgspec.to_builtins(replace(found, valid_to=end))
    return ToolReply(f"{done}. Version {found.version}, sequence {found.sequence}.", values)


WRITE_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "inject_knowledge_graph",
        "Record nodes and edges",
        "When things and their relations should be recorded: create or update them in one atomic batch. Omitted fields "
        "keep their value; repeating is harmless. For single facts: retain.",
        InjectKnowledgeGraphArguments,
        "writing the batch",
        lambda graph, given: mutations.upsert_nodes_and_edges(
            graph, convert_arguments_to_request(request_bodies.InjectRequest, given)
        ),
        "writes",
        is_long=True,
    ),
    McpTool(
        "delete_graph_entity",
        "Delete an entity",
        "When entities were never true: delete them with their relations, one by `id`, or all that match; `dry_run` "
        "first. Memories and people: forget. True until now: set valid_to.",
        DeleteEntityArguments,
        "deleting",
        _delete_entity,
        "deletes",
    ),
    McpTool(
        "delete_graph_relation",
        "Delete a relation",
        "When a relation was never true: delete it, named by its ends and type.",
        DeleteRelationArguments,
        "deleting the relation",
        lambda graph, given: mutations.delete_edge(
            graph, convert_arguments_to_request(request_bodies.EdgeKeyRequest, given)
        ),
        "deletes",
    ),
    McpTool(
        "merge_entities",
        "Merge two entities",
        "For two ids of one thing: relations, tags and missing fields move to `into`, and `id` redirects there. "
        "`undo` reverts it.",
        MergeEntitiesArguments,
        "merging",
        _merge,
        "writes",
    ),
    McpTool(
        "retire",
        "End the validity of something",
        "For something that is no longer true: sets valid_to of an entity (`id`) or a relation (`from`, `to`, "
        "`relation_type`). It stays; reads with valid_at respect it.",
        RetireArguments,
        "retiring",
        _retire,
        "writes",
    ),
    McpTool(
        "retire_entity",
        "End the validity of an entity",
        "For an entity that is no longer true: sets valid_to instead of deleting. It stays, with its relations.",
        RetireEntityArguments,
        "retiring the entity",
        lambda graph, given: mutations.end_node_valid_time(
            graph, convert_arguments_to_request(url_parameters.RetireNodeRequest, given)
        ),
        "writes",
    ),
    McpTool(
        "retire_relation",
        "End the validity of a relation",
        "For a relation that is no longer true: sets valid_to instead of deleting.",
        RetireRelationArguments,
        "retiring the relation",
        lambda graph, given: mutations.end_edge_valid_time(
            graph, convert_arguments_to_request(versioned_nodes_api.RetireEdgeRequest, given)
        ),
        "writes",
    ),
)
