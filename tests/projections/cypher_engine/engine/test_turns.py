"""Fair distribution of slots among callers."""

from __future__ import annotations

import threading
import time

import pytest

from kgserve.errors import Unavailable
from kgserve.projections.cypher_engine.engine.fair_pool import MAX_WAITING_PER_SLOT, FairPool
from tests.stores.writing import PATIENCE, until


def test_a_caller_never_holds_all_slots() -> None:
    turns = FairPool(range(4))
    held = [turns.take("greedy", 0) for _ in range(3)]
    with pytest.raises(Unavailable, match="busy"):
        turns.take("greedy", 0.01)
    other = turns.take("modest", 0)
    assert {*held, other} == {0, 1, 2, 3}
    turns.release("greedy", held[0])
    assert turns.take("greedy", 0) == held[0]


def test_internal_work_may_hold_all_slots() -> None:
    turns = FairPool(range(2))
    assert {turns.take("", 0), turns.take("", 0)} == {0, 1}


def test_a_single_slot_is_available_to_every_caller() -> None:
    turns = FairPool(["only"])
    assert turns.take("a", 0) == "only"
    turns.release("a", "only")
    assert turns.take("a", 0) == "only"


def test_slots_rotate_among_waiting_callers() -> None:
    turns = FairPool([1])
    served: list[str] = []
    place = turns.take("first", 0)

    def wait(caller: str) -> None:
        mine = turns.take(caller, PATIENCE)
        served.append(caller)
        turns.release(caller, mine)

    threads: list[threading.Thread] = []
    for number, caller in enumerate(["a", "a", "a", "b", "c", "b"], start=1):
        threads.append(threading.Thread(target=wait, args=(caller,)))
        threads[-1].start()
        until(lambda number=number: turns.waiting == number)
    turns.release("first", place)
    for thread in threads:
        thread.join(PATIENCE)
    assert served == ["a", "b", "c", "a", "b", "a"]
    assert turns.waiting == 0


def test_a_timed_out_wait_fails_and_takes_no_slot_later() -> None:
    turns = FairPool([1])
    place = turns.take("a", 0)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        turns.take("b", 0.1)
    assert 0.09 < time.monotonic() - started < PATIENCE
    turns.release("a", place)
    assert turns.take("c", 0) == 1


def test_queues_are_bounded_per_caller_and_in_total() -> None:
    turns = FairPool([1])
    place = turns.take("holder", 0)
    threads: list[threading.Thread] = []

    def wait(caller: str) -> None:
        turns.release(caller, turns.take(caller, PATIENCE))

    def begin(caller: str, count: int) -> None:
        for _ in range(count):
            threads.append(threading.Thread(target=wait, args=(caller,)))
            threads[-1].start()

    begin("a", MAX_WAITING_PER_SLOT // 2)
    until(lambda: turns.waiting == MAX_WAITING_PER_SLOT // 2)
    with pytest.raises(Unavailable, match="too many"):
        turns.take("a", 10)
    begin("b", MAX_WAITING_PER_SLOT // 2)
    until(lambda: turns.waiting == MAX_WAITING_PER_SLOT)
    with pytest.raises(Unavailable, match="too many"):
        turns.take("c", 10)
    turns.release("holder", place)
    for thread in threads:
        thread.join(PATIENCE)
    assert turns.waiting == 0
