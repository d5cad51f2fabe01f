"""The writing thread of a store: a bounded queue, served in groups."""

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
from kgserve.platform.metrics.observation import Origin, StoreCount, current_origin, speaking_of
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.model.change import ChangeSet, StoreState
from kgserve.storage.plan import Report
from kgserve.stores.pending_state import PendingState

log = structlog.get_logger()

COMMIT_GROUP_ROWS = 60_000
COMMIT_GROUP_BYTES = 64 << 20
MAX_WRITE_QUEUE_BYTES = 256 << 20


class Planned(Protocol):
    """A write that was planned before its turn came, and holds for whatever the store is by then."""

    @property
    def cost(self) -> int:
        """About the bytes that it adds to the journal."""
        ...

    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, Report]:
        """The change set that follows a state, and what it comes to."""
        ...

    def show(self, change: ChangeSet) -> None:
        """Have readers see it, once it is durable."""
        ...


class Followed(NamedTuple):
    """Commits that another server has made."""

    changes: list[ChangeSet]


class Write(msgspec.Struct, eq=False):
    """A batch that waits, and where its caller waits for the report.

    With ``prepare`` the batch is made when its turn has come, from what all writes before it have left; or there is a
    ``plan`` then, or what is ``followed``. With ``decide`` it is made of what the writes of its group before it come
    to. ``origin`` is the request that it is for, ``queued_at`` on the monotonic clock.
    """

    batch: WriteBatch
    future: Future[Report]
    prepare: Callable[[], WriteBatch | Planned | Followed] | None = None
    plan: Planned | None = None
    followed: Followed | None = None
    decide: Callable[[PendingState], WriteBatch] | None = None
    origin: Origin | None = msgspec.field(default_factory=current_origin)
    queued_at: float = msgspec.field(default_factory=time.perf_counter)


class Writer:
    """Runs everything that changes a store, in order, in one thread.

    Writes that wait together are handed over together, up to 60,000 rows or 64 MiB, so that they share a sync to disk.
    """

    def __init__(
        self,
        name: str,
        commit: Callable[[list[Write]], None],
        idle: Callable[[], None],
        depth: int,
        count: StoreCount | None = None,
    ) -> None:
        self._name = name
        self._count = count or StoreCount()
        self._commit = commit
        self._idle = idle
        self._depth = depth
        self._waiting: deque[Write] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._wake_when_idle = False
        self._committing = False
        self._thread = threading.Thread(target=self._run, name=f"writer-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Writes that wait."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a write is being carried out, or waits."""
        return self._committing or bool(self._waiting)

    def submit(self, write: Write, wait: float = 0.0) -> Future[Report]:
        """Queue a write; ``wait`` is for how many seconds a full queue is borne with.

        Raises Unavailable when the queue is full or the store is closing.
        """
        batch = write.batch
        deadline = time.monotonic() + wait
        with self._changed:
            self._refuse_when_stopping()
            while len(self._waiting) >= self._depth or (
                self._waiting and self._bytes + batch.cost > MAX_WRITE_QUEUE_BYTES
            ):
                if not self._changed.wait(deadline - time.monotonic()):
                    raise Unavailable("too many writes are waiting for this store; try again shortly")
                self._refuse_when_stopping()
            self._waiting.append(write)
            self._bytes += batch.cost
            self._changed.notify_all()
        return write.future

    def wake_when_idle(self) -> None:
        """Call ``idle`` once when a second has passed without a write. For the writing thread."""
        self._wake_when_idle = True

    def stop(self) -> None:
        """Finish what is queued, then end the thread; blocks until it has."""
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
                self._committing = True
                with speaking_of(write.origin for write in group):
                    self._commit_group(group)
                self._committing = False
            else:
                self._idle()

    def _next(self) -> list[Write] | None:
        """A group of writes, an empty one when idle, or None at the end."""
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return None
                woken = self._changed.wait(1.0 if self._wake_when_idle else None)
                if not woken and not self._waiting:
                    self._wake_when_idle = False
                    return []
            return self._take_group()

    def _take_group(self) -> list[Write]:
        group: list[Write] = []
        rows = size = 0
        while self._waiting:
            batch = self._waiting[0].batch
            if group and (group[0].prepare is not None or self._waiting[0].prepare is not None):
                break
            if group and (rows + batch.size > COMMIT_GROUP_ROWS or size + batch.cost > COMMIT_GROUP_BYTES):
                break
            group.append(self._waiting.popleft())
            rows, size = rows + batch.size, size + batch.cost
        self._bytes -= size
        self._changed.notify_all()
        return group

    def _commit_group(self, group: list[Write]) -> None:
        live = [write for write in group if write.future.set_running_or_notify_cancel()]
        try:
            if live:
                self._commit(live)
        except KgserveError as error:
            self._count.failures += 1
            log.warning("commit_refused", store=self._name, error=str(error))
            _fail(live, error)
        except Exception as error:
            # Whatever it is, the callers must hear of it and the thread go on.
            self._count.failures += 1
            log.exception("commit_failed", store=self._name)
            _fail(live, error)


def prepared(write: Write) -> Write | None:
    """The write with its batch; None when it could not be made, which its caller was told."""
    if write.prepare is None:
        return write
    try:
        made = write.prepare()
        if isinstance(made, WriteBatch):
            return msgspec.structs.replace(write, batch=made, prepare=None)
        if isinstance(made, Followed):
            return msgspec.structs.replace(write, followed=made, prepare=None)
        return msgspec.structs.replace(write, batch=WriteBatch(cost=made.cost), plan=made, prepare=None)
    except Exception as error:  # noqa: BLE001  # it is the caller's, whatever it is
        write.future.set_exception(error)
        return None


def _fail(writes: list[Write], error: Exception) -> None:
    for write in writes:
        if not write.future.done():
            write.future.set_exception(error)
