"""Temporal values in attributes: JSON objects such as ``{"$date": "2026-01-02"}``, named like the functions.

Strings stay strings, whatever they look like.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from kgserve.cypher.interpreter.temporal_construction import TYPE_NAMES
from kgserve.cypher.interpreter.temporal_functions import FUNCTIONS, is_temporal_value
from kgserve.errors import InvalidInput
from kgserve.platform.codecs import json_decoder

_TAG = "$"
_TAGS = {kind: _TAG + name for kind, name in TYPE_NAMES.items()}
_FUNCTIONS = {tag: FUNCTIONS[tag.removeprefix(_TAG)] for tag in _TAGS.values()}
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = json_decoder(dict[str, Any]).decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_property_as_json(value: Any) -> Any:
    """Encode a property value as JSON: temporal values become objects."""
    if isinstance(value, list):
        return [encode_property_as_json(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: encode_property_as_json(each) for name, each in cast("dict[str, Any]", value).items()}
    return {_TAGS[type(value)]: str(value)} if is_temporal_value(value) else value


def decode_property_from_json(value: Any) -> Any:
    """Decode a property value from JSON; objects whose text is no temporal value stay maps."""
    if isinstance(value, list):
        return [decode_property_from_json(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = decode_tagged_temporal_value(cast("dict[str, Any]", value))
    if found is not None:
        return found
    return {name: decode_property_from_json(each) for name, each in cast("dict[str, Any]", value).items()}


def may_json_contain_temporal_values(text: str) -> bool:
    """Return whether the JSON text of attributes may have temporal values."""
    return f'"{_TAG}' in text


def decode_tagged_temporal_value(value: dict[str, Any]) -> Any:
    """Decode a temporal value from an object with a type tag; None for any other map."""
    if len(value) != 1:
        return None
    [(tag, text)] = value.items()
    function = _FUNCTIONS.get(tag)
    if function is None or not isinstance(text, str):
        return None
    try:
        return function(text, now=_EPOCH)
    except InvalidInput:
        return None


def format_temporal_attributes_as_iso(text: str) -> str:
    """Return the JSON text of attributes with temporal values as ISO texts, as answers show the columns of a node."""
    if not may_json_contain_temporal_values(text):
        return text
    return _encode(_to_text(_decode(text))).decode()


def _to_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_text(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    found = decode_tagged_temporal_value(entries)
    return {name: _to_text(each) for name, each in entries.items()} if found is None else str(found)
