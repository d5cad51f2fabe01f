"""Servers of the standard library beside a test."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=BaseServer)


@contextmanager
def served(server: _Server) -> Generator[_Server]:
    """A server that answers in a thread of its own for as long as the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name=type(server).__name__)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
