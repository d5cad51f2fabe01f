"""Rows as callers see them."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.model.answers import Edge, Node, ReachedNode
from kgserve.model.rows import EMPTY_OBJECT, EdgeRow, NodeRow
from kgserve.model.times import format_time

_attributes = msgspec.json.Decoder(dict[str, Any]).decode


def node(row: NodeRow) -> Node:
    """A node."""
    return Node(
        id=row.id,
        type=row.type,
        content=row.content,
        attributes={} if row.attributes == EMPTY_OBJECT else _attributes(row.attributes),
        version=row.version,
        sequence=row.sequence,
        created_at=format_time(row.created_at),
        updated_at=format_time(row.updated_at),
    )


def reached(row: NodeRow, depth: int) -> ReachedNode:
    """A node of a traversal."""
    return ReachedNode(**msgspec.structs.asdict(node(row)), depth=depth)


def edge(row: EdgeRow) -> Edge:
    """An edge."""
    return Edge(
        source=row.source,
        target=row.target,
        relation_type=row.relation_type,
        weight=row.weight,
        attributes=_attributes(row.attributes),
        version=row.version,
        sequence=row.sequence,
    )
