"""CORS: allowed pages, and the headers of every response."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from kgserve.errors import InvalidInput
from kgserve.server.http.cross_site_guard import AllowedOrigins
from tests.server.http.serving import PATIENCE, Reply, RunningServer, accepted, exchange, refusal, serving

APP = "https://app.example"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,mcp-session-id"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with two allowed origins."""
    data = tmp_path_factory.mktemp("site") / "data"
    with serving(data, cors_origins=f"{APP}, http://localhost:3000", indexes=False) as running:
        yield running


@pytest.fixture(scope="module")
def page(site: RunningServer) -> Iterator[httpx.Client]:
    """Page of the first origin."""
    with httpx.Client(base_url=site.url, headers={"origin": APP}, timeout=PATIENCE) as client:
        yield client


def names(value: str) -> set[str]:
    """Return the items of a list header in lower case."""
    return {name.strip().lower() for name in value.split(",")}


@pytest.mark.parametrize("path", ["/api/memory/x/inject", "/mcp", "/api/events", "/nothing"])
@pytest.mark.abuse(6)
def test_abuse_06_preflight_of_a_listed_site(page: httpx.Client, path: str) -> None:
    """ABUSE 6: listed origins are allowed, without credentials and wildcards."""
    answer = page.options(path, headers=PREFLIGHT)
    assert answer.status_code == 204
    assert answer.content == b""
    assert answer.headers["access-control-allow-origin"] == APP
    assert "access-control-allow-credentials" not in answer.headers
    assert names("authorization, content-type, last-event-id, mcp-session-id, mcp-protocol-version") <= names(
        answer.headers["access-control-allow-headers"]
    )
    assert names("get, post, put, patch, delete") <= names(answer.headers["access-control-allow-methods"])
    assert int(answer.headers["access-control-max-age"]) > 0
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-private-network" not in answer.headers
    private = page.options(path, headers=PREFLIGHT | {"access-control-request-private-network": "true"})
    assert private.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{APP}.evil.example", f"{APP}:8443", "http://app.example", APP.upper()]
)
@pytest.mark.abuse(6)
def test_abuse_06_preflight_of_others(site: RunningServer, page: httpx.Client, origin: str) -> None:
    """ABUSE 6: other origins are refused, in the preflight and in the request, without CORS headers."""
    for answer in (
        page.options("/api/memory/x/inject", headers=PREFLIGHT | {"origin": origin}),
        page.get("/health", headers={"origin": origin}),
    ):
        refusal(answer, 403)
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "Origin"


def test_requests_of_a_listed_site(page: httpx.Client) -> None:
    batch = {"nodes": [{"id": "a", "type": "t"}]}
    answer = page.post("/api/memory/cors/inject", json=batch)
    accepted(answer)
    assert answer.headers["access-control-allow-origin"] == APP
    exposed = names(answer.headers["access-control-expose-headers"])
    assert names("x-request-id, retry-after, mcp-session-id") <= exposed
    refused = page.get("/api/memory/none/stats")
    refusal(refused, 404)
    assert refused.headers["access-control-allow-origin"] == APP
    with page.stream("GET", "/api/memory/cors/events") as stream:
        assert stream.headers["access-control-allow-origin"] == APP


def test_mcp_of_a_listed_site(page: httpx.Client) -> None:
    headers = {"accept": "application/json, text/event-stream"}
    answer = page.post("/mcp", json=INITIALIZE, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-origin"] == APP
    refusal(page.post("/mcp", json=INITIALIZE, headers=headers | {"origin": "https://evil.example"}), 403)


def test_programs_and_own_pages_are_accepted(site: RunningServer) -> None:
    for headers in ({}, {"origin": site.url}):
        answer = httpx.get(f"{site.url}/health", headers=headers)
        accepted(answer)
        assert "access-control-allow-origin" not in answer.headers


def test_options_lists_the_methods(page: httpx.Client) -> None:
    answer = page.options("/health")
    assert answer.status_code == 204
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    "text",
    [
        "*", "https://*.example", "https://app.example/", "https://app.example/x", "app.example", "null", "ftp://a.example",
        "https://u@a.example", "https://A.example", "https://a.example:0", "https://a.example:x", "https://", "https://[::1",
    ],
)  # fmt: skip
def test_invalid_cors_origins_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--cors-origins"):
        AllowedOrigins.parse(f"https://fine.example, {text}")


def test_origins() -> None:
    origins = AllowedOrigins.parse(" https://a.example ,http://[::1]:3000,, ")
    assert "https://a.example" in origins
    assert "http://[::1]:3000" in origins
    assert not AllowedOrigins.parse("").listed


def check_headers(reply: Reply | httpx.Response) -> None:
    """Assert that a response has the security headers."""
    headers = reply.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] in {"no-store", "no-cache", "no-cache, no-transform"}
    assert "server" not in headers
    assert "strict-transport-security" not in headers


@pytest.mark.parametrize(
    "path", ["/health", "/api/memory", "/nothing", "/docs", "/docs/docs.js", "/openapi.json", "/mcp"]
)
def test_every_response_has_security_headers(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    check_headers(answer)
    assert answer.headers.get_list("content-security-policy") == [answer.headers["content-security-policy"]]


def test_parser_errors_have_security_headers(served: RunningServer) -> None:
    for request in (b"garbage\r\n\r\n", b"GET /" + b"x" * 50_000 + b" HTTP/1.1\r\n\r\n"):
        check_headers(exchange(served.port, request))


def test_docs_page_loads_own_files_only(http: httpx.Client) -> None:
    page = http.get("/docs")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|javascript:", page.text)
    loaded = re.findall(r"(?:src|href)=\"(?!data:)([^\"#]+)\"", page.text)
    assert {"/docs/docs.js", "/docs/docs.css"} <= {link if link.startswith("/") else f"/{link}" for link in loaded}
    for link in loaded:
        assert "//" not in link
        assert http.get(f"/{link.lstrip('/')}").status_code == 200
