"""Loops that rest now and then."""

from __future__ import annotations

import itertools
import resource
import time

from kgserve.platform.gil import GIL_HOLD_SECONDS, cooperative


def rests(work: float, count: int) -> int:
    """How often a thread lets its core go in a paced loop of so many items that take so long."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in cooperative(range(count)):
        until = time.perf_counter() + work
        while time.perf_counter() < until:
            pass
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_the_items_are_the_same_each_when_it_is_wanted() -> None:
    assert list(cooperative("abc")) == ["a", "b", "c"]
    assert list(itertools.islice(cooperative(itertools.count()), 3)) == [0, 1, 2]


def test_there_is_a_rest_after_each_stretch_of_work() -> None:
    assert rests(2 * GIL_HOLD_SECONDS, 20) >= 15
    assert rests(0, 20) < 10
