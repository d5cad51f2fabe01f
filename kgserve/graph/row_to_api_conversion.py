"""Conversion of rows to answer Structs, and the state of a version: current, in conflict or superseded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from kgserve.graph.answers import Edge, Node, ReachedNode
from kgserve.platform.codecs import json_decoder
from kgserve.projections.history.row_state_history import HistoryFile, RowStateInterval
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow, EdgeRow, NodeRow
from kgserve.storage.model.write_batch import get_conflicting_node_head_versions
from kgserve.storage.rows.row_json_encoder import (
    encode_cross_store_link,
    encode_edge_as_json,
    encode_node_as_unclosed_json,
    set_stale_flag_in_node_json,
)

_node = json_decoder(Node).decode
_reached = json_decoder(ReachedNode).decode
_edge = json_decoder(Edge).decode


def build_api_node_from_row(row: NodeRow) -> Node:
    """Convert the stored row of a node to a node of an API answer."""
    return _node(_encode_node_open(row) + b"}")


def build_api_traversal_node_from_row(row: NodeRow, depth: int) -> ReachedNode:
    """Convert the stored row of a node reached by a traversal to a node of an API answer, with its depth."""
    return _reached(b'%b,"depth":%d}' % (_encode_node_open(row), depth))


def build_api_edge_from_row(row: EdgeRow) -> Edge:
    """Convert the stored row of an edge to an edge of an API answer."""
    return _edge(encode_edge_as_json(row))


def build_api_edge_from_cross_store_link(row: CrossStoreLinkRow) -> Edge:
    """Convert the stored row of an edge into another store to an edge of an API answer."""
    return _edge(encode_cross_store_link(row))


def _encode_node_open(row: NodeRow) -> bytes:
    data = encode_node_as_unclosed_json(row)
    if row.extras is None or row.extras.freshness_at is None:
        return data
    return set_stale_flag_in_node_json(data, time.time_ns() // 1000)


def shorten_text(text: str, most: int) -> str:
    """Return the beginning of a text in one line, shortened to ``most`` characters."""
    # Four times the limit, because whitespace is collapsed.
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


N = TypeVar("N", bound=Node)


class NodeVersionStatus(NamedTuple):
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


CURRENT_VERSION = NodeVersionStatus(None, None)
FORMER_VERSION = NodeVersionStatus(None, is_current=False)


def find_node_version_status(
    history: HistoryFile, state: RowStateInterval[NodeRow], known: Iterable[RowStateInterval[NodeRow]] = ()
) -> NodeVersionStatus:
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
        if version not in get_conflicting_node_head_versions(later.row):
            return NodeVersionStatus(later.row.version, is_current=False)
        state = later
    return NodeVersionStatus(None, is_current=True)


def find_node_version_statuses(
    history: HistoryFile, states: Sequence[RowStateInterval[NodeRow]]
) -> list[NodeVersionStatus]:
    """Return the states of several versions of one node."""
    return [find_node_version_status(history, state, states) for state in states]


def find_former_node_version_status(
    history: HistoryFile, row: NodeRow, current: NodeRow | None
) -> NodeVersionStatus | None:
    """Return the state of a version that is not current: superseded, or one of the ``current`` heads.

    Return None while the history has not indexed the commit that ended it.
    """
    if current is not None and row.version in get_conflicting_node_head_versions(current):
        return NodeVersionStatus(None, is_current=True)
    state = history.node_version(row.id, row.version)
    if state is None or state.last is None:
        return None
    return find_node_version_status(history, state)._replace(is_current=False)
