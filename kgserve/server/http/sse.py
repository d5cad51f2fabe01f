"""Server-sent events: encoding of events, and the registry of open streams.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html. A block with an id and no data is not an event,
but the client remembers its id. The server sends such blocks to report its position at the start and in heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
import msgspec
from anyio import CancelScope, CapacityLimiter

from kgserve.errors import RateLimited, Unavailable
from kgserve.server.admission import RETRY_AFTER_SECONDS, CallerQuota
from kgserve.server.http.fair_callbacks import FairCallbackQueue

P = ParamSpec("P")
T = TypeVar("T")

RECONNECT_DELAY_MILLISECONDS = 1_000
_READER_THREADS = 4


def encode_sse_event(kind: str, data: bytes, position: str | None) -> bytes:
    """Encode one event; ``data`` must be one line."""
    name = f"id: {position}\nevent: {kind}\ndata: " if position is not None else f"event: {kind}\ndata: "
    return name.encode() + data + b"\n\n"


def encode_sse_preamble(position: str) -> bytes:
    """Encode the first block of a stream: the reconnection delay and the position at which the stream begins."""
    return f"retry: {RECONNECT_DELAY_MILLISECONDS}\n{_id(position)}\n".encode()


def encode_sse_heartbeat(position: str) -> bytes:
    """Encode a heartbeat: a comment and the current position."""
    return f": heartbeat\n{_id(position)}\n".encode()


def encode_sse_stream_dropped_event(position: str, reason: str) -> bytes:
    """Encode the last event of a stream that the server ends: the reason, and the id from which to resume."""
    return encode_sse_event("dropped", msgspec.json.encode({"reason": reason, "resume": position}), position or None)


def _id(position: str) -> str:
    return f"id: {position}\n" if position else ""


class OpenEventStream:
    """One open event stream: wakes when events arrive or the stream must end."""

    def __init__(self, rounds: FairCallbackQueue, owner: str) -> None:
        self.scope = CancelScope()
        self.sending = False
        self.stopped = False
        self._rounds, self._owner = rounds, owner
        self._news = asyncio.Event()
        self._woken = False

    def wake(self) -> None:
        """Report new events; from any thread. Repeated calls before the next `clear` are ignored."""
        if not self._woken:
            self._woken = True
            self._rounds.soon(self._owner, self._news.set)

    def clear(self) -> None:
        """Reset the signal, so that `wait` waits for the next `wake`."""
        self._woken = False
        self._news.clear()

    async def wait(self, seconds: float) -> bool:
        """Wait for `wake`; return False if ``seconds`` pass first."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
            return True
        return False

    def stop(self) -> None:
        """End the stream gracefully, or immediately while it waits for its client to read."""
        self.stopped = True
        self._news.set()
        if self.sending:
            self.scope.cancel()


class EventStreamRegistry:
    """Open event streams of one application, and the threads that read journals for them."""

    def __init__(self, most: int, most_of_one: int, rounds: FairCallbackQueue) -> None:
        self._most = most
        self._rounds = rounds
        self.quota = CallerQuota(
            "event_streams", most_of_one, "of your event streams are already open; close one first"
        )
        self._open: set[OpenEventStream] = set()
        self._threads = CapacityLimiter(_READER_THREADS)
        self._stopped = False

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._open)

    @property
    def most(self) -> int:
        """Maximum number of open streams."""
        return self._most

    @contextmanager
    def open(self, owner: str | None) -> Generator[OpenEventStream]:
        """Register a stream until the end of the block.

        owner: API key or address; None for another node of the cluster, which counts the streams of its own callers.
        Raises RateLimited when too many streams are open, Unavailable while the server is stopping.
        """
        if self._stopped:
            raise Unavailable("the server is stopping")
        if owner is not None and len(self._open) >= self._most:
            raise RateLimited(f"{self._most} event streams are already open; close one first", RETRY_AFTER_SECONDS)
        with nullcontext() if owner is None else self.quota.take_one(owner):
            self._rounds.begin()
            stream = OpenEventStream(self._rounds, owner or "")
            self._open.add(stream)
            try:
                yield stream
            finally:
                self._open.discard(stream)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in one of the threads for streams and return its result."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._threads)

    def stop(self) -> None:
        """End all streams and refuse new ones."""
        self._stopped = True
        for stream in tuple(self._open):
            stream.stop()
