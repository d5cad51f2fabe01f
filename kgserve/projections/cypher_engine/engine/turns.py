"""A few places that many callers want at once: nobody gets all of them, and who waits is served in turn.

Of those who hold less than their share, a free place goes to the caller who has waited longest since the last one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Generic, TypeVar

from kgserve.errors import Unavailable

MAX_WAITING_PER_SLOT = 16
"""For each place so many may wait, half of them of one caller's; who comes then is sent away."""

T = TypeVar("T")

asker: ContextVar[str] = ContextVar("asker", default="")
"""Who asks, in the threads that work for a caller: a key, a session or an address."""


class _Wait(Generic[T]):
    def __init__(self) -> None:
        self.place: T | None = None


class FairPool(Generic[T]):
    """Hands out places to callers, who are told apart by a name."""

    def __init__(self, places: Iterable[T]) -> None:
        """All places are free; the last ones are handed out first, again and again, for they are warm."""
        self._free = list(places)
        self._share = max(1, len(self._free) - 1)
        self._most = MAX_WAITING_PER_SLOT * len(self._free)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Wait[T]]] = OrderedDict()
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def take(self, caller: str, seconds: float) -> T:
        """A place, within so many seconds. Raises Unavailable when there is none, or when too many wait."""
        wait = _Wait[T]()
        deadline = time.monotonic() + seconds
        with self._changed:
            own = self._waiting.get(caller, ())
            if len(own) >= self._most // 2 or sum(map(len, self._waiting.values())) >= self._most:
                raise Unavailable("too many statements wait for this store; try again shortly")
            self._waiting.setdefault(caller, deque()).append(wait)
            self._hand_out()
            while wait.place is None:
                if not self._changed.wait(deadline - time.monotonic()) and wait.place is None:
                    self._leave(caller, wait)
                    raise Unavailable("all read connections of this store are busy")
            return wait.place

    def give_back(self, caller: str, place: T) -> None:
        """A place is free again."""
        with self._changed:
            self._free.append(place)
            self._held -= Counter([caller])
            self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (caller := self._next()) is not None:
            queue = self._waiting[caller]
            queue.popleft().place = self._free.pop()
            self._held[caller] += 1
            if queue:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            self._changed.notify_all()

    def _next(self) -> str | None:
        # Who has no name is the process itself, or all who use it as a library.
        return next((caller for caller in self._waiting if not caller or self._held[caller] < self._share), None)

    def _leave(self, caller: str, wait: _Wait[T]) -> None:
        queue = self._waiting[caller]
        queue.remove(wait)
        if not queue:
            del self._waiting[caller]
