"""MCP protocol server: its handlers, its sessions, and the recent events of each session for resumption.

Importing this module imports the MCP SDK, which is slow.
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
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.settings import MEBIBYTE
from kgserve.server.admission import AdmissionControl
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.mcp.notifications import ClientLogNotifier, NotificationService
from kgserve.server.mcp.prompts import INSTRUCTIONS, McpArgumentCompleter, get_mcp_prompt_text, list_prompts
from kgserve.server.mcp.resource_handlers import ResourceHandlers
from kgserve.server.mcp.tool_calls import (
    Context,
    ToolDispatcher,
    read_mcp_connection_options,
    validate_mcp_connection_options,
)

RECONNECT_DELAY_MS = 1_000
"""Milliseconds that a client waits before it reconnects."""
MAX_SESSION_EVENTS = 64
"""Maximum number of stored events of one session."""
MAX_EVENT_STORE_BYTES = 16 << 20
"""Maximum size of the stored events of all sessions."""
_OWN_STREAM, _ANSWER = "s", "a"
_EVENT_ID = re.compile(r"([0-9]{1,18})-([sa])")


class _Event(NamedTuple):
    """Event of a stream; an empty text marks the beginning of the stream."""

    stream: str
    text: bytes

    @property
    def bytes(self) -> int:
        """Approximate size in memory."""
        return 200 + len(self.text)


class EventReplayStore:
    """Recent events of all sessions, from which clients resume broken streams. For session-based protocol revisions.

    A client that reconnects with the id of the last event that it received gets the later ones, if they are still
    stored. The size is limited per session and in total; the oldest events are evicted first. Each session has its own
    events, because request ids are unique within a session only.
    """

    def __init__(self, most: int = MAX_EVENT_STORE_BYTES) -> None:
        """Create a store of at most ``most`` bytes."""
        self._most = most
        self._held: OrderedDict[tuple[SessionEventStore, int], int] = OrderedDict()
        self._bytes = 0

    def create_session_store(self) -> SessionEventStore:
        """Return the event store of a new session."""
        return SessionEventStore(self)

    def hold(self, session: SessionEventStore, number: int, size: int) -> None:
        """Record an event of a session; evict the oldest events over the limit."""
        self._held[session, number] = size
        self._bytes += size
        while self._bytes > self._most:
            (owner, oldest), size = self._held.popitem(last=False)
            self._bytes -= size
            owner.events.pop(oldest, None)

    def release(self, session: SessionEventStore, number: int) -> None:
        """Remove an event of a session."""
        self._bytes -= self._held.pop((session, number), 0)


class SessionEventStore(EventStore):
    """Newest events of one session, by number. Belongs to the event loop."""

    def __init__(self, sent: EventReplayStore) -> None:
        self._sent = sent
        self._number = 0
        self._new_event = asyncio.Event()
        self._resumed: dict[str, object] = {}
        self.events: OrderedDict[int, _Event] = OrderedDict()

    @override
    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        text = b"" if message is None else _text(message)
        self._number += 1
        event = self.events[self._number] = _Event(stream_id, text)
        self._sent.hold(self, self._number, event.bytes)
        if len(self.events) > MAX_SESSION_EVENTS:
            self._evict_oldest()
        self._wake()
        return _id(self._number, stream_id)

    @override
    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        # Returns None, at which the SDK ends the stream. The SDK's own continuation would lose events.
        # A later client that resumes the same stream takes it over.
        given = _EVENT_ID.fullmatch(last_event_id)
        if given is None:
            return None
        seen = int(given[1])
        known = self.events.get(seen)
        stream = GET_STREAM_KEY if given[2] == _OWN_STREAM else known and known.stream
        if stream is not None:
            await self._resume(stream, seen, send_callback)
        return None

    def end(self) -> None:
        """End the session: end its resumed streams and release its events."""
        self._resumed.clear()
        self._wake()
        while self.events:
            self._evict_oldest()

    async def _resume(self, stream: str, seen: int, send: EventCallback) -> None:
        own = self._resumed[stream] = object()
        self._wake()
        try:
            while True:
                new_event, newest = self._new_event, self._number
                later = [(at, each) for at, each in self.events.items() if at > seen and each.stream == stream]
                for number, event in later:
                    if await _resend(number, event, send):
                        return
                await new_event.wait()
                seen = newest
                if self._resumed.get(stream) is not own or self._has_evicted_after(seen):
                    return
        finally:
            if self._resumed.get(stream) is own:
                del self._resumed[stream]

    def _has_evicted_after(self, seen: int) -> bool:
        return next(iter(self.events), self._number + 1) > seen + 1

    def _evict_oldest(self) -> None:
        self._sent.release(self, self.events.popitem(last=False)[0])

    def _wake(self) -> None:
        self._new_event.set()
        self._new_event = asyncio.Event()


async def _resend(number: int, event: _Event, send: EventCallback) -> bool:
    """Send an event unless it is empty; return whether it ends its stream."""
    if not event.text:
        return False
    message = jsonrpc_message_adapter.validate_json(event.text)
    await send(EventMessage(message, _id(number, event.stream)))
    return event.stream != GET_STREAM_KEY and isinstance(message, JSONRPCResponse | JSONRPCError)


def _text(message: JSONRPCMessage) -> bytes:
    """Return a message as JSON; msgspec encodes results three times as fast as the SDK's models."""
    if isinstance(message, JSONRPCResponse):
        return msgspec.json.encode({"jsonrpc": message.jsonrpc, "id": message.id, "result": message.result})
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _id(number: int, stream: str) -> str:
    """Return the id of an event. It marks the session's own stream, which can be resumed even after eviction."""
    return f"{number}-{_OWN_STREAM if stream == GET_STREAM_KEY else _ANSWER}"


MAX_SESSIONS = 256
MAX_SESSIONS_PER_KEY = 64
SESSION_IDLE_TIMEOUT_SECONDS = 30 * 60.0
MAX_BODY_MB = 4
"""MiB of the largest body. The SDK decodes bodies on the event loop, about 100 ms for this size."""

_FIXED_LIST_CACHE = CacheHint(ttl_ms=3_600_000, scope="public")


class McpSdkServer(Server[Any]):
    """SDK server that announces notifications about created and dropped stores. For session-based revisions."""

    @override
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class McpSessionManager(StreamableHTTPSessionManager):
    """Session manager with a limit of sessions per key; a new session replaces the one that is idle longest.

    Each session stores its events, so that clients can resume broken streams.
    """

    def __init__(self, server: Server[Any], *, max_request_body_size: int) -> None:
        super().__init__(
            server,
            retry_interval=RECONNECT_DELAY_MS,
            max_sessions=MAX_SESSIONS,
            session_idle_timeout=SESSION_IDLE_TIMEOUT_SECONDS,
            max_request_body_size=max_request_body_size,
        )
        self._sent = EventReplayStore()

    @override
    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # Returns None, which the SDK answers with 503, if the limit is reached and all sessions are in use.
        own = [key for key, owner in self._session_owners.items() if owner == requestor]
        if len(own) >= MAX_SESSIONS_PER_KEY and not self._end_longest_idle(own):
            return None
        if len(self._server_instances) >= MAX_SESSIONS and not self._end_longest_idle(self._server_instances):
            return None
        transport = super()._admit_session(requestor)
        if transport is not None:
            # The SDK would share one event store among all sessions.
            transport._event_store = self._sent.create_session_store()  # noqa: SLF001
        return transport

    @override
    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        # The only method that the SDK calls for every end of a session.
        await super()._discard_session(session_id, transport)
        cast("SessionEventStore", transport._event_store).end()  # noqa: SLF001

    def _end_longest_idle(self, keys: Iterable[str]) -> bool:
        """End the longest idle of these sessions, so that its client gets 404; return False if none is idle."""
        scopes = {key: scope for key in keys if (scope := self._server_instances[key].idle_scope) is not None}
        # A session with an open call or stream has no deadline.
        idle = [key for key, scope in scopes.items() if scope.deadline < math.inf]
        if not idle:
            return False
        key = min(idle, key=lambda each: scopes[each].deadline)
        self._server_instances.pop(key)
        self._session_owners.pop(key, None)
        scopes[key].cancel()
        return True


class McpService:
    """MCP server of some stores; serves while `running` is active."""

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl, forwarder: ClusterNodeHttpClient) -> None:
        self.notifications = NotificationService(graphs.pool)
        self.manager = McpSessionManager(
            create_mcp_server(graphs, threads, forwarder, self.notifications),
            max_request_body_size=min(graphs.settings.max_body_mb, MAX_BODY_MB) * MEBIBYTE,
        )

    @staticmethod
    def user_of(caller: AuthenticatedCaller) -> AuthenticatedUser | None:
        """Return the owner of a session for the SDK's comparison; sessions of other keys are 404."""
        if caller.key_id is None:
            return None
        return AuthenticatedUser(AccessToken(token="", client_id=caller.key_id, scopes=[]))

    @staticmethod
    def check(scope: Any) -> None:
        """Check the tools and the answer format that a connection asks for. Raises InvalidInput if unknown."""
        validate_mcp_connection_options(read_mcp_connection_options(scope))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve until the end of the block, which ends every session."""
        async with self.manager.run(), self.notifications.following():
            yield


def create_mcp_server(
    graphs: CallerStoreHandles,
    threads: AdmissionControl,
    forwarder: ClusterNodeHttpClient,
    notifications: NotificationService,
) -> Server[Any]:
    """Return the SDK server with the handlers of tools, resources, prompts and notifications."""
    calls, notices = ToolDispatcher(graphs, threads, forwarder), ClientLogNotifier(graphs, threads)
    resources = ResourceHandlers(graphs, threads, forwarder)

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

    server = McpSdkServer(
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
        on_get_prompt=get_mcp_prompt_text,
        on_completion=McpArgumentCompleter(graphs, threads).complete,
    )
    # Removes the SDK's tracing, which slows every request and has no exporter here.
    server.middleware.clear()
    server.add_notification_handler("notifications/initialized", types.NotificationParams, notifications.session_began)
    # Registered separately, because the SDK's constructor warns that the newest revision replaces this method.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, notices.set_level)
    return server
