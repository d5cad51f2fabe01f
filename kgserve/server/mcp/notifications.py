"""Notifications to MCP clients: created, dropped and reconfigured stores, changed resources, and log messages.

Stateless protocol revisions use `subscriptions/listen`. Session-based revisions use the stream of the session; clients
that did not open it get no notifications. A client is notified only about stores that it may access, and only while its
key is valid.
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

from kgserve.admin.metrics import measure_projection_lag
from kgserve.errors import InvalidInput, KgserveError, NotFound, OwnerUnreachable, ServedElsewhere
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.authentication import RequestContext
from kgserve.server.admission import AdmissionControl
from kgserve.server.mcp.resource_handlers import ParsedResourceUri, parse_mcp_resource_uri
from kgserve.server.mcp.tool_calls import Context, get_connection_default_store, get_mcp_request_access_context
from kgserve.server.mcp.tool_replies import format_count
from kgserve.storage.changefeed import ChangeFeed, WakeCallback
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_feed_events import FeedPosition, MemoryEventData, StoreEvent
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow, EdgeKey, EdgeRow, NodeRow
from kgserve.stores.scoped_stores import StoreRegistry, replica_of_any_age

MAX_SUBSCRIBED_STORES = 256
"""Maximum number of followed stores; the newest commits of each are kept in memory."""


class ResourceChangeNotification(NamedTuple):
    """Notification of changed resources, and of stores that were created, dropped or reconfigured."""

    changed: set[ParsedResourceUri]
    announced: set[str]


class _WatchedStore:
    """Watched resources of a store, and the listener to its commits; None if the store does not exist."""

    def __init__(self) -> None:
        self.watched: Counter[ParsedResourceUri] = Counter()
        self.commits: NewCommitReader | None = None

    def close(self) -> None:
        """Stop following the store."""
        if self.commits is not None:
            self.commits.close()
            self.commits = None


class ResourceWatcher:
    """Watcher that detects changes to subscribed resources, based on the change feeds of their stores.

    Belongs to one event loop, which calls `begin` first. Blocking work runs in a thread of its own.
    """

    def __init__(self, pool: StoreRegistry) -> None:
        self._pool = pool
        self._thread = CapacityLimiter(1)
        self._stores: dict[str, _WatchedStore] = {}
        self._written_to: set[str] = set()
        self._announced: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.has_changes = asyncio.Event()

    def begin(self) -> None:
        """Bind to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def has_capacity(self, places: Iterable[ParsedResourceUri]) -> bool:
        """Return whether the stores of these resources can be followed in addition."""
        return len(self._stores.keys() | {place.store for place in places if place.store}) <= MAX_SUBSCRIBED_STORES

    async def add(self, places: Iterable[ParsedResourceUri]) -> None:
        """Watch further resources from now on. A store that does not exist is followed once it is created."""
        for place in (each for each in places if each.store):
            self._stores.setdefault(place.store or "", _WatchedStore()).watched[place] += 1
        for name in {place.store for place in places if place.store}:
            await self._follow(name)

    def remove(self, places: Iterable[ParsedResourceUri]) -> None:
        """Stop watching these resources, unless another subscriber watches them."""
        for place in places:
            if place.store and (store := self._stores.get(place.store)) is not None:
                store.watched[place] -= 1
                store.watched += Counter()  # removes counts of 0
                if not store.watched:
                    self._stores.pop(place.store).close()

    def record_store_change(self, store: str) -> None:
        """Record that a store was created, dropped or reconfigured."""
        self._announced.add(store)
        self.has_changes.set()

    async def take_changes(self) -> ResourceChangeNotification:
        """Return the changes since the last call."""
        self.has_changes.clear()
        written, self._written_to = self._written_to, set()
        announced, self._announced = self._announced, set()
        changed = {ParsedResourceUri(name) for name in announced}
        for name in announced:
            changed |= await self._announced_changes(name)
        for name in written - announced:
            changed |= await self._written_changes(name)
        return ResourceChangeNotification(changed, announced)

    def close(self) -> None:
        """Stop following all stores."""
        while self._stores:
            self._stores.popitem()[1].close()

    async def _announced_changes(self, name: str) -> set[ParsedResourceUri]:
        """Return the changes of an announced store: all of its resources if it was created again."""
        store = self._stores.get(name)
        if store is None:
            return set()
        if store.commits is not None and not store.commits.feed.closed:
            return await self._written_changes(name)
        store.close()
        await self._follow(name)  # before the notification, so that no change is missed
        return {*store.watched}

    async def _written_changes(self, name: str) -> set[ParsedResourceUri]:
        store = self._stores.get(name)
        if store is None or (commits := store.commits) is None:
            return set()
        if commits.feed.closed and not commits.feed.dropped:
            return await self._announced_changes(name)  # the store has moved to another node
        wanted = frozenset(place.node for place in store.watched if place.node is not None)
        try:
            nodes = await anyio.to_thread.run_sync(lambda: commits.touched_nodes(wanted), limiter=self._thread)
        except KgserveError:
            return set()  # the store was dropped, which is announced
        if nodes is None:
            return set()
        return {
            ParsedResourceUri(name),
            ParsedResourceUri(name, remembered=True),
            *(ParsedResourceUri(name, node) for node in nodes),
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
        if self._stores.get(name) is not store or store.commits is not None:  # changed during the await
            commits.close()
        else:
            store.commits = commits

    def _commits(self, name: str) -> NewCommitReader | None:
        try:
            self._pool.require_files(name)
        except NotFound:
            return None
        except (ServedElsewhere, OwnerUnreachable):
            # Opening a replica starts following the store.
            self._pool.release(self._pool.acquire(name, replica=replica_of_any_age()))
        return NewCommitReader(self._pool.feeds.of(name), self._waker(name))

    def _waker(self, name: str) -> Callable[[], None]:
        loop = self._loop

        def wake() -> None:
            if loop is not None:
                loop.call_soon_threadsafe(self._wake, name)

        return wake

    def _wake(self, name: str) -> None:
        self._written_to.add(name)
        self.has_changes.set()


class NewCommitReader:
    """Reader of a store's commits from now on, for one listener. One thread at a time.

    A commit touches a node if it creates, changes or deletes the node or one of its edges.
    """

    def __init__(self, feed: ChangeFeed, wake: WakeCallback) -> None:
        """Start listening; ``wake`` is called by any thread after commits. Blocks. Raises NotFound, JournalDamaged."""
        self.feed = feed
        self._tail = JournalReader(feed.layout.journal)
        self._unlisten = feed.listen(wake)
        try:
            self._seen = feed.latest
        except BaseException:
            self._unlisten()
            raise

    def touched_nodes(self, wanted: AbstractSet[str]) -> set[str] | None:
        """Return those of the ``wanted`` nodes that were touched since the last call; None if no node was.

        Returns all of them if the commits can no longer be read, so that no change is missed. Blocks. Raises NotFound
        if the store was dropped.
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
        """Stop listening."""
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
        """Yield the next commits, each with the nodes that it touched."""
        commits = self.feed.recent(FeedPosition.after(self._seen))
        if not commits:
            for change in self._tail.page(self._seen, latest):
                yield change.sequence, _nodes_of_change(change)
            return
        for commit in commits:
            ids = [_nodes_of_event(event) for event in commit.events]
            if None in ids:  # a bulk event without rows
                [change] = self._tail.read(commit.sequence, commit.sequence)
                yield commit.sequence, _nodes_of_change(change)
            else:
                yield commit.sequence, {node_id for some in ids for node_id in some or ()}


def _nodes_of_event(event: StoreEvent) -> tuple[str, ...] | None:
    found: tuple[str, ...] | None = None
    match event.subject:
        case NodeRow() as row:
            found = (row.id,)
        case EdgeRow() as row:
            found = _ends(row.key)
        case CrossStoreLinkRow() as row:
            found = (row.edge.source,)
        case CrossStoreLinkKey() as key:
            found = (key.edge[0],)
        case str() as node_id:
            found = (node_id,)
        case MemoryEventData():
            found = ()  # the event of its row follows
        case tuple() as key:
            found = _ends(key)
        case _:
            pass
    return found


def _nodes_of_change(change: ChangeSet) -> set[str]:
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
"""Changes within this interval produce one notification."""
_SEND_TIMEOUT_SECONDS = 1.0
_SESSION_HEADER = "mcp-session-id"

_listening: ContextVar[NotificationSubscriber] = ContextVar("listening")
"""Subscriber whose stream is about to begin; the SDK's handler does not pass it to the bus."""


class NotificationService:
    """Notification service for the stores of a pool; runs while `following` is active."""

    def __init__(self, pool: StoreRegistry) -> None:
        self._feeds = pool.feeds
        self._bus = _Bus()
        self._handler = ListenHandler(self._bus, max_subscriptions=MAX_LISTENERS)
        self._sessions: dict[str, NotificationSubscriber] = {}
        self._listeners: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._some_changed = asyncio.Event()
        self._watching = ResourceWatcher(pool)
        self._subscriptions = ResourceSubscriptions(self._watching)

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of a stateless protocol revision. Raises MCPError over the limit of a key."""
        subscriber = NotificationSubscriber(get_mcp_request_access_context(context))
        _listening.set(subscriber)  # until the end of the request, which is a task of its own
        uris = params.notifications.resource_subscriptions or []
        if len(uris) > MAX_SUBSCRIPTIONS:
            raise MCPError(types.INVALID_PARAMS, f"a listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        places = dict(_parse_uris(uris))
        with self._listener_slot(subscriber.visit.caller.key_id):
            try:
                await self._subscriptions.add(subscriber, places)
                return await self._handler(context, _with_uris(params, list(places)))
            finally:
                self._subscriptions.end(subscriber)

    async def session_began(self, context: Context, _: types.NotificationParams) -> None:
        """Register a session until it ends."""
        self._session(context)

    async def subscribe(self, context: Context, uri: str, place: ParsedResourceUri) -> None:
        """Subscribe a session to a resource. Raises MCPError over the limit of subscriptions."""
        if (session := self._session(context)) is not None:
            await self._subscriptions.add(session, {uri: place})

    def unsubscribe(self, context: Context, uri: str) -> None:
        """End the subscription of a session to a resource."""
        if (session := self._session(context)) is not None:
            self._subscriptions.remove(session, [uri])

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Send notifications until the end of the block, which also ends the streams of listeners."""
        loop = asyncio.get_running_loop()

        def wake(store: str) -> None:
            loop.call_soon_threadsafe(self._add, store)

        self._watching.begin()
        unlisten = self._feeds.listen_by_name(wake)
        tasks = [
            asyncio.create_task(_run_forever(work)) for work in (self._notify_of_stores, self._notify_of_resources)
        ]
        try:
            yield
        finally:
            unlisten()
            self._watching.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @contextlib.contextmanager
    def _listener_slot(self, key: str | None) -> Generator[None]:
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
            self._listeners += Counter()  # removes counts of 0

    def close(self) -> None:
        """End the streams of all listeners."""
        self._handler.close()

    def _session(self, context: Context) -> NotificationSubscriber | None:
        key = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is None:
            return None
        if key not in self._sessions:
            self._sessions[key] = NotificationSubscriber(get_mcp_request_access_context(context), context.session)
            # The only callback for every end of a session: deleted, idle for too long, disconnected.
            context.session._connection.exit_stack.callback(self._session_ended, key)  # noqa: SLF001
        return self._sessions[key]

    def _session_ended(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            self._subscriptions.end(session)

    def _add(self, store: str) -> None:
        self._changed.add(store)
        self._some_changed.set()
        self._watching.record_store_change(store)

    async def _notify_of_stores(self) -> None:
        await self._some_changed.wait()
        self._some_changed.clear()
        stores, self._changed = self._changed, set()
        self._bus.concerned = stores
        await self._bus.publish(ResourcesListChanged())
        concerned = [each.stream for each in self._sessions.values() if _concerns(each.visit, stores)]
        await asyncio.gather(*(_send_with_timeout(stream.send_resource_list_changed) for stream in concerned if stream))

    async def _notify_of_resources(self) -> None:
        await self._watching.has_changes.wait()
        await asyncio.sleep(NOTIFICATION_DEBOUNCE_SECONDS)
        news = await self._watching.take_changes()
        await self._bus.publish_updates(news)
        concerned = [
            _send_updates(each.stream, uris)
            for each in self._sessions.values()
            if each.stream and (uris := each.changed_uris(news))
        ]
        await asyncio.gather(*concerned)


class _Bus:
    """Event bus for the SDK's handler; filters events by the stores that each listener may access."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[NotificationSubscriber, Callable[[ServerEvent], None]]] = {}
        self.concerned: set[str] = set()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Register a listener for the current request; return a function that removes it."""
        token = object()
        self._listeners[token] = _listening.get(), listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe

    async def publish(self, event: ServerEvent) -> None:
        """Send an event to the listeners that may access one of the stores in `concerned`."""
        for subscriber, listener in list(self._listeners.values()):
            if _concerns(subscriber.visit, self.concerned):
                listener(event)
        await asyncio.sleep(0)  # lets the streams send

    async def publish_updates(self, news: ResourceChangeNotification) -> None:
        """Notify each listener of changes to the resources that it subscribed to."""
        for subscriber, listener in list(self._listeners.values()):
            for uri in subscriber.changed_uris(news):
                listener(ResourceUpdated(uri))
        await asyncio.sleep(0)


def _concerns(visit: RequestContext, stores: set[str]) -> bool:
    return visit.still_valid and any(map(visit.caller.can_access, stores))


def _parse_uris(uris: Iterable[str]) -> Generator[tuple[str, ParsedResourceUri]]:
    """Yield the valid URIs with their addresses. Others are not acknowledged, which reports them to the listener."""
    for uri in uris:
        with contextlib.suppress(NotFound, InvalidInput):
            yield uri, parse_mcp_resource_uri(uri)[0]


def _with_uris(
    params: types.SubscriptionsListenRequestParams, uris: list[str]
) -> types.SubscriptionsListenRequestParams:
    wanted = params.notifications.model_copy(update={"resource_subscriptions": uris})
    return params.model_copy(update={"notifications": wanted})


async def _run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat ``work``; log its errors."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("clients_not_told")


async def _send_updates(stream: ServerSession, uris: list[str]) -> None:
    async def send() -> None:
        for uri in uris:
            await stream.send_resource_updated(uri)

    await _send_with_timeout(send)


async def _send_with_timeout(send: Callable[[], Awaitable[None]]) -> None:
    """Send to a session; give up after a second, or if it is closed."""
    with (
        anyio.move_on_after(_SEND_TIMEOUT_SECONDS),
        contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError),
    ):
        await send()


MAX_SUBSCRIPTIONS = 100
"""Maximum number of subscriptions of one session or listener."""
MAX_SUBSCRIPTIONS_PER_KEY = 1_000


class NotificationSubscriber:
    """Session or listener with its subscriptions; a session has its own notification stream."""

    def __init__(self, visit: RequestContext, stream: ServerSession | None = None) -> None:
        self.visit = visit
        self.stream = stream
        self.places: dict[str, ParsedResourceUri] = {}

    def changed_uris(self, news: ResourceChangeNotification) -> list[str]:
        """Return the subscribed URIs that changed; empty if the key is no longer valid."""
        found = [uri for uri, place in self.places.items() if self._has_changed(place, news)]
        return found if found and self.visit.still_valid else []

    def _has_changed(self, place: ParsedResourceUri, news: ResourceChangeNotification) -> bool:
        sees = self.visit.caller.can_access
        if place.store is None:
            return any(map(sees, news.announced))
        return place in news.changed and sees(place.store)


class ResourceSubscriptions:
    """Subscriptions of all sessions and listeners, limited per subscriber and per key."""

    def __init__(self, watching: ResourceWatcher) -> None:
        self._watching = watching
        self._of_keys: Counter[str] = Counter()

    async def add(self, subscriber: NotificationSubscriber, places: Mapping[str, ParsedResourceUri]) -> None:
        """Add subscriptions. Raises MCPError over a limit."""
        new = {uri: place for uri, place in places.items() if uri not in subscriber.places}
        self._check(subscriber, new)
        subscriber.places |= new
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] += len(new)
        await self._watching.add(new.values())

    def remove(self, subscriber: NotificationSubscriber, uris: Collection[str]) -> None:
        """Remove subscriptions; ignores URIs that the subscriber did not subscribe to."""
        removed = [subscriber.places.pop(uri) for uri in list(uris) if uri in subscriber.places]
        if (key := subscriber.visit.caller.key_id) is not None:
            self._of_keys[key] -= len(removed)
            self._of_keys += Counter()  # removes counts of 0
        self._watching.remove(removed)

    def end(self, subscriber: NotificationSubscriber) -> None:
        """Remove all subscriptions of a subscriber."""
        self.remove(subscriber, subscriber.places)

    def _check(self, subscriber: NotificationSubscriber, new: Mapping[str, ParsedResourceUri]) -> None:
        if len(subscriber.places) + len(new) > MAX_SUBSCRIPTIONS:
            raise _too_many(f"a session or listener may subscribe to {MAX_SUBSCRIPTIONS} resources")
        key = subscriber.visit.caller.key_id
        if key is not None and self._of_keys[key] + len(new) > MAX_SUBSCRIPTIONS_PER_KEY:
            raise _too_many(f"a key may have {MAX_SUBSCRIPTIONS_PER_KEY:,} subscriptions to resources")
        if not self._watching.has_capacity(new.values()):
            raise _too_many(f"resources of {MAX_SUBSCRIBED_STORES} stores may be subscribed to at once")


def _too_many(limit: str) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, f"{limit}; end another first")


LOG_LEVELS: tuple[types.LoggingLevel, ...] = get_args(types.LoggingLevel)
"""Log levels, least severe first."""
INDEXES_LOGGER = "kgserve.indexes"
SEARCH_TOOL_NAMES = frozenset({"search_knowledge", "search_batch", "get_context"})
_INDEX_NAMES = ("keyword", "vector")
_LOG_LEVEL_STATE_KEY = "kgserve.log_level"
_LOG_LEVEL_META_KEY = "io.modelcontextprotocol/logLevel"


class ClientLogMessage(NamedTuple):
    """Log message for a client, with its severity."""

    level: types.LoggingLevel
    message: str


class ClientLogNotifier:
    """Notifier that sends clients log messages about problems of the indexes that answered their calls.

    In session-based revisions a client sets the level once (`logging/setLevel`), in stateless ones with each call.
    Clients that set no level get no messages, and none concern other callers.
    """

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl) -> None:
        self._graphs = graphs
        self._threads = threads

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Set the log level of a session."""
        _state(context)[_LOG_LEVEL_STATE_KEY] = params.level
        return types.EmptyResult()

    async def after(self, context: Context, params: types.CallToolRequestParams) -> None:
        """Send the log messages about a call that was just answered, on the stream of its answer."""
        level = _log_level(context)
        if level is None or params.name not in SEARCH_TOOL_NAMES:
            return
        given = params.arguments or {}
        store = given.get("index") or given.get("store") or get_connection_default_store(context)
        if not isinstance(store, str):
            return
        graphs = self._graphs.for_caller(get_mcp_request_access_context(context).caller)
        try:
            for notice in await self._threads.read(lambda: list(_index_notices(graphs, store))):
                if LOG_LEVELS.index(notice.level) >= LOG_LEVELS.index(level):
                    await _send(context, notice, store)
        except Exception:  # the call is answered already
            log.exception("client_not_told", store=store)


def _index_notices(graphs: CallerStoreHandles, name: str) -> Iterator[ClientLogMessage]:
    indexer = graphs.indexer
    if indexer is None:
        return
    try:
        with graphs.graph(name).lease() as store:
            found = measure_projection_lag(store, indexer, None)
    except KgserveError:
        return  # the answer of the call has the error
    for view in _INDEX_NAMES:
        if found.failing.get(view):
            yield ClientLogMessage(
                "error", f"the {view} index fails; searches use its last state, and the server log has the reason"
            )
        if lag := found.lags.get(view):
            behind = format_count(lag, "commit")
            yield ClientLogMessage(
                "notice", f"the {view} index is {behind} behind; a search with at_least waits for a commit"
            )
    if indexer.embedder.degraded:
        yield ClientLogMessage(
            "warning", "no embedding model is available: semantic search uses words and letters only"
        )


def _log_level(context: Context) -> types.LoggingLevel | None:
    """Return the minimum level of log messages for the caller; None if it set none."""
    level: Any = (
        (context.meta or {}).get(_LOG_LEVEL_META_KEY) if context.protocol_version >= "2026" else _session_level(context)
    )
    return level if level in LOG_LEVELS else None


def _session_level(context: Context) -> Any:
    return _state(context).get(_LOG_LEVEL_STATE_KEY)


def _state(context: Context) -> dict[str, Any]:
    """Return the state of the session."""
    return context.session._connection.state  # noqa: SLF001


async def _send(context: Context, notice: ClientLogMessage, store: str) -> None:
    data: Mapping[str, str] = {"store": store, "message": notice.message}
    params = types.LoggingMessageNotificationParams(level=notice.level, logger=INDEXES_LOGGER, data=data)
    await context.session.send_notification(
        types.LoggingMessageNotification(params=params), related_request_id=context.request_id
    )
