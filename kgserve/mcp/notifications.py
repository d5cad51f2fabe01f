"""Telling clients that stores came, went, or got other settings: both eras have their own way."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from typing import Any

import anyio
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ServerEvent

from kgserve.access.authentication import RequestContext
from kgserve.mcp.calls import visit_of
from kgserve.store.feeds import Feeds

MAX_LISTENERS = 256
MAX_LISTENERS_OF_A_KEY = 64
_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"

_listening: ContextVar[RequestContext] = ContextVar("listening")
"""The request whose stream is about to begin: the SDK's handler hands it to no bus."""


class Notifications:
    """Follows the feeds of a pool while `following` runs.

    In the stateless era clients listen with `subscriptions/listen`; in the handshake era those that opened the stream
    of their session are told there, and those that did not are told nothing. Who is told is who sees the store in
    question, with a key that is valid still.
    """

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._bus = _Bus()
        self._handler = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._sessions: dict[str, tuple[ServerSession, RequestContext]] = {}
        self._listeners: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._some_changed = asyncio.Event()

    async def listen(
        self, context: ServerRequestContext[Any, Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of the stateless era. Raises MCPError for one more than a key may have."""
        visit = visit_of(context)
        _listening.set(visit)  # for the time of the request: each is a task of its own
        with self._counted(visit.caller.key_id):
            return await self._handler(context, params)

    async def session_began(self, context: ServerRequestContext[Any, Any], _: types.NotificationParams) -> None:
        """Remember a session of the handshake era, until it ends."""
        key = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is not None:
            self._sessions[key] = context.session, visit_of(context)
            # The one place that learns of every end: deleted, idle for too long, cut off.
            context.session._connection.exit_stack.callback(self._sessions.pop, key, None)  # noqa: SLF001

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Notifies until the end of the block, which also ends the streams of listeners."""
        loop = asyncio.get_running_loop()

        def wake(store: str) -> None:
            loop.call_soon_threadsafe(self._add, store)

        unlisten = self._feeds.listen_by_name(wake)
        task = asyncio.create_task(self._notify_all())
        try:
            yield
        finally:
            unlisten()
            task.cancel()
            await asyncio.wait({task})

    @contextlib.contextmanager
    def _counted(self, key: str | None) -> Generator[None]:
        if key is None:
            yield
            return
        if self._listeners[key] >= MAX_LISTENERS_OF_A_KEY:
            refusal = f"a key may have {MAX_LISTENERS_OF_A_KEY} subscriptions; end another first"
            raise MCPError(types.INTERNAL_ERROR, refusal)
        self._listeners[key] += 1
        try:
            yield
        finally:
            self._listeners[key] -= 1
            self._listeners += Counter()  # keeps those that are positive

    def close(self) -> None:
        """End the streams of those who listen."""
        self._handler.close()

    def _add(self, store: str) -> None:
        self._changed.add(store)
        self._some_changed.set()

    async def _notify_all(self) -> None:
        while True:
            await self._some_changed.wait()
            self._some_changed.clear()
            stores, self._changed = self._changed, set()
            self._bus.concerned = stores
            await self._bus.publish(ResourcesListChanged())
            concerned = [session for session, visit in self._sessions.values() if _concerns(visit, stores)]
            await asyncio.gather(*map(_notify, concerned))


class _Bus(InMemorySubscriptionBus):
    """Tells a listener only what concerns a store that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.concerned: set[str] = set()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """As the SDK's, for the request that is being served."""
        visit = _listening.get()

        def choose(event: ServerEvent) -> None:
            if _concerns(visit, self.concerned):
                listener(event)

        return super().subscribe(choose)


def _concerns(visit: RequestContext, stores: set[str]) -> bool:
    return visit.still_valid and any(map(visit.caller.sees, stores))


async def _notify(session: ServerSession) -> None:
    with anyio.move_on_after(_SECONDS):
        await session.send_resource_list_changed()
