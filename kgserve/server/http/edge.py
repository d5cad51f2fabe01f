"""What every request passes before any handler, and every answer after it.

Request id, the browser guard, CORS, who the caller is and from where, rate limits, authorization of the routes, the
count, the trace and the access line.

Routing happens on the path as it was sent. Decoding it first, as ASGI's ``path`` does, would let an id with ``%2F`` in
it fall apart into segments; handlers decode names and ids themselves. Paths with empty segments name nothing: were
they tidied up, a client that forgot an id would reach the resource above it.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

import structlog
from litestar.enums import ScopeType

from kgserve.api.operation import OPERATION_OPT_KEY, Operation
from kgserve.errors import Forbidden, InvalidInput, Limited, NotFound, Unauthenticated, Unavailable
from kgserve.platform.access.authentication import ANONYMOUS_CALLER, Hidden, RequestContext, WrongKey
from kgserve.platform.hosts import is_loopback, network_of
from kgserve.platform.log import Who, masked
from kgserve.platform.log import request as request_line
from kgserve.platform.metrics.observation import UNMATCHED_ROUTE, Origin, begin_request, end_request
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.server.http.coding import (
    GZIP,
    LEAST,
    VARY,
    as_gzip,
    is_known,
    may_be_smaller,
    smaller,
    takes_gzip,
    without_body,
)
from kgserve.server.http.connection import (
    EXPOSED_HEADERS,
    LATE,
    PREFLIGHT,
    SEND_AT_ONCE,
    SendAtOnce,
    in_task,
    json_head,
    with_standard_headers,
)
from kgserve.server.http.problem import (
    CLIENT_LEFT,
    MEDIA_TYPE,
    REFUSED,
    ClientLeft,
    Misdirected,
    code_of,
    is_passed_on,
    render,
    target_of,
)
from kgserve.server.http.service import Use, authorized_store, bear_with_copies, read_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler
    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
    from litestar.types.asgi_types import HTTPResponseBodyEvent, HTTPResponseStartEvent, ReceiveMessage

    from kgserve.platform.access.audit import Audit
    from kgserve.platform.access.authentication import Authenticator, Caller
    from kgserve.platform.metrics.observation import Observation
    from kgserve.platform.settings import Settings
    from kgserve.server.http.connection import Header
    from kgserve.server.http.service import Shortcuts

log = structlog.get_logger()

UNKNOWN = "unknown"
"""The address of a client that has none."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
DEFAULT_PORTS = {"http": 80, "https": 443}

MAX_BUCKETS = 10_000
"""Callers that are remembered; the one that was silent for longest is forgotten first, which refills its bucket."""
BURST_SECONDS = 2
"""A bucket holds what comes in so many seconds."""
FAILURES_PER_SECOND = 0.2
FAILURES_AT_ONCE = 20.0

REVOKED = "the key is not valid any more: it was revoked or has expired while the request was under way"

_new_id = random.Random().getrandbits  # noqa: S311 - ids tell requests apart and keep nothing secret
_GIVEN_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_LOGGED_PATH = 300
_OK, _NOT_MODIFIED, _LEAST_ERROR = 200, 304, 400
_STREAM = b"text/event-stream"
_CLOSE = (b"connection", b"close")

_HOST_LENGTH = 255
_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=._~:@%\[\]-]*")  # RFC 3986, 3.2.2, and the port

_SCHEMES = ("http", "https")
_VARY_BY_ORIGIN: Header = (b"vary", b"Origin")
_PRIVATE = b"access-control-request-private-network"

_HEALTH, _PROBES = frozenset({"/health", "/ready"}), frozenset({"/health", "/ready", "/metrics"})
_LISTENING = b"subscriptions/listen"

_FORWARDED_FOR = b"x-forwarded-for"
_MAX_HOPS = 20
_is_local = lru_cache(maxsize=1024)(is_loopback)


class Gateway:
    """Wraps ``app``; every HTTP request passes through it first and every answer last."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        observation: Observation,
        authenticator: Authenticator,
        audit: Audit,
        shortcuts: Shortcuts,
    ) -> None:
        """Raises InvalidInput for settings that say nothing sensible."""
        self._app = app
        self.shortcuts = shortcuts
        self._observation = observation
        self._authenticator = authenticator
        self._audit = audit
        self._proxies = Proxies.parse(settings.trusted_proxies)
        self._origins = AllowedOrigins.parse(settings.cors_origins)
        self._rates = RateLimits(settings.rate_limit)
        self._hides_explorer = not settings.explorer
        self._in_cluster = bool(settings.cluster)
        self._guard = BrowserGuard(settings.host, self._origins, settings.allowed_hosts)
        self.running = 0
        """Requests that are being worked on, open streams among them."""
        self.use = Use(shortcuts.service.callers)
        self._idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry; anything but HTTP goes through untouched."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        if scope["raw_path"] == b"/mcp/":
            # Many clients' settings have it so; a redirect would be followed by few of them.
            scope["raw_path"] = b"/mcp"
        scope["path"] = scope["raw_path"].decode("ascii")
        act = f"{scope['method']} {scope['path']}"
        headers = dict(scope["headers"])
        context = RequestContext(self._authenticator, self._audit, _request_id(headers), act, self._address(scope))
        scope.setdefault("state", {})["request_context"] = context
        asked = scope
        if scope["method"] == "HEAD" and scope["path"] != "/mcp":
            # As if it were a GET, for everybody but who sends the answer: that one leaves out the body.
            asked = cast("HTTPScope", {**scope, "method": "GET"})
        exchange = RequestCycle(scope, receive, send, context, headers)
        exchange.extra = self._origins.headers(scope["headers"])
        counts = _is_use(scope["method"], scope["path"], headers)
        self.running += 1
        if counts:
            self.use.begin()
        bound = structlog.contextvars.bind_contextvars(request_id=context.request_id)
        try:
            with _Observed(self._observation, scope, exchange):
                await self._answer(asked, exchange, context)
                scope["path_template"] = asked.get("path_template", "")
                context.ended(exchange.status)
        finally:
            structlog.contextvars.reset_contextvars(**bound)
            self.running -= 1
            if counts:
                self.use.end()
            if not self.running:
                self._idle.set()

    async def wait_until_idle(self, patience: float) -> None:
        """Wait until no request is being worked on, at most ``patience`` seconds; those cut off close their things."""
        self._idle.clear()
        if self.running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), patience)

    async def _answer(self, scope: HTTPScope, exchange: RequestCycle, context: RequestContext) -> None:
        try:
            self._guard.check(scope["headers"])
            if preflight := self._origins.preflight(scope["method"], scope["headers"]):
                await exchange.no_content(preflight)
                return
            self._let_in(scope, context, exchange.headers)
            self._check_path(scope["path"])
            is_passed = self._in_cluster and is_passed_on(exchange.headers)
            if not is_passed and (found := self.shortcuts.find(scope)):
                await exchange.reply(await self.shortcuts.answered(found, scope, exchange.receive))
            else:
                await in_task()
                await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # the grace time of a stop is over
            if exchange.status is None:
                await exchange.refuse(Unavailable("the server is stopping"))
        except ClientLeft:
            exchange.status = exchange.status or CLIENT_LEFT
        except Exception as error:
            if isinstance(error, Hidden):
                context.hidden = error.store
            if exchange.status is None:
                await exchange.refuse(error)
            elif not exchange.refused:
                log.exception("answer_broken_off")  # the server cuts the connection: the client sees a partial answer
        finally:
            exchange.log()

    def _check_path(self, path: str) -> None:
        if "//" in path or (path.endswith("/") and path != "/"):
            raise NotFound("a path with an empty segment names nothing; an empty id or a trailing slash?")
        if self._hides_explorer and (path == "/" or path.startswith("/explorer/")):
            raise NotFound("the explorer is turned off on this server: --explorer false")

    def _address(self, scope: HTTPScope) -> str:
        """The client's address, behind proxies as they say."""
        client = scope["client"]
        return self._proxies.client(client[0], scope["headers"]) if client else UNKNOWN

    def _let_in(self, scope: HTTPScope, context: RequestContext, headers: Mapping[bytes, bytes]) -> None:
        """Find out who comes, and count the request. Raises Unauthenticated, Limited."""
        try:
            caller = self._authenticator.authenticate(scope["path"], scope["query_string"], scope["headers"])
        except WrongKey:
            self._rates.failed(context.address)
            raise
        except Unauthenticated:
            self._rates.admit(ANONYMOUS_CALLER, context.address)
            raise
        context.caller = caller
        asker.set(context.asker)
        self._rates.admit(caller, context.address)
        if _is_use(scope["method"], scope["path"], headers):
            self.shortcuts.service.callers.asks(context.asker)


def _is_use(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is for somebody's work. Probes are not, nor the streams that idle editors of MCP keep open.

    An editor that comes back has a server started. Who listens to events of stores has not, so that is use.
    """
    if path == "/mcp":
        return method != "GET" and headers.get(b"mcp-method") != _LISTENING
    return path not in _PROBES


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The one that was sent along, if it is fit for a log; else a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode("ascii") if _GIVEN_ID.fullmatch(given) else f"{_new_id(64):016x}"


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def check_role(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Litestar's guard of all routes. Raises Forbidden, and NotFound for a store that is not the caller's.

    A route without an Operation (those of OPTIONS, the files of /docs) needs the least that there is: some key.
    """
    context = cast("RequestContext", connection.scope["state"]["request_context"])
    operation = cast("Operation | None", handler.opt.get(OPERATION_OPT_KEY))
    if operation is None:
        context.authorize(connection.path_params.get("store"))
    else:
        store = authorized_store(cast("HTTPScope", connection.scope), operation, connection.app.state["service"])
        context.authorize(store, operation.id, operation.role)
        bear_with_copies(cast("HTTPScope", connection.scope), operation)


class RequestCycle:
    """One request and its answer: wraps ``receive`` and ``send`` to stamp headers and to count."""

    def __init__(
        self, scope: HTTPScope, receive: Receive, send: Send, context: RequestContext, headers: Mapping[bytes, bytes]
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._context = context
        self._unread = _has_body(headers)
        self._is_head = scope["method"] == "HEAD"
        self._coding = headers.get(b"accept-encoding")
        self._known = headers.get(b"if-none-match")
        self.headers = headers
        self._held: HTTPResponseStartEvent | None = None
        self._started = time.perf_counter()
        self.received = self.sent = 0
        self.streamed = False
        self._left = False
        self._complete = False
        self.refused = False
        self.extra: tuple[Header, ...] = ()
        self.status: int | None = None
        self.request_id = context.request_id

    async def receive(self) -> ReceiveMessage:
        """As ASGI's, watching for the end of the body and for the client leaving."""
        message = await self._receive()
        if late := self._scope["state"].get(LATE):
            if self.status is None:
                await self.refuse(late)
            return {"type": "http.disconnect"}
        if self.received and message["type"] == "http.request" and self._revoked():
            if self.status is None:
                await self.refuse(Unauthenticated(REVOKED))
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            self._unread = message.get("more_body", False)
            self.received += len(message.get("body", b""))
        elif message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def send(self, message: Message) -> None:
        """As ASGI's. An answer given before the body was read closes the connection, so that the rest never comes."""
        if self.refused:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
            return
        if message["type"] == "http.response.body":
            if self.sent and not self.streamed and self._revoked():
                self.refused = True  # nothing more goes out, and the server cuts the connection
                raise Unauthenticated(REVOKED)
            if self._held is not None:
                message["body"] = await self._coded(self._held, message)
            if self.status == _NOT_MODIFIED:
                message["body"] = b""
            self.sent += len(message["body"])
            more = message.get("more_body", False)
            self._complete = not more or self._is_head
            if more and self._is_head:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                self.refused = True
                raise ClientLeft
        await self._send(message)

    async def _start(self, message: HTTPResponseStartEvent) -> None:
        """Send the head; that of what may become gzip waits for the body."""
        self.status = int(message["status"])  # the SDK of MCP sends members of an enumeration
        self.streamed = self._scope["method"] == "GET" and _is_stream(message["headers"])
        headers: list[Header] = [*message["headers"]]
        if self.status == _OK and self._scope["path"] != "/mcp":
            length = next((int(value) for name, value in headers if name == b"content-length"), 0)
            if self._known is not None and is_known(self._known, headers):
                self.status = message["status"] = _NOT_MODIFIED
                message["headers"] = without_body(headers)
            elif length >= LEAST and may_be_smaller(headers):
                if takes_gzip(self._coding):
                    self._held = message
                    return
                message["headers"] = [*headers, VARY]
        await self._send_start(message)

    async def _send_start(self, message: HTTPResponseStartEvent) -> None:
        given = [
            *message["headers"],
            *self.extra,
            *read_from(self._scope, message["headers"]),
            (b"x-request-id", self.request_id.encode()),
        ]
        headers = with_standard_headers(given, secure=self._scope["scheme"] == "https")
        message["headers"] = [*headers, _CLOSE] if self._unread else headers
        await self._send(message)

    async def _coded(self, start: HTTPResponseStartEvent, message: HTTPResponseBodyEvent) -> bytes:
        """The body behind a head that waits, which is sent."""
        self._held = None
        body = message["body"]
        if not message.get("more_body", False):
            body = await smaller(body)
            start["headers"] = as_gzip(start["headers"], len(body))
        await self._send_start(start)
        return body

    def _revoked(self) -> bool:
        """Whether the key has ended since it was let in. Streams of events and MCP ask for themselves."""
        if self._context.caller.key_id is None or self._scope["path"] == "/mcp":
            return False
        return not self._context.still_valid

    async def reply(self, body: bytes) -> None:
        """Answer with JSON: at once where the server can, or piece by piece."""
        coded: tuple[Header, ...] = ()
        if len(body) >= LEAST:
            coded = (VARY,)
            if takes_gzip(self._coding):
                body, coded = await smaller(body), (VARY, GZIP)
        send_at_once = cast("SendAtOnce | None", (self._scope.get("extensions") or {}).get(SEND_AT_ONCE))
        if send_at_once is not None and not self._is_head:
            secure = self._scope["scheme"] == "https"
            head = json_head(len(body), (*coded, *self.extra, *read_from(self._scope)), self.request_id, secure=secure)
            if send_at_once(head, body, self._unread):
                self.status, self.sent, self._complete = 200, len(body), True
                return
        self.status = _OK
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *coded]
        await self._send_start({"type": "http.response.start", "status": _OK, "headers": fields})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def no_content(self, headers: Iterable[Header]) -> None:
        """Answer 204, without a body."""
        await self.send({"type": "http.response.start", "status": 204, "headers": list(headers)})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, error: Exception) -> None:
        """Answer with ``error`` as a problem document."""
        self._scope["state"][REFUSED] = code_of(error)
        status, extra, body = render(error, self.request_id, target_of(self._scope))
        headers = {**extra, "content-type": MEDIA_TYPE, "content-length": str(len(body))}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
        self.refused = True

    @property
    def outcome(self) -> int | None:
        """The status of the answer, or that of a client that has left."""
        return CLIENT_LEFT if self._left else self.status

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._started

    def log(self) -> None:
        """The access line."""
        if self._scope["path"] in _HEALTH and self.outcome == _OK:
            return
        path = masked(self._scope["raw_path"][:_LOGGED_PATH].decode("ascii"))
        who, ms = Who(self._context.caller.name, self._context.address), round(self.seconds * 1000, 2)
        request_line(self.request_id, who, self._scope["method"], path, self.outcome, ms, self.sent)


class _Observed:
    """While inside, a request is worked for; at the end it is counted."""

    def __init__(self, observation: Observation, scope: HTTPScope, exchange: RequestCycle) -> None:
        self._observation = observation
        self._scope = scope
        self._exchange = exchange
        self._origin = Origin(exchange.request_id)
        self._traced: AbstractContextManager[Any] | None = None
        self._span: Any = None

    def __enter__(self) -> None:
        """Begin."""
        self._token = begin_request(self._origin)
        tracing = self._observation.tracing
        if tracing is not None and self._scope["path"] not in _HEALTH:
            self._traced = tracing.request(self._origin.request_id, self._scope["method"], self._scope["headers"])
            self._span = self._traced.__enter__()
            self._origin.trace = tracing.context_of(self._span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count, and end the span."""
        try:
            self._count()
        finally:
            if self._traced is not None:
                self._traced.__exit__(kind, error, trace)
            end_request(self._token)

    def _count(self) -> None:
        exchange, method = self._exchange, self._scope["method"]
        route = self._scope.get("path_template") or UNMATCHED_ROUTE
        status = exchange.outcome or 0
        seconds = None if exchange.streamed else exchange.seconds
        self._observation.requests.done(method, route, status, (exchange.received, exchange.sent), seconds)
        if status >= _LEAST_ERROR:
            self._observation.requests.refused.add(self._scope["state"].get(REFUSED) or f"http_{status}")
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
    """Whether an answer is an event stream, which lasts for as long as somebody listens."""
    return any(name == b"content-type" and value.startswith(_STREAM) for name, value in headers)


class BrowserGuard:
    """Refuses what a browser could be tricked into: requests for another host's name, or made by other sites' pages.

    A server on a loopback address has no keys to ask for, but any page in a browser on that machine can reach it. The
    Host check stops names that were pointed at 127.0.0.1 (DNS rebinding), the Origin check stops pages of other sites.
    """

    def __init__(self, host: str, origins: AllowedOrigins | None = None, allowed_hosts: str = "") -> None:
        """``host`` is where the server is bound; ``allowed_hosts`` are further names, separated by commas.

        Where others may come, only those names are taken, if there are any.
        """
        further = {name.strip().lower().strip("[]") for name in allowed_hosts.split(",") if name.strip()}
        bounded = is_loopback(host) or further
        self._names = LOOPBACK_NAMES | {host.lower().strip("[]")} | further if bounded else None
        self._origins = origins or AllowedOrigins()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises InvalidInput, Misdirected or Forbidden."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
        if len(hosts) != 1 or not hosts[0]:
            raise InvalidInput("exactly one Host header is needed")
        host = _asked(hosts[0])
        if self._names is not None and host.name not in self._names:
            raise Misdirected(
                "this server answers for localhost, and for what --allowed-hosts names; the Host header names neither"
            )
        if not host.plain:
            raise InvalidInput("Invalid host header")
        for origin in origins:
            page = origin.decode("latin-1")
            if page not in self._origins and (host.parts is None or not _same(page, host.parts)):
                raise Forbidden("pages of other sites may not use this server")


class _AskedHost(NamedTuple):
    """A Host header: what it names, if it is well formed, and whether it is made of signs that may be in one."""

    parts: SplitResult | None
    name: str | None
    plain: bool

    @classmethod
    def parse(cls, header: bytes) -> _AskedHost:
        parts = _authority(f"//{header.decode('latin-1')}")
        return cls(parts, parts.hostname if parts else None, _HOST.fullmatch(header) is not None)


_parsed_host = lru_cache(maxsize=256)(_AskedHost.parse)


def _asked(header: bytes) -> _AskedHost:
    return _parsed_host(header) if len(header) <= _HOST_LENGTH else _AskedHost.parse(header)


def _authority(text: str) -> SplitResult | None:
    """``text`` split when it is no more than scheme, host and port, all well formed."""
    try:
        parts = urlsplit(text)
        odd = parts.path or parts.query or parts.fragment or parts.username is not None or parts.port == 0
    except ValueError:
        return None
    return None if odd or not parts.hostname else parts


def _same(origin: str, host: SplitResult) -> bool:
    page = _authority(origin)
    if page is None or page.scheme not in DEFAULT_PORTS:
        return False
    default = DEFAULT_PORTS[page.scheme]
    return page.hostname == host.hostname and (page.port or default) == (host.port or default)


class AllowedOrigins:
    """The web sites whose pages may use this server, and what their browsers are told.

    https://fetch.spec.whatwg.org/#http-cors-protocol is the protocol. Keys are sent as a header that a page sets
    itself, so no credentials of the browser are ever allowed.
    """

    def __init__(self, listed: frozenset[str] = frozenset()) -> None:
        self._listed = listed

    @classmethod
    def parse(cls, text: str) -> AllowedOrigins:
        """From origins that are separated by commas. Raises InvalidInput for what is none."""
        return cls(frozenset(_origin(part.strip()) for part in text.split(",") if part.strip()))

    def __bool__(self) -> bool:
        return bool(self._listed)

    def __contains__(self, origin: str) -> bool:
        return origin in self._listed

    def headers(self, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """What an answer says to the page that asked; nothing to others."""
        if not self._listed:
            return ()
        origin = next((value for name, value in given if name == b"origin"), None)
        if origin is None or origin.decode("latin-1") not in self._listed:
            return (_VARY_BY_ORIGIN,)
        return (
            _VARY_BY_ORIGIN,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
        )

    def preflight(self, method: str, given: Iterable[tuple[bytes, bytes]]) -> tuple[Header, ...]:
        """The answer to a browser that asks before a page's request; nothing when it is no such question."""
        if method != "OPTIONS" or not self._listed:
            return ()
        headers = dict(given)
        asks = b"access-control-request-method" in headers
        if not asks or headers.get(b"origin", b"").decode("latin-1") not in self._listed:
            return ()
        private = ((b"access-control-allow-private-network", b"true"),) if _PRIVATE in headers else ()
        return (*PREFLIGHT, *private)


def _origin(text: str) -> str:
    if text == "*":
        raise InvalidInput("--cors-origins: '*' would let every web site use this server; list the origins that may")
    if not _is_origin(text):
        raise InvalidInput(
            f"--cors-origins: {text!r} is no origin; one looks like https://app.example:8443, lower case and no path"
        )
    return text


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        bare = f"{parts.scheme}://{parts.netloc}" == text == text.lower() and parts.port != 0
    except ValueError:
        return False
    return bare and parts.scheme in _SCHEMES and bool(parts.hostname) and not {"*", "@"} & set(text)


class Proxies:
    """The reverse proxies in front of this server. Only those that were named are believed about who a client is."""

    def __init__(self, networks: tuple[IPv4Network | IPv6Network, ...] = ()) -> None:
        self._networks = networks

    @classmethod
    def parse(cls, text: str) -> Proxies:
        """From addresses and networks that are separated by commas. Raises InvalidInput."""
        return cls(tuple(_network(part.strip()) for part in text.split(",") if part.strip()))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def include(self, address: str) -> bool:
        """Whether a proxy has this address."""
        if not self._networks:
            return False
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address of the client: the peer's, or what the nearest proxy that is not ours wrote down.

        Each proxy adds whom it talks to at the end; what stands before the last one that we do not know is hearsay.
        """
        if not self.include(peer):
            return peer
        named = ",".join(value.decode("latin-1") for name, value in headers if name == _FORWARDED_FOR)
        for hop in reversed(named.split(",")[-_MAX_HOPS:]):
            parsed = _parsed(hop.strip())
            if parsed is None:
                return peer
            peer = str(parsed)
            if not self.include(peer):
                return peer
        return peer


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"--trusted-proxies: {text!r} is no address and no network: {error}") from None


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """An address with or without a port; an IPv4 address in IPv6's clothes is the IPv4 address."""
    host, _, rest = text.removeprefix("[").partition("]")
    if not rest and host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


class TokenBuckets:
    """One token bucket per name: ``rate`` tokens come in each second, up to ``size``."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float], most: int = MAX_BUCKETS) -> None:
        self._rate = rate
        self._size = size
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Take a token; 0, or the seconds after which there will be one."""
        now = self._clock()
        tokens = self._content(name, now)
        taken = tokens >= 1
        self._buckets[name] = (tokens - 1 if taken else tokens, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate

    def _content(self, name: str, now: float) -> float:
        tokens, then = self._buckets.get(name, (self._size, now))
        return min(self._size, tokens + (now - then) * self._rate)


class RateLimits:
    """The limits of one server, in requests per second; 0 turns off the one for requests."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._requests = TokenBuckets(rate, max(1.0, rate * BURST_SECONDS), clock) if rate else None
        self._failures = TokenBuckets(FAILURES_PER_SECOND, FAILURES_AT_ONCE, clock)

    def admit(self, caller: Caller, address: str) -> None:
        """Count a request. Raises Limited. Who asks from this machine without a key is not counted."""
        if self._requests is None:
            return
        if caller.key_id is not None:
            wait, who = self._requests.take(f"key {caller.key_id}"), f"the key {caller.name!r}"
        elif not _is_local(address):
            wait, who = self._requests.take(network_of(address)), address
        else:
            return
        if wait:
            raise Limited(f"more than {self.rate:g} requests per second of {who}; slow down", math.ceil(wait))

    def failed(self, address: str) -> None:
        """A key was wrong. Raises Limited when that happened too often.

        It keeps no right key out: one program with an old key, or one stranger behind the same router or proxy, would
        lock out all others. Looking at a key costs less than refusing one, and 256 random bits are not guessed.
        """
        if wait := self._failures.take(network_of(address)):
            raise Limited(f"too many wrong keys from {address}; wait", math.ceil(wait))
