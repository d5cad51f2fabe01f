"""Breadth-first traversal over edges in a dict."""

from __future__ import annotations

from collections.abc import Collection

from kgserve.storage.model.breadth_first_traversal import (
    TraversalDepthsAndEdges,
    TraversalRequest,
    traverse_breadth_first,
)
from kgserve.storage.model.node_edge_rows import EdgeRow

TREE = {"a": "bc", "b": "de", "c": "fg", "d": "a"}
"""Two levels below a, and one cycle."""


def edges_of(ids: Collection[str]) -> list[EdgeRow]:
    return [EdgeRow(one, other, "r", 1.0, "{}", 1, 1) for one in ids for other in TREE.get(one, "")]


def walked(depth: int, most: int) -> TraversalDepthsAndEdges:
    return traverse_breadth_first(TraversalRequest("a", depth, "outgoing", None, None, most), "a", edges_of)


def ends(found: TraversalDepthsAndEdges) -> set[str]:
    return {edge.source + edge.target for edge in found.edges}


def test_traversal_returns_levels_in_order_with_edges() -> None:
    found = walked(2, 7)
    assert found.depths == {"a": 0, "b": 1, "c": 1, "d": 2, "e": 2, "f": 2, "g": 2}
    assert ends(found) == {"ab", "ac", "bd", "be", "cf", "cg", "da"}
    assert not found.truncated


def test_max_nodes_keeps_the_first_nodes_of_a_level() -> None:
    found = walked(2, 5)
    assert list(found.depths) == ["a", "b", "c", "d", "e"]
    assert ends(found) == {"ab", "ac", "bd", "be", "da"}
    assert found.truncated


def test_exactly_full_level_is_not_truncated() -> None:
    assert not walked(1, 3).truncated
    assert walked(1, 2).truncated
    assert list(walked(3, 3).depths) == ["a", "b", "c"]
