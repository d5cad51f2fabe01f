"""Projections that a thread brings up to date.

A thread takes the projections that have something to do in turn, a step each, so that one import never starves
another store. A step that fails is tried again, a second later at first and up to a minute later after that; the graph
is not concerned.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable

import structlog
from typing_extensions import override

from kgserve.projections.base import Erasure, FollowedStore, Projection
from kgserve.projections.schedule import MAX_STEP_REST_SECONDS, FollowerStopped, Schedule
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.fields import ColumnSet

log = structlog.get_logger()

FOLLOWER_BATCH_ROWS = 20_000
_SHORT_JOURNAL = 1 << 20


class BackgroundProjection(Projection):
    """A projection of an open store that a thread brings up to date. One at a time calls `step`; any reads and waits.

    Without ``only_memories`` it reads all commits, else none of a store that has no memories.
    """

    only_memories = False

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store.layout, store.journal, store)
        self.store = store
        self.pending = 0
        self.error: str | None = None
        self._is_rebuilding = False
        self._turn = threading.Lock()
        self.schedule = Schedule()  # of no thread, until one follows
        self._moved = threading.Condition()
        self._watchers: set[Callable[[], None]] = set()
        self._stopping = threading.Event()

    @property
    def reached(self) -> int:
        """The commit that it has seen; 0 while it is not open, and from the moment on at which a rebuild is wanted."""
        return 0 if self.is_rebuilding else max(self.sequence, 0)

    @property
    def is_rebuilding(self) -> bool:
        """Whether it is being rebuilt, or is about to be."""
        return self.rebuild_wanted or self._is_rebuilding

    @property
    def woken_by(self) -> list[Callable[[], None]]:
        """What is called when there may be something to take in: for waking, not for work."""
        return self.store.after_commit

    def step(self) -> bool:
        """Follow for a while. Return whether there is more to do."""
        self._continue()
        self._step(self.store.journal.last)
        self.error = None
        return self._is_behind()

    def serve(self) -> bool:
        """Make a step from any thread, one at a time."""
        with self._turn:
            return self.step()

    def erase(self, erasure: Erasure) -> None:
        """Leave nothing of some nodes in its files, in the caller's thread. May be repeated. Blocks."""
        with self._turn:
            self._continue()
            self._open_if_closed()
            self._erase(erasure)

    def wait(self, sequence: int, seconds: float) -> bool:
        """Block until it has seen a commit. Return whether it has; at once for one that could not be opened."""
        if self.sequence < sequence:
            self.schedule.hurry(self)
        with self._moved:
            self._moved.wait_for(lambda: self.sequence >= sequence or self._unopened, seconds)
            return self.sequence >= sequence

    def has_yet_to_see(self, sequence: int) -> bool:
        """Return whether it has yet to see a commit, and may still do so."""
        return self.sequence < sequence and not self._unopened and not self._stopping.is_set()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have any thread call ``callback`` when it has moved, failed or ended. Return what ends that."""
        with self._moved:
            self._watchers.add(callback)

        def unwatch() -> None:
            with self._moved:
                self._watchers.discard(callback)

        return unwatch

    def wake(self) -> None:
        """Have a step made soon."""
        self.schedule.wake(self)

    def fail(self, error: str) -> None:
        """Note why a step failed."""
        with self._moved:
            self.error = error
            self._notify()

    def stop(self) -> None:
        """Let a step in progress end soon."""
        self._stopping.set()
        with self._moved:
            self._notify()

    @abstractmethod
    def _erase(self, erasure: Erasure) -> None:
        """Leave nothing of some nodes in the open files. Twice must have the effect of once."""

    def _is_behind(self) -> bool:
        """Return whether there is more to take in, at the end of a step."""
        return self.sequence < self.store.state.sequence

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[ChangeSet], int]:
        if self.only_memories and not self._has_memories():
            return (), last
        return super()._read(after, last)

    def _continue(self) -> None:
        """Raise FollowerStopped when it is closing."""
        if self._stopping.is_set():
            raise FollowerStopped

    def _has_memories(self) -> bool:
        with self.store.reading() as rows:
            return rows.width == ColumnSet.MEMORY

    def _yield_to_requests(self, worked: float) -> None:
        """After some seconds of work, serve awaited projections of other stores, and leave the cores to requests.

        Rest twice as long as it worked: a low-priority thread that is preempted while it holds the interpreter's lock
        delays all others.
        """
        self.schedule.serve_hurried(self)
        if self.store.writing or self.schedule.are_others_served():
            self._stopping.wait(min(2 * worked, MAX_STEP_REST_SECONDS))

    @property
    def _unopened(self) -> bool:
        return self.sequence < 0 and self.error is not None

    @override
    def _move(self, sequence: int) -> None:
        with self._moved:
            super()._move(sequence)
            self._notify()

    def _notify(self) -> None:
        """Wake all who wait; with the lock held."""
        self._moved.notify_all()
        for callback in self._watchers:
            callback()


class JournalFollower(BackgroundProjection):
    """One whose listeners hear (``index_ready``) when it has caught up after it was opened behind or rebuilt."""

    rows_at_once = FOLLOWER_BATCH_ROWS

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        # Where the store stood when it was opened: an index that has to come that far is not ready until it has.
        self._goal = store.state.sequence
        self._behind = False

    @override
    def _begin_at(self, sequence: int) -> None:
        super()._begin_at(sequence)
        self._behind = self.sequence < self._goal

    def _is_rebuild_shorter(self) -> bool:
        """Return whether reading all rows is less work for an empty index than reading the whole journal."""
        return self.store.journal.bytes > _SHORT_JOURNAL

    @override
    def _is_behind(self) -> bool:
        if super()._is_behind():
            return True
        if self._behind and not self.rebuild_wanted:
            self._behind = False
            self.store.feed.publish_marker("index_ready", {"index": self.name, "sequence": self.sequence})
        return False

    @override
    def _rebuild(self) -> None:
        name, started = self.store.name, time.perf_counter()
        self._is_rebuilding = self._behind = True
        log.info("index_refill_started", store=name, index=self.name)
        try:
            self.pending = self.store.state.nodes
            super()._rebuild()
        finally:
            self.pending = 0
            self._is_rebuilding = False
        seconds = round(time.perf_counter() - started, 3)
        log.info("index_refill_done", store=name, index=self.name, sequence=self.sequence, seconds=seconds)
