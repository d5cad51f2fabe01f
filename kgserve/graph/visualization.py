"""Graphs to be drawn: chosen nodes, or what is around some, in columns; what each has been; and commits over time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.handle import Graph
from kgserve.graph.readers import AsOfGraph, hold_history
from kgserve.graph.render import in_few_words
from kgserve.graph.subgraph_sampling import (
    SPARE,
    CurrentIncidentEdges,
    DrawnEdge,
    Ground,
    OverviewStart,
    SampleLimits,
    Touching,
    drawn,
    most_connected,
    spread,
)
from kgserve.graph.temporal import ANY, Past, survivor_at, whole_history, world_moment
from kgserve.graph.validate import Faults, check_label
from kgserve.graph.visualization_api import (
    LIVES_SHOWN,
    MAX_BUCKETS,
    MAX_DRAWN_IDS,
    MAX_DRAWN_NODES,
    MAX_OVERVIEW,
    USUAL_FIELDS,
    Drawing,
    DrawnEdges,
    DrawnField,
    DrawnLinks,
    DrawnNodes,
    DrawRequest,
    Life,
    Timeline,
    TimelineQuery,
)
from kgserve.memory.presentation import now_in_microseconds, settings_of
from kgserve.platform.codecs import json_decoder
from kgserve.platform.times import format_time
from kgserve.projections.history.history import FOREVER, History
from kgserve.projections.memory_index.decay import half_lives_of
from kgserve.storage.model.rows import EMPTY_OBJECT, EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow
from kgserve.storage.model.walk import MAX_EDGES, Walk, clamp
from kgserve.storage.rows.format import Numbers
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import parents
from kgserve.stores.store import OpenStore

MAX_LABEL = 80
"""Characters of a label."""
MAX_LINKS = 10_000
_STARTS = ("ids", "around", "overview")


class _DrawnGraph(msgspec.Struct):
    """What is to be drawn: nodes in order with their degrees, edges by the places of their ends, and links."""

    sequence: int
    nodes: list[NodeRow]
    degrees: Sequence[int | None]
    edges: list[DrawnEdge]
    links: list[LinkRow]
    left_out: list[tuple[int, int]]
    truncated: bool
    missing: list[str]
    redirected: dict[str, str]
    memories: _MemoryColumns | None = None
    lives: Lives | None = None


def draw(graph: Graph, request: DrawRequest) -> Drawing:
    """Nodes by `ids`, or those `around` some, or an `overview`, with all edges among them, in columns.

    Around a node come its neighbours, level by level: of each node those with the strongest edges, then by id, at most
    `per_node`. An overview begins with the nodes that have most edges; a store of at most `max_nodes` is drawn whole.
    As of a moment it begins with those that have most edges now.

    `lives` tell of each node and edge from which commit until which its states held, and bring what is gone: of `ids`
    the nodes that once were there, and the edges that there once were between the nodes.

    Raises NotFound for the store, Gone for a moment that is no longer known, Conflict without a history.
    """
    asked = _checked(request)
    past = graph.past(request.as_of)
    with graph.lease() as store:
        asking = _Asking(request, asked, _walk(request, world_moment(request.valid_at, store, past)))
        drawing = _now(store, asking) if past is None else _then(store, past, asking)
        if request.lives:
            until = drawing.sequence if past is None else FOREVER
            history = whole_history(graph.graphs.historian, store)
            known = asking.known(drawing)
            drawing.lives = history.look(lambda history: lives(history, known, asking.fits, until))
    return _answer(asking, drawing)


def _checked(request: DrawRequest) -> list[str]:
    """The ids that are named, each once. Raises InvalidInput."""
    given = [name for name in _STARTS if getattr(request, name) is not None]
    if len(given) != 1:
        message = "say which nodes by one of ids, around and overview" + (
            f", not by {', '.join(given)}" if given else ""
        )
        raise InvalidInput(message, tuple(FieldError(name, message) for name in given))
    faults = Faults()
    ids = list(dict.fromkeys(request.ids or request.around or ()))
    for place, node_id in enumerate(ids):
        check_label(node_id, f"{given[0]}[{place}]", faults)
    faults.raise_any()
    return ids


def _walk(request: DrawRequest, moment: int | None) -> Walk:
    kinds = None if request.relation_types is None else frozenset(request.relation_types)
    return Walk("", clamp(request.depth), request.direction, kinds, None, MAX_DRAWN_NODES, moment)


class _Asking(NamedTuple):
    """What was asked for, the ids that were named, and which edges are to be told."""

    request: DrawRequest
    named: list[str]
    walk: Walk

    @property
    def fields(self) -> frozenset[DrawnField]:
        """The columns that are wanted."""
        return USUAL_FIELDS if self.request.fields is None else frozenset(self.request.fields)

    @property
    def merged(self) -> bool:
        """Whether nodes that were merged into others count as themselves."""
        return self.request.valid_at == ANY

    @property
    def types(self) -> frozenset[str] | None:
        """The types of nodes that may be added; None: all."""
        return None if self.request.types is None else frozenset(self.request.types)

    @property
    def reach(self) -> SampleLimits:
        """How far to go; nodes that are named one by one are all there is."""
        if self.request.ids is not None:
            return SampleLimits(0, 0, MAX_DRAWN_IDS)
        return SampleLimits(self.walk.depth, min(max(self.request.per_node, 1), MAX_DRAWN_NODES), self.most)

    @property
    def most(self) -> int:
        """How many nodes at most, unless they are named one by one."""
        return min(max(self.request.max_nodes, 1), MAX_DRAWN_NODES)

    @property
    def first(self) -> int:
        """How many nodes an overview begins with."""
        return min(max(self.request.overview or 1, 1), MAX_OVERVIEW)

    def fits(self, row: NodeRow | EdgeRow) -> bool:
        """Whether what is gone may be told."""
        if isinstance(row, EdgeRow):
            return self.walk.follows(row)
        return self.walk.valid_at is None or row.holds_at(self.walk.valid_at)

    def known(self, drawing: _DrawnGraph) -> Known:
        """What the history need not be asked for."""
        ids = [row.id for row in drawing.nodes]
        edges = {(ids[edge.source], ids[edge.target], edge.relation_type) for edge in drawing.edges}
        named = [drawing.redirected.get(each, each) for each in self.named] if self.request.ids is not None else ids
        return Known(list(dict.fromkeys(named)), frozenset(ids), edges, {row.key for row in drawing.links})


def _now(store: OpenStore, asking: _Asking) -> _DrawnGraph:
    with store.reading_links() as (rows, links):
        ground = CurrentIncidentEdges(rows, links, asking.walk, asking.types, merged=asking.merged)
        drawing = _drawn(ground, asking, rows.at)
        drawing.memories = _memories(store, rows, asking, drawing.nodes)
    return drawing


def _then(store: OpenStore, past: Past, asking: _Asking) -> _DrawnGraph:
    follower, at = past.of(store)
    best: list[str] = []
    if asking.request.overview is not None:
        with store.reading() as rows:
            best = rows.delta.ids(most_connected(rows, asking.first + SPARE, None))

    def look(history: History) -> _DrawnGraph:
        ground = PastGraph(history, at, asking.walk, asking.types, merged=asking.merged, best=best)
        return _drawn(ground, asking, at)

    drawing = follower.look(look)
    if "parent" in asking.fields:
        found = [row for row in drawing.nodes if row.is_memory]
        above = AsOfGraph(hold_history(store, follower), at).parents([row.id for row in found])
        drawing.memories = _MemoryColumns(_as_written(found), above)
    return drawing


def _drawn(ground: Ground, asking: _Asking, sequence: int) -> _DrawnGraph:
    request, reach, redirected, missing = asking.request, asking.reach, dict[str, str](), list[str]()
    if request.overview is not None:
        starts, whole = ground.overview(asking.first, asking.most)
        reach = reach._replace(depth=0) if whole else reach
    else:
        redirected = {each: into for each in asking.named if (into := ground.survivor(each)) != each}
        named = dict.fromkeys(redirected.get(each, each) for each in asking.named)
        numbers = {each: number for each in named if (number := ground.number(each)) >= 0}
        starts = np.fromiter(numbers.values(), np.int64)
        standing = ground.standing(starts)
        starts = starts[standing]
        there = {each for each, stands in zip(numbers, standing.tolist(), strict=True) if stands}
        missing = [each for each in asking.named if redirected.get(each, each) not in there]
    found = spread(ground, starts.tolist(), reach)
    places = {number: place for place, number in enumerate(found.nodes.tolist())}
    nodes = [row for number in places if (row := ground.row(number)) is not None]
    edges, cut = ground.between(found.nodes)
    links = [*islice(ground.links([row.id for row in nodes]), MAX_LINKS + 1)]
    kept = [row for row in links[:MAX_LINKS] if asking.walk.follows(row.edge)]
    return _DrawnGraph(
        sequence,
        nodes,
        ground.degrees(found.nodes) if "degree" in asking.fields else (),
        [edge._replace(source=places[edge.source], target=places[edge.target]) for edge in edges],
        kept,
        [(places[number], count) for number, count in found.left_out],
        found.truncated or cut or len(links) > MAX_LINKS,
        missing,
        redirected,
    )


class _MemoryColumns(NamedTuple):
    """Of those nodes that are memories: what their confidence has come to, and what they stand below."""

    confidence: dict[str, float]
    parent: dict[str, str]


def _memories(store: OpenStore, rows: Rows, asking: _Asking, nodes: Iterable[NodeRow]) -> _MemoryColumns | None:
    if not {"confidence", "parent"} & asking.fields:
        return None
    found = {row.id: row for row in nodes if row.is_memory}
    accesses, half_lives, now = store.accesses.of([*found]), half_lives_of(settings_of(store)), now_in_microseconds()
    confidence = {each: half_lives.effective(row, accesses.get(each), now) for each, row in found.items()}
    return _MemoryColumns(confidence, parents(rows, found))


def _as_written(nodes: Iterable[NodeRow]) -> dict[str, float]:
    """The confidences that rows have, whatever has become of them since."""
    confidences = ((row.id, row.extras.confidence) for row in nodes if row.extras)
    return {each: confidence for each, confidence in confidences if confidence is not None}


def _answer(asking: _Asking, drawing: _DrawnGraph) -> Drawing:
    """The drawing in columns, with what is gone at the end, but nodes that were named in their places."""
    nodes, degrees, edges = drawing.nodes, [*drawing.degrees], drawing.edges
    lived = drawing.lives
    if lived is not None:
        nodes, degrees, edges = _with_gone(asking, drawing, lived)
    types, kinds = _Names(), _Names()
    fields = asking.fields
    node_columns = _node_columns(nodes, degrees, fields, drawing.memories)
    edge_columns: dict[str, Any] = _bounds(edges) if "valid" in fields else {}
    ids = [row.id for row in nodes]
    if lived is not None:
        node_columns |= _lives([lived.nodes.get(each, []) for each in ids])
        keys = ((ids[edge.source], ids[edge.target], edge.relation_type) for edge in edges)
        edge_columns |= _lives([lived.edges.get(key, []) for key in keys])
    places = {each: place for place, each in enumerate(ids)}
    moved = [[places[drawing.nodes[place].id], count] for place, count in drawing.left_out]
    return Drawing(
        sequence=drawing.sequence,
        truncated=drawing.truncated or (lived is not None and lived.cut),
        nodes=DrawnNodes(id=ids, type=[types.place(row.type) for row in nodes], **node_columns),
        edges=DrawnEdges(
            source=[edge.source for edge in edges],
            target=[edge.target for edge in edges],
            type=[kinds.place(edge.relation_type) for edge in edges],
            weight=[edge.weight for edge in edges],
            **edge_columns,
        ),
        links=_links(drawing, places, kinds, fields),
        left_out=moved,
        missing=[each for each in drawing.missing if drawing.redirected.get(each, each) not in places],
        redirected=drawing.redirected or msgspec.UNSET,
        types=types.all,
        relation_types=kinds.all,
    )


class _Names:
    """Names by the places at which they are told once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        """Where a name is."""
        return self._places.setdefault(name, len(self._places))

    @property
    def all(self) -> list[str]:
        """The names in order."""
        return [*self._places]


def _with_gone(
    asking: _Asking, drawing: _DrawnGraph, lived: Lives
) -> tuple[list[NodeRow], list[int | None], list[DrawnEdge]]:
    there = {row.id: row for row in drawing.nodes}
    named = (drawing.redirected.get(each, each) for each in asking.named) if asking.request.ids is not None else there
    nodes = [row for each in dict.fromkeys(named) if (row := there.get(each) or lived.gone_nodes.get(each)) is not None]
    places = {row.id: place for place, row in enumerate(nodes)}
    counts = dict(zip(there, drawing.degrees, strict=False))
    moved = [places[row.id] for row in drawing.nodes]
    edges = [edge._replace(source=moved[edge.source], target=moved[edge.target]) for edge in drawing.edges]
    edges += [drawn(places[row.source], places[row.target], row) for row in lived.gone_edges]
    lived.cut = lived.cut or len(edges) > MAX_EDGES
    return nodes, [counts.get(row.id, 0) for row in nodes], edges[:MAX_EDGES]


def _node_columns(
    nodes: Sequence[NodeRow], degrees: list[int | None], fields: frozenset[DrawnField], memories: _MemoryColumns | None
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "label" in fields:
        columns["label"] = [label_of(row) for row in nodes]
    if "degree" in fields:
        columns["degree"] = degrees
    if "version" in fields:
        columns["version"] = [row.version for row in nodes]
    if "tags" in fields:
        columns |= _unless_empty("tags", [[*row.extras.tags] if row.extras else [] for row in nodes])
    if "valid" in fields:
        columns |= _unless_empty("valid_from", [_time(row.extras and row.extras.valid_from) for row in nodes])
        columns |= _unless_empty("valid_to", [_time(row.extras and row.extras.valid_to) for row in nodes])
    if "layer" in fields:
        columns |= _unless_none("layer", [row.extras.layer if row.extras else None for row in nodes])
    if "confidence" in fields:
        known = _as_written(nodes) if memories is None else memories.confidence
        columns |= _unless_none("confidence", [known.get(row.id) for row in nodes])
    if "parent" in fields and memories is not None:
        columns |= _unless_empty("parent", [memories.parent.get(row.id) for row in nodes])
    return columns


def _unless_empty(name: str, column: list[Any]) -> dict[str, list[Any]]:
    return {name: column} if any(column) else {}


def _unless_none(name: str, column: list[Any]) -> dict[str, list[Any]]:
    return {name: column} if any(each is not None for each in column) else {}


def _bounds(edges: Sequence[DrawnEdge]) -> dict[str, list[Any]]:
    begun = _unless_empty("valid_from", [_time(edge.valid_from) for edge in edges])
    return begun | _unless_empty("valid_to", [_time(edge.valid_to) for edge in edges])


def _time(moment: int | None) -> str | None:
    return None if moment is None else format_time(moment)


def _lives(column: list[list[Life]]) -> dict[str, Any]:
    cut = [place for place, each in enumerate(column) if len(each) > LIVES_SHOWN]
    return {"lives": [[[*life] for life in each[:LIVES_SHOWN]] for each in column]} | _unless_none("lives_cut", cut)


def _links(
    drawing: _DrawnGraph, places: dict[str, int], kinds: _Names, fields: frozenset[DrawnField]
) -> DrawnLinks | msgspec.UnsetType:
    lived = drawing.lives
    links = [*drawing.links, *(lived.gone_links if lived else ())][:MAX_LINKS]
    if not links:
        return msgspec.UNSET
    columns: dict[str, Any] = {}
    if "valid" in fields:
        columns |= _bounds([drawn(places[row.edge.source], 0, row.edge) for row in links])
    if lived is not None:
        columns |= _lives([lived.links.get(row.key, []) for row in links])
    return DrawnLinks(
        source=[places[row.edge.source] for row in links],
        to_graph=[row.store for row in links],
        target=[row.edge.target for row in links],
        type=[kinds.place(row.edge.relation_type) for row in links],
        weight=[row.edge.weight for row in links],
        **columns,
    )


class _Titled(msgspec.Struct):
    """Attributes that may say what a node is called."""

    name: Any = None
    title: Any = None
    label: Any = None


_titled = json_decoder(_Titled).decode


def label_of(row: NodeRow) -> str:
    """What a node is called in a picture: of its texts the first that is not blank, in few words."""
    extras = row.extras
    own = () if row.attributes == EMPTY_OBJECT else msgspec.structs.astuple(_titled(row.attributes))
    texts = (extras.summary if extras else "", extras.name if extras else "", *own, row.content)
    words = (in_few_words(text, MAX_LABEL) for text in texts if isinstance(text, str))
    return next(filter(None, words), row.id)


def timeline(graph: Graph, request: TimelineQuery) -> Timeline:
    """When the store was written to: commits in spans of the same length, from the first that is known to the last.

    A span without commits is left out. It takes the same however many commits there are.

    Raises NotFound for the store, Conflict without a history.
    """
    with graph.lease() as store:
        history = whole_history(graph.graphs.historian, store)
        spans = min(max(request.buckets, 1), MAX_BUCKETS)
        oldest, (times, commits) = history.look(lambda history: (history.oldest, history.commits_by_time(spans)))
        sequence, gaps = store.state.sequence, history.shown_gaps()
    steps = range(1, len(times))
    buckets: list[list[int | str]] = [
        [commits[n - 1] + 1, commits[n], format_time(times[n - 1]), format_time(times[n]), commits[n] - commits[n - 1]]
        for n in steps
        if commits[n] > commits[n - 1]
    ]
    return Timeline(sequence=sequence, oldest=oldest, buckets=buckets, gaps=gaps or msgspec.UNSET)


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


class PastGraph:
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

    def overview(self, count: int, most: int) -> OverviewStart:
        """See `Ground`; nodes of which another began with now, if they were there."""
        states = self._history.nodes_at(self.at, None, None, most + 1)
        whole = len(states) <= most
        for state in states if whole else ():
            self._rows[self.number(state.row.id)] = state.row
        ids = [state.row.id for state in states] if whole else self._best
        found = np.array([self.number(each) for each in ids], np.int64)
        found = found[self.standing(found)]
        found = found[self.fitting(found)]
        return OverviewStart(found if whole else found[:count], whole)

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
    links, gone_links, cut_links = _lives_of_links(history, kept, known.links, fits, at)
    lived = {each: nodes[each] for each in kept}
    return Lives(lived, edges, links, gone, rows, gone_links, cut or cut_links)


def _lives_of_links(
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
