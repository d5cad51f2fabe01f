"""Processes that have an engine's file open, each for one: how they are begun, asked and ended.

The engine can crash, hang or want more memory than there is. In a process of its own that costs whoever asked an error,
and nobody else anything.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, get_args

import structlog

from kgserve.cypher.guard import Statement
from kgserve.errors import InvalidInput, TimedOut, Unavailable, kind_named
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.log import LogFormat, LogLevel
from kgserve.platform.settings import EngineName
from kgserve.projections.cypher_engine.engine.protocol import (
    FORK_REQUEST,
    Doubtful,
    Failed,
    Interrupt,
    Ping,
    Request,
    encode,
    receive_reply,
)

log = structlog.get_logger()

KILL_GRACE_SECONDS = 0.9
"""So long after its time limit a statement that has not ended has its process killed."""
ENGINE_ANSWER_POLL_SECONDS = 0.5
PING_TIMEOUT_SECONDS = 2.0
"""While an answer is waited for, the process has to show now and then that it runs, and has so long to do it."""
MAX_MISSED_PINGS = 10
"""It may miss that so often when it is busy, or the machine is."""
ENGINE_IDLE_TIMEOUT_SECONDS = 60
INTERRUPT_RETRY_SECONDS = 0.05
PROCESS_EXIT_TIMEOUT_SECONDS = 5
"""So long the system may take to end a process that was killed: one that waits for the disk ends after that."""
_MAX_LOGGED_STATEMENT_CHARS = 200
_Value = TypeVar("_Value")


class ProcessDied(Unavailable):
    """The process has ended while it was asked. ``alone``: nobody else's statement can have been the cause."""

    alone = True


class Process:
    """A process for one engine file of a store, with a channel that writes and some that read."""

    def __init__(self, number: int, control: Connection, channels: list[Connection], store: str = "") -> None:
        self._number = number
        self._store = store
        # A number may come to mean another process; this one's end is known by its channels.
        self._handle: int | None = os.pidfd_open(number)
        self._control = control
        self._sending = threading.Lock()
        self._is_lost = False
        self._silent = 0
        self._was_at: list[str] | None = None
        self.channels = [Channel(self, place, connection) for place, connection in enumerate(channels)]

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, by itself or not."""
        handle = self._handle
        if not self._is_lost and handle is not None:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            self._is_lost = bool(ended.poll(0))
        return self._is_lost

    @property
    def number(self) -> int:
        """The number that the system knows it by."""
        return self._number

    @property
    def resident(self) -> int:
        """Bytes of memory of its own, what it shares with the nursery left out; 0 once it has ended."""
        return 0 if self.is_lost else own_memory(self._number)

    @property
    def statements(self) -> list[str]:
        """The shapes of the callers' statements that it is at, or was at when it was found to have ended."""
        return self._at_work() if self._was_at is None else self._was_at

    def interrupt(self, channel: int, request: int) -> None:
        """Have the statement stop that runs on a channel, if it still is at its so manieth request."""
        with self._sending, contextlib.suppress(OSError):
            self._control.send_bytes(encode(Interrupt(channel, request)))

    def runs(self) -> bool:
        """Whether it still answers: one that hangs as a whole, or was stopped, does not.

        One that has computed meanwhile, or waits for a processor or the disk, is given `MAX_MISSED_PINGS` times
        as long.
        """
        if self._is_stopped():
            return False
        with self._sending, contextlib.suppress(OSError, EOFError):
            if not self._silent:
                self._control.send_bytes(encode(Ping()))
            before = self._ticks()
            if self._control.poll(PING_TIMEOUT_SECONDS):
                self._control.recv_bytes()
                self._silent = 0
                return True
            self._silent += 1
            return self._silent < MAX_MISSED_PINGS and (self._ticks() > before or self._waits_for_its_turn())
        return False

    def _is_stopped(self) -> bool:
        """Whether a signal has stopped it: then there is nothing to wait for."""
        return "T" in self._states()

    def _waits_for_its_turn(self) -> bool:
        return not self._states().isdisjoint("RD")

    def _states(self) -> frozenset[str]:
        """Those of its threads, as Linux names them; none when it has ended."""
        with contextlib.suppress(OSError):
            tasks = Path(f"/proc/{self._number}/task").iterdir()
            return frozenset(fields[0] for fields in map(_stat, tasks) if fields)
        return frozenset()

    def _ticks(self) -> int:
        """The processor time that it has had, in the system's units."""
        fields = _stat(Path(f"/proc/{self._number}"))
        return sum(map(int, fields[11:13]))

    def kill(self, reason: str) -> None:
        """End it at once, and say why in the log."""
        self._tell("engine_process_killed", reason=reason)
        self.end()

    def has_ended(self) -> None:
        """It has been found to have ended by itself, or by whom we do not know; the log is told."""
        self._tell("engine_process_died")
        self.end()

    def _tell(self, event: str, **more: str) -> None:
        """What has become of it, for the log; only who notices it first tells."""
        if self._was_at is None:
            self._was_at = self._at_work()
            log.warning(event, store=self._store, process=self._number, statements=self._was_at, **more)

    def _at_work(self) -> list[str]:
        return [
            each.statement.shape[:_MAX_LOGGED_STATEMENT_CHARS] for each in self.channels if each.statement is not None
        ]

    def end(self) -> None:
        """End it, whatever it is at. What a file that was closed before holds is on the disk."""
        self._is_lost = True
        if self._was_at is None:
            self._was_at = self._at_work()
        if self._handle is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it once nobody asks it anything any more; its file can be opened by another one then."""
        self.end()
        self._await_end()
        self._control.close()
        for channel in self.channels:
            channel.connection.close()
        # The system gives its number to something else, which must not be what is ended next.
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _await_end(self) -> None:
        """Wait until the system has taken back what it had, the lock on its file among it."""
        if self._handle is not None:
            ended = select.poll()
            ended.register(self._handle, select.POLLIN)
            ended.poll(1000 * PROCESS_EXIT_TIMEOUT_SECONDS)


class Channel:
    """One way to ask a process; for one thread at a time, but for `interrupt`."""

    def __init__(self, process: Process, place: int, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self._place = place
        self._requests = 0
        self.statement: Statement | None = None
        """The statement of a caller's that it is at."""

    def ask(
        self,
        request: Request,
        kind: type[_Value] | Any = None,
        seconds: float | None = None,
        broken_off: threading.Event | None = None,
    ) -> _Value:
        """What the process answers, as ``kind``. Raises the errors of `kgserve.errors` that it names.

        When it does not answer within so many ``seconds`` it is killed, and TimedOut raised; Lost when it has ended or
        hangs. What is ``broken_off`` raises Unavailable.
        """
        self._requests += 1
        try:
            self.connection.send_bytes(encode(request))
            self._wait(seconds, broken_off)
            reply = receive_reply(self.connection)
        except (EOFError, OSError) as error:
            self.process.has_ended()
            raise ProcessDied("the engine's process ended unexpectedly; it is begun again, so try once more") from error
        except BaseException:
            self._give_up()
            raise
        if isinstance(reply, Failed):
            raise _error(reply)
        return msgpack_decoder(kind).decode(reply.value)

    def _wait(self, seconds: float | None, broken_off: threading.Event | None) -> None:
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while not self.connection.poll(max(0.0, min(ENGINE_ANSWER_POLL_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                self.process.kill("a statement did not end when its time was up")
                raise TimedOut("the query ran into its time limit and was stopped")
            if broken_off is not None and broken_off.is_set():
                self.process.end()
                raise Unavailable("this store is closing; try again shortly")
            if not self.process.runs():
                self.process.kill("it does not answer")
                raise ProcessDied("the engine's process hung and was ended; it is begun again, so try once more")

    def _give_up(self) -> None:
        """Take the answer that nobody waits for any more, so that it is not taken for that of the next request."""
        if self.process.is_lost:
            return
        deadline = time.monotonic() + KILL_GRACE_SECONDS
        try:
            while time.monotonic() < deadline:
                # The engine does not hear it while it plans.
                self.interrupt()
                if self.connection.poll(INTERRUPT_RETRY_SECONDS):
                    self.connection.recv_bytes()
                    return
        except (EOFError, OSError):
            self.process.has_ended()
            return
        self.process.kill("it did not stop when it was interrupted")

    def interrupt(self) -> None:
        """Have what runs on it stop."""
        self.process.interrupt(self._place, self._requests)


def _stat(folder: Path) -> list[str]:
    """What Linux tells of a process or thread, from its state on; nothing when that has ended."""
    with contextlib.suppress(OSError):
        return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return []


class ForkServer:
    r"""Where processes come from: one that has an engine imported, and forks. It is begun when it is first needed.

    It ends once nobody has needed it for a minute, unless it is `prepare`\ d.
    """

    def __init__(self, engine: EngineName) -> None:
        self._engine = engine
        self.log: tuple[LogFormat, LogLevel] = ("console", "info")
        self._stays = False
        self._lock = threading.Lock()
        self._parent: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Begin it and have it stay, so that a process is there at once."""
        with self._lock:
            self._stays = True
            self._begin()

    def process(self, readers: int, store: str = "") -> Process:
        """A new process for a store, with so many channels that read. Raises Unavailable when none can be had."""
        ends = [_pair() for _ in range(readers + 2)]
        try:
            with self._lock:
                number = self._forked([other.fileno() for _, other in ends])
        finally:
            for _, other in ends:
                other.close()
        control, *channels = (own for own, _ in ends)
        try:
            return Process(number, control, channels, store)
        except ProcessLookupError:
            raise Unavailable("the engine's process ended as soon as it had begun; try again shortly") from None

    def close(self) -> None:
        """End it; the processes that it has made end with their channels."""
        with self._lock:
            self._end()

    def _begin(self) -> socket.socket:
        if self._socket is not None and self._parent is not None and self._parent.poll() is None:
            return self._socket
        self._end()
        own, other = socket.socketpair()
        with other:
            environment = {**os.environ, "PYTHONPATH": _paths()}
            seconds = "0" if self._stays else str(ENGINE_IDLE_TIMEOUT_SECONDS)
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

    def _forked(self, ends: list[int]) -> int:
        for _ in range(2):
            own = self._begin()
            with contextlib.suppress(OSError):
                socket.send_fds(own, [FORK_REQUEST], ends)
                if len(answer := own.recv(8, socket.MSG_WAITALL)) == len(bytes(8)):
                    return int.from_bytes(answer, "little")
            self._end()
        raise Unavailable("no process can be begun for the engine; try again shortly", retry_after=2)

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._parent is not None:
            self._parent.kill()
            self._parent.wait()
            self._parent = None


_nurseries: dict[EngineName, ForkServer] = {engine: ForkServer(engine) for engine in get_args(EngineName)}
for _each in _nurseries.values():
    atexit.register(_each.close)


def fork_server(engine: EngineName) -> ForkServer:
    """The nursery of an engine; a process has one of each, for two folders may be open in it."""
    return _nurseries[engine]


def own_memory(number: int) -> int:
    """Bytes of memory that a process alone has, in pages that it has written to; 0 when it has ended."""
    folder = Path(f"/proc/{number}")
    try:
        with contextlib.suppress(FileNotFoundError):
            lines = (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()
            return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:")))
        # A kernel that does not tell what is shared.
        pages = (folder / "statm").read_text(encoding="ascii").split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _pair() -> tuple[Connection, Connection]:
    own, other = socket.socketpair()
    return Connection(own.detach()), Connection(other.detach())


def _paths() -> str:
    """Where a new process finds this very package, whatever folder it is begun in."""
    return os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[4]), *filter(None, sys.path)]))


def _error(failed: Failed) -> Exception:
    if failed.kind == Doubtful.__name__:
        return Doubtful()
    kind = kind_named(failed.kind)
    return kind(failed.message, tuple(failed.errors)) if issubclass(kind, InvalidInput) else kind(failed.message)
