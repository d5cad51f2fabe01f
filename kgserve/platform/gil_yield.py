"""Cooperative yielding of the GIL in long loops.

A thread that waits for the GIL can force its release only if the holder has not released it during the switch interval.
Loops that release it briefly every 20 to 500 µs (SQLite, tantivy, numpy, sockets) wake the waiting threads each time,
but take it again before they run. They can starve other threads for tenths of a second, so such loops sleep at
intervals for as long as a thread takes to wake up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

GIL_HOLD_SECONDS = 0.001
GIL_YIELD_SECONDS = 0.00005


def yield_gil() -> None:
    """Sleep for about 0.1 ms, so that other threads can run."""
    time.sleep(GIL_YIELD_SECONDS)


def iterate_yielding_gil(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, pausing after each millisecond."""
    rested = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - rested > GIL_HOLD_SECONDS:
            yield_gil()
            rested = time.perf_counter()


MAX_GIL_REST_SECONDS = 1.0


def fair_pause_seconds(worked: float, waiting_callers: int) -> float:
    """Return how long a busy caller pauses after a unit of work: ``worked`` seconds per waiting caller, up to 1 s."""
    return min(worked * waiting_callers, MAX_GIL_REST_SECONDS)
