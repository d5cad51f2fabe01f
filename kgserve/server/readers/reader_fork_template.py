"""The template of reader processes: a copy of the server without threads, which forks them on request.

Pages of imported modules are shared with the server, and a dead reader process is replaced without forking a process
that has threads.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kgserve.server.readers.reader_process import run_reader_process

if TYPE_CHECKING:
    from kgserve.platform.settings import Settings
    from kgserve.server.readers.shared_commit_page import SharedCommitPage

_CHANNEL_BUFFER_BYTES = 1 << 20
_FORK_TIMEOUT_SECONDS = 5.0
_ORDER = struct.Struct("=BI")
"""Action, and the number of a reader process or the id of a process."""
_FORK, _KILL = 0, 1


class ReaderForkTemplate:
    """Process that forks reader processes. Only it may kill them, because only it knows which ids are still theirs."""

    def __init__(self, page: SharedCommitPage, settings: Settings, token: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # a collection would copy every page of the modules
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            _run_template(theirs, page, settings, token)
        theirs.close()
        self._channel.settimeout(_FORK_TIMEOUT_SECONDS)
        self._process = process

    def fork(self, number: int) -> tuple[socket.socket | None, int]:
        """Fork a reader process; return the channel to it and its id, or None if the template has ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BUFFER_BYTES)
        try:
            socket.send_fds(self._channel, [_ORDER.pack(_FORK, number)], [theirs.fileno()])
            answer = self._channel.recv(_ORDER.size)
        except OSError:
            answer = b""
        finally:
            theirs.close()
        if not answer:
            ours.close()
            return None, 0
        return ours, _ORDER.unpack(answer)[1]

    def kill(self, process: int) -> None:
        """Kill a reader process, unless it has ended already."""
        with suppress(OSError):
            self._channel.send(_ORDER.pack(_KILL, process))

    def close(self) -> None:
        """End the template."""
        self._channel.close()
        with suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def _run_template(channel: socket.socket, page: SharedCommitPage, settings: Settings, token: str) -> NoReturn:
    """Fork reader processes until the server closes the channel."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the server ends its processes after it has answered
        _close_all_but(channel)
        children = set[int]()
        while True:
            order, descriptors, _, _ = socket.recv_fds(channel, _ORDER.size, 1)
            if not order:
                break
            _reap(children)
            act, number = _ORDER.unpack(order)
            if act == _KILL:
                if number in children:
                    os.kill(number, signal.SIGKILL)
                continue
            theirs = socket.socket(fileno=descriptors[0])
            child = os.fork()
            if not child:
                channel.close()
                run_reader_process(theirs, number, page, settings, token)
                os._exit(0)
            theirs.close()
            children.add(child)
            channel.send(_ORDER.pack(_FORK, child))
    except BaseException:  # noqa: BLE001 - nothing may run the server's own clean-up
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        os._exit(1)
    os._exit(0)


def _reap(children: set[int]) -> None:
    """Collect the reader processes that have ended."""
    for child in [*children]:
        if os.waitpid(child, os.WNOHANG)[0]:
            children.discard(child)


def _close_all_but(channel: socket.socket) -> None:
    """Close the descriptors of the server: its lock of the data folder and its listeners must end with it."""
    kept = {0, 1, 2, channel.fileno()}
    for entry in [*Path("/proc/self/fd").iterdir()]:
        if int(entry.name) not in kept:
            with suppress(OSError):
                os.close(int(entry.name))
