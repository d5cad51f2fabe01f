"""HTTP gateway: every request passes through it before its handler, and every response after it.

The gateway handles request ids, the browser guard, CORS, authentication, client addresses, rate limits, authorization,
metrics, traces and the access log.

Routing uses the path as it was sent. ASGI's decoded ``path`` would split an id with ``%2F`` into segments; handlers
decode names and ids themselves. Paths with empty segments are not found: with normalization, a client that sends an
empty id would reach the parent resource.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import structlog
from litestar import Request, Response
from litestar.enums import ScopeType
from litestar.handlers import HTTPRouteHandler

from kgserve.api.operation import ALIAS_OPT_KEY, OPERATION_OPT_KEY, ApiOperation, ApiUseCase, build_litestar_opt
from kgserve.errors import ConflictManual, NotFound, Unauthenticated, Unavailable
from kgserve.graph.compat.versioned_nodes_field_names import rename_json_to_versioned_fields
from kgserve.platform.access.authentication import ANONYMOUS_CALLER, HiddenStore, InvalidCredentials, RequestContext
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE, JSON_MEDIA_TYPE
from kgserve.platform.metrics.app_metrics_and_request_context import (
    UNMATCHED_ROUTE,
    OriginatingRequest,
    reset_originating_request,
    set_originating_request,
)
from kgserve.platform.structured_log import RequestCallerIdentity, mask_api_keys
from kgserve.platform.structured_log import log_request as request_line
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.admission import ActiveRequestCounter
from kgserve.server.http.connection import (
    BODY_TIMEOUT_STATE_KEY,
    CONNECTION_CLOSE,
    SEND_COMPLETE_EXTENSION,
    SendCompleteResponse,
    add_security_headers,
    encode_header_lines,
    ensure_running_in_task,
)
from kgserve.server.http.cross_site_guard import BROWSER_HEADERS, AllowedOrigins, CrossSiteGuard, is_web_page_path
from kgserve.server.http.error_responses import (
    CLIENT_DISCONNECTED_STATUS,
    ERROR_CODE_STATE_KEY,
    PROBLEM_JSON,
    VERSIONED_NAMES_STATE_KEY,
    ClientDisconnected,
    ServerHttpResponse,
    build_error_response,
    error_code_of,
    must_forward_not_redirect,
    request_target,
)
from kgserve.server.http.gzip_and_etags import (
    MIN_GZIP_BYTES,
    VARY_ENCODING_HEADER,
    accepts_gzip,
    build_gzip_response_headers,
    build_not_modified_headers,
    gzip_response_body,
    is_compressible_response,
    matches_etag,
)
from kgserve.server.http.idempotent_requests import HttpRequestExchange, IdempotentRequests, has_idempotency_key
from kgserve.server.http.operation_endpoints import ENDPOINT_OPT_KEY, DirectAsgiEndpoint, OperationEndpoint
from kgserve.server.http.rate_limits import RateLimiter, is_local
from kgserve.server.http.request_decoding import (
    FIELD_NAMES_PARAMETER_BYTES,
    READ_FROM_HEADER_BYTES,
    REPLICA_READ_STATE_KEY,
    SERVICES_STATE_KEY,
    RequestHandlerDependencies,
    build_replica_headers,
    parse_replica_read_headers,
    select_request_store,
)
from kgserve.server.http.trusted_proxies import TrustedProxies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import ReceiveMessage

    from kgserve.api.operation import Method
    from kgserve.platform.access.audit import AuditLog
    from kgserve.platform.access.authentication import Authenticator
    from kgserve.platform.metrics.app_metrics_and_request_context import Telemetry
    from kgserve.platform.settings import Settings
    from kgserve.server.http.error_responses import Header


log = structlog.get_logger()

UNKNOWN_ADDRESS = "unknown"
"""Address of a client whose address is not known."""


KEY_REVOKED_MESSAGE = "the key is no longer valid: it was revoked or expired during the request"

_new_id = random.Random().getrandbits  # noqa: S311 - ids of requests are not secret
_GIVEN_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_MAX_LOGGED_PATH_BYTES = 300
_OK, _NO_CONTENT, _NOT_MODIFIED, _MIN_ERROR = 200, 204, 304, 400
_STREAM_TYPE = EVENT_STREAM_MEDIA_TYPE.encode()
_JSON_TYPE = (b"content-type", JSON_MEDIA_TYPE.encode())


_PLAIN_JSON_HEADS = {
    (varies, secure): encode_header_lines(
        [
            *(_JSON_TYPE, (b"content-length", b"%d")),
            *([VARY_ENCODING_HEADER] if varies else []),
            (b"x-request-id", b"%b"),
        ],
        secure=secure,
    )
    for varies in (False, True)
    for secure in (False, True)
}
"""Head of an answer with a JSON body: whether it varies by Accept-Encoding, and whether the connection is secure."""


_HEALTH, _PROBES = frozenset({"/health", "/ready"}), frozenset({"/health", "/ready", "/metrics"})
_LISTEN_METHOD = b"subscriptions/listen"


class HttpGatewayMiddleware:
    """ASGI middleware around ``app`` that every HTTP request and response passes through."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        observation: Telemetry,
        authenticator: Authenticator,
        audit: AuditLog,
        service: RequestHandlerDependencies,
        routes: RouteTable,
    ) -> None:
        """Configure the gateway. Raises InvalidInput for invalid settings."""
        self._app = app
        self.routes = routes
        self._service = service
        self._observation = observation
        self._authenticator = authenticator
        self._audit = audit
        self._proxies = TrustedProxies.parse(settings.trusted_proxies)
        self._origins = AllowedOrigins.parse(settings.cors_origins)
        self.rates = RateLimiter(settings.rate_limit)
        self._idempotent = IdempotentRequests(service.admission.repeats, settings, self._count_store_drops)
        self._hides_explorer = not settings.explorer
        self._in_cluster = bool(settings.cluster)
        self._followed = service.graphs.whole_pool.placement if settings.follow else None
        guard = CrossSiteGuard(settings.host, self._origins, settings.allowed_hosts)
        self._check_browser = lru_cache(maxsize=64)(guard.check)
        self.running = 0
        """Number of requests in progress, open streams included."""
        self.use = ActiveRequestCounter(service.admission.callers)
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request; other scopes than HTTP go to the application unchanged."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        if scope["raw_path"] == b"/mcp/":
            # Many MCP clients are configured with this URL, and few follow redirects.
            scope["raw_path"] = b"/mcp"
        scope["path"] = scope["raw_path"].decode("ascii")
        act = f"{scope['method']} {scope['path']}"
        headers = dict(scope["headers"])
        context = RequestContext(self._authenticator, self._audit, _request_id(headers), act, self._address(scope))
        scope.setdefault("state", {})["request_context"] = context
        asked = scope
        if scope["method"] == "HEAD" and scope["path"] != "/mcp":
            # Handled as a GET; `HttpRequestResponseCycle` omits the body.
            asked = cast("HTTPScope", {**scope, "method": "GET"})
        cycle = HttpRequestResponseCycle(scope, receive, send, context, headers)
        if self._origins.listed:
            cycle.extra = self._origins.headers(scope["headers"])
        if self._followed is not None and (age := self._followed.age) is not None:
            cycle.extra = (*cycle.extra, (b"kgserve-age", b"%.1f" % age))
        counts = context.is_use = _is_use(scope["method"], scope["path"], headers)
        self.running += 1
        if counts:
            self.use.begin()
        bound = structlog.contextvars.bind_contextvars(request_id=context.request_id)
        try:
            with _RequestMeasurement(self._observation, scope, cycle):
                await self._answer(asked, cycle, context)
                scope["path_template"] = asked.get("path_template", "")
                context.ended(cycle.status)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            self.running -= 1
            if counts:
                self.use.end()
            if not self.running:
                self._idle.set()

    def _count_store_drops(self, store: str) -> int:
        return self._service.graphs.whole_pool.feeds.drop_count(store)

    async def wait_until_idle(self, patience: float) -> None:
        """Wait until no request is in progress, for at most ``patience`` seconds."""
        self._idle.clear()
        if self.running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), patience)

    async def _answer(self, scope: HTTPScope, cycle: HttpRequestResponseCycle, context: RequestContext) -> None:
        try:
            await self._check_and_route(scope, cycle, context)
        except asyncio.CancelledError:  # the grace period of a shutdown is over
            if not cycle.begun:
                await cycle.refuse(Unavailable("the server is stopping"))
        except ClientDisconnected:
            cycle.status = cycle.status or CLIENT_DISCONNECTED_STATUS
        except Exception as error:
            if isinstance(error, HiddenStore):
                context.hidden = error.store
            if not cycle.begun:
                await cycle.refuse(error)
            elif not cycle.refused:
                log.exception("answer_broken_off")  # uvicorn closes the connection: the client sees a partial response
        finally:
            cycle.log()

    async def _check_and_route(
        self, scope: HTTPScope, cycle: HttpRequestResponseCycle, context: RequestContext
    ) -> None:
        checked = tuple([header for header in scope["headers"] if header[0] in BROWSER_HEADERS])
        self._check_browser(checked, is_page=is_web_page_path(scope["path"]))
        if self._origins.listed and (preflight := self._origins.preflight(scope["method"], scope["headers"])):
            await cycle.send_complete(ServerHttpResponse(_NO_CONTENT, list(preflight), b""))
            return
        self._authenticate(scope, context)
        self._check_path(scope["path"])
        if has_idempotency_key(scope, cycle.headers):
            await self._idempotent.answer(scope, cycle, self._route)
        else:
            await self._route(scope, cycle)

    async def _route(self, scope: HTTPScope, cycle: HttpRequestExchange) -> None:
        is_passed = self._in_cluster and must_forward_not_redirect(cycle.headers)
        is_short = not is_passed and FIELD_NAMES_PARAMETER_BYTES not in scope["query_string"]
        if is_short and (found := self.routes.find(scope["method"], scope["path"])):
            endpoint, scope["path_params"] = found
            await self._answer_directly(endpoint, scope, cycle)
        else:
            await ensure_running_in_task()
            await self._app(scope, cycle.receive, cycle.send)

    async def _answer_directly(
        self, endpoint: DirectAsgiEndpoint, scope: HTTPScope, cycle: HttpRequestExchange
    ) -> None:
        scope["path_template"] = endpoint.path
        service = authorize_request(scope, endpoint.operation, self._service)
        answer = await endpoint.answer(scope, cycle.receive, service)
        if not isinstance(answer, bytes):
            await answer(scope, cycle.receive, cycle.send)
        elif not cycle.send_plain_json(answer):
            headers: list[Header] = [_JSON_TYPE, (b"content-length", b"%d" % len(answer))]
            await cycle.send_complete(ServerHttpResponse(_OK, headers, answer))

    def _check_path(self, path: str) -> None:
        if "//" in path or (path.endswith("/") and path != "/"):
            raise NotFound("the path has an empty segment; check for an empty id or a trailing slash")
        if self._hides_explorer and (path == "/" or path.startswith("/explorer/")):
            raise NotFound("the explorer is disabled on this server (--explorer false)")

    def _address(self, scope: HTTPScope) -> str:
        """Return the client's address; behind trusted proxies, the one that they report."""
        address = scope["client"][0] if scope["client"] else UNKNOWN_ADDRESS
        return self._proxies.client(address, scope["headers"]) if self._proxies.networks else address

    def _authenticate(self, scope: HTTPScope, context: RequestContext) -> None:
        """Authenticate the caller, and apply the rate limits. Raises Unauthenticated, RateLimited."""
        try:
            caller = self._authenticator.authenticate(scope["path"], scope["query_string"], scope["headers"])
        except InvalidCredentials:
            self.rates.count_wrong_key(context.address)
            raise
        except Unauthenticated:
            if not is_local(context.address):
                self.rates.admit(ANONYMOUS_CALLER, context.address)
            raise
        context.caller = caller
        current_caller.set(context.accounting_name)
        if caller.key_id is not None or not is_local(context.address):
            self.rates.admit(caller, context.address)
        if context.is_use:
            self._service.admission.callers.record_request(context.accounting_name)


def _is_use(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request keeps the server from being idle.

    Probes do not, nor the streams that MCP clients keep open while idle: an MCP client restarts the server when needed.
    Listeners to store events do, because they cannot restart it.
    """
    if path == "/mcp":
        return method != "GET" and headers.get(b"mcp-method") != _LISTEN_METHOD
    return path not in _PROBES


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the client's request id if it is well-formed, otherwise a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode("ascii") if _GIVEN_ID.fullmatch(given) else f"{_new_id(64):016x}"


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def require_route_role(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Check the caller's role, as Litestar's guard of all routes.

    A route without an Operation (OPTIONS, the files of /docs) accepts any key.
    Raises Forbidden, and NotFound for a store that the caller may not access.
    """
    context = cast("RequestContext", connection.scope["state"]["request_context"])
    operation = cast("ApiOperation | None", handler.opt.get(OPERATION_OPT_KEY))
    if operation is None:
        context.authorize(connection.path_params.get("store"))
    else:
        authorize_request(cast("HTTPScope", connection.scope), operation, connection.app.state["service"])


def authorize_request(
    scope: HTTPScope, operation: ApiOperation, service: RequestHandlerDependencies
) -> RequestHandlerDependencies:
    """Authorize the caller for an operation; return the service restricted to its stores, and set it in the state.

    Raises Forbidden, NotFound for a store that the caller may not access, and InvalidInput for invalid headers.
    """
    state, graphs = scope["state"], service.graphs
    context = cast("RequestContext", state["request_context"])
    store: str | None = scope["path_params"].get("store")
    if operation.of_default:
        store = quote(select_request_store(scope, graphs.settings.default_store).name, safe="")
    context.authorize(store, operation.id, operation.role)
    if context.caller is not graphs.caller:
        graphs = graphs.for_caller(context.caller)
    if READ_FROM_HEADER_BYTES in dict(scope["headers"]) and (
        replica_read := parse_replica_read_headers(scope, operation)
    ):
        state[REPLICA_READ_STATE_KEY] = replica_read
        graphs = graphs.reading(replica_read)
    if graphs is not service.graphs:
        service = service._replace(graphs=graphs)
    state[SERVICES_STATE_KEY] = service
    return service


class HttpRequestResponseCycle:
    """One request and its response: wraps ``receive`` and ``send`` to add headers and to count bytes."""

    def __init__(
        self, scope: HTTPScope, receive: Receive, send: Send, context: RequestContext, headers: dict[bytes, bytes]
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context = context
        self._unread = _has_body(headers)
        self._is_head = scope["method"] == "HEAD"
        extensions = cast("Mapping[str, Any]", scope.get("extensions") or {})
        self._send_whole: SendCompleteResponse | None = (
            None if self._is_head else extensions.get(SEND_COMPLETE_EXTENSION)
        )
        self._coding = headers.get(b"accept-encoding")
        self._known = headers.get(b"if-none-match")
        self.headers = headers
        self._is_secure = scope["scheme"] == "https"
        self._held: list[Header] | None = None
        self._started = time.perf_counter()
        self.received = self.sent = 0
        self.streamed = False
        self.begun = False
        """True if a part of the response was sent."""
        self._left = False
        self._complete = False
        self.refused = False
        self.extra: tuple[Header, ...] = ()
        self.status: int | None = None
        self.request_id = context.request_id

    async def receive(self) -> ReceiveMessage:
        """Receive an ASGI message; tracks the end of the body, disconnection and revoked keys."""
        message = await self._receive()
        if late := self._scope["state"].get(BODY_TIMEOUT_STATE_KEY):
            if not self.begun:
                await self.refuse(late)
            return {"type": "http.disconnect"}
        if self.received and message["type"] == "http.request" and self._revoked():
            if not self.begun:
                await self.refuse(Unauthenticated(KEY_REVOKED_MESSAGE))
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self._unread = message.get("more_body", False)
            self.received += len(message.get("body", b""))
        elif message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def send(self, message: Message) -> None:
        """Send an ASGI message. A head with a Content-Length waits for its body, so that both are sent together."""
        if self.refused:
            return
        if message["type"] == "http.response.start":
            self.status = int(message["status"])  # the MCP SDK sends enumeration members
            headers: list[Header] = [*message["headers"]]
            self.streamed = self._scope["method"] == "GET" and _is_stream(headers)
            if any(name == b"content-length" for name, _ in headers):
                self._held = headers
            else:
                await self._send_head(self.status, headers)
        elif message["type"] == "http.response.body":
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))

    async def send_complete(self, answer: ServerHttpResponse) -> None:
        """Send a complete response: compressed if the client accepts gzip, 304 if its ETag matches."""
        status, headers, body = answer
        if status == _OK and self._scope["path"] != "/mcp":
            status, headers, body = await self._compress(answer)
        self.status, self.sent, self._complete, self.begun = status, len(body), True, True
        send_whole = self._send_whole
        if send_whole is not None:
            head = encode_header_lines(self._with_own_headers(headers), secure=self._is_secure)
            if send_whole(status, head, body, self._unread):
                return
        await self._send_head(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def send_plain_json(self, body: bytes) -> bool:
        """Send the answer 200 with a JSON body, as `send_complete` does; False if it needs what only that does."""
        send_whole = self._send_whole
        compressible = len(body) >= MIN_GZIP_BYTES
        if (
            send_whole is None
            or self.extra
            or (compressible and accepts_gzip(self._coding))
            or REPLICA_READ_STATE_KEY in self._scope["state"]
        ):
            return False
        head = _PLAIN_JSON_HEADS[compressible, self._is_secure] % (len(body), self.request_id.encode())
        if not send_whole(_OK, head, body, self._unread):
            return False
        self.status, self.sent, self._complete, self.begun = _OK, len(body), True, True
        return True

    async def refuse(self, error: Exception) -> None:
        """Answer with ``error`` as a problem document."""
        self._scope["state"][ERROR_CODE_STATE_KEY] = error_code_of(error)
        answer = build_error_response(error, self.request_id, request_target(self._scope))
        if isinstance(error, ConflictManual) and VERSIONED_NAMES_STATE_KEY in self._scope["state"]:
            answer = ServerHttpResponse.of(answer.status, rename_json_to_versioned_fields(answer.body), PROBLEM_JSON)
        await self.send_complete(answer)
        self.refused = True

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        if self._held is not None:
            headers, self._held = self._held, None
            status = self.status or _OK
            if not more:
                await self.send_complete(ServerHttpResponse(status, headers, body))
                return
            await self._send_head(
                status, [*headers, VARY_ENCODING_HEADER] if is_compressible_response(headers) else headers
            )
        if self.sent and not self.streamed and self._revoked():
            self.refused = True  # nothing more is sent, and uvicorn closes the connection
            raise Unauthenticated(KEY_REVOKED_MESSAGE)
        self.sent += len(body)
        self._complete = not more or self._is_head
        if more and self._is_head:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            self.refused = True
            raise ClientDisconnected
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _compress(self, answer: ServerHttpResponse) -> ServerHttpResponse:
        varies = len(answer.body) >= MIN_GZIP_BYTES and is_compressible_response(answer.headers)
        if self._known is not None and matches_etag(self._known, answer.headers):
            headers = build_not_modified_headers(answer.headers)
            return ServerHttpResponse(_NOT_MODIFIED, [*headers, VARY_ENCODING_HEADER] if varies else headers, b"")
        if not varies:
            return answer
        if not accepts_gzip(self._coding):
            return ServerHttpResponse(answer.status, [*answer.headers, VARY_ENCODING_HEADER], answer.body)
        body = await gzip_response_body(answer.body)
        return ServerHttpResponse(answer.status, build_gzip_response_headers(answer.headers, len(body)), body)

    async def _send_head(self, status: int, headers: list[Header]) -> None:
        self.begun = True
        full = add_security_headers(self._with_own_headers(headers), secure=self._is_secure)
        full += [CONNECTION_CLOSE] if self._unread else []
        await self._send({"type": "http.response.start", "status": status, "headers": full})

    def _with_own_headers(self, headers: list[Header]) -> list[Header]:
        """Return ``headers`` with those for CORS, the commit and age of a replica, and the request id."""
        replica = build_replica_headers(self._scope, headers) if REPLICA_READ_STATE_KEY in self._scope["state"] else ()
        return [*headers, *self.extra, *replica, (b"x-request-id", self.request_id.encode())]

    def _revoked(self) -> bool:
        """Return whether the key was revoked or expired during the request; event streams and MCP check themselves."""
        if self._context.caller.key_id is None or self._scope["path"] == "/mcp":
            return False
        return not self._context.still_valid

    @property
    def outcome(self) -> int | None:
        """Status of the response, or 499 if the client disconnected."""
        return CLIENT_DISCONNECTED_STATUS if self._left else self.status

    @property
    def seconds(self) -> float:
        """Seconds since the request began."""
        return time.perf_counter() - self._started

    def log(self) -> None:
        """Write the access log line; successful health probes are not logged."""
        if self._scope["path"] in _HEALTH and self.outcome == _OK:
            return
        path = mask_api_keys(self._scope["raw_path"][:_MAX_LOGGED_PATH_BYTES].decode("ascii"))
        who, ms = RequestCallerIdentity(self._context.caller.name, self._context.address), round(self.seconds * 1000, 2)
        request_line(self.request_id, who, self._scope["method"], path, self.outcome, ms, self.sent)


class _RequestMeasurement:
    """Context manager that measures a request: metrics, trace and slow log."""

    def __init__(self, observation: Telemetry, scope: HTTPScope, cycle: HttpRequestResponseCycle) -> None:
        self._observation = observation
        self._scope = scope
        self._cycle = cycle
        self._origin = OriginatingRequest(cycle.request_id)
        self._traced: AbstractContextManager[Any] | None = None
        self._span: Any = None

    def __enter__(self) -> None:
        self._token = set_originating_request(self._origin)
        tracing = self._observation.tracing
        if tracing is not None and self._scope["path"] not in _HEALTH:
            self._traced = tracing.request(self._origin.request_id, self._scope["method"], self._scope["headers"])
            self._span = self._traced.__enter__()
            self._origin.trace = tracing.context_of(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._count()
        finally:
            if self._traced is not None:
                self._traced.__exit__(kind, error, trace)
            reset_originating_request(self._token)

    def _count(self) -> None:
        cycle, method = self._cycle, self._scope["method"]
        route = self._scope.get("path_template") or UNMATCHED_ROUTE
        status = cycle.outcome or 0
        seconds = None if cycle.streamed else cycle.seconds
        self._observation.requests.done(method, route, status, (cycle.received, cycle.sent), seconds)
        if status >= _MIN_ERROR:
            self._observation.requests.refused.add(self._scope["state"].get(ERROR_CODE_STATE_KEY) or f"http_{status}")
        if seconds is not None and seconds >= self._observation.slow.seconds:
            self._note(method, route, status, seconds)
        if self._span is not None and self._observation.tracing is not None:
            self._observation.tracing.answered(self._span, method, route, status)

    def _note(self, method: str, route: str, status: int, seconds: float) -> None:
        caller = self._scope["state"]["request_context"].caller.name
        store = self._scope["state"]["request_context"].store
        fields = {"method": method, "route": route, "status": status, "store": store, "caller": caller}
        self._observation.slow.note("request", seconds, self._origin.parts, **fields)


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a response is an event stream, whose duration is not measured."""
    return any(name == b"content-type" and value.startswith(_STREAM_TYPE) for name, value in headers)


_PARAMETER = None
_METHODS_KEY = "/"


class RouteTable:
    """All routes: endpoints of the operation table, and handlers of streams and multi-format responses."""

    def __init__(self, cases: Iterable[ApiUseCase] = (), handlers: Iterable[HTTPRouteHandler] = ()) -> None:
        endpoints = [OperationEndpoint(case) for case in cases]
        own = [_handler(each, method) for each in endpoints for method in (each.case.method, *each.case.also)]
        self.handlers: tuple[HTTPRouteHandler, ...] = (*own, *handlers)
        self._tree: dict[str | None, Any] = {}
        for handler in self.handlers:
            for path in handler.paths:
                self._add(path.replace(":str", ""), handler)

    @property
    def routes(self) -> tuple[HTTPRouteHandler, ...]:
        """Litestar's routes. Those for OPTIONS are first, because Litestar adds its own to a path that has none yet."""
        paths = sorted({path for handler in self.handlers for path in handler.paths})
        return (*(self._options(path) for path in paths), *self.handlers)

    def find(self, method: str, path: str) -> tuple[DirectAsgiEndpoint, dict[str, str]] | None:
        """Return the endpoint at an encoded path, and its path parameters; None if Litestar must route the request."""
        node, given = self._tree, list[str]()
        for segment in path.split("/"):
            deeper = node.get(segment)
            if deeper is None:
                deeper = node.get(_PARAMETER)
                if deeper is None:
                    return None
                given.append(segment)
            node = deeper
        found = node.get(_METHODS_KEY, {}).get(method)
        return found and (found[0], dict(zip(found[1], given, strict=True)))

    def _add(self, template: str, handler: HTTPRouteHandler) -> None:
        node = self._tree
        for segment in template.split("/"):
            node = node.setdefault(_PARAMETER if segment.startswith("{") else segment, {})
        methods = node.setdefault(_METHODS_KEY, {})
        endpoint: DirectAsgiEndpoint | None = handler.opt.get(ENDPOINT_OPT_KEY)
        if endpoint is not None:
            names = tuple(segment[1:-1] for segment in template.split("/") if segment.startswith("{"))
            methods.update(dict.fromkeys(handler.http_methods, (endpoint, names)))

    def _options(self, path: str) -> HTTPRouteHandler:
        """Return the OPTIONS handler of a path. Litestar's own lists the methods of the first handler only."""
        methods = {str(method) for handler in self.handlers if path in handler.paths for method in handler.http_methods}
        heads = {"HEAD"} if "GET" in methods else set[str]()
        allow = ", ".join(sorted(methods | heads | {"OPTIONS"}))

        async def options() -> Response[None]:
            return Response(None, headers={"allow": allow})

        return HTTPRouteHandler(path, http_method="OPTIONS", status_code=204)(options)


def _handler(endpoint: OperationEndpoint, method: Method) -> HTTPRouteHandler:
    case = endpoint.case
    opt = build_litestar_opt(case.operation) | {ALIAS_OPT_KEY: method != case.method}
    if case.status is None:
        opt[ENDPOINT_OPT_KEY] = endpoint
    path, status = case.path.replace("}", ":str}"), case.operation.statuses[0]
    route = HTTPRouteHandler(path, http_method=method, status_code=status, opt=opt)

    async def respond(request: Request[Any, Any, Any]) -> Response[bytes]:
        return await endpoint.respond(request)

    respond.__name__, respond.__doc__ = case.name, case.description
    return route(respond)
