"""Attacks through browsers, and malformed HTTP. Numbers are rows of the abuse list."""

from __future__ import annotations

import gzip
import socket

import httpx
import pytest

from kgserve.platform.settings import MEBIBYTE
from tests.server.http.serving import RunningServer, accepted, exchange, read_reply, refusal

JSON = {"content-type": "application/json"}
BATCH = b'{"nodes":[{"id":"a","type":"t"}]}'


@pytest.mark.abuse(1)
@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "https://127.0.0.1", "http://", "x"])
def test_abuse_01_origin_of_another_site(http: httpx.Client, api: str, origin: str) -> None:
    answer = http.post(f"{api}/inject", content=BATCH, headers=JSON | {"origin": origin})
    refusal(answer, 403)
    assert "access-control-allow-origin" not in answer.headers
    refusal(http.get(f"{api}/stats"), 404)


def test_own_origin_is_accepted(served: RunningServer, http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", content=BATCH, headers=JSON | {"origin": served.url}))


@pytest.mark.abuse(2)
def test_abuse_02_origin_null(http: httpx.Client, api: str) -> None:
    refusal(http.post(f"{api}/inject", content=BATCH, headers=JSON | {"origin": "null"}), 403)
    refusal(http.get(f"{api}/stats"), 404)


@pytest.mark.abuse(3)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "user@localhost", "localhost/x"]
)
def test_abuse_03_host_of_another_site(served: RunningServer, host: str) -> None:
    answer = exchange(served.port, f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.status == 421
    assert answer.problem["type"] == "urn:kgserve:error:misdirected"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]", "[::1]:8080"])
def test_local_host_names_are_accepted(served: RunningServer, host: str) -> None:
    assert exchange(served.port, f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).status == 200


@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        ("http://localhost:1/health", "Host: evil.example", 200),
        ("HTTP://[::1]:8080/health", "Host: localhost", 200),
        ("http://evil.example/health", "Host: localhost", 421),
        ("http://localhost@evil.example/health", "Host: localhost", 421),
        ("http://a@localhost/health", "Host: localhost", 421),
        ("http://localhost/health", "X-None: 1", 400),
        ("http://localhost/health", "Host: localhost\r\nHost: localhost", 400),
    ],
)
def test_authority_of_an_absolute_target_counts_as_host(
    served: RunningServer, target: str, hosts: str, status: int
) -> None:
    assert exchange(served.port, f"GET {target} HTTP/1.1\r\n{hosts}\r\n\r\n".encode()).status == status


def test_cross_site_get_without_origin_is_refused(http: httpx.Client, api: str) -> None:
    cross_site = {"sec-fetch-site": "cross-site"}
    refusal(http.get(f"{api}/stats", headers=cross_site), 403)
    assert http.get("/", headers=cross_site | {"sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.abuse(4)
@pytest.mark.parametrize("hosts", ["", "Host:\r\n", "Host: localhost\r\nHost: evil.example\r\n"])
def test_abuse_04_no_host_or_two(served: RunningServer, hosts: str) -> None:
    answer = exchange(served.port, f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode())
    assert answer.status == 400
    assert answer.problem


@pytest.mark.abuse(5)
@pytest.mark.parametrize(
    "media", ["text/plain", "text/plain; charset=utf-8", "multipart/form-data", "application/xml", "x"]
)
def test_abuse_05_json_sent_as_something_else(http: httpx.Client, api: str, media: str) -> None:
    refusal(http.post(f"{api}/inject", content=BATCH, headers={"content-type": media}), 415)
    refusal(http.get(f"{api}/stats"), 404)


@pytest.mark.abuse(5)
@pytest.mark.parametrize("mark", [{"origin": "{url}"}, {"sec-fetch-site": "same-origin"}])
def test_abuse_05_forms_of_a_browser(served: RunningServer, http: httpx.Client, api: str, mark: dict[str, str]) -> None:
    headers = {name: value.format(url=served.url) for name, value in mark.items()}
    form = {"content-type": "application/x-www-form-urlencoded"}
    refusal(http.post(f"{api}/inject", content=BATCH, headers=headers | form), 415)
    accepted(http.post(f"{api}/inject", content=BATCH, headers=form))


@pytest.mark.parametrize("media", ["application/json", "application/JSON; charset=utf-8", "application/vnd.graph+json"])
def test_json_media_types_are_accepted(http: httpx.Client, api: str, media: str) -> None:
    accepted(http.post(f"{api}/inject", content=BATCH, headers={"content-type": media}))


@pytest.mark.abuse(6)
def test_abuse_06_preflight_of_another_site(http: httpx.Client, api: str) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "DELETE"}
    answer = http.options(api, headers=asked)
    refusal(answer, 403)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.abuse(7)
def test_abuse_07_content_length_over_the_limit(served: RunningServer, api: str) -> None:
    announced = served.settings.max_body_mb * MEBIBYTE + 1
    head = f"POST {api}/inject HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = exchange(served.port, f"{head}Content-Length: {announced}\r\n\r\n".encode())
    assert answer.status == 413
    assert answer.problem
    assert answer.headers["connection"] == "close"


@pytest.mark.abuse(8)
def test_abuse_08_chunked_over_the_limit(served: RunningServer, api: str) -> None:
    head = f"POST {api}/inject HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    block = b"100000\r\n" + b" " * MEBIBYTE + b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(served.settings.max_body_mb):
            connection.sendall(block)
        connection.sendall(b"1\r\n \r\n")
        answer = read_reply(connection)
        assert connection.recv(1) == b""
    assert answer.status == 413
    assert answer.problem
    assert answer.headers["connection"] == "close"


@pytest.mark.abuse(9)
def test_abuse_09_gzip_is_never_decoded(http: httpx.Client, api: str) -> None:
    for path, media in (("inject", "application/json"), ("import", "application/x-ndjson")):
        headers = {"content-type": media, "content-encoding": "gzip"}
        refusal(http.post(f"{api}/{path}", content=gzip.compress(BATCH), headers=headers), 415)
    refusal(http.get(f"{api}/stats"), 404)


@pytest.mark.abuse(10)
@pytest.mark.parametrize("second", ["Content-Length: 34", "Transfer-Encoding: chunked"])
def test_abuse_10_two_lengths(served: RunningServer, http: httpx.Client, api: str, second: str) -> None:
    head = f"POST {api}/inject HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 33\r\n"
    answer = exchange(served.port, f"{head}{second}\r\n\r\n".encode() + BATCH)
    assert answer.status == 400
    assert answer.problem
    refusal(http.get(f"{api}/stats"), 404)


def test_malformed_http_gets_a_problem_document(served: RunningServer) -> None:
    assert exchange(served.port, b"hello\r\n\r\n").problem
    assert exchange(served.port, b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n").problem


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_protocol_upgrades_are_ignored(served: RunningServer, protocol: str) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    assert exchange(served.port, head.encode()).status == 200
