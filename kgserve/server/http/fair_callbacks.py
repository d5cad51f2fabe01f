"""Calls that other threads leave for the event loop, run a few at a time, callers in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from kgserve.platform.gil import yield_gil
from kgserve.projections.cypher_engine.engine.turns import asker

T = TypeVar("T")
Call = Callable[[], object]
MAX_CALLBACKS_PER_ROUND = 4
"""Calls in a round; between rounds the loop looks at what has arrived."""
NEWS_PAUSE_SECONDS = 0.002
"""Between rounds in which one caller's streams are told of news, while others ask."""


class _Turn(NamedTuple):
    """Whose turn it is; whether its requests wait for the calls, or they are news for its streams."""

    caller: str
    awaited: bool


class FairCallbackQueue:
    """Calls that other threads leave for the event loop, made a few in each of its rounds, callers in turn.

    A commit may be waited for by 64 writes, and be news to 200 streams; who asks meanwhile is not to wait for all of
    them, nor are other threads kept from the interpreter by what is sent to all. Without a lock, which a thread could
    hold while it has lost its turn. While others ask, one caller's streams are told with pauses, of more at once then.
    """

    def __init__(self, has_others: Callable[[str], bool]) -> None:
        """``has_others`` says whether others than a caller have asked lately."""
        self._has_others = has_others
        self._later: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: deque[tuple[_Turn, Call]] = deque()
        self._waiting: OrderedDict[_Turn, deque[Call]] = OrderedDict()
        self._is_coming = False

    def begin(self) -> None:
        """Be of the running loop; before anything is left for it. What was left for another that has ended goes."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._is_coming, self._later = loop, False, None
            self._left.clear()
            self._waiting.clear()

    def soon(self, caller: str, call: Call, *, awaited: bool = False) -> None:
        """Have a call made on the loop, in the caller's turn; from any thread. Once the loop has ended, never.

        What no request has ``awaited`` may be put off for moments while other callers ask.
        """
        self._left.append((_Turn(caller, awaited), call))
        if not self._is_coming and self._loop is not None:
            self._is_coming = True
            with suppress(RuntimeError):  # it has ended, and with it who waits
                self._loop.call_soon_threadsafe(self._round)

    async def result(self, future: Future[T]) -> T:
        """What a future comes to, told in the turn of who asks. To be cut off while waiting does not cancel it."""
        if not future.done():
            self.begin()
            waiting = asyncio.get_running_loop().create_future()
            caller, told = asker.get(), partial(_end, waiting)
            future.add_done_callback(lambda _: self.soon(caller, told, awaited=True))
            await waiting
        return future.result()

    def _round(self) -> None:
        self._is_coming = False  # before a look at what is left: what comes after it has another round
        while self._left:
            turn, call = self._left.popleft()
            self._waiting.setdefault(turn, deque()).append(call)
        for _ in range(MAX_CALLBACKS_PER_ROUND):
            if not self._waiting:
                return
            self._next()()
        if not self._waiting or self._loop is None:
            return
        if self._may_pause():
            # What comes from other threads has a round at once.
            self._later = self._later or self._loop.call_later(NEWS_PAUSE_SECONDS, self._go_on)
            return
        self._is_coming = True
        self._loop.call_soon(self._round)
        yield_gil()

    def _may_pause(self) -> bool:
        """Whether nothing is left but news for one caller, while others ask."""
        [turn, *others] = self._waiting
        return not others and not turn.awaited and self._has_others(turn.caller)

    def _go_on(self) -> None:
        self._later = None
        self._round()

    def _next(self) -> Call:
        """The call of whose turn it is, who then waits for the others' turns."""
        turn, calls = self._waiting.popitem(last=False)
        call = calls.popleft()
        if calls:
            self._waiting[turn] = calls
        return call


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
