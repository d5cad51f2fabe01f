"""Operations on the fast path must give the same responses as through Litestar's router."""

from __future__ import annotations

import asyncio
import contextvars
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import msgspec
import pytest
from litestar import Litestar

from kgserve.errors import InvalidInput
from kgserve.server.http.connection import ensure_running_in_task, start_coroutine_eagerly
from kgserve.server.http.cross_site_guard import CrossSiteGuard
from kgserve.server.http.gateway import RouteTable
from kgserve.server.http.routes import ROUTES
from tests.server.http.serving import RunningServer, accepted, read_reply, refusal

JSON = {"content-type": "application/json"}
OWN = {"date", "x-request-id"}
BODY: dict[str, Any] = {
    "nodes": [{"id": "a/b", "type": "x"}, {"id": "c", "type": "y"}],
    "edges": [{"from": "a/b", "to": "c", "relation_type": "R"}],
}
ASKED: tuple[tuple[str, str, bytes | None, dict[str, str]], ...] = (
    ("GET", "/health", None, {}),
    ("GET", "/health", b"unread", {}),
    ("HEAD", "/health", None, {}),
    ("PUT", "/health", None, {}),
    ("GET", "/health/", None, {}),
    ("POST", "/traverse", b'{"start_id":"a/b"}', JSON),
    ("POST", "/traverse", b'{"start_id":"a/b"}', {"content-type": "application/vnd.x+json; charset=utf-8"}),
    ("POST", "/traverse", b'{"start_id":"a/b"}', {"content-type": "text/plain"}),
    ("POST", "/traverse", b'{"start_id":"a/b"}', JSON | {"content-encoding": "gzip"}),
    ("POST", "/traverse", b'{"start_id":7}', JSON),
    ("POST", "/traverse", b'{"start_id":"a/b","depth":1,"depth":2}', JSON),
    ("POST", "/traverse", b'{"start_id":"a/b","more":1}', JSON),
    ("POST", "/traverse", b"", JSON),
    ("POST", "/traverse", b"\xff", JSON),
    ("POST", "/traverse", b"[" * 100_000, JSON),
    ("POST", "/traverse", b'{"start_id":"a/b"}' + b" " * 100_000, JSON),
    ("POST", "/traverse", b'{"start_id":"a/b"}', JSON | {"origin": "https://elsewhere.example"}),
    ("GET", "/traverse", None, {}),
    ("GET", "/nodes/a%2Fb", None, {}),
    ("GET", "/nodes/a%2Fb?version=1", None, {}),
    ("GET", "/nodes/a%2Fb?version=1&valid_at=2020", None, {}),
    ("GET", "/nodes/a%2Fb?wrong=1", None, {}),
    ("GET", "/nodes/%ff", None, {}),
    ("GET", "/nodes/%7B%7D", None, {}),
    ("GET", "/nodes/{}", None, {}),
    ("GET", "/nodes/nobody", None, {}),
    ("GET", "//nodes", None, {}),
    ("POST", "/inject", msgspec.json.encode(BODY), JSON),
    ("POST", "/inject", b'{"nodes":[{"id":""}]}', JSON),
    ("POST", "/nodes", b'{"type":"x"', JSON),
    ("POST", "/cypher", b'{"query":"MATCH (n {id: \'c\'}) RETURN n.id"}', JSON),
    ("POST", "/cypher", b'{"query":"MATCH (n:Entity {type: \'y\'}) RETURN n.id"}', JSON),
    ("POST", "/cypher", b'{"query":"MATCH (n:Entity) RETURN n.id ORDER BY n.id"}', JSON | {"accept": "text/csv"}),
    ("POST", "/cypher", b'{"query":"RETURN 1"', JSON),
    ("POST", "/cypher", b'{"query":"MATCH (n:Entity) RETURN"}', JSON),
    ("POST", "/cypher", b"{\"query\":\"MERGE (n:Entity {id: 'c', type: 'y'}) RETURN n.id\"}", JSON),
    ("GET", "/cypher", None, {}),
    ("DELETE", "/nodes/nobody", None, {}),
    ("DELETE", "/edges/a~R~b", None, {}),
    ("DELETE", "/edges/retire", None, {}),
    ("DELETE", "/edges", b'{"from":"c","to":"c","relation_type":"R"}', JSON),
)


def edge_of(served: RunningServer) -> Any:
    return cast("Litestar", served.server.config.app).state["edge"]


@contextmanager
def routed(served: RunningServer) -> Generator[None]:
    """Disable the fast path until the end of the block."""
    edge = edge_of(served)
    before = edge.routes
    edge.routes = RouteTable()
    try:
        yield
    finally:
        edge.routes = before


def shown(response: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    own = OWN | {"content-length"} if b"took_ms" in response.content else OWN
    headers = {name: value for name, value in response.headers.items() if name not in own}
    identity = response.headers["x-request-id"].encode()
    body = re.sub(rb'"(sequence|took_ms)":[0-9.]+', rb'"\1":N', response.content.replace(identity, b"ID"))
    return response.status_code, headers, body


@pytest.mark.parametrize(("method", "path", "body", "headers"), ASKED, ids=lambda each: str(each)[:40])
def test_fast_path_matches_the_router(
    served: RunningServer,
    http: httpx.Client,
    api: str,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
) -> None:
    accepted(http.post(f"{api}/inject", json=BODY))
    at = path if path.startswith("/health") else api + path
    ours = shown(http.request(method, at, content=body, headers=headers))
    with routed(served):
        assert shown(http.request(method, at, content=body, headers=headers)) == ours


def test_requests_are_counted_by_their_route(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json=BODY))
    accepted(http.get(f"{api}/nodes/c"))
    scrape = http.get("/metrics").text
    for route in ("/api/memory/{store}/nodes/{id}", "/api/memory/{store}/inject"):
        assert f'route="{route}"' in scrape


def test_body_may_arrive_late_and_in_chunks(served: RunningServer, http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json=BODY))
    body = b'{"start_id":"a/b"}'
    head = f"POST {api}/traverse HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(head + b"expect: 100-continue\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for byte in body:
            connection.sendall(bytes([byte]))
        assert read_reply(connection).status == 200


def test_pipelined_fast_path_requests_are_answered_in_order(served: RunningServer) -> None:
    asked = b"".join(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path for path in (b"/health", b"/nowhere") * 10)
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        connection.sendall(asked + b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404"] * 10 + [b"200"]
    assert b"connection: close" in answers.rpartition(b"HTTP/1.1")[2]


def test_idle_wait_has_a_time_limit(served: RunningServer, http: httpx.Client) -> None:
    accepted(http.get("/health"))
    refusal(http.get("/nowhere"), 404)
    assert edge_of(served).running == 0


def test_route_table_path_matching() -> None:
    found = ROUTES.find("GET", "/api/memory/s/nodes/a%2Fb")
    assert found is not None
    assert (found[0].path, found[1]) == ("/api/memory/{store}/nodes/{id}", {"store": "s", "id": "a%2Fb"})
    for method, path in (("GET", "/"), ("GET", "*"), ("POST", "/health"), ("DELETE", "/api/memory/s/edges/retire")):
        assert ROUTES.find(method, path) is None


def test_malformed_host_is_refused_without_allowed_hosts() -> None:
    guard = CrossSiteGuard("0.0.0.0")  # noqa: S104
    guard.check([(b"host", b"anything.example:80")])
    with pytest.raises(InvalidInput):
        guard.check([(b"host", b"any\xe9thing.example")])


def test_waiting_request_continues_in_a_task_with_its_context() -> None:
    asyncio.run(_begun_and_cancelled())


async def _begun_and_cancelled() -> None:
    name = contextvars.ContextVar("name", default="none")
    waiting = asyncio.Event()
    done: list[Any] = []

    async def work(*, wait: bool) -> None:
        token = name.set("inside")
        try:
            if wait:
                await ensure_running_in_task()
                done.append(asyncio.current_task())
                await asyncio.sleep(0.001)
                waiting.set()
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            done.append("cancelled")
        name.reset(token)
        done.append(name.get())

    begun: list[asyncio.Task[None] | None] = []
    loop = asyncio.get_running_loop()
    for wait in (False, True):
        loop.call_soon(lambda wait=wait: begun.append(start_coroutine_eagerly(work(wait=wait), loop)))
    await waiting.wait()
    [none, task] = begun
    assert none is None
    assert task is not None
    task.cancel()
    await task
    assert done == ["none", task, "cancelled", "none"]
    assert name.get() == "none"
