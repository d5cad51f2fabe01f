"""Waiting for a store to open without holding a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kgserve.errors import Opening

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
