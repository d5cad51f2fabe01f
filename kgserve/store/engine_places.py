"""How many engine files all stores together have open: each takes a process, and memory that is its own.

Who needs one more than there may be has it from the store that was not asked for longest, of those that nobody reads
from at that moment.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from kgserve.errors import Unavailable

PAUSE_SECONDS = 0.01


class Holder(Protocol):
    """Who may have a place: the engine's file of a store."""

    @property
    def asked_at(self) -> float:
        """When it was last asked, on the monotonic clock."""
        ...

    def give_way(self) -> bool:
        """Close the file and leave the place, unless somebody is at it; whether that was done. Waits for nobody."""
        ...


class EnginePlaces:
    """So many places, for whoever comes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: dict[Holder, float] = {}
        self._waiting: list[object] = []
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How many are taken."""
        return len(self._taken)

    def take(self, holder: Holder, seconds: float) -> None:
        """Have a place, unless there is one already. Raises Unavailable when all are in use for so many seconds."""
        deadline = time.monotonic() + seconds
        ticket = object()
        with self._lock:
            self._waiting.append(ticket)
        try:
            while not self._took(holder, ticket):
                if self._waiting[0] is ticket and any(other.give_way() for other in self._longest_unasked()):
                    continue
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"all {self.most} engines' processes are at work for other stores; try again shortly, or have"
                        " KGSERVE_ENGINE_PROCESSES raised",
                        retry_after=2,
                    )
                time.sleep(PAUSE_SECONDS)
        finally:
            with self._lock:
                self._waiting.remove(ticket)

    def leave(self, holder: Holder) -> None:
        """Have none any more."""
        with self._lock:
            self._taken.pop(holder, None)

    def _took(self, holder: Holder, ticket: object) -> bool:
        """Whether there is a place for it: one that it has, or a free one when it is the first who waits."""
        with self._lock:
            is_free = self._waiting[0] is ticket and len(self._taken) < self.most
            if holder not in self._taken and is_free:
                self._taken[holder] = time.monotonic()
            return holder in self._taken

    def _longest_unasked(self) -> list[Holder]:
        """Those who have a place. Who has just got it is about to use it, however long that was waited for."""
        with self._lock:
            taken = dict(self._taken)
        return sorted(taken, key=lambda holder: max(holder.asked_at, taken[holder]))
