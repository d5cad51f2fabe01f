"""Servers of the standard library for tests."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=BaseServer)


@contextmanager
def served(server: _Server) -> Generator[_Server]:
    """Yield a server that answers in its own thread for the duration of the block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name=type(server).__name__)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
