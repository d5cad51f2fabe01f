"""Thread sharing between callers, and throttling of reads and writes."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kgserve.errors import RateLimited
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server import admission
from kgserve.server.admission import (
    ACTIVE_CALLER_SECONDS,
    MAX_CONCURRENT_WRITES,
    MAX_LOOP_READ_SECONDS,
    ActiveCallers,
    CallerConcurrencyThrottle,
    CallerQuota,
    EventLoopReadScheduler,
    FairThreadPool,
)
from tests.stores.writing import PATIENCE

THREADS, EACH, OPEN = 4, 2, 5


def shares() -> tuple[FairThreadPool, CallerQuota]:
    queue = CallerQuota("requests", OPEN, "of your requests wait")
    return FairThreadPool(THREADS, EACH, queue), queue


def test_busy_caller_leaves_threads_to_others() -> None:
    free, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        begun.release()
        assert free.wait(PATIENCE)
        return current_caller.get()

    async def run() -> None:
        share, _ = shares()
        held = [asyncio.create_task(share.run(hold, "greedy")) for _ in range(THREADS)]
        for _ in range(EACH):
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        assert not begun.acquire(blocking=False)
        assert await share.run(current_caller.get, "modest") == "modest"
        free.set()
        assert await asyncio.gather(*held) == ["greedy"] * THREADS
        assert share._each == {}

    asyncio.run(run())


def test_queue_quota_refuses_with_retry_after() -> None:
    free = threading.Event()

    async def run() -> None:
        share, queue = shares()
        held = [asyncio.create_task(share.run(lambda: free.wait(PATIENCE), "greedy")) for _ in range(OPEN)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited, match="5 of your requests wait") as refused:
            await share.run(free.is_set, "greedy")
        assert refused.value.retry_after > 0
        assert await share.run(free.is_set, "modest") is False
        assert (queue.in_use, queue.refused) == (OPEN, 1)
        free.set()
        assert all(await asyncio.gather(*held))
        assert (share._each, queue.in_use) == ({}, 0)

    asyncio.run(run())


def test_active_callers_is_thread_safe() -> None:
    callers, over = ActiveCallers(), threading.Event()

    def look() -> None:
        while not over.is_set():
            assert callers.count_other_callers("0") <= 7
            assert callers.has_others("0") <= callers.has_several()

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        with ThreadPoolExecutor(1) as threads:
            looking = threads.submit(look)
            for at in range(100_000):
                callers.record_request(str(at % 8))
            over.set()
            looking.result()
    finally:
        sys.setswitchinterval(before)


def test_several_callers_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = ActiveCallers()
    assert not callers.has_several()
    callers.record_request("one")
    callers.record_request("one")
    assert not callers.has_several()
    assert not callers.has_others("one")
    callers.record_request("two")
    assert callers.has_several()
    assert callers.has_others("one")
    monkeypatch.setattr(admission, "ACTIVE_CALLER_SECONDS", -1.0)
    assert not callers.has_several()
    assert not callers.has_others("one")
    assert callers.count_other_callers("one") == 0


class Writers:
    """Concurrent writes of one caller that run until they are ended; records the order in which they start."""

    def __init__(self) -> None:
        self.callers, self.queue = ActiveCallers(), CallerQuota("requests", OPEN, "of your requests wait")
        self.turns = CallerConcurrencyThrottle(
            self.callers, self.queue, MAX_CONCURRENT_WRITES, lambda: admission.MAX_WRITE_WAIT_SECONDS
        )
        self.begun: list[int] = []
        self._ends: list[asyncio.Event] = []
        self._news = asyncio.Event()

    async def begin(self, count: int) -> list[asyncio.Task[None]]:
        """Start further writes."""
        first = len(self._ends)
        self._ends += [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(self._write(number)) for number in range(first, first + count)]
        await asyncio.sleep(0)
        return tasks

    async def end(self, *numbers: int) -> None:
        """End some writes, and let waiting ones start."""
        for number in numbers:
            self._ends[number].set()
        async with asyncio.timeout(PATIENCE):
            while self.begun[-1] < min(numbers[-1] + MAX_CONCURRENT_WRITES, len(self._ends) - 1):
                self._news.clear()
                await self._news.wait()

    async def _write(self, number: int) -> None:
        async with self.turns.one("many"):
            self.begun.append(number)
            self._news.set()
            await self._ends[number].wait()


def test_write_throttle_limits_concurrent_writes() -> None:
    async def run() -> None:
        writers = Writers()
        writers.callers.record_request("many")
        alone = await writers.begin(MAX_CONCURRENT_WRITES + 1)
        assert writers.begun == [*range(MAX_CONCURRENT_WRITES + 1)]
        await writers.end(*writers.begun)
        await asyncio.gather(*alone)
        writers = Writers()
        writers.callers.record_request("other")
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + 3)
        assert writers.begun == [*range(MAX_CONCURRENT_WRITES)]
        for number in range(len(tasks)):
            await writers.end(number)
            # In order of arrival.
            assert writers.begun == [*range(min(number + MAX_CONCURRENT_WRITES + 1, len(tasks)))]
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)
        assert (writers.turns._taken, writers.turns._waiting, writers.queue.in_use) == ({}, {}, 0)

    asyncio.run(run())


def test_write_slot_pauses_in_proportion_to_other_callers() -> None:
    async def run() -> None:
        writers, loop = Writers(), asyncio.get_running_loop()
        tasks = await writers.begin(0)
        for other in ("one", "another"):
            writers.callers.record_request(other)
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + 1)
        began = loop.time()
        await asyncio.sleep(0.05)
        worked = loop.time() - began
        await writers.end(0)
        assert loop.time() - began >= 3 * worked
        await writers.end(*range(1, len(tasks)))
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_write_throttle_delay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_WRITE_WAIT_SECONDS", 0.02)

    async def run() -> None:
        writers = Writers()
        writers.callers.record_request("other")
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + 2)
        assert writers.begun == [*range(MAX_CONCURRENT_WRITES)]
        async with asyncio.timeout(PATIENCE):
            while len(writers.begun) < len(tasks):  # None of the earlier ones has ended.
                writers._news.clear()
                await writers._news.wait()
        [late] = await writers.begin(1)
        for each in writers._ends[:2]:
            each.set()
        await asyncio.gather(*tasks[:2])
        assert writers.turns._taken["many"] <= MAX_CONCURRENT_WRITES + 1, "additional slots are removed again"
        for each in writers._ends:
            each.set()
        await asyncio.gather(*tasks, late)
        async with asyncio.timeout(PATIENCE):
            while writers.turns._taken:  # noqa: ASYNC110  # the last places rest
                await asyncio.sleep(0.001)
        assert writers.queue.in_use == 0

    asyncio.run(run())


def test_write_throttle_ends_without_other_callers() -> None:
    async def run() -> None:
        writers = Writers()
        writers.callers.record_request("other")
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + 3)
        writers.callers._last_request["other"] -= 2 * ACTIVE_CALLER_SECONDS
        await writers.end(0)
        await asyncio.sleep(0)
        assert writers.begun == [*range(len(tasks))]
        writers.callers.record_request("other")
        [late] = await writers.begin(1)
        assert len(writers.begun) == len(tasks)
        await writers.end(*range(1, len(tasks) + 1))
        await asyncio.gather(*tasks, late)
        async with asyncio.timeout(PATIENCE):
            while writers.turns._taken:  # noqa: ASYNC110  # the last place may still rest
                await asyncio.sleep(0)

    asyncio.run(run())


def test_cancelled_write_releases_its_slot() -> None:
    async def run() -> None:
        writers = Writers()
        writers.callers.record_request("other")
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + 3)
        tasks[MAX_CONCURRENT_WRITES].cancel()
        await writers.end(0)
        assert writers.begun[-1] == MAX_CONCURRENT_WRITES + 1
        [place] = writers.turns._waiting["many"]
        writers._ends[1].set()
        while not place.done():  # noqa: ASYNC110  # to be there before the write goes on
            await asyncio.sleep(0)
        # Its slot was assigned, and it is cancelled before it can use it.
        tasks[-1].cancel()
        await asyncio.gather(*tasks[-1:], return_exceptions=True)
        assert (writers.turns._taken, writers.turns._waiting) == ({"many": MAX_CONCURRENT_WRITES - 1}, {})
        for each in writers._ends:
            each.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (writers.turns._taken, writers.queue.in_use) == ({}, 0)

    asyncio.run(run())


def test_waiting_writes_count_to_the_queue_quota() -> None:
    async def run() -> None:
        writers = Writers()
        writers.callers.record_request("other")
        tasks = await writers.begin(MAX_CONCURRENT_WRITES + OPEN)
        with pytest.raises(RateLimited, match="5 of your requests wait"):
            async with writers.turns.one("many"):
                pass
        async with writers.turns.one("other"):
            pass
        for number in range(len(tasks)):
            await writers.end(number)
        await asyncio.gather(*tasks)
        assert writers.turns._taken == {}

    asyncio.run(run())


def test_long_reads_on_the_event_loop_take_turns_between_other_work() -> None:
    done: list[str] = []

    async def read(turns: EventLoopReadScheduler, caller: str) -> None:
        current_caller.set(caller)
        async with turns.one():
            time.sleep(MAX_LOOP_READ_SECONDS)  # noqa: ASYNC251 - a read occupies the event loop
            done.append(caller)

    async def run() -> None:
        turns = EventLoopReadScheduler()
        reads = [asyncio.create_task(read(turns, caller)) for caller in ("greedy",) * 5 + ("modest",)]
        await asyncio.sleep(0)
        assert done == ["greedy"]
        reads[1].cancel()
        while len(done) < len(reads) - 1:
            before = len(done)
            await asyncio.sleep(0)
            assert len(done) - before <= 1
        assert done.index("modest") <= 2
        await asyncio.gather(*reads, return_exceptions=True)
        await read(turns, "later")

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert done[-1] == "later"


def test_reads_in_threads_take_turns_while_others_are_active() -> None:
    """A third read of one caller waits for a slot, though threads are free; alone, no read waits."""

    async def go(*, with_others: bool) -> None:
        callers, begun, end = ActiveCallers(), threading.Semaphore(0), threading.Event()
        callers.record_request("many")
        if with_others:
            callers.record_request("other")
        throttle = CallerConcurrencyThrottle(callers, None, 2, lambda: PATIENCE)
        pool = FairThreadPool(THREADS, THREADS, throttle=throttle)

        def read() -> None:
            begun.release()
            assert end.wait(PATIENCE)

        tasks = [asyncio.create_task(pool.run(read, "many")) for _ in range(THREADS)]
        for _ in range(2 if with_others else THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        assert throttle.is_waiting("many") == with_others
        assert not begun.acquire(blocking=False)
        end.set()
        await asyncio.gather(*tasks)
        assert not throttle.is_waiting("many")

    asyncio.run(go(with_others=True))
    asyncio.run(go(with_others=False))
