"""The server as the bridge sees it: which one it is, the connections to it, and the session on it.

Connections are used again; answers are documents or event streams. The session of the handshake era is made by the
editor once, and made again for it with every other server.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from kgserve.cli.mcp_stdio.message import INITIALIZE, answered, negotiated_version, parse
from kgserve.cli.mcp_stdio.tool_hints import is_long
from kgserve.platform import server_discovery
from kgserve.platform.http_client import Answer, ClientConnection
from kgserve.platform.version import __version__

LIVENESS_CHECK_SECONDS = 2.0
"""Seconds without a byte after which the server is asked whether it is alive."""

LIVENESS_TIMEOUT_SECONDS = 2.5
"""Seconds for the answer to a liveness check; a hanging server is reported `LIVENESS_CHECK_SECONDS` and this later."""

LONG_CALL_TIMEOUT_FACTOR = 5
"""How many times the limit the tools have that work for long where there is much to do."""


class Unresponsive(Exception):
    """The server hangs, or has not answered in time. ``str(error)`` is for the person who waits."""


class Pulse:
    """Whether the server is alive, asked once for all calls that wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._felt: tuple[server_discovery.DiscoveredServer, float] | None = None

    def check(self, server: server_discovery.DiscoveredServer) -> None:
        """Raises Unresponsive when it hangs. One that is gone is left to the connection to it to tell of."""
        with self._lock:
            if (
                self._felt is not None
                and self._felt[0] == server
                and time.monotonic() - self._felt[1] < LIVENESS_CHECK_SECONDS / 2
            ):
                return
            if not server_discovery.is_alive(server, LIVENESS_TIMEOUT_SECONDS):
                raise Unresponsive(server_discovery.why_silent(server))
            self._felt = server, time.monotonic()


class Patience:
    """How long one answer is waited for: while the server gives signs of life, and within the limit of the call."""

    def __init__(self, pulse: Pulse, limit: float = server_discovery.TOOL_CALL_TIMEOUT_SECONDS) -> None:
        """``limit`` is in seconds, from one sign of progress to the next."""
        self._pulse = pulse
        self._limit = limit
        self._moved = self._asked = time.monotonic()

    def moved(self) -> None:
        """Something has come that shows progress."""
        self._moved = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left of the limit."""
        return max(self._moved + self._limit - time.monotonic(), 0.0)

    def wait(self, server: server_discovery.DiscoveredServer) -> float:
        """Seconds that may be waited now. To be called before each wait. Raises Unresponsive."""
        left = self.left
        if not left:
            raise Unresponsive(
                f"the server at {server.url} is alive, but has not answered within {self._limit:g} s; "
                "KGSERVE_CALL_TIMEOUT sets how long a call may take"
            )
        if time.monotonic() - self._asked >= LIVENESS_CHECK_SECONDS:
            self._pulse.check(server)
        self._asked = time.monotonic()
        return min(LIVENESS_CHECK_SECONDS, self.left or left)


def limit_of(tool: str | None, usual: float) -> float:
    """Seconds that a request may take; ``tool`` is the one that it calls."""
    return usual * LONG_CALL_TIMEOUT_FACTOR if is_long(tool) else usual


BRIDGE_CONNECT_TIMEOUT_SECONDS = 3.0
"""Seconds that a server may take to accept a connection."""

CONNECTION_ERRORS = OSError
"""What a connection raises that could not be made, or that ended before the answer did."""

SERVER_RETURN_TIMEOUT_SECONDS = 10.0
"""Seconds that a server given by its address may be away once it has been there: the bridge cannot start that one."""

SESSION_HEADER = "Mcp-Session-Id"

HTTP_NOT_FOUND = 404

_SERVER_RETURN_POLL_SECONDS = 0.1
_END_SESSION_TIMEOUT_SECONDS = 1.0
_MAX_IDLE_CONNECTIONS = 8
_NO_TIMEOUT_SECONDS = 3600.0


class Exchange:
    """One request to the server, and its answer. ``sent``: the server may have got some of it."""

    def __init__(
        self,
        connections: ServerConnections,
        server: server_discovery.DiscoveredServer,
        patience: Patience | None = None,
    ) -> None:
        """Without ``patience`` the answer is waited for until the connection ends."""
        self.sent = False
        self._connections = connections
        self._server = server
        self._patience = patience
        self._connection: ClientConnection | None = None
        self._aborted = False
        self._answer: Answer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def send(self, method: str, headers: dict[str, str], body: bytes | None = None) -> None:
        """Send the request and read the head of the answer. Raises OSError and Unresponsive."""
        headers = self._connections.headers | self._server.headers | headers
        connection = self._connection = self._connections.get(self._server)
        if self._aborted:
            raise ConnectionAbortedError
        connection.on_silence = self._wait
        self.sent = True
        self._answer = connection.request(method, "/mcp", headers, body)

    def _wait(self) -> float:
        return _NO_TIMEOUT_SECONDS if self._patience is None else self._patience.wait(self._server)

    @property
    def answer(self) -> Answer:
        """The answer's head."""
        if self._answer is None:
            raise ConnectionAbortedError
        return self._answer

    def body(self) -> bytes:
        """The whole answer. Raises OSError and Unresponsive."""
        return self._open.body()

    def events(self) -> Iterator[bytes]:
        """The data of each event of a stream. Raises OSError and Unresponsive."""
        for event in self._open.events():
            if self._patience is not None:
                self._patience.moved()
            yield event

    def first(self) -> bytes:
        """The first document of the answer, or all of it."""
        return next(self.events(), b"") if self.answer.is_stream else self.body()

    def finish(self) -> None:
        """Keep the connection for the next request if this one's answer ends here; else close it."""
        if self._connection is not None:
            self._connections.give_back(self._server, self._connection, whole=self._answer is not None)
            self._connection = None

    def abort(self) -> None:
        """Break the connection, from whichever thread: for the server, the client has left."""
        self._aborted = True
        if (connection := self._connection) is not None:
            connection.abort()

    @property
    def _open(self) -> ClientConnection:
        if self._connection is None:
            raise ConnectionAbortedError
        return self._connection


class ServerConnections:
    """The connections to the server; those that wait for work are kept, for one server at a time."""

    def __init__(self, wishes: Mapping[str, str]) -> None:
        """``wishes`` are headers with what the editor asks for, such as the store of calls that name none."""
        self.headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        self.headers |= wishes
        self.pulse = Pulse()
        self.tools = self.headers.get("Kgserve-Tools", "")
        self.usual = self.headers.keys() <= {"Accept", "Content-Type", "Kgserve-Store", "Kgserve-Tools"}
        self._idle: deque[tuple[server_discovery.DiscoveredServer, ClientConnection]] = deque(
            maxlen=_MAX_IDLE_CONNECTIONS
        )

    def get(self, server: server_discovery.DiscoveredServer) -> ClientConnection:
        """An open connection. Raises OSError, and Unresponsive when none is accepted."""
        while self._idle:
            with suppress(IndexError):
                owner, kept = self._idle.pop()
                if owner == server and kept.is_idle:
                    return kept
                kept.close()
        try:
            return server_discovery.open_connection(server, BRIDGE_CONNECT_TIMEOUT_SECONDS)
        except TimeoutError:
            raise Unresponsive(server_discovery.why_silent(server)) from None

    def give_back(
        self, server: server_discovery.DiscoveredServer, connection: ClientConnection, *, whole: bool
    ) -> None:
        """Keep a connection whose answer was read to the end; close any other."""
        if whole and len(self._idle) < _MAX_IDLE_CONNECTIONS and connection.ends():
            self._idle.append((server, connection))
        else:
            connection.close()


class Servers:
    """The server of the data folder, started when there is none; or the one at ``url``, which is only waited for."""

    def __init__(
        self, data_dir: Path, url: str | None = None, key: str | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """``key`` is sent instead of the token that the data folder names; ``say`` tells a person."""
        self._data_dir = data_dir
        self._key = key
        self._url = url.rstrip("/") if url else None
        self._say = say
        self._lock = threading.Lock()
        self._known: server_discovery.DiscoveredServer | None = None
        self._doubtful = False
        self._reached = False

    @property
    def absent(self) -> bool:
        """Whether there is none, and one will be started when it is needed. Waits for nothing."""
        return self._url is None and self._known is None and server_discovery.find(self._data_dir) is None

    @property
    def is_ours(self) -> bool:
        """Whether the server is of this version, or will be."""
        known = self._known
        return self._url is None and (known is None or known.version == __version__)

    def current(self, patience: float = server_discovery.LAUNCH_TIMEOUT_SECONDS) -> server_discovery.DiscoveredServer:
        """A server to send a request to. Raises LaunchFailed when there is none within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        if not self._lock.acquire(timeout=patience):
            raise server_discovery.LaunchFailed(
                f"no server was there within {patience:.0f} s; one is still being started"
            )
        try:
            if self._known is None:
                left = max(deadline - time.monotonic(), 0.0)
                self._known = self._awaited(self._url) if self._url else self._ensured(left)
                self._doubtful = False
            return self._known
        finally:
            self._lock.release()

    def present(self) -> server_discovery.DiscoveredServer | None:
        """The server if it is there. Listening alone is no reason to start one: somebody may have stopped it."""
        with self._lock:
            if self._known is None:
                found = (
                    server_discovery.at(self._url, self._data_dir)
                    if self._url
                    else server_discovery.find(self._data_dir)
                )
                self._known = (
                    found.with_key(self._key) if found is not None and server_discovery.answers(found) else None
                )
                self._doubtful = self._known is None
            return self._known

    def lost(self, server: server_discovery.DiscoveredServer) -> None:
        """Its connection broke, or it knows us no longer: look again before the next request."""
        with self._lock:
            if self._known == server:
                self._known, self._doubtful = None, True

    def _ensured(self, patience: float) -> server_discovery.DiscoveredServer:
        found = None if self._doubtful else server_discovery.find(self._data_dir)
        if found is not None and (told := server_discovery.replace_older(self._data_dir, found)):
            if self._say is not None:
                self._say(told)
            found = server_discovery.find(self._data_dir)
        return (found or server_discovery.ensure(self._data_dir, patience)).with_key(self._key)

    def _awaited(self, url: str) -> server_discovery.DiscoveredServer:
        server = self._named(url)
        deadline = time.monotonic() + (SERVER_RETURN_TIMEOUT_SECONDS if self._reached else 0)
        while not server_discovery.answers(server):
            if time.monotonic() > deadline:
                raise server_discovery.LaunchFailed(
                    f"no server answers at {url}; start it, or leave --url out to have one started"
                )
            time.sleep(_SERVER_RETURN_POLL_SECONDS)
            server = self._named(url)
        self._reached = True
        return server

    def _named(self, url: str) -> server_discovery.DiscoveredServer:
        return server_discovery.at(url, self._data_dir).with_key(self._key)


class McpSession(NamedTuple):
    """What one server answered to the handshake; a server without sessions gives no id."""

    server: server_discovery.DiscoveredServer
    id: str | None
    version: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every later request."""
        version = {"MCP-Protocol-Version": self.version}
        return version | {SESSION_HEADER: self.id} if self.id is not None else version


class HandshakeRefused(Exception):
    """The server does not take the handshake again."""


class Handshake:
    """The editor's handshake, and the session that stands for it."""

    def __init__(self, connections: ServerConnections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._initialize: bytes | None = None
        self._initialized: bytes | None = None
        self._session: McpSession | None = None
        self.version: str | None = None
        """The one that was agreed upon."""

    @property
    def made(self) -> bool:
        """Whether the editor speaks the handshake era's protocol."""
        return self._initialize is not None

    def promise(self, line: bytes, version: str | None) -> None:
        """The editor's ``initialize`` was answered for a server that is on its way, and is told of it when it comes."""
        with self._lock:
            self._initialize, self._initialized, self.version = line, None, version

    def adopt(self, server: server_discovery.DiscoveredServer, line: bytes, exchange: Exchange, answer: bytes) -> None:
        """The server has answered the editor's ``initialize``."""
        version = negotiated_version(answer)
        if version is None:
            return
        with self._lock:
            self._initialize, self._initialized, self.version = line, None, version
            self._session = McpSession(server, exchange.answer.headers.get(SESSION_HEADER.lower()), version)

    def completed(self, line: bytes) -> None:
        """The editor has sent ``notifications/initialized``."""
        with self._lock:
            self._initialized = line

    def session(self, server: server_discovery.DiscoveredServer) -> McpSession | None:
        """The session on this server, made anew if need be; None before the handshake.

        Raises Refused, OSError and Unresponsive.
        """
        with self._lock:
            if self._initialize is None:
                return None
            if self._session is None or self._session.server != server:
                self._session = self._replay(server, self._initialize)
            return self._session

    def lost(self, session: McpSession) -> None:
        """The server does not know this session."""
        with self._lock:
            if self._session == session:
                self._session = None

    def end(self) -> None:
        """Tell the server that the session is over, if it can be told."""
        if not self._lock.acquire(timeout=_END_SESSION_TIMEOUT_SECONDS):
            return
        session, self._session = self._session, None
        self._lock.release()
        if session is None or session.id is None:
            return
        with (
            suppress(CONNECTION_ERRORS, Unresponsive),
            self._exchange(session.server, _END_SESSION_TIMEOUT_SECONDS) as exchange,
        ):
            exchange.send("DELETE", session.headers)
            exchange.body()

    def _replay(self, server: server_discovery.DiscoveredServer, line: bytes) -> McpSession:
        with self._exchange(server) as exchange:
            exchange.send("POST", {}, line)
            text = exchange.first()
            answer = answered(text, parse(line).id)
            version = negotiated_version(answer) if answer is not None else None
            if version is None:
                raise HandshakeRefused(f"{explanation(server, exchange.answer, text)} to {INITIALIZE}")
            session = McpSession(server, exchange.answer.headers.get(SESSION_HEADER.lower()), version)
        if self._initialized is not None:
            with self._exchange(server) as exchange:
                exchange.send("POST", session.headers, self._initialized)
                exchange.body()
        return session

    def _exchange(
        self, server: server_discovery.DiscoveredServer, limit: float = server_discovery.TOOL_CALL_TIMEOUT_SECONDS
    ) -> Exchange:
        return Exchange(self._connections, server, Patience(self._connections.pulse, limit))


def explanation(server: server_discovery.DiscoveredServer, answer: Answer, body: bytes) -> str:
    """What an answer that is no MCP message says, for a person."""
    reason = f"the server at {server.url} answered {answer.status} {answer.reason}".rstrip()
    with suppress(ValueError, RecursionError):
        document: Any = json.loads(body)
        if isinstance(document, dict) and isinstance(detail := document.get("detail"), str):
            return f"{reason}: {detail}"
    return f"{reason}; is there an MCP endpoint of kgserve?" if answer.status == HTTP_NOT_FOUND else reason
