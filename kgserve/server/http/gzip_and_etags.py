"""Gzip compression of responses, and conditional requests (ETag, If-None-Match).

Only complete responses are compressed. Streams (exports, rows of a statement, events) are not, because the compressor
would delay them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import anyio.to_thread
import xxhash

from kgserve.server.http.connection import ensure_running_in_task

if TYPE_CHECKING:
    from kgserve.server.http.error_responses import Header

MIN_GZIP_BYTES = 1_024
"""Bytes of the smallest body that is compressed."""
GZIP_LEVEL = 5
MAX_INLINE_GZIP_BYTES = 16 << 10
"""Bytes of the largest body that is compressed on the event loop; larger ones are compressed in a thread."""
VARY_ENCODING_HEADER: Header = (b"vary", b"Accept-Encoding")
GZIP_ENCODING_HEADER: Header = (b"content-encoding", b"gzip")

_GZIP_WINDOW = 31
_COMPRESSIBLE = re.compile(rb"text/(?!event-stream)|application/(?:[a-z0-9.-]+\+)?(?:json|xml|javascript)|image/svg")
_MAX_ACCEPT_ENCODING_BYTES = 200
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
_BODY_HEADERS = frozenset({b"content-length", b"content-type", b"content-encoding"})


def accepts_gzip(header: bytes | None) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
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


def is_compressible_response(headers: Sequence[Header]) -> bool:
    """Return whether a response with these headers can be compressed: a text that is not encoded yet."""
    given = dict(headers)
    media = given.get(b"content-type", b"")
    return b"content-encoding" not in given and _COMPRESSIBLE.match(media) is not None


async def gzip_response_body(body: bytes) -> bytes:
    """Return the body compressed with gzip."""
    if len(body) <= MAX_INLINE_GZIP_BYTES:
        return _compress(body)
    await ensure_running_in_task()
    return await anyio.to_thread.run_sync(_compress, body)


def _compress(body: bytes) -> bytes:
    coder = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return coder.compress(body) + coder.flush()


def build_gzip_response_headers(headers: Iterable[Header], length: int) -> list[Header]:
    """Return the headers of a response for its gzip body of ``length`` bytes."""
    kept = [header for header in headers if header[0] != b"content-length"]
    return [*kept, GZIP_ENCODING_HEADER, VARY_ENCODING_HEADER, (b"content-length", b"%d" % length)]


def compute_etag(body: bytes) -> str:
    """Return a weak ETag of a body; it is the same with and without compression."""
    return f'W/"{xxhash.xxh3_64_hexdigest(body)}"'


def matches_etag(asked: bytes, headers: Iterable[Header]) -> bool:
    """Return whether an If-None-Match header matches the ETag among the response headers."""
    tag = next((value for name, value in headers if name == b"etag"), None)
    if tag is None:
        return False
    names = {each.strip().removeprefix(b"W/") for each in asked.split(b",")}
    return b"*" in names or tag.removeprefix(b"W/") in names


def build_not_modified_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of a 304 response: those of the full response without the ones that describe its body."""
    return [header for header in headers if header[0] not in _BODY_HEADERS]
