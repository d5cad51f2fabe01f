"""Proxy between bridge and server that breaks the connection just before an answer to an executed request."""

from __future__ import annotations

import selectors
import socket
from contextlib import AbstractContextManager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from urllib.parse import urlsplit

from typing_extensions import override

from tests.servers import served


class CuttingProxy(ThreadingTCPServer):
    """TCP proxy that breaks the connection at the result of the first call of ``tool``; ``url`` is its address."""

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.server = urlsplit(url).hostname, urlsplit(url).port
        self.cut_at("")

    def cut_at(self, tool: str) -> None:
        """Break the connection at the next first call of a tool, and count its calls."""
        self.tool = f'"name":"{tool}"'.encode()
        self.cuts = self.calls = 0


def _ready(*ends: socket.socket) -> list[socket.socket]:
    """Wait for readable sockets and return them; `select` is limited to descriptors below 1,024."""
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select()}
        return [end for end in ends if end.fileno() in ready]


class _Connection(BaseRequestHandler):
    @override
    def handle(self) -> None:
        wire = self.server
        assert isinstance(wire, CuttingProxy)
        near: socket.socket = self.request
        with socket.create_connection(wire.server) as far, suppress(OSError):
            answer: bytes | None = None
            while True:
                for ready in _ready(near, far):
                    if not (data := ready.recv(65536)):
                        return
                    if ready is near and wire.tool in data:
                        wire.calls += 1
                        answer = b"" if wire.calls == 1 else None
                    if ready is near or answer is None:
                        (far if ready is near else near).sendall(data)
                    elif b'"result"' in (answer := answer + data):
                        wire.cuts += 1
                        return


def cutting(url: str) -> AbstractContextManager[CuttingProxy]:
    """Return such a proxy as a context manager."""
    return served(CuttingProxy(url))
