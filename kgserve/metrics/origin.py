"""Where work comes from, and what its time went to.

Context variables follow a request into the threads that work for it, but not through a store's queue. So each write
carries its origin with it, and the writing thread speaks of the requests whose writes it carries out.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import msgspec
import structlog


class Origin(msgspec.Struct, eq=False):
    """A request: its id, the seconds of its parts so far, and the context of its trace, if it is traced."""

    request_id: str
    parts: dict[str, float] = {}
    trace: Any = None

    def add(self, part: str, seconds: float) -> None:
        """Lay seconds to a part's account."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current_origin() -> Origin | None:
    """The request that this thread or task works for."""
    return _origin.get()


def begin(origin: Origin) -> Token[Origin | None]:
    """From here on all work is this request's, in threads that take the context over as well; what `end` takes."""
    return _origin.set(origin)


def end(token: Token[Origin | None]) -> None:
    """Work is whose it was before."""
    _origin.reset(token)


def add_part(part: str, seconds: float) -> None:
    """Lay seconds to the account of the request that is being worked for, if any is."""
    origin = _origin.get()
    if origin is not None:
        origin.add(part, seconds)


@contextmanager
def part(name: str) -> Generator[None]:
    """Account for the time that is spent inside."""
    started = time.perf_counter()
    try:
        yield
    finally:
        add_part(name, time.perf_counter() - started)


@contextmanager
def speaking_of(origins: Iterable[Origin | None]) -> Generator[None]:
    """While inside, log lines bear the ids of these requests: one as ``request_id``, several as ``request_ids``."""
    ids = list(dict.fromkeys(origin.request_id for origin in origins if origin is not None))
    if not ids:
        yield
        return
    bound: dict[str, Any] = {"request_id": ids[0]} if len(ids) == 1 else {"request_ids": ids}
    with structlog.contextvars.bound_contextvars(**bound):
        yield


class Laps:
    """The phases of a piece of work, one after the other. ``started`` and ``laps`` are on the monotonic clock."""

    def __init__(self) -> None:
        self.started = self._at = time.perf_counter()
        self.laps: list[tuple[str, float, float]] = []

    def lap(self, name: str) -> None:
        """What was done since the last lap is called so."""
        now = time.perf_counter()
        self.laps.append((name, self._at, now))
        self._at = now

    @property
    def seconds(self) -> float:
        """From the start to the last lap."""
        return self._at - self.started

    def parts(self) -> dict[str, float]:
        """The seconds of each phase."""
        return {name: until - since for name, since, until in self.laps}
