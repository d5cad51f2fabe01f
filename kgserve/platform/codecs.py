"""Thread-safe decoding of JSON and MessagePack into typed values.

msgspec analyzes a Struct when it first decodes it, and the half-done analysis is visible to other threads. A thread
that decodes the same Struct at that moment crashes the process (msgspec 0.22). Here types are analyzed by one thread at
a time, and a value is only decoded after its type was analyzed.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
from msgspec import inspect

from kgserve.errors import FieldError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_analysis_lock = threading.RLock()
_VALIDATION_ERROR_PATTERN = re.compile(r"(?P<message>.*?)(?: - at `(?:key in )?(?P<path>[^`]*)`)?", re.DOTALL)
_FIELD_FAULT_PATTERN = re.compile(
    r"Object (?:contains (?P<unknown>unknown)|missing required) field `(?P<name>.*)`", re.DOTALL
)
_BOUND_FAULT_PATTERN = re.compile(r"Expected `(?:int|float)(?: \| null)?` (?P<sign>[<>]=?) (?P<number>\S+)")
_BOUND_WORDS = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
_CHOICES_INTRODUCTIONS = {"Invalid enum value": ": it is one of ", "Unknown field": ". Allowed fields: "}
_JSON_PATH_STEP_PATTERN = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


_SURROGATES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def find_lone_surrogate(text: bytes) -> str | None:
    """Return a message that locates an unpaired surrogate in JSON text that failed to decode, or None."""
    for found in _SURROGATES.finditer(text):
        if found["half"]:
            half = found["half"].decode()
            return f"contains an unpaired surrogate, \\{half} at byte {found.start()}, which is not valid Unicode"
    return None


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
@cache
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the cached JSON decoder of ``kind``, any type that msgspec accepts."""
    with _analysis_lock:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
@cache
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the cached MessagePack decoder of ``kind``."""
    with _analysis_lock:
        return msgspec.msgpack.Decoder(kind)


@overload
def decode_json(text: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(text: bytes | str, kind: Any = Any) -> Any: ...
def decode_json(text: bytes | str, kind: Any = Any) -> Any:
    """Decode JSON as ``kind``. Raises msgspec's DecodeError, or ValidationError if the value does not fit."""
    return json_decoder(kind).decode(text)


@overload
def convert_plain_value_to_type(
    value: Any, kind: type[T], *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> T: ...
@overload
def convert_plain_value_to_type(
    value: Any, kind: Any, *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> Any: ...
def convert_plain_value_to_type(
    value: Any, kind: Any, *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> Any:
    """Convert plain values to ``kind``; without ``strict``, text is accepted for numbers.

    Raises msgspec's ValidationError.
    """
    json_decoder(kind)  # which works it out
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def locate_validation_error(error: msgspec.ValidationError, kind: Any) -> FieldError:
    """Return the path and message of a msgspec error, such as ``nodes[0].id`` and what is wrong there.

    A field that the message names is added to the path. A bound of a number is put in words. If a value or field is
    not one of those that ``kind`` allows, the message lists them.
    """
    found = _VALIDATION_ERROR_PATTERN.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    path = path.removeprefix("$").removeprefix(".")
    field = _FIELD_FAULT_PATTERN.fullmatch(message)
    if field is not None and field["unknown"]:
        message = f"Unknown field `{field['name']}`"
    bound = _BOUND_FAULT_PATTERN.fullmatch(message)
    if bound is not None:
        message = f"must be {_BOUND_WORDS[bound['sign']]} {bound['number'].removesuffix('.0')}"
    introduction = next((words for start, words in _CHOICES_INTRODUCTIONS.items() if message.startswith(start)), None)
    if introduction and (choices := _choices_at(kind, path)):
        message += f"{introduction}{', '.join(map(str, choices))}"
    if field is not None:
        path = f"{path}.{field['name']}" if path else field["name"]
    return FieldError(path, message)


def unwrap_optional_type(kind: inspect.Type) -> Any:
    """Return a type without metadata, and without null if one type remains."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return unwrap_optional_type(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _choices_at(kind: Any, path: str) -> tuple[Any, ...]:
    """Return the values or fields that ``kind`` allows at a path such as ``nodes[0].mode``; empty if any is allowed."""
    json_decoder(kind)  # which works it out
    found = unwrap_optional_type(inspect.type_info(kind))
    for step in _JSON_PATH_STEP_PATTERN.findall(path):
        match found:
            case inspect.StructType() if not step.startswith("["):
                found = next(
                    (unwrap_optional_type(each.type) for each in found.fields if each.encode_name == step), None
                )
            case inspect.ListType():
                found = unwrap_optional_type(found.item_type)
            case inspect.DictType():
                found = unwrap_optional_type(found.value_type)
            case _:
                return ()
    match found:
        case inspect.LiteralType():
            return found.values
        case inspect.UnionType():
            values = [value for each in found.types if isinstance(each, inspect.LiteralType) for value in each.values]
            is_number = any(isinstance(unwrap_optional_type(each), inspect.IntType) for each in found.types)
            return (*values, "or a whole number") if values and is_number else tuple(values)
        case inspect.StructType():
            return tuple(each.encode_name for each in found.fields)
        case _:
            return ()
