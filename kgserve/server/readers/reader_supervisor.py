"""The server's side of its reader processes: starts them, hands connections over, and collects their counts."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog
from typing_extensions import override

from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.server.http.connection import ConnectionRegistry, HttpServerConnection
from kgserve.server.readers.reader_channel import (
    HandedOverConnection,
    ReaderProcessReport,
    ReturnedConnection,
    count_missing_request_bytes,
    decode_reader_message,
    receive_reader_message,
    send_reader_message,
)
from kgserve.server.readers.reader_fork_template import ReaderForkTemplate
from kgserve.server.readers.shared_commit_page import MAX_READERS, SharedCommitPage
from kgserve.stores.pool import StorePoolObserver

if TYPE_CHECKING:
    from litestar.datastructures import State

    from kgserve.platform.settings import Settings
    from kgserve.server.admission import ActiveRequestCounter
    from kgserve.stores.open_store import OpenStore
    from kgserve.stores.pool import StorePool

log = structlog.get_logger()

MIN_REQUESTS_BEFORE_HANDOVER = 1
"""Requests in a row that reader processes could answer, after which a new connection is handed over."""
MAX_REQUESTS_BEFORE_HANDOVER = 4_096
"""The same for a connection that came back often; the number doubles each time."""
RESTART_DELAY_SECONDS = 1.0
HEARTBEAT_CHECK_SECONDS = 5.0
MAX_SILENT_CHECKS = 4
"""Checks in a row without a heartbeat after which a reader process is killed."""
RELEASE_TIMEOUT_SECONDS = 5.0
"""Seconds within which a reader process must release replaced bases for a purge; then it is killed."""
_RELEASE_POLL_SECONDS = 0.02


def count_reader_processes(settings: Settings) -> int:
    """Return the number of reader processes to start; 0, with a log line, where they are not supported."""
    wanted = settings.readers
    if wanted == "0":
        return 0
    reason = _describe_conflict(settings)
    if reason is not None:
        log.warning("readers_off", reason=reason)
        return 0
    return min(len(os.sched_getaffinity(0)) - 1, 4) if wanted == "auto" else min(int(wanted), MAX_READERS)


def _describe_conflict(settings: Settings) -> str | None:
    if not sys.platform.startswith("linux"):
        return "reader processes need Linux"
    if settings.tls_cert:
        return "reader processes do not support TLS"
    if settings.cluster or settings.follow:
        return "reader processes do not support clusters and followers"
    return "reader processes do not support tracing" if settings.otel_endpoint else None


class _RemoteConnection:
    """A connection that a reader process serves; it counts as one of the server's connections."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def check_deadlines(self, now: float) -> None:
        """Do nothing: the reader process checks the time limits."""


class _Reader:
    """A running reader process, and the connections that it serves."""

    def __init__(self, number: int, channel: socket.socket, process: int) -> None:
        self.number = number
        self.channel = channel
        self.process = process
        self.connections: dict[int, _RemoteConnection] = {}
        self.heartbeats = self.silent_checks = 0


class HandoverHttpConnection(HttpServerConnection):
    """Connection that is handed to a reader process once it sends requests that one can answer."""

    def __init__(
        self,
        *args: Any,
        readers: ReaderProcessSupervisor,
        first: bytes = b"",
        patience: int = MIN_REQUESTS_BEFORE_HANDOVER,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._readers = readers
        self._first = first
        self._in_a_row = 0
        self.patience = patience

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self._first:
            self.data_received(self._first)  # here, because the transport reads before it runs other callbacks

    @override
    def data_received(self, data: bytes) -> None:
        if self.is_between_requests and self._is_handed_over(data):
            return
        super().data_received(data)

    def _is_handed_over(self, data: bytes) -> bool:
        if count_missing_request_bytes(data) is None:
            self._in_a_row = 0
        elif self._in_a_row < self.patience:
            self._in_a_row += 1
        else:
            return self._readers.hand_over(self, data)
        return False

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the socket; None while an answer waits to be sent."""
        waits = self.wire.get_write_buffer_size()
        return None if waits else cast("socket.socket", self.wire.get_extra_info("socket")).fileno()

    def leave(self) -> None:
        """Close this process's descriptor of the connection only."""
        self._unset_keepalive_if_required()
        self._ignores_input = True
        self.wire.abort()


class ReaderProcessSupervisor(StorePoolObserver):
    """Reader processes of one server. Hands them connections, and restarts those that die."""

    def __init__(self, count: int, settings: Settings, token: str) -> None:
        """Fork the template of the reader processes. Must run before any thread starts or store opens."""
        self._count = count
        self._page = SharedCommitPage()
        self._template = ReaderForkTemplate(self._page, settings, token)
        self._readers: dict[int, _Reader] = {}
        self._numbers = 0
        self._is_stopping = False
        self._adopting = set[asyncio.Task[Any]]()
        self._protocol: partial[HandoverHttpConnection]
        self._registry: ConnectionRegistry
        self._pool: StorePool
        self._use: ActiveRequestCounter

    # Stores, in any thread

    @property
    @override
    def of_copies(self) -> bool:
        return False

    @override
    def on_store_opened(self, store: OpenStore) -> None:
        announce = self._page.open(store.name)
        if announce is not None:
            store.rows.announce_commits(announce)
            store.after_erasing.append(self._await_release)

    @override
    def on_store_closing(self, store: OpenStore) -> None:
        store.rows.announce_commits(None)
        self._page.close(store.name)

    @override
    def halt(self) -> None:
        pass

    def _await_release(self) -> None:
        """Wait until no reader process has a base open that was replaced; kill those that take too long."""
        change, until = self._page.change, time.monotonic() + RELEASE_TIMEOUT_SECONDS
        while late := [each for each in [*self._readers.values()] if not self._page.has_released(each.number, change)]:
            if time.monotonic() > until:
                for reader in late:
                    log.error("reader_killed", process=reader.process, reason="it did not release purged data in time")
                    self._template.kill(reader.process)
                until += RELEASE_TIMEOUT_SECONDS
            time.sleep(_RELEASE_POLL_SECONDS)

    # Processes and connections, on the event loop

    def protocol(self, connections: ConnectionRegistry) -> partial[HandoverHttpConnection]:
        """Return the class of the server's connections."""
        return partial(HandoverHttpConnection, open_connections=connections, readers=self)

    def begin(self, protocol: partial[HandoverHttpConnection], state: State) -> None:
        """Start the processes. ``protocol`` makes connections of the application with this ``state``."""
        self._protocol = protocol
        self._registry = state["connections"]
        self._pool = state["service"].graphs.whole_pool
        self._use = state["edge"].use
        for number in range(self._count):
            self._start(number)
        self._check_heartbeats()

    @property
    def is_running(self) -> bool:
        """True while any reader process has not ended."""
        return bool(self._readers)

    def _start(self, number: int) -> None:
        if self._is_stopping:
            return
        self._page.reset(number)
        ours, process = self._template.fork(number)
        if ours is None:
            log.error("readers_off", reason="the process that starts reader processes has ended")
            return
        reader = self._readers[number] = _Reader(number, ours, process)
        asyncio.get_running_loop().add_reader(ours, self._receive, reader)
        log.info("reader_started", process=process)

    def _check_heartbeats(self) -> None:
        """Kill reader processes that hang, again and again until the server stops."""
        for reader in self._readers.values():
            heartbeats = self._page.count_heartbeats(reader.number)
            reader.silent_checks = reader.silent_checks + 1 if heartbeats == reader.heartbeats else 0
            reader.heartbeats = heartbeats
            if reader.silent_checks >= MAX_SILENT_CHECKS:
                log.error("reader_killed", process=reader.process, reason="it did not report in time")
                self._template.kill(reader.process)
        if not self._is_stopping:
            asyncio.get_running_loop().call_later(HEARTBEAT_CHECK_SECONDS, self._check_heartbeats)

    def hand_over(self, connection: HandoverHttpConnection, data: bytes) -> bool:
        """Hand a connection and its next request to a reader process; return False if this process should keep it."""
        if self._is_stopping or not self._readers:
            return False
        reader = min(self._readers.values(), key=lambda each: len(each.connections))
        own = len(self._registry) - sum(len(each.connections) for each in self._readers.values())
        descriptor = connection.descriptor
        if len(reader.connections) >= own or descriptor is None:
            return False
        self._numbers += 1
        try:
            send_reader_message(
                reader.channel, HandedOverConnection(self._numbers, data), descriptor, socket.MSG_DONTWAIT
            )
        except OSError:
            return False
        remote = reader.connections[self._numbers] = _RemoteConnection(connection.patience)
        self._registry.replace(connection, remote)
        connection.leave()
        return True

    def _receive(self, reader: _Reader) -> None:
        while (found := receive_reader_message(reader.channel)) is not None:
            if not found.content:
                self._lose(reader)
                return
            message = decode_reader_message(found.content)
            if isinstance(message, ReaderProcessReport):
                self._count_report(message)
                continue
            remote = reader.connections.pop(message.number)
            self._registry.remove(remote)
            if isinstance(message, ReturnedConnection) and found.descriptor is not None:
                self._take_back(socket.socket(fileno=found.descriptor), message.data, remote.patience)

    def _take_back(self, connection: socket.socket, data: bytes, patience: int) -> None:
        patience = min(2 * patience, MAX_REQUESTS_BEFORE_HANDOVER)
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            loop.connect_accepted_socket(partial(self._protocol, first=data, patience=patience), connection)
        )
        self._adopting.add(task)
        task.add_done_callback(self._end_adoption)

    def _end_adoption(self, task: asyncio.Task[tuple[asyncio.Transport, HandoverHttpConnection]]) -> None:
        self._adopting.discard(task)
        if self._is_stopping and not task.cancelled() and task.exception() is None:
            asyncio.get_running_loop().call_soon(task.result()[1].shutdown)

    def _lose(self, reader: _Reader) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(reader.channel)
        reader.channel.close()
        del self._readers[reader.number]
        for remote in reader.connections.values():
            self._registry.remove(remote)
        if not self._is_stopping:
            log.error("reader_died", process=reader.process, connections=len(reader.connections))
            loop.call_later(RESTART_DELAY_SECONDS, self._start, reader.number)

    def _count_report(self, report: ReaderProcessReport) -> None:
        observation = self._pool.observation
        for each in report.routes:
            found = observation.requests.of_route(each.route, each.method)
            for status, count in each.statuses.items():
                found.statuses[status] = found.statuses.get(status, 0) + count
            found.received += each.received
            found.sent += each.sent
            found.seconds.add(each.buckets, each.seconds)
        for code, count in report.refused.items():
            observation.requests.refused.add(code, count=count)
        if report.slow:
            observation.slow.counted.add("request", count=report.slow)
        self._use.begin()
        self._use.end()
        for name in report.stores:
            with suppress(WouldBlock):  # keeps the store from being closed as idle
                self._pool.release(self._pool.acquire_open(name))

    def stop(self) -> None:
        """Ask the processes to close their connections and to end."""
        self._is_stopping = True
        for reader in self._readers.values():
            with suppress(OSError):
                reader.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Kill what is left of the processes. Blocks briefly."""
        self._is_stopping = True
        for reader in self._readers.values():
            self._template.kill(reader.process)
            reader.channel.close()
        self._readers.clear()
        self._template.close()
