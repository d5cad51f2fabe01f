"""Forwarding of requests to the node that serves the store, for clients that do not follow redirects (browsers)."""

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
from kgserve.server.cluster_http_client import HOPS_HEADER
from kgserve.server.http.cross_site_guard import BROWSER_HEADERS
from kgserve.server.http.error_responses import ClientDisconnected, must_forward_not_redirect, request_target
from kgserve.server.http.request_decoding import READ_FROM_HEADER_BYTES, wait_for_disconnect

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.platform.access.authentication import RequestContext
    from kgserve.server.cluster_http_client import ClusterNodeHttpClient

_CONNECTION_HEADERS = frozenset(
    {b"connection", b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"accept-encoding"}
)
_MAX_WHOLE_ANSWER_BYTES = 1 << 16
"""Bytes of the largest response that is buffered before it is forwarded."""
_STORES_PATH = STORE_PATH.partition("{")[0]
_UNFORWARDED_HEADERS = frozenset(
    {READ_FROM_HEADER_BYTES, HOPS_HEADER.encode(), b"content-length", b"transfer-encoding"}
)
"""Headers of requests that are not forwarded at once: reads from a replica, forwarded requests and bodies."""
_CALLER_HEADERS = frozenset({b"authorization", b"cookie", CALLER_HEADER.encode(), b"x-forwarded-for"})
_FORWARDED_ANSWER_HEADERS = frozenset(
    {
        b"allow",
        b"cache-control",
        b"content-disposition",
        b"content-length",
        b"content-type",
        b"etag",
        b"kgserve-age",
        b"kgserve-owner",
        b"kgserve-sequence",
        b"location",
        b"retry-after",
    }
)


class ForwardingMiddleware:
    """ASGI middleware that forwards requests for stores of other nodes, for clients that do not follow redirects."""

    def __init__(self, app: ASGIApp, forwarder: ClusterNodeHttpClient) -> None:
        self._app = app
        self._forwarder = forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request. Raises Unavailable when a node does not answer, and ClientDisconnected."""
        if scope["type"] != ScopeType.HTTP or not must_forward_not_redirect(headers := dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        if (owner := self._cached_owner(scope, headers)) is not None:
            if await self._forward_to_cached(owner, scope, receive, send):
                return
            receive = _replay_empty_body(receive)
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
            await forward_request(self._forwarder, served, ForwardedRequest(scope, bytes(began), more), receive, send)

    def _cached_owner(self, scope: HTTPScope, headers: Mapping[bytes, bytes]) -> ServedElsewhere | None:
        """Return the node that is likely to serve a read; saves a request to the registry."""
        path = scope["path"]
        if (
            scope["method"] != HttpMethod.GET
            or not path.startswith(_STORES_PATH)
            or not _UNFORWARDED_HEADERS.isdisjoint(headers)
        ):
            return None
        return self._forwarder.find_cached_owner(path[len(_STORES_PATH) :].partition("/")[0])

    async def _forward_to_cached(self, owner: ServedElsewhere, scope: HTTPScope, receive: Receive, send: Send) -> bool:
        """Forward a request to the cached owner; return False, with nothing sent, if it is not available.

        Raises ClientDisconnected.
        """
        began = False

        async def begun(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                raise Unavailable("the store may have moved")
            began = True
            await send(message)

        try:
            await forward_request(self._forwarder, owner, ForwardedRequest(scope, b"", more=False), receive, begun)
        except Unavailable:
            if began:
                raise
        return began


def _replay_empty_body(receive: Receive) -> Receive:
    """Return a ``receive`` that first returns the empty body again that was read already."""
    messages: list[ReceiveMessage] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def replayed() -> ReceiveMessage:
        return messages.pop() if messages else await receive()

    return replayed


class ForwardedRequest(NamedTuple):
    """Forwarded request: the part of its body that was read, and whether there is ``more``."""

    scope: HTTPScope
    began: bytes
    more: bool


async def forward_request(
    forwarder: ClusterNodeHttpClient, served: ServedElsewhere, passed: ForwardedRequest, receive: Receive, send: Send
) -> None:
    """Forward a request to the store's node, and send the response. Raises Unavailable and ClientDisconnected."""
    outcome: Exception | None = ClientDisconnected()
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
        except Exception as error:  # noqa: BLE001 - the task group would wrap it
            outcome = error
        tasks.cancel_scope.cancel()
    if outcome is not None:
        raise outcome


async def _answer(
    forwarder: ClusterNodeHttpClient,
    served: ServedElsewhere,
    passed: ForwardedRequest,
    body: bytes | AsyncIterator[bytes],
    send: Send,
) -> None:
    request = passed.scope["method"], request_target(passed.scope)
    async with forwarder.send_request(served, request, _headers(passed), body) as response:
        kept = [
            (name.lower(), value) for name, value in response.raw_headers if name.lower() in _FORWARDED_ANSWER_HEADERS
        ]
        length = response.content_length
        # Buffered, so that a broken response can still be retried or refused.
        whole = await response.read() if length is not None and length <= _MAX_WHOLE_ANSWER_BYTES else None
        await send({"type": "http.response.start", "status": response.status, "headers": kept})
        if whole is None:
            async for part in response.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": whole or b"", "more_body": False})


def _headers(passed: ForwardedRequest) -> dict[str, str]:
    # The first node checked the browser's headers, which name that node as the origin.
    left_out = _CONNECTION_HEADERS | _CALLER_HEADERS | BROWSER_HEADERS
    context: RequestContext = passed.scope["state"]["request_context"]
    sent = {
        name.decode(): value.decode("utf-8", "replace")
        for name, value in passed.scope["headers"]
        if name not in left_out
    }
    return sent | build_caller_identity_headers(context)


def build_caller_identity_headers(context: RequestContext) -> dict[str, str]:
    """Return the headers that identify the original caller to another node."""
    return {
        "accept-encoding": "identity",
        "x-forwarded-for": context.address,
        CALLER_HEADER: msgspec.json.encode(context.caller).decode("ascii"),
    }


async def _body(passed: ForwardedRequest, receive: Receive, read: anyio.Event) -> AsyncIterator[bytes]:
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
    """Cancel the response when the client disconnects. Reads the connection once the body is complete."""
    await read.wait()
    await wait_for_disconnect(receive)
    scope.cancel()
