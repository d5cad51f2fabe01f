"""Statements of many callers in few threads: whoever sends many gets some of them, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.engine.turns import asker
from kgserve.errors import Unavailable
from kgserve.ops.opening import patiently

T = TypeVar("T")

THREADS = 16
EACH = 6
"""Threads that statements may block in, and how many of them a caller may have."""
WAITING = 64
"""Statements of one caller that may wait for a thread; who sends more is told to come again."""


class Shares:
    """The threads for statements, of one face of the server."""

    def __init__(self) -> None:
        self._threads = CapacityLimiter(THREADS)
        self._each: dict[str, CapacityLimiter] = {}

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """The result of ``work`` for a caller, who is told apart by a name. Raises Unavailable when too many wait."""
        share = self._each.setdefault(caller, CapacityLimiter(EACH))
        if share.statistics().tasks_waiting >= WAITING:
            raise Unavailable("too many of your statements wait; try again shortly")
        asker.set(caller)
        try:
            async with share:
                return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=self._threads))
        finally:
            found = share.statistics()
            if not found.borrowed_tokens and not found.tasks_waiting:
                self._each.pop(caller, None)
