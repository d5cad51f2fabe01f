"""Threads that bring projections up to date, one step at a time in round-robin order."""

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
from kgserve.platform.malloc_control import release_free_memory
from kgserve.platform.sqlite_files import release_sqlite_caches
from kgserve.projections.base import StoreFollowedByProjections

log = structlog.get_logger()

# A step after each commit would use as much of the interpreter as the commits themselves.
STEP_DELAY_SECONDS = 0.1
MAX_STEP_DELAY_FACTOR = 20
"""Upper limit of the factor by which waiting projections multiply the step delay."""
MIN_WAITING_PROJECTIONS_TO_REST = 4
STEP_REST_FACTOR = 3
"""While many projections wait, a thread rests this many times as long as its last step took; requests have priority."""
MAX_STEP_REST_SECONDS = 1.0
STEP_FIRST_RETRY_SECONDS = 1.0
STEP_MAX_RETRY_SECONDS = 60.0
IDLE_TRIM_SECONDS = 10.0
"""Idle time after which a thread returns freed memory to the operating system."""
_NICENESS = 3
# These threads progress slowly while all cores are busy, and a stopping server must not wait for them.
FOLLOWER_CLOSE_TIMEOUT_SECONDS = 2.0


class ScheduledProjection(Protocol):
    """Projection as seen by the thread that serves it; implemented by `BackgroundProjection`."""

    name: str
    store: StoreFollowedByProjections
    schedule: ProjectionSchedule

    @property
    def wake_hooks(self) -> list[Callable[[], None]]:
        """Hooks that are called when there may be something to apply."""
        ...

    @property
    def is_rebuilding(self) -> bool:
        """True while the projection is being rebuilt or about to be rebuilt."""
        ...

    def serve(self) -> bool:
        """Make a step. Return whether more work remains."""
        ...

    def fail(self, error: str) -> None:
        """Record why a step failed."""
        ...

    def stop(self) -> None:
        """Ask a step in progress to end soon."""
        ...


class ProjectionStepAbandoned(Exception):
    """Raised inside a step when its projection is closing; the step is abandoned."""


class ProjectionSchedule:
    """Due times of projections, and the projections being served. Each is queued at most once."""

    def __init__(self, linger: float = STEP_DELAY_SECONDS) -> None:
        self._delay_seconds = linger
        self._due: dict[ScheduledProjection, float] = {}
        self._served: list[ScheduledProjection] = []  # a second one is served within a step of the first
        self._serving_thread: int | None = None
        self.serve: Callable[[ScheduledProjection], object] = lambda projection: projection.serve()
        self.are_others_served: Callable[[], bool] = lambda: False
        """Returns whether long work should yield to active requests."""
        self._changed = threading.Condition()
        self._closed = False
        self._resting_until = -math.inf
        self._delayed: set[ScheduledProjection] = set()
        self._prioritized: set[ScheduledProjection] = set()

    def wake_later(self, projection: ScheduledProjection) -> None:
        """Schedule a projection after a short delay, so that one step covers several commits.

        The delay grows with the number of waiting projections, so that many stores cause no more steps than a few.
        """
        with self._changed:
            if projection not in self._due:
                waiting = min(len(self._due) + 1, MAX_STEP_DELAY_FACTOR)
                self._due[projection] = time.monotonic() + waiting * self._delay_seconds
                self._delayed.add(projection)
                self._changed.notify_all()

    def prioritize(self, projection: ScheduledProjection) -> None:
        """Serve a projection before all others, without the delay of `wake_later`."""
        with self._changed:
            if projection in self._delayed:
                self._delayed.discard(projection)
                self._due[projection] = time.monotonic()
            if projection in self._due or projection in self._served:
                self._prioritized.add(projection)
                self._changed.notify_all()

    def wake(self, projection: ScheduledProjection) -> None:
        """Schedule a projection now, unless it is queued already or postponed."""
        with self._changed:
            self._due.setdefault(projection, time.monotonic())
            self._changed.notify_all()

    def postpone_step(self, projection: ScheduledProjection, seconds: float) -> None:
        """Postpone a projection by some seconds, even if it is woken earlier; 0 cancels an earlier delay."""
        with self._changed:
            self._delayed.discard(projection)
            self._due[projection] = time.monotonic() + seconds
            self._changed.notify_all()

    def take(self, seconds: float = math.inf) -> ScheduledProjection | None:
        """Block until a projection is due and return it. Return None when closed or after ``seconds``."""
        with self._changed:
            end = time.monotonic() + seconds
            while not self._closed and (now := time.monotonic()) < end:
                due = self._next_due(now)
                if due is not None:
                    self._drop(due)
                    self._served.append(due)
                    self._serving_thread = threading.get_ident()
                    return due
                wake = min([end, *(max(at, self._resting_until) for at in self._due.values())])
                self._changed.wait(None if wake == math.inf else wake - now)
            return None

    def serve_prioritized(self, current: ScheduledProjection) -> None:
        """Serve due and awaited projections of other stores, within a long step of ``current``.

        Rebuilding an index is a single step, which may take minutes. Another rebuild waits for its slot. Only the
        thread that makes the step may call this.
        """
        while (projection := self._take_prioritized(current)) is not None:
            try:
                self.serve(projection)
            finally:
                self.end_step()

    def _take_prioritized(self, current: ScheduledProjection) -> ScheduledProjection | None:
        with self._changed:
            if self._closed or self._served != [current] or self._serving_thread != threading.get_ident():
                return None
            now = time.monotonic()
            found = (
                projection for projection, at in self._due.items() if at <= now and projection in self._prioritized
            )
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
        """True once no projection is served any more."""
        return self._closed

    def defer_unawaited(self, worked: float) -> None:
        """If many projections are due, serve only awaited ones for a while. ``worked``: seconds of the last step."""
        with self._changed:
            if len(self._due) >= MIN_WAITING_PROJECTIONS_TO_REST:
                self._resting_until = time.monotonic() + min(STEP_REST_FACTOR * worked, MAX_STEP_REST_SECONDS)

    def end_step(self) -> None:
        """End the step of the projection that was taken last."""
        with self._changed:
            self._served.pop()
            self._changed.notify_all()

    def forget(self, projection: ScheduledProjection, patience: float | None = None) -> bool:
        """Stop serving a projection. Return whether its step has ended within ``patience`` seconds.

        Blocks without limit if ``patience`` is None, but for at most 2 s once closed.
        """
        with self._changed:
            patience = FOLLOWER_CLOSE_TIMEOUT_SECONDS if self._closed else patience
            has_ended = self._changed.wait_for(lambda: projection not in self._served, patience)
            self._drop(projection)
            return has_ended

    def close(self) -> None:
        """Stop serving projections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_due(self, now: float) -> ScheduledProjection | None:
        due = [projection for projection, at in self._due.items() if at <= now]
        hurried = (projection for projection in due if projection in self._prioritized)
        return next(hurried, due[0] if due and now >= self._resting_until else None)

    def _drop(self, projection: ScheduledProjection) -> None:
        self._due.pop(projection, None)
        self._delayed.discard(projection)
        self._prioritized.discard(projection)


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread slightly below that of requests and writes.

    On Linux, niceness is per thread. Why so little: docs/adr/0054-niceness-of-background-threads.md.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class ProjectionThread:
    """Thread that serves projections, with its schedule."""

    def __init__(self, name: str, linger: float = STEP_DELAY_SECONDS) -> None:
        self.schedule = ProjectionSchedule(linger)
        self.schedule.serve = self._serve
        self._failures: dict[ScheduledProjection, int] = {}
        self._take_timeout = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """End the thread. Return whether it has ended within 2 s.

        A thread that has not ended is abandoned, because the process is about to end.
        """
        self.schedule.close()
        self._thread.join(FOLLOWER_CLOSE_TIMEOUT_SECONDS)
        return not self._thread.is_alive()

    def follow(self, projection: ScheduledProjection) -> None:
        """Serve a projection now, shortly after each commit of its store, and at once when a caller waits for it."""
        projection.schedule = self.schedule
        projection.wake_hooks.append(partial(self.schedule.wake_later, projection))
        self.schedule.wake(projection)

    def forget(self, projection: ScheduledProjection, patience: float | None = None) -> bool:
        """Stop a projection and stop serving it. Return whether its step has ended within ``patience`` seconds."""
        projection.stop()
        has_ended = self.schedule.forget(projection, patience)
        self._failures.pop(projection, None)
        return has_ended

    def _run(self) -> None:
        lower_thread_priority()
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A separate function, so that no reference to a projection is held while idle.
        projection = self.schedule.take(self._take_timeout)
        if projection is None:
            release_sqlite_caches()
            # Memory freed by tantivy's writers stays with the process: 50 MiB after small writes, 80 after an import.
            release_free_memory()
            self._take_timeout = math.inf
            return not self.schedule.closed
        self._take_timeout = IDLE_TRIM_SECONDS
        began = time.monotonic()
        try:
            self._serve(projection)
        finally:
            self.schedule.end_step()
            self.schedule.defer_unawaited(time.monotonic() - began)
        return True

    def _serve(self, projection: ScheduledProjection) -> None:
        try:
            more = projection.serve()
        except ProjectionStepAbandoned:
            return
        except Exception as error:  # noqa: BLE001  # an index may raise anything; the thread must survive
            self._retry_later(projection, error)
            return
        self._failures.pop(projection, None)
        if more:
            self.schedule.wake(projection)

    def _retry_later(self, projection: ScheduledProjection, error: Exception) -> None:
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
        self.schedule.postpone_step(projection, seconds)
