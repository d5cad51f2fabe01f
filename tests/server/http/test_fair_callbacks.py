"""Callbacks that other threads schedule on the event loop."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.admission import ActiveCallers
from kgserve.server.http.fair_callbacks import (
    MAX_CALLBACKS_PER_ROUND,
    STREAM_NOTIFICATION_PAUSE_SECONDS,
    FairCallbackQueue,
)

MANY = 10 * MAX_CALLBACKS_PER_ROUND
alone = ActiveCallers().has_others


async def rounds_made() -> None:
    """Wait until all scheduled callbacks have run, or could have run."""
    for _ in range(MANY):
        await asyncio.sleep(0)


def left(rounds: FairCallbackQueue, done: list[str], caller: str, count: int) -> None:
    """Schedule callbacks from another thread."""
    with ThreadPoolExecutor(1) as other:
        for _ in range(count):
            other.submit(rounds.soon, caller, lambda: done.append(caller)).result()


def test_callbacks_are_round_robin() -> None:
    async def told() -> list[str]:
        rounds, done = FairCallbackQueue(alone), list[str]()
        rounds.begin()
        left(rounds, done, "greedy", MANY)
        left(rounds, done, "modest", 2)
        await rounds_made()
        return done

    assert asyncio.run(told())[:5] == ["greedy", "modest", "greedy", "modest", "greedy"]


def test_stream_notifications_pause_while_others_are_active() -> None:
    async def told() -> tuple[list[str], float]:
        callers, done = ActiveCallers(), list[str]()
        callers.record_request("modest")
        rounds, loop = FairCallbackQueue(callers.has_others), asyncio.get_running_loop()
        rounds.begin()
        left(rounds, done, "greedy", MANY)
        began = loop.time()
        for _ in range(2):
            await asyncio.sleep(0)
        assert 0 < len(done) <= 2 * MAX_CALLBACKS_PER_ROUND
        current_caller.set("greedy")
        future = Future[int]()
        result = asyncio.ensure_future(rounds.result(future))
        await asyncio.sleep(0)
        future.set_result(1)
        await result
        done.append("a result")
        while len(done) <= MANY:  # noqa: ASYNC110  # for all of them, however long it takes
            await asyncio.sleep(STREAM_NOTIFICATION_PAUSE_SECONDS)
        return done, loop.time() - began

    done, seconds = asyncio.run(told())
    assert done.index("a result") < MANY
    assert seconds > (MANY / MAX_CALLBACKS_PER_ROUND - 2) * STREAM_NOTIFICATION_PAUSE_SECONDS


def test_event_loop_handles_input_between_rounds() -> None:
    async def found() -> tuple[int, int]:
        rounds, done, seen = FairCallbackQueue(alone), list[str](), list[int]()
        rounds.begin()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            loop = asyncio.get_running_loop()
            loop.add_reader(ours, lambda: seen.append(len(done)))
            left(rounds, done, "greedy", MANY)
            theirs.send(b"x")
            await rounds_made()
            loop.remove_reader(ours)
        return seen[0], len(done)

    first, every = asyncio.run(found())
    assert (first <= MAX_CALLBACKS_PER_ROUND, every) == (True, MANY)


@pytest.mark.parametrize(("others", "first"), [((), MANY), (("modest",), MAX_CALLBACKS_PER_ROUND)])
def test_results_of_the_only_active_caller_share_a_round(others: tuple[str, ...], first: int) -> None:
    async def delivered() -> int:
        callers, done = ActiveCallers(), list[int]()
        for each in others:
            callers.record_request(each)
        rounds = FairCallbackQueue(callers.has_others)
        rounds.begin()
        for number in range(MANY):
            rounds.soon("greedy", partial(done.append, number), awaited=True)
        await asyncio.sleep(0)
        return len(done)

    assert asyncio.run(delivered()) == first


def test_cancelled_wait_does_not_cancel_the_future() -> None:
    async def told() -> None:
        rounds, good, bad = FairCallbackQueue(alone), Future[int](), Future[int]()
        current_caller.set("someone")
        left_early = asyncio.ensure_future(rounds.result(good))
        stays, fails = asyncio.ensure_future(rounds.result(good)), asyncio.ensure_future(rounds.result(bad))
        await asyncio.sleep(0)
        left_early.cancel()
        await asyncio.gather(left_early, return_exceptions=True)
        assert not good.cancelled()
        good.set_result(1)
        bad.set_exception(ValueError("so it is"))
        assert await stays == 1
        with pytest.raises(ValueError, match="so it is"):
            await fails
        assert await rounds.result(good) == 1

    asyncio.run(told())


def test_callbacks_of_a_closed_loop_are_discarded() -> None:
    rounds, done = FairCallbackQueue(alone), list[str]()

    async def begun() -> None:
        rounds.begin()

    async def told() -> None:
        rounds.begin()
        left(rounds, done, "told", 2)
        await rounds_made()

    asyncio.run(begun())
    left(rounds, done, "late", 2)
    asyncio.run(told())
    assert done == ["told", "told"]
