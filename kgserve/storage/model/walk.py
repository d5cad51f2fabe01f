"""A walk over relations, level by level, whoever knows the edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal

import msgspec

from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow

MAX_WALK_EDGES = 100_000

Standing = Callable[[set[str]], set[str]]
"""Those of some nodes that are there."""
EdgesOf = Callable[[Collection[str]], Iterable[EdgeRow]]
"""The edges to follow from some nodes, in the directions that are wanted."""


class Walk(msgspec.Struct, frozen=True):
    """What to walk: ``depth`` in hops from 0 to 10, and which edges to follow.

    With ``valid_at``, in microseconds, only what was true in the world then is there.
    """

    start: str
    depth: int
    direction: Direction
    relation_types: frozenset[str] | None
    min_weight: float | None
    max_nodes: int
    valid_at: int | None = None

    @property
    def filtered(self) -> bool:
        """Whether not every edge is followed."""
        return self.relation_types is not None or self.min_weight is not None or self.valid_at is not None

    def follows(self, edge: EdgeRow) -> bool:
        """Whether an edge is one to follow."""
        fits = self.relation_types is None or edge.relation_type in self.relation_types
        held = self.valid_at is None or edge.holds_at(self.valid_at)
        return fits and held and (self.min_weight is None or edge.weight >= self.min_weight)


class WalkResult(msgspec.Struct, frozen=True):
    """What a walk found: nodes with their depth, nearest first, and the edges between them."""

    nodes: list[tuple[NodeRow, int]]
    edges: list[EdgeRow]
    truncated: bool


class Levels(msgspec.Struct, frozen=True):
    """What a walk found, by id: nodes with their depth, nearest first, and the edges between them."""

    depths: dict[str, int]
    edges: list[EdgeRow]
    truncated: bool


def by_levels(request: Walk, start: str, edges_of: EdgesOf, standing: Standing | None = None) -> Levels:
    """Walk from a node that is there; within a level nodes come in the order of their ids.

    ``standing`` says which nodes are there, if not all are that edges lead to.
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
    return Levels(depths, inside[:MAX_WALK_EDGES], truncated or len(inside) > MAX_WALK_EDGES)


def clamp(depth: int) -> int:
    """A depth as it is taken: negative is 0, above 10 is 10."""
    return max(0, min(depth, MAX_WALK_DEPTH))


MAX_WALK_DEPTH = 10
Direction = Literal["outgoing", "incoming", "both"]
