"""Requests about stores of other nodes that are passed on, one hop, for who would not go there: pages in browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec
from litestar.enums import HttpMethod, ScopeType

from kgserve.api.operation import STORE_PATH
from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.platform.access.authentication import CALLER_HEADER
from kgserve.server.http.problem import ClientLeft, is_passed_on, target_of
from kgserve.server.http.request_parts import READ, client_left
from kgserve.server.proxy import HOPS_HEADER

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.platform.access.authentication import RequestContext
    from kgserve.server.proxy import NodeProxy

_OF_THE_CONNECTION = frozenset(
    {b"connection", b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"accept-encoding"}
)
_MAX_WHOLE_ANSWER_BYTES = 1 << 16
"""Bytes of an answer that is passed on whole."""
_STORES_PATH = STORE_PATH.partition("{")[0]
_UNFORWARDED_HEADERS = frozenset({READ, HOPS_HEADER.encode(), b"content-length", b"transfer-encoding"})
"""Who may read a copy may do so here, and what was passed on once is not passed on again."""
_OF_THE_CALLER = frozenset({b"authorization", b"cookie", CALLER_HEADER.encode(), b"x-forwarded-for"})
_FORWARDED_ANSWER_HEADERS = frozenset(
    {
        b"allow",
        b"cache-control",
        b"content-disposition",
        b"content-length",
        b"content-type",
        b"etag",
        b"kgserve-owner",
        b"kgserve-sequence",
        b"location",
        b"retry-after",
    }
)


class PassingOn:
    """Wraps ``app``: what another node is to answer it does not send elsewhere, for those who would not go there."""

    def __init__(self, app: ASGIApp, forwarder: NodeProxy) -> None:
        self._app = app
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI's. Raises Unavailable when a node does not answer, and ClientLeft."""
        if scope["type"] != ScopeType.HTTP or not is_passed_on(headers := dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        if (known := self._known(scope, headers)) is not None:
            if await self._is_answered(known, scope, receive, send):
                return
            receive = _empty_first(receive)
        began, more = bytearray(), True

        async def recorded() -> ReceiveMessage:
            nonlocal more
            message = await receive()
            if message["type"] == "http.request":
                began.extend(message.get("body", b""))
                more = message.get("more_body", False)
            return message

        try:
            await self._app(scope, recorded, send)
        except ServedElsewhere as served:
            await pass_on(self._forwarder, served, Passed(scope, bytes(began), more), receive, send)

    def _known(self, scope: HTTPScope, headers: Mapping[bytes, bytes]) -> ServedElsewhere | None:
        """Who is likely to serve what a request reads: asking the registry takes as long as the answer."""
        path = scope["path"]
        if (
            scope["method"] != HttpMethod.GET
            or not path.startswith(_STORES_PATH)
            or not _UNFORWARDED_HEADERS.isdisjoint(headers)
        ):
            return None
        return self._forwarder.known(path[len(_STORES_PATH) :].partition("/")[0])

    async def _is_answered(self, known: ServedElsewhere, scope: HTTPScope, receive: Receive, send: Send) -> bool:
        """Whether a node has answered that was known to serve the store; else nothing was sent. Raises ClientLeft."""
        began = False

        async def begun(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                raise Unavailable("the store may have moved")
            began = True
            await send(message)

        try:
            await pass_on(self._forwarder, known, Passed(scope, b"", more=False), receive, begun)
        except Unavailable:
            if began:
                raise
        return began


def _empty_first(receive: Receive) -> Receive:
    """A connection from which a request without a body was read, as it was before."""
    messages: list[ReceiveMessage] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def replayed() -> ReceiveMessage:
        return messages.pop() if messages else await receive()

    return replayed


class Passed(NamedTuple):
    """A request that is passed on: what has been read of its body, and whether there is ``more``."""

    scope: HTTPScope
    began: bytes
    more: bool


async def pass_on(forwarder: NodeProxy, served: ServedElsewhere, passed: Passed, receive: Receive, send: Send) -> None:
    """Have a request answered by the node that serves its store. Raises Unavailable, and ClientLeft."""
    outcome: Exception | None = ClientLeft()
    async with anyio.create_task_group() as tasks:
        read = anyio.Event()
        body: bytes | AsyncIterator[bytes] = passed.began
        if passed.more:
            body = _body(passed, receive, read)
        else:
            read.set()
        tasks.start_soon(_end_when_left, receive, read, tasks.cancel_scope)
        try:
            await _answer(forwarder, served, passed, body, send)
            outcome = None
        except Exception as error:  # noqa: BLE001 - a group of tasks would wrap it
            outcome = error
        tasks.cancel_scope.cancel()
    if outcome is not None:
        raise outcome


async def _answer(
    forwarder: NodeProxy, served: ServedElsewhere, passed: Passed, body: bytes | AsyncIterator[bytes], send: Send
) -> None:
    request = passed.scope["method"], target_of(passed.scope)
    async with forwarder.asked(served, request, _headers(passed), body) as response:
        kept = [
            (name.lower(), value) for name, value in response.raw_headers if name.lower() in _FORWARDED_ANSWER_HEADERS
        ]
        length = response.content_length
        # One that breaks off within it can still be asked for again, or refused.
        whole = await response.read() if length is not None and length <= _MAX_WHOLE_ANSWER_BYTES else None
        await send({"type": "http.response.start", "status": response.status, "headers": kept})
        if whole is None:
            async for part in response.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": whole or b"", "more_body": False})


def _headers(passed: Passed) -> dict[str, str]:
    left_out = _OF_THE_CONNECTION | _OF_THE_CALLER
    context: RequestContext = passed.scope["state"]["request_context"]
    sent = {
        name.decode(): value.decode("utf-8", "replace")
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
    more = True
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
