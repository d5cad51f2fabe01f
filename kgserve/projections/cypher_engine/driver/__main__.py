"""The fork server of the engine's processes, started by a server.

Run as `python -m kgserve.projections.cypher_engine.driver ENGINE FD SECONDS FORMAT LEVEL`.

It imports the engine once, and makes a process for each file by forking: that takes milliseconds instead of a quarter
of a second, and they share what was imported.
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

from kgserve.platform.allocator import bound_arenas, give_back
from kgserve.platform.import_env import import_lightly
from kgserve.projections.cypher_engine.driver import chosen
from kgserve.projections.cypher_engine.engine.protocol import FORK_REQUEST

if TYPE_CHECKING:
    from kgserve.platform.log import LogFormat, LogLevel
    from kgserve.platform.settings import EngineName

MAX_CHANNELS = 100
ENGINE_NICENESS = 5
MALLOC_ARENAS = 2
"""Each reserves 64 MiB of the address space that a process may have."""


def main(engine: str, number: str, seconds: str, log_format: str, log_level: str) -> None:
    """Fork when asked to, until the server is gone or has not asked for so many seconds; 0 is for ever."""
    # The server ends its processes in its own time; a key pressed at the terminal reaches all of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    bound_arenas(MALLOC_ARENAS)
    _give_way()
    import_lightly()
    import_module("kgserve.platform.log").configure(cast("LogFormat", log_format), cast("LogLevel", log_level))
    chosen.engine = cast("EngineName", engine)
    serving = import_module("kgserve.projections.cypher_engine.driver.serving")
    import_module("pyarrow")
    import_module("kgserve.projections.cypher_engine.driver.database").warm()
    _settle()
    server = socket.socket(fileno=int(number))
    server.settimeout(float(seconds) or None)
    while True:
        try:
            message, ends, _flags, _address = socket.recv_fds(server, len(FORK_REQUEST), MAX_CHANNELS)
        except OSError:  # nobody has asked for so long, or the server has ended and left an answer unread
            return
        if message != FORK_REQUEST:
            return
        child = os.fork()
        if child == 0:
            server.close()
            control, *channels = map(Connection, ends)
            serving.serve(control, channels)
        for end in ends:
            os.close(end)
        with contextlib.suppress(OSError):  # it hears next that the server is gone
            server.sendall(child.to_bytes(8, "little"))


def _give_way() -> None:
    """Have the server's own requests go before statements where there are too few processors for both."""
    os.nice(ENGINE_NICENESS)
    # Where sessions share the processors among them, only this makes a difference to another one's.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(ENGINE_NICENESS), encoding="ascii")


def _settle() -> None:
    """Leave what forks share as it is: a collection in one of them would write to all of it, and copy 10 MiB."""
    gc.collect()
    gc.freeze()
    give_back()


if __name__ == "__main__":
    main(*sys.argv[1:])
