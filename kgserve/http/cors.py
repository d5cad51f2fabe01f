"""Cross-origin requests: pages of listed web sites may use this server, and are told so; all others may not.

https://fetch.spec.whatwg.org/#http-cors-protocol is the protocol. Keys are sent as a header that a page sets itself, so
no credentials of the browser are ever allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kgserve.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgserve.http.headers import Header

ALLOWED_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
ALLOWED_HEADERS = (
    b"Authorization, Content-Type, Accept, If-Match, If-None-Match, Last-Event-ID, X-Request-Id, "
    b"Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
)
EXPOSED_HEADERS = (
    b"X-Request-Id, Retry-After, WWW-Authenticate, Kgserve-Sequence, ETag, Content-Disposition, "
    b"Mcp-Session-Id, Mcp-Protocol-Version"
)
MAX_AGE_SECONDS = 600

_SCHEMES = ("http", "https")
_VARY: Header = (b"vary", b"Origin")
_PREFLIGHT: tuple[Header, ...] = (
    (b"access-control-allow-methods", ALLOWED_METHODS),
    (b"access-control-allow-headers", ALLOWED_HEADERS),
    (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
)
_PRIVATE = b"access-control-request-private-network"


class Origins:
    """The web sites whose pages may use this server."""

    def __init__(self, listed: frozenset[str] = frozenset()) -> None:
        self._listed = listed

    @classmethod
    def parse(cls, text: str) -> Origins:
        """From origins that are separated by commas. Raises InvalidInput for what is none."""
        return cls(frozenset(_origin(part.strip()) for part in text.split(",") if part.strip()))

    def __bool__(self) -> bool:
        return bool(self._listed)

    def __contains__(self, origin: str) -> bool:
        return origin in self._listed

    def headers(self, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """What an answer says to the page that asked; nothing to others."""
        if not self._listed:
            return ()
        origin = _value(given, b"origin")
        if origin is None or origin.decode("latin-1") not in self._listed:
            return (_VARY,)
        return (
            _VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
        )

    def preflight(self, method: str, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """The answer to a browser that asks before a page's request; nothing when it is no such question."""
        if method != "OPTIONS" or not self._listed:
            return ()
        headers = dict(given)
        asks = b"access-control-request-method" in headers
        if not asks or headers.get(b"origin", b"").decode("latin-1") not in self._listed:
            return ()
        private = ((b"access-control-allow-private-network", b"true"),) if _PRIVATE in headers else ()
        return (*_PREFLIGHT, *private)


def _value(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name == wanted), None)


def _origin(text: str) -> str:
    if text == "*":
        raise InvalidInput("--cors-origins: '*' would let every web site use this server; list the origins that may")
    if not _is_origin(text):
        raise InvalidInput(
            f"--cors-origins: {text!r} is no origin; one looks like https://app.example:8443, lower case and no path"
        )
    return text


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        bare = f"{parts.scheme}://{parts.netloc}" == text == text.lower() and parts.port != 0
    except ValueError:
        return False
    return bare and parts.scheme in _SCHEMES and bool(parts.hostname) and not {"*", "@"} & set(text)
