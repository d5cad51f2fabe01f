"""uvicorn's HTTP parser, bounded: how large a head may be, how long a client may take, and how a connection ends.

What is refused here never becomes a request of the application, so it is answered here, with the same problem
documents as everywhere else. An answer that comes before all of a request was read would be lost: closing a socket
with unread input resets it. `Lingering` therefore goes on reading for a moment.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kgserve.errors import InvalidInput, KgserveError, Limited, TimedOut, Unavailable
from kgserve.http.eager import begin
from kgserve.http.headers import raw_headers
from kgserve.http.limits import (
    FRAMING_ALLOWANCE,
    FRAMING_FACTOR,
    LINGER,
    MAX_HEADER_LINES,
    MAX_PIPELINED,
    STOP_BODY_TIMEOUT,
    Progress,
)
from kgserve.http.problem import MEDIA_TYPE, HeadTooLarge, UrlTooLong, render
from kgserve.http.whole import WHOLE, answer_whole

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from kgserve.http.limits import Connections

log = structlog.get_logger()

LATE = "body_late"
"""The key of the scope's state for the error that a request ends with whose body does not come any more."""


class Protocol(HttpToolsProtocol):
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
        self._progress = Progress()
        self._body_patience = self._limits.body_timeout
        self._deaf = False
        self._newest: RequestResponseCycle | None = None
        self._objection: KgserveError | None = None
        self._last_word: KgserveError | None = None
        self._parsing = False
        self._begun: tuple[RequestResponseCycle, ASGI3Application] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """As uvicorn's, if there is room for one more."""
        self.wire = Lingering(transport, self)
        super().connection_made(self.wire)
        self._since = self.loop.time()
        refusal = self._open_connections.enter(self, self.client[0] if self.client else "")
        if refusal is None:
            return
        if self._open_connections.overrun:
            transport.abort()
        else:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._open_connections.leave(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.wire.part()

    def data_received(self, data: bytes) -> None:
        """Hand what has come to the parser, if it is not too much."""
        if self._deaf:
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
        self._begin()

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._parsing = True
        try:
            cast("httptools.HttpRequestParser", self.parser).feed_data(data)
        except httptools.HttpParserUpgrade:
            # What follows an offer to change the protocol may be HTTP or not; nobody can tell: answer, then close.
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(self._objection or InvalidInput("this is not a well-formed HTTP request"))
        finally:
            self._parsing = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """As uvicorn's. A request that is being parsed begins when that is over, and so much of its body known as came.

        Those that waited in a pipeline begin as tasks: each would otherwise begin within the one before.
        """
        if self._parsing:
            self._begun = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self) -> None:
        if self._begun is None:
            return
        (cycle, app), self._begun = self._begun, None
        task = begin(cycle.run_asgi(app), self.loop)
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
            self._object(UrlTooLong.over(self._limits.url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, up to the largest head. Trailers come after what headers were checked for: they are dropped."""
        if not self._in_head:
            return
        self._size += len(name) + len(value) + 4
        self._lines += 1
        if self._size > self._limits.head or self._lines > MAX_HEADER_LINES:
            self._object(HeadTooLarge.over(self._limits.head))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """As uvicorn's, up to the longest queue."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._object(Limited(f"more than {MAX_PIPELINED} requests wait on this connection for their answers"))
        super().on_headers_complete()
        self._newest = self.cycle
        self.scope["extensions"] = cast("Any", {WHOLE: partial(answer_whole, self.cycle)})
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
        self.wire.hurried = True
        self._body_patience = min(self._body_patience, STOP_BODY_TIMEOUT)
        super().shutdown()

    def on_response_complete(self) -> None:
        """As uvicorn's; says what is left to say once all requests that came before it are answered."""
        last = not self.pipeline
        super().on_response_complete()
        if last and self._last_word is not None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._say(self._last_word)

    @property
    def has_unread_input(self) -> bool:
        """Whether something may be on its way that was not looked at."""
        return self._deaf or not self._in_head or self._fed > 0 or bool(self.pipeline)

    def stop_listening(self) -> None:
        """Read what comes without looking at it."""
        self._deaf = True
        self.flow.resume_reading()

    def look(self, now: float) -> None:
        """End the connection if it has kept the server waiting for too long."""
        if self.wire.look(now, self._limits.answer_timeout) or self._deaf:
            return
        if self._in_head:
            self._look_at_head(now)
        else:
            self._look_at_body(now)

    def _look_at_head(self, now: float) -> None:
        if self.flow.read_paused:
            self._since = now
        elif now - self._since > self._limits.head_timeout:
            if self._fed:
                self._refuse(TimedOut("the head of the request did not arrive in time"))
            elif self._newest is None:
                self.transport.close()

    def _look_at_body(self, now: float) -> None:
        """While nobody takes what has come, or has asked for it, the client cannot be blamed for not sending."""
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._progress.begin(now)
        elif self._progress.has_stopped(now, self._body_patience):
            stopping = self._body_patience < self._limits.body_timeout
            late = TimedOut("the body of the request has stopped coming, or comes too slowly")
            self._give_up_on_body(Unavailable("the server is stopping") if stopping else late)

    def _give_up_on_body(self, error: KgserveError) -> None:
        """Let the application know, which has an answer to give: it finds the error when it asks for more."""
        self._deaf = True
        self.cycle.scope.setdefault("state", {})[LATE] = error
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def _object(self, error: KgserveError) -> None:
        """Leave the parser, from within one of its calls."""
        self._objection = error
        raise error

    def _refuse(self, error: KgserveError) -> None:
        """Answer with ``error`` when it is its turn, and read no further."""
        self._deaf = True
        if self._in_head:
            if self._newest is None or self._newest.response_complete:
                self._say(error)
            else:
                self._last_word = error
            return
        cycle = self.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            self._last_word = error
        elif cycle.response_started:
            self.transport.close()
        else:
            self._say(error)

    def _say(self, error: KgserveError) -> None:
        request_id = secrets.token_hex(8)
        answer = render(error, request_id)
        self._open_connections.refused.add(error.code)
        headers = {
            **answer.headers,
            "content-type": MEDIA_TYPE,
            "content-length": str(len(answer.body)),
            "x-request-id": request_id,
            "connection": "close",
        }
        client = self.client[0] if self.client else None
        log.info("connection_refused", request_id=request_id, client=client, status=answer.status, reason=str(error))
        self.transport.write(raw_headers(answer.status, headers, secure=self.scheme == "https") + answer.body)
        self.transport.close()


class Lingering(asyncio.Transport):
    """A transport that closes for writing first when there is unread input, and for good a moment later."""

    def __init__(self, transport: asyncio.Transport, protocol: Protocol) -> None:
        super().__init__()
        self._transport = transport
        self._protocol: Protocol | None = protocol
        self._loop = asyncio.get_running_loop()
        self._until: float | None = None
        self._written = 0
        self._gone = 0
        self._gone_at = self._loop.time()
        self._closing_since: float | None = None
        self.hurried = False

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
        protocol.stop_listening()

    def part(self) -> None:
        """Let go of the protocol, or both would stay until the next collection, and all of TLS with them (50 kB)."""
        self._protocol = None

    def look(self, now: float, patience: float) -> bool:
        """Cut the client off when it does not read or has lingered for long enough; whether it is being closed."""
        waiting = self._transport.get_write_buffer_size()
        if not waiting or self._written - waiting != self._gone:
            self._gone, self._gone_at = self._written - waiting, now
        if now - self._gone_at > patience:
            self._transport.abort()
        elif self._until is not None and now > self._until and not waiting:
            self._transport.close()
        if self.hurried and self._transport.is_closing() and not waiting:
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

    def abort(self) -> None:
        """As asyncio's."""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """As asyncio's."""
        return self._transport.get_write_buffer_size()

    def is_reading(self) -> bool:
        """As asyncio's."""
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        """As asyncio's."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As asyncio's; a connection that is closing is not read."""
        if not self._transport.is_closing():
            self._transport.resume_reading()
