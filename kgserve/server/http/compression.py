"""What saves bytes on the way: answers as gzip for those who take it, and none for those who have it already.

Only an answer that is there as a whole is made smaller. Streams are not: an export, rows of a statement and events
leave as they are made, and would wait in the compressor; who wants less of them asks for Parquet, or pipes them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import anyio.to_thread
import xxhash

from kgserve.server.http.connection import in_task

if TYPE_CHECKING:
    from kgserve.server.http.problem import Header

MIN_GZIP_BYTES = 1_024
"""Bytes from which on an answer is made smaller."""
GZIP_LEVEL = 5
MAX_INLINE_GZIP_BYTES = 16 << 10
"""So many bytes are compressed where they are, in half a millisecond; more of them in a thread."""
VARY: Header = (b"vary", b"Accept-Encoding")
GZIP: Header = (b"content-encoding", b"gzip")

_GZIP_WINDOW = 31
_COMPRESSIBLE = re.compile(rb"text/(?!event-stream)|application/(?:[a-z0-9.-]+\+)?(?:json|xml|javascript)|image/svg")
_MAX_ACCEPT_ENCODING_BYTES = 200
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
_OF_BODY = frozenset({b"content-length", b"content-type", b"content-encoding"})


def takes_gzip(header: bytes | None) -> bool:
    """Whether an Accept-Encoding lets an answer be gzip."""
    return header is not None and (_takes_gzip(header) if len(header) <= _MAX_ACCEPT_ENCODING_BYTES else False)


@lru_cache(maxsize=256)
def _takes_gzip(header: bytes) -> bool:
    qualities: dict[str, float] = {}
    for part in header.decode("latin-1").lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            qualities[name] = float(quality)
        except ValueError:
            return False
    named = [qualities[name] for name in _GZIP_NAMES if name in qualities]
    return max(named or [qualities.get("*", 0.0)]) > 0


def may_be_smaller(headers: Sequence[Header]) -> bool:
    """Whether an answer with these headers is a text that is not gzip yet."""
    given = dict(headers)
    media = given.get(b"content-type", b"")
    return b"content-encoding" not in given and _COMPRESSIBLE.match(media) is not None


async def smaller(body: bytes) -> bytes:
    """A body as gzip."""
    if len(body) <= MAX_INLINE_GZIP_BYTES:
        return _compressed(body)
    await in_task()
    return await anyio.to_thread.run_sync(_compressed, body)


def _compressed(body: bytes) -> bytes:
    coder = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return coder.compress(body) + coder.flush()


def as_gzip(headers: Iterable[Header], length: int) -> list[Header]:
    """The headers of an answer that is gzip now, of so many bytes."""
    kept = [header for header in headers if header[0] != b"content-length"]
    return [*kept, GZIP, VARY, (b"content-length", b"%d" % length)]


def etag_of(body: bytes) -> str:
    """A tag of a text that stays the same, whatever coding it is sent in."""
    return f'W/"{xxhash.xxh3_64_hexdigest(body)}"'


def is_known(asked: bytes, headers: Iterable[Header]) -> bool:
    """Whether an If-None-Match names what would be sent."""
    tag = next((value for name, value in headers if name == b"etag"), None)
    if tag is None:
        return False
    names = {each.strip().removeprefix(b"W/") for each in asked.split(b",")}
    return b"*" in names or tag.removeprefix(b"W/") in names


def without_body(headers: Iterable[Header]) -> list[Header]:
    """The headers of an answer that says only that nothing has changed."""
    return [header for header in headers if header[0] not in _OF_BODY]
