"""What is around some nodes, to be drawn: of each the strongest neighbours, level by level, and how many were left out.

As in a walk a level is taken in columns. Who knows the edges is a `Ground`: here the present rows, elsewhere the past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, cast

import msgspec
import numpy as np

from kgserve.platform.codecs import json_decoder
from kgserve.projections.links.links import LinkReader
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.storage.model.walk import Walk
from kgserve.storage.rows.base import SLICE_ROWS
from kgserve.storage.rows.delta import Delta, Version
from kgserve.storage.rows.format import FIRST, LAST, Numbers
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.walk import LargeWalk
from kgserve.storage.rows.ways import survivor

MOST_MET = 500_000
"""Edges that are looked at to find neighbours, about a tenth of a second."""
MOST_TYPED = 100_000
"""The same where the types of the neighbours have to be read."""


SPARE = 100
"""So many more nodes with many edges are looked at, for some may not be true at the moment that counts."""


class Touching(NamedTuple):
    """Edges around the nodes of a level: the place of the node in it, the other end, and the weight.

    ``cut``: there are more than were to be looked at.
    """

    owner: Numbers
    end: Numbers
    weight: Numbers
    cut: bool


class Ground(Protocol):
    """Who knows which nodes and edges there are to be drawn; nodes are numbers."""

    @property
    def allowed(self) -> int:
        """How many edges may be looked at."""
        ...

    def number(self, node_id: str) -> int:
        """A node by its id; -1 if it is known not to be there."""
        ...

    def row(self, number: int) -> NodeRow | None:
        """A node, if it is there."""
        ...

    def survivor(self, node_id: str) -> str:
        """The node itself, or the one that it was merged into."""
        ...

    def overview(self, count: int, most: int) -> OverviewStart:
        """So many nodes with most edges, or all nodes if there are no more than ``most``."""
        ...

    def standing(self, numbers: Numbers) -> Numbers:
        """Which nodes are there, and true at the moment that counts."""
        ...

    def fitting(self, numbers: Numbers) -> Numbers:
        """Of nodes that are there, which may be added."""
        ...

    def touching(self, level: Numbers, left: int) -> Touching:
        """The edges around some nodes, so many at most."""
        ...

    def in_order(self, numbers: Numbers) -> Numbers:
        """Nodes in the order of their ids."""
        ...

    def between(self, numbers: Numbers) -> tuple[list[DrawnEdge], bool]:
        """The edges between some nodes, by their numbers, and whether there are more than may be told."""
        ...

    def degrees(self, numbers: Numbers) -> Sequence[int | None]:
        """How many edges start and end at nodes, whatever they are and whenever true; None: too many to count."""
        ...

    def links(self, ids: Sequence[str]) -> Iterable[LinkRow]:
        """The edges that lead from some nodes into other stores."""
        ...


class OverviewStart(NamedTuple):
    """The nodes that an overview begins with, and whether they are all there are."""

    nodes: Numbers
    whole: bool


class SampleLimits(NamedTuple):
    """How far to go, how many neighbours of a node to take, and how many nodes in all."""

    depth: int
    per_node: int
    max_nodes: int


class Spread(NamedTuple):
    """The nodes found, level by level; how many neighbours of which were left out; and whether a limit was met."""

    nodes: Numbers
    left_out: list[tuple[int, int]]
    truncated: bool


def spread(ground: Ground, starts: Sequence[int], reach: SampleLimits) -> Spread:
    """From some nodes, each of them once, outwards."""
    found = level = np.array(starts[: reach.max_nodes], np.int64)
    truncated, left = len(starts) > reach.max_nodes, ground.allowed
    looked_at: list[tuple[Numbers, Numbers]] = []
    for _ in range(reach.depth):
        if not len(level):
            break
        touching = ground.touching(level, left)
        left -= len(touching.owner)
        truncated = truncated or touching.cut
        owner, end = _neighbours(ground, level, touching)
        looked_at.append((level[owner], end))
        level = _taken(owner, end, found, reach.per_node)
        room = reach.max_nodes - len(found)
        truncated = truncated or len(level) > room
        level = level[:room]
        found = np.concatenate((found, level))
    return Spread(found, _left_out(looked_at, found), truncated)


def _neighbours(ground: Ground, level: Numbers, touching: Touching) -> tuple[Numbers, Numbers]:
    """The neighbours of each node of a level, each once, the strongest first, then by id; loops lead nowhere."""
    owner, end, weight, _ = touching
    distinct = np.unique(end)
    ordered = ground.in_order(distinct[ground.fitting(distinct)]) if len(distinct) else distinct
    if not len(ordered):
        return np.empty(0, np.int64), ordered
    by_number = np.argsort(ordered)
    rank = by_number[np.minimum(np.searchsorted(ordered, end, sorter=by_number), len(ordered) - 1)]
    kept = (ordered[rank] == end) & (end != level[owner])
    owner, rank, weight = owner[kept], rank[kept], weight[kept]
    strongest = np.lexsort((-weight, rank, owner))
    owner, rank, weight = owner[strongest], rank[strongest], weight[strongest]
    first = np.ones(len(owner), np.bool_)
    first[1:] = (np.diff(owner) != 0) | (np.diff(rank) != 0)
    owner, rank, weight = owner[first], rank[first], weight[first]
    order = np.lexsort((rank, -weight, owner))
    return owner[order], ordered[rank[order]]


def _taken(owner: Numbers, end: Numbers, found: Numbers, per_node: int) -> Numbers:
    """The first neighbours of each that are not among those found."""
    places = np.arange(len(owner)) - np.searchsorted(owner, owner)
    new = end[places < per_node]
    new = new[~np.isin(new, found)]
    return new[np.sort(np.unique(new, return_index=True)[1])]


def _left_out(looked_at: Iterable[tuple[Numbers, Numbers]], found: Numbers) -> list[tuple[int, int]]:
    counts: Counter[int] = Counter()
    for owner, end in looked_at:
        counts.update(owner[~np.isin(end, found)].tolist())
    return [*counts.items()]


class _Typed(msgspec.Struct):
    """Of a node's JSON its type."""

    type: str


_type_of = json_decoder(_Typed).decode


class DrawnEdge(NamedTuple):
    """An edge between two numbered nodes; bounds in microseconds, None where there is none."""

    source: int
    target: int
    relation_type: str
    weight: float
    valid_from: int | None
    valid_to: int | None


def drawn(source: int, target: int, row: EdgeRow) -> DrawnEdge:
    """A row as one."""
    extras = row.extras
    bounds = (None, None) if extras is None else (extras.valid_from, extras.valid_to)
    return DrawnEdge(source, target, row.relation_type, row.weight, *bounds)


class CurrentIncidentEdges:
    """The present rows as a `Ground`. ``types``: those that may be added; None: all."""

    def __init__(
        self, rows: Rows, links: LinkReader | None, wanted: Walk, types: Collection[str] | None, *, merged: bool
    ) -> None:
        """``merged``: nodes that were merged count as themselves."""
        self._rows = rows
        self._links = links
        self._merged = merged
        self._wanted = wanted
        self._walk = LargeWalk(rows, wanted, None)
        self._types = types

    @property
    def allowed(self) -> int:
        """See `Ground`."""
        return MOST_MET if self._types is None else MOST_TYPED

    def number(self, node_id: str) -> int:
        """See `Ground`."""
        return self._rows.number(node_id)

    def row(self, number: int) -> NodeRow | None:
        """See `Ground`."""
        return self._rows.node_row(number)

    def survivor(self, node_id: str) -> str:
        """See `Ground`."""
        return node_id if self._merged else survivor(self._rows, node_id)

    def links(self, ids: Sequence[str]) -> Iterable[LinkRow]:
        """See `Ground`."""
        return () if self._links is None else self._links.from_any(ids)

    def overview(self, count: int, most: int) -> OverviewStart:
        """See `Ground`."""
        rows, whole = self._rows, self._rows.state.nodes <= most
        if whole:
            found = rows.in_order(np.concatenate([*rows.node_slices()]))
        else:
            found = np.array(most_connected(rows, count + SPARE, self._types), np.int64)
        found = found[self.fitting(found)]
        return OverviewStart(found if whole else found[:count], whole)

    def degrees(self, numbers: Numbers) -> Sequence[int | None]:
        """See `Ground`."""
        return degrees(self._rows, numbers)

    def touching(self, level: Numbers, left: int) -> Touching:
        """See `Ground`."""
        ways = [way for way in (True, False) if self._wanted.direction != ("incoming" if way else "outgoing")]
        parts = [self._touching(level, left // len(ways), outgoing=way) for way in ways]
        owner, end, weight = (np.concatenate(column) for column in zip(*(part[:3] for part in parts), strict=True))
        return Touching(owner, end, weight, any(part.cut for part in parts))

    def _touching(self, level: Numbers, left: int, *, outgoing: bool) -> Touching:
        near = level[: _how_many_within(self._rows, level, left, outgoing=outgoing)]
        found = self._walk.followed(near, outgoing=outgoing)
        source, target = self._rows.ends(found)
        owner, end = (source, target) if outgoing else (target, source)
        weight = np.array(self._rows.weights(found), np.float64)
        cut = len(near) < len(level) or len(owner) > left
        by_number = np.argsort(level)
        places = by_number[np.searchsorted(level, owner[:left], sorter=by_number)]
        return Touching(places, end[:left], weight[:left], cut)

    def standing(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        rows, moment = self._rows, self._wanted.valid_at
        if moment is None or not rows.dated:
            return np.ones(len(numbers), np.bool_)
        return rows.nodes_hold(numbers, moment)

    def fitting(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        fits = self.standing(numbers)
        if self._types is not None:
            fits[fits] = [each in self._types for each in types_of(self._rows, numbers[fits])]
        return fits

    def in_order(self, numbers: Numbers) -> Numbers:
        """See `Ground`."""
        return self._rows.in_order(numbers)

    def between(self, numbers: Numbers) -> tuple[list[DrawnEdge], bool]:
        """The edges between some nodes, and whether there are more than may be told."""
        if not len(numbers):
            return [], False
        found, cut = self._walk.between(np.sort(numbers))
        base, own = self._rows.base, found.base
        source, target = base.edge_ends(own)
        begun, ended = base.edge_bounds(own)
        columns = (source, target, base.relation[own], base.weight[own], begun, ended)
        names = base.names
        edges = [
            DrawnEdge(s, t, names[code], weight, None if first == FIRST else first, None if last == LAST else last)
            for s, t, code, weight, first, last in zip(*(column.tolist() for column in columns), strict=True)
        ]
        for number, version in found.changed:
            edges.append(drawn(*self._rows.delta.ends(number), cast("EdgeRow", version.row)))
        return edges, cut


def types_of(rows: Rows, numbers: Numbers) -> list[str]:
    """The types of nodes."""
    return [
        _type_of(text + b"}").type
        for start in range(0, len(numbers), SLICE_ROWS)
        for text in rows.node_texts(numbers[start : start + SLICE_ROWS], 0)
    ]


def _how_many_within(rows: Rows, level: Numbers, left: int, *, outgoing: bool) -> int:
    """How many of some nodes to look at so that no more than the last one goes beyond so many edges."""
    count = rows.base.nodes
    if not count:
        return len(level)
    starts = rows.base.out_at if outgoing else rows.base.in_at
    own = np.minimum(level, count - 1)
    sizes = np.where(level < count, starts[own + 1].astype(np.int64) - starts[own], 0)
    return int(np.searchsorted(np.cumsum(sizes), left)) + 1


def degrees(rows: Rows, numbers: Numbers) -> list[int]:
    """How many edges start and end at nodes, whatever they are and whenever they are true; a loop counts twice."""
    found = _base_degrees(rows, numbers).tolist()
    delta = rows.delta
    if delta.edges:
        for place, number in enumerate(numbers.tolist()):
            for lists in (delta.out, delta.into):
                noted = lists.get(number)
                if noted is not None:
                    found[place] += sum(_change(rows, edge, delta.edges[edge]) for edge in noted[:])
    return found


def _base_degrees(rows: Rows, numbers: Numbers) -> Numbers:
    base = rows.base
    found = np.zeros(len(numbers), np.int64)
    own = numbers < base.nodes
    at = numbers[own]
    found[own] = base.out_at[at + 1].astype(np.int64) - base.out_at[at] + base.in_at[at + 1] - base.in_at[at]
    return found


def _change(rows: Rows, edge: int, newest: Version) -> int:
    version = newest.at(rows.at)
    return 0 if version is None else (version.row is not None) - (edge < rows.base.edges)


def most_connected(rows: Rows, count: int, types: Collection[str] | None) -> list[int]:
    """The nodes with most edges, then by id: of those with most in the base and of those whose edges have changed.

    Should these all have gone, others are found with the next base.
    """
    numbers = np.union1d(rows.base.best_connected, _changed_most(rows, 8 * count + 100)).astype(np.int64)
    numbers = np.array([number for number in numbers.tolist() if rows.is_there(number)], np.int64)
    if types is not None and len(numbers):
        numbers = numbers[[each in types for each in types_of(rows, numbers)]]
    ordered = rows.in_order(numbers)
    by_degree = np.array(degrees(rows, ordered), np.int64)
    best = np.argsort(-by_degree, kind="stable")[:count]
    return ordered[best[by_degree[best] > 0]].tolist()


def _changed_most(rows: Rows, count: int) -> Numbers:
    """Of the nodes whose edges have changed since the base those that may have most by now."""
    delta: Delta = rows.delta
    parts: list[tuple[Numbers, Numbers]] = []
    for lists in (delta.out.copy(), delta.into.copy()):
        numbers = np.fromiter(lists, np.int64, len(lists))
        parts.append((numbers, np.fromiter(map(len, lists.values()), np.int64, len(lists))))
    numbers, places = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    most = _base_degrees(rows, numbers) + np.bincount(places, np.concatenate([part[1] for part in parts]), len(numbers))
    return numbers[np.argsort(-most, kind="stable")[:count]]
