"""Whether anybody uses the server, and since when not."""

from __future__ import annotations

import time
from collections.abc import Mapping

_PROBES = frozenset({"/health", "/ready", "/metrics"})
_LISTENING = b"subscriptions/listen"


def is_use(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is for somebody's work. Probes are not, nor the streams that idle editors of MCP keep open.

    An editor that comes back has a server started. Who listens to events of stores has not, so that is use.
    """
    if path == "/mcp":
        return method != "GET" and headers.get(b"mcp-method") != _LISTENING
    return path not in _PROBES


class Use:
    """Counts the requests that are use."""

    def __init__(self) -> None:
        self._running = 0
        self._ended = time.monotonic()

    def begin(self) -> None:
        """A request is being worked on."""
        self._running += 1

    def end(self) -> None:
        """It is no longer."""
        self._running -= 1
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last one ended; 0 while there is one."""
        return 0.0 if self._running else time.monotonic() - self._ended
