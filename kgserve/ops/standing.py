"""Whether a version of a node counts yet, or which one has superseded it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kgserve.history.history import History, State
from kgserve.model.answers import Node
from kgserve.model.batch import conflicts
from kgserve.model.rows import NodeRow
from kgserve.ops import render
from kgserve.ops.moments import Past
from kgserve.store.store import Store

N = TypeVar("N", bound=Node)


class Standing(NamedTuple):
    """The version that superseded one, if any did, and whether it is one of the heads; None: it is the present one."""

    superseded_by: int | None
    is_current: bool | None

    def shown_on(self, node: N) -> N:
        """The node with what this says."""
        if self.is_current is not None:
            node.is_current = self.is_current
        if self.superseded_by is not None:
            node.superseded_by = self.superseded_by
        return node


_PRESENT = Standing(None, None)
FRESH_SECONDS = 0.25
"""How long a commit that has just superseded something is waited for."""


def standing_of(history: History, state: State[NodeRow], known: Iterable[State[NodeRow]] = ()) -> Standing:
    """Of a state: superseded by the first later version that does not name it among the heads beside it.

    States that are ``known`` are not looked up.
    """
    if state.last is None:
        return _PRESENT
    by_first = {each.first: each for each in known}
    version, node_id = state.row.version, state.row.id
    while state.last is not None:
        later = by_first.get(state.last) or next(iter(history.node_states_after(node_id, state.first, 1)), None)
        # Of a head that stays, what came after it may have been forgotten.
        if later is None or (later.first != state.last and state.last >= history.oldest):
            return Standing(None, is_current=False)
        if version not in conflicts(later.row):
            return Standing(later.row.version, is_current=False)
        state = later
    return Standing(None, is_current=True)


def standings(history: History, states: Sequence[State[NodeRow]]) -> list[Standing]:
    """Of several states of one node."""
    return [standing_of(history, state, states) for state in states]


def shown_then(
    store: Store, past: Past, found: Sequence[NodeRow], shown: Callable[[NodeRow], N] = render.node
) -> list[N]:
    """Nodes as they were, each with whether it counts yet, in the form that ``shown`` makes. Raises as `Past.of`.

    The present tells whether, the history since when not: it is waited for briefly, and what it has not seen is absent.
    """
    follower, _ = past.of(store)
    with store.reading() as rows:
        present, last = rows.nodes([row.id for row in found]), rows.at
    former = [row for row in found if row.id not in present or present[row.id].version != row.version]
    if former:
        follower.wait(last, FRESH_SECONDS)

    def standing(history: History, row: NodeRow) -> Standing:
        if row.id in present and row.version in conflicts(present[row.id]):
            return Standing(None, is_current=True)
        state = history.node_version(row.id, row.version)
        by = None if state is None else standing_of(history, state).superseded_by
        return Standing(by, is_current=False)

    stands = follower.look(lambda history: {(row.id, row.version): standing(history, row) for row in former})
    return [stands.get((row.id, row.version), _PRESENT).shown_on(shown(row)) for row in found]
