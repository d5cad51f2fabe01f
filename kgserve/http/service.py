"""What every handler works with: the stores, the settings, and the threads that may block for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from litestar import Request, Response

from kgserve.access.caller import Caller
from kgserve.http.eager import in_task
from kgserve.http.sse import Streams
from kgserve.ops.moments import Past
from kgserve.ops.opening import patiently
from kgserve.ops.shares import Shares
from kgserve.rows.walk import TooLong
from kgserve.store.pool import NotOpen
from kgserve.store.scoped import OpenStores, seen_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from kgserve.store.pool import StorePool
    from kgserve.views.history import Historian
    from kgserve.views.indexer import Indexer

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS = 16
WRITE_THREADS = 16
TRANSFER_THREADS = 4
JSON = "application/json"
SHORT_ROWS = 2_000
"""Edges that a walk may meet on the event loop, which it then holds for about a millisecond."""
SHORT_WRITE = 50

Answer = bytes | Awaitable[bytes]


class Service:
    """The operations' surroundings for one application.

    Reads, writes and transfers have threads of their own, so that none of them takes the places of another.
    """

    def __init__(self, pool: StorePool, indexer: Indexer | None, historian: Historian | None) -> None:
        self.pool = pool
        self.indexer = indexer
        self.historian = historian
        self.settings = pool.settings
        self.streams = Streams(pool.settings.max_event_streams, pool.settings.max_event_streams_per_key)
        self._calls = CapacityLimiter(CALL_THREADS)
        self._writes = CapacityLimiter(WRITE_THREADS)
        self._transfers = CapacityLimiter(TRANSFER_THREADS)
        self._statements = Shares()
        self._writing_statements = Shares()

    def seen_by(self, caller: Caller) -> Service:
        """The same surroundings, with the caller's stores alone."""
        seen = copy(self)
        seen.pool = seen_by(self.pool, caller)
        return seen

    def past(self, as_of: str | msgspec.UnsetType) -> Past | None:
        """The moment that a query names, if it names one."""
        return None if isinstance(as_of, msgspec.UnsetType) else Past(self.historian, as_of)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for reads and short work."""
        return await self._run(partial(work, *args, **kwargs), self._calls)

    async def statement(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, a statement of a caller's, run in one of the threads for those."""
        await in_task()
        return await self._statements.run(caller, partial(work, *args, **kwargs))

    async def writing_statement(self, caller: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `statement`, of one that writes and may have to wait for others: not in a thread that readers need."""
        await in_task()
        return await self._writing_statements.run(caller, partial(work, *args, **kwargs))

    async def transfer(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for imports and exports."""
        return await self._run(partial(work, *args, **kwargs), self._transfers)

    async def read(self, work: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Response[bytes]:
        """``work``'s Struct as a JSON answer, encoded in the same thread because it may be large."""
        return answer(await self.reading(work, *args, **kwargs))

    async def reading(self, work: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """As `read`, as JSON alone."""
        return await self.call(_encoded, partial(work, *args, **kwargs))

    async def write(self, work: Callable[P, Future[Any]], *args: P.args, **kwargs: P.kwargs) -> Response[bytes]:
        """The Struct that ``work``'s Future holds in the end, as a JSON answer."""
        return answer(await self.writing(work, *args, **kwargs))

    async def writing(self, work: Callable[P, Future[Any]], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """As `write`, as JSON alone."""
        return await self.settled(await self._run(partial(work, *args, **kwargs), self._writes))

    def read_soon(self, work: Callable[[StorePool, int | None], bytes]) -> Answer:
        """What ``work`` answers: at once if the store is open and no more than some thousand rows are met.

        Otherwise in a thread. It is given the pool to take the store from, and the most rows that it may meet; it
        raises TooLong when those do not do.
        """
        with suppress(NotOpen, TooLong):
            return work(OpenStores(self.pool), SHORT_ROWS)
        return self.reading(work, self.pool, None)

    def write_soon(self, rows: int, work: Callable[[StorePool], Future[Any]]) -> Awaitable[bytes]:
        """As `writing`, with a write of few ``rows`` into an open store being checked and queued at once."""
        if rows <= SHORT_WRITE:
            with suppress(NotOpen):
                return self.settled(work(OpenStores(self.pool)))
        return self.writing(work, self.pool)

    @staticmethod
    async def settled(future: Future[Any]) -> bytes:
        """The Struct that a store's writer leaves in ``future``, as JSON; bytes are taken for JSON already.

        The Future is shielded: a caller that is cut off must not cancel a write that the store has taken.
        """
        found = await asyncio.shield(asyncio.wrap_future(future))
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    async def write_through(self, work: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Response[bytes]:
        """The Struct of ``work``, which writes and waits for it, as JSON. A caller's leaving does not end it."""
        run = self._run(partial(_encoded, partial(work, *args, **kwargs)), self._writes)
        return answer(await asyncio.shield(run))

    @staticmethod
    async def _run(work: Callable[[], T], limiter: CapacityLimiter) -> T:
        await in_task()
        return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=limiter))


def service_of(request: Request[Any, Any, Any]) -> Service:
    """The service of the application that got this request, with the caller's stores alone."""
    service, caller = cast("Service", request.app.state["service"]), caller_of(request)
    return service if caller.sees_all else service.seen_by(caller)


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Who asks; the edge has found out before routing."""
    return cast("Caller", request.scope["state"]["caller"])


def answer(body: bytes, status: int = 200) -> Response[bytes]:
    """A JSON answer whose body is encoded already."""
    return Response(body, status_code=status, media_type=JSON)


def _encoded(work: Callable[[], Any]) -> bytes:
    found = work()
    return found if isinstance(found, bytes) else msgspec.json.encode(found)
