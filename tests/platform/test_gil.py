"""Loops that yield the GIL."""

from __future__ import annotations

import itertools
import resource
import time

from kgserve.platform.gil_yield import GIL_HOLD_SECONDS, iterate_yielding_gil


def rests(work: float, count: int) -> int:
    """Count how often a thread yields in a cooperative loop of ``count`` items that take ``work`` each."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in iterate_yielding_gil(range(count)):
        until = time.perf_counter() + work
        while time.perf_counter() < until:
            pass
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_cooperative_iteration_is_lazy_and_keeps_items() -> None:
    assert list(iterate_yielding_gil("abc")) == ["a", "b", "c"]
    assert list(itertools.islice(iterate_yielding_gil(itertools.count()), 3)) == [0, 1, 2]


def test_a_cooperative_loop_yields_after_each_work_period() -> None:
    assert rests(2 * GIL_HOLD_SECONDS, 20) >= 15
    assert rests(0, 20) < 10
