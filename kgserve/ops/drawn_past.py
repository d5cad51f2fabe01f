"""What is drawn of the past: what was around nodes as of a commit, and from when until when each state has held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.history.history import FOREVER, History
from kgserve.model.drawing import LIVES_SHOWN, Life
from kgserve.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow
from kgserve.model.walk import MAX_EDGES, Walk
from kgserve.ops.redirects import survivor_at
from kgserve.rows.format import Numbers
from kgserve.rows.spread import DrawnEdge, Overview, Touching, drawn

MOST_THEN = 50_000
"""States of edges that are read to find neighbours as of a moment, about half a second."""
MOST_LISTED = 500_000
"""States of edges that are looked through, without being read, for those between nodes."""
MOST_COUNTED = 200_000
"""States of edges that are looked at to count those of nodes as of a moment."""
_COUNTED_OF_ONE = 10_000


MOST_LINKS = 10_000
MOST_STATES_OF_LINKS = 50_000
"""States of links that are read to tell how long they have held."""


class Then:
    """A store as of a commit as a `Ground`. Nodes are numbered as they are met."""

    allowed = MOST_THEN

    def __init__(
        self,
        history: History,
        at: int,
        wanted: Walk,
        types: Collection[str] | None,
        *,
        merged: bool,
        best: Sequence[str],
    ) -> None:
        """``best`` are the ids of nodes that an overview begins with, as far as they are there."""
        self._history = history
        self._merged = merged
        self._best = best
        self.at = at
        self._wanted = wanted
        self._types = types
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows: dict[int, NodeRow | None] = {}

    def number(self, node_id: str) -> int:
        """The number of a node, there or not."""
        found = self._numbers.get(node_id)
        if found is None:
            found = self._numbers[node_id] = len(self._ids)
            self._ids.append(node_id)
        return found

    def row(self, number: int) -> NodeRow | None:
        """A node as it was, if it was there."""
        if number not in self._rows:
            state = self._history.node_at(self._ids[number], self.at)
            self._rows[number] = None if state is None else state.row
        return self._rows[number]

    def survivor(self, node_id: str) -> str:
        """See `Ground`."""
        return node_id if self._merged else survivor_at(self._history, node_id, self.at)

    def links(self, ids: Sequence[str]) -> Iterable[LinkRow]:
        """See `Ground`."""
        return (state.row for each in ids for state in self._history.links_from(each, self.at, MOST_LINKS))

    def overview(self, count: int, most: int) -> Overview:
        """See `Ground`; nodes of which another began with now, if they were there."""
        states = self._history.nodes_at(self.at, None, None, most + 1)
        whole = len(states) <= most
        for state in states if whole else ():
            self._rows[self.number(state.row.id)] = state.row
        ids = [state.row.id for state in states] if whole else self._best
        found = np.array([self.number(each) for each in ids], np.int64)
        found = found[self.standing(found)]
        found = found[self.fitting(found)]
        return Overview(found if whole else found[:count], whole)

    def standing(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        moment = self._wanted.valid_at
        rows = map(self.row, numbers.tolist())
        return np.array([row is not None and (moment is None or row.holds_at(moment)) for row in rows], np.bool_)

    def touching(self, level: Numbers, left: int) -> Touching:
        """See `Ground`."""
        found: list[tuple[int, int, float]] = []
        met, cut = 0, False
        for place, number in enumerate(level.tolist()):
            for outgoing in (True, False):
                if self._wanted.direction == ("incoming" if outgoing else "outgoing"):
                    continue
                read = self._history.outgoing if outgoing else self._history.incoming
                states = read(self._ids[number], self.at, left - met + 1)
                cut = cut or len(states) > left - met
                states = states[: left - met]
                met += len(states)
                rows = (state.row for state in states if self._wanted.follows(state.row))
                found += [(place, self.number(row.target if outgoing else row.source), row.weight) for row in rows]
        owner, end, weight = zip(*found, strict=True) if found else ((), (), ())
        return Touching(np.array(owner, np.int64), np.array(end, np.int64), np.array(weight, np.float64), cut)

    def fitting(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        if self._wanted.valid_at is None and self._types is None:
            return np.ones(len(numbers), np.bool_)
        return np.array([self._fits(self.row(number)) for number in numbers.tolist()], np.bool_)

    def in_order(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        return np.array(sorted(numbers.tolist(), key=self._ids.__getitem__), np.int64)

    def between(self, numbers: Numbers) -> tuple[list[DrawnEdge], bool]:
        """The edges between some nodes, and whether there are more than may be told."""
        ids = [self._ids[number] for number in numbers.tolist()]
        listed, cut = listed_between(self._history, ids)
        states = self._history.edges_numbered(listed, self.at)
        rows = [state.row for state in states if self._wanted.follows(state.row)]
        edges = [drawn(self.number(row.source), self.number(row.target), row) for row in rows]
        return edges[:MAX_EDGES], cut or len(edges) > MAX_EDGES

    def degrees(self, numbers: Numbers) -> Sequence[int | None]:
        """How many edges nodes had; None where that would take too long to count."""
        left = MOST_COUNTED
        found: list[int | None] = []
        for number in numbers.tolist():
            most = min(left, _COUNTED_OF_ONE)
            count, looked_at = self._history.degree_at(self._ids[number], self.at, most)
            left -= min(looked_at, left)
            found.append(count if looked_at < most else None)
        return found

    def _fits(self, row: NodeRow | None) -> bool:
        if row is None or not (self._types is None or row.type in self._types):
            return False
        return self._wanted.valid_at is None or row.holds_at(self._wanted.valid_at)


def listed_between(history: History, ids: Iterable[str]) -> tuple[list[int], bool]:
    """The numbers of all states that edges between some nodes have had, and whether there were too many to look at."""
    among = dict.fromkeys(ids)
    left = MOST_LISTED
    found: list[int] = []
    for node_id in among:
        listed = history.numbers_from(node_id, left + 1)
        found += [number for number, target in listed[:left] if target in among]
        if len(listed) > left:
            return found, True
        left -= len(listed)
    return found, False


class Lives(msgspec.Struct):
    """From when until when the states of rows held, newest first; one more than is told where there are more.

    ``gone_nodes``, ``gone_edges`` and ``gone_links`` are the newest rows of what was asked for and is not there.
    """

    nodes: dict[str, list[Life]]
    edges: dict[EdgeKey, list[Life]]
    links: dict[LinkKey, list[Life]]
    gone_nodes: dict[str, NodeRow]
    gone_edges: list[EdgeRow]
    gone_links: list[LinkRow]
    cut: bool


class Known(NamedTuple):
    """What has been found without the history: ids that were asked for, those of them that are there, edges, links."""

    ids: Sequence[str]
    there: Collection[str]
    edges: Collection[EdgeKey]
    links: Collection[LinkKey]


def lives(history: History, known: Known, fits: Callable[[NodeRow | EdgeRow], bool], at: int) -> Lives:
    """The lives of nodes and of the edges between them, as far as they are known up to a commit.

    What is gone comes as well, if it fits: an edge if both its ends come.
    """
    nodes = {each: found for each in known.ids if (found := _up_to(history.node_lives(each, LIVES_SHOWN + 1), at))}
    gone = {each: row for each in nodes if each not in known.there and fits(row := _newest(history, each, at))}
    kept = [each for each in nodes if each in known.there or each in gone]
    listed, cut = listed_between(history, kept)
    edges: dict[EdgeKey, list[Life]] = {}
    newest: dict[EdgeKey, tuple[int, int]] = {}
    for number, key, first, last in history.edge_lives(listed):
        if first <= at:
            edges.setdefault(key, []).append((first, last if last is None or last <= at else None))
            newest[key] = max(newest.get(key, (0, 0)), (first, number))
    for found in edges.values():
        found.sort(reverse=True, key=_first)
        del found[LIVES_SHOWN + 1 :]
    missing = [number for key, (_, number) in newest.items() if key not in known.edges]
    rows = [state.row for state in history.edge_states(missing) if fits(state.row)]
    links, gone_links, cut_links = _links(history, kept, known.links, fits, at)
    lived = {each: nodes[each] for each in kept}
    return Lives(lived, edges, links, gone, rows, gone_links, cut or cut_links)


def _links(
    history: History, ids: Iterable[str], known: Collection[LinkKey], fits: Callable[[EdgeRow], bool], at: int
) -> tuple[dict[LinkKey, list[Life]], list[LinkRow], bool]:
    """The lives of the links of some nodes, the newest rows of those that are gone, and whether there are more."""
    left = MOST_STATES_OF_LINKS if history.has_links() else 0
    lives: dict[LinkKey, list[Life]] = {}
    gone: dict[LinkKey, LinkRow] = {}
    cut = False
    for node_id in ids if left else ():
        states = history.link_states(node_id, left + 1)
        cut = cut or len(states) > left
        left -= min(len(states), left)
        for state in states:
            if state.first <= at:
                last = state.last if state.last is None or state.last <= at else None
                lives.setdefault(state.row.key, []).append((state.first, last))
                gone.setdefault(state.row.key, state.row)
    rows = [row for key, row in gone.items() if key not in known and fits(row.edge)]
    return {key: found[: LIVES_SHOWN + 1] for key, found in lives.items()}, rows, cut


def _first(life: Life) -> int:
    return life[0]


def _newest(history: History, node_id: str, at: int) -> NodeRow:
    return history.node_states(node_id, min(at + 1, FOREVER), 1)[0].row


def _up_to(found: list[Life], at: int) -> list[Life]:
    return [(first, last if last is None or last <= at else None) for first, last in found if first <= at]
