"""A fork server that has imported kgserve: forking takes a tenth of a second of CPU instead of two seconds.

Forked servers are ordinary processes with their own environment, signals and exit. A guardian process per server
reports its process id and exit code to the test.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_module
from threading import Lock
from typing import IO, Any

import msgspec

IMPORTED = ("kgserve.cli.root", "kgserve.cli.serve", "kgserve.client.embedded", "kgserve.server.app", "mcp")
TOP = Path(__file__).parents[2]


class ProcessRequest(msgspec.Struct, frozen=True):
    """Request for a process that runs a module, as ``python -m`` does, or a ``program``, as ``python -c`` does."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    program: str | None = None


class ForkedProcess:
    """A forked server with the interface of `subprocess.Popen`."""

    def __init__(self, told: int, stdout: IO[str] | None) -> None:
        self._told, self.stdout = told, stdout
        self.pid = self._number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, once the process has ended."""
        if self.returncode is None and _readable(self._told, 0):
            self.returncode = self._number()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Return its exit code."""
        if self.returncode is None:
            if not _readable(self._told, timeout):
                raise subprocess.TimeoutExpired("kgserve serve", timeout or 0)
            self.returncode = self._number()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # It may have just ended, before its guardian has reported it.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipe of its output."""
        if self.stdout is not None:
            self.stdout.close()
        os.close(self._told)

    def _number(self) -> int:
        return int.from_bytes(os.read(self._told, 8), "little", signed=True)


def _readable(descriptor: int, timeout: float | None) -> bool:
    """Return True if a descriptor, which `select` limits to 1,023, is readable within ``timeout`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    errors: IO[Any],
    output: IO[Any] | None = None,
    module: str = "kgserve",
    *,
    program: str | None = None,
    given: IO[Any] | None = None,
) -> ForkedProcess:
    """Start a module or a ``program``. Its standard error goes to a file, its output to another, or into a pipe.

    It reads its standard input from ``given``, by default an empty one.
    """
    reading, writing = os.pipe() if output is None else (None, os.dup(output.fileno()))
    told, telling = os.pipe()
    empty = os.open(os.devnull, os.O_RDONLY)
    wanted = msgspec.msgpack.encode(ProcessRequest(module, [*arguments], {**environment}, program))
    streams = [given.fileno() if given else empty, writing, errors.fileno()]
    with _request_lock:
        nursery = _fork_server()
        socket.send_fds(nursery, [len(wanted).to_bytes(8, "little")], [*streams, telling])
        nursery.sendall(wanted)
    os.close(empty)
    os.close(writing)
    os.close(telling)
    return ForkedProcess(told, None if reading is None else os.fdopen(reading, encoding="utf-8"))


_request_lock = Lock()


@cache
def _fork_server() -> socket.socket:
    """Return the socket of this process's fork server, which ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        command = [sys.executable, "-m", "tests.cli.fork_server", str(theirs.fileno())]
        found = {**os.environ, "PYTHONPATH": str(TOP)}  # noqa: TID251 - only passed on
        number = os.posix_spawn(sys.executable, command, found)
    atexit.register(_end, ours, number)
    return ours


def _end(nursery: socket.socket, number: int) -> None:
    nursery.close()
    os.waitpid(number, 0)


def main(number: str) -> None:
    """Fork on request, until the socket is closed."""
    for each in IMPORTED:
        import_module(each)
    import_module("tests.timeouts").be_patient()
    gc.freeze()  # scanning all objects for garbage would take a quarter of a second
    asked = socket.socket(fileno=int(number))
    while True:
        head, ends, _flags, _address = socket.recv_fds(asked, 8, 4)
        if not head:
            _reap()
            return
        wanted = asked.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
        if os.fork() == 0:
            asked.close()
            _guard(msgspec.msgpack.decode(wanted, type=ProcessRequest), *ends)
            return
        for end in ends:
            os.close(end)
        _reap()


def _reap() -> None:
    """Reap guardians that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _guard(wanted: ProcessRequest, given: int, output: int, errors: int, telling: int) -> None:
    """Fork the process, and report its id and then its exit code; the forked process returns from here."""
    server = os.fork()
    if server == 0:
        os.close(telling)
        _serve(wanted, given, output, errors)
        return
    for stream in (given, output, errors):
        os.close(stream)
    os.write(telling, server.to_bytes(8, "little", signed=True))
    code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    os.write(telling, code.to_bytes(8, "little", signed=True))
    os._exit(0)


def _serve(wanted: ProcessRequest, given: int, output: int, errors: int) -> None:
    for end, place in ((given, 0), (output, 1), (errors, 2)):
        os.dup2(end, place)
        os.close(end)
    os.environ.clear()  # noqa: TID251 - replaced below
    os.environ.update(wanted.environment)  # noqa: TID251 - as above
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if wanted.program is None:
        sys.argv = [wanted.module, *wanted.arguments]
        run_module(wanted.module, run_name="__main__", alter_sys=True)
        return
    sys.argv = ["-c", *wanted.arguments]
    exec(compile(wanted.program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as `python -c` does


if __name__ == "__main__":
    main(sys.argv[1])
