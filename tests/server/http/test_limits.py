"""Limits of one connection. Numbers are rows of the abuse list; the server's limits are small here."""

from __future__ import annotations

import contextlib
import gc
import socket
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import httpx
import pytest

from kgserve.platform.settings import Settings
from kgserve.server.http.connection import (
    MAX_HEADER_LINES,
    MIN_BODY_BYTES_PER_WINDOW,
    HttpConnectionLimits,
    HttpServerConnection,
    RequestBodyRateMonitor,
)
from tests.server.http.serving import PATIENCE, Reply, RunningServer, accepted, read_reply, serving
from tests.server.http.sockets import (
    HEALTH,
    connected,
    drip,
    eventually,
    get,
    only_reply,
    post,
    replies,
    send,
    until_closed,
)

HEAD_SECONDS = 1.0
BODY_SECONDS = 1.0
STEADY_SECONDS = 2.5


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with a short head timeout."""
    with serving(tmp_path_factory.mktemp("hasty") / "data", head_timeout=HEAD_SECONDS, indexes=False) as running:
        yield running


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with short body and answer timeouts."""
    data = tmp_path_factory.mktemp("strict") / "data"
    with serving(data, body_timeout=BODY_SECONDS, answer_timeout=1.0, keep_alive=0.5, indexes=False) as running:
        yield running


@pytest.mark.abuse(13, 14)
def test_documented_timeouts() -> None:
    """ABUSE 13, 14: within 10 and 30 seconds, the interval between checks included."""
    limits = HttpConnectionLimits.from_settings(Settings())
    assert limits.head_timeout + 2 * limits.tick <= 10
    assert limits.body_timeout + 2 * limits.tick <= 30


@pytest.mark.parametrize("size", [100_000, 3_000_000])
@pytest.mark.abuse(11)
def test_abuse_11_headers_over_the_limit(served: RunningServer, size: int) -> None:
    """ABUSE 11: 100 kB of headers → 431, closed, however many more follow."""
    [reply] = replies(send(served.port, get(b"/health", b"X: " + b"x" * size)))
    assert reply.status == 431
    assert reply.problem["type"] == "urn:kgserve:error:head_too_large"
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("lines", [MAX_HEADER_LINES, 50_000])
@pytest.mark.abuse(11)
def test_abuse_11_many_header_lines(served: RunningServer, lines: int) -> None:
    """ABUSE 11: many short header lines cost as much."""
    [reply] = replies(send(served.port, get(b"/health", *[b"X: x"] * lines)))
    assert reply.status == 431
    assert reply.problem


@pytest.mark.abuse(11)
def test_abuse_11_blank_lines_before_a_request(served: RunningServer) -> None:
    """ABUSE 11: blank lines count to the head of the next request."""
    [reply] = replies(send(served.port, b"\r\n" * 200_000))
    assert reply.status == 431


@pytest.mark.parametrize("early", [100, 60_000, 65_700])
@pytest.mark.abuse(11)
def test_abuse_11_headers_begun_with_the_request_before(served: RunningServer, early: int) -> None:
    """ABUSE 11: a head that arrives in part with the request before it is measured as a whole."""
    second = get(b"/health", b"X: " + b"x" * 65_800)
    with connected(served.port) as connection:
        connection.sendall(get(b"/health") + second[:early])
        assert read_reply(connection).status == 200
        connection.sendall(second[early:])
        assert read_reply(connection).status == 431


def test_headers_below_the_limit(served: RunningServer) -> None:
    with connected(served.port) as connection:
        connection.sendall(get(b"/health", b"X: " + b"x" * 60_000))
        assert read_reply(connection).status == 200


@pytest.mark.abuse(12)
def test_abuse_12_address_over_the_limit(served: RunningServer) -> None:
    """ABUSE 12: a 70 kB URL → 414; a URL within the limit is routed."""
    for size, status in ((70_000, 414), (3_000_000, 414), (33_000, 414)):
        [reply] = replies(send(served.port, get(b"/health?" + b"x" * size)))
        assert reply.status == status
        assert reply.problem
    with connected(served.port) as connection:
        connection.sendall(get(b"/api/memory/none/nodes/" + b"x" * 30_000))
        assert read_reply(connection).status in {400, 404}


def dripped(port: int, start: bytes, piece: bytes) -> tuple[Reply, float]:
    """Send ``start`` and then piece after piece; return the response and the seconds."""
    begun = time.monotonic()
    with connected(port) as connection:
        connection.sendall(start)
        drip(connection, piece, 0.1)
        return only_reply(connection), time.monotonic() - begun


@pytest.mark.abuse(13)
def test_abuse_13_head_drip(hasty: RunningServer) -> None:
    """ABUSE 13: a head that arrives byte by byte → closed, however often a byte arrives."""
    starts = (b"GET /", b"X"), (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X"), (b"\r\n", b"\r\n")
    with ThreadPoolExecutor(len(starts)) as clients:
        for start, (reply, seconds) in zip(
            starts, clients.map(lambda each: dripped(hasty.port, *each), starts), strict=True
        ):
            assert reply.status == 408, start
            assert seconds >= HEAD_SECONDS, start


@pytest.mark.abuse(13)
def test_abuse_13_silence(hasty: RunningServer, strict: RunningServer) -> None:
    """ABUSE 13: silence, at the start or after a response → closed without a response."""
    with connected(hasty.port) as silent, connected(strict.port) as idle:
        idle.sendall(HEALTH)
        assert until_closed(silent) == b""
        assert [reply.status for reply in replies(until_closed(idle))] == [200]


@pytest.mark.abuse(13)
def test_abuse_13_second_head_drips(strict: RunningServer) -> None:
    """ABUSE 13: also on a connection with earlier valid requests."""
    with connected(strict.port) as connection:
        connection.sendall(HEALTH + b"GET /hea")
        first, *second = replies(until_closed(connection))
        assert first.status == 200
        assert [reply.status for reply in second] in ([], [408])


@pytest.mark.abuse(14)
def test_abuse_14_body_drip(strict: RunningServer) -> None:
    """ABUSE 14: a body that arrives byte by byte → 408."""
    starts = (post(b"Content-Length: 50000"), b" "), (post(b"Transfer-Encoding: chunked"), b"1\r\n \r\n")
    with ThreadPoolExecutor(len(starts)) as clients:
        for start, (reply, seconds) in zip(
            starts, clients.map(lambda each: dripped(strict.port, *each), starts), strict=True
        ):
            assert seconds >= BODY_SECONDS, start
            assert reply.status == 408, start
            assert reply.problem["type"] == "urn:kgserve:error:timeout"
            assert reply.headers["connection"] == "close"


@pytest.mark.abuse(14)
def test_abuse_14_body_that_never_comes(strict: RunningServer) -> None:
    """ABUSE 14: a body that never arrives, for REST, imports and MCP; the access log has the 408."""
    mcp = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, "
    lines = post(b"Content-Length: 9"), mcp + b"text/event-stream\r\nContent-Length: 9\r\n\r\n"
    imported = lines[0].replace(b"/inject", b"/import").replace(b"application/json", b"application/x-ndjson")
    requests = (*lines, imported)
    with ThreadPoolExecutor(len(requests)) as clients:
        for request, received in zip(
            requests, clients.map(lambda each: send(strict.port, each), requests), strict=True
        ):
            [reply] = replies(received)
            assert reply.status == 408, request
            assert reply.problem


def test_shutdown_does_not_wait_for_a_stalled_body(tmp_path: Path) -> None:
    """Otherwise the stop takes half of the grace period; the client gets a 503."""
    with serving(tmp_path / "data", shutdown_grace=600.0, indexes=False) as stopping, connected(stopping.port) as late:
        late.sendall(post(b"Expect: 100-continue", b"Content-Length: 500"))
        assert late.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        late.sendall(b"{")
        begun = time.monotonic()
        stopping.server.stop()
        reply = only_reply(late)
        assert time.monotonic() - begun < PATIENCE
        assert reply.status == 503
        assert reply.problem["detail"] == "the server is stopping"


@pytest.mark.abuse(14)
def test_abuse_14_slow_and_steady_survives(tmp_path: Path) -> None:
    """ABUSE 14: an import that takes longer than the limit and keeps making progress completes."""
    line = b'{"kind":"node","id":"n%04d","type":"t","content":"' + b"x" * 400 + b'"}\n'
    arrived, begun = 0, time.monotonic()
    with serving(tmp_path, body_timeout=STEADY_SECONDS, indexes=False) as steady, connected(steady.port) as connection:
        head = post(b"Transfer-Encoding: chunked").replace(b"/inject", b"/import")
        connection.sendall(head.replace(b"application/json", b"application/x-ndjson"))
        connection.settimeout(STEADY_SECONDS / 20)
        while time.monotonic() - begun < STEADY_SECONDS * 1.5:
            block = b"".join(line % (arrived + each) for each in range(10))
            connection.sendall(b"%x\r\n%s\r\n" % (len(block), block))
            arrived += 10
            with pytest.raises(TimeoutError):
                connection.recv(1)
        connection.settimeout(PATIENCE)
        connection.sendall(b"0\r\n\r\n")
        reply = read_reply(connection)
        assert reply.status == 200, reply.body
        assert accepted(httpx.get(f"{steady.url}/api/memory/limits/stats"))["nodes"] == arrived


@pytest.mark.abuse(14)
def test_abuse_14_body_progress() -> None:
    """ABUSE 14: each time window needs 1 kB; earlier bytes do not count."""
    progress = RequestBodyRateMonitor()
    progress.begin(100)
    progress.add(MIN_BODY_BYTES_PER_WINDOW)
    assert not progress.has_stopped(110, 10)
    assert not progress.has_stopped(110.1, 10)
    progress.add(MIN_BODY_BYTES_PER_WINDOW - 1)
    assert not progress.has_stopped(120, 10)
    assert progress.has_stopped(120.2, 10)


def test_a_stream_whose_request_has_a_body_that_never_comes_ends(strict: RunningServer) -> None:
    with httpx.Client(base_url=strict.url, timeout=PATIENCE) as client:
        accepted(client.post("/api/memory/limits/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    request = get(b"/api/memory/limits/events", b"Content-Length: 5")
    assert b"text/event-stream" in send(strict.port, request)


@pytest.mark.abuse(15)
def test_abuse_15_more_connections_than_allowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """ABUSE 15: one more → 503 with Retry-After, closed; a closed connection frees its slot."""
    data = tmp_path_factory.mktemp("few") / "data"
    with serving(data, max_connections=4, max_connections_per_address=3, indexes=False) as few:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                kept = stack.enter_context(connected(few.port))
                kept.sendall(HEALTH)
                assert read_reply(kept).status == 200
            for source in ("127.0.0.1", "127.0.0.2"):  # The second takes the last slot.
                extra = stack.enter_context(connected(few.port, source))
                with contextlib.suppress(ConnectionError):
                    extra.sendall(HEALTH)
                reply = read_reply(extra)
                assert reply.status == (503 if source == "127.0.0.1" else 200)
            extra = stack.enter_context(connected(few.port, "127.0.0.3"))
            with contextlib.suppress(ConnectionError):
                extra.sendall(HEALTH)
            reply = only_reply(extra)
            assert reply.status == 503
            assert reply.problem["type"] == "urn:kgserve:error:unavailable"
            assert int(reply.headers["retry-after"]) > 0
        eventually(lambda: send(few.port, get(b"/health", b"Connection: close")).startswith(b"HTTP/1.1 200"))


@pytest.mark.abuse(15)
def test_abuse_15_a_flood_of_connections(tmp_path_factory: pytest.TempPathFactory) -> None:
    """ABUSE 15: hundreds of excess connections leave nothing behind."""
    data = tmp_path_factory.mktemp("flood") / "data"
    with serving(data, max_connections=2, indexes=False) as few:
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(connected(few.port)) for _ in range(300)]
            for connection in crowd[2:]:
                assert until_closed(connection)[:12] in {b"", b"HTTP/1.1 503"}
        eventually(lambda: send(few.port, get(b"/health", b"Connection: close")).startswith(b"HTTP/1.1 200"))


def test_closed_connection_leaves_no_garbage(served: RunningServer) -> None:
    """Over TLS each connection would keep 50 kB until the next collection, which is rare."""
    gc.disable()
    try:
        with connected(served.port) as connection:
            connection.sendall(HEALTH)
            assert read_reply(connection).status == 200
            crowd = cast("set[HttpServerConnection]", served.server.server_state.connections)
            [gone] = [weakref.ref(each) for each in tuple(crowd) if each.client == connection.getsockname()]
        eventually(lambda: gone() is None)
    finally:
        gc.enable()


def test_client_that_does_not_read_is_disconnected(strict: RunningServer, http: httpx.Client) -> None:
    nodes = [{"id": f"n{number}", "type": "t", "content": "x" * 20_000} for number in range(300)]
    accepted(http.post(f"{strict.url}/api/memory/unread/inject", json={"nodes": nodes}))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", strict.port))
        connection.sendall(get(b"/api/memory/unread/export", b"Connection: close"))
        crowd = cast("set[HttpServerConnection]", strict.server.server_state.connections)
        eventually(lambda: any(each.client == connection.getsockname() for each in tuple(crowd)))
        eventually(lambda: not any(each.client == connection.getsockname() for each in tuple(crowd)))
