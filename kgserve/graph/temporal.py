"""When a reader looks: as of a commit, and at what was true in the world; and how a store is read as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from kgserve.errors import Conflict, InvalidInput, Unavailable
from kgserve.platform.times import parse_time
from kgserve.projections.history.history import History
from kgserve.projections.history_follower import Historian, HistoryFollower
from kgserve.projections.read_your_writes import reached
from kgserve.storage.model.filters import Listed, NodeFilter, PagePosition, page_of
from kgserve.storage.model.redirects import MAX_CHAIN, MERGED_INTO, is_withdrawn, survivor_of
from kgserve.storage.model.rows import EDGE_FIELDS, NODE_FIELDS, EdgeRow, LinkRow, NodeRow, RowTuple, holds
from kgserve.storage.model.walk import Standing, Walk, WalkResult, by_levels
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import survivor
from kgserve.stores.store import OpenStore

WAIT_SECONDS = 10.0
MAX_DIGITS = 18


class Past(msgspec.Struct, frozen=True):
    """When a reader wants to look, and who remembers. ``as_of`` is a sequence or an RFC 3339 time."""

    historian: Historian | None
    as_of: int | str

    def of(self, store: OpenStore) -> tuple[HistoryFollower, int]:
        """The history of a store, and the commit that is meant: the one named, or the last one up to the time.

        A moment that is yet to come is now. Raises InvalidInput, Gone for what is no longer known, Unavailable while
        the history is behind, Conflict when none is kept.
        """
        follower = _history_of(self.historian, store)
        present = store.state.sequence
        at = min(self._sequence(follower, present), present)
        follower.look(lambda history: history.require_known(at))
        return follower, at

    def moment(self, store: OpenStore) -> int:
        """The time that is meant, in microseconds: that of the commit, if it is named. Raises as `of`."""
        follower, at = self.of(store)
        if self.is_sequence:
            return follower.look(lambda history: history.time_of(at))
        return min(parse_time(self._text), time.time_ns() // 1000)

    @property
    def is_sequence(self) -> bool:
        """Whether it is a commit of one store, not a time."""
        return self._text.isascii() and self._text.isdecimal() and len(self._text) <= MAX_DIGITS

    @property
    def _text(self) -> str:
        return str(self.as_of)

    def _sequence(self, follower: HistoryFollower, present: int) -> int:
        if self.is_sequence:
            _catch_up(follower, min(int(self.as_of), present))
            return int(self.as_of)
        try:
            moment = parse_time(self._text)
        except ValueError as error:
            raise InvalidInput.at("as_of", f"is neither a sequence nor a time: {error}") from None
        _catch_up(follower, present)
        return follower.look(lambda history: _sequence_at(history, moment))


def _sequence_at(history: History, moment: int) -> int:
    found = history.sequence_at(moment, _now())
    if found < history.sequence and history.time_of(found) != moment:
        history.require_known_after(found)
    return found


def whole_history(historian: Historian | None, store: OpenStore) -> HistoryFollower:
    """The history of an open store, once it has seen the last commit of now.

    Raises Conflict when none is kept, Unavailable when it does not come so far within ten seconds.
    """
    follower = _history_of(historian, store)
    _catch_up(follower, store.state.sequence)
    return follower


def _history_of(historian: Historian | None, store: OpenStore) -> HistoryFollower:
    if historian is None:
        raise Conflict("histories are turned off on this server; only the present can be read")
    return historian.of(store)


def _catch_up(follower: HistoryFollower, sequence: int) -> None:
    if not reached([follower], sequence, WAIT_SECONDS, ("history", follower.store.name)):
        seen = max(follower.sequence, 0)
        raise Unavailable(f"the history has not seen sequence {sequence} yet, only {seen}", retry_after=2)


RowsOf = Callable[[Collection[str]], Iterable[NodeRow]]
"""The nodes of some ids, of those that are there."""


MAX_SHOWN = 1000
"""Edges that are shown with a node, in each direction."""
ANY = "any"
NOW = "now"


def world_moment(text: str | None, store: OpenStore, past: Past | None = None) -> int | None:
    """The moment that finding goes by: the one asked for; left out, the present, or that of ``past``. None: any.

    Raises InvalidInput for what is no RFC 3339 time, and what `Past.of` raises.
    """
    if text is not None:
        return valid_moment(text)
    if past is not None:
        return past.moment(store)
    return _now() if store.rows.dated else None


def valid_moment(text: str | None) -> int | None:
    """A moment in microseconds, if one is asked for; None: any. Raises InvalidInput for what is no RFC 3339 time."""
    if text is None or text == ANY:
        return None
    if text == NOW:
        return _now()
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        message = "is neither an RFC 3339 time such as 2025-07-15T12:00:00Z nor now or any"
        raise InvalidInput.at("valid_at", message) from None


def when_asked(past: Past | None, valid_at: str | None) -> str:
    """The moment that was asked for, to be put behind what was not there; empty for the present."""
    as_of = f" as of {past.as_of}" if past else ""
    return as_of + (f", true at {valid_at}" if valid_at and valid_at != ANY else "")


def _now() -> int:
    return time.time_ns() // 1000


class NodeView(msgspec.Struct, frozen=True):
    """A node with up to 1,000 edges in each direction, and links; ``truncated`` when there are more."""

    node: NodeRow
    outgoing: list[EdgeRow]
    incoming: list[EdgeRow]
    truncated: bool
    links: list[LinkRow] = []


def held_view(
    node: NodeRow | None, outgoing: list[EdgeRow], incoming: list[EdgeRow], rows_of: RowsOf, moment: int
) -> NodeView | None:
    """A node with all its edges that held, between nodes that held; None when it did not."""
    if node is None or not node.holds_at(moment):
        return None
    edges = [edge for edge in (*outgoing, *incoming) if edge.holds_at(moment)]
    ends = standing({end for edge in edges for end in (edge.source, edge.target)}, rows_of, moment)
    kept = [edge for edge in edges if edge.source in ends and edge.target in ends]
    out = [edge for edge in kept if edge.source == node.id]
    into = [edge for edge in kept if edge.target == node.id]
    if any(edge.source == edge.target for edge in kept):
        # A loop is among both lists already.
        out, into = list(dict.fromkeys(out)), list(dict.fromkeys(into))
    return NodeView(node, out, into, truncated=False)


def standing(ids: Collection[str], rows_of: RowsOf, moment: int) -> set[str]:
    """The nodes that held at a moment."""
    return {row.id for row in rows_of(ids) if row.holds_at(moment)}


class HeldRows:
    """Of all rows of a store, nodes first, those that held at a moment; an edge between two nodes that did."""

    def __init__(self, moment: int) -> None:
        self._moment = moment
        self._gone: set[str] = set()

    def nodes(self, rows: Iterable[RowTuple]) -> Iterator[RowTuple]:
        """The nodes among some rows that held."""
        for row in rows:
            if len(row) == NODE_FIELDS or holds(row[NODE_FIELDS], self._moment):
                yield row
            else:
                self._gone.add(row[0])

    def link(self, row: LinkRow) -> bool:
        """Whether a link held."""
        return row.edge.source not in self._gone and row.edge.holds_at(self._moment)

    def edges(self, rows: Iterable[RowTuple]) -> Iterator[RowTuple]:
        """The edges among some rows that held."""
        for row in rows:
            stands = row[0] not in self._gone and row[1] not in self._gone
            if stands and (len(row) == EDGE_FIELDS or holds(row[EDGE_FIELDS], self._moment)):
                yield row


EVERY_EDGE = 1 << 62
FEWEST_AT_ONCE, MOST_AT_ONCE = 64, 1001


def view_as_of(store: OpenStore, past: Past, node_id: str, valid_at: int | None, *, whole: bool) -> NodeView | None:
    """A node and its edges; None when it was not there, or not true then.

    With ``whole`` or ``valid_at`` it has all its edges, otherwise at most 1,000 in each direction.
    """
    follower, at = past.of(store)
    most = EVERY_EDGE if whole or valid_at is not None else MAX_SHOWN
    return follower.look(lambda history: _view(history, node_id, at, valid_at, most))


def page_as_of(store: OpenStore, past: Past, wanted: NodeFilter, place: PagePosition, limit: int) -> Listed[NodeRow]:
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


def walk_as_of(store: OpenStore, past: Past, wanted: Walk) -> tuple[WalkResult, int]:
    """A walk as it would have gone, and the commit that it saw."""
    follower, at = past.of(store)
    return follower.look(lambda history: _walk(history, wanted, at)), at


def _view(history: History, node_id: str, at: int, valid_at: int | None, most: int) -> NodeView | None:
    node = next(rows_at(history, (node_id,), at), None)
    if node is None:
        return None
    out = [each.row for each in history.outgoing(node_id, at, most + 1)]
    into = [each.row for each in history.incoming(node_id, at, most + 1)]
    links = [each.row for each in history.links_from(node_id, at, most + 1)]
    if valid_at is None:
        return NodeView(node, out[:most], into[:most], max(len(out) + len(links), len(into)) > most, links)
    held = held_view(node, out, into, lambda ids: rows_at(history, ids, at), valid_at)
    return held and msgspec.structs.replace(held, links=[row for row in links if row.edge.holds_at(valid_at)])


def rows_at(history: History, ids: Iterable[str], at: int) -> Iterator[NodeRow]:
    """The nodes of some ids as they were, of those that were there."""
    return (state.row for node_id in ids if (state := history.node_at(node_id, at)) is not None)


def _walk(history: History, wanted: Walk, at: int) -> WalkResult:
    start = history.node_at(wanted.start, at)
    if start is None or not (wanted.valid_at is None or start.row.holds_at(wanted.valid_at)):
        return WalkResult([], [], truncated=False)

    def followed(ids: Collection[str]) -> Iterator[EdgeRow]:
        return filter(wanted.follows, _edges(history, wanted, ids, at))

    found = by_levels(wanted, wanted.start, followed, _standing(history, wanted, at))
    states = ((history.node_at(node_id, at), depth) for node_id, depth in found.depths.items())
    return WalkResult(
        [(state.row, depth) for state, depth in states if state is not None], found.edges, found.truncated
    )


def _standing(history: History, wanted: Walk, at: int) -> Standing | None:
    moment = wanted.valid_at
    return None if moment is None else lambda ids: standing(ids, lambda some: rows_at(history, some, at), moment)


def _edges(history: History, wanted: Walk, ids: Collection[str], at: int) -> Iterable[EdgeRow]:
    for node_id in ids:
        if wanted.direction != "incoming":
            yield from (state.row for state in history.outgoing(node_id, at, EVERY_EDGE))
        if wanted.direction != "outgoing":
            yield from (state.row for state in history.incoming(node_id, at, EVERY_EDGE))


MOST_ENDS = 100


def found_as(rows: Rows, node_id: str, valid_at: str | None) -> str:
    """The node that is meant by an id: the one that it was merged into, but itself where everything is asked for."""
    return node_id if valid_at == ANY else survivor(rows, node_id)


def found_then(store: OpenStore, past: Past, node_id: str, valid_at: str | None) -> str:
    """The same, as of a moment. Raises as `Past.of`."""
    if valid_at == ANY:
        return node_id
    follower, at = past.of(store)
    return follower.look(lambda history: survivor_at(history, node_id, at))


def survivor_at(history: History, node_id: str, at: int) -> str:
    """The node itself, or the one that it had come to by merges as of a commit."""
    steps: dict[str, str] = {}
    end: str | None = node_id
    while end is not None and end not in steps and len(steps) <= MAX_CHAIN:
        into = merged_at(history, end, at)
        if into is not None:
            steps[end] = into
        end = into
    return survivor_of(steps, node_id)


def merged_at(history: History, node_id: str, at: int) -> str | None:
    """What a node had been merged into as of a commit, if into any."""
    state = history.node_at(node_id, at)
    if state is None or not is_withdrawn(state.row.extras):
        return None
    edges = (each.row for each in history.outgoing(node_id, at, MOST_ENDS))
    return max(((row.sequence, row.target) for row in edges if row.relation_type == MERGED_INTO), default=(0, None))[1]


def note(asked: str, found: str) -> bytes:
    """What an answer in JSON says of it behind its last field."""
    return b"" if asked == found else b',"redirected_from":' + msgspec.json.encode(asked)


def noted(asked: str, found: str) -> str | msgspec.UnsetType:
    """The same for an answer that is a Struct."""
    return msgspec.UNSET if asked == found else asked
