"""Filtering nodes by what their attributes say: a value asked for, the one form of it, and whether a row has it.

Top-level attributes alone, and of them texts, numbers, truth values and null: null asks for a key that is there and
null. Numbers are equal when they are the same number, 1 and 1.0 for example; true is not 1, and "1" is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.fields import MAX_ATTRIBUTES_BYTES

MAX_CONDITIONS = 20
MAX_ATTRIBUTES_TEXT = MAX_ATTRIBUTES_BYTES
ATTRIBUTES_DESCRIPTION = (
    "Only nodes with all of these attributes, exactly: texts, numbers, true, false; null: there, and null"
)

Scalar = str | int | float | bool | None
Wanted = Annotated[dict[str, Scalar], Meta(max_length=MAX_CONDITIONS, description=ATTRIBUTES_DESCRIPTION)]
"""Attributes asked for, by key."""

_DIGEST_BYTES = 16
_INTEGER_KEY_RANGE = range(-(1 << 63), 1 << 64)
_encode = msgspec.msgpack.Encoder().encode
_decode = json_decoder(dict[str, Any]).decode


class Condition(msgspec.Struct, frozen=True):
    """One attribute that is asked for: its key, and its value in MessagePack, where equal values are equal bytes."""

    key: str
    value: bytes

    @property
    def digest(self) -> bytes:
        """What stands for it in an index: 16 bytes."""
        return blake2b(_encode(self.key) + self.value, digest_size=_DIGEST_BYTES).digest()


def conditions(wanted: Mapping[str, Scalar] | None) -> tuple[Condition, ...]:
    """What is asked for, in the order of the keys."""
    return tuple(Condition(key, _one_form(value)) for key, value in sorted((wanted or {}).items()))


def has_all(attributes: str, wanted: tuple[Condition, ...]) -> bool:
    """Whether a node's attributes, as JSON, meet all conditions."""
    if not wanted:
        return True
    found = _decode(attributes)
    return all(each.key in found and _is(found[each.key], each.value) for each in wanted)


def digests(attributes: str) -> set[bytes]:
    """What stands for each attribute of a node that can be asked for."""
    if attributes == "{}":
        return set()
    found = _decode(attributes).items()
    return {Condition(key, _one_form(value)).digest for key, value in found if not isinstance(value, dict | list)}


def _is(value: Any, wanted: bytes) -> bool:
    return not isinstance(value, dict | list) and _one_form(value) == wanted


def _one_form(value: Scalar) -> bytes:
    """A value in MessagePack; a number without a fraction is an integer, however it was written."""
    if isinstance(value, float) and value.is_integer() and int(value) in _INTEGER_KEY_RANGE:
        return _encode(int(value))
    return _encode(value)
