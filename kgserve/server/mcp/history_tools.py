"""Tools that read the history of an entity and revert it to a version."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import answers, history, queries, requests
from kgserve.graph.handle import Graph
from kgserve.graph.queries import MAX_PAGE_STATES
from kgserve.server.mcp.argument_fields import (
    Arguments,
    DetailArguments,
    IdField,
    VersionField,
    as_request,
    with_fields_of,
)
from kgserve.server.mcp.replies import ToolReply, counted, list_page, moment, present, quoted, write_counts
from kgserve.server.mcp.tool import Tool
from kgserve.server.mcp.values import MAX_EXCERPT_CHARS, as_json, item, shortened

_MAX_VALUE_LINE_CHARS = 120


class EntityHistory(DetailArguments, kw_only=True):
    """Entity with a page of its states, or the version to revert to."""

    id: IdField
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_STATES, description="Maximum states")] = 20
    before: Annotated[VersionField, Meta(description="next_before of the previous page")] | UnsetType = UNSET
    revert_to: Annotated[VersionField, Meta(description="Restore this version")] | UnsetType = UNSET


@with_fields_of(requests.RevertRequest)
class RevertEntity(Arguments, kw_only=True):
    """Entity, and the version to revert it to."""

    id: IdField
    version: Annotated[VersionField, Meta(description="A version from entity_history")]


def _history(graph: Graph, given: EntityHistory) -> Any:
    if not given.revert_to:
        return history.node_history(graph, as_request(queries.HistoryRequest, given))
    return history.revert(graph, queries.RevertNode(node_id=given.id, version=given.revert_to))


@present.register
def _history_reply(found: answers.NodeHistory, given: msgspec.Struct, _store: str) -> ToolReply:
    detail = isinstance(given, EntityHistory) and given.detail
    shown, lines = list_page(found.states, _state_lines, detail=detail)
    states = shown if detail else list(map(_state_values, found.states[: len(shown)]))
    next_before = found.next_before if len(states) == len(found.states) else found.states[len(states) - 1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    head = f"{counted(len(states), 'state')} of {quoted(found.id)}, newest first"
    return ToolReply("\n".join([head, *lines]), {"id": found.id, "states": states, "next_before": next_before}, more)


def _state_values(state: answers.NodeState) -> dict[str, Any]:
    """Return a state as its version and changes; the first state, without changes, includes its content."""
    node = state.node
    named = {"version": node.version, "created_by": node.created_by}
    if not state.diff:
        named |= {"type": node.type, "content": shortened(node.content, MAX_EXCERPT_CHARS)}
    values = item(state, detail=False)
    former = {} if node.is_current is UNSET else {"is_current": node.is_current}
    return {**values, "node": {name: value for name, value in named.items() if value} | former}


def _state_lines(state: answers.NodeState) -> str:
    until = "now" if state.recorded_to is None else moment(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quoted(state.node.created_by)}" if state.node.created_by else ""
    author += "".join(f", also by {quoted(each.created_by)}" for each in state.also_by or ())
    head = f"version {state.node.version}{author}: {moment(state.recorded_from)} to {until}{end}"
    return "\n".join([head, *(f"  {each.path}: {_value(each.before)} -> {_value(each.after)}" for each in state.diff)])


def _value(value: Any) -> str:
    return shortened(as_json(value), _MAX_VALUE_LINE_CHARS)


def revert_reply(found: answers.InjectAnswer, entity: str, version: int) -> ToolReply:
    """Return the reply for reverting an entity to a version."""
    values = {"changed": not found.nodes_unchanged, **write_counts(found)}
    if found.nodes_unchanged:
        outcome = f"already equals version {version}; nothing changed"
    else:
        outcome = f"was reverted to version {version}, as a new version"
    return ToolReply(f"{quoted(entity)} {outcome}. Sequence {found.sequence}.", values)


HISTORY_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        "entity_history",
        "Read the history of an entity",
        "The states of an entity, newest first, deleted or not: when, by whom, what changed. `revert_to` restores that "
        "version as a new one; relations stay.",
        EntityHistory,
        "reading the history",
        _history,
        writes_with="revert_to",
    ),
    Tool(
        "revert_entity",
        "Revert an entity to a version",
        "Restore an earlier version of an entity as a new version; a deleted entity comes back. Relations stay.",
        RevertEntity,
        "reverting to a version",
        lambda graph, given: history.revert(graph, as_request(queries.RevertNode, given)),
        "writes",
    ),
)
