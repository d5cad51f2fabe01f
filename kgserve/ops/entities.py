"""The versions of an entity as readers of layered memories know them: ascending, each with when it was true."""

from __future__ import annotations

from functools import partial

import msgspec

from kgserve.errors import NotFound
from kgserve.history.history import History, State
from kgserve.model.answers import EntityVersion
from kgserve.model.queries import EntityHistoryRequest
from kgserve.model.rows import NodeRow
from kgserve.model.times import format_time
from kgserve.ops import render
from kgserve.ops.graph import Graphs
from kgserve.ops.moments import whole_history
from kgserve.ops.validate import Faults, check_label
from kgserve.views.history import HistoryFollower

MAX_BYTES = 16 << 20
STATES_AT_ONCE = 20


class EntityPage(msgspec.Struct, frozen=True):
    """Some versions of an entity; ``next_after`` is the sequence after which more may come."""

    versions: list[EntityVersion]
    next_after: int | None


def entity_history(graphs: Graphs, request: EntityHistoryRequest) -> EntityPage:
    """The states of an entity that began after a sequence, oldest first.

    A page ends early, with more to come, once its rows exceed 16 MiB. Raises NotFound for an entity that never was,
    Conflict when no history is kept, Unavailable.
    """
    store, entity_id, after = request.store, request.entity_id, request.after_sequence
    faults = Faults()
    check_label(entity_id, "entity_id", faults)
    faults.raise_any()
    with graphs.graph(store).lease() as leased:
        follower = whole_history(graphs.historian, leased)
        found, cut = _states(follower, entity_id, request.limit, after)
    if not found and after == 0:
        raise NotFound(f"store {store!r} knows of no entity {entity_id!r}, past or present")
    return EntityPage([_version(state) for state in found], found[-1].first if cut else None)


def _states(follower: HistoryFollower, entity_id: str, limit: int, after: int) -> tuple[list[State[NodeRow]], bool]:
    """The next states, a few at a time, for one may be large; whether it ended before they did."""
    found: list[State[NodeRow]] = []
    size = 0
    while len(found) < limit and size < MAX_BYTES:
        start, most = found[-1].first if found else after, min(limit - len(found), STATES_AT_ONCE)
        states = follower.look(partial(_some, entity_id, start, most))
        found += states
        if len(states) < most:
            return found, False
        size += sum(len(state.row.content) + len(state.row.attributes) for state in states)
    return found, True


def _some(entity_id: str, after: int, most: int, history: History) -> list[State[NodeRow]]:
    return history.node_states_after(entity_id, after, most)


def _version(state: State[NodeRow]) -> EntityVersion:
    row, extras = state.row, state.row.extras
    attributes = render.node(row).attributes
    since = state.started if extras is None or extras.valid_from is None else extras.valid_from
    until = state.ended if extras is None or extras.valid_to is None else extras.valid_to
    return EntityVersion(
        id=f"{row.id}@{state.first}",
        entity_id=row.id,
        content=row.content,
        layer=attributes.get("layer"),
        parent_id=attributes.get("parent_id"),
        valid_from=format_time(since),
        valid_to=None if until is None else format_time(until),
        version=row.version,
        type=row.type,
        attributes=attributes,
        sequence=state.first,
    )
