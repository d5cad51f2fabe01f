"""Bare connections to a server, for requests that no regular client sends."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tests.server.http.serving import PATIENCE, Reply

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def connected(port: int, source: str = "127.0.0.1") -> Generator[socket.socket]:
    """Open a connection from one of the many loopback addresses."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0)) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """Read until the server closes the connection. Fails if it does not."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while block := connection.recv(65536):
            received += block
    return received


def replies(received: bytes) -> list[Reply]:
    """Yield the responses with a Content-Length."""
    found: list[Reply] = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        found.append(Reply(int(first.split()[1]), headers, rest[:length]))
        received = rest[length:]
    return found


def only_reply(connection: socket.socket) -> Reply:
    """Return the only response before the server closes."""
    [reply] = replies(until_closed(connection))
    return reply


def drip(connection: socket.socket, piece: bytes, pause: float) -> None:
    """Send ``piece`` repeatedly until the server closes."""
    begun = time.monotonic()
    connection.settimeout(pause)
    while time.monotonic() - begun < PATIENCE:
        try:
            connection.sendall(piece)
            if not connection.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
        else:
            break
    else:
        raise AssertionError("the server has endless patience")
    connection.settimeout(PATIENCE)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send(port: int, request: bytes) -> bytes:
    """Send bytes and return everything until the server closes."""
    with connected(port) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        return until_closed(connection)


def get(path: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", *lines, b"", b""])


def post(*lines: bytes) -> bytes:
    head = (b"POST /api/memory/limits/inject HTTP/1.1", b"Host: localhost", b"Content-Type: application/json")
    return b"\r\n".join([*head, *lines, b"", b""])
