"""Telling clients of stores that came, went, or got other settings, and of resources that they subscribed to.

Both eras have their own way: in the stateless era clients listen with `subscriptions/listen`; in the handshake era
those that opened the stream of their session are told there, and those that did not are told nothing. Who is told is
who sees the store in question, with a key that is valid still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import anyio
import structlog
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ListenHandler, ResourcesListChanged, ResourceUpdated, ServerEvent

from kgserve.access.authentication import RequestContext
from kgserve.errors import InvalidInput, NotFound
from kgserve.mcp.calls import visit_of
from kgserve.mcp.uris import Place, place_of
from kgserve.mcp.watching import MAX_STORES, News, Watching
from kgserve.store.pool import StorePool

log = structlog.get_logger()

Context = ServerRequestContext[Any, Any]

MAX_LISTENERS = 256
MAX_LISTENERS_OF_A_KEY = 64
GATHERED_SECONDS = 0.25
"""What changes within so long is told once."""
_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"

_listening: ContextVar[Subscriber] = ContextVar("listening")
"""Whose stream is about to begin: the SDK's handler hands it to no bus."""


class _Session(NamedTuple):
    """A session of the handshake era; its own stream is reached through the request that began it."""

    stream: ServerSession
    subscriber: Subscriber


class Notifications:
    """Follows the stores of a pool while `following` runs."""

    def __init__(self, pool: StorePool) -> None:
        self._feeds = pool.feeds
        self._bus = _Bus()
        self._handler = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._sessions: dict[str, _Session] = {}
        self._listeners: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._some_changed = asyncio.Event()
        self._watching = Watching(pool)
        self._subscriptions = Subscriptions(self._watching)

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of the stateless era. Raises MCPError for one more than a key may have."""
        subscriber = Subscriber(visit_of(context))
        _listening.set(subscriber)  # for the time of the request: each is a task of its own
        uris = params.notifications.resource_subscriptions or []
        if len(uris) > MAX_SUBSCRIPTIONS:
            raise MCPError(types.INVALID_PARAMS, f"a listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        places = dict(_places(uris))
        with self._counted(subscriber.visit.caller.key_id):
            try:
                await self._subscriptions.add(subscriber, places)
                return await self._handler(context, _with_uris(params, list(places)))
            finally:
                self._subscriptions.end(subscriber)

    async def session_began(self, context: Context, _: types.NotificationParams) -> None:
        """Remember a session of the handshake era, until it ends."""
        self._session(context)

    async def subscribe(self, context: Context, uri: str, place: Place) -> None:
        """Tell a session of the handshake era of a resource from now on. Raises MCPError for one more than it may."""
        if (session := self._session(context)) is not None:
            await self._subscriptions.add(session.subscriber, {uri: place})

    def unsubscribe(self, context: Context, uri: str) -> None:
        """Tell it no longer."""
        if (session := self._session(context)) is not None:
            self._subscriptions.remove(session.subscriber, [uri])

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Notifies until the end of the block, which also ends the streams of listeners."""
        loop = asyncio.get_running_loop()

        def wake(store: str) -> None:
            loop.call_soon_threadsafe(self._add, store)

        self._watching.begin()
        unlisten = self._feeds.listen_by_name(wake)
        tasks = [asyncio.create_task(_again(work)) for work in (self._tell_of_stores, self._tell_of_resources)]
        try:
            yield
        finally:
            unlisten()
            self._watching.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @contextlib.contextmanager
    def _counted(self, key: str | None) -> Generator[None]:
        if key is None:
            yield
            return
        if self._listeners[key] >= MAX_LISTENERS_OF_A_KEY:
            refusal = f"a key may have {MAX_LISTENERS_OF_A_KEY} listeners; end another first"
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

    def _session(self, context: Context) -> _Session | None:
        key = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is None:
            return None
        if key not in self._sessions:
            self._sessions[key] = _Session(context.session, Subscriber(visit_of(context)))
            # The one place that learns of every end: deleted, idle for too long, cut off.
            context.session._connection.exit_stack.callback(self._session_ended, key)  # noqa: SLF001
        return self._sessions[key]

    def _session_ended(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            self._subscriptions.end(session.subscriber)

    def _add(self, store: str) -> None:
        self._changed.add(store)
        self._some_changed.set()
        self._watching.announced(store)

    async def _tell_of_stores(self) -> None:
        await self._some_changed.wait()
        self._some_changed.clear()
        stores, self._changed = self._changed, set()
        self._bus.concerned = stores
        await self._bus.publish(ResourcesListChanged())
        concerned = [each.stream for each in self._sessions.values() if _concerns(each.subscriber.visit, stores)]
        await asyncio.gather(*(_patiently(stream.send_resource_list_changed) for stream in concerned))

    async def _tell_of_resources(self) -> None:
        await self._watching.some_news.wait()
        await asyncio.sleep(GATHERED_SECONDS)
        news = await self._watching.news()
        await self._bus.tell(news)
        concerned = [
            _updated(each.stream, uris) for each in self._sessions.values() if (uris := each.subscriber.concerned(news))
        ]
        await asyncio.gather(*concerned)


class _Bus:
    """Tells a listener only what concerns a store that it sees. A bus as the SDK's handler wants it."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Subscriber, Callable[[ServerEvent], None]]] = {}
        self.concerned: set[str] = set()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """For the request that is being served; what ends it."""
        token = object()
        self._listeners[token] = _listening.get(), listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Tell those whom the stores `concerned` concern."""
        for subscriber, listener in list(self._listeners.values()):
            if _concerns(subscriber.visit, self.concerned):
                listener(event)
        await asyncio.sleep(0)  # lets the streams drain

    async def tell(self, news: News) -> None:
        """Tell each of what it subscribed to."""
        for subscriber, listener in list(self._listeners.values()):
            for uri in subscriber.concerned(news):
                listener(ResourceUpdated(uri))
        await asyncio.sleep(0)


def _concerns(visit: RequestContext, stores: set[str]) -> bool:
    return visit.still_valid and any(map(visit.caller.sees, stores))


def _places(uris: Iterable[str]) -> Generator[tuple[str, Place]]:
    """The places of the URIs that are ours. A listener's others are not acknowledged, which is how it hears of that."""
    for uri in uris:
        with contextlib.suppress(NotFound, InvalidInput):
            yield uri, place_of(uri)[0]


def _with_uris(
    params: types.SubscriptionsListenRequestParams, uris: list[str]
) -> types.SubscriptionsListenRequestParams:
    wanted = params.notifications.model_copy(update={"resource_subscriptions": uris})
    return params.model_copy(update={"notifications": wanted})


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """Work over and over, whatever happens."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("clients_not_told")


async def _updated(stream: ServerSession, uris: list[str]) -> None:
    async def send() -> None:
        for uri in uris:
            await stream.send_resource_updated(uri)

    await _patiently(send)


async def _patiently(send: Callable[[], Awaitable[None]]) -> None:
    """Send something to a session: nobody is waited for longer than a second, and who has just left not at all."""
    with anyio.move_on_after(_SECONDS), contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        await send()


MAX_SUBSCRIPTIONS = 100
"""Resources that one session or listener may subscribe to."""
MAX_SUBSCRIPTIONS_OF_A_KEY = 1_000


class Subscriber:
    """A session or a listener, with what it subscribed to."""

    def __init__(self, visit: RequestContext) -> None:
        self.visit = visit
        self.places: dict[str, Place] = {}

    def concerned(self, news: News) -> list[str]:
        """The URIs, as they were given, of what has changed; none for a key that is no longer valid."""
        found = [uri for uri, place in self.places.items() if self._is_news(place, news)]
        return found if found and self.visit.still_valid else []

    def _is_news(self, place: Place, news: News) -> bool:
        sees = self.visit.caller.sees
        if place.store is None:
            return any(map(sees, news.announced))
        return place in news.changed and sees(place.store)


class Subscriptions:
    """All of them, within what a session and a key may have."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._of_keys: Counter[str] = Counter()

    async def add(self, subscriber: Subscriber, places: Mapping[str, Place]) -> None:
        """Have a subscriber told of more, from now on. Raises MCPError when it would be too many."""
        new = {uri: place for uri, place in places.items() if uri not in subscriber.places}
        self._check(subscriber, new)
        subscriber.places |= new
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] += len(new)
        await self._watching.add(new.values())

    def remove(self, subscriber: Subscriber, uris: Collection[str]) -> None:
        """Have a subscriber no longer told of some; those that it did not subscribe to are passed over."""
        gone = [subscriber.places.pop(uri) for uri in list(uris) if uri in subscriber.places]
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] -= len(gone)
            self._of_keys += Counter()  # keeps those that are positive
        self._watching.remove(gone)

    def end(self, subscriber: Subscriber) -> None:
        """It is told of nothing any longer."""
        self.remove(subscriber, subscriber.places)

    def _check(self, subscriber: Subscriber, new: Mapping[str, Place]) -> None:
        if len(subscriber.places) + len(new) > MAX_SUBSCRIPTIONS:
            raise _too_many(f"a session or listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        key = subscriber.visit.caller.key_id
        if key is not None and self._of_keys[key] + len(new) > MAX_SUBSCRIPTIONS_OF_A_KEY:
            raise _too_many(f"a key may have {MAX_SUBSCRIPTIONS_OF_A_KEY:,} subscriptions to resources")
        if not self._watching.has_room(new.values()):
            raise _too_many(f"resources of {MAX_STORES} stores may be subscribed to at once")


def _too_many(limit: str) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, f"{limit}; end another first")
