"""Application and server process: wiring, startup and shutdown. Everything opened here is closed here."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import (
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import structlog
import uvicorn
from litestar import Litestar, asgi
from litestar.datastructures import State
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import Receive, Scope, Send
from msgspec import to_builtins
from threadpoolctl import threadpool_limits
from typing_extensions import override
from uvicorn.config import STARTUP_FAILURE
from uvicorn.server import logger as uvicorn_log

from kgserve import __version__
from kgserve.admin.composition_root import open_data_folder_services
from kgserve.errors import Conflict, InvalidInput, KgserveError
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform import structured_log
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import (
    ApiKeyFileCache,
    Authenticator,
    describe_network_exposure,
    require_api_key_if_exposed,
)
from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.file_descriptors import compute_max_connections, count_needed_descriptors, get_descriptor_limit
from kgserve.platform.server_discovery import replace_wildcard_host_in_url
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.projections.cypher_engine.engine.process import get_engine_fork_server
from kgserve.server.admission import AdmissionControl
from kgserve.server.bolt.app_lifespan_service import BoltService
from kgserve.server.bolt.store_backend import BoltStoreBackend
from kgserve.server.cluster_http_client import ClusterNodeHttpClient
from kgserve.server.http.connection import ConnectionRegistry, HttpConnectionLimits, HttpServerConnection
from kgserve.server.http.error_responses import reraise_error_through_litestar
from kgserve.server.http.fair_callbacks import FairCallbackQueue
from kgserve.server.http.gateway import HttpGatewayMiddleware, require_route_role
from kgserve.server.http.request_decoding import RequestHandlerDependencies
from kgserve.server.http.routes import ROUTES
from kgserve.server.http.sse import EventStreamRegistry
from kgserve.server.http.tls_certificate import ServerCertificate
from kgserve.server.http.trusted_proxies import TrustedProxies
from kgserve.server.mcp.endpoint import McpEndpoint
from kgserve.server.readers.reader_supervisor import create_reader_supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import FrameType

    from litestar.plugins import PluginProtocol

    from kgserve.platform.settings import Settings
    from kgserve.projections.cypher_engine.engine.process import EngineForkServer
    from kgserve.server.readers.connection_handover import HandoverHttpConnection
    from kgserve.server.readers.reader_supervisor import ReaderProcessSupervisor

logger = structlog.get_logger()

MAX_OPEN_FILES = 65_536
THREAD_SWITCH_INTERVAL_SECONDS = 0.0005
LISTEN_BACKLOG_CONNECTIONS = 2048
MAINTENANCE_INTERVAL_SECONDS = 1.0
"""Seconds between checks of server.json and of idleness."""
ENGINE_PRELOAD_SECONDS = 5.0
"""Seconds after startup at which the server preloads the engine; short-lived servers skip the cost."""
_TICK_SECONDS = 0.1
_LEAVING_POLL_SECONDS = 0.01


class _Application(Litestar):
    """Litestar without its pydantic and attrs plugins, whose import takes an eighth of the startup time."""

    @staticmethod
    @override
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def create_app(graphs: CallerStoreHandles, token: str | None = None, bolt: BoltService | None = None) -> Litestar:
    """Return the REST and MCP application for the stores of a data folder; its lifespan closes them.

    token: bearer token with all permissions, for local clients that read server.json. bolt: Bolt, served as long
    as the application runs.
    """
    pool = graphs.whole_pool
    authenticator, audit = Authenticator(pool.settings, ApiKeyFileCache(pool.data_dir), token), AuditLog(pool.data_dir)
    threads, forwarder = AdmissionControl(pool.settings), ClusterNodeHttpClient(pool.placement)
    endpoint = McpEndpoint(graphs, threads, forwarder)
    service = _build_service(graphs, threads, forwarder)
    for views in (graphs.indexer, graphs.historian):
        if views is not None:
            views.give_way(threads.callers.has_several)

    @asgi("/mcp", copy_scope=True)
    async def mcp(scope: Scope, receive: Receive, send: Send) -> None:
        await endpoint(scope, receive, send)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None]:
        forget_answers = partial(asyncio.get_running_loop().call_soon_threadsafe, threads.repeats.forget_all)
        pool.after_erasing.append(forget_answers)
        try:
            async with endpoint.running(), nullcontext() if bolt is None else bolt.serving(backend):
                yield
        finally:
            await edge.wait_until_idle(pool.settings.shutdown_grace / 4)
            await forwarder.close()
            structured_log.flush_buffered_log_lines()
            for companion in pool.companions:
                companion.halt()
            await asyncio.to_thread(pool.close)
            audit.close()

    app = _Application(
        route_handlers=[*ROUTES.routes, mcp],
        lifespan=[lifespan],
        state=State({"service": service, "mcp": endpoint}),
        exception_handlers={Exception: reraise_error_through_litestar},
        guards=[require_route_role],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,
    )
    handler = app.asgi_handler
    if pool.settings.cluster:
        from kgserve.server.http.forwarding_middleware import ForwardingMiddleware  # noqa: PLC0415 - needed by nodes of a cluster only

        handler = ForwardingMiddleware(handler, forwarder)
    edge = HttpGatewayMiddleware(handler, pool.settings, pool.observation, authenticator, audit, service, ROUTES)
    app.state["edge"] = edge
    backend = BoltStoreBackend(graphs, authenticator, audit, edge.rates, edge.use)
    app.asgi_handler = edge
    return app


def _build_service(
    graphs: CallerStoreHandles, admission: AdmissionControl, proxy: ClusterNodeHttpClient
) -> RequestHandlerDependencies:
    callbacks = FairCallbackQueue(admission.callers.has_others)
    streams = EventStreamRegistry(
        graphs.settings.max_event_streams, graphs.settings.max_event_streams_per_key, callbacks
    )
    return RequestHandlerDependencies(graphs, admission, callbacks, streams, proxy)


def run_server(settings: Settings) -> int:
    """Serve until a signal stops the server; return the exit code. Errors at startup go to standard error."""
    structured_log.configure_logging(settings.log_format, settings.log_level)
    get_engine_fork_server(settings.engine).log = (settings.log_format, settings.log_level)
    _raise_open_file_limit()
    try:
        if not settings.cluster:  # keys of a cluster are known after joining it
            require_api_key_if_exposed(settings, settings.data_dir)
        with (
            DataFolderLock(settings.data_dir) as lock,
            closing(bind_listener(settings.host, settings.port)) as listener,
            _bind_bolt(settings) as bolt_listener,
        ):
            if settings.cluster:
                # Other nodes redirect callers here from the first heartbeat on; these wait instead of being refused.
                listener.listen(LISTEN_BACKLOG_CONNECTIONS)
            _warn_if_open_to_others(settings)
            _warn_of_excess(settings)
            left_behind = _run(settings, lock, listener, bolt_listener)
    except KgserveError as error:
        print(f"kgserve: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if left_behind:
        # Everything is closed except a thread in the embedding model; a normal exit would abort the process.
        structured_log.flush_buffered_log_lines()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address and not listening yet. Raises Conflict or InvalidInput."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidInput(f"{host} is not an address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0).lower()
        raise Conflict(f"cannot listen on {host}, port {port}: {reason}; choose another with --port") from None
    return listener


@contextmanager
def _bind_bolt(settings: Settings) -> Generator[socket.socket | None]:
    """Yield the listener for Bolt; None if Bolt is turned off. Raises Conflict or InvalidInput."""
    if not settings.bolt_port:
        yield None
        return
    with closing(bind_listener(settings.host, settings.bolt_port)) as listener:
        yield listener


def _run(
    settings: Settings, lock: DataFolderLock, listener: socket.socket, bolt_listener: socket.socket | None
) -> bool:
    """Serve; return whether a thread is still running at the end."""
    certificate = ServerCertificate.from_settings(settings)
    host, port = listener.getsockname()[:2]
    url = f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    token = secrets.token_urlsafe(32)

    def publish() -> None:
        lock.publish(url, token, certificate.pem if certificate else None)

    def started() -> None:
        publish()
        # Objects that exist now live as long as the process; the collector need not scan them.
        gc.freeze()
        gc.enable()
        print("\n".join(_start_lines(settings, url)), flush=True)  # noqa: T201

    # Bounds how long a background thread delays a request; the default is 5 ms.
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_SECONDS)
    # Rows have no cycles; the default thresholds would scan 50,000 of them repeatedly.
    gc.set_threshold(100_000, 50, 100)
    # The embedding model's threads spin after each run, which would delay BLAS operations on all cores.
    threadpool_limits(1, user_api="blas")
    with ExitStack() as stack:
        opened = open_data_folder_services(settings, stack, url=url, token=token)
        if settings.cluster:
            require_api_key_if_exposed(settings, settings.data_dir)
        tls = None if certificate is None else certificate.context
        bolt = None if bolt_listener is None else BoltService(settings, bolt_listener, tls)
        app = create_app(opened.graphs(), token, bolt)
        readers = create_reader_supervisor(settings, token, opened.pool)
        server = HttpServer(uvicorn_config(app, settings, certificate, readers), settings.shutdown_grace, started)
        if readers is not None:
            server.readers = stack.enter_context(closing(readers))
        if certificate is not None:
            server.on_sighup = partial(_reload_certificate, certificate, publish)
        server.run_maintenance = partial(
            _maintain, server, lock, app.state["edge"], get_engine_fork_server(settings.engine), settings.idle_exit
        )
        server.run(sockets=[listener])
    return opened.indexer is not None and opened.indexer.left_behind


def _start_lines(settings: Settings, url: str) -> list[str]:
    """Return the lines for standard output once the server listens: text, or one JSON line."""
    if settings.log_format == "json":
        return [
            structured_log.format_json_log_line("listening", version=__version__, url=url, data=str(settings.data_dir))
        ]
    lines = [f"kgserve {__version__} listening on {url} (data: {settings.data_dir})"]
    if settings.bolt_port:
        scheme = "bolt+s" if settings.tls_cert else "bolt"
        lines.append(
            f"Bolt: {scheme}://{replace_wildcard_host_in_url(url).partition('://')[2].rpartition(':')[0]}:{settings.bolt_port}"
        )
    if settings.explorer:
        how = (
            f"open {replace_wildcard_host_in_url(url)}/"
            if ApiKeyFileCache(settings.data_dir).empty
            else "run `kgserve open`"
        )
        lines.append(f"to use it in a browser: {how}")
    return lines


async def _maintain(
    server: HttpServer, lock: DataFolderLock, edge: HttpGatewayMiddleware, engines: EngineForkServer, idle_exit: float
) -> None:
    """Keep server.json up to date, and stop the server after ``idle_exit`` idle seconds (0: never)."""
    settled = asyncio.get_running_loop().time() + ENGINE_PRELOAD_SECONDS
    while not server.should_exit:
        await asyncio.sleep(MAINTENANCE_INTERVAL_SECONDS)
        idle = edge.use.idle_seconds
        with suppress(OSError):  # a full disk or a deleted folder is reported elsewhere
            await asyncio.to_thread(lock.tend, in_use=idle < MAINTENANCE_INTERVAL_SECONDS)
            if asyncio.get_running_loop().time() >= settled:
                await asyncio.to_thread(engines.prepare)
        if 0 < idle_exit <= idle:
            logger.warning(
                "idle_exit", idle_seconds=round(idle), reason="no requests arrived; --idle-exit sets the limit"
            )
            server.handle_exit(signal.SIGTERM, None)


def _reload_certificate(certificate: ServerCertificate, publish: Callable[[], None]) -> None:
    """Reload the certificate; keep the current one if the files are not valid."""
    try:
        certificate.reload()
    except KgserveError as error:
        logger.error("certificate_not_renewed", reason=str(error))
    else:
        publish()
        logger.info("certificate_renewed")


def _raise_open_file_limit() -> None:
    """Raise the soft limit of open files, usually 1,024; connections and stores need more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has a limit of its own below an unlimited one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def uvicorn_config(
    app: Litestar,
    settings: Settings,
    certificate: ServerCertificate | None = None,
    readers: ReaderProcessSupervisor | None = None,
) -> uvicorn.Config:
    """Return uvicorn's configuration; connections get half of the grace period, closing the stores the other half."""
    connections = ConnectionRegistry(
        HttpConnectionLimits.from_settings(settings), TrustedProxies.parse(settings.trusted_proxies).contains
    )
    app.state["connections"] = connections
    app.state["certificate"] = certificate
    app.state["readers"] = readers
    protocol = (
        readers.connection_class(connections)
        if readers
        else partial(HttpServerConnection, open_connections=connections)
    )
    return uvicorn.Config(
        app,
        http=cast("type[HttpServerConnection]", protocol),
        ws="none",
        timeout_keep_alive=cast("int", settings.keep_alive),
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, int(settings.shutdown_grace / 2)),
        ssl_context_factory=(lambda *_: certificate.context) if certificate else None,
    )


def _warn_if_open_to_others(settings: Settings) -> None:
    reason = describe_network_exposure(settings)
    if reason is None or not ApiKeyFileCache(settings.data_dir).empty:
        return
    logger.warning("open_to_the_network", host=settings.host, reason=f"{reason}; all callers have full access")
    if settings.log_format != "json":
        print(  # noqa: T201
            f"kgserve: WARNING: {reason}; all callers may read, change and drop every store, because no keys exist "
            "and --insecure-no-auth disables authentication",
            file=sys.stderr,
        )
    AuditLog(settings.data_dir).record_admin_action(
        "serve --insecure-no-auth", "done", caller="local", about=settings.host
    )


def _warn_of_excess(settings: Settings) -> None:
    for each in find_limits_exceeding_machine(settings, measure_machine_memory_and_disk(settings.data_dir)):
        logger.warning("limits_exceed_machine", **to_builtins(each))
    if (limit := get_descriptor_limit()) < (needed := count_needed_descriptors(settings)):
        reason = "raise it (ulimit -n, LimitNOFILE); idle stores are closed and connections refused earlier meanwhile"
        logger.warning(
            "few_descriptors", limit=limit, needed=needed, connections=compute_max_connections(settings), reason=reason
        )


class HttpServer(uvicorn.Server):
    """uvicorn server with a startup callback and a bounded shutdown.

    uvicorn raises the signal again after shutdown, which would end the process before the lock is released. This server
    returns instead.
    """

    def __init__(self, config: uvicorn.Config, grace: float, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._grace = grace
        self._on_started = on_started
        self.on_sighup: Callable[[], None] | None = None
        self.readers: ReaderProcessSupervisor | None = None
        self.run_maintenance: Callable[[], Coroutine[None, None, None]] | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Unlike uvicorn's, limits TLS handshakes, and calls ``on_started``.
        self._loop = asyncio.get_running_loop()
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self.servers = [await self._listen(listener) for listener in sockets or []]
        self.started = True
        self._on_started()
        if self.run_maintenance is not None:
            self._maintenance = asyncio.create_task(self.run_maintenance(), name="maintenance")

    async def _listen(self, listener: socket.socket) -> asyncio.Server:
        config = self.config
        connection_class = cast("partial[HttpServerConnection]", config.http_protocol_class)
        timeout = connection_class.keywords["open_connections"].limits.head_timeout
        protocol = partial(
            connection_class, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        if self.readers is not None:
            self.readers.begin(cast("partial[HandoverHttpConnection]", protocol), cast("Litestar", config.app).state)
        return await asyncio.get_running_loop().create_server(
            protocol,
            sock=listener,
            backlog=LISTEN_BACKLOG_CONNECTIONS,
            ssl=config.ssl,
            ssl_handshake_timeout=timeout if config.ssl else None,
            ssl_shutdown_timeout=timeout if config.ssl else None,
        )

    @override
    async def main_loop(self) -> None:
        # Unlike uvicorn's, ends without waiting for the next tick.
        ending = asyncio.create_task(self._ending.wait())
        for tick in count():
            if await self.on_tick(tick):
                break
            await asyncio.wait([ending], timeout=_TICK_SECONDS)
        ending.cancel()

    def stop(self) -> None:
        """Start the shutdown immediately; safe in any thread and in signal handlers."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ending.set)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Unlike uvicorn's, ends event streams first, polls every 10 ms instead of 100, and aborts slow clients.
        if self._maintenance is not None:
            self._maintenance.cancel()
        state = cast("Litestar", self.config.app).state
        state["service"].streams.stop()
        state["mcp"].stop()
        self._close_listeners(sockets or [])
        try:
            await asyncio.wait_for(self._wait_for_connections(), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            left = list(self.server_state.tasks)
            uvicorn_log.error("Cancel %s running task(s), timeout graceful shutdown exceeded", len(left))
            for task in left:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def _close_listeners(self, sockets: list[socket.socket]) -> None:
        """Close the listening sockets and all idle connections."""
        for listener in (*self.servers, *sockets):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.readers is not None:
            self.readers.stop()

    async def _wait_for_connections(self) -> None:
        present = self.server_state
        await asyncio.sleep(_LEAVING_POLL_SECONDS)
        readers = self.readers
        while (present.connections or present.tasks or (readers and readers.running_count)) and not self.force_exit:  # noqa: ASYNC110  # uvicorn's sets have no event
            await asyncio.sleep(_LEAVING_POLL_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP until the end of the block; only in the main thread.

        SIGHUP reloads the certificate if TLS is on. Otherwise it stops the server, unless that runs under nohup.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        if (renew := self.on_sighup) is not None:
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: renew())
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            terminals = [number for number in (1, 2) if os.isatty(number)]
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, partial(self._hang_up, terminals))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hang_up(self, terminals: list[int], sig: int, frame: FrameType | None) -> None:
        # Writing to a closed terminal fails, which would break the shutdown.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)
        self.handle_exit(sig, frame)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Exits when the grace period is over; acknowledged writes are in the journals.
        if not self.should_exit:
            deadline = threading.Timer(self._grace, _exit_now)
            deadline.daemon = True
            deadline.start()
        super().handle_exit(sig, frame)
        self.stop()


def _exit_now() -> None:
    logger.error("grace_time_over", reason="connections or stores did not close in time")
    os._exit(1)


MAX_STORE_MEMORY_MIB = 80
"""MiB of rows and memories that an open store may keep in memory before its files contain them."""
_SEGMENTS = 2


class MemoryAndDiskCapacity(msgspec.Struct, frozen=True):
    """Bytes of memory available to this process, and size of the data folder's disk; None if unknown."""

    memory: int | None
    disk: int | None


class ResourceLimitExceedingMachine(msgspec.Struct, frozen=True):
    """Resource whose configured limit exceeds the machine, in MiB, and the settings that determine it."""

    what: str
    settings: str
    allowed_mb: int
    machine_mb: int


def measure_machine_memory_and_disk(folder: Path, root: Path = Path("/")) -> MemoryAndDiskCapacity:
    """Return memory and disk of this machine, read from the system files below ``root``.

    Memory is the minimum of the installed memory and the limits of the control groups.
    """
    found = [*_installed(root), *_group_limits(root)]
    disk: int | None = None
    with suppress(OSError):
        disk = shutil.disk_usage(folder).total
    return MemoryAndDiskCapacity(min(found, default=None), disk)


def find_limits_exceeding_machine(
    settings: Settings, available: MemoryAndDiskCapacity
) -> list[ResourceLimitExceedingMachine]:
    """Return the limits that each allow more than the machine has."""
    memory = [
        ("engines", "engine_processes * engine_memory_mb", settings.engine_processes * settings.engine_memory_mb),
        ("open stores", f"max_open_stores * {MAX_STORE_MEMORY_MIB}", settings.max_open_stores * MAX_STORE_MEMORY_MIB),
        ("request bodies", "max_connections * max_body_mb", settings.max_connections * settings.max_body_mb),
    ]
    segments = _SEGMENTS * max(settings.journal_segment_mb, settings.compact_wal_mb)
    store = settings.journal_retention_mb + segments + settings.history_mb
    disk = [("a store", "journal_retention_mb + history_mb", store)]
    return [*_beyond(memory, available.memory), *_beyond(disk, available.disk)]


def _beyond(limits: list[tuple[str, str, int]], available: int | None) -> Iterator[ResourceLimitExceedingMachine]:
    if available is None:
        return
    for what, names, allowed in limits:
        if allowed * MEBIBYTE > available:
            yield ResourceLimitExceedingMachine(what, names, allowed, available // MEBIBYTE)


def _installed(root: Path) -> Iterator[int]:
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) << 10


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's control group and its parents, for cgroups v1 and v2."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")


def _limits(top: Path, path: str, name: str) -> Iterator[int]:
    # In a container the path may be that of the host; the group's files are at the top then.
    inner = top / path.strip("/")
    for folder in (inner, *inner.parents):
        with suppress(OSError, ValueError):
            yield int((folder / name).read_text())
        if folder == top:
            return
