"""HTTP to the server: connections that are used again, answers as documents or as event streams."""

from __future__ import annotations

import http.client
import json
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from kgserve.launch import Server, connection_to

CONNECT_TIMEOUT = 5.0
"""Seconds that a server may take to accept a connection; an answer may take as long as the work does."""

BROKEN = (OSError, http.client.HTTPException)
"""What a connection raises that could not be made, or that ended before the answer did."""

_MAX_IDLE = 8
_END_OF_STREAM = 0.2
"""Seconds in which a stream that has brought its answer must end for its connection to be used again."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Call:
    """One request to the server, and its answer. ``sent``: the server may have got some of it."""

    def __init__(self, wire: Wire, server: Server, *, fresh: bool = False) -> None:
        """``fresh``: over a connection of its own, which no server is about to close for having been idle."""
        self.sent = False
        self._wire = wire
        self._server = server
        self._fresh = fresh
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._aborted = False
        self._response: http.client.HTTPResponse | None = None

    def send(
        self, method: str, headers: dict[str, str], body: bytes | None = None, timeout: float | None = None
    ) -> None:
        """Send the request and read the head of the answer, each step within ``timeout``. Raises one of BROKEN."""
        self._connection = self._wire.connection(self._server, fresh=self._fresh)
        self._socket = self._connection.sock
        if self._socket is None or self._aborted:
            raise ConnectionAbortedError
        self._socket.settimeout(timeout)
        self.sent = True
        # A server that refuses a body for its size answers and closes before it has read it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.request(method, self._wire.path(self._server), body=body, headers=headers)
        self._response = self._connection.getresponse()

    @property
    def response(self) -> http.client.HTTPResponse:
        """The answer's head."""
        if self._response is None:
            raise http.client.ResponseNotReady
        return self._response

    @property
    def is_stream(self) -> bool:
        """Whether the answer is an event stream."""
        return self.response.headers.get_content_type() == "text/event-stream"

    def body(self) -> bytes:
        """The whole answer. Raises one of BROKEN."""
        return self.response.read()

    def events(self) -> Iterator[bytes]:
        """The data of each event of a stream. Raises one of BROKEN."""
        data: list[bytes] = []
        for line in self.response:
            text = line.rstrip(b"\r\n")
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text and data:
                yield b"\n".join(data)
                data = []

    def finish(self) -> None:
        """Keep the connection for the next request if this one's answer ends here; else close it."""
        if self._connection is None:
            return
        try:
            if self._socket is not None and self._response is not None and not self._response.isclosed():
                self._socket.settimeout(_END_OF_STREAM)
                self._response.read(1)
        except BROKEN:
            self._response = None
        finally:
            self._wire.give_back(self._server, self._connection, self._response)
            self._connection = None

    def abort(self) -> None:
        """Break the connection, from whichever thread: for the server, the client has left."""
        self._aborted = True
        # Only a shutdown wakes the thread that reads; it closes the connection then.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class Wire:
    """The connections to the server; those that wait for work are kept, for one server at a time."""

    def __init__(self) -> None:
        self._idle: deque[tuple[Server, http.client.HTTPConnection]] = deque(maxlen=_MAX_IDLE)

    def path(self, server: Server) -> str:
        """The path of the MCP endpoint."""
        return f"{urlsplit(server.url).path.rstrip('/')}/mcp"

    def connection(self, server: Server, *, fresh: bool = False) -> http.client.HTTPConnection:
        """An open connection. Raises OSError."""
        while self._idle and not fresh:
            with suppress(IndexError):
                owner, kept = self._idle.pop()
                if owner == server and _is_quiet(kept):
                    return kept
                kept.close()
        return _connect(server)

    def give_back(
        self, server: Server, connection: http.client.HTTPConnection, response: http.client.HTTPResponse | None
    ) -> None:
        """Keep a connection whose answer was read to the end; close any other."""
        if response is None or not response.isclosed() or connection.sock is None or len(self._idle) >= _MAX_IDLE:
            connection.close()
        else:
            self._idle.append((server, connection))


def explanation(server: Server, response: http.client.HTTPResponse, body: bytes) -> str:
    """What an answer that is no MCP message says, for a person."""
    reason = f"the server at {server.url} answered {response.status} {response.reason}".rstrip()
    with suppress(ValueError, RecursionError):
        document: Any = json.loads(body)
        if isinstance(document, dict) and isinstance(detail := document.get("detail"), str):
            return f"{reason}: {detail}"
    return f"{reason}; is there an MCP endpoint of kgserve?" if response.status == http.client.NOT_FOUND else reason


def _connect(server: Server) -> http.client.HTTPConnection:
    connection = connection_to(server, CONNECT_TIMEOUT)
    connection.connect()
    # Without a time limit, these alone notice that the machine at the other end is gone.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether a kept connection is still open: one that can be read has been closed by the server."""
    with suppress(OSError, ValueError):
        return not select.select([connection.sock], [], [], 0)[0]
    return False
