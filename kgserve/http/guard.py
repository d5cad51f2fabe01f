"""What a browser could be tricked into: requests for another host's name, and requests made by other sites' pages.

A server on a loopback address has no keys to ask for, but any page in a browser on that machine can reach it. The
Host check stops names that were pointed at 127.0.0.1 (DNS rebinding), the Origin check stops pages of other sites.
Sites that were listed are let in; `cors` tells their browsers so.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kgserve.errors import Forbidden, InvalidInput
from kgserve.http.cors import Origins
from kgserve.http.problem import Misdirected
from kgserve.model.hosts import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DEFAULT_PORTS = {"http": 80, "https": 443}

_USUAL_LENGTH = 255
_PLAIN = re.compile(rb"[0-9A-Za-z!$&'()*+,;=._~:@%\[\]-]*")  # RFC 3986, 3.2.2, and the port


class Guard:
    """Checks the headers of each request to a server bound to ``host``."""

    def __init__(self, host: str, origins: Origins | None = None, allowed_hosts: str = "") -> None:
        """``allowed_hosts`` are further names, separated by commas; where others may come only these, if there are."""
        further = {name.strip().lower().strip("[]") for name in allowed_hosts.split(",") if name.strip()}
        bounded = is_loopback(host) or further
        self._names = LOOPBACK_NAMES | {host.lower().strip("[]")} | further if bounded else None
        self._origins = origins or Origins()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises InvalidInput, Misdirected or Forbidden."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
        if len(hosts) != 1 or not hosts[0]:
            raise InvalidInput("exactly one Host header is needed")
        host = _asked(hosts[0])
        if self._names is not None and host.name not in self._names:
            raise Misdirected(
                "this server answers for localhost, and for what --allowed-hosts names; the Host header names neither"
            )
        if not host.plain:
            raise InvalidInput("Invalid host header")
        for origin in origins:
            page = origin.decode("latin-1")
            if page not in self._origins and (host.parts is None or not _same(page, host.parts)):
                raise Forbidden("pages of other sites may not use this server")


class _Host(NamedTuple):
    """A Host header: what it names, if it is well formed, and whether it is made of signs that may be in one."""

    parts: SplitResult | None
    name: str | None
    plain: bool

    @classmethod
    def of(cls, header: bytes) -> _Host:
        parts = _authority(f"//{header.decode('latin-1')}")
        return cls(parts, parts.hostname if parts else None, _PLAIN.fullmatch(header) is not None)


_usual = lru_cache(maxsize=256)(_Host.of)


def _asked(header: bytes) -> _Host:
    return _usual(header) if len(header) <= _USUAL_LENGTH else _Host.of(header)


def _authority(text: str) -> SplitResult | None:
    """``text`` split when it is no more than scheme, host and port, all well formed."""
    try:
        parts = urlsplit(text)
        odd = parts.path or parts.query or parts.fragment or parts.username is not None or parts.port == 0
    except ValueError:
        return None
    return None if odd or not parts.hostname else parts


def _same(origin: str, host: SplitResult) -> bool:
    page = _authority(origin)
    if page is None or page.scheme not in DEFAULT_PORTS:
        return False
    default = DEFAULT_PORTS[page.scheme]
    return page.hostname == host.hostname and (page.port or default) == (host.port or default)
