"""The bridge's view of the server: discovery, pooled connections, and the MCP session.

Answers are JSON documents or event streams. With the session-based protocol, the editor performs the handshake once;
the bridge replays it on every further server.
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

from kgserve.cli.mcp_stdio.json_rpc_messages import (
    INITIALIZE,
    parse_json_rpc_message,
    parse_negotiated_mcp_version,
    to_json_rpc_answer_line,
)
from kgserve.cli.mcp_stdio.tool_hints import is_long_running_tool
from kgserve.platform import server_discovery
from kgserve.platform.http_client import HttpResponseHead, OutboundHttpConnection
from kgserve.platform.version import __version__

LIVENESS_CHECK_SECONDS = 2.0
"""Seconds without a byte after which the server's liveness is checked."""

LIVENESS_TIMEOUT_SECONDS = 2.5
"""Timeout of a liveness check in seconds. A hung server is reported after `LIVENESS_CHECK_SECONDS` plus this."""

LONG_CALL_TIMEOUT_FACTOR = 5
"""Factor on the call timeout for tools that may run long."""


class ServerUnresponsive(Exception):
    """The server hangs or exceeded the time limit. ``str(error)`` is a message for the user."""


class ServerLivenessCheck:
    """Liveness check of the server, shared by all calls that wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_success: tuple[server_discovery.DiscoveredServer, float] | None = None

    def check(self, server: server_discovery.DiscoveredServer) -> None:
        """Check that ``server`` is alive. Raises ServerUnresponsive when it hangs.

        A server that has exited passes the check; the connection reports it.
        """
        with self._lock:
            if (
                self._last_success is not None
                and self._last_success[0] == server
                and time.monotonic() - self._last_success[1] < LIVENESS_CHECK_SECONDS / 2
            ):
                return
            if not server_discovery.is_server_responding(server, LIVENESS_TIMEOUT_SECONDS):
                raise ServerUnresponsive(server_discovery.describe_silent_server(server))
            self._last_success = server, time.monotonic()


class AnswerDeadline:
    """Deadline of one answer: extended by progress, and checked against the server's liveness."""

    def __init__(self, pulse: ServerLivenessCheck, limit: float = server_discovery.TOOL_CALL_TIMEOUT_SECONDS) -> None:
        """Initialize with ``limit``, the seconds allowed between two signs of progress."""
        self._pulse = pulse
        self._limit = limit
        self._last_progress = self._last_wait = time.monotonic()

    def record_progress(self) -> None:
        """Record progress, which restarts the limit."""
        self._last_progress = time.monotonic()

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the limit."""
        return max(self._last_progress + self._limit - time.monotonic(), 0.0)

    def wait(self, server: server_discovery.DiscoveredServer) -> float:
        """Return the seconds that the caller may wait now; call it before each wait. Raises ServerUnresponsive."""
        left = self.remaining_seconds
        if not left:
            raise ServerUnresponsive(
                f"the server at {server.url} is alive, but did not answer within {self._limit:g} s; "
                "set KGSERVE_CALL_TIMEOUT to allow more time"
            )
        if time.monotonic() - self._last_wait >= LIVENESS_CHECK_SECONDS:
            self._pulse.check(server)
        self._last_wait = time.monotonic()
        return min(LIVENESS_CHECK_SECONDS, self.remaining_seconds or left)


def choose_tool_call_timeout(tool: str | None, usual: float) -> float:
    """Return the timeout in seconds of a request that calls ``tool``; ``usual`` is the configured timeout."""
    return usual * LONG_CALL_TIMEOUT_FACTOR if is_long_running_tool(tool) else usual


BRIDGE_CONNECT_TIMEOUT_SECONDS = 3.0
"""Timeout in seconds of connecting to a server."""

CONNECTION_ERRORS = OSError
"""Errors of a connection that could not be made, or that ended before the answer."""

SERVER_RETURN_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a server given by its address to return; the bridge cannot start that one."""

SESSION_HEADER = "Mcp-Session-Id"

HTTP_NOT_FOUND = 404

_SERVER_RETURN_POLL_SECONDS = 0.1
_END_SESSION_TIMEOUT_SECONDS = 1.0
_MAX_IDLE_CONNECTIONS = 8
_NO_TIMEOUT_SECONDS = 3600.0


class McpExchange:
    """One request to the server and its answer. ``sent`` is True once the server may have received a part of it."""

    def __init__(
        self,
        connections: McpServerConnectionPool,
        server: server_discovery.DiscoveredServer,
        patience: AnswerDeadline | None = None,
    ) -> None:
        """Initialize the exchange. Without ``patience``, the wait for an answer has no time limit."""
        self.sent = False
        self._connections = connections
        self._server = server
        self._patience = patience
        self._connection: OutboundHttpConnection | None = None
        self._aborted = False
        self._answer: HttpResponseHead | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def send(self, method: str, headers: dict[str, str], body: bytes | None = None) -> None:
        """Send the request and read the answer's status and headers. Raises OSError and ServerUnresponsive."""
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
    def answer(self) -> HttpResponseHead:
        """Status and headers of the answer."""
        if self._answer is None:
            raise ConnectionAbortedError
        return self._answer

    def body(self) -> bytes:
        """Return the whole body of the answer. Raises OSError and ServerUnresponsive."""
        return self._open.body()

    def events(self) -> Iterator[bytes]:
        """Yield the data of each event of a stream. Raises OSError and ServerUnresponsive."""
        for event in self._open.events():
            if self._patience is not None:
                self._patience.record_progress()
            yield event

    def first(self) -> bytes:
        """Return the first event of a stream, or the whole body."""
        return next(self.events(), b"") if self.answer.is_stream else self.body()

    def finish(self) -> None:
        """Return the connection to the pool if the answer was read to its end; else close it."""
        if self._connection is not None:
            self._connections.release(self._server, self._connection, whole=self._answer is not None)
            self._connection = None

    def abort(self) -> None:
        """Break the connection from any thread; the server sees a disconnected client."""
        self._aborted = True
        if (connection := self._connection) is not None:
            connection.abort()

    @property
    def _open(self) -> OutboundHttpConnection:
        if self._connection is None:
            raise ConnectionAbortedError
        return self._connection


class McpServerConnectionPool:
    """Pool of idle connections to one server at a time."""

    def __init__(self, wishes: Mapping[str, str]) -> None:
        """Initialize with ``wishes``: headers with the editor's options, such as the default store."""
        self.headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        self.headers |= wishes
        self.pulse = ServerLivenessCheck()
        self.tools = self.headers.get("Kgserve-Tools", "")
        self.usual = self.headers.keys() <= {"Accept", "Content-Type", "Kgserve-Store", "Kgserve-Tools"}
        self._idle: deque[tuple[server_discovery.DiscoveredServer, OutboundHttpConnection]] = deque(
            maxlen=_MAX_IDLE_CONNECTIONS
        )

    def get(self, server: server_discovery.DiscoveredServer) -> OutboundHttpConnection:
        """Return an open connection. Raises OSError, and ServerUnresponsive when the server does not accept one."""
        while self._idle:
            with suppress(IndexError):
                owner, kept = self._idle.pop()
                if owner == server and kept.is_idle:
                    return kept
                kept.close()
        try:
            return server_discovery.open_http_connection_to_server(server, BRIDGE_CONNECT_TIMEOUT_SECONDS)
        except TimeoutError:
            raise ServerUnresponsive(server_discovery.describe_silent_server(server)) from None

    def release(
        self, server: server_discovery.DiscoveredServer, connection: OutboundHttpConnection, *, whole: bool
    ) -> None:
        """Keep a connection whose answer was read to its end; close any other."""
        if whole and len(self._idle) < _MAX_IDLE_CONNECTIONS and connection.ends():
            self._idle.append((server, connection))
        else:
            connection.close()


class McpBridgeServerFinder:
    """Locator of the server: the data folder's, started on demand, or the one at ``url``, which is never started."""

    def __init__(
        self, data_dir: Path, url: str | None = None, key: str | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Initialize the locator. ``key`` replaces the data folder's token; ``say`` reports to the user."""
        self._data_dir = data_dir
        self._key = key
        self._url = url.rstrip("/") if url else None
        self._say = say
        self._lock = threading.Lock()
        self._known: server_discovery.DiscoveredServer | None = None
        self._doubtful = False
        self._reached = False

    @property
    def is_absent(self) -> bool:
        """True if no server runs and one will be started on demand. Does not block."""
        return (
            self._url is None
            and self._known is None
            and server_discovery.find_running_server_of_data_folder(self._data_dir) is None
        )

    @property
    def is_ours(self) -> bool:
        """True if the server has this version of kgserve, or will have when it is started."""
        known = self._known
        return self._url is None and (known is None or known.version == __version__)

    def get_or_start_server(
        self, patience: float = server_discovery.LAUNCH_TIMEOUT_SECONDS
    ) -> server_discovery.DiscoveredServer:
        """Return a server for a request. Raises ServerLaunchFailed if none is available within ``patience`` seconds."""
        deadline = time.monotonic() + patience
        if not self._lock.acquire(timeout=patience):
            raise server_discovery.ServerLaunchFailed(
                f"no server was available within {patience:.0f} s; one is still starting"
            )
        try:
            if self._known is None:
                left = max(deadline - time.monotonic(), 0.0)
                self._known = self._awaited(self._url) if self._url else self._ensured(left)
                self._doubtful = False
            return self._known
        finally:
            self._lock.release()

    def get_running_server(self) -> server_discovery.DiscoveredServer | None:
        """Return the server if it runs. Never starts one, because a user may have stopped it on purpose."""
        with self._lock:
            if self._known is None:
                found = (
                    server_discovery.resolve_server_at_url(self._url, self._data_dir)
                    if self._url
                    else server_discovery.find_running_server_of_data_folder(self._data_dir)
                )
                self._known = (
                    found.with_key(self._key) if found is not None and server_discovery.is_server_ready(found) else None
                )
                self._doubtful = self._known is None
            return self._known

    def forget_server(self, server: server_discovery.DiscoveredServer) -> None:
        """Forget ``server`` after its connection broke or its session expired; the next request looks again."""
        with self._lock:
            if self._known == server:
                self._known, self._doubtful = None, True

    def _ensured(self, patience: float) -> server_discovery.DiscoveredServer:
        found = None if self._doubtful else server_discovery.find_running_server_of_data_folder(self._data_dir)
        if found is not None and (notice := server_discovery.replace_older_server(self._data_dir, found)):
            if self._say is not None:
                self._say(notice)
            found = server_discovery.find_running_server_of_data_folder(self._data_dir)
        return (found or server_discovery.ensure_server_running(self._data_dir, patience)).with_key(self._key)

    def _awaited(self, url: str) -> server_discovery.DiscoveredServer:
        server = self._named(url)
        deadline = time.monotonic() + (SERVER_RETURN_TIMEOUT_SECONDS if self._reached else 0)
        while not server_discovery.is_server_ready(server):
            if time.monotonic() > deadline:
                raise server_discovery.ServerLaunchFailed(
                    f"no server answers at {url}. Start it, or omit --url to start one automatically"
                )
            time.sleep(_SERVER_RETURN_POLL_SECONDS)
            server = self._named(url)
        self._reached = True
        return server

    def _named(self, url: str) -> server_discovery.DiscoveredServer:
        return server_discovery.resolve_server_at_url(url, self._data_dir).with_key(self._key)


class McpSession(NamedTuple):
    """MCP session on one server. ``id`` is None for a server without sessions."""

    server: server_discovery.DiscoveredServer
    id: str | None
    version: str

    @property
    def headers(self) -> dict[str, str]:
        """Headers of all further requests."""
        version = {"MCP-Protocol-Version": self.version}
        return version | {SESSION_HEADER: self.id} if self.id is not None else version


class McpHandshakeRefused(Exception):
    """The server rejected the replayed handshake."""


class McpSessionHandshake:
    """The editor's handshake and the session that it created."""

    def __init__(self, connections: McpServerConnectionPool) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._initialize: bytes | None = None
        self._initialized: bytes | None = None
        self._session: McpSession | None = None
        self.version: str | None = None
        """Negotiated protocol version."""

    @property
    def made(self) -> bool:
        """True if the editor uses the session-based protocol."""
        return self._initialize is not None

    def record_early_initialize(self, line: bytes, version: str | None) -> None:
        """Record an ``initialize`` that was answered before a server ran; the handshake is replayed once one does."""
        with self._lock:
            self._initialize, self._initialized, self.version = line, None, version

    def adopt(
        self, server: server_discovery.DiscoveredServer, line: bytes, exchange: McpExchange, answer: bytes
    ) -> None:
        """Record the server's answer to the editor's ``initialize``."""
        version = parse_negotiated_mcp_version(answer)
        if version is None:
            return
        with self._lock:
            self._initialize, self._initialized, self.version = line, None, version
            self._session = McpSession(server, exchange.answer.headers.get(SESSION_HEADER.lower()), version)

    def record_initialized(self, line: bytes) -> None:
        """Record the editor's ``notifications/initialized``."""
        with self._lock:
            self._initialized = line

    def session(self, server: server_discovery.DiscoveredServer) -> McpSession | None:
        """Return the session on ``server``, creating it if necessary; None before the handshake.

        Raises McpHandshakeRefused, OSError and ServerUnresponsive.
        """
        with self._lock:
            if self._initialize is None:
                return None
            if self._session is None or self._session.server != server:
                self._session = self._replay(server, self._initialize)
            return self._session

    def forget_session(self, session: McpSession) -> None:
        """Forget a session that the server no longer knows."""
        with self._lock:
            if self._session == session:
                self._session = None

    def end(self) -> None:
        """End the session on the server, if the server is reachable."""
        if not self._lock.acquire(timeout=_END_SESSION_TIMEOUT_SECONDS):
            return
        session, self._session = self._session, None
        self._lock.release()
        if session is None or session.id is None:
            return
        with (
            suppress(CONNECTION_ERRORS, ServerUnresponsive),
            self._exchange(session.server, _END_SESSION_TIMEOUT_SECONDS) as exchange,
        ):
            exchange.send("DELETE", session.headers)
            exchange.body()

    def _replay(self, server: server_discovery.DiscoveredServer, line: bytes) -> McpSession:
        with self._exchange(server) as exchange:
            exchange.send("POST", {}, line)
            text = exchange.first()
            answer = to_json_rpc_answer_line(text, parse_json_rpc_message(line).id)
            version = parse_negotiated_mcp_version(answer) if answer is not None else None
            if version is None:
                raise McpHandshakeRefused(f"{describe_non_mcp_response(server, exchange.answer, text)} to {INITIALIZE}")
            session = McpSession(server, exchange.answer.headers.get(SESSION_HEADER.lower()), version)
        if self._initialized is not None:
            with self._exchange(server) as exchange:
                exchange.send("POST", session.headers, self._initialized)
                exchange.body()
        return session

    def _exchange(
        self, server: server_discovery.DiscoveredServer, limit: float = server_discovery.TOOL_CALL_TIMEOUT_SECONDS
    ) -> McpExchange:
        return McpExchange(self._connections, server, AnswerDeadline(self._connections.pulse, limit))


def describe_non_mcp_response(server: server_discovery.DiscoveredServer, answer: HttpResponseHead, body: bytes) -> str:
    """Return a message for the user about an answer that is not an MCP message."""
    reason = f"the server at {server.url} answered {answer.status} {answer.reason}".rstrip()
    with suppress(ValueError, RecursionError):
        document: Any = json.loads(body)
        if isinstance(document, dict) and isinstance(detail := document.get("detail"), str):
            return f"{reason}: {detail}"
    return f"{reason}; check that it is a kgserve server" if answer.status == HTTP_NOT_FOUND else reason
