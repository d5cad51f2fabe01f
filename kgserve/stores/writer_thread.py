"""The writer thread of a store: a bounded queue, committed in groups."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec
import structlog

from kgserve.errors import KgserveError, Unavailable
from kgserve.platform.metrics.app_metrics_and_request_context import (
    OriginatingRequest,
    StoreWriteCounters,
    bind_request_ids,
    get_originating_request,
)
from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.pending_state import PendingCommitGroupState

log = structlog.get_logger()

MAX_COMMIT_GROUP_ROWS = 60_000
MAX_COMMIT_GROUP_BYTES = 64 << 20
MAX_WRITE_QUEUE_BYTES = 256 << 20


class PlannedWrite(Protocol):
    """Write that was planned before it reached the writer thread, valid for any later state of the store."""

    @property
    def cost(self) -> int:
        """Approximate size of its journal entry in bytes."""
        ...

    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, WriteReport]:
        """Return the change set that follows ``state``, and its report."""
        ...

    def show(self, change: ChangeSet) -> None:
        """Make readers see the change after it is durable."""
        ...


class ReplicatedCommits(NamedTuple):
    """Commits that another server made, to be applied here."""

    changes: list[ChangeSet]


class QueuedWrite(msgspec.Struct, eq=False):
    """A queued write and the future of its report.

    ``prepare`` builds the batch in the writer thread after all earlier writes are committed; it may return a plan or
    followed commits instead, which are stored in ``plan`` or ``followed``. ``decide`` builds the batch from the pending
    state of its commit group. ``origin`` is the request that caused the write. ``queued_at`` is a `time.perf_counter`
    reading in seconds.
    """

    batch: WriteBatch
    future: Future[WriteReport]
    prepare: Callable[[], WriteBatch | PlannedWrite | ReplicatedCommits] | None = None
    plan: PlannedWrite | None = None
    followed: ReplicatedCommits | None = None
    decide: Callable[[PendingCommitGroupState], WriteBatch] | None = None
    origin: OriginatingRequest | None = msgspec.field(default_factory=get_originating_request)
    queued_at: float = msgspec.field(default_factory=time.perf_counter)


class WriterThread:
    """Thread that makes all changes of a store, in order.

    Queued writes are committed in groups of up to 60,000 rows or 64 MiB that share one sync to disk.
    """

    def __init__(
        self,
        name: str,
        commit: Callable[[list[QueuedWrite]], None],
        idle: Callable[[], None],
        depth: int,
        count: StoreWriteCounters | None = None,
    ) -> None:
        self._name = name
        self._count = count or StoreWriteCounters()
        self._commit = commit
        self._idle = idle
        self._depth = depth
        self._waiting: deque[QueuedWrite] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._wake_when_idle = False
        self._committing = False
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Number of queued writes."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """True if a write is running or queued."""
        # In this order: a group is marked as being committed before it leaves the queue.
        return bool(self._waiting) or self._committing

    @property
    def is_idle(self) -> bool:
        """True if no write is running or queued, and the thread has not been stopped."""
        return not (self.busy or self._stopping)

    def submit(
        self, write: QueuedWrite, wait: float = 0.0, call_later: Callable[[Callable[[], None]], object] | None = None
    ) -> Future[WriteReport]:
        """Queue a write and return the future of its report.

        wait: seconds to block while the queue is full before raising Unavailable. Also raises Unavailable while the
        store is closing. call_later: schedules the call that wakes the thread, instead of waking it now, so that writes
        which are submitted meanwhile share the group.
        """
        batch = write.batch
        deadline = time.monotonic() + wait
        with self._changed:
            self._refuse_when_stopping()
            while len(self._waiting) >= self._depth or (
                self._waiting and self._bytes + batch.cost > MAX_WRITE_QUEUE_BYTES
            ):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise Unavailable("the write queue of this store is full; try again shortly")
                self._refuse_when_stopping()
            self._waiting.append(write)
            self._bytes += batch.cost
            if call_later is None:
                self._changed.notify_all()
            elif len(self._waiting) == 1:
                call_later(self._wake)
        return write.future

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wake_when_idle(self) -> None:
        """Call ``idle`` once after a second without writes. For the writer thread only."""
        self._wake_when_idle = True

    def stop(self) -> None:
        """Finish the queued writes and end the thread. Blocks."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise Unavailable("this store is closing; try again shortly")

    def _run(self) -> None:
        while (group := self._next()) is not None:
            if group:
                with bind_request_ids(write.origin for write in group):
                    self._commit_group(group)
                self._committing = False
            else:
                self._idle()

    def _next(self) -> list[QueuedWrite] | None:
        """Return the next group, an empty list when idle, or None at the end."""
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return None
                woken = self._changed.wait(1.0 if self._wake_when_idle else None)
                if not woken and not self._waiting:
                    self._wake_when_idle = False
                    return []
            return self._take_group()

    def _take_group(self) -> list[QueuedWrite]:
        self._committing = True
        group: list[QueuedWrite] = []
        rows = size = 0
        while self._waiting:
            batch = self._waiting[0].batch
            if group and (group[0].prepare is not None or self._waiting[0].prepare is not None):
                break
            if group and (rows + batch.size > MAX_COMMIT_GROUP_ROWS or size + batch.cost > MAX_COMMIT_GROUP_BYTES):
                break
            group.append(self._waiting.popleft())
            rows, size = rows + batch.size, size + batch.cost
        self._bytes -= size
        self._changed.notify_all()
        return group

    def _commit_group(self, group: list[QueuedWrite]) -> None:
        live = [write for write in group if write.future.set_running_or_notify_cancel()]
        try:
            if live:
                self._commit(live)
        except KgserveError as error:
            self._count.failures += 1
            log.warning("commit_refused", store=self._name, error=str(error))
            _fail(live, error)
        except Exception as error:
            # Report any failure to the callers and keep the thread running.
            self._count.failures += 1
            log.exception("commit_failed", store=self._name)
            _fail(live, error)


def build_queued_write_batch(write: QueuedWrite) -> QueuedWrite | None:
    """Return a queued write with its batch or plan, or None if ``prepare`` failed; the future has the error."""
    if write.prepare is None:
        return write
    try:
        made = write.prepare()
        if isinstance(made, WriteBatch):
            return msgspec.structs.replace(write, batch=made, prepare=None)
        if isinstance(made, ReplicatedCommits):
            return msgspec.structs.replace(write, followed=made, prepare=None)
        return msgspec.structs.replace(write, batch=WriteBatch(cost=made.cost), plan=made, prepare=None)
    except Exception as error:  # noqa: BLE001  # passed on to the caller
        write.future.set_exception(error)
        return None


def _fail(writes: list[QueuedWrite], error: Exception) -> None:
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)
