"""Fair pool of a few slots shared by many callers: no caller can hold all slots.

A free slot goes to the caller below its share that has waited longest since its last slot.
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
"""Waiting requests per slot; one caller may have half of them. Further requests are rejected."""

T = TypeVar("T")

current_caller: ContextVar[str] = ContextVar("current_caller", default="")
"""Caller on whose behalf a thread works: a key, a session or an address."""


class _SlotRequest(Generic[T]):
    def __init__(self) -> None:
        self.place: T | None = None


class FairPool(Generic[T]):
    """Pool that hands out slots fairly among callers identified by name."""

    def __init__(self, places: Iterable[T]) -> None:
        """Start with all slots free.

        The most recently returned slot is handed out first because its caches are warm.
        """
        self._free = list(places)
        self._share = max(1, len(self._free) - 1)
        self._most = MAX_WAITING_PER_SLOT * len(self._free)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_SlotRequest[T]]] = OrderedDict()
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def take(self, caller: str, seconds: float) -> T:
        """Return a slot, blocking up to ``seconds``. Raises Unavailable on timeout or if too many requests wait."""
        wait = _SlotRequest[T]()
        deadline = time.monotonic() + seconds
        with self._changed:
            own = self._waiting.get(caller, ())
            if len(own) >= self._most // 2 or sum(map(len, self._waiting.values())) >= self._most:
                raise Unavailable("too many statements wait for this store; try again shortly")
            self._waiting.setdefault(caller, deque()).append(wait)
            self._assign_slots()
            while wait.place is None:
                if not self._changed.wait(deadline - time.monotonic()) and wait.place is None:
                    self._cancel(caller, wait)
                    raise Unavailable("all read connections of this store are busy")
            return wait.place

    def take_free(self, caller: str) -> T | None:
        """Return a slot without waiting; None if none is free, others wait, or the caller holds its share."""
        with self._changed:
            if not self._free or self._waiting or (caller and self._held[caller] >= self._share):
                return None
            self._held[caller] += 1
            return self._free.pop()

    def release(self, caller: str, place: T) -> None:
        """Return a slot to the pool."""
        with self._changed:
            self._free.append(place)
            self._held -= Counter([caller])
            self._assign_slots()

    def _assign_slots(self) -> None:
        while self._free and (caller := self._next_caller()) is not None:
            queue = self._waiting[caller]
            queue.popleft().place = self._free.pop()
            self._held[caller] += 1
            if queue:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            self._changed.notify_all()

    def _next_caller(self) -> str | None:
        # The empty name is the process itself, or all users of the library; it has no share.
        return next((caller for caller in self._waiting if not caller or self._held[caller] < self._share), None)

    def _cancel(self, caller: str, wait: _SlotRequest[T]) -> None:
        queue = self._waiting[caller]
        queue.remove(wait)
        if not queue:
            del self._waiting[caller]
