"""Breadth-first traversal of relations, independent of where the edges are stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal

import msgspec

from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow

MAX_WALK_EDGES = 100_000

ExistenceLookup = Callable[[set[str]], set[str]]
"""Function that returns which of some nodes exist."""
AdjacentEdgesLookup = Callable[[Collection[str]], Iterable[EdgeRow]]
"""Function that returns the edges to follow from some nodes, in the requested directions."""


class TraversalRequest(msgspec.Struct, frozen=True):
    """Traversal request: ``depth`` in hops from 0 to 10, and the edges to follow.

    With ``valid_at``, in microseconds, only nodes and edges valid at that time are visited.
    """

    start: str
    depth: int
    direction: TraversalDirection
    relation_types: frozenset[str] | None
    min_weight: float | None
    max_nodes: int
    valid_at: int | None = None

    @property
    def filtered(self) -> bool:
        """True if some edges are not followed."""
        return self.relation_types is not None or self.min_weight is not None or self.valid_at is not None

    def follows(self, edge: EdgeRow) -> bool:
        """Return True if an edge is followed."""
        fits = self.relation_types is None or edge.relation_type in self.relation_types
        held = self.valid_at is None or edge.is_valid_at(self.valid_at)
        return fits and held and (self.min_weight is None or edge.weight >= self.min_weight)


class TraversalResult(msgspec.Struct, frozen=True):
    """Result of a traversal: nodes with their depth, nearest first, and the edges between them."""

    nodes: list[tuple[NodeRow, int]]
    edges: list[EdgeRow]
    truncated: bool


class TraversalDepthsAndEdges(msgspec.Struct, frozen=True):
    """Result of a traversal by ids: depths, nearest first, and the edges between the nodes."""

    depths: dict[str, int]
    edges: list[EdgeRow]
    truncated: bool


def traverse_breadth_first(
    request: TraversalRequest, start: str, edges_of: AdjacentEdgesLookup, standing: ExistenceLookup | None = None
) -> TraversalDepthsAndEdges:
    """Traverse breadth-first from an existing node; nodes of one level are ordered by id.

    standing: returns which nodes exist, if edges may lead to missing ones.
    """
    depths = {start: 0}
    edges: dict[EdgeKey, EdgeRow] = {}
    frontier = [start]
    truncated = False
    for depth in range(1, request.depth + 1):
        beyond: set[str] = set()
        for edge in edges_of(frontier):
            edges[edge.key] = edge
            beyond.update(end for end in (edge.source, edge.target) if end not in depths)
        if standing is not None:
            beyond = standing(beyond)
        room = request.max_nodes - len(depths)
        truncated = truncated or len(beyond) > room or len(edges) > MAX_WALK_EDGES
        frontier = sorted(beyond)[: max(room, 0)]
        depths.update(dict.fromkeys(frontier, depth))
        if not frontier or truncated:
            break
    edges |= {edge.key: edge for edge in edges_of(frontier)}
    inside = [edge for edge in edges.values() if edge.source in depths and edge.target in depths]
    return TraversalDepthsAndEdges(depths, inside[:MAX_WALK_EDGES], truncated or len(inside) > MAX_WALK_EDGES)


def clamp_traversal_depth(depth: int) -> int:
    """Limit the depth of a traversal to 0..10."""
    return max(0, min(depth, MAX_WALK_DEPTH))


MAX_WALK_DEPTH = 10
TraversalDirection = Literal["outgoing", "incoming", "both"]
