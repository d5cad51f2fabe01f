"""Storage format of rows in the history: without the values of their other columns, and compressed if long.

Files of older versions contain rows as plain MessagePack, which never begins with the marker byte of packed rows. Both
formats are read, and a file may mix them. The checksum of a packed row also covers its other columns.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import EdgeExtras, NodeExtras
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    CrossStoreLinkRow,
    EdgeRow,
    NodeRow,
    encode_edge_attributes,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.store_rows_digest import checksum_63bit

_PACKED_MARKER = 0xC1
_PACKED_MARKER_BYTES = bytes((_PACKED_MARKER,))
_ZLIB_MARKER = 0x78
"""First byte of a zlib stream; no uncompressed packed row begins with it."""
_MIN_BYTES_TO_COMPRESS = 1 << 10
"""Smallest size, in bytes, that is compressed; below it, compression saves only a sixth."""
_MAX_INTEGER_WEIGHT = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
_MAX_CACHED_ATTRIBUTES_CHARS = 200
"""Longest attributes of an edge, in characters, that are cached: edges written together share them."""


class PackedRow(NamedTuple):
    """Row in the storage format of the history: packed content, and its checksum."""

    content: bytes
    hash: int


class _AttributeParts(NamedTuple):
    """Parts of an edge's attributes: the caller's own (empty for none), creation time and duration until the update."""

    own: str
    created_at: int
    lasted: int


class _PackedNode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    content: str
    attributes: str
    sequence: int
    created_at: int
    lasted: int
    extras: NodeExtras | None


class _PackedEdge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    weight: float
    own: str
    sequence: int
    created_at: int
    lasted: int
    extras: EdgeExtras | None


_decode_node = msgpack_decoder(_PackedNode).decode
_decode_edge = msgpack_decoder(_PackedEdge).decode
_decode_plain_node = msgpack_decoder(NodeRow).decode
_decode_plain_edge = msgpack_decoder(EdgeRow).decode
_decode_plain_link = msgpack_decoder(CrossStoreLinkRow).decode


def pack_history_node(row: NodeRow) -> PackedRow:
    """Return a node in storage format, without its id, type and version."""
    # As a tuple: making the Struct takes as long as encoding it.
    lasted = row.updated_at - row.created_at
    packed = _encode((row.content, row.attributes, row.sequence, row.created_at, lasted, row.extras))
    return _with_checksum(_compressed(packed), (row.id, row.type, row.version))


def pack_history_edge(row: EdgeRow) -> PackedRow:
    """Return an edge as stored in a history file, without its key and version."""
    key = (row.source, row.target, row.relation_type, row.version)
    attributes = row.attributes
    # Zero is left out, because the cache would not distinguish it from its negative.
    if row.extras is None and row.weight and len(attributes) <= _MAX_CACHED_ATTRIBUTES_CHARS:
        content = _recent_edge_content(row.weight, attributes, row.sequence)
    else:
        content = _edge_content(row.weight, attributes, row.sequence, row.extras)
    return _plain(row) if content is None else _with_checksum(content, key)


def pack_history_cross_store_link(row: CrossStoreLinkRow) -> PackedRow:
    """Return a link as stored in a history file, without its store and the key and version of its edge."""
    edge = row.edge
    content = _edge_content(edge.weight, edge.attributes, edge.sequence, edge.extras)
    return _plain(row) if content is None else _with_checksum(content, (*edge.key, edge.version, row.store))


def unpack_history_node(content: bytes | None, expected: int, *key: Any) -> NodeRow | None:
    """Return the node in storage format whose ``key`` columns are id, type and version; None on a checksum mismatch."""
    if not _is_intact(content, expected, key):
        return None
    if content[0] != _PACKED_MARKER:
        plain = _decode_plain_node(content)
        return plain if (plain.id, plain.type, plain.version) == key else None
    node_id, type_, version = key
    found = _decode_node(_uncompressed(content))
    created, updated = found.created_at, found.created_at + found.lasted
    texts = found.content, found.attributes
    return NodeRow(node_id, type_, *texts, version, found.sequence, created, updated, found.extras)


def unpack_history_edge(content: bytes | None, expected: int, *key: Any) -> EdgeRow | None:
    """Return the edge whose ``key`` columns are source, target, relation type and version; None on a mismatch."""
    if not _is_intact(content, expected, key):
        return None
    if content[0] == _PACKED_MARKER:
        return _edge_of(content, key)
    plain = _decode_plain_edge(content)
    return plain if (*plain.key, plain.version) == key else None


def unpack_history_cross_store_link(content: bytes | None, expected: int, *key: Any) -> CrossStoreLinkRow | None:
    """Return the link whose ``key`` columns are those of its edge, and its store; None on a checksum mismatch."""
    if not _is_intact(content, expected, key):
        return None
    if content[0] == _PACKED_MARKER:
        return CrossStoreLinkRow(key[4], _edge_of(content, key))
    plain = _decode_plain_link(content)
    return plain if (*plain.edge.key, plain.edge.version, plain.store) == key else None


def _is_intact(content: bytes | None, expected: int, key: tuple[Any, ...]) -> TypeGuard[bytes]:
    if not content:
        return False
    return checksum_63bit(content + _encode(key) if content[0] == _PACKED_MARKER else content) == expected


def _uncompressed(content: bytes) -> bytes:
    return zlib.decompress(content[1:]) if content[1] == _ZLIB_MARKER else content[1:]


def _edge_content(weight: float, attributes: str, sequence: int, extras: EdgeExtras | None = None) -> bytes | None:
    """Return an edge in storage format; None if its attributes could not be reassembled exactly."""
    parts = (_recent_parts if len(attributes) <= _MAX_CACHED_ATTRIBUTES_CHARS else _parts)(attributes)
    if parts is None:
        return None
    return _compressed(_encode((_compact_weight(weight), parts.own, sequence, parts.created_at, parts.lasted, extras)))


def _plain(row: EdgeRow | CrossStoreLinkRow) -> PackedRow:
    content = _encode(row)
    return PackedRow(content, checksum_63bit(content))


def _parts(attributes: str) -> _AttributeParts | None:
    """Split an edge's attributes into parts; None if they could not be reassembled exactly."""
    stamps = split_edge_times_from_attributes(attributes)
    created = parse_rfc3339_timestamp(stamps.created_at)
    parts = _AttributeParts(
        "" if stamps.own == EMPTY_ATTRIBUTES_JSON else stamps.own,
        created,
        parse_rfc3339_timestamp(stamps.updated_at) - created,
    )
    return parts if _attributes(parts) == attributes else None


def _attributes(parts: _AttributeParts) -> str:
    own, created, lasted = parts
    return encode_edge_attributes(
        format_rfc3339_timestamp(created), format_rfc3339_timestamp(created + lasted), own or EMPTY_ATTRIBUTES_JSON
    )


_recent_parts = lru_cache(maxsize=4096)(_parts)
_recent_attributes = lru_cache(maxsize=4096)(_attributes)
# Edges written together share all but their keys.
_recent_edge_content = lru_cache(maxsize=4096)(_edge_content)


def _edge_of(content: bytes, key: tuple[Any, ...]) -> EdgeRow:
    source, target, relation_type, version = key[:4]
    packed = _decode_edge(_uncompressed(content))
    parts = _AttributeParts(packed.own, packed.created_at, packed.lasted)
    attributes = (_recent_attributes if len(packed.own) <= _MAX_CACHED_ATTRIBUTES_CHARS else _attributes)(parts)
    return EdgeRow(source, target, relation_type, packed.weight, attributes, version, packed.sequence, packed.extras)


def _compact_weight(weight: float) -> float:
    """Return a weight as an integer if it is one: a byte instead of nine."""
    return int(weight) if 0 < weight < _MAX_INTEGER_WEIGHT and weight.is_integer() else weight


def _compressed(data: bytes) -> bytes:
    """Return an encoded row with its marker, compressed if it is long."""
    if len(data) >= _MIN_BYTES_TO_COMPRESS:
        data = min(data, zlib.compress(data, 1), key=len)
    return _PACKED_MARKER_BYTES + data


def _with_checksum(content: bytes, key: tuple[Any, ...]) -> PackedRow:
    return PackedRow(content, checksum_63bit(content + _encode(key)))
