"""Pipelined requests, bodies in unusual chunks, and protocol upgrades."""

from __future__ import annotations

import socket

import httpx
import pytest

from kgserve.server.http.connection import MAX_PIPELINED_REQUESTS
from tests.server.http.serving import RunningServer, problem
from tests.server.http.sockets import HEALTH, connected, eventually, get, only_reply, post, replies, send


def test_pipelined_requests_are_answered_in_order(served: RunningServer) -> None:
    paths = [b"/health", b"/nothing", b"/health", b"/api/memory", b"/nothing"] * 5
    answers = replies(send(served.port, b"".join(map(get, paths)) + get(b"/health", b"Connection: close")))
    assert [reply.status for reply in answers] == [200, 404, 200, 200, 404] * 5 + [200]


def test_excess_pipelined_requests_are_refused_after_the_others(served: RunningServer) -> None:
    answers = replies(send(served.port, HEALTH * 5_000))
    assert [reply.status for reply in answers] == [200] * (MAX_PIPELINED_REQUESTS + 1) + [429]
    assert answers[-1].problem


def test_malformed_input_after_a_request_is_refused_after_its_response(served: RunningServer) -> None:
    answers = replies(send(served.port, HEALTH + b"garbage\r\n\r\n"))
    assert [reply.status for reply in answers] == [200, 400]
    answers = replies(send(served.port, HEALTH + post(b"Transfer-Encoding: chunked") + b"zz\r\n"))
    assert [reply.status for reply in answers] == [200, 400]


def test_expect_continue(served: RunningServer) -> None:
    body = b'{"nodes":[{"id":"a","type":"t"}]}'
    with connected(served.port) as connection:
        connection.sendall(post(b"Expect: 100-continue", b"Content-Length: %d" % len(body), b"Connection: close"))
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert only_reply(connection).status == 200
    with connected(served.port) as connection:
        connection.sendall(post(b"Expect: 100-continue", b"Content-Length: 999999999"))
        assert only_reply(connection).status == 413


def test_refused_large_upload_receives_the_response(served: RunningServer, http: httpx.Client, api: str) -> None:
    size = (served.settings.max_body_mb + 1) << 20
    answer = http.post(f"{api}/inject", content=b" " * size, headers={"content-type": "application/json"})
    assert problem(answer.status_code, answer.headers, answer.content)["status"] == 413


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        pytest.param(b"GET /health\r\n\r\n", {400}, id="HTTP/0.9"),
        pytest.param(b"GET /health HTTP/3.7\r\nHost: localhost\r\n\r\n", {400}, id="version"),
        pytest.param(get(b"http://localhost/health", b"Connection: close"), {200}, id="absolute form"),
        pytest.param(get(b"http://localhost", b"Connection: close"), {400, 404}, id="absolute form without path"),
        pytest.param(b"CONNECT evil:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}, id="CONNECT"),
        pytest.param(b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", {404}, id="OPTIONS *"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}, id="HTTP/2"),
        pytest.param(get(b"/health", b"X: a\0b"), {400}, id="NUL in a value"),
        pytest.param(get(b"/health", b"X\0: a"), {400}, id="NUL in a name"),
        pytest.param(get(b"/health", b"X : a"), {400}, id="blank before the colon"),
        pytest.param(get(b"/health", b"X: a\r\n folded"), {400}, id="folded"),
        pytest.param(get(b"/hea\x01lth"), {400}, id="control in the path"),
        pytest.param(get(b"/health", b"X: a\nY: b", b"Connection: close"), {200, 400}, id="bare LF"),
        pytest.param(post(b"Content-Length: -1"), {400}, id="negative length"),
        pytest.param(post(b"Content-Length: 1e3"), {400}, id="odd length"),
        pytest.param(post(b"Content-Length: 99999999999999999999999"), {400}, id="endless length"),
        pytest.param(post(b"Transfer-Encoding: chunked") + b"ffffffffffffffffff\r\n", {400}, id="endless chunk"),
        pytest.param(post(b"Transfer-Encoding: chunked") + b"-1\r\n", {400}, id="negative chunk"),
        pytest.param(
            post(b"Transfer-Encoding: gzip, chunked", b"Connection: close") + b"0\r\n\r\n", {400, 415}, id="coded"
        ),
        pytest.param(post(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n", {400}, id="identity last"),
        pytest.param(post(b"Transfer-Encoding: chunked") + b"1;" + b"x" * 400_000, {400}, id="chunk extension"),
        pytest.param(
            post(b"Transfer-Encoding: chunked", b"Connection: close") + b"0\r\n" + b"X: x\r\n" * 100 + b"\r\n",
            {400},
            id="trailers of an empty body",
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, {400}, id="TLS on a plain port"),
    ],
)
def test_unusual_requests_are_handled(
    served: RunningServer, request_bytes: bytes, statuses: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    """No hang, no 5xx, no traceback."""
    answers = replies(send(served.port, request_bytes))
    assert {reply.status for reply in answers} <= statuses
    assert answers
    own = [record for record in caplog.records if record.threadName == f"server-{served.port}"]
    assert not [record for record in own if record.exc_info]


def test_a_body_in_chunks_of_one_byte(served: RunningServer) -> None:
    body = b'{"nodes":[{"id":"a","type":"t","content":"' + b"x" * 20_000 + b'"}]}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    [reply] = replies(send(served.port, post(b"Transfer-Encoding: chunked", b"Connection: close") + chunks))
    assert reply.status == 200, reply.body


def test_trailers_are_ignored(served: RunningServer) -> None:
    body = b'{"nodes":[{"id":"a","type":"t"}]}'
    chunked = b"%x\r\n%s\r\n0\r\nHost: evil.example\r\nOrigin: https://evil.example\r\n\r\n" % (len(body), body)
    request = post(b"Transfer-Encoding: chunked") + chunked + get(b"/health", b"Connection: close")
    assert [reply.status for reply in replies(send(served.port, request))] == [200, 200]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"x" * 1000])
def test_input_after_a_protocol_upgrade_is_ignored(served: RunningServer, protocol: bytes) -> None:
    """The following bytes could be a request that a proxy in front has never seen."""
    request = get(b"/health", b"Connection: Upgrade", b"Upgrade: " + protocol)
    assert [reply.status for reply in replies(send(served.port, request + HEALTH))] == [200]


@pytest.mark.parametrize("path", [b"inject", b"traverse"])
def test_clients_that_leave_with_pipelined_requests_cause_no_errors(
    served: RunningServer, http: httpx.Client, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [{"id": f"n{number}", "type": "t"} for number in range(300)]
    edges = [{"from": "n0", "to": each["id"], "relation_type": "r"} for each in nodes]
    http.post("/api/memory/limits/inject", json={"nodes": nodes, "edges": edges}).raise_for_status()
    for number in range(30):
        body = b'{"nodes":[{"id":"n0","type":"t%d"}]}' % number if path == b"inject" else b'{"start_id":"n0","depth":5}'
        request = post(b"Content-Length: %d" % len(body)).replace(b"/inject", b"/" + path) + body
        with connected(served.port) as connection:
            connection.sendall(request * 4)
    eventually(lambda: "kgserve_requests_in_progress 1.0" in http.get("/metrics").text)
    assert 'code="internal"' not in http.get("/metrics").text
    assert not [record for record in caplog.records if record.threadName == f"server-{served.port}"]
