"""Rows as callers see them: what their JSON says, as Structs; and whether a version counts yet, or which one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kgserve.graph.answers import Edge, Node, ReachedNode
from kgserve.graph.temporal import Past
from kgserve.platform.codecs import json_decoder
from kgserve.projections.history.history import History, RowState
from kgserve.storage.model.batch import conflicts
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.storage.rows.encoding import encode_edge, encode_link, encode_node, with_staleness
from kgserve.stores.store import OpenStore

_node = json_decoder(Node).decode
_reached = json_decoder(ReachedNode).decode
_edge = json_decoder(Edge).decode


def node(row: NodeRow) -> Node:
    """A node."""
    return _node(_open_node(row) + b"}")


def reached(row: NodeRow, depth: int) -> ReachedNode:
    """A node of a traversal."""
    return _reached(b'%b,"depth":%d}' % (_open_node(row), depth))


def edge(row: EdgeRow) -> Edge:
    """An edge."""
    return _edge(encode_edge(row))


def link(row: LinkRow) -> Edge:
    """An edge into another store."""
    return _edge(encode_link(row))


def _open_node(row: NodeRow) -> bytes:
    data = encode_node(row)
    if row.extras is None or row.extras.freshness_at is None:
        return data
    return with_staleness(data, time.time_ns() // 1000)


def in_few_words(text: str, most: int) -> str:
    """The beginning of a text, of so many characters at most, in one line."""
    # Four times, for the blanks that go.
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


N = TypeVar("N", bound=Node)


class VersionState(NamedTuple):
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


_PRESENT = VersionState(None, None)
FRESH_SECONDS = 0.25
"""How long a commit that has just superseded something is waited for."""


def standing_of(history: History, state: RowState[NodeRow], known: Iterable[RowState[NodeRow]] = ()) -> VersionState:
    """Of a state: superseded by the first later version that does not name it among the heads beside it.

    States that are ``known`` are not looked up.
    """
    if state.last is None:
        return _PRESENT
    by_first = {each.first: each for each in known}
    version, node_id = state.row.version, state.row.id
    while state.last is not None:
        later = by_first.get(state.last) or history.next_state(node_id, state.first)
        # Of a head that stays, what came after it may have been forgotten, or be in a gap.
        if later is None or (later.first != state.last and state.last >= history.oldest):
            return VersionState(None, is_current=False)
        if version not in conflicts(later.row):
            return VersionState(later.row.version, is_current=False)
        state = later
    return VersionState(None, is_current=True)


def standings(history: History, states: Sequence[RowState[NodeRow]]) -> list[VersionState]:
    """Of several states of one node."""
    return [standing_of(history, state, states) for state in states]


def shown_then(store: OpenStore, past: Past, found: Sequence[NodeRow], shown: Callable[[NodeRow], N] = node) -> list[N]:
    """Nodes as they were, each with whether it counts yet, in the form that ``shown`` makes. Raises as `Past.of`.

    The present tells whether, the history since when not: it is waited for briefly, and what it has not seen is absent.
    """
    follower, _ = past.of(store)
    with store.reading() as rows:
        present, last = rows.nodes([row.id for row in found]), rows.at
    former = [row for row in found if row.id not in present or present[row.id].version != row.version]
    if former:
        follower.wait(last, FRESH_SECONDS)

    def standing(history: History, row: NodeRow) -> VersionState:
        if row.id in present and row.version in conflicts(present[row.id]):
            return VersionState(None, is_current=True)
        state = history.node_version(row.id, row.version)
        by = None if state is None else standing_of(history, state).superseded_by
        return VersionState(by, is_current=False)

    stands = follower.look(lambda history: {(row.id, row.version): standing(history, row) for row in former})
    return [stands.get((row.id, row.version), _PRESENT).shown_on(shown(row)) for row in found]
