"""Waiting for projections to apply a commit, without blocking a thread.

A request that cannot be answered yet raises `ProjectionNotCaughtUp`, which frees its thread. It is retried when a
projection may have caught up. Callers with a thread of their own, such as the embedded library, block in it.
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
    from kgserve.projections.background_projection import BackgroundProjection


class CommitWait(NamedTuple):
    """Commit to wait for, and the deadline (monotonic clock, seconds)."""

    sequence: int
    until: float


request_waits: ContextVar[dict[Hashable, CommitWait] | None] = ContextVar("patience", default=None)
"""Waits of the current request, if it can be retried; None where it must block.

A retried request continues its original waits, and does not wait for later commits.
"""


class ProjectionNotCaughtUp(Exception):
    """Raised when projections have not applied a commit yet; the request is retried when they have."""

    def __init__(self, views: Sequence[BackgroundProjection], wait: CommitWait) -> None:
        super().__init__(f"sequence {wait.sequence} is not applied yet")
        self._views = views
        self._wait = wait

    async def over(self) -> None:
        """Return when all projections have applied the commit, when one of them cannot, or at the deadline."""
        moved, loop = asyncio.Event(), asyncio.get_running_loop()
        with ExitStack() as stack:
            for view in self._views:
                stack.callback(view.watch(partial(_wake, loop, moved)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait.until - time.monotonic()):
                    while any(each.can_still_reach(self._wait.sequence) for each in self._views):
                        await moved.wait()
                        moved.clear()


def _wake(loop: asyncio.AbstractEventLoop, moved: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the event loop, and with it the request, has ended
        loop.call_soon_threadsafe(moved.set)


def wait_for_projections_or_raise(
    views: Sequence[BackgroundProjection], sequence: int, seconds: float, what: Hashable
) -> bool:
    """Wait until projections applied a commit, or raise where the request can be retried; return whether all did.

    Raises ProjectionNotCaughtUp instead of blocking where the request can be retried; ``what`` distinguishes its waits.
    """
    request = request_waits.get()
    if request is None:
        end = time.monotonic() + seconds
        return all(view.wait(sequence, max(end - time.monotonic(), 0)) for view in views)
    wait = request.setdefault(what, CommitWait(sequence, time.monotonic() + seconds))
    # Waiting gives each of them priority.
    missing = [view for view in views if not view.wait(wait.sequence, 0)]
    # A view may catch up at any moment, after which it cannot reach the commit any more either.
    has_failed = any(not view.can_still_reach(wait.sequence) and view.sequence < wait.sequence for view in missing)
    if missing and not has_failed and time.monotonic() < wait.until:
        raise ProjectionNotCaughtUp(missing, wait)
    return all(view.sequence >= wait.sequence for view in missing)
