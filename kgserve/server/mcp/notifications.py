"""Telling clients of stores that came, went, or got other settings, and of resources that they subscribed to.

Both eras have their own way: in the stateless era clients listen with `subscriptions/listen`; in the handshake era
those that opened the stream of their session are told there, and those that did not are told nothing. Who is told is
who sees the store in question, with a key that is valid still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from typing import Any, NamedTuple, get_args

import anyio
import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from mcp import MCPError, types
from mcp.server.session import ServerSession
from mcp.server.subscriptions import ListenHandler, ResourcesListChanged, ResourceUpdated, ServerEvent

from kgserve.admin.metrics import standing_of
from kgserve.errors import InvalidInput, KgserveError, NotFound, OwnerUnreachable, ServedElsewhere
from kgserve.graph.handle import Graphs
from kgserve.platform.access.authentication import RequestContext
from kgserve.server.admission import Admission
from kgserve.server.mcp.calls import Context, default_store, visit_of
from kgserve.server.mcp.replies import counted
from kgserve.server.mcp.resources import ResourceAddress, place_of
from kgserve.storage.changefeed import ChangeFeed, Wake
from kgserve.storage.journal.tail import Tail
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.events import Position, StoreEvent, Told
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow
from kgserve.stores.access import Stores

MAX_SUBSCRIBED_STORES = 256
"""Stores that are followed at once: of each that is, the newest commits are kept in memory."""


class News(NamedTuple):
    """The places that have changed, and the stores that came, went, or got other settings."""

    changed: set[ResourceAddress]
    announced: set[str]


class _Store:
    """What is watched in a store, and its commits, unless it is not there."""

    def __init__(self) -> None:
        self.watched: Counter[ResourceAddress] = Counter()
        self.commits: StoreListener | None = None

    def close(self) -> None:
        """Follow it no longer."""
        if self.commits is not None:
            self.commits.close()
            self.commits = None


class Watching:
    """Which of the resources that somebody subscribed to have changed, told by the feeds of their stores.

    For one event loop, that calls `begin` first. What blocks runs in a thread of its own.
    """

    def __init__(self, pool: Stores) -> None:
        self._pool = pool
        self._thread = CapacityLimiter(1)
        self._stores: dict[str, _Store] = {}
        self._written_to: set[str] = set()
        self._announced: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.some_news = asyncio.Event()

    def begin(self) -> None:
        """Remember the loop that is to be woken."""
        self._loop = asyncio.get_running_loop()

    def has_room(self, places: Iterable[ResourceAddress]) -> bool:
        """Whether the stores of these places can be followed as well."""
        return len(self._stores.keys() | {place.store for place in places if place.store}) <= MAX_SUBSCRIBED_STORES

    async def add(self, places: Iterable[ResourceAddress]) -> None:
        """Watch these as well, from now on. A store that is not there is looked for when one is made."""
        for place in (each for each in places if each.store):
            self._stores.setdefault(place.store or "", _Store()).watched[place] += 1
        for name in {place.store for place in places if place.store}:
            await self._follow(name)

    def remove(self, places: Iterable[ResourceAddress]) -> None:
        """Watch these no longer, unless somebody else does."""
        for place in places:
            if place.store and (store := self._stores.get(place.store)) is not None:
                store.watched[place] -= 1
                store.watched += Counter()  # keeps those that are positive
                if not store.watched:
                    self._stores.pop(place.store).close()

    def announced(self, store: str) -> None:
        """A store was made, dropped, or got other settings."""
        self._announced.add(store)
        self.some_news.set()

    async def news(self) -> News:
        """What has changed since the last time."""
        self.some_news.clear()
        written, self._written_to = self._written_to, set()
        announced, self._announced = self._announced, set()
        changed = {ResourceAddress(name) for name in announced}
        for name in announced:
            changed |= await self._looked_after(name)
        for name in written - announced:
            changed |= await self._written(name)
        return News(changed, announced)

    def close(self) -> None:
        """Follow nothing any longer."""
        while self._stores:
            self._stores.popitem()[1].close()

    async def _looked_after(self, name: str) -> set[ResourceAddress]:
        """What changed in a store that was announced: all of it, unless it is the one that is followed."""
        store = self._stores.get(name)
        if store is None:
            return set()
        if store.commits is not None and not store.commits.feed.closed:
            return await self._written(name)
        store.close()
        await self._follow(name)  # before it is told, so that nothing is missed
        return {*store.watched}

    async def _written(self, name: str) -> set[ResourceAddress]:
        store = self._stores.get(name)
        if store is None or (commits := store.commits) is None:
            return set()
        if commits.feed.closed and not commits.feed.dropped:
            return await self._looked_after(name)  # it has moved to another node
        wanted = frozenset(place.node for place in store.watched if place.node is not None)
        try:
            nodes = await anyio.to_thread.run_sync(lambda: commits.since(wanted), limiter=self._thread)
        except KgserveError:
            return set()  # it is gone, which is announced
        if nodes is None:
            return set()
        return {
            ResourceAddress(name),
            ResourceAddress(name, remembered=True),
            *(ResourceAddress(name, node) for node in nodes),
        }

    async def _follow(self, name: str) -> None:
        if (store := self._stores.get(name)) is None or store.commits is not None:
            return
        try:
            commits = await anyio.to_thread.run_sync(lambda: self._commits(name), limiter=self._thread)
        except (KgserveError, FileNotFoundError):
            return
        if commits is None:
            return
        if self._stores.get(name) is not store or store.commits is not None:  # meanwhile
            commits.close()
        else:
            store.commits = commits

    def _commits(self, name: str) -> StoreListener | None:
        try:
            self._pool.require_files(name)
        except NotFound:
            return None
        except (ServedElsewhere, OwnerUnreachable):
            # While a copy of it is open, that follows.
            self._pool.release(self._pool.acquire(name, at_least=0))
        return StoreListener(self._pool.feeds.of(name), self._waker(name))

    def _waker(self, name: str) -> Callable[[], None]:
        loop = self._loop

        def wake() -> None:
            if loop is not None:
                loop.call_soon_threadsafe(self._wake, name)

        return wake

    def _wake(self, name: str) -> None:
        self._written_to.add(name)
        self.some_news.set()


class StoreListener:
    """One listener's way through the commits of a store, from now on. For one thread at a time.

    A node is touched by what makes, changes or takes away the node itself or an edge at it.
    """

    def __init__(self, feed: ChangeFeed, wake: Wake) -> None:
        """``wake`` is called by any thread when there may be news. Blocks a little. Raises NotFound, JournalDamaged."""
        self.feed = feed
        self._tail = Tail(feed.layout.journal)
        self._unlisten = feed.listen(wake)
        try:
            self._seen = feed.latest
        except BaseException:
            self._unlisten()
            raise

    def since(self, wanted: AbstractSet[str]) -> set[str] | None:
        """Those of the ``wanted`` nodes that were touched since the last look; None when no node was.

        All of them when the commits can no longer be read: who looks again needlessly misses nothing. Blocks. Raises
        NotFound when the store is gone.
        """
        latest, seen = self.feed.latest, self._seen
        if latest <= seen:
            return None
        try:
            return self._read_to(latest, wanted)
        except (KgserveError, FileNotFoundError):
            return set(wanted)
        finally:
            self._seen = latest

    def close(self) -> None:
        """Listen no longer."""
        self._unlisten()

    def _read_to(self, latest: int, wanted: AbstractSet[str]) -> set[str] | None:
        found: set[str] = set()
        is_any = False
        while self._seen < latest and (len(found) < len(wanted) or not is_any):
            for sequence, touched in self._commits(latest):
                found.update(wanted & touched)
                is_any = is_any or bool(touched)
                self._seen = sequence
        return found if is_any else None

    def _commits(self, latest: int) -> Iterator[tuple[int, set[str]]]:
        """The next commits, with the nodes that each touched."""
        commits = self.feed.recent(Position.after(self._seen))
        if not commits:
            for change in self._tail.page(self._seen, latest):
                yield change.sequence, _of_change(change)
            return
        for commit in commits:
            ids = [_of_event(event) for event in commit.events]
            if None in ids:  # too many rows for an event each
                [change] = self._tail.read(commit.sequence, commit.sequence)
                yield commit.sequence, _of_change(change)
            else:
                yield commit.sequence, {node_id for some in ids for node_id in some or ()}


def _of_event(event: StoreEvent) -> tuple[str, ...] | None:
    found: tuple[str, ...] | None = None
    match event.subject:
        case NodeRow() as row:
            found = (row.id,)
        case EdgeRow() as row:
            found = _ends(row.key)
        case LinkRow() as row:
            found = (row.edge.source,)
        case LinkKey() as key:
            found = (key.edge[0],)
        case str() as node_id:
            found = (node_id,)
        case Told():
            found = ()  # its row is told of, too
        case tuple() as key:
            found = _ends(key)
        case _:
            pass
    return found


def _of_change(change: ChangeSet) -> set[str]:
    touched = set(change.node_ids())
    for key in (*(row.key for row in (*change.edges_created, *change.edges_updated)), *change.edges_deleted):
        touched.update(_ends(key))
    touched.update(row.edge.source for row in (*change.links_created, *change.links_updated))
    touched.update(key.edge[0] for key in change.links_deleted)
    return touched


def _ends(key: EdgeKey) -> tuple[str, str]:
    return key[0], key[1]


log = structlog.get_logger()

MAX_LISTENERS = 256
MAX_LISTENERS_PER_KEY = 64
NOTIFICATION_DEBOUNCE_SECONDS = 0.25
"""What changes within so long is told once."""
_SEND_TIMEOUT_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"

_listening: ContextVar[Subscriber] = ContextVar("listening")
"""Whose stream is about to begin: the SDK's handler hands it to no bus."""


class Notifications:
    """Follows the stores of a pool while `following` runs."""

    def __init__(self, pool: Stores) -> None:
        self._feeds = pool.feeds
        self._bus = _Bus()
        self._handler = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._sessions: dict[str, Subscriber] = {}
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

    async def subscribe(self, context: Context, uri: str, place: ResourceAddress) -> None:
        """Tell a session of the handshake era of a resource from now on. Raises MCPError for one more than it may."""
        if (session := self._session(context)) is not None:
            await self._subscriptions.add(session, {uri: place})

    def unsubscribe(self, context: Context, uri: str) -> None:
        """Tell it no longer."""
        if (session := self._session(context)) is not None:
            self._subscriptions.remove(session, [uri])

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
        if self._listeners[key] >= MAX_LISTENERS_PER_KEY:
            refusal = f"a key may have {MAX_LISTENERS_PER_KEY} listeners; end another first"
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

    def _session(self, context: Context) -> Subscriber | None:
        key = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is None:
            return None
        if key not in self._sessions:
            self._sessions[key] = Subscriber(visit_of(context), context.session)
            # The one place that learns of every end: deleted, idle for too long, cut off.
            context.session._connection.exit_stack.callback(self._session_ended, key)  # noqa: SLF001
        return self._sessions[key]

    def _session_ended(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            self._subscriptions.end(session)

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
        concerned = [each.stream for each in self._sessions.values() if _concerns(each.visit, stores)]
        await asyncio.gather(*(_patiently(stream.send_resource_list_changed) for stream in concerned if stream))

    async def _tell_of_resources(self) -> None:
        await self._watching.some_news.wait()
        await asyncio.sleep(NOTIFICATION_DEBOUNCE_SECONDS)
        news = await self._watching.news()
        await self._bus.tell(news)
        concerned = [
            _updated(each.stream, uris)
            for each in self._sessions.values()
            if each.stream and (uris := each.concerned(news))
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


def _places(uris: Iterable[str]) -> Generator[tuple[str, ResourceAddress]]:
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
    with (
        anyio.move_on_after(_SEND_TIMEOUT_SECONDS),
        contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError),
    ):
        await send()


MAX_SUBSCRIPTIONS = 100
"""Resources that one session or listener may subscribe to."""
MAX_SUBSCRIPTIONS_PER_KEY = 1_000


class Subscriber:
    """A session or a listener, with what it subscribed to.

    A session of the handshake era has its own stream, which is reached through the request that began it.
    """

    def __init__(self, visit: RequestContext, stream: ServerSession | None = None) -> None:
        self.visit = visit
        self.stream = stream
        self.places: dict[str, ResourceAddress] = {}

    def concerned(self, news: News) -> list[str]:
        """The URIs, as they were given, of what has changed; none for a key that is no longer valid."""
        found = [uri for uri, place in self.places.items() if self._is_news(place, news)]
        return found if found and self.visit.still_valid else []

    def _is_news(self, place: ResourceAddress, news: News) -> bool:
        sees = self.visit.caller.sees
        if place.store is None:
            return any(map(sees, news.announced))
        return place in news.changed and sees(place.store)


class Subscriptions:
    """All of them, within what a session and a key may have."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._of_keys: Counter[str] = Counter()

    async def add(self, subscriber: Subscriber, places: Mapping[str, ResourceAddress]) -> None:
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

    def _check(self, subscriber: Subscriber, new: Mapping[str, ResourceAddress]) -> None:
        if len(subscriber.places) + len(new) > MAX_SUBSCRIPTIONS:
            raise _too_many(f"a session or listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        key = subscriber.visit.caller.key_id
        if key is not None and self._of_keys[key] + len(new) > MAX_SUBSCRIPTIONS_PER_KEY:
            raise _too_many(f"a key may have {MAX_SUBSCRIPTIONS_PER_KEY:,} subscriptions to resources")
        if not self._watching.has_room(new.values()):
            raise _too_many(f"resources of {MAX_SUBSCRIBED_STORES} stores may be subscribed to at once")


def _too_many(limit: str) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, f"{limit}; end another first")


LOG_LEVELS: tuple[types.LoggingLevel, ...] = get_args(types.LoggingLevel)
"""The least first."""
INDEXES_LOGGER = "kgserve.indexes"
SEARCH_TOOL_NAMES = frozenset({"search_knowledge", "search_batch", "get_context"})
_INDEX_NAMES = ("keyword", "vector")
_LOG_LEVEL_STATE_KEY = "kgserve.log_level"
_LOG_LEVEL_META_KEY = "io.modelcontextprotocol/logLevel"


class Notice(NamedTuple):
    """Something to be told, and how bad it is."""

    level: types.LoggingLevel
    message: str


class Notices:
    """Log messages for clients that want them: what is wrong with the indexes that a call of theirs was answered from.

    In the handshake era a client says once from which level on (`logging/setLevel`), in the stateless era with each
    call. Nothing is sent to who has not asked, and nothing of what the server does for others.
    """

    def __init__(self, graphs: Graphs, threads: Admission) -> None:
        self._graphs = graphs
        self._threads = threads

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Remember from which level on a session of the handshake era wants to be told."""
        _state(context)[_LOG_LEVEL_STATE_KEY] = params.level
        return types.EmptyResult()

    async def after(self, context: Context, params: types.CallToolRequestParams) -> None:
        """Tell what concerns a call that was just answered, on the stream of its answer."""
        level = _wanted(context)
        if level is None or params.name not in SEARCH_TOOL_NAMES:
            return
        given = params.arguments or {}
        store = given.get("index") or given.get("store") or default_store(context)
        if not isinstance(store, str):
            return
        graphs = self._graphs.seen_by(visit_of(context).caller)
        try:
            for notice in await self._threads.read(lambda: list(_of_store(graphs, store))):
                if LOG_LEVELS.index(notice.level) >= LOG_LEVELS.index(level):
                    await _send(context, notice, store)
        except Exception:  # the call has its answer
            log.exception("client_not_told", store=store)


def _of_store(graphs: Graphs, name: str) -> Iterator[Notice]:
    indexer = graphs.indexer
    if indexer is None:
        return
    try:
        with graphs.graph(name).lease() as store:
            found = standing_of(store, indexer, None)
    except KgserveError:
        return  # the answer of the call says why
    for view in _INDEX_NAMES:
        if found.failing.get(view):
            yield Notice("error", f"the {view} index fails; searches use what it has so far, the server's log says why")
        if lag := found.lags.get(view):
            behind = counted(lag, "commit")
            yield Notice("notice", f"the {view} index is {behind} behind; at_least makes a search wait for one")
    if indexer.embedder.degraded:
        yield Notice("warning", "there is no embedding model: meaning is judged by words and letters alone")


def _wanted(context: Context) -> types.LoggingLevel | None:
    """From which level on the caller wants to be told; None when it has not asked."""
    asked: Any = (
        (context.meta or {}).get(_LOG_LEVEL_META_KEY) if context.protocol_version >= "2026" else _level(context)
    )
    return asked if asked in LOG_LEVELS else None


def _level(context: Context) -> Any:
    return _state(context).get(_LOG_LEVEL_STATE_KEY)


def _state(context: Context) -> dict[str, Any]:
    """What is kept of a session until it ends."""
    return context.session._connection.state  # noqa: SLF001


async def _send(context: Context, notice: Notice, store: str) -> None:
    data: Mapping[str, str] = {"store": store, "message": notice.message}
    params = types.LoggingMessageNotificationParams(level=notice.level, logger=INDEXES_LOGGER, data=data)
    await context.session.send_notification(
        types.LoggingMessageNotification(params=params), related_request_id=context.request_id
    )
