"""Rows as callers see them: what their JSON says, as Structs."""

from __future__ import annotations

import time

from kgserve.decoding import json_decoder
from kgserve.model.answers import Edge, Node, ReachedNode
from kgserve.model.rows import EdgeRow, LinkRow, NodeRow
from kgserve.rows.encoding import encode_edge, encode_link, encode_node, with_staleness

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
