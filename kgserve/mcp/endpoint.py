"""The ASGI application at /mcp. It is there at once; the SDK is imported, in a thread, for the first request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import structlog

from kgserve.errors import Unavailable
from kgserve.mcp.refusals import InWords
from kgserve.mcp.work import Work

if TYPE_CHECKING:
    from kgserve.mcp.server import Served
    from kgserve.store.pool import StorePool
    from kgserve.views.history import Historian
    from kgserve.views.indexer import Indexer

log = structlog.get_logger()


class McpEndpoint:
    """Serves requests while `running` runs; the first ones wait for the import."""

    def __init__(self, pool: StorePool, indexer: Indexer | None, historian: Historian | None) -> None:
        self._work = Work(pool, indexer, historian)
        self._patience = pool.settings.shutdown_grace / 4
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._served: asyncio.Future[Served] | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI entry, for the types of any framework. Raises Unavailable when the server is stopping."""
        if self._served is None or self._stopping.is_set():
            raise Unavailable("the server is stopping")
        self._wanted.set()
        served = await asyncio.shield(self._served)
        # Blanks around a value are no part of it, and uvicorn's parser leaves those at the end; the SDK compares.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope["user"] = served.user_of(scope["state"]["caller"])
        with self._counted(waits=scope["method"] == "GET"):
            await served.manager.handle_request(scope, receive, InWords(send))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serves until the end of the block."""
        self._served = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(self._served), name="mcp")
        try:
            yield
        finally:
            self.stop()
            await asyncio.wait({task})

    def stop(self) -> None:
        """Take no more requests; end the streams of listeners now, and sessions once their calls are answered."""
        self._stopping.set()
        self._wanted.set()
        if self._served is not None and self._served.done() and not self._served.exception():
            self._served.result().news.close()

    async def _run(self, ready: asyncio.Future[Served]) -> None:
        await self._wanted.wait()
        if self._stopping.is_set():
            ready.set_exception(Unavailable("the server is stopping"))
            ready.exception()
            return
        try:
            served = await asyncio.to_thread(_load, self._work)
            async with served.running():
                ready.set_result(served)
                await self._stopping.wait()
                if self._running:
                    await asyncio.wait(self._running, timeout=self._patience)
        except Exception as error:
            log.exception("mcp_failed")
            if not ready.done():
                ready.set_exception(error)
                ready.exception()

    @contextlib.contextmanager
    def _counted(self, *, waits: bool) -> Generator[None]:
        """Counts requests that will be answered; those that wait for news need not be waited for."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if not waits:
            self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)


def _load(work: Work) -> Served:
    return cast("type[Served]", import_module("kgserve.mcp.server").Served)(work)
