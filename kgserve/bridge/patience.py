"""How long an answer is waited for: while the server gives signs of life, and within the limit of the call."""

from __future__ import annotations

import threading
import time

from kgserve.reach import CALL_TIMEOUT, Server, is_alive, why_silent

SILENCE = 2.0
"""Seconds without a byte after which the server is asked whether it is alive."""

SIGN_OF_LIFE = 2.5
"""Seconds in which it must say so: a server that hangs is told of after `SILENCE` and this."""

LONG = 5
"""How many times the limit the tools have that work for long where there is much to do."""

LONG_TOOLS = frozenset(
    {"inject_knowledge_graph", "put_subgraph", "query_cypher", "drop_store", "consolidate_memories", "reflect"}
)


class Unresponsive(Exception):
    """The server hangs, or has not answered in time. ``str(error)`` is for the person who waits."""


class Pulse:
    """Whether the server is alive, asked once for all calls that wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._felt: tuple[Server, float] | None = None

    def check(self, server: Server) -> None:
        """Raises Unresponsive when it hangs. One that is gone is left to the connection to it to tell of."""
        with self._lock:
            if self._felt is not None and self._felt[0] == server and time.monotonic() - self._felt[1] < SILENCE / 2:
                return
            if not is_alive(server, SIGN_OF_LIFE):
                raise Unresponsive(why_silent(server))
            self._felt = server, time.monotonic()


class Patience:
    """That for one request."""

    def __init__(self, pulse: Pulse, limit: float = CALL_TIMEOUT) -> None:
        """``limit`` is in seconds, from one sign of progress to the next."""
        self._pulse = pulse
        self._limit = limit
        self._moved = self._asked = time.monotonic()

    def moved(self) -> None:
        """Something has come that shows progress."""
        self._moved = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left of the limit."""
        return max(self._moved + self._limit - time.monotonic(), 0.0)

    def wait(self, server: Server) -> float:
        """Seconds that may be waited now. To be called before each wait. Raises Unresponsive."""
        left = self.left
        if not left:
            raise Unresponsive(
                f"the server at {server.url} is alive, but has not answered within {self._limit:g} s; "
                "KGSERVE_CALL_TIMEOUT sets how long a call may take"
            )
        if time.monotonic() - self._asked >= SILENCE:
            self._pulse.check(server)
        self._asked = time.monotonic()
        return min(SILENCE, self.left or left)


def limit_of(tool: str | None, usual: float) -> float:
    """Seconds that a request may take; ``tool`` is the one that it calls."""
    return usual * LONG if tool in LONG_TOOLS else usual
