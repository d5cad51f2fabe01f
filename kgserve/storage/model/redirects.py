"""Merged nodes: the relation to the node that replaces one, and following it."""

from __future__ import annotations

from collections.abc import Mapping

from kgserve.storage.model.fields import NodeExtras
from kgserve.storage.model.rows import EdgeKey, LinkKey

MERGED_INTO = "MERGED_INTO"
"""The relation from a node that was merged to its survivor. Reserved: between other nodes it means nothing."""
MAX_REDIRECTS = 100
"""So many merges may lead from a node to the one that all of them came to."""


def is_withdrawn(extras: NodeExtras | None) -> bool:
    """Whether a node is true at no moment, as one that was merged."""
    return extras is not None and extras.valid_from is not None and extras.valid_from == extras.valid_to


def survivor_of(steps: Mapping[str, str], node_id: str) -> str:
    """Where a node has come to: itself, or the end of the steps from it. Steps that lead in a circle lead nowhere."""
    at = node_id
    for _ in range(len(steps) + 1):
        if at not in steps:
            return at
        at = steps[at]
    return node_id


def moved_key(key: EdgeKey, absorbed: str, survivor: str) -> EdgeKey:
    """The key of an edge once its ends have moved from one node to another."""
    source, target, relation_type = key
    return (
        survivor if source == absorbed else source,
        survivor if target == absorbed else target,
        relation_type,
    )


def moved_link(key: LinkKey, absorbed: str, survivor: str) -> LinkKey:
    """As `moved_key`, of a link: its target is another store's."""
    source, target, relation_type = key.edge
    return LinkKey(key.store, (survivor if source == absorbed else source, target, relation_type))


def refusal(node_id: str, survivor: str) -> str:
    """What is said to who writes to a node that was merged."""
    return f"node {node_id!r} was merged into {survivor!r}: write to {survivor!r}, or unmerge {node_id!r} first"
