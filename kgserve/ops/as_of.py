"""Reading an open store as it was: a node, pages of nodes, a walk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kgserve.engine.read import MAX_SHOWN, NodeView
from kgserve.history.history import History
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.model.walk import Reached, Walk, by_levels
from kgserve.ops.moments import Past
from kgserve.store.store import Store

EVERY_EDGE = 1 << 62


def view(store: Store, past: Past, node_id: str) -> NodeView | None:
    """A node and its edges, at most 1,000 in each direction; None when it was not there."""
    follower, at = past.of(store)
    return follower.look(lambda history: _view(history, node_id, at))


def page(store: Store, past: Past, type_: str | None, after: str | None, limit: int) -> list[NodeRow]:
    """The next nodes in the order of their ids, of one type or of all."""
    follower, at = past.of(store)
    return [state.row for state in follower.look(lambda history: history.nodes_at(at, type_, after, limit))]


def walk(store: Store, past: Past, wanted: Walk) -> tuple[Reached, int]:
    """A walk as it would have gone, and the commit that it saw."""
    follower, at = past.of(store)
    return follower.look(lambda history: _walk(history, wanted, at)), at


def _view(history: History, node_id: str, at: int) -> NodeView | None:
    state = history.node_at(node_id, at)
    if state is None:
        return None
    out = [each.row for each in history.outgoing(node_id, at, MAX_SHOWN + 1)]
    into = [each.row for each in history.incoming(node_id, at, MAX_SHOWN + 1)]
    return NodeView(state.row, out[:MAX_SHOWN], into[:MAX_SHOWN], max(len(out), len(into)) > MAX_SHOWN)


def _walk(history: History, wanted: Walk, at: int) -> Reached:
    if history.node_at(wanted.start, at) is None:
        return Reached([], [], truncated=False)
    found = by_levels(wanted, wanted.start, lambda ids: _followed(history, wanted, ids, at))
    states = ((history.node_at(node_id, at), depth) for node_id, depth in found.depths.items())
    return Reached([(state.row, depth) for state, depth in states if state is not None], found.edges, found.truncated)


def _followed(history: History, wanted: Walk, ids: Collection[str], at: int) -> Iterator[EdgeRow]:
    return filter(wanted.follows, _edges(history, wanted, ids, at))


def _edges(history: History, wanted: Walk, ids: Collection[str], at: int) -> Iterable[EdgeRow]:
    for node_id in ids:
        if wanted.direction != "incoming":
            yield from (state.row for state in history.outgoing(node_id, at, EVERY_EDGE))
        if wanted.direction != "outgoing":
            yield from (state.row for state in history.incoming(node_id, at, EVERY_EDGE))
