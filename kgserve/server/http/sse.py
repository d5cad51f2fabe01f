"""Server-sent events: their text, and the streams that are open.

https://html.spec.whatwg.org/multipage/server-sent-events.html is the format. A block with an id and no data is no
event, but the client remembers the id: that is how a stream says where it begins and how far it has come in silence.
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

from kgserve.errors import Limited, Unavailable
from kgserve.server.admission import RETRY_AFTER, Quota
from kgserve.server.http.fair_callbacks import FairCallbackQueue

P = ParamSpec("P")
T = TypeVar("T")

RETRY_MILLISECONDS = 1_000
_READER_THREADS = 4


def event(kind: str, data: bytes, position: str | None) -> bytes:
    """One event; ``data`` must be one line."""
    name = f"id: {position}\nevent: {kind}\ndata: " if position is not None else f"event: {kind}\ndata: "
    return name.encode() + data + b"\n\n"


def greeting(position: str) -> bytes:
    """The first thing on a stream: how long to wait before coming back, and from where on."""
    return f"retry: {RETRY_MILLISECONDS}\n{_id(position)}\n".encode()


def heartbeat(position: str) -> bytes:
    """A sign of life."""
    return f": heartbeat\n{_id(position)}\n".encode()


def dropped(position: str, reason: str) -> bytes:
    """The last event of a stream that could not go on: why, and from which id to resume."""
    return event("dropped", msgspec.json.encode({"reason": reason, "resume": position}), position or None)


def _id(position: str) -> str:
    return f"id: {position}\n" if position else ""


class OpenStream:
    """What one open stream waits on: news, or the end."""

    def __init__(self, rounds: FairCallbackQueue, owner: str) -> None:
        self.scope = CancelScope()
        self.sending = False
        self.stopped = False
        self._rounds, self._owner = rounds, owner
        self._news = asyncio.Event()
        self._woken = False

    def wake(self) -> None:
        """There is news; from any thread. Calls that come before it is looked at cost nothing."""
        if not self._woken:
            self._woken = True
            self._rounds.soon(self._owner, self._news.set)

    def clear(self) -> None:
        """Forget what has woken it: `wait` waits for what comes from here on."""
        self._woken = False
        self._news.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether there was news within a time."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
            return True
        return False

    def stop(self) -> None:
        """End the stream: in order, or at once when it is waiting for its client to read."""
        self.stopped = True
        self._news.set()
        if self.sending:
            self.scope.cancel()


class Streams:
    """The open event streams of one application, and the threads that read journals for them."""

    def __init__(self, most: int, most_of_one: int, rounds: FairCallbackQueue) -> None:
        self._most = most
        self._rounds = rounds
        self.quota = Quota("event_streams", most_of_one, "event streams of yours are open already; close one first")
        self._open: set[OpenStream] = set()
        self._threads = CapacityLimiter(_READER_THREADS)
        self._stopped = False

    @property
    def count(self) -> int:
        """Streams that are open."""
        return len(self._open)

    @property
    def most(self) -> int:
        """Streams that may be open."""
        return self._most

    @contextmanager
    def open(self, owner: str | None) -> Generator[OpenStream]:
        """One more stream of a key or an address, or of another node, which counts its own listeners.

        Raises Limited when there are too many, Unavailable at a stop.
        """
        if self._stopped:
            raise Unavailable("the server is stopping")
        if owner is not None and len(self._open) >= self._most:
            raise Limited(f"{self._most} event streams are open already; close one first", RETRY_AFTER)
        with nullcontext() if owner is None else self.quota.one(owner):
            self._rounds.begin()
            stream = OpenStream(self._rounds, owner or "")
            self._open.add(stream)
            try:
                yield stream
            finally:
                self._open.discard(stream)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work``, run in one of the threads for streams."""
        return await anyio.to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._threads)

    def stop(self) -> None:
        """End all streams, and take no more."""
        self._stopped = True
        for stream in tuple(self._open):
            stream.stop()
