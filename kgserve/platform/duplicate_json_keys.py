"""Duplicate keys in JSON text, which decoders accept silently.

Keys are counted in the text and in the text that its decoded value is encoded to, where no key occurs twice. Both take
a few µs per kB; only texts whose counts differ, or that escape quotation marks or colons, are parsed in Python.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from kgserve.platform.codecs import json_decoder

_KEY_END = b'":'
_WHITE_SPACE = b" \t\r\n"
_SPACED_COLON_ENDS = (b" :", b"\t:", b"\r:", b"\n:")
_SPACED_KEY_END = re.compile(rb'"[ \t\r\n]+:')
_WINDOW_BYTES = 256 << 10  # other threads can run after each
_MAX_SPACED_COLONS = 1000
_MAX_SPACES = 64  # more are taken for a key
_ESCAPED = re.compile(rb"\\u00(?:0[9aAdD]|2[02]|3[aA])")
"""Escapes of white space, quotation marks and colons, which look different once they are encoded again."""

_decode = json_decoder(Any).decode
_decode_lines = json_decoder(Any).decode_lines
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


def find_duplicate_json_key(text: bytes) -> str | None:
    """Return the path of the first key that occurs twice in an object of valid JSON text, such as ``nodes[0].id``."""
    if has_colons_adjacent_to_json_keys(text):
        try:
            if _encode(_decode(text)).count(_KEY_END) == text.count(_KEY_END):
                return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return _parse_duplicate_key(text)


def decode_json_with_unique_keys(text: bytes) -> Any:
    """Decode JSON. Raises msgspec's DecodeError, also for a key that occurs twice in an object."""
    value = _decode(text)
    if (path := find_duplicate_json_key(text)) is not None:
        raise msgspec.DecodeError(f"it has the key `{path}` twice")
    return value


def may_have_duplicate_json_keys(lines: bytes) -> bool:
    """Return False if certainly no object in these lines of valid JSON has a key twice."""
    if not has_colons_adjacent_to_json_keys(lines):
        return True
    try:
        return _encode_lines(_decode_lines(lines)).count(_KEY_END) != lines.count(_KEY_END)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True


def count_json_keys(text: bytes) -> int:
    """Return the number of keys in JSON text without escaped quotation marks; never less."""
    windows = range(0, len(text), _WINDOW_BYTES)
    return sum(text.count(_KEY_END, start, start + _WINDOW_BYTES + len(_KEY_END) - 1) for start in windows)


def has_colons_adjacent_to_json_keys(text: bytes) -> bool:
    """Return whether each key is followed directly by its colon, and nothing else can be mistaken for that."""
    if any(_has_spaced_key(text, end) for end in _SPACED_COLON_ENDS):
        return False
    return _find(text, b"\\u00") < 0 or _ESCAPED.search(text) is None


def _has_spaced_key(text: bytes, end: bytes) -> bool:
    """Return whether a quotation mark precedes a colon with white space between, the last of which ``end`` has."""
    at = _find(text, end)
    for _ in range(_MAX_SPACED_COLONS):
        if at < 0:
            return False
        if text[max(at - _MAX_SPACES, 0) : at].rstrip(_WHITE_SPACE)[-1:] in {b'"', b""}:
            return True
        at = _find(text, end, at + 2)
    return _SPACED_KEY_END.search(text) is not None


def _find(text: bytes, part: bytes, start: int = 0) -> int:
    """Return the first place of a part, or -1, as `bytes.find`."""
    for first in range(start, len(text), _WINDOW_BYTES):
        at = text.find(part, first, first + _WINDOW_BYTES + len(part) - 1)
        if at >= 0:
            return at
    return -1


class _ParsedObject(dict[str, Any]):
    """Object with the path of the first duplicate key in it, if any."""

    duplicate: str | None = None


def _parse_duplicate_key(text: bytes) -> str | None:
    try:
        return _duplicate_in(json.loads(text, object_pairs_hook=_build_object))
    except (ValueError, RecursionError):
        return None  # decoding reports such text


def _build_object(pairs: list[tuple[str, Any]]) -> _ParsedObject:
    found = _ParsedObject()
    for name, value in pairs:
        inner = _duplicate_in(value)
        duplicate = name if name in found else None if inner is None else _join_path(name, inner)
        if found.duplicate is None:
            found.duplicate = duplicate
        found[name] = value
    return found


def _duplicate_in(value: Any) -> str | None:
    if isinstance(value, _ParsedObject):
        return value.duplicate
    if isinstance(value, list):
        for place, each in enumerate(cast("list[Any]", value)):
            if (inner := _duplicate_in(each)) is not None:
                return _join_path(f"[{place}]", inner)
    return None


def _join_path(outer: str, inner: str) -> str:
    return f"{outer}{inner}" if inner.startswith("[") else f"{outer}.{inner}"
