"""Admission control: quotas and fair scheduling of requests per caller.

A caller is an API key, or else an address. Callers share threads, waits for indexes, imports and exports; REST and MCP
use the same threads. A request beyond its caller's share waits without a thread. A request beyond the quota of waiting
requests is refused with a time to retry.
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
from kgserve.errors import RateLimited, StoreOpenQueueFull
from kgserve.graph.store_handle import MAX_OPENING_POLL_SECONDS, MIN_OPENING_POLL_SECONDS, OPENING_TIMEOUT_SECONDS
from kgserve.platform.gil_yield import fair_pause_seconds
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.projections.read_your_writes import ProjectionNotCaughtUp, request_waits
from kgserve.server.http.connection import ensure_running_in_task
from kgserve.server.idempotent_calls import IdempotentCallCache

P = ParamSpec("P")
T = TypeVar("T")
WORKER_POOL_THREADS = 16
"""Threads for each of reads, writes, reading statements and writing statements."""
TRANSFER_THREADS = 4
"""Threads for imports and exports."""
MAX_STATEMENT_THREADS = 6
"""Maximum number of threads for the statements of one caller."""
MAX_OPEN_STATEMENTS = 70
"""Maximum number of statements of one caller, those that wait for a thread included."""
RETRY_AFTER_SECONDS = 2
"""Seconds after which a refused caller should retry."""


class CallerQuota:
    """Per-caller quota of one resource."""

    def __init__(self, name: str, most: int, refusal: str) -> None:
        """Create a quota of ``most`` per caller; ``refusal`` is the error message after that number."""
        self.name = name
        self.refused = 0
        self._most = most
        self._refusal = refusal
        self._taken: Counter[str] = Counter()

    @property
    def in_use(self) -> int:
        """Amount in use by all callers."""
        return self._taken.total()

    @contextmanager
    def take_one(self, caller: str) -> Generator[None]:
        """Take one for a caller until the end of the block. Raises RateLimited."""
        if self._taken[caller] >= self._most:
            self.refused += 1
            raise RateLimited(f"{self._most} {self._refusal}", RETRY_AFTER_SECONDS)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


ACTIVE_CALLER_SECONDS = 1.0
"""Seconds after the start of a request during which its caller counts as active."""


class ActiveCallers:
    """Callers that started a request recently. Thread-safe."""

    def __init__(self) -> None:
        self._last_request: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def record_request(self, caller: str) -> None:
        """Record a request of a caller."""
        now = time.monotonic()
        with self._lock:
            self._last_request[caller] = now
            self._last_request.move_to_end(caller)
            while now - next(iter(self._last_request.values())) > ACTIVE_CALLER_SECONDS:
                self._last_request.popitem(last=False)

    def count_other_callers(self, own: str) -> int:
        """Return the number of other active callers."""
        oldest = time.monotonic() - ACTIVE_CALLER_SECONDS
        with self._lock:
            return sum(each != own and at >= oldest for each, at in self._last_request.items())

    def has_others(self, own: str) -> bool:
        """Return whether another caller is active."""
        return self._are_active(1, own)

    def has_several(self) -> bool:
        """Return whether more than one caller is active."""
        return self._are_active(2)

    def _are_active(self, count: int, except_for: str | None = None) -> bool:
        """Return whether at least ``count`` callers are active, not counting one."""
        with self._lock:
            newest = (at for each, at in reversed(self._last_request.items()) if each != except_for)
            at = next(islice(newest, count - 1, None), None)
        return at is not None and time.monotonic() - at <= ACTIVE_CALLER_SECONDS


class ActiveRequestCounter:
    """Counter of requests in progress; the server is not idle while there are any."""

    def __init__(self, callers: ActiveCallers) -> None:
        self._running = 0
        self.callers = callers
        self.begun = self._ended = time.monotonic()

    def begin(self) -> None:
        """Count a request as in progress; ``begun`` is the start of the last one, on the monotonic clock."""
        self._running += 1
        self.begun = time.monotonic()

    def count_other_callers(self, own: str, since: float) -> int:
        """Return the number of other active callers during a long request of ``own`` that began at ``since``.

        Returns at least 1 if any request began after it, even one of the same caller.
        """
        now = time.monotonic()
        if self.begun <= since or now - self.begun > ACTIVE_CALLER_SECONDS:
            return 0
        return max(1, self.callers.count_other_callers(own))

    def end(self) -> None:
        """Count a request as finished."""
        self._running -= 1
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        return 0.0 if self._running else time.monotonic() - self._ended


MAX_CONCURRENT_WRITES = 2
"""Concurrent writes of one caller while other callers are active."""
MAX_WRITE_WAIT_SECONDS = 1.0
"""Maximum delay of a write by the throttle; earlier writes may be waiting for a store that cannot be reached."""


MAX_CONCURRENT_READS = 2
"""Concurrent reads of one caller in threads, replays of events included, while other callers are active."""
MAX_READ_WAIT_SECONDS = 10.0


class CallerConcurrencyThrottle:
    """Throttle for the concurrent work of one caller while other callers are active. Belongs to the event loop.

    Work beyond the limit waits in order of arrival, for ``wait`` seconds at most. A slot that other work waits for
    pauses after each piece of work (`fair_pause_seconds`). A caller below the limit never waits.
    """

    def __init__(
        self,
        callers: ActiveCallers,
        queue: CallerQuota | None,
        most: int,
        wait: Callable[[], float],
        *,
        cost: float = 1.0,
    ) -> None:
        """Create the throttle; ``queue`` is the quota that counts waiting work, ``most`` the number of slots.

        A second of work counts as ``cost`` seconds when its pause is computed.
        """
        self._callers = callers
        self._queue = queue
        self._most = most
        self._max_wait = wait
        self._cost = cost
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one(self, caller: str) -> AsyncGenerator[None]:
        """Run the block as work of a caller, once it has a slot. Raises RateLimited when too many requests wait."""
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
        is_full = caller in self._waiting or self._taken.get(caller, 0) >= self._most
        return is_full and self._callers.has_others(caller)

    def is_waiting(self, caller: str) -> bool:
        """Return whether work of a caller waits for a slot."""
        return caller in self._waiting

    async def _wait(self, caller: str) -> None:
        with nullcontext() if self._queue is None else self._queue.take_one(caller):
            loop = asyncio.get_running_loop()
            slot = loop.create_future()
            self._waiting.setdefault(caller, deque()).append(slot)
            timeout = loop.call_later(self._max_wait(), self._add_slot, caller, slot)
            try:
                await slot
            except asyncio.CancelledError:
                if slot.done() and not slot.cancelled():
                    self._end(caller, 0.0)
                raise
            finally:
                timeout.cancel()

    def _add_slot(self, caller: str, slot: asyncio.Future[None]) -> None:
        """Let waiting work run in an additional slot."""
        if not slot.done():
            self._taken[caller] += 1
            slot.set_result(None)

    def _end(self, caller: str, worked: float) -> None:
        if caller in self._waiting and self._taken[caller] <= self._most:
            rest = fair_pause_seconds(worked * self._cost, self._callers.count_other_callers(caller))
            asyncio.get_running_loop().call_later(rest, self._hand_over_slot, caller)
        else:
            self._release_slot(caller)

    def _hand_over_slot(self, caller: str) -> None:
        """Give the slot to the oldest waiting work; start all other work as well if no other caller is active."""
        waiting = self._waiting.get(caller, deque())
        has_own = True
        while waiting and (has_own or not self._callers.has_others(caller)):
            slot = waiting.popleft()
            if not has_own:
                self._add_slot(caller, slot)
            elif not slot.done():
                has_own = False
                slot.set_result(None)
        if not waiting:
            self._waiting.pop(caller, None)
        if has_own:
            self._release_slot(caller)

    def _release_slot(self, caller: str) -> None:
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


MAX_LOOP_READ_SECONDS = 0.0003
"""Time after which further reads of several rows wait for the next turn of the event loop."""


class EventLoopReadScheduler:
    """Scheduler of multi-row reads on the event loop, so that small requests do not wait for many of them.

    Reads beyond the time of a turn wait: one of them runs between two polls for input, callers in turn.
    """

    def __init__(self) -> None:
        self._spent = 0.0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """Run the block, which must not wait, once it is the current caller's turn."""
        if self._spent >= MAX_LOOP_READ_SECONDS or self._waiting:
            await self._wait(current_caller.get())
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._end_turn)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - start

    async def _wait(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        self._spent = 0.0
        while self._waiting:
            caller, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[caller] = turns
            if not turn.done():
                turn.set_result(None)
                return


class FairThreadPool:
    """Thread pool for one kind of work, shared fairly by callers."""

    def __init__(
        self,
        threads: int,
        each: int,
        queue: CallerQuota | None = None,
        waits: CallerQuota | None = None,
        throttle: CallerConcurrencyThrottle | None = None,
    ) -> None:
        """Create the pool.

        each: maximum number of threads for one caller. queue: quota of a caller's requests, waiting ones included.
        waits: quota of a caller's requests that wait for an index; only for work that may be repeated.
        throttle: applied to work in threads, not while it waits for an index.
        """
        self._throttle = throttle
        self._threads = CapacityLimiter(threads)
        self._most = min(each, threads)
        self._each: dict[str, CapacityLimiter] = {}
        self._queue = queue
        self._waits = waits

    async def run(self, work: Callable[[], T], caller: str | None = None) -> T:
        """Run ``work`` in a thread and return its result; ``caller`` defaults to the current one.

        Raises RateLimited when too many of the caller's requests wait.
        """
        if caller is None:
            caller = current_caller.get()
        else:
            current_caller.set(caller)
        with self._share(caller) as share:

            async def run_in_thread() -> T:
                with self._queue.take_one(caller) if self._queue is not None else nullcontext():
                    return await self._run_in_share(work, share, caller)

            if self._waits is None:
                return await retry_while_store_opening(run_in_thread)
            return await _retry_until_caught_up(run_in_thread, self._waits, caller)

    async def run_admitted(self, work: Callable[[], T]) -> T:
        """Run the rest of work of the current caller, which its quota already counts, in a thread."""
        caller = current_caller.get()
        with self._share(caller) as share:
            return await self._run_in_share(work, share, caller)

    async def _run_in_share(self, work: Callable[[], T], share: CapacityLimiter, caller: str) -> T:
        async with share, nullcontext() if self._throttle is None else self._throttle.one(caller):
            return await anyio.to_thread.run_sync(work, limiter=self._threads)

    @contextmanager
    def _share(self, caller: str) -> Generator[CapacityLimiter]:
        share = self._each.setdefault(caller, CapacityLimiter(self._most))
        try:
            yield share
        finally:
            found = share.statistics()
            if not found.borrowed_tokens and not found.tasks_waiting:
                self._each.pop(caller, None)


async def _retry_until_caught_up(attempt: Callable[[], Awaitable[T]], waits: CallerQuota, caller: str) -> T:
    """Repeat ``attempt`` each time an index that it waits for has advanced. Raises RateLimited."""
    token = request_waits.set({})
    try:
        while True:
            try:
                return await retry_while_store_opening(attempt)
            except ProjectionNotCaughtUp as missing:
                with waits.take_one(caller):
                    await missing.over()
    finally:
        request_waits.reset(token)


class AdmissionControl:
    """Admission control of one server: a thread pool for each kind of work, and the quotas.

    The pool for transfers has no queue quota, because a running transfer must be able to finish. The quota
    ``transfers`` limits how many may start. ``loop_turns`` is for long work on the event loop: large bodies, and MCP
    sessions that begin.
    """

    def __init__(self, settings: Settings) -> None:
        each, waits = settings.max_threads_per_key, settings.max_waits_per_key
        own = settings.max_requests_per_key
        queue = CallerQuota("requests", own, "of your requests are running or waiting; try again shortly")
        waited = CallerQuota("index_waits", waits, "of your requests are waiting for an index; try again shortly")
        stated = CallerQuota(
            "statements", MAX_OPEN_STATEMENTS, "of your statements are running or waiting; try again shortly"
        )
        self.transfers = CallerQuota(
            "transfers",
            settings.max_transfers_per_key,
            "of your imports and exports are already open; finish one first",
        )
        self.quotas = (queue, waited, stated, self.transfers)
        self._statements = stated
        self.callers = ActiveCallers()
        self.turns = CallerConcurrencyThrottle(
            self.callers, queue, MAX_CONCURRENT_WRITES, lambda: MAX_WRITE_WAIT_SECONDS
        )
        # Reads compute in all their slots at once. Writes mostly wait for the disk.
        self.read_turns = CallerConcurrencyThrottle(
            self.callers, None, MAX_CONCURRENT_READS, lambda: MAX_READ_WAIT_SECONDS, cost=MAX_CONCURRENT_READS
        )
        self.transfer_turns = CallerConcurrencyThrottle(self.callers, None, 1, lambda: MAX_READ_WAIT_SECONDS)
        self.loop_turns = CallerConcurrencyThrottle(self.callers, queue, 1, lambda: MAX_READ_WAIT_SECONDS)
        self.loop_reads = EventLoopReadScheduler()
        self.repeats = IdempotentCallCache()
        self.kinds: dict[ExecutorName, FairThreadPool] = {
            "reads": FairThreadPool(WORKER_POOL_THREADS, each, queue, waited, self.read_turns),
            "writes": FairThreadPool(WORKER_POOL_THREADS, each, queue),
            "transfers": FairThreadPool(TRANSFER_THREADS, TRANSFER_THREADS // 2, throttle=self.transfer_turns),
            "statements": FairThreadPool(WORKER_POOL_THREADS, MAX_STATEMENT_THREADS, stated),
            "writing_statements": FairThreadPool(WORKER_POOL_THREADS, MAX_STATEMENT_THREADS, stated),
        }

    async def run(self, kind: ExecutorName, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` for the current caller in a thread of a kind, and return its result. Raises RateLimited.

        Reads are repeated while they wait for an index. Cancellation does not interrupt a write.
        """
        await ensure_running_in_task()
        working = self.kinds[kind].run(partial(work, *args, **kwargs))
        return await (asyncio.shield(working) if kind == "writes" else working)

    async def read(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread for reads, and return its result."""
        return await self.run("reads", work)

    def transfer_slot(self) -> AbstractContextManager[None]:
        """Count one more import or export of the current caller, until the end of the block. Raises RateLimited."""
        return self.transfers.take_one(current_caller.get())

    def statement_slot(self) -> AbstractContextManager[None]:
        """Count one more statement of the current caller, until the end of the block. Raises RateLimited."""
        return self._statements.take_one(current_caller.get())

    async def finish_statement(self, work: Callable[[], T]) -> T:
        """Run the rest of a statement, which `statement_slot` counts, in a thread, and return its result."""
        return await self.kinds["statements"].run_admitted(work)

    def write_slot(self) -> AbstractAsyncContextManager[None]:
        """Return the context of a write, throttled per caller by `CallerConcurrencyThrottle`. Raises RateLimited."""
        return self.turns.one(current_caller.get())


async def retry_while_store_opening(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``attempt`` while another caller opens the store. Raises StoreOpenQueueFull after 20 s."""
    deadline = time.monotonic() + OPENING_TIMEOUT_SECONDS
    pause = MIN_OPENING_POLL_SECONDS
    while True:
        try:
            return await attempt()
        except StoreOpenQueueFull:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_OPENING_POLL_SECONDS)
