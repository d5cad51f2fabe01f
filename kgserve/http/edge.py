"""The outermost ASGI layer: request ids, undecoded routing, the browser guard, the access line.

Routing happens on the path as it was sent. Decoding it first, as ASGI's ``path`` does, would let an id with ``%2F`` in
it fall apart into segments; handlers decode names and ids themselves. Paths with empty segments name nothing: were
they tidied up, a client that forgot an id would reach the resource above it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import structlog
from litestar.enums import ScopeType

from kgserve.errors import NotFound, Unavailable
from kgserve.http.problem import CLIENT_LEFT, MEDIA_TYPE, render

if TYPE_CHECKING:
    from collections.abc import Generator

    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.http.guard import Guard

log = structlog.get_logger()

_GIVEN_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_LOGGED_PATH = 300


class Edge:
    """Wraps ``app``; every HTTP request passes through it first and every answer last."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; anything but HTTP goes through untouched."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        scope["path"] = scope["raw_path"].decode("ascii")
        exchange = Exchange(scope, receive, send)
        scope["state"] = {**scope.get("state", {}), "request_id": exchange.request_id}
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id), self._counted():
            await self._answer(scope, exchange)

    async def settled(self, patience: float) -> None:
        """Waits until no request is being worked on, at most ``patience`` seconds; those cut off close their things."""
        if self._running:
            await asyncio.wait(self._running, timeout=patience)

    @contextmanager
    def _counted(self) -> Generator[None]:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def _answer(self, scope: HTTPScope, exchange: Exchange) -> None:
        try:
            self._check(scope)
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # the grace time of a stop is over
            if exchange.status is None:
                await exchange.refuse(Unavailable("the server is stopping"))
        except Exception as error:
            if exchange.status is None:
                await exchange.refuse(error)
            else:
                log.exception("answer_broken_off")  # the server cuts the connection: the client sees a partial answer
        finally:
            exchange.log()

    def _check(self, scope: HTTPScope) -> None:
        self._guard.check(scope["headers"])
        path = scope["path"]
        if "//" in path or (path.endswith("/") and path != "/"):
            raise NotFound("a path with an empty segment names nothing; an empty id or a trailing slash?")


class Exchange:
    """One request and its answer: wraps ``receive`` and ``send`` to stamp headers and to count."""

    def __init__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = time.perf_counter()
        self._sent = 0
        self._left = False
        self._complete = False
        headers = dict(scope["headers"])
        self._unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        given = headers.get(b"x-request-id", b"")
        self.request_id = given.decode("ascii") if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
        self.status: int | None = None

    async def receive(self) -> ReceiveMessage:
        """As ASGI's, watching for the end of the body and for the client leaving."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._unread = message.get("more_body", False)
        elif message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def send(self, message: Message) -> None:
        """As ASGI's. An answer given before the body was read closes the connection, so that the rest never comes."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # the SDK of MCP sends members of an enumeration
            stamped = [*message["headers"], (b"x-request-id", self.request_id.encode()), _NOSNIFF]
            message["headers"] = [*stamped, _CLOSE] if self._unread else stamped
        elif message["type"] == "http.response.body":
            self._sent += len(message["body"])
            self._complete = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, error: Exception) -> None:
        """Answer with ``error`` as a problem document."""
        status, extra, body = render(error, self.request_id)
        headers = {**extra, "content-type": MEDIA_TYPE, "content-length": str(len(body))}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def log(self) -> None:
        """The access line."""
        log.info(
            "request",
            method=self._scope["method"],
            path=self._scope["raw_path"][:_LOGGED_PATH].decode("ascii"),
            status=CLIENT_LEFT if self._left else self.status,
            ms=round((time.perf_counter() - self._started) * 1000, 2),
            bytes=self._sent,
        )


_NOSNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")
