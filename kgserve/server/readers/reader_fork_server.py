"""Fork server of the reader processes: imports what they need once, and forks them on request.

It runs while there are reader processes, so that a server without them has no memory of its own for them.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.malloc_control import limit_malloc_arenas, release_free_memory
from kgserve.platform.settings import load_settings
from kgserve.platform.startup_imports import (
    avoid_rich_and_numpy_threads_at_import,
    build_child_process_environment,
    import_httpx_without_its_command,
)
from kgserve.server.readers.shared_commit_page import SharedCommitPage

if TYPE_CHECKING:
    from kgserve.platform.settings import Settings

_CHANNEL_BUFFER_BYTES = 1 << 20
_MAX_START_MESSAGE_BYTES = 64 << 10
_READER_NUMBER = struct.Struct("=I")


class ReaderForkServerStart(msgspec.Struct, frozen=True):
    """First message to the fork server: the server's settings as texts, and its token."""

    settings: dict[str, str]
    token: str


class ReaderForkServer:
    """The fork server as the server sees it. Starts with the first reader process."""

    def __init__(self, page: SharedCommitPage, settings: Settings, token: str) -> None:
        given = {name: str(value) for name, value in msgspec.structs.asdict(settings).items() if value is not None}
        self._start_message = msgspec.msgpack.encode(ReaderForkServerStart(given, token))
        self._page = page
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def fork(self, number: int) -> socket.socket:
        """Fork a reader process, and return the channel to it; it closes if that fails. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for each in (ours, theirs):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BUFFER_BYTES)
            socket.send_fds(self._start(), [_READER_NUMBER.pack(number)], [theirs.fileno()], socket.MSG_DONTWAIT)
        return ours

    def _start(self) -> socket.socket:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = theirs.fileno(), self._page.descriptor
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "kgserve.server.readers", *map(str, descriptors)],
                pass_fds=descriptors,
                env=build_child_process_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.send(self._start_message)
        self._channel = ours
        return ours

    def close(self) -> None:
        """Kill the fork server. Reader processes that it has forked go on."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def serve_reader_forks(channel_descriptor: str, page_descriptor: str) -> None:
    """Fork reader processes until the server closes the channel."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server ends its processes after it has answered
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    limit_malloc_arenas()
    avoid_rich_and_numpy_threads_at_import()
    import_httpx_without_its_command()
    channel = socket.socket(fileno=int(channel_descriptor))
    start = msgpack_decoder(ReaderForkServerStart).decode(channel.recv(_MAX_START_MESSAGE_BYTES))
    settings = load_settings(start.settings, {})
    page = SharedCommitPage(int(page_descriptor))
    run_reader_process = _import_reader_process(settings)
    while True:
        order, descriptors, _, _ = socket.recv_fds(channel, _READER_NUMBER.size, 1)
        if not order:
            return
        theirs = socket.socket(fileno=descriptors[0])
        if not os.fork():
            channel.close()
            try:
                run_reader_process(theirs, *_READER_NUMBER.unpack(order), page, settings, start.token)
            except BaseException:  # noqa: BLE001 - a reader process never forks others
                sys.excepthook(*cast("Any", sys.exc_info()))
                os._exit(1)
            os._exit(0)
        theirs.close()


def _import_reader_process(settings: Settings) -> Any:
    """Import what reader processes need, and return the function that runs one."""
    gc.disable()
    from kgserve.platform.structured_log import configure_logging  # noqa: PLC0415 - after the import settings
    from kgserve.server.readers.reader_process import run_reader_process  # noqa: PLC0415 - as above

    configure_logging(settings.log_format, settings.log_level)
    gc.set_threshold(100_000, 50, 100)  # as in the server: rows have no cycles
    gc.freeze()  # a collection in a reader process would copy shared pages
    release_free_memory()
    return run_reader_process
