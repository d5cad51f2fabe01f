"""Drawing graphs: selected nodes or their surroundings in columns, the states of each, and the commit timeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.as_of_graph import list_edge_state_numbers_between_nodes, read_stored_memory_confidences
from kgserve.graph.as_of_resolution import VALID_AT_ANY, get_caught_up_history
from kgserve.graph.graph_reader import (
    GraphReader,
    open_graph_reader,
)
from kgserve.graph.request_validation import ValidationErrorCollector, validate_identifier_length
from kgserve.graph.row_to_api_conversion import shorten_text
from kgserve.graph.store_handle import StoreHandle
from kgserve.graph.subgraph_sampling import SubgraphSampleFilter, SubgraphSampleLimits, sample_subgraph
from kgserve.graph.visualization_models import (
    DEFAULT_NODE_COLUMNS,
    MAX_DRAWN_IDS,
    MAX_DRAWN_NODES,
    MAX_LISTED_LIFETIMES,
    MAX_OVERVIEW_NODES,
    MAX_TIMELINE_BUCKETS,
    CommitTimeline,
    CommitTimelineQuery,
    DrawnCrossStoreEdgeColumns,
    DrawnEdgeColumns,
    DrawnNodeColumns,
    GraphDrawingAnswer,
    GraphDrawingRequest,
    NodeColumn,
    StateLifetime,
)
from kgserve.platform.codecs import json_decoder
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.row_state_history import NO_SEQUENCE_LIMIT, HistoryFile
from kgserve.projections.memory_index.confidence_decay import MemoryHalfLives, memory_half_lives_from_settings
from kgserve.storage.model.breadth_first_traversal import MAX_WALK_EDGES, TraversalRequest, clamp_traversal_depth
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
)
from kgserve.storage.rows.graph_drawing_samples import EdgeByNodeNumbers, build_edge_by_node_numbers

MAX_LABEL_CHARS = 80
"""Characters of a label."""
MAX_DRAWN_LINKS = 10_000
_START_FIELDS = ("ids", "around", "overview")


class _DrawnGraph(msgspec.Struct):
    """A drawing in progress: nodes in order with their degrees, edges by the positions of their ends, and links."""

    sequence: int
    nodes: list[NodeRow]
    degrees: Sequence[int | None]
    edges: list[EdgeByNodeNumbers]
    links: list[CrossStoreLinkRow]
    left_out: list[tuple[int, int]]
    truncated: bool
    missing: list[str]
    redirected: dict[str, str]
    memories: _MemoryColumns | None = None
    lives: RowLifetimes | None = None


def get_nodes_and_edges_to_draw(graph: StoreHandle, request: GraphDrawingRequest) -> GraphDrawingAnswer:
    """Return nodes by `ids`, or `around` some nodes, or an `overview`, with all edges between them, in columns.

    Around a node, its neighbours are added level by level: at most `per_node` of each node, those with the strongest
    edges first, then by id. An overview starts from the nodes with most edges; a store of at most `max_nodes` nodes is
    drawn whole. As of a moment, it starts from those with most edges now.

    `lives` lists for each node and edge the commits between which its states held, and includes deleted rows: the nodes
    of `ids` that existed once, and the edges that once existed between the nodes.

    Raises NotFound for the store, Gone for a moment that is no longer in the history, Conflict without a history.
    """
    asked = _requested_ids(request)
    past = graph.resolve_as_of(request.as_of)
    with graph.lease() as store:
        with open_graph_reader(store, past, request.valid_at, links=True) as reader:
            asking = _DrawPlan(request, asked, _walk(request, reader.valid_at))
            drawing = _draw(reader, asking)
            drawing.memories = _memory_columns(
                reader, memory_half_lives_from_settings(store.description.memory), asking.fields, drawing.nodes
            )
        if request.lives:
            history = get_caught_up_history(graph.graphs.historian, store)
            known = asking.known(drawing)
            drawing.lives = history.look(
                lambda history: find_node_and_edge_lifetimes(history, known, asking.fits, reader.last_visible_commit)
            )
    return _to_drawing(asking, drawing)


def _requested_ids(request: GraphDrawingRequest) -> list[str]:
    """Return the requested ids, without duplicates. Raises InvalidInput."""
    given = [name for name in _START_FIELDS if getattr(request, name) is not None]
    if len(given) != 1:
        message = "exactly one of `ids`, `around` and `overview` is required" + (
            f"; given: {', '.join(given)}" if given else ""
        )
        raise InvalidInput(message, tuple(FieldError(name, message) for name in given))
    faults = ValidationErrorCollector()
    ids = list(dict.fromkeys(request.ids or request.around or ()))
    for place, node_id in enumerate(ids):
        validate_identifier_length(node_id, f"{given[0]}[{place}]", faults)
    faults.raise_any()
    return ids


def _walk(request: GraphDrawingRequest, moment: int | None) -> TraversalRequest:
    kinds = frozenset(request.relation_types or ()) or None
    return TraversalRequest(
        "", clamp_traversal_depth(request.depth), request.direction, kinds, None, MAX_DRAWN_NODES, moment
    )


class _DrawPlan(NamedTuple):
    """A validated request with its ids, and the edges to draw."""

    request: GraphDrawingRequest
    named: list[str]
    walk: TraversalRequest

    @property
    def fields(self) -> frozenset[NodeColumn]:
        """The requested columns."""
        return DEFAULT_NODE_COLUMNS if self.request.fields is None else frozenset(self.request.fields)

    @property
    def merged(self) -> bool:
        """True if merged nodes are drawn themselves, instead of their survivors."""
        return self.request.valid_at == VALID_AT_ANY

    @property
    def types(self) -> frozenset[str] | None:
        """Types of the nodes that may be added; None: all."""
        return frozenset(self.request.types or ()) or None

    @property
    def limits(self) -> SubgraphSampleLimits:
        """Bounds of the sample; with `ids`, no nodes are added."""
        if self.request.ids is not None:
            return SubgraphSampleLimits(0, 0, MAX_DRAWN_IDS)
        return SubgraphSampleLimits(self.walk.depth, min(max(self.request.per_node, 1), MAX_DRAWN_NODES), self.most)

    @property
    def most(self) -> int:
        """Maximum number of nodes, unless they are given by `ids`."""
        return min(max(self.request.max_nodes, 1), MAX_DRAWN_NODES)

    @property
    def first(self) -> int:
        """Number of nodes that an overview starts from."""
        return min(max(self.request.overview or 1, 1), MAX_OVERVIEW_NODES)

    def fits(self, row: NodeRow | EdgeRow) -> bool:
        """Return whether a deleted row may be drawn."""
        if isinstance(row, EdgeRow):
            return self.walk.follows(row)
        return self.walk.valid_at is None or row.is_valid_at(self.walk.valid_at)

    def known(self, drawing: _DrawnGraph) -> CurrentRowKeys:
        """Return the rows that need not be read from the history."""
        ids = [row.id for row in drawing.nodes]
        edges = {(ids[edge.source], ids[edge.target], edge.relation_type) for edge in drawing.edges}
        named = [drawing.redirected.get(each, each) for each in self.named] if self.request.ids is not None else ids
        return CurrentRowKeys(list(dict.fromkeys(named)), frozenset(ids), edges, {row.key for row in drawing.links})


def _draw(reader: GraphReader, asking: _DrawPlan) -> _DrawnGraph:
    request, limits, redirected, missing = asking.request, asking.limits, dict[str, str](), list[str]()
    if request.overview is not None:
        starts, whole = reader.best_connected(asking.first, asking.most, asking.types)
        limits = limits._replace(depth=0) if whole else limits
    else:
        into = {} if asking.merged else reader.resolve_redirects(asking.named)
        redirected = {each: end for each, end in into.items() if end != each}
        named = dict.fromkeys(redirected.get(each, each) for each in asking.named)
        numbers = {each: number for each in named if (number := reader.number(each)) >= 0}
        starts = np.fromiter(numbers.values(), np.int64)
        valid = reader.are_valid(starts)
        starts = starts[valid]
        found_ids = {each for each, is_valid in zip(numbers, valid.tolist(), strict=True) if is_valid}
        missing = [each for each in asking.named if redirected.get(each, each) not in found_ids]
    found = sample_subgraph(reader, SubgraphSampleFilter(asking.walk, asking.types), starts.tolist(), limits)
    places = {number: place for place, number in enumerate(found.nodes.tolist())}
    nodes = [row for number in places if (row := reader.numbered_node(number)) is not None]
    edges, cut = reader.edges_between(found.nodes, asking.walk)
    links = [*islice(reader.links_from([row.id for row in nodes], MAX_DRAWN_LINKS + 1), MAX_DRAWN_LINKS + 1)]
    kept = [row for row in links[:MAX_DRAWN_LINKS] if asking.walk.follows(row.edge)]
    return _DrawnGraph(
        reader.sequence,
        nodes,
        reader.degrees(found.nodes) if "degree" in asking.fields else (),
        [edge._replace(source=places[edge.source], target=places[edge.target]) for edge in edges],
        kept,
        [(places[number], count) for number, count in found.left_out],
        found.truncated or cut or len(links) > MAX_DRAWN_LINKS,
        missing,
        redirected,
    )


class _MemoryColumns(NamedTuple):
    """The current confidences of memories among the nodes, and their parents."""

    confidence: dict[str, float]
    parent: dict[str, str]


def _memory_columns(
    reader: GraphReader, half_lives: MemoryHalfLives, fields: frozenset[NodeColumn], nodes: Iterable[NodeRow]
) -> _MemoryColumns | None:
    if not {"confidence", "parent"} & fields:
        return None
    found = [row for row in nodes if row.is_memory]
    confidence = reader.confidences(found, half_lives) if "confidence" in fields else {}
    return _MemoryColumns(confidence, reader.parents([row.id for row in found]) if "parent" in fields else {})


def _to_drawing(asking: _DrawPlan, drawing: _DrawnGraph) -> GraphDrawingAnswer:
    """Return the drawing in columns. Deleted nodes come last, except with `ids`, where the order is kept."""
    nodes, degrees, edges = drawing.nodes, [*drawing.degrees], drawing.edges
    lived = drawing.lives
    if lived is not None:
        nodes, degrees, edges = _with_deleted(asking, drawing, lived)
    types, kinds = _NameTable(), _NameTable()
    fields = asking.fields
    node_columns = _node_columns(nodes, degrees, fields, drawing.memories)
    edge_columns: dict[str, Any] = _validity_columns(edges) if "valid" in fields else {}
    ids = [row.id for row in nodes]
    if lived is not None:
        node_columns |= _lifetime_columns([lived.nodes.get(each, []) for each in ids])
        keys = ((ids[edge.source], ids[edge.target], edge.relation_type) for edge in edges)
        edge_columns |= _lifetime_columns([lived.edges.get(key, []) for key in keys])
    places = {each: place for place, each in enumerate(ids)}
    moved = [[places[drawing.nodes[place].id], count] for place, count in drawing.left_out]
    return GraphDrawingAnswer(
        sequence=drawing.sequence,
        truncated=drawing.truncated or (lived is not None and lived.cut),
        nodes=DrawnNodeColumns(id=ids, type=[types.place(row.type) for row in nodes], **node_columns),
        edges=DrawnEdgeColumns(
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


class _NameTable:
    """Names stored once and referred to by position."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        """Return the position of a name."""
        return self._places.setdefault(name, len(self._places))

    @property
    def all(self) -> list[str]:
        """The names in order."""
        return [*self._places]


def _with_deleted(
    asking: _DrawPlan, drawing: _DrawnGraph, lived: RowLifetimes
) -> tuple[list[NodeRow], list[int | None], list[EdgeByNodeNumbers]]:
    existing = {row.id: row for row in drawing.nodes}
    named = (
        (drawing.redirected.get(each, each) for each in asking.named) if asking.request.ids is not None else existing
    )
    nodes = [
        row for each in dict.fromkeys(named) if (row := existing.get(each) or lived.gone_nodes.get(each)) is not None
    ]
    places = {row.id: place for place, row in enumerate(nodes)}
    counts = dict(zip(existing, drawing.degrees, strict=False))
    moved = [places[row.id] for row in drawing.nodes]
    edges = [edge._replace(source=moved[edge.source], target=moved[edge.target]) for edge in drawing.edges]
    edges += [build_edge_by_node_numbers(places[row.source], places[row.target], row) for row in lived.gone_edges]
    lived.cut = lived.cut or len(edges) > MAX_WALK_EDGES
    return nodes, [counts.get(row.id, 0) for row in nodes], edges[:MAX_WALK_EDGES]


def _node_columns(
    nodes: Sequence[NodeRow], degrees: list[int | None], fields: frozenset[NodeColumn], memories: _MemoryColumns | None
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "label" in fields:
        columns["label"] = [node_display_label(row) for row in nodes]
    if "degree" in fields:
        columns["degree"] = degrees
    if "version" in fields:
        columns["version"] = [row.version for row in nodes]
    if "tags" in fields:
        columns |= _column_unless_empty("tags", [[*row.extras.tags] if row.extras else [] for row in nodes])
    if "valid" in fields:
        columns |= _column_unless_empty("valid_from", [_time(row.extras and row.extras.valid_from) for row in nodes])
        columns |= _column_unless_empty("valid_to", [_time(row.extras and row.extras.valid_to) for row in nodes])
    if "layer" in fields:
        columns |= _column_unless_null("layer", [row.extras.layer if row.extras else None for row in nodes])
    if "confidence" in fields:
        known = read_stored_memory_confidences(nodes) if memories is None else memories.confidence
        columns |= _column_unless_null("confidence", [known.get(row.id) for row in nodes])
    if "parent" in fields and memories is not None:
        columns |= _column_unless_empty("parent", [memories.parent.get(row.id) for row in nodes])
    return columns


def _column_unless_empty(name: str, column: list[Any]) -> dict[str, list[Any]]:
    return {name: column} if any(column) else {}


def _column_unless_null(name: str, column: list[Any]) -> dict[str, list[Any]]:
    return {name: column} if any(each is not None for each in column) else {}


def _validity_columns(edges: Sequence[EdgeByNodeNumbers]) -> dict[str, list[Any]]:
    begun = _column_unless_empty("valid_from", [_time(edge.valid_from) for edge in edges])
    return begun | _column_unless_empty("valid_to", [_time(edge.valid_to) for edge in edges])


def _time(moment: int | None) -> str | None:
    return None if moment is None else format_rfc3339_timestamp(moment)


def _lifetime_columns(column: list[list[StateLifetime]]) -> dict[str, Any]:
    cut = [place for place, each in enumerate(column) if len(each) > MAX_LISTED_LIFETIMES]
    return {"lives": [[[*life] for life in each[:MAX_LISTED_LIFETIMES]] for each in column]} | _column_unless_null(
        "lives_cut", cut
    )


def _links(
    drawing: _DrawnGraph, places: dict[str, int], kinds: _NameTable, fields: frozenset[NodeColumn]
) -> DrawnCrossStoreEdgeColumns | msgspec.UnsetType:
    lived = drawing.lives
    links = [*drawing.links, *(lived.gone_links if lived else ())][:MAX_DRAWN_LINKS]
    if not links:
        return msgspec.UNSET
    columns: dict[str, Any] = {}
    if "valid" in fields:
        columns |= _validity_columns(
            [build_edge_by_node_numbers(places[row.edge.source], 0, row.edge) for row in links]
        )
    if lived is not None:
        columns |= _lifetime_columns([lived.links.get(row.key, []) for row in links])
    return DrawnCrossStoreEdgeColumns(
        source=[places[row.edge.source] for row in links],
        to_graph=[row.store for row in links],
        target=[row.edge.target for row in links],
        type=[kinds.place(row.edge.relation_type) for row in links],
        weight=[row.edge.weight for row in links],
        **columns,
    )


class _TitleAttributes(msgspec.Struct):
    """Attributes that may hold the title of a node."""

    name: Any = None
    title: Any = None
    label: Any = None


_titled = json_decoder(_TitleAttributes).decode


def node_display_label(row: NodeRow) -> str:
    """Return the label of a node in a drawing: the first of its texts that is not blank, shortened."""
    extras = row.extras
    own = () if row.attributes == EMPTY_ATTRIBUTES_JSON else msgspec.structs.astuple(_titled(row.attributes))
    texts = (extras.summary if extras else "", extras.name if extras else "", *own, row.content)
    words = (shorten_text(text, MAX_LABEL_CHARS) for text in texts if isinstance(text, str))
    return next(filter(None, words), row.id)


def count_commits_over_time(graph: StoreHandle, request: CommitTimelineQuery) -> CommitTimeline:
    """Return the number of commits over time, in spans of equal length from the oldest known commit to the last.

    Spans without commits are left out. The cost does not depend on the number of commits.

    Raises NotFound for the store, Conflict without a history.
    """
    with graph.lease() as store:
        history = get_caught_up_history(graph.graphs.historian, store)
        spans = min(max(request.buckets, 1), MAX_TIMELINE_BUCKETS)
        oldest, (times, commits) = history.look(lambda history: (history.oldest, history.commits_by_time(spans)))
        sequence, gaps = store.state.sequence, history.listed_gaps()
    steps = range(1, len(times))
    buckets: list[list[int | str]] = [
        [
            commits[n - 1] + 1,
            commits[n],
            format_rfc3339_timestamp(times[n - 1]),
            format_rfc3339_timestamp(times[n]),
            commits[n] - commits[n - 1],
        ]
        for n in steps
        if commits[n] > commits[n - 1]
    ]
    return CommitTimeline(sequence=sequence, oldest=oldest, buckets=buckets, gaps=gaps or msgspec.UNSET)


MAX_LINK_STATES_READ = 50_000
"""States of links read to determine when they held."""


class RowLifetimes(msgspec.Struct):
    """The commits between which states of rows held, newest first; one more than is shown, to detect further ones.

    ``gone_nodes``, ``gone_edges`` and ``gone_links`` are the newest rows of what was requested and has been deleted.
    """

    nodes: dict[str, list[StateLifetime]]
    edges: dict[EdgeKey, list[StateLifetime]]
    links: dict[CrossStoreLinkKey, list[StateLifetime]]
    gone_nodes: dict[str, NodeRow]
    gone_edges: list[EdgeRow]
    gone_links: list[CrossStoreLinkRow]
    cut: bool


class CurrentRowKeys(NamedTuple):
    """Keys of the rows to draw that exist now: requested ids, those that exist, edges, and links."""

    ids: Sequence[str]
    there: Collection[str]
    edges: Collection[EdgeKey]
    links: Collection[CrossStoreLinkKey]


def find_node_and_edge_lifetimes(
    history: HistoryFile, known: CurrentRowKeys, fits: Callable[[NodeRow | EdgeRow], bool], at: int
) -> RowLifetimes:
    """Return the lives of nodes and of the edges between them, up to a commit.

    Deleted rows that match are included; an edge only if both its ends are.
    """
    nodes = {
        each: found
        for each in known.ids
        if (found := _until_commit(history.node_lifetimes(each, MAX_LISTED_LIFETIMES + 1), at))
    }
    gone = {each: row for each in nodes if each not in known.there and fits(row := _newest(history, each, at))}
    kept = [each for each in nodes if each in known.there or each in gone]
    listed, cut = list_edge_state_numbers_between_nodes(history, kept)
    edges: dict[EdgeKey, list[StateLifetime]] = {}
    newest: dict[EdgeKey, tuple[int, int]] = {}
    for number, key, first, last in history.edge_lifetimes(listed):
        if first <= at:
            edges.setdefault(key, []).append((first, last if last is None or last <= at else None))
            newest[key] = max(newest.get(key, (0, 0)), (first, number))
    for found in edges.values():
        found.sort(reverse=True, key=_first)
        del found[MAX_LISTED_LIFETIMES + 1 :]
    missing = [number for key, (_, number) in newest.items() if key not in known.edges]
    rows = [state.row for state in history.edges_by_number(missing) if fits(state.row)]
    links, gone_links, cut_links = _link_lifetimes(history, kept, known.links, fits, at)
    lived = {each: nodes[each] for each in kept}
    return RowLifetimes(lived, edges, links, gone, rows, gone_links, cut or cut_links)


def _link_lifetimes(
    history: HistoryFile,
    ids: Iterable[str],
    known: Collection[CrossStoreLinkKey],
    fits: Callable[[EdgeRow], bool],
    at: int,
) -> tuple[dict[CrossStoreLinkKey, list[StateLifetime]], list[CrossStoreLinkRow], bool]:
    """Return the lives of the links of some nodes, the newest rows of deleted ones, and whether more exist."""
    left = MAX_LINK_STATES_READ if history.has_links() else 0
    lives: dict[CrossStoreLinkKey, list[StateLifetime]] = {}
    gone: dict[CrossStoreLinkKey, CrossStoreLinkRow] = {}
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
    return {key: found[: MAX_LISTED_LIFETIMES + 1] for key, found in lives.items()}, rows, cut


def _first(life: StateLifetime) -> int:
    return life[0]


def _newest(history: HistoryFile, node_id: str, at: int) -> NodeRow:
    return history.node_states(node_id, min(at + 1, NO_SEQUENCE_LIMIT), 1)[0].row


def _until_commit(found: list[StateLifetime], at: int) -> list[StateLifetime]:
    return [(first, last if last is None or last <= at else None) for first, last in found if first <= at]
