"""Waiting for a store to open, and for a turn among callers, without holding a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.engine.turns import asker
from kgserve.errors import Opening, Unavailable

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, made again while somebody else is opening the store; raises Opening after 20 s."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


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
