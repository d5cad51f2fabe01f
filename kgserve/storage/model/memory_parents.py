"""Parent relation of memories, and which of several is in effect."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.storage.model.node_edge_rows import EdgeRow, edge_created_at

CHILD_OF_RELATION = "child_of"
"""Relation from a memory to its parent."""
MAX_HIERARCHY_DEPTH = 100
"""Largest number of ancestors of a memory."""


def is_effective_memory_parent_edge(edge: EdgeRow) -> bool:
    """Return True if an edge is a parent relation in effect. One with an end date does not count."""
    return edge.relation_type == CHILD_OF_RELATION and (edge.extras is None or edge.extras.valid_to is None)


def find_newest_memory_parent_edge(edges: Iterable[EdgeRow]) -> EdgeRow | None:
    """Return the newest of a child's parent relations, which is the one in effect; None if none exists.

    The creation time decides, not the commit: edges of one import share a commit.
    """
    return max(edges, key=lambda edge: (edge_created_at(edge), edge.target), default=None)
