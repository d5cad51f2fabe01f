"""Decoding of large JSON objects in slices of their arrays, so that other threads run in between.

A decoder holds the GIL until it is done: 9 MB take it 20 ms, and the check for duplicate keys 40 ms more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from kgserve.platform.codecs import decode_json, json_decoder, unwrap_optional_type
from kgserve.platform.duplicate_json_keys import count_json_keys, has_colons_adjacent_to_json_keys
from kgserve.platform.gil_yield import yield_gil

T = TypeVar("T", bound=msgspec.Struct)

LARGE_JSON_BYTES = 1 << 20
_SLICE_BYTES = 64 << 10


def decode_large_json_object(text: bytes, kind: type[T]) -> T | None:
    """Decode a large JSON object as ``kind``.

    Returns None if only decoding all of it at once can say what is wrong, such as a key that occurs twice.
    """
    if not has_colons_adjacent_to_json_keys(text):
        return None
    try:
        values = decode_json(text, dict[str, msgspec.Raw])
        lists = [
            (field, _JsonArrayDecoder(field.type, memoryview(values.pop(field.encode_name))))
            for field in _list_fields(kind)
            if len(memoryview(values.get(field.encode_name, b""))) > _SLICE_BYTES
        ]
        rest = msgspec.json.encode(values | {field.encode_name: () for field, _ in lists})
        decoded = decode_json(rest, kind)
        keys = _count_unique_keys(rest) + sum(array.keys for _, array in lists)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if keys != count_json_keys(text):
        return None
    for field, array in lists:
        msgspec.structs.force_setattr(decoded, field.name, array.values)
    return decoded


class _JsonArrayDecoder:
    """The values of a JSON array, and the number of keys in it, not counting duplicates."""

    def __init__(self, kind: Any, text: memoryview) -> None:
        decoder = json_decoder(kind)
        self.values: list[Any] = []
        self.keys = 0
        for part in _iterate_array_slices(text):
            self.values += decoder.decode(part)
            self.keys += _count_unique_keys(part)
            yield_gil()


def _iterate_array_slices(text: memoryview) -> Iterator[bytes]:
    """Yield arrays of about `_SLICE_BYTES` with the values of one array, in order."""
    values = json_decoder(list[msgspec.Raw]).decode(text)
    step = max(1, len(values) * _SLICE_BYTES // len(text))
    for start in range(0, len(values), step):
        yield b"[" + b",".join(map(memoryview, values[start : start + step])) + b"]"


def _count_unique_keys(text: bytes) -> int:
    return count_json_keys(msgspec.json.encode(decode_json(text)))


@cache
def _list_fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields that hold lists of any length."""
    json_decoder(kind)  # which works it out
    arrays = [(field, unwrap_optional_type(inspect.type_info(field.type))) for field in msgspec.structs.fields(kind)]
    return tuple(
        field
        for field, array in arrays
        if isinstance(array, inspect.ListType) and array.min_length is None and array.max_length is None
    )
