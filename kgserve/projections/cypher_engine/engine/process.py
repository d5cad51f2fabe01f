"""Engine processes, one for each open file: start, request channels, supervision and termination.

The engine can crash, hang or exhaust memory. In a separate process this fails only the statement that caused it.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any, TypeVar, get_args

import structlog

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.errors import InvalidInput, TimedOut, Unavailable, error_class_named
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.settings import EngineName
from kgserve.platform.startup_imports import build_child_process_environment
from kgserve.platform.structured_log import LogFormat, LogLevel
from kgserve.projections.cypher_engine.engine.process_monitor import open_process_monitor
from kgserve.projections.cypher_engine.engine.protocol import (
    FORK_REQUEST,
    EngineErrorReply,
    EngineRequest,
    InterruptRequest,
    PingEngineProcessRequest,
    ScratchCopyUnreliable,
    encode_message,
    receive_engine_process_reply,
)

log = structlog.get_logger()

KILL_GRACE_SECONDS = 0.9
"""Seconds after a statement's time limit before its process is killed."""
ENGINE_ANSWER_POLL_SECONDS = 0.5
PING_TIMEOUT_SECONDS = 2.0
"""Seconds within which the process must answer a ping while a reply is awaited."""
MAX_MISSED_PINGS = 10
"""Number of pings that a busy process may miss."""
ENGINE_IDLE_TIMEOUT_SECONDS = 60
INTERRUPT_RETRY_SECONDS = 0.05
PROCESS_EXIT_TIMEOUT_SECONDS = 5
"""Seconds to wait for a killed process to exit; one blocked on disk I/O exits later."""
MAX_SMALL_REPLY_BYTES = 64 << 10
"""Bytes of the largest reply that is read on an event loop."""
_LENGTH = struct.Struct("!i")
"""Length that a `Connection` sends before each message of less than 2 GiB."""
_MAX_LOGGED_STATEMENT_CHARS = 200
_Value = TypeVar("_Value")


class EngineProcessDied(Unavailable):
    """The process ended during a request. ``alone``: no other caller's statement can have caused it."""

    alone = True


class EngineProcess:
    """Process of one engine file, with one writing channel and several reading ones."""

    def __init__(self, number: int, control: Connection, channels: list[Connection], store: str = "") -> None:
        self._number = number
        self._store = store
        self._monitor = open_process_monitor(number, control)
        self._control = control
        self._sending = threading.Lock()
        self._is_lost = False
        self._missed_pings = 0
        self._last_statements: list[str] | None = None
        self.channels = [EngineRequestChannel(self, place, connection) for place, connection in enumerate(channels)]

    @property
    def has_died(self) -> bool:
        """True if the process has ended for any reason."""
        if not self._is_lost:
            self._is_lost = self._monitor.has_ended()
        return self._is_lost

    @property
    def number(self) -> int:
        """Process id."""
        return self._number

    @property
    def private_memory_bytes(self) -> int:
        """Private memory in bytes, without pages shared with the fork server; 0 after it has ended."""
        return 0 if self.has_died else self._monitor.private_memory_bytes()

    @property
    def statements(self) -> list[str]:
        """Shapes of the callers' statements that are running, or were running when the process ended."""
        return self._running_statements() if self._last_statements is None else self._last_statements

    def interrupt(self, channel: int, request: int) -> None:
        """Stop the statement on ``channel`` if it belongs to request number ``request``."""
        with self._sending, contextlib.suppress(OSError):
            self._control.send_bytes(encode_message(InterruptRequest(channel, request)))

    def is_responsive(self) -> bool:
        """Return whether the process is responsive. Raises EOFError or OSError if it has ended.

        A process that used CPU time meanwhile, or waits for a CPU or the disk, may miss `MAX_MISSED_PINGS` pings.
        """
        if self._is_stopped():
            return False
        with self._sending:
            if not self._missed_pings:
                self._control.send_bytes(encode_message(PingEngineProcessRequest()))
            before = self._monitor.cpu_seconds()
            if self._control.poll(PING_TIMEOUT_SECONDS):
                self._control.recv_bytes()
                self._missed_pings = 0
                return True
            self._missed_pings += 1
            return self._missed_pings < MAX_MISSED_PINGS and (
                self._monitor.cpu_seconds() > before or self._waits_for_cpu_or_disk()
            )

    def _is_stopped(self) -> bool:
        """Return whether a signal has stopped the process, which then cannot answer."""
        return "T" in self._monitor.thread_states()

    def _waits_for_cpu_or_disk(self) -> bool:
        return not self._monitor.thread_states().isdisjoint("RD")

    def kill(self, reason: str) -> None:
        """Kill the process and log the reason."""
        self._log_end("engine_process_killed", reason=reason)
        self.end()

    def record_death(self) -> None:
        """Record that the process ended unexpectedly, and log it."""
        self._log_end("engine_process_died")
        self.end()

    def _log_end(self, event: str, **more: str) -> None:
        """Log what happened to the process; only the first event is logged."""
        if self._last_statements is None:
            self._last_statements = self._running_statements()
            log.warning(event, store=self._store, process=self._number, statements=self._last_statements, **more)

    def _running_statements(self) -> list[str]:
        return [
            each.statement.shape[:_MAX_LOGGED_STATEMENT_CHARS] for each in self.channels if each.statement is not None
        ]

    def end(self) -> None:
        """Kill the process. A file that was closed before is complete on disk."""
        self._is_lost = True
        if self._last_statements is None:
            self._last_statements = self._running_statements()
        self._monitor.kill()

    def close(self) -> None:
        """Release the process once no request is pending; its file can then be opened by another process."""
        self.end()
        self._monitor.await_end(PROCESS_EXIT_TIMEOUT_SECONDS)
        self._control.close()
        for channel in self.channels:
            channel.connection.close()
        self._monitor.close()


class EngineRequestChannel:
    """Request channel to a process; not thread-safe, except for `interrupt`."""

    def __init__(self, process: EngineProcess, place: int, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self._place = place
        self._requests = 0
        self._sent_at = 0.0
        self.statement: GuardedCypherStatement | None = None
        """Caller's statement in progress."""

    def ask(
        self,
        request: EngineRequest,
        kind: type[_Value] | Any = None,
        seconds: float | None = None,
        broken_off: threading.Event | None = None,
    ) -> _Value:
        """Send a request and return the reply as ``kind``.

        Raises the errors from `kgserve.errors` that the process reports.

        Kills the process and raises TimedOut if it does not reply within ``seconds``. Raises EngineProcessDied if the
        process has ended or hangs, and Unavailable once ``broken_off`` is set.
        """
        self.send(request)
        return self.receive(kind, seconds, broken_off)

    def send(self, request: EngineRequest) -> None:
        """Send a request, whose reply `receive` must read next. Raises EngineProcessDied."""
        self._requests += 1
        self._sent_at = time.monotonic()
        with self._in_step():
            self.connection.send_bytes(encode_message(request))

    def receive(
        self,
        kind: type[_Value] | Any = None,
        seconds: float | None = None,
        broken_off: threading.Event | None = None,
    ) -> _Value:
        """Return the reply to the last request as `ask` does; ``seconds`` count from when it was sent."""
        with self._in_step():
            self._wait(seconds, broken_off)
            reply = receive_engine_process_reply(self.connection)
        if isinstance(reply, EngineErrorReply):
            raise _error(reply)
        return msgpack_decoder(kind).decode(reply.value)

    def has_small_reply(self) -> bool:
        """Return whether `receive` has nothing to wait for: a small reply has arrived, or the process has ended."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.connection.fileno()) as peeking:
            try:
                found = peeking.recv(_LENGTH.size + MAX_SMALL_REPLY_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except OSError as error:
                return not isinstance(error, BlockingIOError)
            finally:
                peeking.detach()
        if len(found) < _LENGTH.size:
            return not found
        (size,) = _LENGTH.unpack_from(found)
        return 0 <= size <= len(found) - _LENGTH.size

    @contextlib.contextmanager
    def _in_step(self) -> Generator[None]:
        """Keep requests and replies in step, whatever ends the block. Raises EngineProcessDied."""
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.record_death()
            raise EngineProcessDied(
                "the engine's process ended unexpectedly and is being restarted; try again"
            ) from error
        except BaseException:
            self._discard_reply()
            raise

    def _wait(self, seconds: float | None, broken_off: threading.Event | None) -> None:
        deadline = math.inf if seconds is None else self._sent_at + seconds
        while not self.connection.poll(max(0.0, min(ENGINE_ANSWER_POLL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self.process.kill("a statement did not stop at its time limit")
                raise TimedOut("the query ran into its time limit and was stopped")
            if broken_off is not None and broken_off.is_set():
                self.process.end()
                raise Unavailable("this store is closing; try again shortly")
            if not self.process.is_responsive():
                self.process.kill("it does not respond")
                raise EngineProcessDied("the engine's process hung and is being restarted; try again")

    def _discard_reply(self) -> None:
        """Discard the reply to an abandoned request, so that it is not read as the reply to the next one."""
        if self.process.has_died:
            return
        deadline = time.monotonic() + KILL_GRACE_SECONDS
        try:
            while time.monotonic() < deadline:
                # The engine ignores interrupts while it plans a query.
                self.interrupt()
                if self.connection.poll(INTERRUPT_RETRY_SECONDS):
                    self.connection.recv_bytes()
                    return
        except (EOFError, OSError):
            self.process.record_death()
            return
        self.process.kill("it ignored an interrupt")

    def interrupt(self) -> None:
        """Stop the statement that runs on this channel."""
        self.process.interrupt(self._place, self._requests)


class EngineForkServer:
    """Parent process with the engine imported, which forks engine processes. Started on first use.

    It exits after a minute without requests, unless `prepare` was called.
    """

    def __init__(self, engine: EngineName) -> None:
        self._engine = engine
        self.log: tuple[LogFormat, LogLevel] = ("console", "info")
        self._is_persistent = False
        self._lock = threading.Lock()
        self._parent: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Start the fork server and keep it running, so that processes start without delay."""
        with self._lock:
            self._is_persistent = True
            self._start()

    def process(self, readers: int, store: str = "") -> EngineProcess:
        """Return a new process for a store with ``readers`` reading channels.

        Raises Unavailable if none can be started.
        """
        ends = [_connection_pair() for _ in range(readers + 2)]
        try:
            with self._lock:
                number = self._fork([other.fileno() for _, other in ends])
        finally:
            for _, other in ends:
                other.close()
        control, *channels = (own for own, _ in ends)
        try:
            return EngineProcess(number, control, channels, store)
        except ProcessLookupError:
            raise Unavailable("the engine's process ended right after its start; try again shortly") from None

    def close(self) -> None:
        """Stop the fork server; the processes it created exit when their channels close."""
        with self._lock:
            self._stop()

    def _start(self) -> socket.socket:
        if self._socket is not None and self._parent is not None and self._parent.poll() is None:
            return self._socket
        self._stop()
        own, other = socket.socketpair()
        with other:
            # macOS ends a forked process that uses Objective-C, as its libraries do, unless the variable says not to.
            environment = build_child_process_environment() | {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
            seconds = "0" if self._is_persistent else str(ENGINE_IDLE_TIMEOUT_SECONDS)
            command = [
                sys.executable,
                "-P",
                "-m",
                "kgserve.projections.cypher_engine.driver",
                self._engine,
                str(other.fileno()),
                seconds,
            ]
            self._parent = subprocess.Popen(  # noqa: S603
                [*command, *self.log],
                pass_fds=[other.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = own
        return own

    def _fork(self, ends: list[int]) -> int:
        for _ in range(2):
            own = self._start()
            with contextlib.suppress(OSError):
                socket.send_fds(own, [FORK_REQUEST], ends)
                if len(answer := own.recv(8, socket.MSG_WAITALL)) == len(bytes(8)):
                    return int.from_bytes(answer, "little")
            self._stop()
        raise Unavailable("cannot start a process for the engine; try again shortly", retry_after=2)

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._parent is not None:
            self._parent.kill()
            self._parent.wait()
            self._parent = None


_fork_servers: dict[EngineName, EngineForkServer] = {
    engine: EngineForkServer(engine) for engine in get_args(EngineName)
}
for _each in _fork_servers.values():
    atexit.register(_each.close)


def get_engine_fork_server(engine: EngineName) -> EngineForkServer:
    """Return the fork server of an engine. Two stores may use different engines, so each engine has its own."""
    return _fork_servers[engine]


def _connection_pair() -> tuple[Connection, Connection]:
    own, other = socket.socketpair()
    return Connection(own.detach()), Connection(other.detach())


def _error(failed: EngineErrorReply) -> Exception:
    if failed.kind == ScratchCopyUnreliable.__name__:
        return ScratchCopyUnreliable()
    kind = error_class_named(failed.kind)
    return kind(failed.message, tuple(failed.errors)) if issubclass(kind, InvalidInput) else kind(failed.message)
