"""Redirects from merged nodes to the nodes that replace them."""

from __future__ import annotations

from collections.abc import Mapping

from kgserve.storage.model.node_edge_fields import NodeExtras
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, EdgeKey

MERGED_INTO_RELATION = "MERGED_INTO"
"""Relation from a merged node to its survivor. Reserved: between other nodes it has no effect."""
MAX_REDIRECTS = 100
"""Longest chain of redirects from a merged node to its survivor."""


def is_node_never_valid(extras: NodeExtras | None) -> bool:
    """Return True if a node is never valid, as a merged node is."""
    return extras is not None and extras.valid_from is not None and extras.valid_from == extras.valid_to


def follow_merge_redirect_chain(steps: Mapping[str, str], node_id: str) -> str:
    """Return the node at the end of the redirects from a node; the node itself if they form a cycle."""
    at = node_id
    for _ in range(len(steps) + 1):
        if at not in steps:
            return at
        at = steps[at]
    return node_id


def move_edge_key_to_survivor(key: EdgeKey, absorbed: str, survivor: str) -> EdgeKey:
    """Return the key of an edge after a merge moved its endpoints from ``absorbed`` to ``survivor``."""
    source, target, relation_type = key
    return (
        survivor if source == absorbed else source,
        survivor if target == absorbed else target,
        relation_type,
    )


def move_link_key_to_survivor(key: CrossStoreLinkKey, absorbed: str, survivor: str) -> CrossStoreLinkKey:
    """Return the key of a cross-store link after a merge moved its source from ``absorbed`` to ``survivor``."""
    source, target, relation_type = key.edge
    return CrossStoreLinkKey(key.store, (survivor if source == absorbed else source, target, relation_type))


def format_merged_node_write_error(node_id: str, survivor: str) -> str:
    """Return the error message for a write to a merged node."""
    return f"node {node_id!r} was merged into {survivor!r}: write to {survivor!r}, or unmerge {node_id!r} first"
