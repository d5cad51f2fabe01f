"""How rows are kept in the history: without what the columns beside them say, and long ones compressed.

Rows of files from before are MessagePack as a whole, which never begins with the byte that packed ones begin with. So
both are read, and a file may hold both. The checksum of a packed row covers what its columns say.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.times import format_time, parse_time
from kgserve.storage.model.digest import checksum
from kgserve.storage.model.fields import EdgeExtras, NodeExtras
from kgserve.storage.model.rows import NO_ATTRIBUTES, EdgeRow, LinkRow, NodeRow, edge_attributes, edge_stamps

_PACKED = 0xC1
_COMPRESSED = 0x78
"""What a stream of zlib begins with, and no packed row."""
_MIN_BYTES_TO_COMPRESS = 1 << 10
"""Bytes from which on compressing is worth its time; of less it saves a sixth."""
_MAX_INTEGER_WEIGHT = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
_MAX_CACHED_ATTRIBUTES_CHARS = 200
"""Characters of an edge's attributes that are remembered: edges that were written together have them in common."""


class PackedRow(NamedTuple):
    """A row as its columns ``row`` and ``hash`` have it."""

    content: bytes
    hash: int


class _Parts(NamedTuple):
    """What is the caller's own of an edge's attributes, empty for nothing, when it was made and how long it lasted."""

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


class _Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    weight: float
    own: str
    sequence: int
    created_at: int
    lasted: int
    extras: EdgeExtras | None


_decode_node = msgpack_decoder(_PackedNode).decode
_decode_edge = msgpack_decoder(_Edge).decode
_whole_node = msgpack_decoder(NodeRow).decode
_whole_edge = msgpack_decoder(EdgeRow).decode
_whole_link = msgpack_decoder(LinkRow).decode


def stored_node(row: NodeRow) -> PackedRow:
    """A node as it is kept beside its id, type and version."""
    lasted = row.updated_at - row.created_at
    packed = _PackedNode(row.content, row.attributes, row.sequence, row.created_at, lasted, row.extras)
    return _stored(packed, (row.id, row.type, row.version))


def stored_edge(row: EdgeRow) -> PackedRow:
    """An edge as it is kept beside its key and its version."""
    return _stored_edge(row, row, (*row.key, row.version))


def stored_link(row: LinkRow) -> PackedRow:
    """A link as it is kept beside the key and version of its edge, and its store."""
    return _stored_edge(row, row.edge, (*row.edge.key, row.edge.version, row.store))


def node(content: bytes | None, expected: int, *key: Any) -> NodeRow | None:
    """The node of which columns say ``key``: id, type and version; None when it does not fit its checksum."""
    if not _is_intact(content, expected, key):
        return None
    if content[0] != _PACKED:
        return _whole_node(content)
    node_id, type_, version = key
    found = _decode_node(_data(content))
    created, updated = found.created_at, found.created_at + found.lasted
    texts = found.content, found.attributes
    return NodeRow(node_id, type_, *texts, version, found.sequence, created, updated, found.extras)


def edge(content: bytes | None, expected: int, *key: Any) -> EdgeRow | None:
    """The same of an edge: source, target, relation type and version."""
    if not _is_intact(content, expected, key):
        return None
    return _edge_of(content, key) if content[0] == _PACKED else _whole_edge(content)


def link(content: bytes | None, expected: int, *key: Any) -> LinkRow | None:
    """The same of a link: those of its edge, and its store."""
    if not _is_intact(content, expected, key):
        return None
    return LinkRow(key[4], _edge_of(content, key)) if content[0] == _PACKED else _whole_link(content)


def _is_intact(content: bytes | None, expected: int, key: tuple[Any, ...]) -> TypeGuard[bytes]:
    if not content:
        return False
    return checksum(content + _encode(key) if content[0] == _PACKED else content) == expected


def _data(content: bytes) -> bytes:
    return zlib.decompress(content[1:]) if content[1] == _COMPRESSED else content[1:]


def _stored_edge(row: EdgeRow | LinkRow, of: EdgeRow, key: tuple[Any, ...]) -> PackedRow:
    parts = (_recent_parts if len(of.attributes) <= _MAX_CACHED_ATTRIBUTES_CHARS else _parts)(of.attributes)
    if parts is None:
        content = _encode(row)
        return PackedRow(content, checksum(content))
    return _stored(_Edge(_short(of.weight), parts.own, of.sequence, parts.created_at, parts.lasted, of.extras), key)


def _parts(attributes: str) -> _Parts | None:
    """What an edge's attributes are put together from; None where that would not be these."""
    stamps = edge_stamps(attributes)
    created = parse_time(stamps.created_at)
    parts = _Parts("" if stamps.own == NO_ATTRIBUTES else stamps.own, created, parse_time(stamps.updated_at) - created)
    return parts if _attributes(parts) == attributes else None


def _attributes(parts: _Parts) -> str:
    own, created, lasted = parts
    return edge_attributes(format_time(created), format_time(created + lasted), own or NO_ATTRIBUTES)


_recent_parts = lru_cache(maxsize=4096)(_parts)
_recent_attributes = lru_cache(maxsize=4096)(_attributes)


def _edge_of(content: bytes, key: tuple[Any, ...]) -> EdgeRow:
    source, target, relation_type, version = key[:4]
    packed = _decode_edge(_data(content))
    parts = _Parts(packed.own, packed.created_at, packed.lasted)
    attributes = (_recent_attributes if len(packed.own) <= _MAX_CACHED_ATTRIBUTES_CHARS else _attributes)(parts)
    return EdgeRow(source, target, relation_type, packed.weight, attributes, version, packed.sequence, packed.extras)


def _short(weight: float) -> float:
    """The same number, whole where it is: a byte instead of nine."""
    return int(weight) if 0 < weight < _MAX_INTEGER_WEIGHT and weight.is_integer() else weight


def _stored(packed: _PackedNode | _Edge, key: tuple[Any, ...]) -> PackedRow:
    data = _encode(packed)
    if len(data) >= _MIN_BYTES_TO_COMPRESS:
        data = min(data, zlib.compress(data, 1), key=len)
    content = bytes((_PACKED,)) + data
    return PackedRow(content, checksum(content + _encode(key)))
