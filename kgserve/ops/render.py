"""Rows as callers see them."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from kgserve.decoding import json_decoder
from kgserve.model.answers import Edge, Node, ReachedNode
from kgserve.model.edge_ids import edge_id
from kgserve.model.rows import EMPTY_OBJECT, EdgeExtras, EdgeRow, NodeExtras, NodeRow
from kgserve.model.times import format_time

_attributes = json_decoder(dict[str, Any]).decode


def node(row: NodeRow) -> Node:
    """A node."""
    rendered = Node(
        id=row.id,
        type=row.type,
        content=row.content,
        attributes={} if row.attributes == EMPTY_OBJECT else _attributes(row.attributes),
        version=row.version,
        sequence=row.sequence,
        created_at=format_time(row.created_at),
        updated_at=format_time(row.updated_at),
    )
    if row.extras is not None:
        _add_extras(rendered, row.extras)
    return rendered


def reached(row: NodeRow, depth: int) -> ReachedNode:
    """A node of a traversal."""
    return ReachedNode(**msgspec.structs.asdict(node(row)), depth=depth)


def edge(row: EdgeRow) -> Edge:
    """An edge."""
    rendered = Edge(
        id=edge_id(row.key),
        source=row.source,
        target=row.target,
        relation_type=row.relation_type,
        weight=row.weight,
        attributes=_attributes(row.attributes),
        version=row.version,
        sequence=row.sequence,
    )
    if row.extras is not None:
        _add_edge_extras(rendered, row.extras)
    return rendered


def _add_extras(node: Node, extras: NodeExtras) -> None:
    if extras.summary:
        node.summary = extras.summary
    if extras.tags:
        node.tags = list(extras.tags)
    if extras.freshness_at is not None:
        node.freshness_at = format_time(extras.freshness_at)
        node.stale = extras.freshness_at <= time.time_ns() // 1000
    if extras.conflicts:
        node.conflicts = list(extras.conflicts)
    _add_author_and_validity(node, extras)


def _add_edge_extras(edge: Edge, extras: EdgeExtras) -> None:
    if extras.ordinal is not None:
        edge.ordinal = extras.ordinal
    _add_author_and_validity(edge, extras)


def _add_author_and_validity(rendered: Node | Edge, extras: NodeExtras | EdgeExtras) -> None:
    if extras.created_by:
        rendered.created_by = extras.created_by
    if extras.valid_from is not None:
        rendered.valid_from = format_time(extras.valid_from)
    if extras.valid_to is not None:
        rendered.valid_to = format_time(extras.valid_to)
