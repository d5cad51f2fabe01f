"""Entry point of the fork server that creates the engine's processes.

Run as `python -m kgserve.projections.cypher_engine.driver ENGINE FD SECONDS FORMAT LEVEL`.

The fork server imports the engine once and forks a child process for each file. Forking takes milliseconds, and the
children share the imported pages.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kgserve.platform.malloc_control import limit_malloc_arenas, release_free_memory
from kgserve.platform.startup_imports import avoid_rich_and_numpy_threads_at_import
from kgserve.projections.cypher_engine.driver import engine_selection
from kgserve.projections.cypher_engine.engine.protocol import FORK_REQUEST

if TYPE_CHECKING:
    from kgserve.platform.settings import EngineName
    from kgserve.platform.structured_log import LogFormat, LogLevel

MAX_CHANNELS = 100
ENGINE_NICENESS = 5
MALLOC_ARENAS = 2
"""Number of malloc arenas; each reserves 64 MiB of the process's address space."""


def serve_fork_requests(engine: str, number: str, seconds: str, log_format: str, log_level: str) -> None:
    """Fork engine processes on request until the socket closes or is idle for ``seconds`` (0: no idle timeout)."""
    # The server stops its processes itself; Ctrl+C in a terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    limit_malloc_arenas(MALLOC_ARENAS)
    avoid_rich_and_numpy_threads_at_import()
    import_module("kgserve.platform.structured_log").configure_logging(
        cast("LogFormat", log_format), cast("LogLevel", log_level)
    )
    engine_selection.selected_engine = cast("EngineName", engine)
    serving = import_module("kgserve.projections.cypher_engine.driver.engine_process_server")
    import_module("pyarrow")
    import_module(
        "kgserve.projections.cypher_engine.driver.engine_file_opening_and_build"
    ).warm_engine_caches_before_fork()
    _freeze_heap()
    _lower_priority()  # only now, because the first statement waits for the imports
    server = socket.socket(fileno=int(number))
    server.settimeout(float(seconds) or None)
    while True:
        try:
            message, fds, _flags, _address = socket.recv_fds(server, len(FORK_REQUEST), MAX_CHANNELS)
        except OSError:  # idle timeout, or the server closed the socket with a reply unread
            return
        if message != FORK_REQUEST:
            return
        child = os.fork()
        if child == 0:
            server.close()
            control, *channels = map(Connection, fds)
            serving.serve_engine_requests(control, channels)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # a closed socket ends the loop at the next receive
            server.sendall(child.to_bytes(8, "little"))


def _lower_priority() -> None:
    """Lower the process's priority, so that the server's own threads run first on a busy machine."""
    os.nice(ENGINE_NICENESS)
    # With autogroup scheduling, niceness only affects processes of the same session.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(ENGINE_NICENESS), encoding="ascii")


def _freeze_heap() -> None:
    """Freeze all objects: a garbage collection in a child would write to shared pages and copy 10 MiB."""
    gc.collect()
    gc.freeze()
    release_free_memory()


if __name__ == "__main__":
    serve_fork_requests(*sys.argv[1:])
