"""JSON encoding of rows: stored, joined into answers, and decoded back into rows.

A node's object is kept open, without its closing brace, because a traversal appends the distance. The encoding is
lossless except for the presence of empty extras, which is a flag of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from kgserve.platform.codecs import json_decoder
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_stored_time
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.model.node_edge_fields import (
    EdgeExtras,
    EdgeExtrasAnswer,
    NodeEdgeColumnSet,
    NodeExtras,
    NodeExtrasAnswer,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkRow,
    EdgeRow,
    NodeRow,
    RowTuple,
    edge_id,
    format_cross_store_link_id,
)

EXTRAS, DATED, FRESH, ORDINAL, MEMORY = 1, 2, 4, 8, 16
"""Flags of a row: has extras, validity bounds, a freshness time, an ordinal, fields of a memory or a name."""

_Read = TypeVar("_Read")


class NodeWithRawAttributes(NodeExtrasAnswer, gc=False):
    """Node in an answer whose attributes are raw JSON, not decoded."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    sequence: int
    created_at: str
    updated_at: str


class EdgeWithRawAttributes(EdgeExtrasAnswer, gc=False):
    """Edge in an answer whose attributes are raw JSON, not decoded."""

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


class _EncodedNodeType(msgspec.Struct):
    type: str


class ExportedNode(NodeExtrasAnswer, tag="node", tag_field="kind"):
    """Node as a line of an export, with attributes that are already JSON."""

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

    def tell(self, access: MemoryAccessRecord) -> None:
        """Set the fields of an access record."""
        self.access_count, self.access_confidence = access.count, access.confidence
        self.last_accessed_at = format_rfc3339_timestamp(access.last)


class ExportedConflictVersion(ExportedNode, tag="head", tag_field="kind"):
    """Conflicting version of a node, as a line before that of the node."""


class ExportedEdge(EdgeExtrasAnswer, tag="edge", tag_field="kind"):
    """Edge as a line of an export, with attributes that are already JSON."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    to_graph: str | msgspec.UnsetType = msgspec.UNSET


class RowsDamaged(Exception):
    """Stored rows are damaged or unreadable and must be rebuilt."""


class RowsFormatMismatch(RowsDamaged):
    """Stored rows were written by another version."""


_encode = msgspec.json.Encoder().encode
_decode_node = json_decoder(NodeWithRawAttributes).decode
_decode_edge = json_decoder(EdgeWithRawAttributes).decode
_decode_nodes = json_decoder(list[NodeWithRawAttributes]).decode
_decode_edges = json_decoder(list[EdgeWithRawAttributes]).decode
_decode_type = json_decoder(_EncodedNodeType).decode
_export_node = json_decoder(ExportedNode).decode
_export_edge = json_decoder(ExportedEdge).decode
# Rows written together share their times.
_text_of = lru_cache(maxsize=4096)(format_rfc3339_timestamp)


def compute_node_extras_flags(extras: NodeExtras | None) -> int:
    """Return the flags that tell which extras (optional fields) a node has."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (FRESH if extras.freshness_at is not None else 0) | _memory(extras)


def compute_edge_extras_flags(extras: EdgeExtras | None) -> int:
    """Return the flags that tell which extras (optional fields) an edge has."""
    if extras is None:
        return 0
    dated = DATED if extras.valid_from is not None or extras.valid_to is not None else 0
    return EXTRAS | dated | (ORDINAL if extras.ordinal is not None else 0) | _memory(extras)


def _memory(extras: NodeExtras | EdgeExtras) -> int:
    return MEMORY if extras.width is NodeEdgeColumnSet.MEMORY else 0


def decode_column_set_from_flags(flags: int) -> NodeEdgeColumnSet:
    """Return the column set for the flags of a row, or for the combined flags of several."""
    return (
        NodeEdgeColumnSet.MEMORY
        if flags & MEMORY
        else NodeEdgeColumnSet.EXTRAS
        if flags & EXTRAS
        else NodeEdgeColumnSet.PLAIN
    )


def encode_node_as_unclosed_json(row: NodeRow) -> bytes:
    """Return the JSON object of a node, left open (without closing brace), and without ``stale``."""
    node = NodeWithRawAttributes(
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


def encode_edge_as_json(row: EdgeRow) -> bytes:
    """Return the JSON object of an edge."""
    return _encode(_edge_fields(row, edge_id(row.key)))


def encode_cross_store_link(row: CrossStoreLinkRow, origin: str | None = None) -> bytes:
    """Return the JSON object of a cross-store link: its edge, the target store, and optionally its own store."""
    fields = _edge_fields(row.edge, format_cross_store_link_id(row.key))
    fields.to_graph = row.store
    if origin is not None:
        fields.store = origin
    return _encode(fields)


def _edge_fields(row: EdgeRow, name: str) -> EdgeWithRawAttributes:
    edge = EdgeWithRawAttributes(
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


def convert_node_json_to_export_line(data: bytes) -> ExportedNode:
    """Return the export line of a node, given its open JSON. Raises RowsDamaged."""
    return _drop_computed(_read(_export_node, data + b"}"))


def convert_edge_json_to_export_line(data: bytes) -> ExportedEdge:
    """Return the export line of an edge, given its JSON. Raises RowsDamaged."""
    return _read(_export_edge, data)


def build_node_export_line(row: NodeRow, kind: type[ExportedNode] = ExportedNode) -> ExportedNode:
    """Return the export line of a node, or of a conflicting version."""
    times = _text_of(row.created_at), _text_of(row.updated_at)
    line = kind(row.id, row.type, row.content, msgspec.Raw(row.attributes), row.version, *times)
    if row.extras is not None:
        line.show(row.extras)
    return _drop_computed(line)


def build_edge_export_line(row: EdgeRow) -> ExportedEdge:
    """Return the export line of an edge."""
    line = ExportedEdge(*row.key, row.weight, msgspec.Raw(row.attributes), row.version)
    if row.extras is not None:
        line.show(row.extras)
    return line


def encode_cross_store_link_export_line(row: CrossStoreLinkRow) -> ExportedEdge:
    """Return the export line of a cross-store link."""
    line = build_edge_export_line(row.edge)
    line.to_graph = row.store
    return line


def _drop_computed(line: ExportedNode) -> ExportedNode:
    """Remove the fields that the importing store computes."""
    line.stale = msgspec.UNSET
    return line


def _read(decode: Callable[[bytes], _Read], data: bytes) -> _Read:
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RowsDamaged(f"a row cannot be read: {error}") from error


def decode_node_row_from_json(data: bytes, flags: int) -> NodeRow:
    """Return the node row encoded in a node's open JSON. Raises RowsDamaged."""
    node = _read(_decode_node, data + b"}")
    extras = node.extras if flags & EXTRAS else None
    return NodeRow(
        node.id,
        node.type,
        node.content,
        str(node.attributes, "utf-8"),
        node.version,
        node.sequence,
        parse_stored_time(node.created_at),
        parse_stored_time(node.updated_at),
        extras,
    )


def node_json_matches_filter(data: bytes, wanted: NodeFilter) -> bool:
    """Return whether a node, given as open JSON, passes a filter. Raises RowsDamaged."""
    if wanted.types and wanted == NodeFilter(wanted.types):
        return _read(_decode_type, data + b"}").type in wanted.types
    return wanted.matches(decode_node_row_from_json(data, EXTRAS))


def decode_edge_row_from_json(data: bytes, flags: int) -> EdgeRow:
    """Return the edge row encoded in an edge's JSON. Raises RowsDamaged."""
    edge = _read(_decode_edge, data)
    extras = edge.extras if flags & EXTRAS else None
    attributes = str(edge.attributes, "utf-8")
    return EdgeRow(
        edge.source, edge.target, edge.relation_type, edge.weight, attributes, edge.version, edge.sequence, extras
    )


def decode_node_tuples_from_json(texts: Sequence[bytes], flags: Sequence[int]) -> list[RowTuple]:
    """Return the nodes of open JSON texts as `decode_node_row_from_json`, as tuples. Raises RowsDamaged."""
    nodes = _read(_decode_nodes, b"[" + b"},".join(texts) + b"}]") if texts else []
    _require_count(len(nodes), len(texts))
    return [
        (
            node.id,
            node.type,
            node.content,
            str(node.attributes, "utf-8"),
            node.version,
            node.sequence,
            parse_stored_time(node.created_at),
            parse_stored_time(node.updated_at),
            *((node.extras,) if own & EXTRAS else ()),
        )
        for node, own in zip(nodes, flags, strict=True)
    ]


def decode_edge_tuples_from_json(texts: Sequence[bytes], flags: Sequence[int]) -> list[RowTuple]:
    """Return the edges of JSON texts as `decode_edge_row_from_json`, as tuples. Raises RowsDamaged."""
    edges = _read(_decode_edges, b"[" + b",".join(texts) + b"]")
    _require_count(len(edges), len(texts))
    return [
        (
            edge.source,
            edge.target,
            edge.relation_type,
            edge.weight,
            str(edge.attributes, "utf-8"),
            edge.version,
            edge.sequence,
            *((edge.extras,) if own & EXTRAS else ()),
        )
        for edge, own in zip(edges, flags, strict=True)
    ]


def _require_count(found: int, expected: int) -> None:
    if found != expected:
        raise RowsDamaged(f"{found} rows instead of {expected}")


def set_stale_flag_in_node_json(data: bytes, now: int) -> bytes:
    """Return the open JSON of a node with ``stale`` set from its freshness time and ``now`` in microseconds."""
    node = _read(_decode_node, data + b"}")
    node.stale = not isinstance(node.freshness_at, str) or parse_stored_time(node.freshness_at) <= now
    return _encode(node)[:-1]
