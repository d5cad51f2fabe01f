"""Attribute filters: conditions on top-level attributes, in canonical form.

Values are strings, numbers, booleans and null; null matches a key that is present with the value null. Numbers are
equal by value, 1 and 1.0 for example; true is not 1, and "1" is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.node_edge_fields import MAX_ATTRIBUTES_BYTES

MAX_ATTRIBUTE_CONDITIONS = 20
MAX_ATTRIBUTES_TEXT_BYTES = MAX_ATTRIBUTES_BYTES
ATTRIBUTES_DESCRIPTION = (
    "Only nodes with all of these attributes, compared exactly. Values: string, number, true, false; "
    "null matches an attribute that is present and null"
)

AttributeScalar = str | int | float | bool | None
AttributeConditionsInput = Annotated[
    dict[str, AttributeScalar], Meta(max_length=MAX_ATTRIBUTE_CONDITIONS, description=ATTRIBUTES_DESCRIPTION)
]
"""Requested attribute values by key."""
AttributeConditionsText = Annotated[
    str, Meta(max_length=MAX_ATTRIBUTES_TEXT_BYTES, description=f"{ATTRIBUTES_DESCRIPTION}. A JSON object")
]
"""Requested attribute values as JSON, in a query string."""

_DIGEST_BYTES = 16
_INTEGER_KEY_RANGE = range(-(1 << 63), 1 << 64)
_encode = msgspec.msgpack.Encoder().encode
_decode = json_decoder(dict[str, Any]).decode


class AttributeCondition(msgspec.Struct, frozen=True):
    """Condition on one attribute: its key and its value in MessagePack, where equal values are equal bytes."""

    key: str
    value: bytes

    @property
    def digest(self) -> bytes:
        """Digest of 16 bytes that represents the condition in an index."""
        return blake2b(_encode(self.key) + self.value, digest_size=_DIGEST_BYTES).digest()


def build_attribute_filter_conditions(wanted: Mapping[str, AttributeScalar] | None) -> tuple[AttributeCondition, ...]:
    """Return the conditions of an attribute filter, with canonically encoded values, ordered by key."""
    return tuple(AttributeCondition(key, _canonical(value)) for key, value in sorted((wanted or {}).items()))


def matches_attribute_conditions(attributes: str, wanted: tuple[AttributeCondition, ...]) -> bool:
    """Return True if a node's attributes, as JSON, meet all conditions."""
    if not wanted:
        return True
    found = _decode(attributes)
    return all(each.key in found and _matches(found[each.key], each.value) for each in wanted)


def compute_node_attribute_digests(attributes: str) -> set[bytes]:
    """Return the digests of a node's attributes, as an index of attribute conditions stores them."""
    if attributes == "{}":
        return set()
    found = _decode(attributes).items()
    return {
        AttributeCondition(key, _canonical(value)).digest for key, value in found if not isinstance(value, dict | list)
    }


def _matches(value: Any, wanted: bytes) -> bool:
    return not isinstance(value, dict | list) and _canonical(value) == wanted


def _canonical(value: AttributeScalar) -> bytes:
    """Return a value in MessagePack; a number without a fraction becomes an integer."""
    if isinstance(value, float) and value.is_integer() and int(value) in _INTEGER_KEY_RANGE:
        return _encode(int(value))
    return _encode(value)
