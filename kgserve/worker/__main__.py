"""The nursery: `python -m kgserve.worker ENGINE FD SECONDS FORMAT LEVEL`, started by a server.

It imports the engine once, and makes a process for each file by forking: that takes milliseconds instead of a quarter
of a second, and they share what was imported.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from typing import cast

from kgserve.allocator import bound_arenas
from kgserve.engine.protocol import FORK
from kgserve.log import LogFormat, LogLevel, configure
from kgserve.settings import EngineName
from kgserve.worker import chosen

MOST_CHANNELS = 100
ARENAS = 2
"""Each reserves 64 MiB of the address space that a process may have."""


def main(engine: str, number: str, seconds: str, log_format: str, log_level: str) -> None:
    """Fork when asked to, until the server is gone or has not asked for so many seconds; 0 is for ever."""
    # The server ends its processes in its own time; a key pressed at the terminal reaches all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    bound_arenas(ARENAS)
    configure(cast("LogFormat", log_format), cast("LogLevel", log_level))
    chosen.engine = cast("EngineName", engine)
    serving = import_module("kgserve.worker.serving")
    import_module("pyarrow")
    server = socket.socket(fileno=int(number))
    server.settimeout(float(seconds) or None)
    while True:
        try:
            message, ends, _flags, _address = socket.recv_fds(server, len(FORK), MOST_CHANNELS)
        except TimeoutError:
            return
        if message != FORK:
            return
        child = os.fork()
        if child == 0:
            server.close()
            control, *channels = map(Connection, ends)
            serving.serve(control, channels)
        for end in ends:
            os.close(end)
        server.sendall(child.to_bytes(8, "little"))


if __name__ == "__main__":
    main(*sys.argv[1:])
