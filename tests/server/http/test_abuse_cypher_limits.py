"""Cypher statements that exceed time or size limits over HTTP: rows 56 to 58 and 62 of the abuse list."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import httpx
import msgspec
import pytest

from tests.captured_log import capture_log
from tests.server.http.asking import post
from tests.server.http.serving import RunningServer, accepted, refusal, serving
from tests.stores.writing import until

NODES = 2_000
ENDLESS = "MATCH (a), (b), (c) WHERE a.content < b.content AND b.content < c.content RETURN count(*)"
ENDLESS_WRITE = ENDLESS.replace(
    "RETURN count(*)", "WITH count(*) AS n MATCH (m {id: 'n1'}) SET m.content = cast(n AS STRING)"
)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with one read connection per store, and a store with an endless cross product."""
    with serving(tmp_path_factory.mktemp("crowded") / "data", read_connections=1) as served:
        nodes = [{"id": f"n{i}", "type": "t", "content": f"{i * 7919 % NODES}"} for i in range(NODES)]
        with httpx.Client(base_url=served.url, timeout=30) as http:
            accepted(http.post("/api/memory/crowd/inject", json={"nodes": nodes}))
        yield served


@pytest.fixture
def crowd(crowded: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{crowded.url}/api/memory/crowd", timeout=30) as http:
        yield http


def in_time(seconds: float, attempt: Callable[[], float]) -> None:
    """Assert that an attempt takes less than ``seconds``; retries, because the machine may be busy."""
    until(lambda: attempt() < seconds)


@pytest.mark.abuse(56)
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/csv"])
def test_abuse_56_a_cross_product(crowd: httpx.Client, accept: str) -> None:
    def attempt() -> float:
        start = time.perf_counter()
        answer = crowd.post("/cypher", json={"query": ENDLESS, "timeout_ms": 300}, headers={"accept": accept})
        took = time.perf_counter() - start
        refusal(answer, 408)
        assert took > 0.2
        assert accepted(post(crowd, "", "MATCH (n) RETURN count(*)"))["rows"] == [[NODES]]
        return took

    in_time(1.3, attempt)


@pytest.mark.abuse(56)
def test_abuse_56_a_cross_product_that_writes(crowd: httpx.Client) -> None:
    refusal(post(crowd, "", ENDLESS_WRITE, mode="write", timeout_ms=300), 408)
    assert accepted(crowd.get("/stats"))["sequence"] == 1


@pytest.mark.abuse(57)
@pytest.mark.parametrize(
    ("query", "mode", "accept"),
    [
        (ENDLESS, "read", "application/json"),
        (ENDLESS, "read", "application/x-ndjson"),
        (ENDLESS_WRITE, "write", "application/json"),
    ],
)
def test_abuse_57_the_client_goes_away(
    crowded: RunningServer, crowd: httpx.Client, query: str, mode: str, accept: str
) -> None:
    accepted(post(crowd, "", "RETURN 1"))

    def attempt() -> float:
        name = f"left-{time.monotonic_ns()}"
        with capture_log(request_id=name) as lines:
            ask_and_leave(crowded.port, name, msgspec.json.encode({"query": query, "mode": mode}), accept)
            gone = time.perf_counter()
            # The only read connection, or the writer, is available again.
            if mode == "read":
                accepted(post(crowd, "", "RETURN 1"))
            else:
                accepted(crowd.post("/inject", json={"nodes": []}))
            took = time.perf_counter() - gone
            until(lambda: statuses(lines))
        assert statuses(lines) == [499]
        assert accepted(crowd.get("/stats"))["sequence"] == 1
        return took

    in_time(1, attempt)


def statuses(lines: list[MutableMapping[str, Any]]) -> list[int]:
    """Return the statuses of a request in the access log; a slow request has another line."""
    return [line["status"] for line in tuple(lines) if line["event"] == "request"]


def ask_and_leave(port: int, name: str, body: bytes, accept: str) -> None:
    head = f"POST /api/memory/crowd/cypher HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nX-Request-Id: {name}"
    head += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.5)


@pytest.mark.abuse(58)
def test_abuse_58_more_rows_than_allowed(crowd: httpx.Client) -> None:
    answer = accepted(post(crowd, "", "MATCH (n) RETURN n.id", max_rows=10))
    assert (answer["row_count"], len(answer["rows"]), answer["truncated"]) == (10, 10, True)
    answer = accepted(post(crowd, "", "MATCH (n) RETURN n.id"))
    assert (answer["row_count"], answer["truncated"]) == (1_000, True)
    refusal(post(crowd, "", "MATCH (n) RETURN n.id", max_rows=100_001), 400)
    refusal(post(crowd, "", "MATCH (n) RETURN n.id", max_rows=-1), 400)


@pytest.mark.abuse(62)
def test_abuse_62_ten_timeouts_then_an_ordinary_query(crowd: httpx.Client) -> None:
    for _ in range(10):
        refusal(post(crowd, "", ENDLESS, timeout_ms=50), 408)
    assert accepted(post(crowd, "", "MATCH (n {id: 'n7'}) RETURN n.id"))["rows"] == [["n7"]]
