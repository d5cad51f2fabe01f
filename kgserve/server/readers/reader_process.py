"""A reader process: answers requests of connections that the server hands over, and returns those with other ones.

The fork server forks it. It ends when the server closes its channel, or asks for all connections.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog
import uvicorn
from typing_extensions import override
from uvicorn.server import ServerState

from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform import structured_log
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import ApiKeyFileCache, Authenticator
from kgserve.platform.metrics.app_metrics_and_request_context import LabeledCounter, RequestCounters, Telemetry
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.server.admission import AdmissionControl
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.http.connection import ConnectionRegistry, HttpConnectionLimits, HttpServerConnection
from kgserve.server.http.error_responses import CLIENT_DISCONNECTED_STATUS, ClientDisconnected
from kgserve.server.http.fair_callbacks import FairCallbackQueue
from kgserve.server.http.gateway import HttpGatewayMiddleware
from kgserve.server.http.request_decoding import RequestHandlerDependencies
from kgserve.server.http.sse import EventStreamRegistry
from kgserve.server.readers.leased_rate_limiter import LeasedRateLimiter, RateLeaseMissing
from kgserve.server.readers.reader_channel import (
    MAX_HANDED_BYTES,
    READER_ROUTES,
    ClosedClientConnection,
    GrantedRateLease,
    RateLeaseRequest,
    ReaderProcessReport,
    ReaderProcessStarted,
    ReaderRouteCounts,
    ReturnAllConnections,
    ReturnedConnection,
    ReturnedInputPart,
    count_missing_request_bytes,
    decode_server_message,
    receive_reader_message,
    send_reader_message,
)
from kgserve.server.readers.reader_process_stores import ReaderProcessStores
from kgserve.server.readers.shared_commit_page import SharedCommitPage

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.types import HTTPScope
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from kgserve.platform.access.authentication import RequestContext
    from kgserve.platform.settings import Settings
    from kgserve.server.http.gateway import HttpRequestResponseCycle
    from kgserve.stores.pool import StorePool

log = structlog.get_logger()

MAX_WALK_EDGES = 10_000
"""Edges that a walk may visit in a reader process, about 5 ms; the server runs larger walks in threads."""
RELEASE_INTERVAL_SECONDS = 0.25
"""Seconds between two looks for bases that were replaced."""
TICKS_PER_REPORT = 4
RETURN_POLL_SECONDS = 0.01
STOP_TIMEOUT_SECONDS = 2.0
"""Seconds that connections may take to close at the end."""
_RETURN_EXTENSION = "kgserve.return_connection"
"""Key of the scope's extensions for a function that returns the connection, with its request, to the server."""


class _AnsweredRequestCounters(RequestCounters):
    """Counters that leave out requests that were not answered."""

    @override
    def done(self, method: str, route: str, status: int, sizes: tuple[int, int], seconds: float | None) -> None:
        if status:
            super().done(method, route, status, sizes, seconds)


class ReaderHttpGateway(HttpGatewayMiddleware):
    """Gateway that sends successful answers only. The server repeats any other request from the beginning."""

    def __init__(self, *args: Any, rates: LeasedRateLimiter, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rates = self._leased_rates = rates

    @override
    async def _answer(self, scope: HTTPScope, cycle: HttpRequestResponseCycle, context: RequestContext) -> None:
        try:
            try:
                await self._check_and_route(scope, cycle, context)
            except RateLeaseMissing as missing:
                await self._leased_rates.renew(missing.bucket)
                await self._check_and_route(scope, cycle, context)
        except ClientDisconnected:  # or its body came too late, which was answered
            cycle.status = cycle.status or CLIENT_DISCONNECTED_STATUS
            cycle.log()
        except Exception as error:
            # The server meets the same error, answers it and records it.
            if cycle.begun:
                if not cycle.refused:
                    log.exception("answer_broken_off")
                return
            log.debug("request_returned", reason=repr(error))
            cast("Callable[[], None]", (scope.get("extensions") or {})[_RETURN_EXTENSION])()
        else:
            cycle.log()


class ReaderHttpConnection(HttpServerConnection):
    """Connection that the server handed over. Returns to it with the first request that is not for `READER_ROUTES`."""

    def __init__(self, *args: Any, reader: ReaderProcess, number: int, first: bytes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reader = reader
        self._number = number
        self._request = first
        self._missing = 0
        self._later = b""
        self._is_returning = self._is_returned = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.data_received(self._request)  # here, because the transport reads before it runs other callbacks

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._is_returned:
            self._reader.tell(ClosedClientConnection(self._number))

    @override
    def data_received(self, data: bytes) -> None:
        if self._missing:
            data, rest = data[: self._missing], data[self._missing :]
            self._missing -= len(data)
            self._request += data
            self._defer(rest)
            super().data_received(data)
        elif self._later or self._is_returning or not self.is_between_requests:
            self._defer(data)
        else:
            missing = count_missing_request_bytes(data)
            self._request, self._missing = data, missing or 0
            if missing is None or self._reader.is_retiring:
                self.return_connection()
            else:
                super().data_received(data)

    @override
    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        extensions = cast("dict[str, Any]", self.scope.get("extensions"))
        extensions[_RETURN_EXTENSION] = partial(self._return_request, self.cycle)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._later:
            self.loop.call_soon(self._take_deferred)

    def _defer(self, data: bytes) -> None:
        """Keep input until the response is complete. Much of it stays in the socket, which bounds the memory."""
        self._later += data
        if len(self._later) >= MAX_HANDED_BYTES and not self.wire.is_closing():
            self.flow.pause_reading()

    def _take_deferred(self) -> None:
        data, self._later = self._later, b""
        self.data_received(data)

    def _return_request(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True  # uvicorn expects no answer
        self.return_connection()

    def return_if_idle(self) -> None:
        """Hand the connection back to the server unless a request is in progress."""
        if self.is_between_requests and not (self._missing or self._later or self._is_returning):
            self._request = b""
            self.return_connection()

    def return_connection(self) -> None:
        """Hand the connection and its unanswered request back to the server, once earlier answers were sent."""
        self._is_returning, self._missing = True, 0
        self._unset_keepalive_if_required()
        if self.wire.is_closing():
            return
        if self.wire.get_write_buffer_size():
            self.loop.call_later(RETURN_POLL_SECONDS, self.return_connection)
            return
        self._is_returned = True
        descriptor = self.wire.get_extra_info("socket").fileno()
        data = self._request + self._later
        while len(data) > MAX_HANDED_BYTES:
            self._reader.tell(ReturnedInputPart(self._number, data[:MAX_HANDED_BYTES]))
            data = data[MAX_HANDED_BYTES:]
        self._reader.tell(ReturnedConnection(self._number, data), descriptor)
        self.wire.abort()  # closes this process's descriptor only


class ReaderProcess:
    """The state of a reader process: its channel to the server, its connections and stores."""

    def __init__(self, channel: socket, number: int, page: SharedCommitPage, settings: Settings, token: str) -> None:
        self._channel = channel
        self._number = number
        self._page = page
        self._observation = Telemetry(settings)
        self._observation.requests = _AnsweredRequestCounters()
        self._stores = ReaderProcessStores(settings, page, self._observation)
        graphs = CallerStoreHandles(cast("StorePool", self._stores))
        graphs.max_nonblocking_edges = MAX_WALK_EDGES
        admission = AdmissionControl(settings)
        callbacks = FairCallbackQueue(admission.callers.has_others)
        service = RequestHandlerDependencies(
            graphs, admission, callbacks, EventStreamRegistry(0, 0, callbacks), cast("ClusterNodeHttpClient", None)
        )
        authenticator = Authenticator(settings, ApiKeyFileCache(settings.data_dir), token)
        audit = AuditLog(settings.data_dir, rotating=False)
        self._rates = LeasedRateLimiter(settings.rate_limit, lambda bucket: self.tell(RateLeaseRequest(bucket)))
        gateway = ReaderHttpGateway(
            _refuse,
            settings,
            self._observation,
            authenticator,
            audit,
            service,
            READER_ROUTES,
            rates=self._rates,
        )
        self._registry = ConnectionRegistry(HttpConnectionLimits.from_settings(settings), lambda _: True)
        self._server_state = ServerState()
        self._config = uvicorn.Config(
            cast("ASGI3Application", gateway),
            ws="none",
            timeout_keep_alive=cast("int", settings.keep_alive),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        self._adopting = set[asyncio.Task[Any]]()
        self._ending = asyncio.Event()
        self.is_retiring = False
        """True if all connections go back to the server."""

    def tell(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Send a message to the server, which always reads; ignored once it has ended."""
        with suppress(OSError):
            send_reader_message(self._channel, message, descriptor)

    async def run(self) -> None:
        """Answer requests until the server closes the channel and the connections have closed."""
        self._config.load()
        self._set_date()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel, self._receive)
        self.tell(ReaderProcessStarted(os.getpid()))
        ticks = 0
        while not self._ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), RELEASE_INTERVAL_SECONDS)
            ticks += 1
            self._tend(is_report_due=ticks % TICKS_PER_REPORT == 0)
            if self.is_retiring:
                self._return_idle_connections()
        loop.remove_reader(self._channel)
        until = loop.time() + STOP_TIMEOUT_SECONDS
        while (left := list(self._server_state.connections)) and loop.time() < until:
            for connection in left:
                connection.shutdown()
            await asyncio.sleep(0.01)
        self._tend(is_report_due=True)
        structured_log.flush_buffered_log_lines()

    def _tend(self, *, is_report_due: bool) -> None:
        change = self._page.change
        self._stores.release_replaced_bases()
        self._page.release(self._number, change)
        if is_report_due:
            self._set_date()
            self._report()

    def _set_date(self) -> None:
        self._server_state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    def _report(self) -> None:
        requests, slow = self._observation.requests, self._observation.slow.counted
        routes = [
            ReaderRouteCounts(route, method, each.statuses, each.received, each.sent, measured.sum, measured.counts)
            for (route, method), each in requests.routes.items()
            for measured in (each.seconds.measured(),)
        ]
        if routes or self._stores.used:
            refused = {code: count for (code,), count in requests.refused.counts().items()}
            self.tell(ReaderProcessReport(routes, refused, int(slow.total()), self._stores.used))
            requests.routes.clear()
            requests.refused, self._observation.slow.counted = LabeledCounter(), LabeledCounter()
            self._stores.used = set()

    def _receive(self) -> None:
        while (found := receive_reader_message(self._channel)) is not None:
            if not found.content:
                self._ending.set()
                return
            message = decode_server_message(found.content)
            if isinstance(message, GrantedRateLease):
                self._rates.grant(message.bucket, message.tokens)
            elif isinstance(message, ReturnAllConnections):
                self.is_retiring = True
                self._return_idle_connections()
            elif found.descriptor is not None:
                self._adopt(message.number, message.data, socket(fileno=found.descriptor))

    def _return_idle_connections(self) -> None:
        """Return connections without a request in progress; without any connection, end."""
        for connection in list(self._server_state.connections):
            cast("ReaderHttpConnection", connection).return_if_idle()
        if not (self._server_state.connections or self._adopting):
            self._ending.set()

    def _adopt(self, number: int, data: bytes, connection: socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the name is Python's
        protocol = partial(
            ReaderHttpConnection,
            config=self._config,
            server_state=self._server_state,
            app_state={},
            open_connections=self._registry,
            reader=self,
            number=number,
            first=data,
        )
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(protocol, connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)


async def _refuse(*_: object) -> None:
    """Raise WouldBlock for a request without a route of its own."""
    raise WouldBlock


def run_reader_process(channel: socket, number: int, page: SharedCommitPage, settings: Settings, token: str) -> None:
    """Run a reader process until the server ends it."""
    gc.enable()

    async def run() -> None:
        await ReaderProcess(channel, number, page, settings, token).run()

    with asyncio.Runner(loop_factory=uvicorn.Config(_refuse).get_loop_factory()) as runner:
        runner.run(run())
