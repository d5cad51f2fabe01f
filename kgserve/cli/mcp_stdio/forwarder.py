"""Message forwarding between editor and server, with failover to the next server.

Standard output carries only the protocol; messages for the user go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from kgserve.cli.mcp_stdio.connection import (
    CONNECTION_ERRORS,
    HTTP_NOT_FOUND,
    AnswerDeadline,
    McpBridgeServerFinder,
    McpExchange,
    McpHandshakeRefused,
    McpServerConnectionPool,
    McpSession,
    McpSessionHandshake,
    ServerUnresponsive,
    choose_tool_call_timeout,
    describe_non_mcp_response,
)
from kgserve.cli.mcp_stdio.json_rpc_messages import (
    ACKNOWLEDGED,
    CALL,
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    LISTEN,
    NO_SERVER_ERROR,
    EditorJsonRpcMessage,
    JsonRpcMessageKind,
    MalformedJsonRpcMessage,
    encode_json_rpc_error,
    is_json_rpc_result,
    parse_json_rpc_message,
    parse_json_rpc_method,
    to_json_rpc_answer_line,
)
from kgserve.cli.mcp_stdio.tool_hints import get_call_outcome_check_hint
from kgserve.platform.http_client import InvalidHttpResponse
from kgserve.platform.server_discovery import (
    LAUNCH_TIMEOUT_SECONDS,
    TOOL_CALL_TIMEOUT_SECONDS,
    DiscoveredServer,
    ServerLaunchFailed,
)

MAX_REQUEST_ATTEMPTS = 4
"""Attempts per request before its failure is reported. Each call carries an id by which the server recognizes
repetitions.
"""

RETRY_DELAY_SECONDS = 0.3
"""Seconds before the second retry; the first retry is immediate."""

LISTEN_RETRY_SECONDS = 1.0
"""Seconds between attempts to open the event stream again."""

CALL_HEADER, AGE_HEADER = "Kgserve-Call", "Kgserve-Call-Age"

MAX_BRIDGE_THREADS = 32
"""Maximum number of requests in progress; further ones are queued."""

MAX_QUEUED_REQUESTS = 1000
"""Maximum number of queued requests."""

HTTP_METHOD_NOT_ALLOWED = 405

_IDLE_THREAD_SECONDS = 10.0
"""Seconds without work after which a thread ends."""


class TemporarilyRefused(Exception):
    """The server did not execute a request for a temporary reason: it is stopping, or was replaced."""


class McpMessageForwarder:
    """Forwarder of messages between the editor and the server."""

    def __init__(
        self,
        servers: McpBridgeServerFinder,
        output: ThreadSafeLineWriter,
        wishes: Mapping[str, str] | None = None,
        limit: float = TOOL_CALL_TIMEOUT_SECONDS,
    ) -> None:
        """Initialize with ``wishes``, headers of each request, and ``limit``, the call timeout in seconds."""
        self._limit = limit
        self._servers = servers
        self._output = output
        self._connections = McpServerConnectionPool(wishes or {})
        self._handshake = McpSessionHandshake(self._connections)
        self._threads = ElasticThreadPool()
        self._pending = PendingEditorRequestRegistry()
        self._closing = threading.Event()
        self._early = False
        self._listening: threading.Thread | None = None

    def forward(self, line: bytes) -> None:
        """Forward a line from the editor. Returns after any step on which later messages depend."""
        try:
            message = parse_json_rpc_message(line)
        except MalformedJsonRpcMessage as error:
            self._output.write(encode_json_rpc_error(None, error.code, str(error)))
            return
        match message.kind:
            case JsonRpcMessageKind.REQUEST:
                self._forward_request(message)
            case JsonRpcMessageKind.NOTIFICATION if message.method == CANCELLED:
                self._cancel(message)
            case JsonRpcMessageKind.NOTIFICATION if message.method == INITIALIZED:
                self._handshake.record_initialized(message.line)
                if not self._early:  # a server started later receives it with the handshake
                    self._pass_on(message)
                self._listen()
            case _:
                self._threads.submit(lambda: self._pass_on(message))

    def close(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for outstanding answers, then end the session."""
        self._pending.wait(patience)
        self._closing.set()
        self._handshake.end()

    def _forward_request(self, message: EditorJsonRpcMessage) -> None:
        if (known := self._known(message)) is not None:
            self._output.write(known)
            return
        request = self._pending.add(message)
        if message.method == INITIALIZE:
            self._answer(request)
        elif not self._threads.submit(lambda: self._answer(request)):
            self._report(request, "too many requests are waiting for an answer")
            self._pending.remove(request)

    def _known(self, message: EditorJsonRpcMessage) -> bytes | None:
        """Return the cached answer to a session's first requests, which does not depend on the server.

        If no server runs, start one in the background.
        """
        if not self._connections.usual:
            return None
        tools = self._connections.tools
        if message.method not in SESSION_START_METHODS:
            version = message.version or self._handshake.version
            return load_prebuilt_mcp_answer(message, version, tools) if self._servers.is_ours else None
        answer = (
            load_prebuilt_mcp_answer(message, get_requested_mcp_protocol_version(message), tools)
            if self._servers.is_absent
            else None
        )
        if answer is not None:
            self._early = True
            if message.method == INITIALIZE:
                self._handshake.record_early_initialize(message.line, get_requested_mcp_protocol_version(message))
            self._threads.submit(self._start)
        return answer

    def _start(self) -> None:
        """Start a server. A failure is reported here, and again in the answer to each call."""
        try:
            self._servers.get_or_start_server()
        except ServerLaunchFailed as error:
            log_to_stderr_for_editor(str(error))

    def _answer(self, request: PendingEditorRequest) -> None:
        """Answer a request with the server's answer, or with the reason for its failure."""
        try:
            self._try_to_answer(request)
        except (ServerLaunchFailed, McpHandshakeRefused) as error:
            self._report(request, str(error))
        except Exception as error:  # noqa: BLE001 - outermost frame of a thread: the editor must get an answer
            self._report(request, f"internal error of the bridge: {type(error).__name__}: {error}")
        finally:
            self._pending.remove(request)

    def _try_to_answer(self, request: PendingEditorRequest) -> None:
        patience = self._patience(request.message)
        attempts = 0
        server = self._servers.get_or_start_server(_launching(patience))
        while not request.cancelled and not self._closing.is_set():
            try:
                self._exchange(request, server, patience)
                return
            except ServerUnresponsive as error:
                self._servers.forget_server(server)
                self._report(request, f"{error}{request.retry_advice}")
                return
            except (CONNECTION_ERRORS, TemporarilyRefused) as error:
                self._servers.forget_server(server)
                self._closing.wait(attempts * RETRY_DELAY_SECONDS)
                attempts += 1
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            if request.message.method == LISTEN:
                server = self._awaited(request) or server
            elif attempts < MAX_REQUEST_ATTEMPTS and not request.cancelled:
                server = self._servers.get_or_start_server(_launching(patience))
            else:
                failed = f"the server at {server.url} failed {attempts} times ({reason})"
                self._report(request, f"{failed}{request.retry_advice}")
                return

    def _patience(self, message: EditorJsonRpcMessage) -> AnswerDeadline | None:
        """Return the deadline of a message's answer; None for a listener, which has no time limit."""
        if message.method == LISTEN:
            return None
        return AnswerDeadline(self._connections.pulse, choose_tool_call_timeout(message.tool, self._limit))

    def _exchange(
        self, request: PendingEditorRequest, server: DiscoveredServer, patience: AnswerDeadline | None
    ) -> None:
        """Send a request and write its answer, and the notifications before it.

        Raises TemporarilyRefused, McpHandshakeRefused, OSError and ServerUnresponsive.
        """
        message = request.message
        handshake = message.version is None and message.method != INITIALIZE
        session = self._handshake.session(server) if handshake else None
        with McpExchange(self._connections, server, patience) as exchange:
            request.attach(exchange)
            self._ask(request, exchange, server, session)

    def _ask(
        self, request: PendingEditorRequest, exchange: McpExchange, server: DiscoveredServer, session: McpSession | None
    ) -> None:
        message = request.message
        headers = (session.headers if session else {}) | message.routing | request.call_headers()
        exchange.send("POST", headers, message.line)
        if exchange.answer.is_stream:
            answer = self._streamed(exchange, request)
        else:
            answer = self._document(exchange, message, server, session)
        if message.method == INITIALIZE:
            self._handshake.adopt(server, message.line, exchange, answer)
        self._output.write(answer)

    def _streamed(self, exchange: McpExchange, request: PendingEditorRequest) -> bytes:
        """Return the answer from an event stream; pass on the messages before it."""
        message = request.message
        for text in exchange.events():
            answer = to_json_rpc_answer_line(text, message.id)
            if answer is None:
                self._pass_back(request, text)
            elif message.method == LISTEN and is_json_rpc_result(answer):
                raise TemporarilyRefused("it is stopping")
            else:
                return answer
        raise InvalidHttpResponse("the stream ended before the answer")

    def _pass_back(self, request: PendingEditorRequest, text: bytes) -> None:
        """Write a message that precedes an answer. The acknowledgement of a listener is written only once."""
        if parse_json_rpc_method(text) == ACKNOWLEDGED:
            if request.acknowledged:
                return
            request.acknowledged = True
        self._output.write(text)

    def _document(
        self, exchange: McpExchange, message: EditorJsonRpcMessage, server: DiscoveredServer, session: McpSession | None
    ) -> bytes:
        """Return the answer from a document."""
        text = exchange.body()
        answer = to_json_rpc_answer_line(text, message.id)
        self._check_done(exchange.answer.status, session, is_answer=answer is not None)
        return answer or encode_json_rpc_error(
            message.id, NO_SERVER_ERROR, describe_non_mcp_response(server, exchange.answer, text)
        )

    def _check_done(self, status: int, session: McpSession | None, *, is_answer: bool) -> None:
        match status:
            case 401:
                raise TemporarilyRefused("it requires a valid key: set KGSERVE_KEY or use --key")
            case 404 if session is not None:
                self._handshake.forget_session(session)
                raise TemporarilyRefused("it does not know the session")
            case 503 if not is_answer:
                raise TemporarilyRefused("it is stopping")
            case _:
                pass

    def _pass_on(self, message: EditorJsonRpcMessage) -> None:
        """Send a message that has no answer: a notification, or an answer to a request of the server.

        Dropped when there was no handshake or no server runs.
        """
        server = self._servers.get_running_server() if self._handshake.made else None
        if server is None:
            return
        try:
            session = self._handshake.session(server)
            with McpExchange(self._connections, server, self._patience(message)) as exchange:
                exchange.send("POST", session.headers if session else {}, message.line)
                exchange.body()
        except (CONNECTION_ERRORS, McpHandshakeRefused, ServerUnresponsive) as error:
            log_to_stderr_for_editor(f"{message.method or 'an answer'} was not delivered: {error}")

    def _cancel(self, message: EditorJsonRpcMessage) -> None:
        """Cancel a request. Has no effect on one that was already answered."""
        request = self._pending.find(message.params.get("requestId"))
        if request is None:
            return
        if request.message.version is not None:
            request.abort()
            return
        request.cancelled = True
        self._threads.submit(lambda: self._pass_on(message))

    def _listen(self) -> None:
        """Open the stream of server-initiated messages, once."""
        if self._listening is None:
            self._listening = threading.Thread(target=self._keep_listening, name="kgserve-bridge-listen", daemon=True)
            self._listening.start()

    def _keep_listening(self) -> None:
        offered = True
        while offered and not self._closing.is_set():
            server = self._servers.get_running_server()
            try:
                offered = server is None or self._pass_events_on(server)
            except (CONNECTION_ERRORS, McpHandshakeRefused, ServerUnresponsive):
                if server is not None:
                    self._servers.forget_server(server)
            self._closing.wait(LISTEN_RETRY_SECONDS)

    def _pass_events_on(self, server: DiscoveredServer) -> bool:
        """Pass on the server's stream until it ends. Return False if the server offers no further stream."""
        session = self._handshake.session(server)
        if session is None or session.id is None:
            return False
        with McpExchange(self._connections, server) as exchange:
            exchange.send("GET", session.headers)
            if exchange.answer.is_stream:
                for text in exchange.events():
                    self._output.write(text)
            elif exchange.answer.status == HTTP_NOT_FOUND:
                self._handshake.forget_session(session)
            return exchange.answer.status != HTTP_METHOD_NOT_ALLOWED

    def _awaited(self, request: PendingEditorRequest) -> DiscoveredServer | None:
        """Wait for the server to return. Return None when the request was cancelled or the bridge closes."""
        while not self._closing.wait(LISTEN_RETRY_SECONDS) and not request.cancelled:
            if (server := self._servers.get_running_server()) is not None:
                return server
        return None

    def _report(self, request: PendingEditorRequest, reason: str) -> None:
        if not request.cancelled:
            log_to_stderr_for_editor(reason)
            self._output.write(encode_json_rpc_error(request.message.id, NO_SERVER_ERROR, reason))


def _launching(patience: AnswerDeadline | None) -> float:
    """Return the seconds allowed for starting a server for a request."""
    return LAUNCH_TIMEOUT_SECONDS if patience is None else min(LAUNCH_TIMEOUT_SECONDS, patience.remaining_seconds)


class PendingEditorRequest:
    """One request in progress.

    ``cancelled``: the editor no longer waits for it. ``acknowledged``: the editor received the acknowledgement of its
    subscription.
    """

    def __init__(self, message: EditorJsonRpcMessage) -> None:
        self.message = message
        self.cancelled = False
        self.acknowledged = False
        self._exchange: McpExchange | None = None
        self._call = os.urandom(16).hex() if message.method == CALL else ""
        self._first_sent: float | None = None

    def attach(self, exchange: McpExchange) -> None:
        """Set the exchange that carries the request."""
        self._exchange = exchange
        if self.cancelled:
            exchange.abort()

    def call_headers(self) -> dict[str, str]:
        """Return headers with the call's id and its age, by which the server recognizes a retry."""
        if not self._call:
            return {}
        now = time.monotonic()
        if self._first_sent is None:
            self._first_sent = now
            return {CALL_HEADER: self._call}
        return {CALL_HEADER: self._call, AGE_HEADER: f"{now - self._first_sent:.3f}"}

    @property
    def retry_advice(self) -> str:
        """Second half of an error message: how to check whether the call was executed after all."""
        look = get_call_outcome_check_hint(self.message.tool)
        if self._first_sent is None or look is None:
            return ""
        return f". It is unknown whether {self.message.tool} was executed. Before you call it again, check: {look}"

    def abort(self) -> None:
        """Break the connection, which cancels a request of the stateless protocol."""
        self.cancelled = True
        if self._exchange is not None:
            self._exchange.abort()


class PendingEditorRequestRegistry:
    """Unanswered requests by their id."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: dict[str, PendingEditorRequest] = {}

    def add(self, message: EditorJsonRpcMessage) -> PendingEditorRequest:
        """Register a request before any work on it, so that it can be cancelled from then on."""
        request = PendingEditorRequest(message)
        with self._changed:
            self._requests[repr(message.id)] = request
        return request

    def remove(self, request: PendingEditorRequest) -> None:
        """Remove a request that was answered or failed."""
        with self._changed:
            if self._requests.get(repr(request.message.id)) is request:
                del self._requests[repr(request.message.id)]
            self._changed.notify_all()

    def find(self, request_id: object) -> PendingEditorRequest | None:
        """Return the request with this id, or None if it is not in progress."""
        with self._changed:
            return self._requests.get(repr(request_id))

    def wait(self, seconds: float) -> None:
        """Wait until every request except listeners is answered."""
        with self._changed:
            self._changed.wait_for(self._all_answered, seconds)

    def _all_answered(self) -> bool:
        return all(request.message.method == LISTEN for request in self._requests.values())


class ElasticThreadPool:
    """Thread pool that grows on demand and shrinks when idle."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, task: Callable[[], None]) -> bool:
        """Queue ``task``. Return False when the queue is full."""
        with self._changed:
            if len(self._tasks) >= MAX_QUEUED_REQUESTS:
                return False
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._threads < MAX_BRIDGE_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="kgserve-bridge", daemon=True).start()
            return True

    def _work(self) -> None:
        while (task := self._next()) is not None:
            task()

    def _next(self) -> Callable[[], None] | None:
        """Return the oldest task; None when this thread may end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: bool(self._tasks), _IDLE_THREAD_SECONDS)
            self._idle -= 1
            if self._tasks:
                return self._tasks.popleft()
            self._threads -= 1
            return None


class ThreadSafeLineWriter:
    """Thread-safe writer of whole lines. ``on_end`` is called when the reader has closed its end."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_end = on_end
        self._lock = threading.Lock()

    def write(self, message: bytes) -> None:
        """Write one message; line breaks between its tokens become spaces."""
        rest = memoryview(message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                self._on_end()


def log_to_stderr_for_editor(sentence: str) -> None:
    """Write a line to standard error, which editors keep in their log."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"kgserve mcp: {sentence}\n")
        sys.stderr.flush()


CACHED_ANSWERS_FILE = Path(__file__).with_name("known_answers.jsonl")
"""Cached results of a session's first requests, used while a server starts; written by `make docs`.

The first line maps protocol version and method to the line that holds the result.
"""

CACHED_ANSWER_METHODS = (
    INITIALIZE,
    "server/discover",
    "ping",
    "tools/list",
    "prompts/list",
    "resources/templates/list",
)
"""Methods that editors call first and whose results do not depend on a store."""

TOOLS_LIST_METHOD = "tools/list"
CACHED_TOOLSETS = ("", "memory")
"""Tool sets whose tool lists are cached: the default, and the one that `kgserve mcp config` writes."""

SESSION_START_METHODS = frozenset({INITIALIZE, "server/discover"})


def load_prebuilt_mcp_answer(message: EditorJsonRpcMessage, version: str | None, tools: str = "") -> bytes | None:
    """Return the prebuilt answer to an editor's request, or None.

    ``version`` is the editor's protocol version; ``tools`` is the tool set that it requested.
    """
    if (
        message.method not in CACHED_ANSWER_METHODS
        or message.params.get("cursor") is not None
        or tools not in CACHED_TOOLSETS
    ):
        return None
    with CACHED_ANSWERS_FILE.open("rb") as lines:
        contents: dict[str, dict[str, int]] = json.loads(next(lines))
        number = contents.get(version or "", {}).get(build_mcp_answer_cache_key(message.method, tools))
        if number is None:
            return None
        # Not decoded: the decoded tool list would take a megabyte.
        result = next(islice(lines, number, None)).rstrip()
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(message.id).encode(), result)


def build_mcp_answer_cache_key(method: str, tools: str) -> str:
    """Return the cache key of a method's answer; only the tool list depends on ``tools``."""
    return f"{method} {tools}" if method == TOOLS_LIST_METHOD and tools else method


def get_requested_mcp_protocol_version(message: EditorJsonRpcMessage) -> str | None:
    """Return the protocol version that a session's first message names, or None."""
    if message.method != INITIALIZE:
        return message.version
    requested = message.params.get("protocolVersion")
    return requested if isinstance(requested, str) else None
