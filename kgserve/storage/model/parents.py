"""The relation from a memory to its parent, and which of several counts."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.storage.model.rows import EdgeRow, edge_created_at

CHILD_OF = "child_of"
"""The relation from a memory to the one that it stands below."""
MAX_HIERARCHY_DEPTH = 100
"""So many levels above a memory are looked at, and kept."""


def is_upward(edge: EdgeRow) -> bool:
    """Whether a relation may say what a memory stands below. One that is to end counts as ended."""
    return edge.relation_type == CHILD_OF and (edge.extras is None or edge.extras.valid_to is None)


def newest(edges: Iterable[EdgeRow]) -> EdgeRow | None:
    """Of the relations of one child that count, the one that does: that which was made last.

    By the time of its making, not by its commit: those of an import are of one.
    """
    return max(edges, key=lambda edge: (edge_created_at(edge), edge.target), default=None)
