"""The protocol server: what it offers, and its sessions. Importing this imports the SDK, which takes a while."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from mcp import types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from kgserve import __version__
from kgserve.access.authentication import Caller
from kgserve.mcp.calls import Calls, Context, check_wishes, wished
from kgserve.mcp.completion import Completions
from kgserve.mcp.notices import Notices
from kgserve.mcp.notifications import Notifications
from kgserve.mcp.prompts import INSTRUCTIONS, get_prompt, list_prompts
from kgserve.mcp.replay import RETRY_MS, SentEvents
from kgserve.mcp.resources import Resources
from kgserve.ops.graph import Graphs, Threads
from kgserve.settings import MEBIBYTE

MAX_SESSIONS = 256
MAX_SESSIONS_OF_A_KEY = 64
IDLE_SECONDS = 30 * 60.0
MAX_BODY_MB = 4
"""The SDK decodes bodies on the event loop: this much takes about 100 ms. Who has more, imports it."""

_FIXED = CacheHint(ttl_ms=3_600_000, scope="public")


class Announcing(Server[Any]):
    """Tells clients of the handshake era that it will say when stores come or go."""

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
            session_idle_timeout=IDLE_SECONDS,
            max_request_body_size=max_request_body_size,
        )
        self._sent = SentEvents()

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """As the SDK's: None, which is answered with 503, when there are too many and each is in use."""
        own = [key for key, owner in self._session_owners.items() if owner == requestor]
        if len(own) >= MAX_SESSIONS_OF_A_KEY and not self._end_longest_idle(own):
            return None
        if len(self._server_instances) >= MAX_SESSIONS and not self._end_longest_idle(self._server_instances):
            return None
        transport = super()._admit_session(requestor)
        if transport is not None:
            # The SDK's one store for all sessions would tell them apart by nothing.
            transport._event_store = self._sent.of_session()  # noqa: SLF001
        return transport

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

    def __init__(self, graphs: Graphs, threads: Threads) -> None:
        self.notifications = Notifications(graphs.pool)
        self.manager = Sessions(
            make_server(graphs, threads, self.notifications),
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


def make_server(graphs: Graphs, threads: Threads, notifications: Notifications) -> Server[Any]:
    """Tools, resources and prompts."""
    calls, notices = Calls(graphs, threads), Notices(graphs, threads)
    resources = Resources(graphs, threads, calls.forwarder)

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
        cache_hints={"tools/list": _FIXED, "prompts/list": _FIXED, "resources/templates/list": _FIXED},
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
