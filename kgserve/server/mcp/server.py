"""The protocol server: what it offers, and its sessions with what they were sent lately.

Importing this imports the SDK, which takes a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from typing import Any, NamedTuple, cast

import msgspec
from mcp import types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter
from typing_extensions import override

from kgserve import __version__
from kgserve.graph.handle import Graphs
from kgserve.platform.access.authentication import Caller
from kgserve.platform.settings import MEBIBYTE
from kgserve.server.admission import Admission
from kgserve.server.mcp.calls import Context, ToolCaller, check_wishes, wished
from kgserve.server.mcp.notifications import Notices, Notifications
from kgserve.server.mcp.prompts import INSTRUCTIONS, Completions, get_prompt, list_prompts
from kgserve.server.mcp.resources import Resources
from kgserve.server.proxy import NodeProxy

RETRY_MS = 1_000
"""How long a client is to wait before it comes back."""
MAX_SESSION_EVENTS = 64
"""Events of one session that are kept."""
MAX_EVENT_STORE_BYTES = 16 << 20
"""Bytes of the events of all sessions that are kept."""
_OWN_STREAM, _ANSWER = "s", "a"
_EVENT_ID = re.compile(r"([0-9]{1,18})-([sa])")


class _Event(NamedTuple):
    """An event of a stream; without a text it only began the stream."""

    stream: str
    text: bytes

    @property
    def bytes(self) -> int:
        """About what it takes."""
        return 200 + len(self.text)


class SentEvents:
    """What streams of the handshake era have sent lately, for clients whose connection broke to go on from.

    A client that comes back with the id of the last event that it saw gets those behind it, if they are still kept:
    that is bounded, for a session and for all of them together; the oldest are forgotten. Each session has its own: ids
    of requests are a session's, too, so in one store for all of them the answers of one would be replayed to another.
    """

    def __init__(self, most: int = MAX_EVENT_STORE_BYTES) -> None:
        """Keep at most so many bytes."""
        self._most = most
        self._held: OrderedDict[tuple[SessionEvents, int], int] = OrderedDict()
        self._bytes = 0

    def of_session(self) -> SessionEvents:
        """Those of a new session."""
        return SessionEvents(self)

    def hold(self, session: SessionEvents, number: int, size: int) -> None:
        """A session has one more."""
        self._held[session, number] = size
        self._bytes += size
        while self._bytes > self._most:
            (owner, oldest), size = self._held.popitem(last=False)
            self._bytes -= size
            owner.events.pop(oldest, None)

    def release(self, session: SessionEvents, number: int) -> None:
        """A session has one less."""
        self._bytes -= self._held.pop((session, number), 0)


class SessionEvents(EventStore):
    """The newest events of one session, by number; lives on the event loop."""

    def __init__(self, sent: SentEvents) -> None:
        self._sent = sent
        self._number = 0
        self._came = asyncio.Event()
        self._gone_on: dict[str, object] = {}
        self.events: OrderedDict[int, _Event] = OrderedDict()

    @override
    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event, or with None the beginning of a stream; its id."""
        text = b"" if message is None else _text(message)
        self._number += 1
        event = self.events[self._number] = _Event(stream_id, text)
        self._sent.hold(self, self._number, event.bytes)
        if len(self.events) > MAX_SESSION_EVENTS:
            self._forget_oldest()
        self._wake()
        return _id(self._number, stream_id)

    @override
    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send again what came behind an event on its stream, and then what comes; one of an answer ends with that.

        Who comes back later for the same stream takes it over. Always None, at which the SDK ends the stream: it would
        go on with it by a way of its own, which misses what comes until that is open.
        """
        given = _EVENT_ID.fullmatch(last_event_id)
        if given is None:
            return None
        seen = int(given[1])
        known = self.events.get(seen)
        stream = GET_STREAM_KEY if given[2] == _OWN_STREAM else known and known.stream
        if stream is not None:
            await self._go_on(stream, seen, send_callback)
        return None

    def end(self) -> None:
        """The session has ended: so do streams that are gone on with, and what they sent is let go."""
        self._gone_on.clear()
        self._wake()
        while self.events:
            self._forget_oldest()

    async def _go_on(self, stream: str, seen: int, send: EventCallback) -> None:
        own = self._gone_on[stream] = object()
        self._wake()
        try:
            while True:
                came, newest = self._came, self._number
                behind = [(at, each) for at, each in self.events.items() if at > seen and each.stream == stream]
                for number, event in behind:
                    if await _sent_again(number, event, send):
                        return
                await came.wait()
                seen = newest
                if self._gone_on.get(stream) is not own or self._has_forgotten_behind(seen):
                    return
        finally:
            if self._gone_on.get(stream) is own:
                del self._gone_on[stream]

    def _has_forgotten_behind(self, seen: int) -> bool:
        return next(iter(self.events), self._number + 1) > seen + 1

    def _forget_oldest(self) -> None:
        self._sent.release(self, self.events.popitem(last=False)[0])

    def _wake(self) -> None:
        self._came.set()
        self._came = asyncio.Event()


async def _sent_again(number: int, event: _Event, send: EventCallback) -> bool:
    """Send an event, if there is anything to it; whether a stream ends with it."""
    if not event.text:
        return False
    message = jsonrpc_message_adapter.validate_json(event.text)
    await send(EventMessage(message, _id(number, event.stream)))
    return event.stream != GET_STREAM_KEY and isinstance(message, JSONRPCResponse | JSONRPCError)


def _text(message: JSONRPCMessage) -> bytes:
    """A message as JSON: answers, which are long, in a third of the time that the SDK's models take."""
    if isinstance(message, JSONRPCResponse):
        return msgspec.json.encode({"jsonrpc": message.jsonrpc, "id": message.id, "result": message.result})
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _id(number: int, stream: str) -> str:
    """An event's id. It tells a session's own stream, which can be gone on with when the event is long forgotten."""
    return f"{number}-{_OWN_STREAM if stream == GET_STREAM_KEY else _ANSWER}"


MAX_SESSIONS = 256
MAX_SESSIONS_PER_KEY = 64
SESSION_IDLE_TIMEOUT_SECONDS = 30 * 60.0
MAX_BODY_MB = 4
"""The SDK decodes bodies on the event loop: this much takes about 100 ms. Who has more, imports it."""

_FIXED_LIST_CACHE = CacheHint(ttl_ms=3_600_000, scope="public")


class Announcing(Server[Any]):
    """Tells clients of the handshake era that it will say when stores come or go."""

    @override
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """As the SDK's, which promises nothing by default."""
        promised = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(promised, experimental_capabilities, extensions)


class Sessions(StreamableHTTPSessionManager):
    """The SDK's, of which one key cannot take all, and where one more ends the one that has been idle longest.

    Each can go on with a stream that broke.
    """

    def __init__(self, server: Server[Any], *, max_request_body_size: int) -> None:
        super().__init__(
            server,
            retry_interval=RETRY_MS,
            max_sessions=MAX_SESSIONS,
            session_idle_timeout=SESSION_IDLE_TIMEOUT_SECONDS,
            max_request_body_size=max_request_body_size,
        )
        self._sent = SentEvents()

    @override
    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """As the SDK's: None, which is answered with 503, when there are too many and each is in use."""
        own = [key for key, owner in self._session_owners.items() if owner == requestor]
        if len(own) >= MAX_SESSIONS_PER_KEY and not self._end_longest_idle(own):
            return None
        if len(self._server_instances) >= MAX_SESSIONS and not self._end_longest_idle(self._server_instances):
            return None
        transport = super()._admit_session(requestor)
        if transport is not None:
            # The SDK's one store for all sessions would tell them apart by nothing.
            transport._event_store = self._sent.of_session()  # noqa: SLF001
        return transport

    @override
    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        """As the SDK's: the one place that learns of every end."""
        await super()._discard_session(session_id, transport)
        cast("SessionEvents", transport._event_store).end()  # noqa: SLF001

    def _end_longest_idle(self, keys: Iterable[str]) -> bool:
        """End one of these sessions; False when none is idle. From now on it is 404, and its client begins another."""
        scopes = {key: scope for key in keys if (scope := self._server_instances[key].idle_scope) is not None}
        # While a call is answered or a stream is open, nothing is going to end a session.
        idle = [key for key, scope in scopes.items() if scope.deadline < math.inf]
        if not idle:
            return False
        key = min(idle, key=lambda each: scopes[each].deadline)
        self._server_instances.pop(key)
        self._session_owners.pop(key, None)
        scopes[key].cancel()
        return True


class Served:
    """The protocol over some stores, for the time that `running` runs."""

    def __init__(self, graphs: Graphs, threads: Admission, forwarder: NodeProxy) -> None:
        self.notifications = Notifications(graphs.pool)
        self.manager = Sessions(
            make_server(graphs, threads, forwarder, self.notifications),
            max_request_body_size=min(graphs.settings.max_body_mb, MAX_BODY_MB) * MEBIBYTE,
        )

    @staticmethod
    def user_of(caller: Caller) -> AuthenticatedUser | None:
        """The owner of a session, for the SDK to compare: sessions of other keys are 404, as those that never were."""
        if caller.key_id is None:
            return None
        return AuthenticatedUser(AccessToken(token="", client_id=caller.key_id, scopes=[]))

    @staticmethod
    def check(scope: Any) -> None:
        """Raises InvalidInput when a connection asks for tools, or a form of answers, that there are not."""
        check_wishes(wished(scope))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serves until the end of the block; then every session ends."""
        async with self.manager.run(), self.notifications.following():
            yield


def make_server(graphs: Graphs, threads: Admission, forwarder: NodeProxy, notifications: Notifications) -> Server[Any]:
    """Tools, resources and prompts."""
    calls, notices = ToolCaller(graphs, threads, forwarder), Notices(graphs, threads)
    resources = Resources(graphs, threads, forwarder)

    async def call(context: Context, params: types.CallToolRequestParams) -> Any:
        result = await calls.call(context, params)
        await notices.after(context, params)
        return result

    async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        await notifications.subscribe(context, params.uri, await resources.place(context, params.uri))
        return types.EmptyResult()

    async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        notifications.unsubscribe(context, params.uri)
        return types.EmptyResult()

    server = Announcing(
        "kgserve",
        version=__version__,
        title="kgserve knowledge graphs",
        instructions=INSTRUCTIONS,
        cache_hints={
            "tools/list": _FIXED_LIST_CACHE,
            "prompts/list": _FIXED_LIST_CACHE,
            "resources/templates/list": _FIXED_LIST_CACHE,
        },
        get_tool_input_schema=calls.input_schema,
        on_list_tools=calls.list_tools,
        on_call_tool=call,
        on_list_resources=resources.list,
        on_list_resource_templates=resources.templates,
        on_read_resource=resources.read,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=notifications.listen,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=Completions(graphs, threads).complete,
    )
    # The SDK's tracing costs time in every request and ends nowhere here.
    server.middleware.clear()
    server.add_notification_handler("notifications/initialized", types.NotificationParams, notifications.session_began)
    # Not with the others: the SDK warns of it, as the newest protocol has another way to ask for the same.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, notices.set_level)
    return server
