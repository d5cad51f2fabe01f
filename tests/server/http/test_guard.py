from __future__ import annotations

from contextlib import nullcontext

import pytest

from kgserve.errors import Forbidden, KgserveError
from kgserve.platform.network_addresses import is_loopback
from kgserve.server.http.cross_site_guard import AllowedOrigins, CrossSiteGuard
from kgserve.server.http.error_responses import HostNotAllowed


def check(bound: str, host: str, origin: str | None = None) -> type[KgserveError] | None:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    try:
        CrossSiteGuard(bound).check(headers)
    except KgserveError as error:
        return type(error)
    return None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST", "kg.localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", ""])  # noqa: S104
def test_non_loopback_addresses(host: str) -> None:
    assert not is_loopback(host)


def test_bound_host_name_is_accepted() -> None:
    assert check("kg.localhost", "kg.localhost:8080") is None
    assert check("127.0.0.1", "kg.localhost") is HostNotAllowed
    assert check("127.0.0.2", "127.0.0.2:80") is None


def test_any_host_is_accepted_on_a_public_address() -> None:
    assert check("0.0.0.0", "graph.example.org") is None  # noqa: S104
    assert check("0.0.0.0", "graph.example.org", "https://evil.example") is Forbidden  # noqa: S104


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost:8", "http://localhost:8"),
        ("[::1]:8", "http://[::1]:8"),
    ],
)
def test_same_origins(host: str, origin: str) -> None:
    assert check("localhost", host, origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://localhost:9",
        "http://127.0.0.1:8",
        "ftp://localhost:8",
        "http://localhost:8/x",
        "http://a@localhost:8",
    ],
)
def test_other_origins(origin: str) -> None:
    assert check("localhost", "localhost:8", origin) is Forbidden


def test_allowed_hosts_and_origins_are_accepted() -> None:
    names = "graph.example, [2001:db8::1]"
    guard = CrossSiteGuard("127.0.0.1", AllowedOrigins.parse("https://app.example"), names)
    for host in (b"graph.example", b"GRAPH.example:443", b"[2001:db8::1]:8080", b"localhost:1"):
        guard.check([(b"host", host)])
        guard.check([(b"host", host), (b"origin", b"https://app.example")])
        with pytest.raises(Forbidden):
            guard.check([(b"host", host), (b"origin", b"https://other.example")])
    with pytest.raises(HostNotAllowed):
        guard.check([(b"host", b"app.example")])
    with pytest.raises(HostNotAllowed):
        CrossSiteGuard("0.0.0.0", allowed_hosts=names).check([(b"host", b"other.example")])  # noqa: S104


@pytest.mark.parametrize(
    ("headers", "is_page", "refused"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"origin": "http://localhost:8"}, False, False),
        ({"origin": "https://other.example"}, True, True),
        ({"sec-fetch-site": "same-origin"}, False, False),
        ({"sec-fetch-site": "none"}, False, False),
    ],
)
def test_cross_site_requests_without_origin(headers: dict[str, str], *, is_page: bool, refused: bool) -> None:
    sent = {"host": "localhost:8", "sec-fetch-site": "cross-site"} | headers
    guard = CrossSiteGuard("localhost")
    with pytest.raises(Forbidden) if refused else nullcontext():
        guard.check([(name.encode(), value.encode()) for name, value in sent.items()], is_page=is_page)
