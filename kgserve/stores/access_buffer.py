"""What reading makes of memories before it is journaled: kept here, seen by readers at once, written many at a time.

A read hands over ids; how often each was read, when it was last and its confidence since then are final values, made
from those before under one lock. They are no rows: a flush is one commit without any. What a crash takes away is the
reading since the last flush, never a memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future

import structlog

from kgserve.errors import KgserveError
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.model.change import Access, ChangeSet
from kgserve.storage.plan import Report

log = structlog.get_logger()

ACCESS_FLUSH_THRESHOLD = 1_000
"""So many that wait are worth a commit."""
ACCESS_FLUSH_INTERVAL_SECONDS = 30.0
"""So long at most one waits for it."""
MAX_BUFFERED_ACCESSES = 10_000
"""So many may wait. What is read beyond that, while nothing can be written, is not counted."""
_ACCESS_FLUSH_RETRY_SECONDS = 5.0
_ACCESS_RECORD_BYTES = 200

Known = Callable[[Collection[str]], Mapping[str, Access]]
"""What the last commit says of the accesses of some nodes, left out where it says nothing."""
Submit = Callable[[WriteBatch], Future[Report]]
Change = Callable[[str, Access | None], Access]
"""The access of a node that comes after another one, or is the first."""


class AccessBuffer:
    """The accesses of one store that wait to be journaled. Any thread may use it.

    ``waiting`` says whether any are. ``known`` gives what was journaled; it is asked without the lock, and asked again
    if meanwhile something has left this overlay for the journal: so nothing is counted twice, and no reading is lost
    between the two.
    """

    def __init__(self, submit: Submit, known: Known, store: str = "", *, counts: bool = True) -> None:
        """``submit`` queues a write and may raise Unavailable. Unless it ``counts``, reading leaves no trace."""
        self._counts = counts
        self.known = known
        self._submit = submit
        self._store = store
        self._lock = threading.Lock()
        self._pending: dict[str, Access] = {}
        self._flying: dict[str, Access] = {}
        self._flight: Future[None] | None = None
        self._since = self._not_before = 0.0
        self.waiting = False
        self._left = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._flying)

    def pending(self, ids: Iterable[str]) -> dict[str, Access]:
        """What waits of some nodes: it counts before what the last commit says."""
        with self._lock:
            return {node_id: found for node_id in ids if (found := self._waiting(node_id)) is not None}

    def of(self, ids: Iterable[str]) -> dict[str, Access]:
        """The accesses of some nodes, whether they wait or not."""
        return self._looked_up(ids)[0]

    def update(self, ids: Iterable[str], change: Change) -> dict[str, Access]:
        """Have each of these nodes accessed once, and see it from now on."""
        ids = dict.fromkeys(ids)
        while ids:
            before, left = self._looked_up(ids)
            with self._lock:
                if left == self._left:
                    made = {node_id: change(node_id, self._waiting(node_id) or before.get(node_id)) for node_id in ids}
                    if self._counts:
                        self._note(made)
                    break
        else:
            return {}
        if len(self._pending) >= MAX_BUFFERED_ACCESSES and self.due:
            self.flush()
        return made

    @property
    def due(self) -> bool:
        """Whether there is enough to write, or something has waited for 30 s; not soon after that has failed."""
        waiting, now = len(self._pending), time.monotonic()
        return now >= self._not_before and (
            waiting >= ACCESS_FLUSH_THRESHOLD or (waiting > 0 and now - self._since >= ACCESS_FLUSH_INTERVAL_SECONDS)
        )

    def flush(self) -> Future[None] | None:
        """Begin to write what waits, unless that is being done; done when it is durable. None when nothing waits.

        What cannot be written waits on, and the future raises why.
        """
        with self._lock:
            if self._flight is not None or not self._pending:
                return self._flight
            self._flying, self._pending = self._pending, {}
            self._flight = flight = Future[None]()
            accesses = [*self._flying.values()]
        try:
            self._submit(WriteBatch(accesses=accesses, cost=_ACCESS_RECORD_BYTES * len(accesses))).add_done_callback(
                self._landed
            )
        except KgserveError as error:
            self._land(error)
        return flight

    def settle(self) -> bool:
        """Write all that has been read so far; whether that could be done. Blocks."""
        # What is being written, and what has come since it was begun.
        for _ in range(2):
            flight = self.flush()
            if flight is None or flight.exception() is not None:
                return flight is None
        return True

    def committed(self, changes: Iterable[ChangeSet]) -> None:
        """Forget what waits of nodes that are gone, or that somebody else has said more of. For the writing thread."""
        with self._lock:
            for change in changes:
                for node_id in change.nodes_deleted:
                    self._drop(node_id)
                for access in change.accessed:
                    if self._flying.get(access.id) != access:
                        self._drop(access.id)

    def _looked_up(self, ids: Iterable[str]) -> tuple[dict[str, Access], int]:
        """The accesses of some nodes, and how many had left for the journal before they were looked up there."""
        with self._lock:
            left = self._left
            waiting = {node_id: self._waiting(node_id) for node_id in ids}
        missing = [node_id for node_id, access in waiting.items() if access is None]
        known = self.known(missing) if missing else {}
        found = {node_id: access or known.get(node_id) for node_id, access in waiting.items()}
        return {node_id: access for node_id, access in found.items() if access is not None}, left

    # All below but `_landed` and `_land` with the lock held

    def _waiting(self, node_id: str) -> Access | None:
        return self._pending.get(node_id) or self._flying.get(node_id)

    def _note(self, made: Mapping[str, Access]) -> None:
        if not self._pending:
            self._since = time.monotonic()
        self.waiting = True
        for node_id, access in made.items():
            if len(self._pending) < MAX_BUFFERED_ACCESSES or node_id in self._pending:
                self._pending[node_id] = access

    def _drop(self, node_id: str) -> None:
        self._left += 1
        self._pending.pop(node_id, None)
        self._flying.pop(node_id, None)

    def _landed(self, report: Future[Report]) -> None:
        self._land(report.exception())

    def _land(self, error: BaseException | None) -> None:
        with self._lock:
            flying, self._flying = self._flying, {}
            flight, self._flight = self._flight, None
            if error is None:
                self._left += 1
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
