"""Request bodies: media type, size, JSON into Structs; every fault with a sentence and, where known, its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar import Request

from kgserve.decoding import decode_json
from kgserve.errors import InvalidInput, TooLarge, Unsupported
from kgserve.http.problem import ClientLeft
from kgserve.http.service import service_of
from kgserve.model.faults import place_of
from kgserve.settings import MEBIBYTE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, Any]

INLINE_BYTES = 64 << 10  # decoding this much takes about 0.1 ms, less than the way to a thread and back
FORM = "application/x-www-form-urlencoded"
NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})

_JSON = re.compile(r"application/json|[a-z0-9.+!#$&^_-]+/[a-z0-9.+!#$&^_-]+\+json")


async def read_json(request: AnyRequest, into: type[T]) -> T:
    """The body as ``into``. Raises Unsupported, TooLarge, InvalidInput, or ClientLeft when it never arrived."""
    _check_headers(request, _is_json)
    return await _decoded(request, await _body(request), into)


async def read_json_if_any(request: AnyRequest, into: type[T]) -> T | None:
    """As `read_json`; None when there is no body, whatever its headers say of it."""
    body = await _body(request)
    if not body:
        return None
    _check_headers(request, _is_json)
    return await _decoded(request, body, into)


def ndjson_chunks(request: AnyRequest) -> AsyncIterator[bytes]:
    """The body piece by piece, of any length. Raises Unsupported at once, ClientLeft when it breaks off."""
    _check_headers(request, NDJSON.__contains__)
    return _chunks(request)


def chunks_of(request: AnyRequest, media: frozenset[str]) -> AsyncIterator[bytes]:
    """As `ndjson_chunks`, of a body of one of these media types."""
    _check_headers(request, media.__contains__)
    return _chunks(request)


def decode(body: bytes, into: type[T]) -> T:
    """JSON text as ``into``; of a key that an object holds twice the last one counts."""
    if not body.strip():
        raise InvalidInput("the body is empty; a JSON object is expected")
    try:
        return decode_json(body, into)
    except msgspec.ValidationError as error:
        fault = place_of(error)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply") from None


def _check_headers(request: AnyRequest, fits: Any) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise Unsupported(f"content-encoding {encoding[:40]} is not taken; send the body as it is")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media and not fits(media) and not (media == FORM and not _from_browser(request)):
        raise Unsupported(f"content-type {media[:80]} is not taken here")


def _is_json(media: str) -> bool:
    return _JSON.fullmatch(media) is not None


def _from_browser(request: AnyRequest) -> bool:
    """Whether a page may have sent it: a form needs no preflight, and browsers mark what pages send."""
    return "origin" in request.headers or "sec-fetch-site" in request.headers


async def _body(request: AnyRequest) -> bytes:
    return await _whole(request, service_of(request).settings.max_body_mb * MEBIBYTE)


async def _decoded(request: AnyRequest, body: bytes, into: type[T]) -> T:
    if len(body) <= INLINE_BYTES:
        return decode(body, into)
    return await service_of(request).call(decode, body, into)


async def _whole(request: AnyRequest, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in _chunks(request):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is over {limit // MEBIBYTE} MiB; send smaller batches, or use import")


async def _chunks(request: AnyRequest) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if part := message.get("body", b""):
            yield part
        more = message.get("more_body", False)
