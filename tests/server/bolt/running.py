"""A Bolt server in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from kgserve.server.bolt.backend_interface import BoltBackend
from kgserve.server.bolt.connection import BoltLimits
from kgserve.server.bolt.server import BoltServer

_T = TypeVar("_T")


class RunningServer(NamedTuple):
    """Server, its port and its event loop."""

    server: BoltServer
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"bolt://127.0.0.1:{self.port}"

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)


@contextmanager
def running(
    backend: BoltBackend, limits: BoltLimits | None = None, tls: ssl.SSLContext | None = None
) -> Generator[RunningServer]:
    """Serve a backend on a free port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bolt server of a test")
    thread.start()
    server = BoltServer(backend, limits, tls)
    running_server = RunningServer(server, 0, loop)
    try:
        running_server.run(server.start("127.0.0.1", 0))
        yield running_server._replace(port=server.port)
    finally:
        running_server.run(server.stop())
        running_server.run(_settle())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _settle() -> None:
    """Let transports that are closing end."""
    await asyncio.sleep(0.01)
