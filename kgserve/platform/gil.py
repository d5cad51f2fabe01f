"""Long loops that leave the interpreter to others now and then.

Whoever wants the interpreter's lock has it taken away after the switch interval, but only from who has not let go of it
meanwhile. A loop that lets go of it for a moment every 20 to 500 µs, as calls of SQLite, tantivy, numpy and sockets do,
wakes who waits each time, and has taken it again before they are there; they begin to wait anew, for tenths of a second
on end. So such a loop rests now and then for as long as it takes to wake up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

GIL_HOLD_SECONDS = 0.001
GIL_YIELD_SECONDS = 0.00005


def yield_gil() -> None:
    """Do nothing for a moment, about 0.1 ms in all."""
    time.sleep(GIL_YIELD_SECONDS)


def cooperative(items: Iterable[T]) -> Iterator[T]:
    """The same items, with a rest after each millisecond."""
    rested = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - rested > GIL_HOLD_SECONDS:
            yield_gil()
            rested = time.perf_counter()


MAX_GIL_REST_SECONDS = 1.0


def rest_seconds(worked: float, others: int) -> float:
    """For how long who does much leaves the server to so many others after each part: to each as long as it worked."""
    return min(worked * others, MAX_GIL_REST_SECONDS)
