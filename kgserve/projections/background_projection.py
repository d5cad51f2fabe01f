"""Projections that a thread brings up to date.

A thread serves the projections that have work to do in turn, one step each, so that an import never starves another
store. A failed step is retried after one second, later after up to a minute. The graph itself is not affected.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable

import structlog
from typing_extensions import override

from kgserve.projections.base import Projection, ProjectionEraseRequest, StoreFollowedByProjections
from kgserve.projections.update_scheduler import MAX_STEP_REST_SECONDS, ProjectionSchedule, ProjectionStepAbandoned
from kgserve.storage.disk_space import require_disk_space_for_projections
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet

log = structlog.get_logger()

JOURNAL_FOLLOWER_BATCH_ROWS = 20_000
_SHORT_JOURNAL_BYTES = 1 << 20
MAX_AWAITED_BUILD_NODES = 5_000
"""Largest store for whose index of words a search waits while it is built; this takes about a second."""


class BackgroundProjection(Projection):
    """Projection of an open store that a thread brings up to date.

    Only one thread at a time may call `step`; any thread may read and wait. With ``only_memories``, commits of a store
    without memories are skipped.
    """

    only_memories = False

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store.layout, store.journal, store)
        self.store = store
        self.pending = 0
        self.error: str | None = None
        self._is_rebuilding = False
        self._rebuild_requests = 0
        self._requests_before_step = 0
        self._step_lock = threading.Lock()
        self.schedule = ProjectionSchedule()  # replaced when a thread starts to follow
        self._progress = threading.Condition()
        self._watchers: set[Callable[[], None]] = set()
        self._stopping = threading.Event()

    @property
    def reached(self) -> int:
        """The last applied commit; 0 while the projection is closed, being rebuilt or about to be rebuilt."""
        return 0 if self.is_rebuilding else max(self.sequence, 0)

    @property
    def is_rebuilding(self) -> bool:
        """True while the projection is being rebuilt or about to be rebuilt."""
        return self.rebuild_wanted or self._is_rebuilding

    @property
    def wake_hooks(self) -> list[Callable[[], None]]:
        """Hooks of the store that are called when there may be something to apply. They wake threads and do no work."""
        return self.store.after_commit

    def step(self) -> bool:
        """Follow the journal for one step. Return whether more work remains."""
        self._continue()
        self._step(self.store.journal.last)
        self.error = None
        return self._is_behind()

    def serve(self) -> bool:
        """Make a step from any thread; concurrent calls are serialized. Raises DiskFull."""
        with self._step_lock:
            self._requests_before_step = self._rebuild_requests
            require_disk_space_for_projections(self.store.layout.root)
            return self.step()

    def request_rebuild(self) -> None:
        """Have the next step rebuild everything. Errors of earlier steps, also of one in progress, are void."""
        with self._progress:
            self.rebuild_wanted = True
            self.error = None
            self._rebuild_requests += 1

    def erase(self, erasure: ProjectionEraseRequest) -> None:
        """Erase all traces of some nodes from the files, in the caller's thread. Idempotent. Blocks."""
        with self._step_lock:
            self._continue()
            self._open_if_closed()
            self._erase(erasure)

    def wait(self, sequence: int, seconds: float) -> bool:
        """Block until a commit is applied. Return whether it is; returns at once if the files cannot be opened."""
        if self.sequence < sequence:
            self.schedule.prioritize(self)
        with self._progress:
            self._progress.wait_for(lambda: self.sequence >= sequence or self._has_failed_to_open, seconds)
            return self.sequence >= sequence

    def can_still_reach(self, sequence: int) -> bool:
        """Return whether a commit is not applied yet but still may be."""
        return self.sequence < sequence and not self._has_failed_to_open and not self._stopping.is_set()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called when the projection advances, fails or ends. Return a function that stops this.

        Any thread may call it.
        """
        with self._progress:
            self._watchers.add(callback)

        def unwatch() -> None:
            with self._progress:
                self._watchers.discard(callback)

        return unwatch

    def wake(self) -> None:
        """Schedule a step soon."""
        self.schedule.wake(self)

    def fail(self, error: str) -> None:
        """Record why a step failed, unless a rebuild was requested meanwhile, and notify waiting callers."""
        with self._progress:
            if self._requests_before_step == self._rebuild_requests:
                self.error = error
            self._notify()

    def stop(self) -> None:
        """Ask a step in progress to end soon."""
        self._stopping.set()
        with self._progress:
            self._notify()

    @abstractmethod
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        """Erase all traces of some nodes from the open files. Must be idempotent."""

    def _is_behind(self) -> bool:
        """Return whether more remains to be applied, at the end of a step."""
        return self.sequence < self.store.state.sequence

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[ChangeSet], int]:
        if self.only_memories and not self._has_memories():
            return (), last
        return super()._read(after, last)

    def _continue(self) -> None:
        """Raise ProjectionStepAbandoned when the projection is closing."""
        if self._stopping.is_set():
            raise ProjectionStepAbandoned

    def _has_memories(self) -> bool:
        with self.store.reading() as rows:
            return rows.width == NodeEdgeColumnSet.MEMORY

    def _yield_to_requests(self, worked: float) -> None:
        """Serve awaited projections of other stores, then leave the cores to requests.

        ``worked`` is the duration of the last part of the work, in seconds. Rest twice as long as it worked: a
        low-priority thread that is preempted while it holds the interpreter's lock delays all other threads.
        """
        self.schedule.serve_prioritized(self)
        if self.store.writing or self.schedule.are_others_served():
            self._stopping.wait(min(2 * worked, MAX_STEP_REST_SECONDS))

    @property
    def _has_failed_to_open(self) -> bool:
        return self.sequence < 0 and self.error is not None

    @override
    def _move(self, sequence: int) -> None:
        with self._progress:
            super()._move(sequence)
            self._notify()

    def _notify(self) -> None:
        """Wake all waiting threads; the caller holds the lock."""
        self._progress.notify_all()
        for callback in self._watchers:
            callback()


class ReadinessAnnouncingProjection(BackgroundProjection):
    """Background projection that announces readiness on the change feed.

    It publishes ``index_ready`` when it has caught up after it was opened behind the store or rebuilt.
    """

    rows_at_once = JOURNAL_FOLLOWER_BATCH_ROWS

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store)
        # The store's last commit when it was opened; the index is ready once it has applied that.
        self._ready_at = store.state.sequence
        self._behind = False

    @override
    def _begin_at(self, sequence: int) -> None:
        super()._begin_at(sequence)
        self._behind = self.sequence < self._ready_at

    def _is_rebuild_shorter(self) -> bool:
        """Return whether reading all rows costs an empty index less than reading the whole journal."""
        return self.store.journal.bytes > _SHORT_JOURNAL_BYTES or self.store.state.nodes > MAX_AWAITED_BUILD_NODES

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
