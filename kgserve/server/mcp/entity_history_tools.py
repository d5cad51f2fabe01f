"""Tools that read the history of an entity and revert it to a version."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import answers, history_queries, request_bodies, url_parameters
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.url_parameters import MAX_PAGE_STATES
from kgserve.server.mcp.shared_tool_arguments import (
    IdField,
    ReadToolArguments,
    StoreToolArguments,
    VersionField,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import (
    ToolReply,
    build_tool_reply,
    format_count,
    list_nonzero_write_counts,
    quote_text,
    take_items_fitting_reply,
    trim_zero_time_fraction,
)
from kgserve.server.mcp.tool_structured_content import (
    MAX_EXCERPT_CHARS,
    build_graph_list_item,
    encode_json_text,
    truncate_text,
)

_MAX_VALUE_LINE_CHARS = 120


class EntityHistoryArguments(ReadToolArguments, kw_only=True):
    """Entity with a page of its states, or the version to revert to."""

    id: IdField
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_STATES, description="Maximum states")] = 20
    before: Annotated[VersionField, Meta(description="next_before of the previous page")] | UnsetType = UNSET
    revert_to: Annotated[VersionField, Meta(description="Restore this version")] | UnsetType = UNSET


@add_request_fields_to_arguments(request_bodies.RevertNodeBody)
class RevertEntityArguments(StoreToolArguments, kw_only=True):
    """Entity, and the version to revert it to."""

    id: IdField
    version: Annotated[VersionField, Meta(description="A version from entity_history")]


def _history(graph: StoreHandle, given: EntityHistoryArguments) -> Any:
    if not given.revert_to:
        return history_queries.get_node_history(
            graph, convert_arguments_to_request(url_parameters.NodeHistoryRequest, given)
        )
    return history_queries.revert_node(
        graph, url_parameters.RevertNodeRequest(node_id=given.id, version=given.revert_to)
    )


@build_tool_reply.register
def _history_reply(found: answers.NodeHistory, given: msgspec.Struct, _store: str) -> ToolReply:
    detail = isinstance(given, EntityHistoryArguments) and given.detail
    shown, lines = take_items_fitting_reply(found.states, _state_lines, detail=detail)
    states = shown if detail else list(map(_state_values, found.states[: len(shown)]))
    next_before = found.next_before if len(states) == len(found.states) else found.states[len(states) - 1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    head = f"{format_count(len(states), 'state')} of {quote_text(found.id)}, newest first"
    return ToolReply("\n".join([head, *lines]), {"id": found.id, "states": states, "next_before": next_before}, more)


def _state_values(state: answers.NodeHistoryState) -> dict[str, Any]:
    """Return a state as its version and changes; the first state, without changes, includes its content."""
    node = state.node
    named = {"version": node.version, "created_by": node.created_by}
    if not state.diff:
        named |= {"type": node.type, "content": truncate_text(node.content, MAX_EXCERPT_CHARS)}
    values = build_graph_list_item(state, detail=False)
    former = {} if node.is_current is UNSET else {"is_current": node.is_current}
    return {**values, "node": {name: value for name, value in named.items() if value} | former}


def _state_lines(state: answers.NodeHistoryState) -> str:
    until = "now" if state.recorded_to is None else trim_zero_time_fraction(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quote_text(state.node.created_by)}" if state.node.created_by else ""
    author += "".join(f", also by {quote_text(each.created_by)}" for each in state.also_by or ())
    head = f"version {state.node.version}{author}: {trim_zero_time_fraction(state.recorded_from)} to {until}{end}"
    return "\n".join([head, *(f"  {each.path}: {_value(each.before)} -> {_value(each.after)}" for each in state.diff)])


def _value(value: Any) -> str:
    return truncate_text(encode_json_text(value), _MAX_VALUE_LINE_CHARS)


def build_revert_entity_reply(found: answers.InjectAnswer, entity: str, version: int) -> ToolReply:
    """Return the reply for reverting an entity to a version."""
    values = {"changed": not found.nodes_unchanged, **list_nonzero_write_counts(found)}
    if found.nodes_unchanged:
        outcome = f"already equals version {version}; nothing changed"
    else:
        outcome = f"was reverted to version {version}, as a new version"
    return ToolReply(f"{quote_text(entity)} {outcome}. Sequence {found.sequence}.", values)


HISTORY_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "entity_history",
        "Read the history of an entity",
        "The states of an entity, newest first, deleted or not: when, by whom, what changed. `revert_to` restores that "
        "version as a new one; relations stay.",
        EntityHistoryArguments,
        "reading the history",
        _history,
        writes_with="revert_to",
    ),
    McpTool(
        "revert_entity",
        "Revert an entity to a version",
        "Restore an earlier version of an entity as a new version; a deleted entity comes back. Relations stay.",
        RevertEntityArguments,
        "reverting to a version",
        lambda graph, given: history_queries.revert_node(
            graph, convert_arguments_to_request(url_parameters.RevertNodeRequest, given)
        ),
        "writes",
    ),
)
