"""Admission control: how much of the server each caller may have at once.

Threads, waits for indexes, imports and exports are shared by callers, who are told apart by key, or else by address.
REST and MCP share the same threads. What is beyond a caller's share waits for its turn without a thread; what is beyond
what may wait is refused, with when to try again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.api.operation import ExecutorName
from kgserve.errors import Limited, Opening
from kgserve.graph.handle import FIRST_OPENING_PAUSE_SECONDS, MAX_OPENING_PAUSE_SECONDS, OPENING_TIMEOUT_SECONDS
from kgserve.platform.gil import rest_seconds
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.projections.read_your_writes import NotCaughtUp, patience
from kgserve.server.http.connection import in_task

P = ParamSpec("P")
T = TypeVar("T")
WORKER_THREADS = 16
TRANSFER_THREADS = 4
"""Threads for reads, for writes, and for statements of either kind; and for what moves much."""
MAX_STATEMENT_THREADS = 6
"""Threads that the statements of one caller may have."""
MAX_OPEN_STATEMENTS = 70
"""Statements of one caller, those that wait for a thread included."""
RETRY_AFTER = 2
"""Seconds after which to come again."""


class Quota:
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


ACTIVE_CALLER_SECONDS = 1.0
"""So long after a request has begun more of its kind are expected."""


class ActiveCallers:
    """Who has asked lately. Any thread may call."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def asks(self, caller: str) -> None:
        """A request of a caller has been let in."""
        now = time.monotonic()
        with self._lock:
            self._asked[caller] = now
            self._asked.move_to_end(caller)
            while now - next(iter(self._asked.values())) > ACTIVE_CALLER_SECONDS:
                self._asked.popitem(last=False)

    def others(self, own: str) -> int:
        """How many have asked lately beside a caller."""
        oldest = time.monotonic() - ACTIVE_CALLER_SECONDS
        with self._lock:
            return sum(each != own and at >= oldest for each, at in self._asked.items())

    def has_others(self, own: str) -> bool:
        """Whether any has."""
        return self._are_lately(1, own)

    def are_several(self) -> bool:
        """Whether more than one has asked lately."""
        return self._are_lately(2)

    def _are_lately(self, many: int, but: str | None = None) -> bool:
        """Whether so many have asked lately, not counting one."""
        with self._lock:
            newest = (at for each, at in reversed(self._asked.items()) if each != but)
            at = next(islice(newest, many - 1, None), None)
        return at is not None and time.monotonic() - at <= ACTIVE_CALLER_SECONDS


class InFlightCounter:
    """Counts the requests that are use."""

    def __init__(self, callers: ActiveCallers) -> None:
        self._running = 0
        self._callers = callers
        self.begun = self._ended = time.monotonic()

    def begin(self) -> None:
        """A request is being worked on; ``begun`` is when the last one was, on the monotonic clock."""
        self._running += 1
        self.begun = time.monotonic()

    def others(self, own: str, since: float) -> int:
        """How many other callers have asked lately, while a long request of one goes on that began at ``since``.

        At least 1 when any request has begun after it: it may be the same caller's.
        """
        now = time.monotonic()
        if self.begun <= since or now - self.begun > ACTIVE_CALLER_SECONDS:
            return 0
        return max(1, self._callers.others(own))

    def end(self) -> None:
        """It is no longer."""
        self._running -= 1
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last one ended; 0 while there is one."""
        return 0.0 if self._running else time.monotonic() - self._ended


MAX_CONCURRENT_WRITES = 2
"""Writes of one caller that are worked on while others ask."""
MAX_WRITE_WAIT_SECONDS = 1.0
"""For which a write waits for its turn at most: those before it may wait for a store that cannot be reached."""


class WriteThrottle:
    """Has a caller that writes much at once do so a few at a time, for as long as others ask; of the event loop.

    What is beyond waits here, first come, first served, for a second at most. After each write whose place another one
    waits for, the place rests, as `rest_seconds` says: many who write with one key have the share of a few. Who has
    fewer under way never waits.
    """

    def __init__(self, callers: ActiveCallers, queue: Quota) -> None:
        """``queue``: the requests of a caller, among which those that wait here count."""
        self._callers = callers
        self._queue = queue
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one(self, caller: str) -> AsyncGenerator[None]:
        """One write of a caller, begun in its turn. Raises Limited when too many of its requests wait."""
        if self._must_wait(caller):
            await self._wait(caller)
        else:
            self._taken[caller] += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self._end(caller, time.perf_counter() - began)

    def _must_wait(self, caller: str) -> bool:
        is_full = self._taken[caller] >= MAX_CONCURRENT_WRITES or caller in self._waiting
        return is_full and self._callers.has_others(caller)

    async def _wait(self, caller: str) -> None:
        with self._queue.one(caller):
            loop = asyncio.get_running_loop()
            place = loop.create_future()
            self._waiting.setdefault(caller, deque()).append(place)
            late = loop.call_later(MAX_WRITE_WAIT_SECONDS, self._let_in, caller, place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._end(caller, 0.0)
                raise
            finally:
                late.cancel()

    def _let_in(self, caller: str, place: asyncio.Future[None]) -> None:
        """Give one that waits no longer a place beside those that there are."""
        if not place.done():
            self._taken[caller] += 1
            place.set_result(None)

    def _end(self, caller: str, worked: float) -> None:
        if caller in self._waiting and self._taken[caller] <= MAX_CONCURRENT_WRITES:
            rest = rest_seconds(worked, self._callers.others(caller))
            asyncio.get_running_loop().call_later(rest, self._pass_on, caller)
        else:
            self._let_go(caller)

    def _pass_on(self, caller: str) -> None:
        """Give a place to who has waited for longest, and more to the others once nobody else asks."""
        waiting = self._waiting.get(caller, deque())
        has_own = True
        while waiting and (has_own or not self._callers.has_others(caller)):
            place = waiting.popleft()
            if not has_own:
                self._let_in(caller, place)
            elif not place.done():
                has_own = False
                place.set_result(None)
        if not waiting:
            self._waiting.pop(caller, None)
        if has_own:
            self._let_go(caller)

    def _let_go(self, caller: str) -> None:
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class FairThreadPool:
    """The threads for one kind of work."""

    def __init__(self, threads: int, each: int, queue: Quota | None = None, waits: Quota | None = None) -> None:
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


async def _put_off(attempt: Callable[[], Awaitable[T]], waits: Quota, caller: str) -> T:
    """The result of ``attempt``, made again when what it waits for may have come. Raises Limited."""
    token = patience.set({})
    try:
        while True:
            try:
                return await patiently(attempt)
            except NotCaughtUp as missing:
                with waits.one(caller):
                    await missing.over()
    finally:
        patience.reset(token)


class Admission:
    """The threads in which requests may block, each kind by itself, so that none takes the places of another.

    What moves much is not refused here: it must come to its end in order, and `transfers` says how much of it may be.
    """

    def __init__(self, settings: Settings) -> None:
        each, waits = settings.max_threads_per_key, settings.max_waits_per_key
        own = settings.max_requests_per_key
        queue = Quota("requests", own, "requests of yours are being worked on, or wait for that; come again shortly")
        waited = Quota("index_waits", waits, "requests of yours wait for an index already; come again shortly")
        stated = Quota(
            "statements", MAX_OPEN_STATEMENTS, "statements of yours run already, or wait; come again shortly"
        )
        self.transfers = Quota(
            "transfers", settings.max_transfers_per_key, "imports and exports of yours are open already; end one first"
        )
        self.quotas = (queue, waited, stated, self.transfers)
        self.callers = ActiveCallers()
        self.turns = WriteThrottle(self.callers, queue)
        self.kinds: dict[ExecutorName, FairThreadPool] = {
            "reads": FairThreadPool(WORKER_THREADS, each, queue, waited),
            "writes": FairThreadPool(WORKER_THREADS, each, queue),
            "transfers": FairThreadPool(TRANSFER_THREADS, TRANSFER_THREADS // 2),
            "statements": FairThreadPool(WORKER_THREADS, MAX_STATEMENT_THREADS, stated),
            "writing_statements": FairThreadPool(WORKER_THREADS, MAX_STATEMENT_THREADS, stated),
        }

    async def run(self, kind: ExecutorName, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of ``work``, run in a thread of a kind for the current caller. Raises Limited.

        Work that reads is repeated while it waits for an index. A caller that leaves does not cancel a write.
        """
        await in_task()
        working = self.kinds[kind].run(partial(work, *args, **kwargs))
        return await (asyncio.shield(working) if kind == "writes" else working)

    async def read(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, run in a thread for reads."""
        return await self.run("reads", work)

    def transfer_slot(self) -> AbstractContextManager[None]:
        """Count one more import or export of the current caller, until the end of the block. Raises Limited."""
        return self.transfers.one(asker.get())

    def write_slot(self) -> AbstractAsyncContextManager[None]:
        """Return the block in which a write of the current caller runs: see `WriteThrottle`. Raises Limited."""
        return self.turns.one(asker.get())


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, made again while somebody else is opening the store; raises Opening after 20 s."""
    deadline = time.monotonic() + OPENING_TIMEOUT_SECONDS
    pause = FIRST_OPENING_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_OPENING_PAUSE_SECONDS)
