"""Behavior of uvicorn alone under the attacks for which `HttpServerConnection` overrides it.

test_limits and test_connections test kgserve's own answers. A test that fails here shows that uvicorn withstands the
attack with its public options by now: remove the override.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import pytest
import uvicorn

from tests.server.http.serving import PATIENCE
from tests.server.http.sockets import HEALTH, connected, eventually, get, replies, send

MAX_CONNECTIONS = 4
KEEP_ALIVE_SECONDS = 0.2
OPEN_SECONDS = 2 * KEEP_ALIVE_SECONDS
"""Seconds within which uvicorn closes a connection, if it closes it at all."""
POST_OF_NINE_BYTES = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
UPLOAD = b"POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """ASGI application that returns the names of all headers after reading the body, unless it refuses."""
    more, is_refused = scope["path"] != "/refused", scope["path"] == "/refused"
    while more:
        more = (await receive()).get("more_body", False)
    body = b" ".join(name for name, _ in scope["headers"][:50]) if scope["path"] != "/large" else b"x" * 50_000_000
    headers = [(b"content-length", b"%d" % len(body)), *([(b"connection", b"close")] if is_refused else [])]
    await send({"type": "http.response.start", "status": 413 if is_refused else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving_alone() -> Generator[uvicorn.Server]:
    """Run uvicorn with its own protocol class and options."""
    config = uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=cast("int", KEEP_ALIVE_SECONDS),
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        eventually(lambda: server.started)
        yield server
        server.should_exit = True
        thread.join(PATIENCE)


@pytest.fixture(scope="module")
def server() -> Iterator[uvicorn.Server]:
    with serving_alone() as running:
        yield running


@pytest.fixture
def alone(server: uvicorn.Server) -> int:
    """Return uvicorn's port once no client is connected."""
    eventually(lambda: not server.server_state.connections)
    return port_of(server)


def port_of(server: uvicorn.Server) -> int:
    return server.servers[0].sockets[0].getsockname()[1]


def statuses(port: int, request: bytes) -> list[int]:
    return [reply.status for reply in replies(send(port, request))]


def is_left_open(connection: socket.socket) -> bool:
    """Return whether a connection is neither answered nor closed."""
    connection.settimeout(OPEN_SECONDS)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    return False


def is_left_open_after(port: int, *sent: bytes) -> bool:
    with connected(port) as connection:
        for each in sent:
            connection.sendall(each)
        return is_left_open(connection)


def accepts_any_number_of_silent_connections(port: int) -> bool:
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(port)) for _ in range(3 * MAX_CONNECTIONS)]
        return is_left_open(crowd[-1])


def refuses_connections_in_plain_text(port: int) -> bool:
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connected(port))
        [reply] = replies(send(port, get(b"/", b"Connection: close")))
        return (reply.status, reply.headers["content-type"]) == (503, "text/plain; charset=utf-8")


def loses_the_answer_to_a_refused_upload(port: int) -> bool:
    """Return whether a refused upload ends in a reset."""
    with connected(port) as connection:
        try:
            connection.sendall(UPLOAD % 50_000_000 + b"x" * 50_000_000)
            while connection.recv(65536):
                pass
        except ConnectionError:
            return True
    return False


def waits_for_clients_that_do_not_read(port: int) -> bool:
    """Return whether the rest of a long response still arrives after a pause without reading."""
    with connected(port) as connection:
        connection.sendall(get(b"/large", b"Connection: close"))
        with contextlib.suppress(TimeoutError), connected(port) as waiting:
            is_left_open(waiting)
        received = 0
        while block := connection.recv(1 << 20):
            received += len(block)
        return received > 50_000_000


def reads_behind_an_offer_to_change_the_protocol(port: int) -> bool:
    with connected(port) as connection:
        connection.sendall(get(b"/", b"Connection: Upgrade", b"Upgrade: h2c"))
        first = connection.recv(65536)
        connection.sendall(get(b"/", b"Connection: close"))
        return first.startswith(b"HTTP/1.1 200") and connection.recv(65536).startswith(b"HTTP/1.1 200")


def takes_trailers_for_headers(port: int) -> bool:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    [reply] = replies(send(port, head + b"1\r\nx\r\n0\r\nOrigin: https://evil.example\r\n\r\n"))
    return b"origin" in reply.body.split()


WEAKNESSES: dict[str, Callable[[int], bool]] = {
    "ABUSE 11: a head of any size": lambda port: (
        statuses(port, get(b"/", b"Connection: close", b"X: " + b"x" * 3_000_000)) == [200]
    ),
    "ABUSE 11: header lines of any number": lambda port: (
        statuses(port, get(b"/", b"Connection: close", *[b"X: x"] * 50_000)) == [200]
    ),
    "ABUSE 12: an address over the limit": lambda port: (
        statuses(port, get(b"/?" + b"x" * 33_000, b"Connection: close")) == [200]
    ),
    "ABUSE 12: an address of 70 kB is no address": lambda port: statuses(port, get(b"/?" + b"x" * 70_000)) != [414],
    "ABUSE 13: a head that stops": lambda port: is_left_open_after(port, b"GET / HTTP/1.1\r\nHost: loc"),
    "ABUSE 14: a body that stops": lambda port: is_left_open_after(port, POST_OF_NINE_BYTES),
    "ABUSE 15: silent connections": accepts_any_number_of_silent_connections,
    "ABUSE 15: refusals": refuses_connections_in_plain_text,
    "ABUSE 7: the answer to a refused upload": loses_the_answer_to_a_refused_upload,
    "answers that are not read": waits_for_clients_that_do_not_read,
    "pipelined requests of any number": lambda port: (
        statuses(port, HEALTH * 500 + get(b"/", b"Connection: close")) == [200] * 501
    ),
    "what does not parse, in plain text": lambda port: b"text/plain" in send(port, b"garbage\r\n\r\n"),
    "what does not parse, before earlier answers": lambda port: statuses(port, HEALTH + b"garbage\r\n\r\n")[0] == 400,
    "a body of framing alone": lambda port: is_left_open_after(
        port, b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 400_000
    ),
    "a request behind an offer to change the protocol": reads_behind_an_offer_to_change_the_protocol,
    "trailers": takes_trailers_for_headers,
}


@pytest.mark.parametrize("weakness", WEAKNESSES)
def test_uvicorn_alone_does_not_withstand(alone: int, weakness: str) -> None:
    assert WEAKNESSES[weakness](alone)


def test_uvicorn_alone_waits_for_a_stalled_body_at_shutdown() -> None:
    """ABUSE 71: until the grace period is over."""
    with serving_alone() as server, connected(port_of(server)) as connection:
        connection.sendall(POST_OF_NINE_BYTES)
        eventually(lambda: bool(server.server_state.tasks))
        server.should_exit = True
        assert is_left_open(connection)
