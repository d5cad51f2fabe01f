"""Forwarded requests whose response is interrupted."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import ApiKeyFileCache, Authenticator, RequestContext
from kgserve.platform.settings import Settings
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.http.forwarding_middleware import ForwardingMiddleware
from kgserve.stores.local_placement import StorePlacement

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.types import Message, Receive, Scope, Send

SHORT, LONG = 1_000, 1_000_000


class _ForeignPlacement(StorePlacement):
    """Placement in which another node serves every store."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, Settings(data_dir=folder))
        self._url = url

    @override
    def find_redirect(self, name: str) -> ServedElsewhere | None:
        return ServedElsewhere(f"store {name!r} is elsewhere", "other", self._url)

    @override
    def token_of(self, node: str) -> str:
        return f"token of {node}"


def test_interrupted_short_forward_is_retried(tmp_path: Path) -> None:
    sent = asyncio.run(_passed_on(tmp_path, SHORT))
    assert [message.get("status") for message in sent] == [HTTPStatus.OK, None]
    assert sent[1]["body"] == b"from here"


def test_interrupted_long_forward_is_not_completed(tmp_path: Path) -> None:
    sent: list[Any] = []
    with pytest.raises(Unavailable, match="other"):
        asyncio.run(_passed_on(tmp_path, LONG, sent.append))
    assert sent[0]["status"] == HTTPStatus.OK
    assert all(message.get("more_body") for message in sent[1:])


async def _passed_on(folder: Path, length: int, take: Callable[[Any], None] | None = None) -> list[Any]:
    """Return the messages to a caller when a node announces ``length`` bytes and sends half of them."""
    sent: list[Any] = []
    take = take or sent.append

    async def breaking_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + b"x" * (length // 2))
        await writer.drain()
        writer.close()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"from here", "more_body": False})

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        take(message)

    authenticator = Authenticator(Settings(data_dir=folder), ApiKeyFileCache(folder))
    context = RequestContext(authenticator, AuditLog(folder), "request", "GET", "127.0.0.1")
    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/api/memory/far/nodes/1",
        "raw_path": b"/api/memory/far/nodes/1",
        "query_string": b"",
        "headers": [(b"kgserve-no-redirect", b"1")],
        "state": {"request_context": context},
    }
    async with await asyncio.start_server(breaking_off, "127.0.0.1", 0) as server:
        forwarder = ClusterNodeHttpClient(
            _ForeignPlacement(folder, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        )
        try:
            await asyncio.wait_for(ForwardingMiddleware(app, forwarder)(scope, receive, send), 30)
        finally:
            await forwarder.close()
    return sent
