"""What a search looks at: the store as it is or as it was, in the world as it is or was, and what is around a node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import cast

import msgspec
import numpy as np

from kgserve.embedding.cache import QueryVectors
from kgserve.history.history import History
from kgserve.model.fusion import HUB, Neighbours
from kgserve.model.rows import EdgeRow, NodeRow
from kgserve.model.walk import Walk, by_levels
from kgserve.ops.moments import Past
from kgserve.ops.validity import MAX_SHOWN, world_moment
from kgserve.rows.snapshot import Rows
from kgserve.rows.walk import walk
from kgserve.store.store import Store
from kgserve.views.history import HistoryFollower
from kgserve.views.indexer import Indexer
from kgserve.views.indexes import Indexes, IndexesAsOf

EVERY_EDGE = 1 << 62
# One more than a hub has shows that it is one.
_ENOUGH = HUB + 1


class Surroundings(ABC):
    """Nodes and edges that are there; with ``valid_at``, a moment of the world in microseconds, that were true then."""

    def __init__(self, valid_at: int | None) -> None:
        self._valid_at = valid_at

    def rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among some ids, by id."""
        found = self._rows(ids)
        return found if self._valid_at is None else {key: row for key, row in found.items() if self._holds(row)}

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """The other ends of each node's edges, in either direction, with weights; at most 33 each."""
        around = {node_id: self._around(node_id) for node_id in ids}
        there = self._true({end for edges in around.values() for edge in edges for end in edge.key[:2]})
        return {
            node_id: [
                (end, edge.weight)
                for edge in edges
                if (end := edge.source if edge.target == node_id else edge.target) in there
            ][:_ENOUGH]
            for node_id, edges in around.items()
        }

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """The edges that a walk in both directions finds."""
        return by_levels(_walk(start, depth, max_nodes), start, self._followed).edges

    def outgoing(self, node_id: str) -> list[EdgeRow]:
        """Edges that start at a node, at most about 1,000; their ends need not be true."""
        return [edge for edge in self._some_outgoing(node_id) if self._holds(edge)]

    def _followed(self, ids: Collection[str]) -> Iterator[EdgeRow]:
        edges = [edge for node_id in ids for edge in self._all_around(node_id) if self._holds(edge)]
        there = self._true({end for edge in edges for end in edge.key[:2]})
        return (edge for edge in edges if edge.source in there and edge.target in there)

    def _true(self, ids: set[str]) -> Collection[str]:
        # An edge that is there has its ends.
        return ids if self._valid_at is None else self.rows(ids)

    def _holds(self, row: NodeRow | EdgeRow) -> bool:
        return self._valid_at is None or row.holds_at(self._valid_at)

    @abstractmethod
    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among some ids, true or not."""

    @abstractmethod
    def _around(self, node_id: str) -> list[EdgeRow]:
        """True edges of a node in either direction: all of them, or more than a hub has."""

    @abstractmethod
    def _all_around(self, node_id: str) -> list[EdgeRow]:
        """All edges of a node, in either direction."""

    @abstractmethod
    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        """Edges that start at a node, at most about 1,000."""


class PresentSurroundings(Surroundings):
    """The graph as it is."""

    def __init__(self, rows: Rows, valid_at: int | None) -> None:
        super().__init__(valid_at)
        self._present = rows

    def neighbours(self, ids: Sequence[str]) -> Neighbours:
        """See `Surroundings.neighbours`."""
        names = self._present.delta.ids
        found = {node_id: self._ends(node_id) for node_id in ids}
        ends = iter(names([end for each in found.values() for end, _ in each]))
        return {node_id: [(next(ends), weight) for _, weight in each] for node_id, each in found.items()}

    def walk(self, start: str, depth: int, max_nodes: int) -> list[EdgeRow]:
        """See `Surroundings.walk`."""
        wanted = msgspec.structs.replace(_walk(start, depth, max_nodes), valid_at=self._valid_at)
        return list(self._present.rows_of(walk(self._present, wanted).edges))

    def _ends(self, node_id: str) -> list[tuple[int, float]]:
        rows, node = self._present, self._present.number(node_id)
        found: list[tuple[int, float]] = []
        if node < 0:
            return found
        dated = self._valid_at is not None and rows.dated
        for outgoing in (True, False):
            few = not dated and rows.base.degree(node, outgoing=outgoing) <= MAX_SHOWN
            found += self._few_ends(node, outgoing=outgoing) if few else self._some_ends(node, outgoing=outgoing)
        return found[:_ENOUGH]

    def _few_ends(self, node: int, *, outgoing: bool) -> list[tuple[int, float]]:
        edges, weights = self._present.edges_of(node, outgoing=outgoing), self._present.base.weights
        own = zip(edges.numbers[:_ENOUGH], edges.ends[:_ENOUGH], strict=True)
        found: list[tuple[int, float]] = [(end, weights[number]) for number, end in own]
        if edges.changed:
            found += [(end, cast("EdgeRow", version.row).weight) for _, end, version in edges.changed[:_ENOUGH]]
        return found

    def _some_ends(self, node: int, *, outgoing: bool) -> Iterable[tuple[int, float]]:
        rows = self._present
        edges = rows.around(np.array([node]), outgoing=outgoing)
        if self._valid_at is not None and rows.dated:
            # With so many it is taken for a hub, however few of them are true.
            edges = rows.holding(edges.first(MAX_SHOWN), self._valid_at)
        edges = edges.first(_ENOUGH)
        return zip(rows.ends(edges)[outgoing].tolist(), rows.weights(edges), strict=True)

    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        return self._present.nodes(ids)

    def _around(self, node_id: str) -> list[EdgeRow]:
        return self._all_around(node_id)

    def _all_around(self, node_id: str) -> list[EdgeRow]:
        return [*self._present.outgoing(node_id), *self._present.incoming(node_id)]

    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        return list(islice(self._present.outgoing(node_id), MAX_SHOWN + 1))


class PastSurroundings(Surroundings):
    """The graph as of a commit."""

    def __init__(self, history: HistoryFollower, at: int, valid_at: int | None) -> None:
        super().__init__(valid_at)
        self._history = history
        self._at = at

    def _rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        def look(history: History) -> dict[str, NodeRow]:
            states = ((node_id, history.node_at(node_id, self._at)) for node_id in ids)
            return {node_id: state.row for node_id, state in states if state is not None}

        return self._history.look(look)

    def _around(self, node_id: str) -> list[EdgeRow]:
        enough = _ENOUGH if self._valid_at is None else EVERY_EDGE
        return [edge for edge in self._edges(node_id, enough) if self._holds(edge)]

    def _all_around(self, node_id: str) -> list[EdgeRow]:
        return self._edges(node_id, EVERY_EDGE)

    def _some_outgoing(self, node_id: str) -> list[EdgeRow]:
        return [s.row for s in self._history.look(lambda h: h.outgoing(node_id, self._at, MAX_SHOWN + 1))]

    def _edges(self, node_id: str, limit: int) -> list[EdgeRow]:
        def look(history: History) -> list[EdgeRow]:
            found = (*history.outgoing(node_id, self._at, limit), *history.incoming(node_id, self._at, limit))
            return [state.row for state in found]

        return self._history.look(look)


def _walk(start: str, depth: int, max_nodes: int) -> Walk:
    return Walk(start, depth, "both", None, None, max_nodes)


class Searched(msgspec.Struct):
    """A store at a moment: ``at`` is the commit, None for now, ``valid_at`` the time in the world in microseconds."""

    at: int | None
    valid_at: int | None
    around: Surroundings
    indexes: Indexes | IndexesAsOf
    present: Indexes
    indexer: Indexer
    words_alone: bool = False

    @property
    def queries(self) -> QueryVectors:
        """Texts that are searched for as vectors."""
        return self.present.queries

    @property
    def sequence(self) -> int:
        """The commit that was looked at, or the last one that the indexes have seen."""
        return self.present.seen(words_alone=self.words_alone) if self.at is None else self.at

    @property
    def degraded(self) -> bool:
        """Whether meaning is not understood, for want of a model."""
        return self.indexer.embedder.degraded


@contextmanager
def at_moment(store: Store, indexer: Indexer, past: Past | None, valid_at: str | None) -> Generator[Searched]:
    """The store as it was; the indexes may have yet to see the commit. Raises InvalidInput, and what `Past.of` does."""
    moment, present = world_moment(valid_at, store, past), indexer.of(store)
    if past is not None:
        history, at = past.of(store)
        around = PastSurroundings(history, at, moment)
        yield Searched(at, moment, around, IndexesAsOf(present, history, at), present, indexer)
        return
    with store.reading() as rows:
        yield Searched(None, moment, PresentSurroundings(rows, moment), present, present, indexer)
