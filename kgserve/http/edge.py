"""The outermost ASGI layer: request ids, undecoded routing, the browser guard, the access line.

Routing happens on the path as it was sent. Decoding it first, as ASGI's ``path`` does, would let an id with ``%2F`` in
it fall apart into segments; handlers decode names and ids themselves. Paths with empty segments name nothing: were
they tidied up, a client that forgot an id would reach the resource above it.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import structlog
from litestar.enums import ScopeType

from kgserve.access.caller import NOBODY, Hidden
from kgserve.access.door import WrongKey
from kgserve.access.key import masked
from kgserve.access.visit import Visit
from kgserve.errors import NotFound, Unauthenticated, Unavailable
from kgserve.http.eager import in_task
from kgserve.http.headers import ready, stamped
from kgserve.http.observed import REFUSED, Observed, is_stream
from kgserve.http.problem import CLIENT_LEFT, MEDIA_TYPE, ClientLeft, code_of, render
from kgserve.http.protocol import LATE
from kgserve.http.whole import WHOLE, Whole
from kgserve.log import request as request_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.access.door import Admission
    from kgserve.http.direct import Shortcuts
    from kgserve.http.guard import Guard
    from kgserve.http.headers import Header
    from kgserve.http.traffic import Traffic
    from kgserve.metrics.observation import Observation

log = structlog.get_logger()

_ids = random.Random().getrandbits  # noqa: S311 - ids tell requests apart and keep nothing secret
_GIVEN_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_LOGGED_PATH = 300
REVOKED = "the key is not valid any more: it was revoked or has expired while the request was under way"


class Edge:
    """Wraps ``app``; every HTTP request passes through it first and every answer last."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        observation: Observation,
        traffic: Traffic,
        admission: Admission,
        shortcuts: Shortcuts,
    ) -> None:
        self._app = app
        self.shortcuts = shortcuts
        self._observation = observation
        self._guard = guard
        self._admission = admission
        self._traffic = traffic
        self.running = 0
        """Requests that are being worked on, open streams among them."""
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; anything but HTTP goes through untouched."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["raw_path"].decode("ascii")
        exchange = Exchange(scope, receive, send)
        address = self._traffic.address(scope)
        act = f"{scope['method']} {scope['path']}"
        visit = exchange.visit = Visit(self._admission, exchange.request_id, act, address)
        state = {"request_id": exchange.request_id, "caller": NOBODY, "address": address, "visit": visit}
        scope["state"] = scope.get("state", {}) | state
        exchange.extra = self._traffic.origins.headers(scope["headers"])
        self.running += 1
        bound = structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        try:
            with Observed(self._observation, scope, exchange):
                await self._answer(scope, exchange)
                visit.ended(exchange.status)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def settled(self, patience: float) -> None:
        """Waits until no request is being worked on, at most ``patience`` seconds; those cut off close their things."""
        self._idle.clear()
        if self.running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), patience)

    async def _answer(self, scope: HTTPScope, exchange: Exchange) -> None:
        try:
            self._guard.check(scope["headers"])
            if preflight := self._traffic.origins.preflight(scope["method"], scope["headers"]):
                await exchange.nod(preflight)
                return
            self._let_in(scope)
            _check_path(scope["path"])
            if found := self.shortcuts.find(scope):
                await exchange.reply(await self.shortcuts.answered(found, scope, exchange.receive))
            else:
                await in_task()
                await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # the grace time of a stop is over
            if exchange.status is None:
                await exchange.refuse(Unavailable("the server is stopping"))
        except ClientLeft:
            exchange.status = exchange.status or CLIENT_LEFT
        except Exception as error:
            if isinstance(error, Hidden):
                scope["state"]["visit"].hidden = error.store
            if exchange.status is None:
                await exchange.refuse(error)
            elif not exchange.refused:
                log.exception("answer_broken_off")  # the server cuts the connection: the client sees a partial answer
        finally:
            exchange.log()

    def _let_in(self, scope: HTTPScope) -> None:
        """Find out who comes, and count the request. Raises Unauthenticated, Limited."""
        state, rates = scope["state"], self._traffic.rates
        address = state["address"]
        try:
            caller = self._admission.door.caller(scope["path"], scope["query_string"], scope["headers"])
        except WrongKey:
            rates.failed(address)
            raise
        except Unauthenticated:
            rates.admit(NOBODY, address)
            raise
        state["caller"] = state["visit"].caller = caller
        rates.admit(caller, address)


def _check_path(path: str) -> None:
    if "//" in path or (path.endswith("/") and path != "/"):
        raise NotFound("a path with an empty segment names nothing; an empty id or a trailing slash?")


class Exchange:
    """One request and its answer: wraps ``receive`` and ``send`` to stamp headers and to count."""

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = time.perf_counter()
        self.received = self.sent = 0
        self.streamed = False
        self._left = False
        self._complete = False
        self.refused = False
        self.extra: tuple[Header, ...] = ()
        self.visit: Visit | None = None
        headers = dict(scope["headers"])
        self._unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        given = headers.get(b"x-request-id", b"")
        self.request_id = given.decode("ascii") if _GIVEN_ID.fullmatch(given) else f"{_ids(64):016x}"
        self.status: int | None = None

    async def receive(self) -> ReceiveMessage:
        """As ASGI's, watching for the end of the body and for the client leaving."""
        message = await self._receive()
        if late := self._scope["state"].get(LATE):
            if self.status is None:
                await self.refuse(late)
            return {"type": "http.disconnect"}
        if self.received and message["type"] == "http.request" and self._revoked():
            if self.status is None:
                await self.refuse(Unauthenticated(REVOKED))
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self._unread = message.get("more_body", False)
            self.received += len(message.get("body", b""))
        elif message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def send(self, message: Message) -> None:
        """As ASGI's. An answer given before the body was read closes the connection, so that the rest never comes."""
        if self.refused:
            return
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # the SDK of MCP sends members of an enumeration
            self.streamed = self._scope["method"] == "GET" and is_stream(message["headers"])
            given = [*message["headers"], *self.extra, (b"x-request-id", self.request_id.encode())]
            headers = stamped(given, secure=self._scope["scheme"] == "https")
            message["headers"] = [*headers, _CLOSE] if self._unread else headers
        elif message["type"] == "http.response.body":
            if self.sent and not self.streamed and self._revoked():
                self.refused = True  # nothing more goes out, and the server cuts the connection
                raise Unauthenticated(REVOKED)
            self.sent += len(message["body"])
            self._complete = not message.get("more_body", False)
        await self._send(message)

    def _revoked(self) -> bool:
        """Whether the key has ended since it was let in. Streams of events and MCP ask for themselves."""
        visit = self.visit
        if visit is None or visit.caller.key_id is None or self._scope["path"] == "/mcp":
            return False
        return not visit.stands

    async def reply(self, body: bytes) -> None:
        """Answer with JSON: at once where the server can, or piece by piece."""
        whole = cast("Whole | None", (self._scope.get("extensions") or {}).get(WHOLE))
        if whole is not None:
            secure = self._scope["scheme"] == "https"
            head = ready(len(body), self.extra, self.request_id, secure=secure)
            if whole(head, body, self._unread):
                self.status, self.sent, self._complete = 200, len(body), True
                return
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": 200, "headers": fields})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def nod(self, headers: Iterable[Header]) -> None:
        """Answer without a body."""
        await self.send({"type": "http.response.start", "status": 204, "headers": list(headers)})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, error: Exception) -> None:
        """Answer with ``error`` as a problem document."""
        self._scope["state"][REFUSED] = code_of(error)
        status, extra, body = render(error, self.request_id)
        headers = {**extra, "content-type": MEDIA_TYPE, "content-length": str(len(body))}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
        self.refused = True

    @property
    def outcome(self) -> int | None:
        """The status of the answer, or that of a client that has left."""
        return CLIENT_LEFT if self._left else self.status

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._started

    def log(self) -> None:
        """The access line."""
        path = masked(self._scope["raw_path"][:_LOGGED_PATH].decode("ascii"))
        ms = round(self.seconds * 1000, 2)
        request_line(self.request_id, self._scope["method"], path, self.outcome, ms, self.sent)


_CLOSE = (b"connection", b"close")
