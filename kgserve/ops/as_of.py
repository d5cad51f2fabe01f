"""Reading an open store as it was: a node, pages of nodes, a walk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from kgserve.history.history import History
from kgserve.model.listing import Listed, NodeFilter, Place, page_of
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.model.walk import Reached, Standing, Walk, by_levels
from kgserve.ops.moments import Past
from kgserve.ops.validity import MAX_SHOWN, NodeView, held_view, standing
from kgserve.store.store import Store
from kgserve.views.history import HistoryFollower

EVERY_EDGE = 1 << 62
FEWEST_AT_ONCE, MOST_AT_ONCE = 64, 1001


def view(store: Store, past: Past, node_id: str, valid_at: int | None, *, whole: bool) -> NodeView | None:
    """A node and its edges; None when it was not there, or not true then.

    With ``whole`` or ``valid_at`` it has all its edges, otherwise at most 1,000 in each direction.
    """
    follower, at = past.of(store)
    most = EVERY_EDGE if whole or valid_at is not None else MAX_SHOWN
    return follower.look(lambda history: _view(history, node_id, at, valid_at, most))


def page(store: Store, past: Past, wanted: NodeFilter, place: Place, limit: int) -> Listed[NodeRow]:
    """A page of the nodes that fitted, in the order of their ids; it looks at `MAX_PASSED` at most."""
    follower, at = past.of(store)
    type_ = wanted.types[0] if len(wanted.types) == 1 else None
    # No more than are needed if all fit, and no small steps when few do.
    most = min(max(limit + place.skip + 1, FEWEST_AT_ONCE), MOST_AT_ONCE)
    rows = _rows_at(follower, at, type_, place.after, most)
    return page_of(((row.id, row, wanted.matches(row)) for row in rows), place, limit)


def _rows_at(follower: HistoryFollower, at: int, type_: str | None, after: str, most: int) -> Iterator[NodeRow]:
    def look(history: History) -> list[NodeRow]:
        return [state.row for state in history.nodes_at(at, type_, after, most)]

    while rows := follower.look(look):
        yield from rows
        if len(rows) < most:
            return
        after = rows[-1].id


def walk(store: Store, past: Past, wanted: Walk) -> tuple[Reached, int]:
    """A walk as it would have gone, and the commit that it saw."""
    follower, at = past.of(store)
    return follower.look(lambda history: _walk(history, wanted, at)), at


def _view(history: History, node_id: str, at: int, valid_at: int | None, most: int) -> NodeView | None:
    node = next(rows_at(history, (node_id,), at), None)
    if node is None:
        return None
    out = [each.row for each in history.outgoing(node_id, at, most + 1)]
    into = [each.row for each in history.incoming(node_id, at, most + 1)]
    if valid_at is not None:
        return held_view(node, out, into, lambda ids: rows_at(history, ids, at), valid_at)
    return NodeView(node, out[:most], into[:most], max(len(out), len(into)) > most)


def rows_at(history: History, ids: Iterable[str], at: int) -> Iterator[NodeRow]:
    """The nodes of some ids as they were, of those that were there."""
    return (state.row for node_id in ids if (state := history.node_at(node_id, at)) is not None)


def _walk(history: History, wanted: Walk, at: int) -> Reached:
    start = history.node_at(wanted.start, at)
    if start is None or not (wanted.valid_at is None or start.row.holds_at(wanted.valid_at)):
        return Reached([], [], truncated=False)
    found = by_levels(
        wanted, wanted.start, lambda ids: _followed(history, wanted, ids, at), _standing(history, wanted, at)
    )
    states = ((history.node_at(node_id, at), depth) for node_id, depth in found.depths.items())
    return Reached([(state.row, depth) for state, depth in states if state is not None], found.edges, found.truncated)


def _standing(history: History, wanted: Walk, at: int) -> Standing | None:
    moment = wanted.valid_at
    return None if moment is None else lambda ids: standing(ids, lambda some: rows_at(history, some, at), moment)


def _followed(history: History, wanted: Walk, ids: Collection[str], at: int) -> Iterator[EdgeRow]:
    return filter(wanted.follows, _edges(history, wanted, ids, at))


def _edges(history: History, wanted: Walk, ids: Collection[str], at: int) -> Iterable[EdgeRow]:
    for node_id in ids:
        if wanted.direction != "incoming":
            yield from (state.row for state in history.outgoing(node_id, at, EVERY_EDGE))
        if wanted.direction != "outgoing":
            yield from (state.row for state in history.incoming(node_id, at, EVERY_EDGE))
