"""What every handler works with: the stores, the settings, and the threads that may block for them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from litestar import Request, Response

from kgserve.http.connection import in_task
from kgserve.http.sse import Streams
from kgserve.ops.graph import Graphs, Shares, patiently

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgserve.access.authentication import RequestContext
    from kgserve.access.caller import Caller
    from kgserve.operations.operation import Threads

P = ParamSpec("P")
T = TypeVar("T")

CALL_THREADS = 16
WRITE_THREADS = 16
TRANSFER_THREADS = 4
JSON = "application/json"


class Service:
    """The operations' surroundings for one application.

    Reads, writes and transfers have threads of their own, so that none of them takes the places of another.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.settings = graphs.settings
        self.streams = Streams(graphs.settings.max_event_streams, graphs.settings.max_event_streams_per_key)
        self._calls = CapacityLimiter(CALL_THREADS)
        self._writes = CapacityLimiter(WRITE_THREADS)
        self._transfers = CapacityLimiter(TRANSFER_THREADS)
        self._statements = Shares()
        self._writing_statements = Shares()

    def seen_by(self, caller: Caller) -> Service:
        """The same surroundings, with the caller's stores alone, and what the caller may do there."""
        if caller is self.graphs.caller:
            return self
        seen = copy(self)
        seen.graphs = self.graphs.seen_by(caller)
        return seen

    async def in_threads(self, threads: Threads, work: Callable[[], Any]) -> Any:
        """What ``work`` answers in the end, as JSON if it is a Future, run in one of those threads.

        A caller's leaving ends no write.
        """
        found = await self._in(threads, work)
        return await self.settled(found) if isinstance(found, Future) else found

    async def begun_in_threads(self, threads: Threads, work: Callable[[], Any]) -> Any:
        """The same without making JSON of it."""
        found = await self._in(threads, work)
        return await asyncio.shield(asyncio.wrap_future(found)) if isinstance(found, Future) else found

    async def _in(self, threads: Threads, work: Callable[[], Any]) -> Any:
        limiter = {"reads": self._calls, "writes": self._writes, "transfers": self._transfers}[threads]
        working = self._run(work, limiter)
        return await (asyncio.shield(working) if threads == "writes" else working)

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

    @staticmethod
    async def settled(future: Future[Any]) -> bytes:
        """The Struct that a store's writer leaves in ``future``, as JSON; bytes are taken for JSON already.

        The Future is shielded: a caller that is cut off must not cancel a write that the store has taken.
        """
        found = await asyncio.shield(asyncio.wrap_future(future))
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    @staticmethod
    async def _run(work: Callable[[], T], limiter: CapacityLimiter) -> T:
        await in_task()
        return await patiently(lambda: anyio.to_thread.run_sync(work, limiter=limiter))


def service_of(request: Request[Any, Any, Any]) -> Service:
    """The service of the application that got this request, with the caller's stores alone."""
    return cast("Service", request.app.state["service"]).seen_by(caller_of(request))


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Who asks; the edge has found out before routing."""
    return cast("RequestContext", request.scope["state"]["request_context"]).caller


def answer(body: bytes, status: int = 200) -> Response[bytes]:
    """A JSON answer whose body is encoded already."""
    return Response(body, status_code=status, media_type=JSON)
