"""Connections: uvicorn's HTTP parser, bounded, and how answers get onto the wire.

What is bounded is how many connections there may be, how large a head may be, how long a client may keep the server
waiting, and how a connection ends. What is refused here never becomes a request of the application, so it is answered
here, with the same problem documents as everywhere else. An answer that comes before all of a request was read would be
lost: closing a socket with unread input resets it. `LingeringTransport` therefore goes on reading for a moment.

One timer looks at all connections now and then, instead of one for every request: what a plain request pays for these
limits is a few comparisons.

A request begins where its bytes arrive, and becomes a task only when it has to wait (`start_eagerly`, `in_task`): a
task costs a turn of the event loop and two calls of the system, more than a short answer takes. Such an answer is sent
in one piece (`send_at_once`), where ASGI's two messages would be two calls of the system.

`FairCallbackQueue` runs what other threads leave for the event loop, such as the ends of writes, a few at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import httptools
import msgspec
import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kgserve.errors import InvalidInput, KgserveError, Limited, TimedOut, Unavailable
from kgserve.platform.gil import rest
from kgserve.platform.metrics.observation import Tally
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.server.http.problem import PROBLEM_JSON, HeadTooLarge, UrlTooLong, render

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from kgserve.platform.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

KILOBYTE = 1000
MAX_HEADER_LINES = 200
MAX_PIPELINED = 32
"""Requests that may wait on one connection behind the one that is being answered."""
MIN_BODY_RATE = 1000
"""Bytes that a body must bring in ``body_timeout``."""
STOP_BODY_TIMEOUT = 1.0
"""Seconds that take the place of ``body_timeout`` once the server is stopping."""
FRAMING_ALLOWANCE = 64 * KILOBYTE
FRAMING_FACTOR = 16
"""A chunked body may take this many times its own size on the wire, beyond the allowance: chunks of a byte take six."""
LINGER = 1.0
"""Seconds for which a connection that is closed early goes on reading, so that the client gets to see the answer."""
MAX_LINGERING = 64
"""Connections beyond the limit that are told so; when more come than that they are only closed."""

_SLICES = 8
_LONGEST_TICK = 1.0
_RETRY_AFTER = 5

LATE = "body_late"
"""The key of the scope's state for the error that a request ends with whose body does not come any more."""

SendAtOnce = Callable[[bytes, bytes, bool], bool]
SEND_AT_ONCE = "kgserve.send_at_once"
"""The key of the scope's extensions for a function that sends a whole answer, 200, in one piece.

It takes the head from behind the date, the body, and whether to close the connection then. It answers whether it could:
not while a client is too slow to read."""

Header = tuple[bytes, bytes]
_ALLOWED_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_ALLOWED_HEADERS = (
    b"Authorization, Content-Type, Accept, If-Match, If-None-Match, Last-Event-ID, X-Request-Id, Kgserve-Store, "
    b"Kgserve-Read, Kgserve-At-Least, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
)
_MAX_AGE_SECONDS = 600
PREFLIGHT: tuple[Header, ...] = (
    (b"access-control-allow-methods", _ALLOWED_METHODS),
    (b"access-control-allow-headers", _ALLOWED_HEADERS),
    (b"access-control-max-age", str(_MAX_AGE_SECONDS).encode()),
)
"""What pages of other origins may send."""
EXPOSED_HEADERS = (
    b"X-Request-Id, Retry-After, WWW-Authenticate, Kgserve-Sequence, ETag, Content-Disposition, "
    b"Mcp-Session-Id, Mcp-Protocol-Version"
)
"""What they may read of an answer."""

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
_SECURE: Header = (b"strict-transport-security", b"max-age=31536000")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds."""

    connections: int
    connections_per_address: int
    head: int
    url: int
    head_timeout: float
    body_timeout: float
    answer_timeout: float

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        """Those that were set."""
        return cls(
            connections=settings.max_connections,
            connections_per_address=settings.max_connections_per_address,
            head=settings.max_header_kb * KILOBYTE,
            url=settings.max_url_kb * KILOBYTE,
            head_timeout=settings.head_timeout,
            body_timeout=settings.body_timeout,
            answer_timeout=settings.answer_timeout,
        )

    @property
    def tick(self) -> float:
        """Seconds between two looks at all connections."""
        return min(_LONGEST_TICK, min(self.head_timeout, self.body_timeout, self.answer_timeout) / _SLICES)


class BodyProgress:
    """How a body gets on: in windows of time, each of which must bring enough."""

    def __init__(self) -> None:
        self._since = 0.0
        self._bytes = 0

    def begin(self, now: float) -> None:
        """A window begins."""
        self._since, self._bytes = now, 0

    def add(self, count: int) -> None:
        """Bytes have come."""
        self._bytes += count

    def has_stopped(self, now: float, window: float) -> bool:
        """Whether too little came in a window of so many seconds; the next one begins when one is over."""
        if now - self._since <= window:
            return False
        too_little = self._bytes < MIN_BODY_RATE
        self.begin(now)
        return too_little


class Connections:
    """The open connections of one server. Lives on its event loop."""

    def __init__(self, limits: Limits, is_proxy: Callable[[str], bool]) -> None:
        self.limits = limits
        self._is_proxy = is_proxy
        self._open: dict[HttpConnection, str] = {}
        self._refused: set[HttpConnection] = set()
        self._per_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.refused = Tally()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: HttpConnection, address: str) -> Unavailable | None:
        """Take a connection in; the reason why it cannot be."""
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
    def overrun(self) -> bool:
        """Whether more are being refused than are told why: those beyond are closed without an answer."""
        return len(self._refused) > MAX_LINGERING

    def remove(self, connection: HttpConnection) -> None:
        """It is closed."""
        self._refused.discard(connection)
        address = self._open.pop(connection, None)
        if address is not None:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def _refusal(self, address: str) -> Unavailable | None:
        if len(self._open) >= self.limits.connections:
            return Unavailable(f"{len(self._open)} connections are open already; try again later", _RETRY_AFTER)
        most = self.limits.connections_per_address
        if self._per_address[address] >= most and not self._is_proxy(address):
            return Unavailable(f"{most} connections from {address} are open already; close one first", _RETRY_AFTER)
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


class HttpConnection(HttpToolsProtocol):
    """One connection. Answers what is not HTTP, or too much of it, with a problem document and closes."""

    def __init__(self, *args: Any, open_connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open_connections = open_connections
        self._limits = open_connections.limits
        self._in_head = True
        self._since = 0.0
        self._fed = 0  # bytes of the head that is arriving, counted by what was received
        self._size = 0  # the same, counted by what was understood
        self._lines = 0
        self._on_wire = 0  # bytes of the body with its framing
        self._in_body = 0
        self._progress = BodyProgress()
        self._body_patience = self._limits.body_timeout
        self._ignores_input = False
        self._newest: RequestResponseCycle | None = None
        self._parse_error: KgserveError | None = None
        self._pending_refusal: KgserveError | None = None
        self._parsing = False
        self._parsed: tuple[RequestResponseCycle, ASGI3Application] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """As uvicorn's, if there is room for one more."""
        self.wire = LingeringTransport(transport, self)
        super().connection_made(cast("asyncio.Transport", self.wire))
        self._since = self.loop.time()
        refusal = self._open_connections.add(self, self.client[0] if self.client else "")
        if refusal is None:
            return
        if self._open_connections.overrun:
            transport.abort()
        else:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._open_connections.remove(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.wire.release()

    def data_received(self, data: bytes) -> None:
        """Hand what has come to the parser, if it is not too much."""
        if self._ignores_input:
            return
        if self._in_head:
            if not self._fed:
                self._since = self.loop.time()
            self._fed += len(data)
        else:
            self._on_wire += len(data)
        self._parse(data)
        if self._in_head:
            if self._fed > self._limits.head:
                self._refuse(HeadTooLarge.over(self._limits.head))
        elif self._on_wire > FRAMING_ALLOWANCE + FRAMING_FACTOR * self._in_body:
            self._refuse(InvalidInput("the body is sent in pieces that are nearly all framing; send larger chunks"))
        self._start()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._parsing = True
        try:
            cast("httptools.HttpRequestParser", self.parser).feed_data(data)
        except httptools.HttpParserUpgrade:
            # What follows an offer to change the protocol may be HTTP or not; nobody can tell: answer, then close.
            self._ignores_input = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(self._parse_error or InvalidInput("this is not a well-formed HTTP request"))
        finally:
            self._parsing = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """As uvicorn's. A request that is being parsed begins when that is over, and so much of its body known as came.

        Those that waited in a pipeline begin as tasks: each would otherwise begin within the one before.
        """
        if self._parsing:
            self._parsed = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _start(self) -> None:
        if self._parsed is None:
            return
        (cycle, app), self._parsed = self._parsed, None
        task = start_eagerly(cycle.run_asgi(app), self.loop)
        if task is not None:
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def on_message_begin(self) -> None:
        """As uvicorn's."""
        if not self._fed:
            self._since = self.loop.time()
            self._fed = 1
        self._size = self._lines = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """As uvicorn's, up to the longest address."""
        if len(self.url) + len(url) > self._limits.url:
            self._abort_parsing(UrlTooLong.over(self._limits.url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, up to the largest head. Trailers come after what headers were checked for: they are dropped."""
        if not self._in_head:
            return
        self._size += len(name) + len(value) + 4
        self._lines += 1
        if self._size > self._limits.head or self._lines > MAX_HEADER_LINES:
            self._abort_parsing(HeadTooLarge.over(self._limits.head))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """As uvicorn's, up to the longest queue."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._abort_parsing(
                Limited(f"more than {MAX_PIPELINED} requests wait on this connection for their answers")
            )
        super().on_headers_complete()
        self._newest = self.cycle
        self.scope["extensions"] = cast("Any", {SEND_AT_ONCE: partial(send_at_once, self.cycle)})
        self._in_head = False
        self._progress.begin(self.loop.time())
        self._fed = self._on_wire = self._in_body = 0

    def on_body(self, body: bytes) -> None:
        """As uvicorn's."""
        self._in_body += len(body)
        self._progress.add(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As uvicorn's."""
        self._in_head = True
        super().on_message_complete()

    def shutdown(self) -> None:
        """As uvicorn's; from now on a body that is arriving has less time, and so has a goodbye over TLS."""
        self.wire.force_close = True
        self._body_patience = min(self._body_patience, STOP_BODY_TIMEOUT)
        super().shutdown()

    def on_response_complete(self) -> None:
        """As uvicorn's; says what is left to say once all requests that came before it are answered."""
        last = not self.pipeline
        super().on_response_complete()
        if last and self._pending_refusal is not None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._send_refusal(self._pending_refusal)

    @property
    def has_unread_input(self) -> bool:
        """Whether something may be on its way that was not looked at."""
        return self._ignores_input or not self._in_head or self._fed > 0 or bool(self.pipeline)

    def ignore_input(self) -> None:
        """Read what comes without looking at it."""
        self._ignores_input = True
        self.flow.resume_reading()

    def check_deadlines(self, now: float) -> None:
        """End the connection if it has kept the server waiting for too long."""
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
                self._refuse(TimedOut("the head of the request did not arrive in time"))
            elif self._newest is None:
                self.transport.close()

    def _check_body(self, now: float) -> None:
        """While nobody takes what has come, or has asked for it, the client cannot be blamed for not sending."""
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._progress.begin(now)
        elif self._progress.has_stopped(now, self._body_patience):
            stopping = self._body_patience < self._limits.body_timeout
            late = TimedOut("the body of the request has stopped coming, or comes too slowly")
            self._give_up_on_body(Unavailable("the server is stopping") if stopping else late)

    def _give_up_on_body(self, error: KgserveError) -> None:
        """Let the application know, which has an answer to give: it finds the error when it asks for more."""
        self._ignores_input = True
        self.cycle.scope.setdefault("state", {})[LATE] = error
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def _abort_parsing(self, error: KgserveError) -> None:
        """Leave the parser, from within one of its calls."""
        self._parse_error = error
        raise error

    def _refuse(self, error: KgserveError) -> None:
        """Answer with ``error`` when it is its turn, and read no further."""
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
        answer = render(error, request_id)
        self._open_connections.refused.add(error.code)
        headers = {
            **answer.headers,
            "content-type": PROBLEM_JSON,
            "content-length": str(len(answer.body)),
            "x-request-id": request_id,
            "connection": "close",
        }
        client = self.client[0] if self.client else None
        log.info("connection_refused", request_id=request_id, client=client, status=answer.status, reason=str(error))
        self.transport.write(response_head(answer.status, headers, secure=self.scheme == "https") + answer.body)
        self.transport.close()


class LingeringTransport:
    """A transport that closes for writing first when there is unread input, and for good a moment later."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpConnection) -> None:
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self._transport = transport
        self._protocol: HttpConnection | None = protocol
        self._loop = asyncio.get_running_loop()
        self._until: float | None = None
        self._written = 0
        self._gone = 0
        self._gone_at = self._loop.time()
        self._closing_since: float | None = None
        self.force_close = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """As asyncio's; nothing after `close`."""
        if self._until is None:
            self._written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        """Close, at once or a moment later; at once when called again."""
        protocol = self._protocol
        begun = self._until is not None or self._transport.is_closing()
        if begun or protocol is None or not protocol.has_unread_input:
            self._transport.close()
            return
        self._until = self._loop.time() + LINGER
        if self._transport.can_write_eof():
            self._transport.write_eof()
        protocol.ignore_input()

    def release(self) -> None:
        """Let go of the protocol, or both would stay until the next collection, and all of TLS with them (50 kB)."""
        self._protocol = None

    def check_deadlines(self, now: float, patience: float) -> bool:
        """Cut the client off when it does not read or has lingered for long enough; whether it is being closed."""
        waiting = self._transport.get_write_buffer_size()
        if not waiting or self._written - waiting != self._gone:
            self._gone, self._gone_at = self._written - waiting, now
        if now - self._gone_at > patience:
            self._transport.abort()
        elif self._until is not None and now > self._until and not waiting:
            self._transport.close()
        if self.force_close and self._transport.is_closing() and not waiting:
            self._wait_no_more(now)
        return self._until is not None or self._transport.is_closing()

    def _wait_no_more(self, now: float) -> None:
        """Over TLS a close waits for the client's own, which one that reads nothing, being idle, never sends."""
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since >= LINGER:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self._until is not None or self._transport.is_closing()

    def resume_reading(self) -> None:
        """As asyncio's; a connection that is closing is not read."""
        if not self._transport.is_closing():
            self._transport.resume_reading()


def start_eagerly(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Begin ``work``, in a context of its own; the task that it goes on in, if it is not over already."""
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return loop.create_task(_rest(work, awaited), context=context)


async def in_task() -> None:
    """From here on there is a task, without which what takes threads or may be cancelled cannot be awaited."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


async def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _resumed(work, awaited)  # a task takes no bare generator from Python 3.12 on


@coroutine
def _resumed(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, None, None]:
    """``work`` from where it waits for ``awaited``; for nothing when it only wanted to be in a task."""
    try:
        if awaited is None:
            awaited = work.send(None)
        while True:
            try:
                # None is a turn of the loop, which others may need before the work can go on.
                yield awaited
            except BaseException as error:  # noqa: BLE001 - the work's business
                awaited = work.throw(error)
            else:
                awaited = work.send(None)
    except StopIteration:
        return


def send_at_once(cycle: RequestResponseCycle, head: bytes, body: bytes, close: bool) -> bool:
    """As uvicorn's `send` twice, without looking at each header for what is never in ours."""
    if cycle.flow.write_paused or cycle.response_started:
        return False
    if cycle.disconnected:
        return True
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.keep_alive = cycle.keep_alive and not close
    lines = [STATUS_LINE[200], *(b"%b: %b\r\n" % line for line in cycle.default_headers), head]
    cycle.transport.write(b"".join([*lines, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body]))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def with_standard_headers(headers: Sequence[Header], *, secure: bool) -> list[Header]:
    """``headers`` with those that keep browsers from doing more with an answer than is meant; ``secure``: over TLS."""
    names = {name for name, _ in headers}
    missing = [header for header in DEFAULT_HEADERS if header[0] not in names]
    return [*headers, *STANDARD_HEADERS, *missing, _SECURE] if secure else [*headers, *STANDARD_HEADERS, *missing]


def json_head(length: int, extra: Iterable[Header], request_id: str, *, secure: bool) -> bytes:
    """The head of an answer 200 of so many bytes of JSON, standard headers included, from behind its date."""
    named = b"".join([b"%b: %b\r\n" % header for header in extra])
    return b"content-type: application/json\r\ncontent-length: %d\r\n%bx-request-id: %b\r\n%b" % (
        length,
        named,
        request_id.encode(),
        _STANDARD_LINES[secure],
    )


_STANDARD_LINES = {
    secure: b"".join(b"%b: %b\r\n" % header for header in with_standard_headers((), secure=secure))
    for secure in (False, True)
}


def response_head(status: int, headers: Mapping[str, str], *, secure: bool) -> bytes:
    """The head of an answer as it is sent."""
    given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    lines += [name + b": " + value for name, value in with_standard_headers(given, secure=secure)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


Call = Callable[[], object]
MAX_CALLBACKS_PER_ROUND = 4
"""Calls in a round; between rounds the loop looks at what has arrived."""
NEWS_PAUSE_SECONDS = 0.002
"""Between rounds in which one caller's streams are told of news, while others ask."""


class _Turn(NamedTuple):
    """Whose turn it is; whether its requests wait for the calls, or they are news for its streams."""

    caller: str
    awaited: bool


class FairCallbackQueue:
    """Calls that other threads leave for the event loop, made a few in each of its rounds, callers in turn.

    A commit may be waited for by 64 writes, and be news to 200 streams; who asks meanwhile is not to wait for all of
    them, nor are other threads kept from the interpreter by what is sent to all. Without a lock, which a thread could
    hold while it has lost its turn. While others ask, one caller's streams are told with pauses, of more at once then.
    """

    def __init__(self, has_others: Callable[[str], bool]) -> None:
        """``has_others`` says whether others than a caller have asked lately."""
        self._has_others = has_others
        self._later: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: deque[tuple[_Turn, Call]] = deque()
        self._waiting: OrderedDict[_Turn, deque[Call]] = OrderedDict()
        self._is_coming = False

    def begin(self) -> None:
        """Be of the running loop; before anything is left for it. What was left for another that has ended goes."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._is_coming, self._later = loop, False, None
            self._left.clear()
            self._waiting.clear()

    def soon(self, caller: str, call: Call, *, awaited: bool = False) -> None:
        """Have a call made on the loop, in the caller's turn; from any thread. Once the loop has ended, never.

        What no request has ``awaited`` may be put off for moments while other callers ask.
        """
        self._left.append((_Turn(caller, awaited), call))
        if not self._is_coming and self._loop is not None:
            self._is_coming = True
            with suppress(RuntimeError):  # it has ended, and with it who waits
                self._loop.call_soon_threadsafe(self._round)

    async def result(self, future: Future[T]) -> T:
        """What a future comes to, told in the turn of who asks. To be cut off while waiting does not cancel it."""
        if not future.done():
            self.begin()
            waiting = asyncio.get_running_loop().create_future()
            caller, told = asker.get(), partial(_end, waiting)
            future.add_done_callback(lambda _: self.soon(caller, told, awaited=True))
            await waiting
        return future.result()

    def _round(self) -> None:
        self._is_coming = False  # before a look at what is left: what comes after it has another round
        while self._left:
            turn, call = self._left.popleft()
            self._waiting.setdefault(turn, deque()).append(call)
        for _ in range(MAX_CALLBACKS_PER_ROUND):
            if not self._waiting:
                return
            self._next()()
        if not self._waiting or self._loop is None:
            return
        if self._may_pause():
            # What comes from other threads has a round at once.
            self._later = self._later or self._loop.call_later(NEWS_PAUSE_SECONDS, self._go_on)
            return
        self._is_coming = True
        self._loop.call_soon(self._round)
        rest()

    def _may_pause(self) -> bool:
        """Whether nothing is left but news for one caller, while others ask."""
        [turn, *others] = self._waiting
        return not others and not turn.awaited and self._has_others(turn.caller)

    def _go_on(self) -> None:
        self._later = None
        self._round()

    def _next(self) -> Call:
        """The call of whose turn it is, who then waits for the others' turns."""
        turn, calls = self._waiting.popitem(last=False)
        call = calls.popleft()
        if calls:
            self._waiting[turn] = calls
        return call


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
