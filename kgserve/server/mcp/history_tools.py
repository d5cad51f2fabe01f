"""Tools that read the history of an entity and revert it to a version."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import answers, history_queries, query_parameters, request_bodies
from kgserve.graph.query_parameters import MAX_PAGE_STATES
from kgserve.graph.store_handle import StoreHandle
from kgserve.server.mcp.argument_fields import (
    Arguments,
    DetailArguments,
    IdField,
    VersionField,
    add_fields_of,
    to_request,
)
from kgserve.server.mcp.replies import (
    ToolReply,
    format_count,
    list_nonzero_counts,
    present_answer,
    quote_text,
    take_fitting_items,
    trim_zero_fraction,
)
from kgserve.server.mcp.reply_values import MAX_EXCERPT_CHARS, encode_to_text, list_item, shorten
from kgserve.server.mcp.tool_definition import McpTool

_MAX_VALUE_LINE_CHARS = 120


class EntityHistoryArguments(DetailArguments, kw_only=True):
    """Entity with a page of its states, or the version to revert to."""

    id: IdField
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_STATES, description="Maximum states")] = 20
    before: Annotated[VersionField, Meta(description="next_before of the previous page")] | UnsetType = UNSET
    revert_to: Annotated[VersionField, Meta(description="Restore this version")] | UnsetType = UNSET


@add_fields_of(request_bodies.RevertRequest)
class RevertEntityArguments(Arguments, kw_only=True):
    """Entity, and the version to revert it to."""

    id: IdField
    version: Annotated[VersionField, Meta(description="A version from entity_history")]


def _history(graph: StoreHandle, given: EntityHistoryArguments) -> Any:
    if not given.revert_to:
        return history_queries.get_node_history(graph, to_request(query_parameters.HistoryRequest, given))
    return history_queries.revert_node(
        graph, query_parameters.RevertNodeRequest(node_id=given.id, version=given.revert_to)
    )


@present_answer.register
def _history_reply(found: answers.NodeHistory, given: msgspec.Struct, _store: str) -> ToolReply:
    detail = isinstance(given, EntityHistoryArguments) and given.detail
    shown, lines = take_fitting_items(found.states, _state_lines, detail=detail)
    states = shown if detail else list(map(_state_values, found.states[: len(shown)]))
    next_before = found.next_before if len(states) == len(found.states) else found.states[len(states) - 1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    head = f"{format_count(len(states), 'state')} of {quote_text(found.id)}, newest first"
    return ToolReply("\n".join([head, *lines]), {"id": found.id, "states": states, "next_before": next_before}, more)


def _state_values(state: answers.NodeState) -> dict[str, Any]:
    """Return a state as its version and changes; the first state, without changes, includes its content."""
    node = state.node
    named = {"version": node.version, "created_by": node.created_by}
    if not state.diff:
        named |= {"type": node.type, "content": shorten(node.content, MAX_EXCERPT_CHARS)}
    values = list_item(state, detail=False)
    former = {} if node.is_current is UNSET else {"is_current": node.is_current}
    return {**values, "node": {name: value for name, value in named.items() if value} | former}


def _state_lines(state: answers.NodeState) -> str:
    until = "now" if state.recorded_to is None else trim_zero_fraction(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quote_text(state.node.created_by)}" if state.node.created_by else ""
    author += "".join(f", also by {quote_text(each.created_by)}" for each in state.also_by or ())
    head = f"version {state.node.version}{author}: {trim_zero_fraction(state.recorded_from)} to {until}{end}"
    return "\n".join([head, *(f"  {each.path}: {_value(each.before)} -> {_value(each.after)}" for each in state.diff)])


def _value(value: Any) -> str:
    return shorten(encode_to_text(value), _MAX_VALUE_LINE_CHARS)


def revert_reply(found: answers.InjectAnswer, entity: str, version: int) -> ToolReply:
    """Return the reply for reverting an entity to a version."""
    values = {"changed": not found.nodes_unchanged, **list_nonzero_counts(found)}
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
        lambda graph, given: history_queries.revert_node(graph, to_request(query_parameters.RevertNodeRequest, given)),
        "writes",
    ),
)
