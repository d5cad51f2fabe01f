"""Protection against malicious web pages: Host and Origin checks, and CORS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kgserve.errors import Forbidden, InvalidInput
from kgserve.platform.network_addresses import is_loopback
from kgserve.server.http.error_responses import HostNotAllowed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgserve.server.http.error_responses import Header


BROWSER_HEADERS = frozenset({b"host", b"origin", b"sec-fetch-site"})
"""Headers that `CrossSiteGuard` checks."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=._~:@%\[\]-]*")  # RFC 3986, 3.2.2, and the port
_ORIGIN_SCHEMES = ("http", "https")
_VARY_BY_ORIGIN: Header = (b"vary", b"Origin")
_PRIVATE = b"access-control-request-private-network"
_PAGE_PATHS = ("/explorer/", "/docs")


def is_web_page_path(path: str) -> bool:
    """Return whether a path is a page for people, to which other sites may link."""
    return path == "/" or path.startswith(_PAGE_PATHS)


class CrossSiteGuard:
    """Refuses cross-site requests and requests for other host names.

    A server on a loopback address may run without keys, but any page in a browser on that machine can reach it. The
    Host check prevents DNS rebinding; the Origin check refuses requests by pages of other sites. Images, links and
    forms with GET carry no Origin; browsers mark them with Sec-Fetch-Site instead.
    """

    def __init__(self, host: str, origins: AllowedOrigins | None = None, allowed_hosts: str = "") -> None:
        """Configure the guard.

        host: address on which the server listens. allowed_hosts: further names, separated by commas. A server that is
        not on a loopback address checks names only if ``allowed_hosts`` is not empty.
        """
        further = {name.strip().lower().strip("[]") for name in allowed_hosts.split(",") if name.strip()}
        bounded = is_loopback(host) or further
        self._names = LOOPBACK_NAMES | {host.lower().strip("[]")} | further if bounded else None
        self._origins = origins or AllowedOrigins()

    def check(self, headers: Iterable[tuple[bytes, bytes]], *, is_page: bool = False) -> None:
        """Check the Host, Origin and Sec-Fetch-Site headers. Raises InvalidInput, HostNotAllowed or Forbidden.

        is_page: the request is for a page, to which other sites may link (`is_web_page_path`).
        """
        sent = [*headers]
        hosts = [value for name, value in sent if name == b"host"]
        origins = [value for name, value in sent if name == b"origin"]
        if len(hosts) != 1 or not hosts[0]:
            raise InvalidInput("exactly one Host header is required")
        host = _HostHeader.parse(hosts[0])
        if self._names is not None and host.name not in self._names:
            raise HostNotAllowed(
                "the Host header names neither localhost nor a host in --allowed-hosts; use an allowed name"
            )
        if not host.plain:
            raise InvalidInput("Invalid host header")
        for origin in origins:
            page = origin.decode("latin-1")
            if page not in self._origins and (host.parts is None or not _is_same_origin(page, host.parts)):
                raise Forbidden("pages of other sites may not use this server")
        if (b"sec-fetch-site", b"cross-site") in sent and not origins and not is_page:
            raise Forbidden("pages of other sites may not use this server, not even by links or images")


class _HostHeader(NamedTuple):
    """Host header: its parts and name if it is well formed, and whether all its characters are allowed (``plain``)."""

    parts: SplitResult | None
    name: str | None
    plain: bool

    @classmethod
    def parse(cls, header: bytes) -> _HostHeader:
        parts = _authority(f"//{header.decode('latin-1')}")
        return cls(parts, parts.hostname if parts else None, _HOST.fullmatch(header) is not None)


def _authority(text: str) -> SplitResult | None:
    """Return the parts of a well-formed URL of scheme, host and port only; None for any other text."""
    try:
        parts = urlsplit(text)
        odd = parts.path or parts.query or parts.fragment or parts.username is not None or parts.port == 0
    except ValueError:
        return None
    return None if odd or not parts.hostname else parts


def _is_same_origin(origin: str, host: SplitResult) -> bool:
    page = _authority(origin)
    if page is None or page.scheme not in DEFAULT_PORTS:
        return False
    default = DEFAULT_PORTS[page.scheme]
    return page.hostname == host.hostname and (page.port or default) == (host.port or default)


class AllowedOrigins:
    """Web sites whose pages may use this server, and the CORS headers for them.

    Protocol: https://fetch.spec.whatwg.org/#http-cors-protocol. Pages set the header with the key themselves, so
    credentials of the browser are never allowed.
    """

    def __init__(self, listed: frozenset[str] = frozenset()) -> None:
        self.listed = listed

    @classmethod
    def parse(cls, text: str) -> AllowedOrigins:
        """Parse origins that are separated by commas. Raises InvalidInput for anything else."""
        return cls(frozenset(_checked_origin(part.strip()) for part in text.split(",") if part.strip()))

    def __contains__(self, origin: str) -> bool:
        return origin in self.listed

    def headers(self, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """Return the CORS headers of a response; for origins that are not allowed only Vary."""
        if not self.listed:
            return ()
        origin = next((value for name, value in given if name == b"origin"), None)
        if origin is None or origin.decode("latin-1") not in self.listed:
            return (_VARY_BY_ORIGIN,)
        return (
            _VARY_BY_ORIGIN,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
        )

    def preflight(self, method: str, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """Return the headers of the response to a CORS preflight request; empty for any other request."""
        if method != "OPTIONS" or not self.listed:
            return ()
        headers = dict(given)
        is_preflight = b"access-control-request-method" in headers
        if not is_preflight or headers.get(b"origin", b"").decode("latin-1") not in self.listed:
            return ()
        private = ((b"access-control-allow-private-network", b"true"),) if _PRIVATE in headers else ()
        return (*PREFLIGHT, *private)


def _checked_origin(text: str) -> str:
    if text == "*":
        raise InvalidInput("--cors-origins: '*' would let every web site use this server; list the allowed origins")
    if not _is_origin(text):
        raise InvalidInput(
            f"--cors-origins: {text!r} is not an origin; write it like https://app.example:8443, lower case, no path"
        )
    return text


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        bare = f"{parts.scheme}://{parts.netloc}" == text == text.lower() and parts.port != 0
    except ValueError:
        return False
    return bare and parts.scheme in _ORIGIN_SCHEMES and bool(parts.hostname) and not {"*", "@"} & set(text)


_ALLOWED_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_ALLOWED_HEADERS = (
    b"Authorization, Content-Type, Accept, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, X-Request-Id, "
    b"Kgserve-Store, "
    b"Kgserve-Read, Kgserve-At-Least, Kgserve-Max-Staleness, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
)
_MAX_AGE_SECONDS = 600
PREFLIGHT: tuple[Header, ...] = (
    (b"access-control-allow-methods", _ALLOWED_METHODS),
    (b"access-control-allow-headers", _ALLOWED_HEADERS),
    (b"access-control-max-age", str(_MAX_AGE_SECONDS).encode()),
)
"""Response headers that say which methods and headers pages of other origins may send."""
EXPOSED_HEADERS = (
    b"X-Request-Id, Retry-After, WWW-Authenticate, Kgserve-Sequence, Kgserve-Age, ETag, Content-Disposition, "
    b"Idempotent-Replayed, Mcp-Session-Id, Mcp-Protocol-Version"
)
"""Response headers that pages of other origins may read."""
