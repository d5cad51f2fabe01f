"""The stores, and the threads in which tools may block on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter

from kgserve.access.caller import Caller
from kgserve.ops.moments import Past
from kgserve.ops.opening import patiently
from kgserve.ops.shares import Shares
from kgserve.store.pool import StorePool
from kgserve.store.scoped import seen_by
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

READ_THREADS = 16
WRITE_THREADS = 16


class Reply(NamedTuple):
    """An answer twice over: as text to read, and as values."""

    text: str
    values: msgspec.Struct


class Pending(NamedTuple, Generic[A]):
    """A write that a store has taken, and how to speak of its answer."""

    future: Future[A]
    reply: Callable[[A], Reply]


class Work:
    """What the tools work with."""

    def __init__(self, pool: StorePool, indexer: Indexer | None, historian: Historian | None = None) -> None:
        self.pool = pool
        self.indexer = indexer
        self.historian = historian
        self._reads = CapacityLimiter(READ_THREADS)
        self._writes = CapacityLimiter(WRITE_THREADS)
        self._statements = Shares()

    def seen_by(self, caller: Caller) -> Work:
        """The same, with the caller's stores alone."""
        if caller.sees_all:
            return self
        seen = copy(self)
        seen.pool = seen_by(self.pool, caller)
        return seen

    def past(self, as_of: str | msgspec.UnsetType) -> Past | None:
        """The moment that a call names, if it names one."""
        return None if isinstance(as_of, msgspec.UnsetType) else Past(self.historian, as_of)

    async def read(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for reads."""
        return await _run(partial(work, *args, **kwargs), self._reads)

    async def statement(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, a statement of a caller's, run in one of the threads for those."""
        return await self._statements.run(caller, partial(work, *args, **kwargs))

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for writes."""
        return await _run(partial(work, *args, **kwargs), self._writes)


async def _run(work: Callable[[], T], limiter: CapacityLimiter) -> T:
    return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=limiter))


async def settled(pending: Pending[Any]) -> Reply:
    """The reply of a write once it is done. Shielded: who is cut off must not cancel what the store has taken."""
    return pending.reply(await asyncio.shield(asyncio.wrap_future(pending.future)))
