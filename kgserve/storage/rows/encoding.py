"""Rows as the JSON that callers get: what the rows view stores, joins to answers, and reads back as rows.

A node's object is kept open, without its closing brace, for a walk adds the distance. Nothing of a row is lost in it
but whether it has extras at all, which is one of its flags.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import msgspec

from kgserve.platform.codecs import json_decoder
from kgserve.platform.times import format_time, time_of
from kgserve.storage.model.change import Access
from kgserve.storage.model.fields import (
    ColumnSet,
    EdgeExtras,
    EdgeExtrasShown,
    NodeExtras,
    NodeExtrasShown,
)
from kgserve.storage.model.rows import EdgeRow, LinkRow, NodeRow, edge_id, link_id

EXTRAS, DATED, FRESH, ORDINAL, MEMORY = 1, 2, 4, 8, 16
"""Flags of a row: it has extras, says when it is true, says when it goes stale, has a place among its siblings, and
fields of a memory or a name."""

_Read = TypeVar("_Read")


class EncodedNodeFields(NodeExtrasShown, gc=False):
    """As `kgserve.graph.answers.Node`, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    sequence: int
    created_at: str
    updated_at: str


class EdgeFields(EdgeExtrasShown, gc=False):
    """As `kgserve.graph.answers.Edge`, with attributes that are JSON already."""

    id: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    sequence: int
    to_graph: str | msgspec.UnsetType = msgspec.UNSET
    store: str | msgspec.UnsetType = msgspec.UNSET


class ExportedNode(NodeExtrasShown, tag="node", tag_field="kind"):
    """A node as a line of an export, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    created_at: str
    updated_at: str
    access_count: int | msgspec.UnsetType = msgspec.UNSET
    last_accessed_at: str | msgspec.UnsetType = msgspec.UNSET
    access_confidence: float | msgspec.UnsetType = msgspec.UNSET

    def tell(self, access: Access) -> None:
        """Say what reading has made of it."""
        self.access_count, self.access_confidence = access.count, access.confidence
        self.last_accessed_at = format_time(access.last)


class ExportedHead(ExportedNode, tag="head", tag_field="kind"):
    """A version that is beside a node, as a line before that node's."""


class ExportedEdge(EdgeExtrasShown, tag="edge", tag_field="kind"):
    """An edge as a line of an export, with attributes that are JSON already."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    to_graph: str | msgspec.UnsetType = msgspec.UNSET


class RowsDamaged(Exception):
    """What is stored is not what was written, or none of ours: it is to be made anew."""


class RowsOfAnotherFormat(RowsDamaged):
    """What is stored is another version's."""


_encode = msgspec.json.Encoder().encode
_decode_node = json_decoder(EncodedNodeFields).decode
_decode_edge = json_decoder(EdgeFields).decode
_export_node = json_decoder(ExportedNode).decode
_export_edge = json_decoder(ExportedEdge).decode
# Rows that were written together have their times in common.
_text_of = lru_cache(maxsize=4096)(format_time)


def node_flags(extras: NodeExtras | None) -> int:
    """The flags of a node with these extras."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (FRESH if extras.freshness_at is not None else 0) | _memory(extras)


def edge_flags(extras: EdgeExtras | None) -> int:
    """The flags of an edge with these extras."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (ORDINAL if extras.ordinal is not None else 0) | _memory(extras)


def _memory(extras: NodeExtras | EdgeExtras) -> int:
    return MEMORY if extras.width is ColumnSet.MEMORY else 0


def width_of_flags(flags: int) -> ColumnSet:
    """How many of its fields a row with these flags has, or the widest of those that have them together."""
    return ColumnSet.MEMORY if flags & MEMORY else ColumnSet.EXTRAS if flags & EXTRAS else ColumnSet.PLAIN


def encode_node(row: NodeRow) -> bytes:
    """The open JSON object of a node; whether it is stale is not in it."""
    node = EncodedNodeFields(
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
        node.show(row.extras)
    return _encode(node)[:-1]


def encode_edge(row: EdgeRow) -> bytes:
    """The JSON object of an edge."""
    return _encode(_edge_fields(row, edge_id(row.key)))


def encode_link(row: LinkRow, origin: str | None = None) -> bytes:
    """The JSON object of a link: that of an edge, with the store that it leads into, and maybe that which it is of."""
    fields = _edge_fields(row.edge, link_id(row.key))
    fields.to_graph = row.store
    if origin is not None:
        fields.store = origin
    return _encode(fields)


def _edge_fields(row: EdgeRow, name: str) -> EdgeFields:
    edge = EdgeFields(
        name,
        row.source,
        row.target,
        row.relation_type,
        row.weight,
        msgspec.Raw(row.attributes),
        row.version,
        row.sequence,
    )
    if row.extras is not None:
        edge.show(row.extras)
    return edge


def exported_node(data: bytes) -> ExportedNode:
    """The line of an open node. Raises RowsDamaged."""
    return _exchanged(_read(_export_node, data + b"}"))


def exported_edge(data: bytes) -> ExportedEdge:
    """The line of an edge. Raises RowsDamaged."""
    return _read(_export_edge, data)


def node_line(row: NodeRow, kind: type[ExportedNode] = ExportedNode) -> ExportedNode:
    """The line of a node, or that of a version beside it."""
    times = _text_of(row.created_at), _text_of(row.updated_at)
    line = kind(row.id, row.type, row.content, msgspec.Raw(row.attributes), row.version, *times)
    if row.extras is not None:
        line.show(row.extras)
    return _exchanged(line)


def edge_line(row: EdgeRow) -> ExportedEdge:
    """The line of an edge."""
    line = ExportedEdge(*row.key, row.weight, msgspec.Raw(row.attributes), row.version)
    if row.extras is not None:
        line.show(row.extras)
    return line


def link_line(row: LinkRow) -> ExportedEdge:
    """The line of a link."""
    line = edge_line(row.edge)
    line.to_graph = row.store
    return line


def _exchanged(line: ExportedNode) -> ExportedNode:
    """A line without what the store it goes to finds by itself."""
    line.stale = msgspec.UNSET
    return line


def _read(decode: Callable[[bytes], _Read], data: bytes) -> _Read:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RowsDamaged(f"a row cannot be read: {error}") from error


def decode_node(data: bytes, flags: int) -> NodeRow:
    """The inverse of `encode_node`."""
    node = _read(_decode_node, data + b"}")
    extras = node.extras if flags & EXTRAS else None
    return NodeRow(
        node.id,
        node.type,
        node.content,
        str(node.attributes, "utf-8"),
        node.version,
        node.sequence,
        time_of(node.created_at),
        time_of(node.updated_at),
        extras,
    )


def decode_edge(data: bytes, flags: int) -> EdgeRow:
    """The inverse of `encode_edge`."""
    edge = _read(_decode_edge, data)
    extras = edge.extras if flags & EXTRAS else None
    attributes = str(edge.attributes, "utf-8")
    return EdgeRow(
        edge.source, edge.target, edge.relation_type, edge.weight, attributes, edge.version, edge.sequence, extras
    )


def with_staleness(data: bytes, now: int) -> bytes:
    """An open node that says when it goes stale, with whether it is at a moment in microseconds."""
    node = _read(_decode_node, data + b"}")
    node.stale = not isinstance(node.freshness_at, str) or time_of(node.freshness_at) <= now
    return _encode(node)[:-1]
