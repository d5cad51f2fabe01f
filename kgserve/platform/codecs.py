"""JSON and MessagePack into typed values, from any thread.

msgspec works out what a Struct holds when it is first decoded, and leaves that half done in sight of other threads: one
that decodes the same Struct at that moment follows a null pointer, and the process is gone (msgspec 0.22). Here one
thread at a time works out a type, and no value is decoded into a type that is not worked out.
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

_working_out = threading.RLock()
_VALIDATION_ERROR_PATTERN = re.compile(r"(?P<message>.*?)(?: - at `(?:key in )?(?P<path>[^`]*)`)?", re.DOTALL)
_UNKNOWN_FIELD_PATTERN = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_CHOICES_INTRODUCTIONS = {"Invalid enum value": ": it is one of ", "Object contains unknown": "; there are "}
_JSON_PATH_STEP_PATTERN = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


_SURROGATES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def lone_surrogate(text: bytes) -> str | None:
    """Say where JSON text has half a surrogate pair, which no Unicode text may hold; None if it has not.

    For texts that could not be decoded.
    """
    for found in _SURROGATES.finditer(text):
        if found["half"]:
            half = found["half"].decode()
            return f"holds half a surrogate pair, \\{half} at byte {found.start()}; no text in Unicode may hold that"
    return None


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
@cache
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON into ``kind``: any type that msgspec takes. The same one each time."""
    with _working_out:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
@cache
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of MessagePack into ``kind``. The same one each time."""
    with _working_out:
        return msgspec.msgpack.Decoder(kind)


@overload
def decode_json(text: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(text: bytes | str, kind: Any = Any) -> Any: ...
def decode_json(text: bytes | str, kind: Any = Any) -> Any:
    """A JSON text as ``kind``. Raises msgspec's DecodeError, or its ValidationError when the value does not fit."""
    return json_decoder(kind).decode(text)


@overload
def convert(
    value: Any, kind: type[T], *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> T: ...
@overload
def convert(
    value: Any, kind: Any, *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None
) -> Any: ...
def convert(value: Any, kind: Any, *, strict: bool = True, dec_hook: Callable[[type, Any], Any] | None = None) -> Any:
    """Plain values as ``kind``; when not ``strict``, text is taken for numbers. Raises msgspec's ValidationError."""
    json_decoder(kind)  # which works it out
    return msgspec.convert(value, kind, strict=strict, dec_hook=dec_hook)


def place_of(error: msgspec.ValidationError, kind: Any) -> FieldError:
    """Msgspec's message taken apart: ``nodes[0].id`` and what is wrong there. A field it names joins the path.

    ``kind`` is what was to be read; of a value or a field that is none of those that there are, these are told.
    """
    found = _VALIDATION_ERROR_PATTERN.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    path = path.removeprefix("$").removeprefix(".")
    field = _UNKNOWN_FIELD_PATTERN.fullmatch(message)
    telling = next((words for start, words in _CHOICES_INTRODUCTIONS.items() if message.startswith(start)), None)
    if telling and (choices := _choices_at(kind, path)):
        message += f"{telling}{', '.join(map(str, choices))}"
    if field is not None:
        path = f"{path}.{field['name']}" if path else field["name"]
    return FieldError(path, message)


def kind_of(kind: inspect.Type) -> Any:
    """The kind itself: without what is said of it, and without null, if one is left then."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return kind_of(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _choices_at(kind: Any, path: str) -> tuple[Any, ...]:
    """The values or fields that ``kind`` takes at a place such as ``nodes[0].mode``; none where any may stand."""
    json_decoder(kind)  # which works it out
    found = kind_of(inspect.type_info(kind))
    for step in _JSON_PATH_STEP_PATTERN.findall(path):
        match found:
            case inspect.StructType() if not step.startswith("["):
                found = next((kind_of(each.type) for each in found.fields if each.encode_name == step), None)
            case inspect.ListType():
                found = kind_of(found.item_type)
            case inspect.DictType():
                found = kind_of(found.value_type)
            case _:
                return ()
    match found:
        case inspect.LiteralType():
            return found.values
        case inspect.UnionType():
            return tuple(
                value for each in found.types if isinstance(each, inspect.LiteralType) for value in each.values
            )
        case inspect.StructType():
            return tuple(each.encode_name for each in found.fields)
        case _:
            return ()
