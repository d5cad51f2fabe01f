"""Write-behind buffer for memory accesses.

Reads record accesses here. Readers see them at once; a flush writes many of them in one commit that changes no rows.
Each record holds final values: access count, last access time and confidence. A crash loses only the accesses since the
last flush.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Protocol

import structlog

from kgserve.errors import KgserveError
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.storage.model.change_set import ChangeSet, MemoryAccessRecord
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.write_planner import WriteReport

log = structlog.get_logger()

ACCESS_FLUSH_MIN_RECORDS = 1_000
"""Number of buffered accesses that triggers a flush."""
ACCESS_FLUSH_INTERVAL_SECONDS = 30.0
"""Maximum time that an access is buffered."""
MAX_BUFFERED_ACCESSES = 10_000
"""Capacity of the buffer. Further accesses are not counted while writes fail."""
_ACCESS_FLUSH_RETRY_SECONDS = 5.0
_ACCESS_RECORD_BYTES = 200


class AccessLookup(Protocol):
    """Looks up the journaled accesses of nodes; nodes without accesses are omitted."""

    def __call__(self, ids: Collection[str], /, *, block: bool) -> Mapping[str, MemoryAccessRecord]:
        """Return the accesses. Raises WouldBlock without ``block`` if it would have to wait."""
        ...


SubmitBatch = Callable[[WriteBatch], Future[WriteReport]]
AccessUpdate = Callable[[str, MemoryAccessRecord | None], MemoryAccessRecord]
"""Returns the next access record of a node, given its previous one or None."""


class MemoryAccessBuffer:
    """Buffer of one store's memory accesses that are not journaled yet. Thread-safe.

    ``waiting`` is True while any are buffered. ``known`` looks up journaled accesses without holding the lock. The
    lookup is repeated if a flush completes meanwhile, so that no access is lost or counted twice.
    """

    def __init__(self, submit: SubmitBatch, known: AccessLookup, store: str = "", *, counts: bool = True) -> None:
        """Create an empty buffer.

        ``submit`` queues a write and may raise Unavailable. With ``counts=False``, reads are not recorded.
        """
        self._counts = counts
        self.known = known
        self._submit = submit
        self._store = store
        self._lock = threading.Lock()
        self._pending: dict[str, MemoryAccessRecord] = {}
        self._flushing: dict[str, MemoryAccessRecord] = {}
        self._flush_future: Future[None] | None = None
        self._since = self._not_before = 0.0
        self.waiting = False
        self._flush_count = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._flushing)

    def pending(self, ids: Iterable[str]) -> dict[str, MemoryAccessRecord]:
        """Return the buffered accesses of the given nodes. They take precedence over the last commit."""
        with self._lock:
            return {node_id: found for node_id in ids if (found := self._waiting(node_id)) is not None}

    def of(self, ids: Iterable[str], *, block: bool = True) -> dict[str, MemoryAccessRecord]:
        """Return the accesses of the given nodes, buffered or journaled.

        Without ``block``, raises WouldBlock if it would have to wait.
        """
        return self._look_up(ids, block=block)[0]

    def update(self, ids: Iterable[str], change: AccessUpdate, *, block: bool = True) -> dict[str, MemoryAccessRecord]:
        """Record one access to each of the given nodes. Readers see it immediately.

        Without ``block``, raises WouldBlock if it would have to wait; nothing is recorded then.
        """
        if not block and len(self._pending) >= MAX_BUFFERED_ACCESSES:
            raise WouldBlock
        ids = dict.fromkeys(ids)
        while ids:
            before, left = self._look_up(ids, block=block)
            with self._lock:
                if left == self._flush_count:
                    made = {node_id: change(node_id, self._waiting(node_id) or before.get(node_id)) for node_id in ids}
                    if self._counts:
                        self._record(made)
                    break
        else:
            return {}
        if block and len(self._pending) >= MAX_BUFFERED_ACCESSES and self.is_flush_due:
            self.flush()
        return made

    @property
    def is_flush_due(self) -> bool:
        """True if a flush is due: the buffer has reached its threshold, or an access has waited for 30 s.

        A failed flush is not retried at once.
        """
        waiting, now = len(self._pending), time.monotonic()
        return now >= self._not_before and (
            waiting >= ACCESS_FLUSH_MIN_RECORDS or (waiting > 0 and now - self._since >= ACCESS_FLUSH_INTERVAL_SECONDS)
        )

    def flush(self) -> Future[None] | None:
        """Start a flush, or join the running one. Return a future, or None if the buffer is empty.

        The future completes when the accesses are durable. If the write fails, they stay buffered and the future
        raises.
        """
        with self._lock:
            if self._flush_future is not None or not self._pending:
                return self._flush_future
            self._flushing, self._pending = self._pending, {}
            self._flush_future = flight = Future[None]()
            accesses = [*self._flushing.values()]
        try:
            self._submit(WriteBatch(accesses=accesses, cost=_ACCESS_RECORD_BYTES * len(accesses))).add_done_callback(
                self._complete_flush
            )
        except KgserveError as error:
            self._finish_flush(error)
        return flight

    def flush_and_wait(self) -> bool:
        """Write all accesses recorded so far, and return whether that succeeded. Blocks."""
        # The running flush first, then the accesses recorded since it began.
        for _ in range(2):
            flight = self.flush()
            if flight is None or flight.exception() is not None:
                return flight is None
        return True

    def drop_superseded(self, changes: Iterable[ChangeSet]) -> None:
        """Drop accesses of deleted nodes and those superseded by another writer. For the writer thread only."""
        with self._lock:
            for change in changes:
                for node_id in change.nodes_deleted:
                    self._drop(node_id)
                for access in change.accessed:
                    if self._flushing.get(access.id) != access:
                        self._drop(access.id)

    def _look_up(self, ids: Iterable[str], *, block: bool) -> tuple[dict[str, MemoryAccessRecord], int]:
        """Return the accesses of the given nodes, and the flush counter as of the lookup."""
        with self._lock:
            left = self._flush_count
            waiting = {node_id: self._waiting(node_id) for node_id in ids}
        missing = [node_id for node_id, access in waiting.items() if access is None]
        known = self.known(missing, block=block) if missing else {}
        found = {node_id: access or known.get(node_id) for node_id, access in waiting.items()}
        return {node_id: access for node_id, access in found.items() if access is not None}, left

    # The methods below require the lock, except `_complete_flush` and `_finish_flush`.

    def _waiting(self, node_id: str) -> MemoryAccessRecord | None:
        return self._pending.get(node_id) or self._flushing.get(node_id)

    def _record(self, made: Mapping[str, MemoryAccessRecord]) -> None:
        if not self._pending:
            self._since = time.monotonic()
        self.waiting = True
        for node_id, access in made.items():
            if len(self._pending) < MAX_BUFFERED_ACCESSES or node_id in self._pending:
                self._pending[node_id] = access

    def _drop(self, node_id: str) -> None:
        self._flush_count += 1
        self._pending.pop(node_id, None)
        self._flushing.pop(node_id, None)

    def _complete_flush(self, report: Future[WriteReport]) -> None:
        self._finish_flush(report.exception())

    def _finish_flush(self, error: BaseException | None) -> None:
        with self._lock:
            flying, self._flushing = self._flushing, {}
            flight, self._flush_future = self._flush_future, None
            if error is None:
                self._flush_count += 1
            else:
                self._pending = flying | self._pending
                self._not_before = time.monotonic() + _ACCESS_FLUSH_RETRY_SECONDS
            self.waiting = bool(self._pending)
        if error is not None:
            log.warning("accesses_not_written", store=self._store, waiting=len(flying), error=str(error))
        if flight is not None and error is not None:
            flight.set_exception(error)
        elif flight is not None:
            flight.set_result(None)
