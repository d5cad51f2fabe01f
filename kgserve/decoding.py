"""JSON and MessagePack into typed values, from any thread.

msgspec works out what a Struct holds when it is first decoded, and leaves that half done in sight of other threads: one
that decodes the same Struct at that moment follows a null pointer, and the process is gone (msgspec 0.22). Here one
thread at a time works out a type, and no value is decoded into a type that is not worked out.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_working_out = threading.RLock()


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


def kind_of(kind: inspect.Type) -> Any:
    """The kind itself: without what is said of it, and without null, if one is left then."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return kind_of(kinds[0]) if len(kinds) == 1 else kind
    return kind
