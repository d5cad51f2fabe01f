"""Callers share the threads for statements."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kgserve.engine.turns import asker
from kgserve.errors import Unavailable
from kgserve.ops.graph import EACH, THREADS, WAITING, Shares


def test_a_caller_with_many_statements_leaves_threads_to_others() -> None:
    free, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        begun.release()
        assert free.wait(10)
        return asker.get()

    async def run() -> None:
        shares = Shares()
        held = [asyncio.create_task(shares.run("greedy", hold)) for _ in range(THREADS)]
        for _ in range(EACH):
            assert await asyncio.to_thread(begun.acquire, timeout=10)
        assert not begun.acquire(blocking=False)
        assert await shares.run("modest", asker.get) == "modest"
        free.set()
        assert await asyncio.gather(*held) == ["greedy"] * THREADS
        assert shares._each == {}

    asyncio.run(run())


def test_who_sends_too_many_is_told_to_come_again() -> None:
    free = threading.Event()

    async def run() -> None:
        shares = Shares()
        held = [asyncio.create_task(shares.run("greedy", lambda: free.wait(10))) for _ in range(EACH + WAITING)]
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable, match="statements wait"):
            await shares.run("greedy", free.is_set)
        assert await shares.run("modest", free.is_set) is False
        free.set()
        assert all(await asyncio.gather(*held))
        assert shares._each == {}

    asyncio.run(run())
