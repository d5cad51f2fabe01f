"""Request bodies: media type, size, JSON into Structs; every fault with a sentence and, where known, its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar import Request

from kgserve.decoding import decode_json, place_of
from kgserve.errors import InvalidInput, TooLarge, Unsupported
from kgserve.http.problem import ClientLeft
from kgserve.http.service import service_of
from kgserve.settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from litestar.types import Receive

    from kgserve.http.service import Service

    Headers = Iterable[tuple[bytes, bytes]]

T = TypeVar("T", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, Any]

INLINE_BYTES = 64 << 10  # decoding this much takes about 0.1 ms, less than the way to a thread and back
FORM = "application/x-www-form-urlencoded"
NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})

_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")


async def read_json(request: AnyRequest, into: type[T]) -> T:
    """The body as ``into``. Raises Unsupported, TooLarge, InvalidInput, or ClientLeft when it never arrived."""
    return await json_of(request.scope["headers"], request.receive, service_of(request), into)


async def json_of(headers: Headers, receive: Receive, service: Service, into: type[T], *, optional: bool = False) -> T:
    """As `read_json`; ``optional``: without a body all is left out, whatever its headers say of it."""
    if not optional:
        _check_headers(headers, _is_json)
    body = await _body(headers, receive, service)
    if optional and not body:
        return into()
    if optional:
        _check_headers(headers, _is_json)
    return await _decoded(service, body, into)


def chunks_of(request: AnyRequest, media: frozenset[str]) -> AsyncIterator[bytes]:
    """The body, of one of these media types, piece by piece, of any length.

    Raises Unsupported at once, ClientLeft when it breaks off.
    """
    _check_headers(request.scope["headers"], media.__contains__)
    return _chunks(request.receive)


def decode(body: bytes, into: type[T]) -> T:
    """JSON text as ``into``; of a key that an object holds twice the last one counts."""
    if not body.strip():
        raise InvalidInput("the body is empty; a JSON object is expected")
    try:
        return decode_json(body, into)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None


def _check_headers(headers: Headers, fits: Callable[[str], bool]) -> None:
    encoding = _header(headers, b"content-encoding").strip().lower()
    if encoding not in {"", "identity"}:
        raise Unsupported(f"content-encoding {encoding[:40]} is not taken; send the body as it is")
    media = _header(headers, b"content-type").partition(";")[0].strip().lower()
    if media and not fits(media) and not (media == FORM and not _from_browser(headers)):
        raise Unsupported(f"content-type {media[:80]} is not taken here")


def _is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def _from_browser(headers: Headers) -> bool:
    """Whether a page may have sent it: a form needs no preflight, and browsers mark what pages send."""
    return any(name in {b"origin", b"sec-fetch-site"} for name, _ in headers)


def _header(headers: Headers, wanted: bytes) -> str:
    """The value of the first header of this name; nothing when there is none."""
    return next((value.decode("latin-1") for name, value in headers if name == wanted), "")


async def _body(headers: Headers, receive: Receive, service: Service) -> bytes:
    limit = service.settings.max_body_mb * MEBIBYTE
    announced = _header(headers, b"content-length")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in _chunks(receive):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _decoded(service: Service, body: bytes, into: type[T]) -> T:
    return decode(body, into) if len(body) <= INLINE_BYTES else await service.call(decode, body, into)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the body is over {limit // MEBIBYTE} MiB; send smaller batches, use import, or raise --max-body-mb"
    )


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if part := message.get("body", b""):
            yield part
        more = message.get("more_body", False)
