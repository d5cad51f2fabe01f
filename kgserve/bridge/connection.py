"""The server as the bridge sees it: which one it is, the connections to it, and the session on it.

Connections are used again; answers are documents or event streams. The session of the handshake era is made by the
editor once, and made again for it with every other server.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from kgserve.bridge.message import INITIALIZE, answered, negotiated_version, parse
from kgserve.reach import LaunchFailed, Server, answers, at, connection_to, ensure, find

CONNECT_TIMEOUT = 5.0
"""Seconds that a server may take to accept a connection; an answer may take as long as the work does."""

BROKEN = (OSError, http.client.HTTPException)
"""What a connection raises that could not be made, or that ended before the answer did."""

RETURN_PATIENCE = 10.0
"""Seconds that a server given by its address may be away once it has been there: the bridge cannot start that one."""

SESSION_HEADER = "Mcp-Session-Id"

_RETURN_DELAY = 0.1
_END_TIMEOUT = 1.0
_MAX_IDLE = 8
_END_OF_STREAM = 0.2
"""Seconds in which a stream that has brought its answer must end for its connection to be used again."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Exchange:
    """One request to the server, and its answer. ``sent``: the server may have got some of it."""

    def __init__(self, connections: Connections, server: Server, *, fresh: bool = False) -> None:
        """``fresh``: over a connection of its own, which no server is about to close for having been idle."""
        self.sent = False
        self._connections = connections
        self._server = server
        self._fresh = fresh
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._aborted = False
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def send(
        self, method: str, headers: dict[str, str], body: bytes | None = None, timeout: float | None = None
    ) -> None:
        """Send the request and read the head of the answer, each step within ``timeout``. Raises one of BROKEN."""
        headers = self._connections.headers | self._server.headers | headers
        self._connection = self._connections.get(self._server, fresh=self._fresh)
        self._socket = self._connection.sock
        if self._socket is None or self._aborted:
            raise ConnectionAbortedError
        self._socket.settimeout(timeout)
        self.sent = True
        path = f"{urlsplit(self._server.url).path.rstrip('/')}/mcp"
        # A server that refuses a body for its size answers and closes before it has read it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.request(method, path, body=body, headers=headers)
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
        """The data of each event of a stream that has any. Raises one of BROKEN."""
        data: list[bytes] = []
        for line in self.response:
            text = line.rstrip(b"\r\n")
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text:
                if any(data):  # the first event of an answer has none
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
            self._connections.give_back(self._server, self._connection, self._response)
            self._connection = None

    def abort(self) -> None:
        """Break the connection, from whichever thread: for the server, the client has left."""
        self._aborted = True
        # Only a shutdown wakes the thread that reads; it closes the connection then.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class Connections:
    """The connections to the server; those that wait for work are kept, for one server at a time."""

    def __init__(self, store: str | None = None) -> None:
        """``store`` is the one that tools use when a call names none."""
        self.headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if store:
            self.headers["Kgserve-Store"] = store
        self._idle: deque[tuple[Server, http.client.HTTPConnection]] = deque(maxlen=_MAX_IDLE)

    def get(self, server: Server, *, fresh: bool = False) -> http.client.HTTPConnection:
        """An open connection. Raises OSError."""
        while self._idle and not fresh:
            with suppress(IndexError):
                owner, kept = self._idle.pop()
                if owner == server and _is_idle(kept):
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


class Servers:
    """The server of the data folder, started when there is none; or the one at ``url``, which is only waited for."""

    def __init__(self, data_dir: Path, url: str | None = None, key: str | None = None) -> None:
        """``key`` is sent instead of the token that the data folder names."""
        self._data_dir = data_dir
        self._key = key
        self._url = url.rstrip("/") if url else None
        self._lock = threading.Lock()
        self._known: Server | None = None
        self._doubtful = False
        self._reached = False

    def current(self) -> Server:
        """A server to send a request to. Raises LaunchFailed."""
        with self._lock:
            if self._known is None:
                self._known = self._awaited(self._url) if self._url else self._ensured()
                self._doubtful = False
            return self._known

    def present(self) -> Server | None:
        """The server if it is there. Listening alone is no reason to start one: somebody may have stopped it."""
        with self._lock:
            if self._known is None:
                found = at(self._url, self._data_dir) if self._url else find(self._data_dir)
                self._known = found.with_key(self._key) if found is not None and answers(found) else None
                self._doubtful = self._known is None
            return self._known

    def lost(self, server: Server) -> None:
        """Its connection broke, or it knows us no longer: look again before the next request."""
        with self._lock:
            if self._known == server:
                self._known, self._doubtful = None, True

    def _ensured(self) -> Server:
        found = None if self._doubtful else find(self._data_dir)
        return (found or ensure(self._data_dir)).with_key(self._key)

    def _awaited(self, url: str) -> Server:
        server = self._named(url)
        deadline = time.monotonic() + (RETURN_PATIENCE if self._reached else 0)
        while not answers(server):
            if time.monotonic() > deadline:
                raise LaunchFailed(f"no server answers at {url}; start it, or leave --url out to have one started")
            time.sleep(_RETURN_DELAY)
            server = self._named(url)
        self._reached = True
        return server

    def _named(self, url: str) -> Server:
        return at(url, self._data_dir).with_key(self._key)


class Session(NamedTuple):
    """What one server answered to the handshake; a server without sessions gives no id."""

    server: Server
    id: str | None
    version: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every later request."""
        version = {"MCP-Protocol-Version": self.version}
        return version | {SESSION_HEADER: self.id} if self.id is not None else version


class Refused(Exception):
    """The server does not take the handshake again."""


class Handshake:
    """The editor's handshake, and the session that stands for it."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._initialize: bytes | None = None
        self._initialized: bytes | None = None
        self._session: Session | None = None

    @property
    def made(self) -> bool:
        """Whether the editor speaks the handshake era's protocol."""
        return self._initialize is not None

    def adopt(self, server: Server, line: bytes, exchange: Exchange, answer: bytes) -> None:
        """The server has answered the editor's ``initialize``."""
        version = negotiated_version(answer)
        if version is None:
            return
        with self._lock:
            self._initialize, self._initialized = line, None
            self._session = Session(server, exchange.response.headers.get(SESSION_HEADER), version)

    def completed(self, line: bytes) -> None:
        """The editor has sent ``notifications/initialized``."""
        with self._lock:
            self._initialized = line

    def session(self, server: Server) -> Session | None:
        """The session on this server, made anew if need be; None before the handshake. Raises Refused or BROKEN."""
        with self._lock:
            if self._initialize is None:
                return None
            if self._session is None or self._session.server != server:
                self._session = self._replay(server, self._initialize)
            return self._session

    def lost(self, session: Session) -> None:
        """The server does not know this session."""
        with self._lock:
            if self._session == session:
                self._session = None

    def end(self) -> None:
        """Tell the server that the session is over, if it can be told."""
        if not self._lock.acquire(timeout=_END_TIMEOUT):
            return
        session, self._session = self._session, None
        self._lock.release()
        if session is None or session.id is None:
            return
        with suppress(*BROKEN), Exchange(self._connections, session.server) as exchange:
            exchange.send("DELETE", session.headers, timeout=_END_TIMEOUT)
            exchange.body()

    def _replay(self, server: Server, line: bytes) -> Session:
        with Exchange(self._connections, server) as exchange:
            exchange.send("POST", {}, line)
            text = next(exchange.events(), b"") if exchange.is_stream else exchange.body()
            answer = answered(text, parse(line).id)
            version = negotiated_version(answer) if answer is not None else None
            if version is None:
                raise Refused(f"{explanation(server, exchange.response, text)} to {INITIALIZE}")
            session = Session(server, exchange.response.headers.get(SESSION_HEADER), version)
        if self._initialized is not None:
            with Exchange(self._connections, server) as exchange:
                exchange.send("POST", session.headers, self._initialized)
                exchange.body()
        return session


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


def _is_idle(connection: http.client.HTTPConnection) -> bool:
    """Whether a kept connection is still open: one that can be read has been closed by the server."""
    with suppress(OSError, ValueError):
        return not select.select([connection.sock], [], [], 0)[0]
    return False
