"""Bolt as a part of the server's application."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from kgserve.platform.settings import Settings
from kgserve.server.bolt.backend_interface import BoltBackend
from kgserve.server.bolt.connection import BoltLimits
from kgserve.server.bolt.server import BoltServer
from kgserve.server.http.cross_site_guard import AllowedOrigins


class BoltService:
    """Bolt service of the application: serves the protocol on a bound socket while the application runs."""

    def __init__(self, settings: Settings, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._tls = tls
        self._limits = BoltLimits(
            connections=settings.max_connections,
            connections_per_address=settings.max_connections_per_address,
            stop_timeout=settings.shutdown_grace / 4,
            websocket_origins=AllowedOrigins.parse(settings.cors_origins).listed,
        )

    @asynccontextmanager
    async def serving(self, backend: BoltBackend) -> AsyncGenerator[None]:
        """Serve a backend within a block."""
        server = BoltServer(backend, self._limits, self._tls)
        await server.start_on(self._listener)
        try:
            yield
        finally:
            await server.stop()
