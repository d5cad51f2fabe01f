"""Callers share threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kgserve.engine.turns import asker
from kgserve.errors import Limited
from kgserve.ops.graph import Places, Shares
from tests.store.writing import PATIENCE

THREADS, EACH, OPEN = 4, 2, 5


def shares() -> tuple[Shares, Places]:
    queue = Places("requests", OPEN, "of yours wait")
    return Shares(THREADS, EACH, queue), queue


def test_a_caller_with_much_to_do_leaves_threads_to_others() -> None:
    free, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        begun.release()
        assert free.wait(PATIENCE)
        return asker.get()

    async def run() -> None:
        share, _ = shares()
        held = [asyncio.create_task(share.run(hold, "greedy")) for _ in range(THREADS)]
        for _ in range(EACH):
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        assert not begun.acquire(blocking=False)
        assert await share.run(asker.get, "modest") == "modest"
        free.set()
        assert await asyncio.gather(*held) == ["greedy"] * THREADS
        assert share._each == {}

    asyncio.run(run())


def test_who_sends_too_many_is_told_to_come_again() -> None:
    free = threading.Event()

    async def run() -> None:
        share, queue = shares()
        held = [asyncio.create_task(share.run(lambda: free.wait(PATIENCE), "greedy")) for _ in range(OPEN)]
        await asyncio.sleep(0)
        with pytest.raises(Limited, match="5 of yours wait") as refused:
            await share.run(free.is_set, "greedy")
        assert refused.value.retry_after > 0
        assert await share.run(free.is_set, "modest") is False
        assert (queue.taken, queue.refused) == (OPEN, 1)
        free.set()
        assert all(await asyncio.gather(*held))
        assert (share._each, queue.taken) == ({}, 0)

    asyncio.run(run())
