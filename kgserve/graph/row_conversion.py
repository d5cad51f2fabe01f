"""Conversion of rows to answer Structs, and the state of a version: current, in conflict or superseded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from kgserve.graph.answers import Edge, Node, ReachedNode
from kgserve.platform.codecs import json_decoder
from kgserve.projections.history.history import HistoryFile, RowState
from kgserve.storage.model.batch import conflicting_versions
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.storage.rows.encoding import encode_cross_store_link, encode_edge, encode_node, with_staleness

_node = json_decoder(Node).decode
_reached = json_decoder(ReachedNode).decode
_edge = json_decoder(Edge).decode


def to_node(row: NodeRow) -> Node:
    """Return a node."""
    return _node(_encode_node_open(row) + b"}")


def to_reached_node(row: NodeRow, depth: int) -> ReachedNode:
    """Return a node of a traversal."""
    return _reached(b'%b,"depth":%d}' % (_encode_node_open(row), depth))


def to_edge(row: EdgeRow) -> Edge:
    """Return an edge."""
    return _edge(encode_edge(row))


def to_link_edge(row: LinkRow) -> Edge:
    """Return an edge into another store."""
    return _edge(encode_cross_store_link(row))


def _encode_node_open(row: NodeRow) -> bytes:
    data = encode_node(row)
    if row.extras is None or row.extras.freshness_at is None:
        return data
    return with_staleness(data, time.time_ns() // 1000)


def shorten_text(text: str, most: int) -> str:
    """Return the beginning of a text in one line, shortened to ``most`` characters."""
    # Four times the limit, because whitespace is collapsed.
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


N = TypeVar("N", bound=Node)


class VersionState(NamedTuple):
    """State of a version: the version that superseded it, if any, and whether it is a head.

    ``is_current`` is None for the current version.
    """

    superseded_by: int | None
    is_current: bool | None

    def apply_to(self, node: N) -> N:
        """Set the fields of a node that show this state, and return it."""
        if self.is_current is not None:
            node.is_current = self.is_current
        if self.superseded_by is not None:
            node.superseded_by = self.superseded_by
        return node


CURRENT_VERSION = VersionState(None, None)
FORMER_VERSION = VersionState(None, is_current=False)


def find_version_state(
    history: HistoryFile, state: RowState[NodeRow], known: Iterable[RowState[NodeRow]] = ()
) -> VersionState:
    """Return the state of a version; it was superseded by the first later version that does not name it as a conflict.

    States in ``known`` are not looked up.
    """
    if state.last is None:
        return CURRENT_VERSION
    by_first = {each.first: each for each in known}
    version, node_id = state.row.version, state.row.id
    while state.last is not None:
        later = by_first.get(state.last) or history.next_state(node_id, state.first)
        # The states that followed a head may have been pruned, or fall into a gap of the history.
        if later is None or (later.first != state.last and state.last >= history.oldest):
            return FORMER_VERSION
        if version not in conflicting_versions(later.row):
            return VersionState(later.row.version, is_current=False)
        state = later
    return VersionState(None, is_current=True)


def find_version_states(history: HistoryFile, states: Sequence[RowState[NodeRow]]) -> list[VersionState]:
    """Return the states of several versions of one node."""
    return [find_version_state(history, state, states) for state in states]


def find_former_state(history: HistoryFile, row: NodeRow, current: NodeRow | None) -> VersionState | None:
    """Return the state of a version that is not current: superseded, or one of the ``current`` heads.

    Return None while the history has not indexed the commit that ended it.
    """
    if current is not None and row.version in conflicting_versions(current):
        return VersionState(None, is_current=True)
    state = history.node_version(row.id, row.version)
    if state is None or state.last is None:
        return None
    return find_version_state(history, state)._replace(is_current=False)
