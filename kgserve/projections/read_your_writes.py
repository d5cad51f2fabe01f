"""Wait until projections have seen a commit, without holding a thread.

A request that cannot be answered yet raises `NotCaughtUp`, which frees its thread, and is tried again when a projection
may have caught up. Callers with a thread of their own, such as the embedded library, wait in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kgserve.projections.follower import BackgroundProjection


class Wait(NamedTuple):
    """A commit that is waited for, and until when."""

    sequence: int
    until: float


patience: ContextVar[dict[Hashable, Wait] | None] = ContextVar("patience", default=None)
"""The waits of the request that a thread works for, if it can be put off.

Tried again, it goes on waiting for what it did, not for what has come since.
"""


class NotCaughtUp(Exception):
    """Views have not seen a commit yet, and the request is to be tried again when they have."""

    def __init__(self, views: Sequence[BackgroundProjection], wait: Wait) -> None:
        super().__init__(f"sequence {wait.sequence} is yet to be seen")
        self._views = views
        self._wait = wait

    async def over(self) -> None:
        """Return when all have seen the commit, when one of them cannot come so far, or when the time is up."""
        moved, loop = asyncio.Event(), asyncio.get_running_loop()
        with ExitStack() as stack:
            for view in self._views:
                stack.callback(view.watch(partial(_wake, loop, moved)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait.until - time.monotonic()):
                    while any(each.has_yet_to_see(self._wait.sequence) for each in self._views):
                        await moved.wait()
                        moved.clear()


def _wake(loop: asyncio.AbstractEventLoop, moved: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended, and the request with it
        loop.call_soon_threadsafe(moved.set)


def reached(views: Sequence[BackgroundProjection], sequence: int, seconds: float, what: Hashable) -> bool:
    """Whether all of these views of a store have seen a commit, at the latest after so many seconds.

    Raises NotYet in place of waiting where the request can be put off; ``what`` tells its waits apart.
    """
    request = patience.get()
    if request is None:
        end = time.monotonic() + seconds
        return all(view.wait(sequence, max(end - time.monotonic(), 0)) for view in views)
    wait = request.setdefault(what, Wait(sequence, time.monotonic() + seconds))
    seen = [view.wait(wait.sequence, 0) for view in views]  # asking hurries each
    if all(seen):
        return True
    missing = [view for view in views if view.sequence < wait.sequence]
    if time.monotonic() < wait.until and all(view.has_yet_to_see(wait.sequence) for view in missing):
        raise NotCaughtUp(missing, wait)
    return not missing
