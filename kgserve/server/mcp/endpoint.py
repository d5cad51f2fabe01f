"""ASGI application at /mcp. The MCP SDK is imported in a thread at the first request, to keep startup fast."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Generator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog

from kgserve.errors import Unavailable
from kgserve.platform.access.authentication import KEY_RECHECK_SECONDS, RequestContext
from kgserve.platform.codecs import decode_json
from kgserve.platform.duplicate_json_keys import find_duplicate_json_key
from kgserve.platform.settings import MEBIBYTE

if TYPE_CHECKING:
    from kgserve.graph.store_handle import CallerStoreHandles
    from kgserve.server.admission import AdmissionControl
    from kgserve.server.cluster_http_client import ClusterNodeHttpClient
    from kgserve.server.mcp.server import McpService

log = structlog.get_logger()

_LISTEN_HEADER = (b"mcp-method", b"subscriptions/listen")
_SESSION_HEADER, _INITIALIZE = b"mcp-session-id", b'"initialize"'
_BAD_REQUEST, _TOO_LARGE = 400, 413
_INVALID_REQUEST = -32600
_VALIDATION_ERROR_PREFIX = "Validation error: "
_INVALID_BODY_MESSAGE = (
    'the body is not a JSON-RPC 2.0 message: one object with "jsonrpc": "2.0", a method, params and an id'
)


class McpEndpoint:
    """ASGI application of MCP; serves while `running` is active. The first requests wait for the import."""

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl, forwarder: ClusterNodeHttpClient) -> None:
        self._turns = threads.loop_turns
        self._load = partial(_load, graphs, threads, forwarder)
        self._stop_timeout = graphs.settings.shutdown_grace / 4
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._served: asyncio.Future[McpService] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle an ASGI request.

        Raises Unavailable while the server is stopping, and InvalidInput for unknown tools or answer formats.
        """
        if self._served is None or self._stopping.is_set():
            raise Unavailable("the server is stopping")
        self._wanted.set()
        served = await asyncio.shield(self._served)
        # uvicorn leaves trailing whitespace in header values, and the SDK compares them exactly.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope["user"] = served.user_of(scope["state"]["request_context"].caller)
        served.check(scope)
        limit = served.manager.max_request_body_size or 0
        if scope["method"] == "POST" and int(dict(scope["headers"]).get(b"content-length", 0)) <= limit:
            receive, body = await _read_ahead(receive, limit)
            if (twice := find_duplicate_json_key(body)) is not None:
                await _refuse_duplicate_key(send, twice)
                return
            if _INITIALIZE in body and not any(name == _SESSION_HEADER for name, _ in scope["headers"]):
                # The SDK takes milliseconds of the event loop to begin a session.
                async with self._turns.one(scope["state"]["request_context"].accounting_name):
                    await self._handle(served, scope, receive, send)
                return
        if scope["method"] != "GET" and _LISTEN_HEADER not in scope["headers"]:
            await self._handle(served, scope, receive, send)
            return
        listener = AsgiKeyCheckingReceive(receive, scope["state"]["request_context"])
        await self._handle(served, scope, listener, send)
        if listener.is_over:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _handle(self, served: McpService, scope: Any, receive: Any, send: Any) -> None:
        with self._track(waits=scope["method"] == "GET"):
            await served.manager.handle_request(
                scope, receive, AsgiErrorRewritingSend(send, served.manager.max_request_body_size)
            )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve until the end of the block."""
        self._served = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(self._served), name="mcp")
        try:
            yield
        finally:
            self.stop()
            await asyncio.wait({task})

    def stop(self) -> None:
        """Refuse new requests; end notification streams now, and sessions once their calls are answered."""
        self._stopping.set()
        self._wanted.set()
        if self._served is not None and self._served.done() and not self._served.exception():
            self._served.result().notifications.close()

    async def _run(self, ready: asyncio.Future[McpService]) -> None:
        await self._wanted.wait()
        if self._stopping.is_set():
            ready.set_exception(Unavailable("the server is stopping"))
            ready.exception()
            return
        try:
            served = await asyncio.to_thread(self._load)
            async with served.running():
                ready.set_result(served)
                await self._stopping.wait()
                if self._running:
                    await asyncio.wait(self._running, timeout=self._stop_timeout)
        except Exception as error:
            log.exception("mcp_failed")
            if not ready.done():
                ready.set_exception(error)
                ready.exception()

    @contextlib.contextmanager
    def _track(self, *, waits: bool) -> Generator[None]:
        """Track a request that shutdown waits for; requests that wait for notifications are not tracked."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if not waits:
            self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)


def _load(graphs: CallerStoreHandles, threads: AdmissionControl, forwarder: ClusterNodeHttpClient) -> McpService:
    return cast("type[McpService]", import_module("kgserve.server.mcp.server").McpService)(graphs, threads, forwarder)


class AsgiKeyCheckingReceive:
    """ASGI ``receive`` wrapper of a notification stream that simulates a disconnect once the key is not valid."""

    def __init__(self, receive: Any, context: RequestContext) -> None:
        self._receive = receive
        self._context = context
        self.is_over = False

    async def __call__(self) -> Any:
        """Receive the next ASGI message, or a disconnect once the key is not valid."""
        receiving = asyncio.ensure_future(self._receive())
        try:
            while not (await asyncio.wait({receiving}, timeout=KEY_RECHECK_SECONDS))[0]:
                if not self._context.still_valid:
                    self.is_over = True
                    return {"type": "http.disconnect"}
            return receiving.result()
        finally:
            receiving.cancel()


class AsgiErrorRewritingSend:
    """ASGI ``send`` wrapper that replaces the SDK's validation errors, which show internal classes, with plain text.

    Buffers the body of a refusal until it is complete.
    """

    def __init__(self, send: Any, largest: int) -> None:
        """Wrap ``send``; ``largest`` is the limit for bodies in bytes, for the error message."""
        self._send = send
        self._largest = largest
        self._start: Any = None
        self._body = b""

    async def __call__(self, message: Any) -> None:
        """Send an ASGI message, with the body of a refusal replaced."""
        if message["type"] == "http.response.start" and int(message["status"]) in {_BAD_REQUEST, _TOO_LARGE}:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._refuse(message)
        else:
            await self._send(message)

    async def _refuse(self, message: Any) -> None:
        too_large = int(self._start["status"]) == _TOO_LARGE
        body = _too_large_error(self._largest) if too_large else _replace_validation_error(self._body)
        replaced = {b"content-length"} | ({b"content-type"} if too_large else set())
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() not in replaced]
        headers += [(b"content-type", b"application/json")] if too_large else []
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})


def _too_large_error(largest: int) -> bytes:
    text = (
        f"the message exceeds {largest // MEBIBYTE} MiB, the limit for a call; split it into several calls, or "
        "import the data: `kgserve import`, or POST /api/memory/{store}/import"
    )
    return msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": {"code": _INVALID_REQUEST, "message": text}})


async def _read_ahead(receive: Any, limit: int) -> tuple[Any, bytes]:
    """Return a body, and a function that receives it once more; an empty body if it exceeds the limit or breaks off."""
    messages, size, more = deque[Any](), 0, True
    while more and size <= limit:
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        more = messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False)
    is_whole = size <= limit and messages[-1]["type"] == "http.request"
    body = b"".join(message.get("body", b"") for message in messages) if is_whole else b""

    async def receive_again() -> Any:
        return messages.popleft() if messages else await receive()

    return receive_again, body


async def _refuse_duplicate_key(send: Any, path: str) -> None:
    error = {"code": _INVALID_REQUEST, "message": f"{path}: occurs twice in the same object; send each key once"}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": _BAD_REQUEST, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _replace_validation_error(body: bytes) -> bytes:
    try:
        answer = decode_json(body, dict[str, Any])
        if not answer["error"]["message"].startswith(_VALIDATION_ERROR_PREFIX):
            return body
        answer["error"]["message"] = _INVALID_BODY_MESSAGE
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return body
    return msgspec.json.encode(answer)
