"""HTTP connections: uvicorn's protocol class with limits, and the fast path for complete responses.

The limits cover the number of connections, the size of request heads, the time that a client may keep the server
waiting, and the closing of connections. A request that is refused here never reaches the application, so this module
answers it, with the usual problem documents and headers. Each override of uvicorn's class names the row of the abuse
list that needs it; tests/server/http/test_uvicorn_alone.py runs them against uvicorn alone.

A request starts when its bytes arrive, and becomes a task only when it has to wait (`start_coroutine_eagerly`,
`ensure_running_in_task`).

One timer checks all connections about once a second.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools
import msgspec
import structlog
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kgserve.errors import InvalidInput, KgserveError, RateLimited, TimedOut, Unavailable
from kgserve.platform.file_descriptors import compute_max_connections
from kgserve.platform.metrics.app_metrics_and_request_context import LabeledCounter
from kgserve.server.http.error_responses import Header, HeadersTooLarge, UrlTooLong, build_error_response, error_code_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from kgserve.platform.settings import Settings

log = structlog.get_logger()

KILOBYTE = 1000
MAX_HEADER_LINES = 200
MAX_PIPELINED_REQUESTS = 32
"""Requests that may queue on one connection behind the current one."""
MIN_BODY_BYTES_PER_WINDOW = 1000
"""Bytes of a body that must arrive within each ``body_timeout``."""
STOP_BODY_TIMEOUT_SECONDS = 1.0
"""Seconds that replace ``body_timeout`` while the server is stopping."""
FRAMING_ALLOWANCE_BYTES = 64 * KILOBYTE
FRAMING_FACTOR = 16
"""Maximum ratio of a chunked body's size on the wire to its own size, beyond the allowance; six for 1-byte chunks."""
CLOSE_LINGER_SECONDS = 1.0
"""Seconds for which a connection that is closed early keeps reading, so that the client receives the response."""
MAX_REFUSED_CONNECTIONS = 64
"""Connections beyond the limit that get a 503 response at a time; further ones are closed without a response."""

_MAX_HEAD_OVERHEAD_BYTES = 2 * MAX_HEADER_LINES
"""Bytes by which a head of the most lines may be shorter than with the usual space and line end of each."""
_TICKS_PER_TIMEOUT = 8
_DROPPED: Any = deque(maxlen=0)
"""Discards trailers."""
_MAX_TICK_SECONDS = 1.0
_RETRY_AFTER_SECONDS = 5

BODY_TIMEOUT_STATE_KEY = "body_late"
"""Key of the scope's state for the error of a request whose body stopped arriving."""

SendCompleteResponse = Callable[[int, bytes, bytes, bool], bool]
SEND_COMPLETE_EXTENSION = "kgserve.send_whole"
"""Key of the scope's extensions for a function that sends a complete response with one write.

Arguments: the status, the header lines after the date, the body, and whether to close the connection. It returns False
and sends nothing while the client reads too slowly."""

STANDARD_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
DEFAULT_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
CONNECTION_CLOSE: Header = (b"connection", b"close")
_SECURE: Header = (b"strict-transport-security", b"max-age=31536000")


class HttpConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections; sizes in bytes, times in seconds."""

    connections: int
    connections_per_address: int
    head: int
    url: int
    head_timeout: float
    body_timeout: float
    answer_timeout: float

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpConnectionLimits:
        """Return the limits that the settings configure."""
        return cls(
            connections=compute_max_connections(settings),
            connections_per_address=settings.max_connections_per_address,
            head=settings.max_header_kb * KILOBYTE,
            url=settings.max_url_kb * KILOBYTE,
            head_timeout=settings.head_timeout,
            body_timeout=settings.body_timeout,
            answer_timeout=settings.answer_timeout,
        )

    @property
    def tick(self) -> float:
        """Seconds between two checks of all connections."""
        return min(
            _MAX_TICK_SECONDS, min(self.head_timeout, self.body_timeout, self.answer_timeout) / _TICKS_PER_TIMEOUT
        )


class RequestBodyRateMonitor:
    """Progress of a request body, measured in time windows that each need a minimum of bytes."""

    def __init__(self) -> None:
        self._since = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        """Start a window."""
        self._since, self._bytes = now, 0

    def add(self, count: int) -> None:
        """Count received bytes."""
        self._bytes += count

    def has_stopped(self, now: float, window: float) -> bool:
        """Return whether the window of ``window`` seconds is over with too few bytes; then start the next one."""
        if now - self._since <= window:
            return False
        too_little = self._bytes < MIN_BODY_BYTES_PER_WINDOW
        self.begin(now)
        return too_little


class OpenHttpConnection(Protocol):
    """An open connection, whose time limits are checked about once a second."""

    def check_deadlines(self, now: float) -> None:
        """Close the connection, or fail its request, if the client has exceeded a time limit."""
        ...


class ConnectionRegistry:
    """Open connections of one server. Belongs to its event loop."""

    def __init__(self, limits: HttpConnectionLimits, is_proxy: Callable[[str], bool]) -> None:
        self.limits = limits
        self._is_proxy = is_proxy
        self._open: dict[OpenHttpConnection, str] = {}
        self._refused: set[OpenHttpConnection] = set()
        self._per_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.refused = LabeledCounter()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpServerConnection, address: str) -> Unavailable | None:
        """Register a connection. Return the error for its response if a limit is reached, otherwise None."""
        reason = self._refusal(address)
        if reason is None:
            self._open[connection] = address
            self._per_address[address] += 1
        else:
            self._refused.add(connection)
        if self._timer is None:
            self._arm()
        return reason

    @property
    def has_too_many_refusals(self) -> bool:
        """True if too many connections are being refused to answer each; the rest are closed without a response."""
        return len(self._refused) > MAX_REFUSED_CONNECTIONS

    def replace(self, connection: OpenHttpConnection, by: OpenHttpConnection) -> None:
        """Count ``by`` instead of a connection, with the same address."""
        self._open[by] = self._open.pop(connection)

    def remove(self, connection: OpenHttpConnection) -> None:
        """Unregister a closed connection."""
        self._refused.discard(connection)
        address = self._open.pop(connection, None)
        if address is not None:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def _refusal(self, address: str) -> Unavailable | None:
        if len(self._open) >= self.limits.connections:
            return Unavailable(f"{len(self._open)} connections are already open; try again later", _RETRY_AFTER_SECONDS)
        most = self.limits.connections_per_address
        if self._per_address[address] >= most and not self._is_proxy(address):
            return Unavailable(
                f"{most} connections from {address} are already open; close one first", _RETRY_AFTER_SECONDS
            )
        return None

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.limits.tick, self._check_all)

    def _check_all(self) -> None:
        self._timer = None
        if self._open or self._refused:
            self._arm()
        now = asyncio.get_running_loop().time()
        for connection in (*self._open, *self._refused):
            connection.check_deadlines(now)


class HttpServerConnection(HttpToolsProtocol):
    """One HTTP connection. Answers malformed or oversized requests with a problem document and closes."""

    def __init__(self, *args: Any, open_connections: ConnectionRegistry, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open_connections = open_connections
        self._limits = open_connections.limits
        self.url = b""
        self._in_head = True
        self._since = 0.0
        self._fed = 0  # bytes of the head that is arriving
        self._newest_read = 0  # bytes of the data that is being parsed
        self._arrived = 0  # bytes since the read in which the head before ended; at least those of this head
        self._on_wire = 0  # bytes of the body with its framing
        self._in_body = 0
        self._progress = RequestBodyRateMonitor()
        self._body_timeout = self._limits.body_timeout
        self._ignores_input = False
        self._newest: RequestResponseCycle | None = None
        self._running: RequestResponseCycle | None = None
        self._parse_error: KgserveError | None = None
        self._pending_refusal: KgserveError | None = None
        self._parsing = False
        self._parsed: tuple[RequestResponseCycle, ASGI3Application] | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        # ABUSE 15: uvicorn's limit_concurrency does not count silent connections, and refuses in plain text.
        self.wire = LingeringCloseTransport(transport, self)
        super().connection_made(cast("asyncio.Transport", self.wire))
        self._since = self.loop.time()
        refusal = self._open_connections.add(self, self.client[0] if self.client else "")
        if refusal is None:
            return
        if self._open_connections.has_too_many_refusals:
            transport.abort()
        else:
            self._refuse(refusal)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn reports the disconnection only to the newest request, which waits if requests are pipelined.
        self._open_connections.remove(self)
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self.wire.release()

    @override
    def data_received(self, data: bytes) -> None:
        # ABUSE 11 and 13: limits the size of a head and the framing of a body. Malformed input is answered with a
        # problem document. Input after a protocol upgrade is ignored, which uvicorn would parse as the next request.
        if self._ignores_input:
            return
        if self._in_head:
            if not self._fed:
                self._since = self.loop.time()
            self._fed += len(data)
        else:
            self._on_wire += len(data)
        self._newest_read = len(data)
        self._arrived += len(data)
        self._parse(data)
        if self._in_head:
            if self._fed > self._limits.head:
                self._refuse(self._head_over_limit())
        elif self._on_wire > FRAMING_ALLOWANCE_BYTES + FRAMING_FACTOR * self._in_body:
            self._refuse(InvalidInput("the chunks of the body are too small; send larger chunks"))
        if self._parsed is not None:
            (cycle, app), self._parsed = self._parsed, None
            task = start_coroutine_eagerly(cycle.run_asgi(app), self.loop)
            if task is not None:
                task.add_done_callback(self.tasks.discard)
                self.tasks.add(task)

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._parsing = True
        try:
            cast("httptools.HttpRequestParser", self.parser).feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignores_input = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(self._parse_error or InvalidInput("the request is not well-formed HTTP"))
        finally:
            self._parsing = False

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # A request that is being parsed starts after parsing, without a task (`start_coroutine_eagerly`).
        # Pipelined requests start as tasks, because each would otherwise run within the previous one.
        self._running = cycle
        if self._parsing:
            self._parsed = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _is_head_over_limit(self) -> bool:
        limits = self._limits
        if len(self.url) > limits.url or len(self.headers) > MAX_HEADER_LINES:
            return True
        # Most heads are shorter than what arrived since they began, and need not be measured.
        return (
            self._arrived + _MAX_HEAD_OVERHEAD_BYTES > limits.head
            and sum(len(name) + len(value) + 4 for name, value in self.headers) > limits.head
        )

    def _head_over_limit(self) -> KgserveError:
        limits = self._limits
        return UrlTooLong.over(limits.url) if len(self.url) > limits.url else HeadersTooLarge.over(limits.head)

    @override
    def on_headers_complete(self) -> None:
        # ABUSE 11 and 12: limits head, URL and pipeline; uvicorn queues all requests of one read.
        # Trailers arrive as headers after this check, so they are dropped.
        if self._is_head_over_limit():
            self._abort_parsing(self._head_over_limit())
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self._abort_parsing(
                RateLimited(f"more than {MAX_PIPELINED_REQUESTS} requests wait on this connection for their answers")
            )
        if not self.url.startswith(b"/"):
            self._replace_host_by_authority()
        super().on_headers_complete()
        self._newest = self.cycle
        self.headers = _DROPPED
        self.scope["extensions"] = cast("Any", {SEND_COMPLETE_EXTENSION: partial(send_complete_response, self.cycle)})
        self._in_head = False
        self._progress.begin(self.loop.time())
        self._fed = self._on_wire = self._in_body = 0
        self._arrived = self._newest_read  # the next head may begin in the same data

    def _replace_host_by_authority(self) -> None:
        """Make the authority of an absolute-form target count as Host (RFC 9112, 3.2.2); a missing Host stays so."""
        target = httptools.parse_url(self.url)
        if not target.schema or not target.host:
            return
        host = target.host if b":" not in target.host else b"[%b]" % target.host
        userinfo = b"%b@" % target.userinfo if target.userinfo else b""
        authority = userinfo + (b"%b:%d" % (host, target.port) if target.port else host)
        self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]

    @override
    def on_body(self, body: bytes) -> None:
        # ABUSE 14: measures the progress of a body.
        self._in_body += len(body)
        self._progress.add(len(body))
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    @override
    def shutdown(self) -> None:
        # ABUSE 71: uvicorn waits for slow bodies and TLS closing handshakes until the grace period is over.
        self.wire.force_close = True
        self._body_timeout = min(self._body_timeout, STOP_BODY_TIMEOUT_SECONDS)
        super().shutdown()

    @override
    def on_response_complete(self) -> None:
        # Malformed input is refused after the responses to earlier requests; uvicorn would interrupt them.
        last = not self.pipeline
        super().on_response_complete()
        if last and self._pending_refusal is not None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._send_refusal(self._pending_refusal)

    @property
    def has_unread_input(self) -> bool:
        """True if input may have arrived, or be arriving, that was not processed."""
        return self._ignores_input or not self._in_head or self._fed > 0 or bool(self.pipeline)

    @property
    def is_between_requests(self) -> bool:
        """True if no part of a request has arrived that is not completely answered."""
        is_answered = self._newest is None or self._newest.response_complete
        return is_answered and not self.has_unread_input and not self.wire.is_closing()

    def ignore_input(self) -> None:
        """Keep reading, but discard further input."""
        self._ignores_input = True
        self.flow.resume_reading()

    def check_deadlines(self, now: float) -> None:
        """Close the connection, or fail its request, if the client has exceeded a time limit."""
        if self.wire.check_deadlines(now, self._limits.answer_timeout) or self._ignores_input:
            return
        if self._in_head:
            self._check_head(now)
        else:
            self._check_body(now)

    def _check_head(self, now: float) -> None:
        if self.flow.read_paused:
            self._since = now
        elif now - self._since > self._limits.head_timeout:
            if self._fed:
                self._refuse(TimedOut("the request headers did not arrive in time"))
            elif self._newest is None:
                self.transport.close()

    def _check_body(self, now: float) -> None:
        # The time during which the server itself does not read does not count against the client.
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._progress.begin(now)
        elif self._progress.has_stopped(now, self._body_timeout):
            stopping = self._body_timeout < self._limits.body_timeout
            late = TimedOut("the body of the request stopped arriving, or arrives too slowly")
            self._abandon_body(Unavailable("the server is stopping") if stopping else late)

    def _abandon_body(self, error: KgserveError) -> None:
        """Stop reading the body; the application finds ``error`` at its next receive, and responds."""
        self._ignores_input = True
        self.cycle.scope.setdefault("state", {})[BODY_TIMEOUT_STATE_KEY] = error
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def _abort_parsing(self, error: KgserveError) -> None:
        """Raise ``error`` out of a parser callback."""
        self._parse_error = error
        raise error

    def _refuse(self, error: KgserveError) -> None:
        """Respond with ``error``, after the responses to earlier requests, and read no further."""
        self._ignores_input = True
        if self._in_head:
            if self._newest is None or self._newest.response_complete:
                self._send_refusal(error)
            else:
                self._pending_refusal = error
            return
        cycle = self.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            self._pending_refusal = error
        elif cycle.response_started:
            self.transport.close()
        else:
            self._send_refusal(error)

    def _send_refusal(self, error: KgserveError) -> None:
        request_id = secrets.token_hex(8)
        status, headers, body = build_error_response(error, request_id)
        self._open_connections.refused.add(error_code_of(error))
        client = self.client[0] if self.client else None
        log.info("connection_refused", request_id=request_id, client=client, status=status, reason=str(error))
        head = encode_header_lines(
            [*headers, (b"x-request-id", request_id.encode()), CONNECTION_CLOSE], secure=self.scheme == "https"
        )
        self.transport.write(b"".join([STATUS_LINE[status], head, b"\r\n", body]))
        self.transport.close()


class LingeringCloseTransport:
    """Transport that lingers on close: with unread input, it closes for writing first and completely a second later.

    ABUSE 7, 8 and 11: closing a socket with unread input resets it, and the client loses the response. The transport
    also disconnects clients that do not read their responses, for which uvicorn waits forever.
    """

    def __init__(self, transport: asyncio.Transport, protocol: HttpServerConnection) -> None:
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self._transport = transport
        self._protocol: HttpServerConnection | None = protocol
        self._loop = asyncio.get_running_loop()
        self._until: float | None = None
        self._written = 0
        self._flushed = 0
        self._flushed_at = self._loop.time()
        self._closing_since: float | None = None
        self.force_close = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Write data; ignored after `close`."""
        if self._until is None:
            self._written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        """Close immediately, or after lingering while input is unread. A second call closes immediately."""
        protocol = self._protocol
        begun = self._until is not None or self._transport.is_closing()
        if begun or protocol is None or not protocol.has_unread_input:
            self._transport.close()
            return
        self._until = self._loop.time() + CLOSE_LINGER_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()
        protocol.ignore_input()

    def release(self) -> None:
        """Release the protocol. The reference cycle would keep both, and 50 kB of TLS state, until a collection."""
        self._protocol = None

    def check_deadlines(self, now: float, write_timeout: float) -> bool:
        """Disconnect a client that does not read, and end lingering. Return whether the connection is closing."""
        waiting = self._transport.get_write_buffer_size()
        if not waiting or self._written - waiting != self._flushed:
            self._flushed, self._flushed_at = self._written - waiting, now
        if now - self._flushed_at > write_timeout:
            self._transport.abort()
        elif self._until is not None and now > self._until and not waiting:
            self._transport.close()
        if self.force_close and self._transport.is_closing() and not waiting:
            self._abort_slow_close(now)
        return self._until is not None or self._transport.is_closing()

    def _abort_slow_close(self, now: float) -> None:
        # Over TLS, closing waits for the client's closing message, which an idle client that does not read never sends.
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since >= CLOSE_LINGER_SECONDS:
            self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read yet."""
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._until is not None or self._transport.is_closing()

    def resume_reading(self) -> None:
        """Resume reading, unless the transport is closing."""
        if not self._transport.is_closing():
            self._transport.resume_reading()


def start_coroutine_eagerly(
    work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None] | None:
    """Run ``work`` immediately, in its own context, until it waits; return the task that continues it, if any.

    Why: docs/adr/0030-http-fast-path.md.
    """
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return loop.create_task(_continue(work, awaited), context=context)


async def ensure_running_in_task() -> None:
    """Ensure that a task runs the caller; work in threads and cancellation need one."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


async def _continue(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _resume(work, awaited)  # since Python 3.12 a task does not accept a bare generator


@coroutine
def _resume(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, None, None]:
    """Drive ``work`` from where it awaits ``awaited``; None if it only called `ensure_running_in_task`."""
    try:
        if awaited is None:
            awaited = work.send(None)
        while True:
            try:
                # None yields one iteration to the event loop.
                yield awaited
            except BaseException as error:  # noqa: BLE001 - passed to the work
                awaited = work.throw(error)
            else:
                awaited = work.send(None)
    except StopIteration:
        return


def send_complete_response(cycle: RequestResponseCycle, status: int, head: bytes, body: bytes, close: bool) -> bool:
    """Send a complete response with one write; replaces two calls of uvicorn's `send` and its checks of each header.

    Why: docs/adr/0030-http-fast-path.md.
    """
    if cycle.flow.write_paused or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.keep_alive = cycle.keep_alive and not close
    lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % line for line in cycle.default_headers), head]
    cycle.transport.write(b"".join([*lines, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body]))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def add_security_headers(headers: Sequence[Header], *, secure: bool) -> list[Header]:
    """Return ``headers`` with the security headers for browsers; ``secure``: over TLS."""
    names = {name for name, _ in headers}
    missing = [header for header in DEFAULT_HEADERS if header[0] not in names]
    return [*headers, *STANDARD_HEADERS, *missing, _SECURE] if secure else [*headers, *STANDARD_HEADERS, *missing]


def encode_header_lines(headers: Sequence[Header], *, secure: bool) -> bytes:
    """Return the header lines of a response, standard headers included.

    Raises ValueError for a line end within a header, because it would start another header or response.
    """
    if _DEFAULT_NAMES.isdisjoint([name for name, _ in headers]):
        lines, standard = headers, _STANDARD_LINES[secure]
    else:
        lines, standard = add_security_headers(headers, secure=secure), b""
    found = b"".join([b"%b: %b\r\n" % header for header in lines])
    if not found.count(b"\n") == found.count(b"\r") == len(lines):
        raise ValueError("a header of the response contains a line end")
    return found + standard


_DEFAULT_NAMES = frozenset(name for name, _ in DEFAULT_HEADERS)
_STANDARD_LINES = {
    secure: b"".join(b"%b: %b\r\n" % header for header in add_security_headers((), secure=secure))
    for secure in (False, True)
}
