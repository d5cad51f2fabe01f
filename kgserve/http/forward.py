"""Requests about stores of other nodes that are passed on, one hop, for who would not go there: pages in browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec
from litestar.enums import ScopeType

from kgserve.access.authentication import CALLER_HEADER
from kgserve.forwarding import Forwarder
from kgserve.http.problem import FORWARDS, ClientLeft, is_passed_on, target_of
from kgserve.http.service import client_left

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.access.authentication import RequestContext
    from kgserve.errors import ServedElsewhere
    from kgserve.store.placement import Placement

_OF_THE_CONNECTION = frozenset(
    {b"connection", b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"accept-encoding"}
)
_OF_THE_CALLER = frozenset({b"authorization", b"cookie", CALLER_HEADER.encode(), b"x-forwarded-for"})
_ANSWERED = frozenset(
    {
        "allow",
        "cache-control",
        "content-disposition",
        "content-length",
        "content-type",
        "etag",
        "kgserve-owner",
        "kgserve-sequence",
        "location",
        "retry-after",
    }
)


class PassingOn:
    """Wraps ``app``: what another node is to answer it does not send elsewhere, for those who would not go there."""

    def __init__(self, app: ASGIApp, placement: Placement) -> None:
        """``placement`` knows what opens everything at another node."""
        self._app = app
        self._forwarder = Forwarder(placement)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI's. Raises Unavailable when a node does not answer, and ClientLeft."""
        if scope["type"] != ScopeType.HTTP or not is_passed_on(dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        state, began, more = scope["state"], bytearray(), True
        state[FORWARDS] = None

        async def recorded() -> ReceiveMessage:
            nonlocal more
            message = await receive()
            if message["type"] == "http.request":
                began.extend(message.get("body", b""))
                more = message.get("more_body", False)
            return message

        async def held(message: Message) -> None:
            if state[FORWARDS] is None:
                await send(message)

        await self._app(scope, recorded, held)
        served: ServedElsewhere | None = state.pop(FORWARDS)
        if served is not None:
            await pass_on(self._forwarder, served, Passed(scope, bytes(began), more), receive, send)


class Passed(NamedTuple):
    """A request that is passed on: what has been read of its body, and whether there is ``more``."""

    scope: HTTPScope
    began: bytes
    more: bool


async def pass_on(forwarder: Forwarder, served: ServedElsewhere, passed: Passed, receive: Receive, send: Send) -> None:
    """Have a request answered by the node that serves its store. Raises Unavailable, and ClientLeft."""
    outcome: Exception | None = ClientLeft()
    async with anyio.create_task_group() as tasks:
        read = anyio.Event()
        tasks.start_soon(_end_when_left, receive, read, tasks.cancel_scope)
        try:
            await _answer(forwarder, served, passed, _body(passed, receive, read), send)
            outcome = None
        except Exception as error:  # noqa: BLE001 - a group of tasks would wrap it
            outcome = error
        tasks.cancel_scope.cancel()
    if outcome is not None:
        raise outcome


async def _answer(
    forwarder: Forwarder, served: ServedElsewhere, passed: Passed, body: AsyncIterator[bytes], send: Send
) -> None:
    request = passed.scope["method"], target_of(passed.scope)
    async with forwarder.asked(served, request, _headers(passed), body) as response:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
        kept = [each for each in headers if each[0].decode() in _ANSWERED]
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
        async for part in response.aiter_raw():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(passed: Passed) -> dict[str, str]:
    left_out = _OF_THE_CONNECTION | _OF_THE_CALLER
    context: RequestContext = passed.scope["state"]["request_context"]
    sent = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in passed.scope["headers"]
        if name not in left_out
    }
    return sent | in_the_name_of(context)


def in_the_name_of(context: RequestContext) -> dict[str, str]:
    """Headers by which another node knows for whom it is asked."""
    return {
        "accept-encoding": "identity",
        "x-forwarded-for": context.address,
        CALLER_HEADER: msgspec.json.encode(context.caller).decode("ascii"),
    }


async def _body(passed: Passed, receive: Receive, read: anyio.Event) -> AsyncIterator[bytes]:
    if passed.began:
        yield passed.began
    more = passed.more
    while more:
        message: Any = await receive()
        if message["type"] != "http.request":
            break
        if message.get("body"):
            yield message["body"]
        more = message.get("more_body", False)
    read.set()


async def _end_when_left(receive: Receive, read: anyio.Event, scope: anyio.CancelScope) -> None:
    """Let go of the answer of a client that is gone; what it sends is read by nobody else from then on."""
    await read.wait()
    await client_left(receive)
    scope.cancel()
