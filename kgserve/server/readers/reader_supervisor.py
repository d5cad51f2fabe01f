"""The server's side of its reader processes: starts them, hands connections over, and collects their counts."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from typing_extensions import override

from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.projections.cypher_engine.engine.process_monitor import LinuxProcessMonitor
from kgserve.server.readers.connection_handover import HandoverHttpConnection, ReaderServedConnection
from kgserve.server.readers.reader_channel import (
    GrantedRateLease,
    HandedOverConnection,
    RateLeaseRequest,
    ReaderProcessReport,
    ReaderProcessStarted,
    ReturnAllConnections,
    ReturnedConnection,
    ReturnedInputPart,
    decode_reader_message,
    receive_reader_message,
    send_reader_message,
)
from kgserve.server.readers.reader_count_controller import AUTO_READERS, ReaderCountController, count_allowed_readers
from kgserve.server.readers.reader_fork_server import ReaderForkServer
from kgserve.server.readers.shared_commit_page import SharedCommitPage
from kgserve.stores.pool import StorePoolObserver

if TYPE_CHECKING:
    from litestar.datastructures import State

    from kgserve.platform.settings import Settings
    from kgserve.server.admission import ActiveRequestCounter
    from kgserve.server.http.connection import ConnectionRegistry
    from kgserve.server.http.rate_limits import RateLimiter
    from kgserve.stores.open_store import OpenStore
    from kgserve.stores.pool import StorePool

log = structlog.get_logger()

CHECK_INTERVAL_SECONDS = 1.0
MAX_SILENT_CHECKS = 20
"""Checks in a row without a heartbeat after which a reader process is killed."""
MAX_START_CHECKS = 60
"""The same before its first heartbeat."""
MAX_STOPPED_CHECKS = 2
"""The same for a process that a signal has stopped."""
MAX_RESTART_DELAY_SECONDS = 60.0
RELEASE_TIMEOUT_SECONDS = 5.0
"""Seconds within which a reader process must release replaced bases for a purge; then it is killed."""
_RELEASE_POLL_SECONDS = 0.02


class ReaderProcessHandle:
    """A reader process, and the connections that it serves. ``monitor`` is None until it reports that it runs."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self.channel = channel
        self.process = 0
        self.monitor: LinuxProcessMonitor | None = None
        self.connections: dict[int, ReaderServedConnection] = {}
        self.is_retiring = False
        self._heartbeats = self._silent_checks = 0

    def is_hung(self, heartbeats: int) -> bool:
        """Return whether the process does not run, given its heartbeats so far. Call at each check."""
        self._silent_checks = self._silent_checks + 1 if heartbeats == self._heartbeats else 0
        self._heartbeats = heartbeats
        is_stopped = (
            self._silent_checks >= MAX_STOPPED_CHECKS
            and self.monitor is not None
            and "T" in self.monitor.thread_states()
        )
        return is_stopped or self._silent_checks >= (MAX_SILENT_CHECKS if self.monitor else MAX_START_CHECKS)

    def kill(self, reason: str) -> None:
        """Kill the process and log the reason. Its channel closes."""
        if self.monitor is not None:
            log.error("reader_killed", process=self.process, reason=reason)
            self.monitor.kill()

    def close(self) -> None:
        """Release the handle."""
        self.channel.close()
        if self.monitor is not None:
            self.monitor.close()


class ReaderProcessSupervisor(StorePoolObserver):
    """Reader processes of one server. Hands them connections, and restarts those that die."""

    def __init__(self, most: int, settings: Settings, token: str) -> None:
        self._page = SharedCommitPage()
        self._fork_server = ReaderForkServer(self._page, settings, token)
        self._controller = ReaderCountController(most) if settings.readers == AUTO_READERS else None
        self._wanted = 0 if self._controller else most
        self._readers: dict[int, ReaderProcessHandle] = {}
        self._connection_numbers = 0
        self._reads = 0
        self._failures = 0
        self._next_start = 0.0
        self._is_stopping = False
        self._adopting = set[asyncio.Task[Any]]()
        self._connection_class: partial[HandoverHttpConnection]
        self._registry: ConnectionRegistry
        self._pool: StorePool
        self._use: ActiveRequestCounter
        self._rates: RateLimiter

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
        while late := [each for each in self._started() if not self._page.has_released(each.number, change)]:
            if time.monotonic() > until:
                for reader in late:
                    reader.kill("it did not release purged data in time")
                until += RELEASE_TIMEOUT_SECONDS
            time.sleep(_RELEASE_POLL_SECONDS)

    def _started(self) -> list[ReaderProcessHandle]:
        return [each for each in [*self._readers.values()] if each.monitor is not None]

    # Processes and connections, on the event loop

    def connection_class(self, connections: ConnectionRegistry) -> partial[HandoverHttpConnection]:
        """Return the class of the server's connections."""
        return partial(HandoverHttpConnection, open_connections=connections, readers=self)

    def begin(self, connection_class: partial[HandoverHttpConnection], state: State) -> None:
        """Start the processes. ``connection_class`` makes connections of the application with this ``state``."""
        self._connection_class = connection_class
        self._registry = state["connections"]
        self._pool = state["service"].graphs.whole_pool
        self._use, self._rates = state["edge"].use, state["edge"].rates
        self._check()

    @property
    def running_count(self) -> int:
        """Number of reader processes that have not ended, or are being started."""
        return len(self._readers)

    def count_connections(self) -> int:
        """Return the number of connections that reader processes serve."""
        return sum(len(each.connections) for each in self._readers.values())

    def _check(self) -> None:
        """Kill processes that hang, and start and retire them, about once a second until the server stops."""
        if self._is_stopping:
            return
        asyncio.get_running_loop().call_later(CHECK_INTERVAL_SECONDS, self._check)
        self._kill_hung_readers()
        if self._controller is not None:
            share, reads, self._reads = self._controller.measure_processor_share(), self._reads, 0
            self._wanted = self._controller.choose_count(self._wanted, share, reads)
        if time.monotonic() >= self._next_start:
            for number in range(self._wanted):
                if number not in self._readers:
                    self._start(number)
        for reader in self._started():
            if reader.number >= self._wanted and not reader.is_retiring:
                with suppress(OSError):
                    send_reader_message(reader.channel, ReturnAllConnections(), flags=socket.MSG_DONTWAIT)
                    reader.is_retiring = True

    def _kill_hung_readers(self) -> None:
        for reader in [*self._readers.values()]:
            if reader.is_hung(self._page.count_heartbeats(reader.number)):
                reader.kill("it does not respond")
                if reader.monitor is None:  # it never started
                    self._fork_server.close()

    def _start(self, number: int) -> None:
        self._page.reset(number)
        try:
            channel = self._fork_server.fork(number)
        except OSError as error:
            self._delay_starts(str(error))
            return
        reader = self._readers[number] = ReaderProcessHandle(number, channel)
        asyncio.get_running_loop().add_reader(channel, self._receive, reader)

    def _delay_starts(self, reason: str) -> None:
        delay = min(2.0 ** min(self._failures, 10), MAX_RESTART_DELAY_SECONDS)
        self._failures += 1
        self._next_start = time.monotonic() + delay
        log.error("reader_not_started", reason=reason, retry_seconds=delay)

    def take_connection(self, connection: HandoverHttpConnection, data: bytes) -> bool:
        """Hand a connection and its next request to a reader process; return False if this process should keep it."""
        if not connection.is_ready:
            return False
        self._reads += 1
        if not self._readers or self._is_stopping:
            return False
        ready = [each for each in self._started() if not each.is_retiring]
        own = len(self._registry) - self.count_connections()
        reader = min(ready, key=lambda each: len(each.connections), default=None)
        descriptor = connection.descriptor
        if reader is None or len(reader.connections) >= own or descriptor is None:
            return False
        self._connection_numbers += 1
        try:
            handed = HandedOverConnection(self._connection_numbers, data)
            send_reader_message(reader.channel, handed, descriptor, socket.MSG_DONTWAIT)
        except OSError:
            return False
        stand_in = reader.connections[self._connection_numbers] = ReaderServedConnection(connection.patience)
        self._registry.replace(connection, stand_in)
        connection.leave()
        return True

    def _receive(self, reader: ReaderProcessHandle) -> None:
        while (found := receive_reader_message(reader.channel)) is not None:
            if not found.content:
                self._lose(reader)
                return
            message = decode_reader_message(found.content)
            if isinstance(message, ReaderProcessStarted):
                self._note_start(reader, message.process)
            elif isinstance(message, RateLeaseRequest):
                lease = GrantedRateLease(message.bucket, self._rates.take_lease(message.bucket))
                with suppress(OSError):
                    send_reader_message(reader.channel, lease, flags=socket.MSG_DONTWAIT)
            elif isinstance(message, ReaderProcessReport):
                self._count_report(message)
            elif isinstance(message, ReturnedInputPart):
                reader.connections[message.number].returned += message.data
            elif isinstance(message, ReturnedConnection) and found.descriptor is not None:
                connection, stand_in = socket.socket(fileno=found.descriptor), reader.connections.pop(message.number)
                self._take_back(connection, stand_in.returned + message.data, stand_in)
            else:
                self._registry.remove(reader.connections.pop(message.number))

    def _note_start(self, reader: ReaderProcessHandle, process: int) -> None:
        with suppress(OSError):  # it has ended already, and so has its channel
            reader.process, reader.monitor = process, LinuxProcessMonitor(process)
            self._failures = 0
            log.info("reader_started", process=process)

    def _take_back(self, connection: socket.socket, data: bytes, stand_in: ReaderServedConnection) -> None:
        loop = asyncio.get_running_loop()
        made = partial(self._connection_class, first=data, stand_in=stand_in)
        task = loop.create_task(loop.connect_accepted_socket(made, connection))
        self._adopting.add(task)
        task.add_done_callback(partial(self._end_adoption, stand_in))

    def _end_adoption(
        self, stand_in: ReaderServedConnection, task: asyncio.Task[tuple[asyncio.Transport, HandoverHttpConnection]]
    ) -> None:
        self._adopting.discard(task)
        self._registry.remove(stand_in)
        if self._is_stopping and not task.cancelled() and task.exception() is None:
            asyncio.get_running_loop().call_soon(task.result()[1].shutdown)

    def _lose(self, reader: ReaderProcessHandle) -> None:
        asyncio.get_running_loop().remove_reader(reader.channel)
        reader.close()
        del self._readers[reader.number]
        for stand_in in reader.connections.values():
            self._registry.remove(stand_in)
        if reader.is_retiring:
            log.info("reader_ended", process=reader.process)
            if not self._readers:
                self._fork_server.close()
        elif not self._is_stopping and reader.monitor is None:
            self._delay_starts("the process ended before it was ready")
        elif not self._is_stopping:
            log.error("reader_died", process=reader.process, connections=len(reader.connections))

    def _count_report(self, report: ReaderProcessReport) -> None:
        observation = self._pool.observation
        for each in report.routes:
            found = observation.requests.of_route(each.route, each.method)
            for status, count in each.statuses.items():
                found.statuses[status] = found.statuses.get(status, 0) + count
                self._reads += count
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
        for reader in [*self._readers.values()]:
            if reader.monitor is None:  # a process that has not started yet ends once it does
                self._lose(reader)
                continue
            with suppress(OSError):
                reader.channel.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Kill what is left of the processes. Blocks briefly."""
        self._is_stopping = True
        for reader in self._readers.values():
            if reader.monitor is not None:
                reader.monitor.kill()
            reader.close()
        self._readers.clear()
        self._fork_server.close()
        self._page.close_descriptor()


def create_reader_supervisor(settings: Settings, token: str, pool: StorePool) -> ReaderProcessSupervisor | None:
    """Return the supervisor of a server's reader processes; None if it may have none."""
    most = count_allowed_readers(settings)
    if not most:
        return None
    supervisor = ReaderProcessSupervisor(most, settings, token)
    pool.companions.append(supervisor)
    return supervisor
