"""The threads that wait for answers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

SIZE = 32
"""Requests under way at once; more wait."""

WAITING = 1000
"""Requests that may wait."""

_IDLE = 10.0


class Crew:
    """Threads that come as they are needed and leave when there is nothing to do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    def give(self, task: Callable[[], None]) -> bool:
        """Have ``task`` done; False when too many are waiting."""
        with self._changed:
            if len(self._tasks) >= WAITING:
                return False
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._threads < SIZE:
                self._threads += 1
                threading.Thread(target=self._work, name="kgserve-bridge", daemon=True).start()
            return True

    def _work(self) -> None:
        while (task := self._next()) is not None:
            task()

    def _next(self) -> Callable[[], None] | None:
        """The task that has waited longest; None when this thread may leave."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: bool(self._tasks), _IDLE)
            self._idle -= 1
            if self._tasks:
                return self._tasks.popleft()
            self._threads -= 1
            return None
