"""Rows as the JSON that callers get: what the rows view stores, joins to answers, and reads back as rows.

A node's object is kept open, without its closing brace, for a walk adds the distance. Nothing of a row is lost in it
but whether it has extras at all, which is one of its flags.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

import msgspec

from kgserve.decoding import json_decoder
from kgserve.model.edge_ids import edge_id
from kgserve.model.rows import EdgeExtras, EdgeRow, NodeExtras, NodeRow
from kgserve.model.times import format_time, microseconds_of

EXTRAS, DATED, FRESH, ORDINAL = 1, 2, 4, 8
"""Flags of a row: it has extras, says when it is true, says when it goes stale, has a place among its siblings."""

_UNSET = msgspec.UNSET
_Text = str | msgspec.UnsetType


class NodeFields(msgspec.Struct, gc=False):
    """As `kgserve.model.answers.Node`, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    sequence: int
    created_at: str
    updated_at: str
    summary: _Text = _UNSET
    tags: tuple[str, ...] | msgspec.UnsetType = _UNSET
    freshness_at: _Text = _UNSET
    stale: bool | msgspec.UnsetType = _UNSET
    created_by: _Text = _UNSET
    valid_from: _Text = _UNSET
    valid_to: _Text = _UNSET
    conflicts: tuple[int, ...] | msgspec.UnsetType = _UNSET


class EdgeFields(msgspec.Struct, gc=False):
    """As `kgserve.model.answers.Edge`, with attributes that are JSON already."""

    id: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    sequence: int
    ordinal: int | msgspec.UnsetType = _UNSET
    created_by: _Text = _UNSET
    valid_from: _Text = _UNSET
    valid_to: _Text = _UNSET


class RowsDamaged(Exception):
    """What is stored is not what was written, or none of ours: it is to be made anew."""


_encode = msgspec.json.Encoder().encode
_decode_node = json_decoder(NodeFields).decode
_decode_edge = json_decoder(EdgeFields).decode
# Rows that were written together have their times in common.
_text_of = lru_cache(maxsize=4096)(format_time)


@lru_cache(maxsize=4096)
def _time_of(text: str) -> int:
    return microseconds_of(datetime.fromisoformat(text))


def node_flags(extras: NodeExtras | None) -> int:
    """The flags of a node with these extras."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (FRESH if extras.freshness_at is not None else 0)


def edge_flags(extras: EdgeExtras | None) -> int:
    """The flags of an edge with these extras."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (ORDINAL if extras.ordinal is not None else 0)


def encode_node(row: NodeRow) -> bytes:
    """The open JSON object of a node; whether it is stale is not in it."""
    node = NodeFields(
        row.id,
        row.type,
        row.content,
        msgspec.Raw(row.attributes),
        row.version,
        row.sequence,
        _text_of(row.created_at),
        _text_of(row.updated_at),
    )
    if row.extras is not None:
        _add_extras(node, row.extras)
    return _encode(node)[:-1]


def encode_edge(row: EdgeRow) -> bytes:
    """The JSON object of an edge."""
    edge = EdgeFields(
        edge_id(row.key),
        row.source,
        row.target,
        row.relation_type,
        row.weight,
        msgspec.Raw(row.attributes),
        row.version,
        row.sequence,
    )
    if row.extras is not None:
        if row.extras.ordinal is not None:
            edge.ordinal = row.extras.ordinal
        _add_author_and_validity(edge, row.extras)
    return _encode(edge)


def node_fields(data: bytes) -> NodeFields:
    """The fields of an open node. Raises RowsDamaged."""
    try:
        return _decode_node(data + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RowsDamaged(f"a node cannot be read: {error}") from error


def edge_fields(data: bytes) -> EdgeFields:
    """The fields of an edge. Raises RowsDamaged."""
    try:
        return _decode_edge(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RowsDamaged(f"an edge cannot be read: {error}") from error


def decode_node(data: bytes, flags: int) -> NodeRow:
    """The inverse of `encode_node`."""
    node = node_fields(data)
    extras = None
    if flags & EXTRAS:
        extras = NodeExtras(
            node.summary or "",
            node.tags or (),
            _micros(node.freshness_at),
            node.created_by or "",
            _micros(node.valid_from),
            _micros(node.valid_to),
            node.conflicts or (),
        )
    return NodeRow(
        node.id,
        node.type,
        node.content,
        str(node.attributes, "utf-8"),
        node.version,
        node.sequence,
        _time_of(node.created_at),
        _time_of(node.updated_at),
        extras,
    )


def decode_edge(data: bytes, flags: int) -> EdgeRow:
    """The inverse of `encode_edge`."""
    edge = edge_fields(data)
    extras = None
    if flags & EXTRAS:
        ordinal = None if edge.ordinal is _UNSET else edge.ordinal
        extras = EdgeExtras(ordinal, edge.created_by or "", _micros(edge.valid_from), _micros(edge.valid_to))
    attributes = str(edge.attributes, "utf-8")
    return EdgeRow(
        edge.source, edge.target, edge.relation_type, edge.weight, attributes, edge.version, edge.sequence, extras
    )


def with_staleness(data: bytes, now: int) -> bytes:
    """An open node that says when it goes stale, with whether it is at a moment in microseconds."""
    node = node_fields(data)
    node.stale = (_micros(node.freshness_at) or 0) <= now
    return _encode(node)[:-1]


def _add_extras(node: NodeFields, extras: NodeExtras) -> None:
    if extras.summary:
        node.summary = extras.summary
    if extras.tags:
        node.tags = extras.tags
    if extras.freshness_at is not None:
        node.freshness_at = format_time(extras.freshness_at)
    if extras.conflicts:
        node.conflicts = extras.conflicts
    _add_author_and_validity(node, extras)


def _add_author_and_validity(encoded: NodeFields | EdgeFields, extras: NodeExtras | EdgeExtras) -> None:
    if extras.created_by:
        encoded.created_by = extras.created_by
    if extras.valid_from is not None:
        encoded.valid_from = format_time(extras.valid_from)
    if extras.valid_to is not None:
        encoded.valid_to = format_time(extras.valid_to)


def _micros(text: _Text) -> int | None:
    return _time_of(text) if isinstance(text, str) else None
