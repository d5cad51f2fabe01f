"""Telling clients that stores came, went, or got other settings: both eras have their own way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import anyio
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged

from kgserve.store.feeds import Feeds

MAX_LISTENERS = 256
_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"


class News:
    """Follows the feeds of a pool while `following` runs.

    In the stateless era clients listen with `subscriptions/listen`; in the handshake era those that opened the stream
    of their session are told there, and those that did not are told nothing.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._sessions: dict[str, ServerSession] = {}

    async def remember(self, context: ServerRequestContext[Any, Any], _: types.NotificationParams) -> None:
        """A session of the handshake era has begun."""
        key = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is not None:
            self._sessions[key] = context.session
            # The one place that learns of every end: deleted, idle for too long, cut off.
            context.session._connection.exit_stack.callback(self._sessions.pop, key, None)  # noqa: SLF001

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Passes news on until the end of the block, which also ends the streams of listeners."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        unlisten = self._feeds.listen(wake)
        task = asyncio.create_task(self._pass_on(changed))
        try:
            yield
        finally:
            unlisten()
            task.cancel()
            await asyncio.wait({task})

    def close(self) -> None:
        """End the streams of those who listen."""
        self.listen.close()

    async def _pass_on(self, changed: asyncio.Event) -> None:
        while await changed.wait():
            changed.clear()
            await self._bus.publish(ResourcesListChanged())
            await asyncio.gather(*map(_tell, list(self._sessions.values())))


async def _tell(session: ServerSession) -> None:
    with anyio.move_on_after(_SECONDS):
        await session.send_resource_list_changed()
