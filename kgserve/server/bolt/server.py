"""Bolt server: listens, and serves each connection with a limit on their number."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from kgserve.server.bolt.backend_interface import BoltBackend
from kgserve.server.bolt.connection import BoltConnection, BoltLimits
from kgserve.server.bolt.session import BoltConnectionAddresses

log = structlog.get_logger()

_FORCED_STOP_SECONDS = 2.0
_BACKLOG = 1024


class BoltServer:
    """Server of the Bolt protocol for a backend. Belongs to one event loop."""

    def __init__(
        self, backend: BoltBackend, limits: BoltLimits | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._backend = backend
        self._limits = limits or BoltLimits()
        self._tls = tls
        self._executor = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="bolt")
        self._numbers = itertools.count(1)
        self._connections: dict[BoltConnection, asyncio.Task[None]] = {}
        self._addresses: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._is_stopping = False

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """Port that the server listens on. Raises RuntimeError before `start`."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the Bolt server does not listen")
        return self._server.sockets[0].getsockname()[1]

    async def start(self, host: str, port: int) -> None:
        """Listen on an address; port 0 selects a free one. Raises OSError if it is in use."""
        await self.start_on(socket.create_server((host, port)))

    async def start_on(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is closed at the end."""
        self._server = await asyncio.start_server(
            self._accept,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=self._limits.handshake_timeout if self._tls else None,
            backlog=_BACKLOG,
        )

    async def stop(self) -> None:
        """Stop listening, let running work end for the time of the limits, then interrupt it."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        await self._end_connections(self._limits.stop_timeout, is_forced=False)
        await self._end_connections(_FORCED_STOP_SECONDS, is_forced=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _end_connections(self, seconds: float, *, is_forced: bool) -> None:
        for connection in list(self._connections):
            await connection.stop(is_forced=is_forced)
        if self._connections:
            await asyncio.wait(list(self._connections.values()), timeout=seconds)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        remote = _host_of(writer.get_extra_info("peername"))
        is_full = len(self._connections) >= self._limits.connections
        if self._is_stopping or is_full or self._addresses[remote] >= self._limits.connections_per_address:
            log.warning("bolt_connection_refused", remote=remote, connections=len(self._connections))
            writer.transport.abort()
            return
        # asyncio does this itself only for sockets whose protocol is named, which those of a bound listener lack.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        origin = BoltConnectionAddresses(
            connection_id=f"bolt-{next(self._numbers)}",
            remote=remote,
            local=_address_of(writer.get_extra_info("sockname")),
        )
        connection = BoltConnection(self._backend, self._limits, self._executor, (reader, writer), origin)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._connections[connection] = task
        self._addresses[remote] += 1
        try:
            await connection.serve()
        finally:
            del self._connections[connection]
            self._addresses[remote] -= 1
            if not self._addresses[remote]:
                del self._addresses[remote]


def _host_of(name: Any) -> str:
    return str(name[0]) if name else ""


def _address_of(name: Any) -> str:
    if not name:
        return ""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
