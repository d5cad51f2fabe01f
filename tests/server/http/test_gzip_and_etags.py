"""Gzip compression and conditional requests."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.http.serving import RunningServer, accepted, exchange, refusal

STATIC = ("/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json")
WORDS = " ".join(f"word{number}" for number in range(400))


@pytest.fixture
def filled(http: httpx.Client, api: str) -> str:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "n", "type": "t", "content": WORDS}]}))
    return api


def raw(served: RunningServer, path: str, *headers: str, method: str = "GET", body: bytes = b"") -> Any:
    """Send a request and return the raw response."""
    more = [*headers, f"Content-Length: {len(body)}"] if body else [*headers]
    head = "".join(
        f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: localhost", *more, "Connection: close")
    )
    return exchange(served.port, f"{head}\r\n".encode() + body)


@pytest.mark.parametrize(
    ("wanted", "coded"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("x-gzip", True),
        ("*", True),
        ("*;q=0.1, gzip;q=0", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
        ("br, deflate", False),
        ("gzip;q=much", False),
        ("", False),
        ("gzip," * 100, False),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_gzip_is_used_if_accepted(
    served: RunningServer, http: httpx.Client, api: str, wanted: str, coded: bool, large: bool
) -> None:
    content = WORDS * (30 if large else 1)
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "n", "type": "t", "content": content}]}))
    for path in (f"{api}/nodes/n", f"{api}/nodes/n?field_names=versioned", "/openapi.json"):
        found = raw(served, path, f"Accept-Encoding: {wanted}")
        assert found.status == 200
        assert "Accept-Encoding" in found.headers["vary"]
        assert found.headers.get("content-encoding") == ("gzip" if coded else None)
        text = gzip.decompress(found.body) if coded else found.body
        if "nodes" in path:
            assert msgspec.json.decode(text)["node"]["content"] == content


def test_gzip_is_not_used_unless_accepted(served: RunningServer, filled: str) -> None:
    found = raw(served, f"{filled}/nodes/n")
    assert "content-encoding" not in found.headers
    assert msgspec.json.decode(found.body)["node"]["content"] == WORDS


def test_short_streamed_and_mcp_responses_are_not_compressed(
    served: RunningServer, http: httpx.Client, filled: str
) -> None:
    asked = {"accept-encoding": "gzip"}
    assert "content-encoding" not in http.get("/health", headers=asked).headers
    assert "vary" not in http.get("/health", headers=asked).headers
    for path in (f"{filled}/export", f"{filled}/export?format=csv", f"{filled}/events"):
        with http.stream("GET", path, headers=asked) as streamed:
            assert streamed.status_code == 200
            assert "content-encoding" not in streamed.headers, path
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    initialize = {"accept": "application/json, text/event-stream", **asked}
    assert "content-encoding" not in http.post("/mcp", json=listed, headers=initialize).headers
    refusal(http.get(f"{filled}/nodes/nobody", headers=asked), 404)


def test_head_is_get_without_a_body(served: RunningServer, http: httpx.Client, filled: str) -> None:
    document = accepted(http.get("/openapi.json"))
    paths = [path for path, methods in document["paths"].items() if "get" in methods]
    assert len(paths) > 25
    for template in (*paths, "/docs/docs.css"):
        path = template.replace("{store}", filled.rpartition("/")[2]).replace("{id}", "n")
        with http.stream("GET", path) as got:
            expected = got.status_code, got.headers.get("content-type"), got.headers.get("etag")
        found = http.head(path)
        assert (found.status_code, found.headers.get("content-type"), found.headers.get("etag")) == expected, path
        assert found.content == b""
    whole = http.get(f"{filled}/nodes/n", headers={"accept-encoding": "identity"})
    told = http.head(f"{filled}/nodes/n", headers={"accept-encoding": "identity"})
    assert told.headers["content-length"] == whole.headers["content-length"]
    assert raw(served, f"{filled}/nodes/n", method="HEAD").body == b""
    assert "HEAD" in http.options("/health").headers["allow"]
    assert http.head(f"{filled}/traverse").status_code == 405


def test_head_needs_the_same_key(keyed: RunningServer, admin: httpx.Client) -> None:
    assert admin.head("/api/memory").status_code == 200
    with httpx.Client(base_url=keyed.url) as nobody:
        assert nobody.head("/api/memory").status_code == 401
        assert nobody.head("/docs").status_code == 200


@pytest.mark.parametrize("path", STATIC)
def test_matching_etag_gives_304(http: httpx.Client, path: str) -> None:
    for coding in ("gzip", "identity"):
        headers = {"accept-encoding": coding}
        first = http.get(path, headers=headers)
        tag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["content-type"].count("charset") == (path != "/openapi.json")
        for known in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
            again = http.get(path, headers={**headers, "if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert "content-type" not in again.headers
            assert again.headers.get("vary") == first.headers.get("vary")
            assert http.head(path, headers={**headers, "if-none-match": known}).status_code == 304
        assert http.get(path, headers={**headers, "if-none-match": '"other"'}).content == first.content
