"""Reading what was true in the world at a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.model.rows import EDGE_FIELDS, NODE_FIELDS, EdgeRow, NodeRow, RowTuple, holds
from kgserve.model.times import parse_time
from kgserve.ops.moments import Past
from kgserve.store.store import Store

RowsOf = Callable[[Collection[str]], Iterable[NodeRow]]
"""The nodes of some ids, of those that are there."""


MAX_SHOWN = 1000
"""Edges that are shown with a node, in each direction."""
ANY = "any"
NOW = "now"


def world_moment(text: str | None, store: Store, past: Past | None = None) -> int | None:
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
        raise InvalidInput(f"valid_at: {message}", (FieldError("valid_at", message),)) from None


def when_asked(past: Past | None, valid_at: str | None) -> str:
    """The moment that was asked for, to be put behind what was not there; empty for the present."""
    as_of = f" as of {past.as_of}" if past else ""
    return as_of + (f", true at {valid_at}" if valid_at and valid_at != ANY else "")


def _now() -> int:
    return time.time_ns() // 1000


class NodeView(msgspec.Struct, frozen=True):
    """A node with up to 1,000 edges in each direction; ``truncated`` when there are more."""

    node: NodeRow
    outgoing: list[EdgeRow]
    incoming: list[EdgeRow]
    truncated: bool


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


class Held:
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

    def edges(self, rows: Iterable[RowTuple]) -> Iterator[RowTuple]:
        """The edges among some rows that held."""
        for row in rows:
            stands = row[0] not in self._gone and row[1] not in self._gone
            if stands and (len(row) == EDGE_FIELDS or holds(row[EDGE_FIELDS], self._moment)):
                yield row
