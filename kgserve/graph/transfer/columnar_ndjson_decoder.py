"""Lines with a node or an edge of few fields, decoded in blocks into columns.

A block with any other line, or with any fault, is left to `kgserve.graph.transfer.import_export`, which reports it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kgserve.graph.request_bodies import MAX_ATTRIBUTES_DEPTH
from kgserve.graph.request_validation import (
    ValidationErrorCollector,
    encode_canonical,
    encode_canonical_attributes_json,
)
from kgserve.platform.codecs import json_decoder
from kgserve.platform.duplicate_json_keys import (
    count_json_keys,
    has_colons_adjacent_to_json_keys,
    may_have_duplicate_json_keys,
)
from kgserve.storage.model.node_edge_fields import MAX_ATTRIBUTES_BYTES, MAX_CONTENT_BYTES, MAX_ID_BYTES
from kgserve.stores.bulk_insert import RowsWithoutOptionalFields

# A character takes at most four bytes of UTF-8, so texts of these lengths need not be encoded to be checked.
_ShortLabel = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES // 4)]
_ShortContent = Annotated[str, Meta(max_length=MAX_CONTENT_BYTES // 4)]
_NO_ATTRIBUTES = msgspec.Raw(b"null")
_LONG_NUMBER = re.compile(rb"\d{19}")


class _PlainNode(msgspec.Struct, tag="node", tag_field="kind", forbid_unknown_fields=True, gc=False):
    id: _ShortLabel
    type: _ShortLabel
    content: _ShortContent | None = None
    attributes: msgspec.Raw = _NO_ATTRIBUTES


class _PlainEdge(msgspec.Struct, tag="edge", tag_field="kind", forbid_unknown_fields=True, gc=False):
    source: _ShortLabel = msgspec.field(name="from")
    target: _ShortLabel = msgspec.field(name="to")
    relation_type: _ShortLabel
    weight: float | None = None


class _UnusualAttributes(Exception):
    """Attributes that are faulty or costly to check."""


_decoder = json_decoder(_PlainNode | _PlainEdge)
_decode_attributes = json_decoder(dict[str, Any] | None).decode
_Line = _PlainNode | _PlainEdge


def decode_simple_ndjson_lines(block: bytes, count: int, cost: int) -> RowsWithoutOptionalFields | None:
    """Decode a block of ``count`` NDJSON lines into rows; None unless all lines have few, simple fields.

    Ids may repeat. ``cost`` is that of the rows.
    """
    if not _has_an_object_per_line(block):
        return None
    try:
        lines: list[_Line] = _decoder.decode_lines(block)
        texts = [bytes(line.attributes) for line in lines if type(line) is _PlainNode]
        attributes = _canonical_attributes(texts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _UnusualAttributes):
        return None
    if len(lines) != count:
        return None
    nodes = [line for line in lines if type(line) is _PlainNode]
    edges = [line for line in lines if type(line) is _PlainEdge]
    contents, weights = [node.content for node in nodes], [edge.weight for edge in edges]
    keys = 3 * len(nodes) + _count_given(contents) + _count_attribute_keys(texts)
    keys += 4 * len(edges) + _count_given(weights)
    surplus = count_json_keys(block) - keys
    if surplus > 0:
        # Texts with a quotation mark before a colon, which is escaped in JSON.
        surplus -= sum(map(_count_key_ends, filter(None, contents)))
        surplus -= sum(_count_key_ends(node.id) + _count_key_ends(node.type) for node in nodes)
        surplus -= sum(sum(map(_count_key_ends, (edge.source, edge.target, edge.relation_type))) for edge in edges)
    if (surplus or not has_colons_adjacent_to_json_keys(block)) and may_have_duplicate_json_keys(block):
        return None
    return RowsWithoutOptionalFields(
        [at for at, line in enumerate(lines) if type(line) is _PlainNode],
        [node.id for node in nodes],
        [node.type for node in nodes],
        contents,
        attributes,
        [at for at, line in enumerate(lines) if type(line) is _PlainEdge],
        [edge.source for edge in edges],
        [edge.target for edge in edges],
        [edge.relation_type for edge in edges],
        _without_negative_zero(weights),
        cost,
    )


def _has_an_object_per_line(block: bytes) -> bool:
    """Return True if every line feed is between two objects, or at the end."""
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text[:-1] == ord("\n"))
    return bool((text[ends - 1] == ord("}")).all() and (text[ends + 1] == ord("{")).all())


def _count_given(values: list[Any]) -> int:
    return len(values) - values.count(None)


def _count_key_ends(text: str) -> int:
    return text.count('":')


def _count_attribute_keys(texts: list[bytes]) -> int:
    """Return the number of keys that lines with these attributes have for them."""
    known = {text: 0 if text == b"null" else 1 + count_json_keys(text) for text in set(texts)}
    return sum(map(known.__getitem__, texts))


def _canonical_attributes(texts: list[bytes]) -> list[str | None]:
    """Return attributes as canonical JSON; equal texts are checked once. Raises _UnusualAttributes and DecodeError."""
    known = {text: _canonical(text) for text in set(texts)}
    return [*map(known.__getitem__, texts)]


def _canonical(text: bytes) -> str | None:
    value = _decode_attributes(text)
    if value is None:
        return None
    encoded = encode_canonical(value)
    if count_json_keys(encoded) != count_json_keys(text):
        raise _UnusualAttributes
    if len(encoded) <= MAX_ATTRIBUTES_BYTES and _is_harmless(encoded):
        return encoded.decode()
    faults = ValidationErrorCollector()
    canonical = encode_canonical_attributes_json(value, faults)
    if faults.errors:
        raise _UnusualAttributes
    return canonical


def _is_harmless(encoded: bytes) -> bool:
    """Return True if canonical JSON is certainly neither too deep nor has an integer of more than 64 bits."""
    return encoded.count(b"{") + encoded.count(b"[") < MAX_ATTRIBUTES_DEPTH and _LONG_NUMBER.search(encoded) is None


def _without_negative_zero(weights: list[float | None]) -> list[float | None]:
    if any(weight == 0 for weight in set(weights)):
        return [None if weight is None else weight + 0.0 for weight in weights]
    return weights


def hash_import_row_keys(rows: RowsWithoutOptionalFields) -> NDArray[np.int64]:
    """Return the hashes of the keys of all rows, as in `SeenImportKeys`: nodes, then edges."""
    edges = zip(rows.sources, rows.targets, rows.relation_types, strict=True)
    hashes = [*map(hash, rows.ids), *map(hash, edges)]
    return np.array(hashes, np.int64)
