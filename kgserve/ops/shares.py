"""What callers share, and how much of it one of them may have: threads, waits for indexes, imports and exports.

Callers are told apart by key, or else by address. REST and MCP share the same threads. What is beyond a share waits its
turn without a thread; what is beyond what may wait is refused, with when to come again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Literal, TypeAlias, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.engine.turns import asker
from kgserve.errors import Limited, Opening
from kgserve.settings import Settings
from kgserve.views.waiting import NotYet, patience

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5

THREADS = 16
TRANSFER_THREADS = 4
"""Threads for reads, for writes, and for statements of either kind; and for what moves much."""
STATEMENTS = 6
"""Threads that the statements of one caller may have."""
STATEMENTS_OPEN = 70
"""Statements of one caller, those that wait for a thread included."""
RETRY_AFTER = 2
"""Seconds after which to come again."""

Kind: TypeAlias = Literal["reads", "writes", "transfers"]


class Places:
    """What each caller may have so much of at once."""

    def __init__(self, name: str, most: int, refusal: str) -> None:
        """``refusal`` is what is said to who has that many, after the number."""
        self.name = name
        self.refused = 0
        self._most = most
        self._refusal = refusal
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How much is taken by all callers."""
        return self._taken.total()

    @contextmanager
    def one(self, caller: str) -> Generator[None]:
        """One more of a caller's, until the end of the block. Raises Limited."""
        if self._taken[caller] >= self._most:
            self.refused += 1
            raise Limited(f"{self._most} {self._refusal}", RETRY_AFTER)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


class Shares:
    """The threads for one kind of work."""

    def __init__(self, threads: int, each: int, queue: Places | None = None, waits: Places | None = None) -> None:
        """``each``: threads that one caller may have; ``queue``: its requests, those that wait for one included.

        ``waits``: those that wait for an index instead, where work may be done over again.
        """
        self._threads = CapacityLimiter(threads)
        self._most = min(each, threads)
        self._each: dict[str, CapacityLimiter] = {}
        self._queue = queue
        self._waits = waits

    async def run(self, work: Callable[[], T], caller: str | None = None) -> T:
        """The result of ``work`` for a caller, the one who asks. Raises Limited when too many of its requests wait."""
        if caller is None:
            caller = asker.get()
        else:
            asker.set(caller)
        with self._share(caller) as share:

            async def in_turn() -> T:
                with self._queue.one(caller) if self._queue is not None else nullcontext():
                    async with share:
                        return await anyio.to_thread.run_sync(work, limiter=self._threads)

            if self._waits is None:
                return await patiently(in_turn)
            return await _put_off(in_turn, self._waits, caller)

    @contextmanager
    def _share(self, caller: str) -> Generator[CapacityLimiter]:
        share = self._each.setdefault(caller, CapacityLimiter(self._most))
        try:
            yield share
        finally:
            found = share.statistics()
            if not found.borrowed_tokens and not found.tasks_waiting:
                self._each.pop(caller, None)


async def _put_off(attempt: Callable[[], Awaitable[T]], waits: Places, caller: str) -> T:
    """The result of ``attempt``, made again when what it waits for may have come. Raises Limited."""
    token = patience.set({})
    try:
        while True:
            try:
                return await patiently(attempt)
            except NotYet as missing:
                with waits.one(caller):
                    await missing.over()
    finally:
        patience.reset(token)


class Threads:
    """The threads in which requests may block, each kind by itself, so that none takes the places of another.

    What moves much is not refused here: it must come to its end in order, and `transfers` says how much of it may be.
    """

    def __init__(self, settings: Settings) -> None:
        each, waits = settings.max_threads_per_key, settings.max_waits_per_key
        own = settings.max_requests_per_key
        queue = Places("requests", own, "requests of yours are being worked on, or wait for that; come again shortly")
        waited = Places("index_waits", waits, "requests of yours wait for an index already; come again shortly")
        stated = Places("statements", STATEMENTS_OPEN, "statements of yours run already, or wait; come again shortly")
        self.transfers = Places(
            "transfers", settings.max_transfers_per_key, "imports and exports of yours are open already; end one first"
        )
        self.places = (queue, waited, stated, self.transfers)
        self.kinds: dict[Kind, Shares] = {
            "reads": Shares(THREADS, each, queue, waited),
            "writes": Shares(THREADS, each, queue),
            "transfers": Shares(TRANSFER_THREADS, TRANSFER_THREADS // 2),
        }
        self.statements = Shares(THREADS, STATEMENTS, stated)
        self.writing_statements = Shares(THREADS, STATEMENTS, stated)

    async def read(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which may be done over again while it waits for an index."""
        return await self.kinds["reads"].run(work)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, made again while somebody else is opening the store; raises Opening after 20 s."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
