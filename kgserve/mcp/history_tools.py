"""The tools about what an entity was: its states, and going back to one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec

from kgserve.mcp import answers, budget
from kgserve.mcp.arguments import Arguments, Id
from kgserve.mcp.lines import moment
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Pending, Reply, Work
from kgserve.model.answers import FieldChange, InjectAnswer, NodeHistory, NodeState
from kgserve.model.queries import MAX_STATES, HistoryRequest, RevertNode
from kgserve.ops import history

_VALUE = 1_000
_VALUE_TEXT = 120
_CHANGES = 5_000


class EntityHistory(Arguments, kw_only=True):
    """The entity whose states are asked for, and a page of them."""

    id: Id
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_STATES, description="Most states")] = 20
    before: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="The next_before of the page before")] | (
        msgspec.UnsetType
    ) = msgspec.UNSET


class RevertEntity(Arguments, kw_only=True):
    """The entity, and the version that it shall be like again."""

    id: Id
    version: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="One of those in entity_history")]


class History(NodeHistory, kw_only=True):
    """States, newest first, each with what it changed; ``next_before`` is null on the last page."""

    more: answers.More = msgspec.UNSET


def _entity_history(work: Work, default: str | None, given: EntityHistory) -> Reply:
    store = store_of(given.index, default)
    wanted = HistoryRequest(node_id=given.id, limit=given.limit, before=given.before or None)
    found = history.node_history(work.graphs.graph(store), wanted)
    states = budget.first_fitting(map(_brief, found.states), budget.STRUCTURED - 500)
    blocks = ["\n".join(_lines(state)) for state in states]
    shown = len(budget.lines_within(blocks, budget.TEXT - 500))
    states = states[:shown]
    next_before = found.next_before if shown == len(found.states) else states[-1].from_sequence
    more = "" if next_before is None else f"older states: before={next_before}"
    answer = History(id=found.id, states=states, next_before=next_before, more=more or msgspec.UNSET)
    head = f"{counted(shown, 'state')} of {quoted(found.id)}, newest first"
    return Reply("\n".join([head, *blocks[:shown], *([f"More: {more}."] if more else [])]), answer)


def _brief(state: NodeState) -> NodeState:
    changes = [
        FieldChange(path=change.path, before=_brief_value(change.before), after=_brief_value(change.after))
        for change in state.diff
    ]
    kept = budget.first_fitting(changes, _CHANGES)
    if len(kept) < len(changes):
        kept.append(FieldChange(path="…", before=None, after=f"{len(changes) - len(kept):,} more changes"))
    return msgspec.structs.replace(state, node=budget.brief(state.node), diff=kept)


def _brief_value(value: Any) -> Any:
    if isinstance(value, str):
        return budget.shortened(value, _VALUE // 2)
    return value if budget.fits(value, _VALUE) else "… left out for its size"


def _lines(state: NodeState) -> list[str]:
    until = "now" if state.recorded_to is None else moment(state.recorded_to)
    end = ", then deleted" if state.deleted else ""
    author = f" by {quoted(state.node.created_by)}" if state.node.created_by else ""
    head = f"version {state.node.version}, sequence {state.from_sequence}{author}: "
    head += f"{moment(state.recorded_from)} to {until}{end}"
    return [head, *(f"  {change.path}: {_value(change.before)} -> {_value(change.after)}" for change in state.diff)]


def _value(value: Any) -> str:
    return budget.shortened(msgspec.json.encode(value).decode(), _VALUE_TEXT)


def _revert(work: Work, default: str | None, given: RevertEntity) -> Pending[InjectAnswer]:
    store = store_of(given.index, default)
    request = RevertNode(node_id=given.id, version=given.version)
    return Pending(history.revert(work.graphs.graph(store), request), partial(_reverted, given))


def _reverted(given: RevertEntity, answer: InjectAnswer) -> Reply:
    if answer.nodes_unchanged:
        said = f"{quoted(given.id)} is as it was in version {given.version} already; nothing changed"
    else:
        said = f"{quoted(given.id)} is again as it was in version {given.version}, as a new version"
    return Reply(f"{said}. Sequence {answer.sequence}.", answer)


TOOLS = (
    Tool(
        "entity_history",
        "Read the history of an entity",
        "The states of one entity, newest first, deleted or not: when each was recorded, by whom, and what it changed. "
        "get_entity with `version` gives one whole.",
        EntityHistory,
        History,
        "reads",
        "reading the history",
        _entity_history,
    ),
    Tool(
        "revert_entity",
        "Go back to a version of an entity",
        "Write an entity as it was in a former version, as a new version; one that was deleted comes back. Relations "
        "stay as they are.",
        RevertEntity,
        InjectAnswer,
        "writes",
        "going back to a version",
        _revert,
    ),
)
