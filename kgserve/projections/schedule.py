"""Threads that bring projections up to date, and their schedules: one step each in turn."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from kgserve.errors import KgserveError
from kgserve.platform.allocator import give_back
from kgserve.projections.base import FollowedStore

log = structlog.get_logger()

# A step after each commit took as much of the interpreter as the commits themselves.
STEP_DELAY_SECONDS = 0.1
MAX_STEP_DELAY_FACTOR = 20
"""The most that many waiting projections multiply it by."""
MANY_WAITING_PROJECTIONS = 4
STEP_REST_FACTOR = 3
"""A thread rests this many times as long as its step took when many projections wait: requests come first."""
MAX_STEP_REST_SECONDS = 1.0
STEP_FIRST_RETRY_SECONDS = 1.0
STEP_MAX_RETRY_SECONDS = 60.0
IDLE_TRIM_SECONDS = 10.0
"""Without anything to do, until a thread returns to the system what its work has left free."""
_NICENESS = 10
# Threads of that niceness hardly get on while others keep all cores busy, and a server that stops is waited for.
CLOSE_TIMEOUT_SECONDS = 2.0


class ScheduledProjection(Protocol):
    """A projection as a thread sees it. See `follower.BackgroundProjection`."""

    name: str
    store: FollowedStore
    schedule: Schedule

    @property
    def woken_by(self) -> list[Callable[[], None]]:
        """What is called when there may be something to take in."""
        ...

    @property
    def is_rebuilding(self) -> bool:
        """Whether it is being rebuilt, or is about to be."""
        ...

    def serve(self) -> bool:
        """Make a step. Return whether there is more to do."""
        ...

    def fail(self, error: str) -> None:
        """Note why a step failed."""
        ...

    def stop(self) -> None:
        """End a step in progress soon."""
        ...


class FollowerStopped(Exception):
    """The projection is closing: the step in progress was left where it was."""


class Schedule:
    """When each projection is due, and which one is being served. A projection is queued once, however often woken."""

    def __init__(self, linger: float = STEP_DELAY_SECONDS) -> None:
        self._linger = linger
        self._due: dict[ScheduledProjection, float] = {}
        self._served: list[ScheduledProjection] = []  # the second one in the midst of a step of the first
        self._server: int | None = None
        self.serve: Callable[[ScheduledProjection], object] = lambda projection: projection.serve()
        self.are_others_served: Callable[[], bool] = lambda: False
        """Whether requests are active that long work should yield to."""
        self._changed = threading.Condition()
        self._closed = False
        self._resting_until = -math.inf
        self._lingering: set[ScheduledProjection] = set()
        self._hurried: set[ScheduledProjection] = set()

    def wake_later(self, projection: ScheduledProjection) -> None:
        """Serve a projection in a moment, when more may have come: a step for each commit would cost too much.

        The more of them wait already, the longer the moment, so that many stores do not take more steps than a few.
        """
        with self._changed:
            if projection not in self._due:
                waiting = min(len(self._due) + 1, MAX_STEP_DELAY_FACTOR)
                self._due[projection] = time.monotonic() + waiting * self._linger
                self._lingering.add(projection)
                self._changed.notify_all()

    def hurry(self, projection: ScheduledProjection) -> None:
        """Serve a projection before all others, and now if it was only waiting for more to come."""
        with self._changed:
            if projection in self._lingering:
                self._lingering.discard(projection)
                self._due[projection] = time.monotonic()
            if projection in self._due or projection in self._served:
                self._hurried.add(projection)
                self._changed.notify_all()

    def wake(self, projection: ScheduledProjection) -> None:
        """Serve a projection soon; one that was put off stays so."""
        with self._changed:
            self._due.setdefault(projection, time.monotonic())
            self._changed.notify_all()

    def put_off(self, projection: ScheduledProjection, seconds: float) -> None:
        """Serve a projection after some seconds and not before, even if it is woken; 0 ends an earlier delay."""
        with self._changed:
            self._lingering.discard(projection)
            self._due[projection] = time.monotonic() + seconds
            self._changed.notify_all()

    def take(self, seconds: float = math.inf) -> ScheduledProjection | None:
        """Block for the next projection that is due. Return None when closed, or when none was due for some seconds."""
        with self._changed:
            end = time.monotonic() + seconds
            while not self._closed and (now := time.monotonic()) < end:
                due = self._next_due(now)
                if due is not None:
                    self._drop(due)
                    self._served.append(due)
                    self._server = threading.get_ident()
                    return due
                wake = min([end, *(max(at, self._resting_until) for at in self._due.values())])
                self._changed.wait(None if wake == math.inf else wake - now)
            return None

    def serve_hurried(self, current: ScheduledProjection) -> None:
        """Within a long step of a projection, serve those of other stores that are due and awaited.

        Rebuilding an index is one step, of minutes where much is embedded. Another rebuild waits for its turn. Only the
        thread that makes the step calls this.
        """
        while (projection := self._take_hurried(current)) is not None:
            try:
                self.serve(projection)
            finally:
                self.done()

    def _take_hurried(self, current: ScheduledProjection) -> ScheduledProjection | None:
        with self._changed:
            if self._closed or self._served != [current] or self._server != threading.get_ident():
                return None
            now = time.monotonic()
            found = (projection for projection, at in self._due.items() if at <= now and projection in self._hurried)
            due = next(
                (
                    projection
                    for projection in found
                    if projection.store is not current.store and not projection.is_rebuilding
                ),
                None,
            )
            if due is not None:
                self._drop(due)
                self._served.append(due)
            return due

    @property
    def closed(self) -> bool:
        """Whether it serves no projection any more."""
        return self._closed

    def rest(self, worked: float) -> None:
        """If many projections are due, serve only awaited ones for a while. ``worked``: seconds of the last step."""
        with self._changed:
            if len(self._due) >= MANY_WAITING_PROJECTIONS:
                self._resting_until = time.monotonic() + min(STEP_REST_FACTOR * worked, MAX_STEP_REST_SECONDS)

    def done(self) -> None:
        """End the step of the projection that was taken last."""
        with self._changed:
            self._served.pop()
            self._changed.notify_all()

    def forget(self, projection: ScheduledProjection, patience: float | None = None) -> bool:
        """Serve a projection no more; blocks while it is being served, for so many seconds: whether it ended.

        Once closed, for 2 s at most.
        """
        with self._changed:
            patience = CLOSE_TIMEOUT_SECONDS if self._closed else patience
            over = self._changed.wait_for(lambda: projection not in self._served, patience)
            self._drop(projection)
            return over

    def close(self) -> None:
        """Serve no projection any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_due(self, now: float) -> ScheduledProjection | None:
        due = [projection for projection, at in self._due.items() if at <= now]
        hurried = (projection for projection in due if projection in self._hurried)
        return next(hurried, due[0] if due and now >= self._resting_until else None)

    def _drop(self, projection: ScheduledProjection) -> None:
        self._due.pop(projection, None)
        self._lingering.discard(projection)
        self._hurried.discard(projection)


def lower_priority() -> None:
    """Have this thread come after requests and writes; idle cores are used anyway.

    Linux gives each thread a niceness of its own.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class FollowerThread:
    """One thread and its turns."""

    def __init__(self, name: str, linger: float = STEP_DELAY_SECONDS) -> None:
        self.schedule = Schedule(linger)
        self.schedule.serve = self._serve
        self._failures: dict[ScheduledProjection, int] = {}
        self._patience = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """End the thread, or leave it behind after 2 s, for the process is about to end: whether it has ended."""
        self.schedule.close()
        self._thread.join(CLOSE_TIMEOUT_SECONDS)
        return not self._thread.is_alive()

    def follow(self, projection: ScheduledProjection) -> None:
        """Serve a projection now, a moment after each commit of its store, and at once when a caller waits for it."""
        projection.schedule = self.schedule
        projection.woken_by.append(partial(self.schedule.wake_later, projection))
        self.schedule.wake(projection)

    def forget(self, projection: ScheduledProjection, patience: float | None = None) -> bool:
        """See `Schedule.forget`."""
        projection.stop()
        over = self.schedule.forget(projection, patience)
        self._failures.pop(projection, None)
        return over

    def _run(self) -> None:
        lower_priority()
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A function of its own, so that no projection is held while there is nothing to do.
        projection = self.schedule.take(self._patience)
        if projection is None:
            # What writers of tantivy have freed stays with the process: 50 MiB after small writes, 80 after an import.
            give_back()
            self._patience = math.inf
            return not self.schedule.closed
        self._patience = IDLE_TRIM_SECONDS
        began = time.monotonic()
        try:
            self._serve(projection)
        finally:
            self.schedule.done()
            self.schedule.rest(time.monotonic() - began)
        return True

    def _serve(self, projection: ScheduledProjection) -> None:
        try:
            more = projection.serve()
        except FollowerStopped:
            return
        except Exception as error:  # noqa: BLE001  # an index may fail in any way; it must not end the thread
            self._put_off(projection, error)
            return
        self._failures.pop(projection, None)
        if more:
            self.schedule.wake(projection)

    def _put_off(self, projection: ScheduledProjection, error: Exception) -> None:
        failures = self._failures[projection] = self._failures.get(projection, 0) + 1
        seconds = min(STEP_FIRST_RETRY_SECONDS * 2 ** (failures - 1), STEP_MAX_RETRY_SECONDS)
        projection.fail(error.message if isinstance(error, KgserveError) else "internal error; see the log")
        log.warning(
            "index_step_failed",
            store=projection.store.name,
            index=projection.name,
            retry_in=seconds,
            error=str(error),
            exc_info=not isinstance(error, KgserveError),
        )
        self.schedule.put_off(projection, seconds)
