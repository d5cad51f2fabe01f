"""Callback queue of the event loop: a few callbacks per iteration, round-robin over callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from kgserve.platform.gil_yield import yield_gil
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller

T = TypeVar("T")
Call = Callable[[], object]
MAX_CALLBACKS_PER_ROUND = 4
"""Callbacks per round; between rounds the event loop handles other input."""
STREAM_NOTIFICATION_PAUSE_SECONDS = 0.002
"""Pause between rounds that only notify streams of one caller while other callers are active."""


class _CallbackGroup(NamedTuple):
    """Callbacks of one caller; ``awaited`` if requests wait for them, otherwise notifications of its streams."""

    caller: str
    awaited: bool


class FairCallbackQueue:
    """Callbacks that other threads schedule on the event loop, run a few per iteration, round-robin over callers.

    One commit may complete 64 writes and notify 200 streams; new requests do not wait for all of these. The queue takes
    no lock, because a preempted thread could hold it. While other callers are active, the streams of one caller are
    notified with pauses.
    """

    def __init__(self, has_others: Callable[[str], bool]) -> None:
        """has_others: returns whether callers other than the given one were active recently."""
        self._has_others = has_others
        self._later: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: deque[tuple[_CallbackGroup, Call]] = deque()
        self._waiting: OrderedDict[_CallbackGroup, deque[Call]] = OrderedDict()
        self._is_scheduled = False

    def begin(self) -> None:
        """Bind the queue to the running event loop. Discards callbacks that were queued for an earlier loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._is_scheduled, self._later = loop, False, None
            self._left.clear()
            self._waiting.clear()

    def soon(self, caller: str, call: Call, *, awaited: bool = False) -> None:
        """Schedule a callback on the event loop; from any thread. Does nothing once the loop is closed.

        awaited: whether a request waits for it. Other callbacks may be delayed briefly while other callers are active.
        """
        self._left.append((_CallbackGroup(caller, awaited), call))
        if not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._round)

    async def result(self, future: Future[T]) -> T:
        """Return the result of a future, delivered through this queue. Cancelling the wait does not cancel it."""
        if not future.done():
            self.begin()
            waiting = asyncio.get_running_loop().create_future()
            caller, notify = current_caller.get(), partial(_resolve, waiting)
            future.add_done_callback(lambda _: self.soon(caller, notify, awaited=True))
            await waiting
        return future.result()

    def _round(self) -> None:
        self._is_scheduled = False  # before reading the queue: later callbacks schedule another round
        while self._left:
            group, call = self._left.popleft()
            self._waiting.setdefault(group, deque()).append(call)
        for _ in range(self._round_size()):
            if not self._waiting:
                return
            self._pop_next()()
        if not self._waiting or self._loop is None:
            return
        if self._may_pause():
            # New callbacks still start a round immediately.
            self._later = self._later or self._loop.call_later(STREAM_NOTIFICATION_PAUSE_SECONDS, self._resume)
            return
        self._is_scheduled = True
        self._loop.call_soon(self._round)
        yield_gil()

    def _round_size(self) -> int:
        """Return how many callbacks to run now: all, if only requests of one caller wait and no other is active."""
        if len(self._waiting) == 1:
            [(group, calls)] = self._waiting.items()
            if group.awaited and len(calls) > MAX_CALLBACKS_PER_ROUND and not self._has_others(group.caller):
                return len(calls)
        return MAX_CALLBACKS_PER_ROUND

    def _may_pause(self) -> bool:
        """Return whether only stream notifications of one caller remain while other callers are active."""
        [group, *others] = self._waiting
        return not others and not group.awaited and self._has_others(group.caller)

    def _resume(self) -> None:
        self._later = None
        self._round()

    def _pop_next(self) -> Call:
        """Return the next callback in round-robin order."""
        group, calls = self._waiting.popitem(last=False)
        call = calls.popleft()
        if calls:
            self._waiting[group] = calls
        return call


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
