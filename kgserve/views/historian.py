"""Keeps the history of each open store in step, in a thread of its own."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from kgserve.engine import read
from kgserve.engine.session import Session
from kgserve.errors import Unavailable
from kgserve.history.history import History, tells_damage
from kgserve.journal import snapshot
from kgserve.model.change import ChangeSet, StoreState
from kgserve.store.store import Store
from kgserve.views.follower import Follower
from kgserve.views.indexer import Worker

log = structlog.get_logger()

Found = TypeVar("Found")

ROWS_AT_ONCE = 5_000
# An import is better left to itself: it is taken in afterwards, at 150,000 rows a second, or once somebody asks for it.
HELD_BACK_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 0.1


class HistoryFollower(Follower):
    """Takes every change set in turn. What the journal no longer has it begins without."""

    name = "history"

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        """Follow a store; ``wake`` has `step` called soon."""
        super().__init__(store)
        self._wake = wake
        self._path = store.layout.root / "history.sqlite"
        self._history: History | None = None
        self._damaged = False
        self._asked_for = 0
        self._behind_since: float | None = None

    def look(self, question: Callable[[History], Found]) -> Found:
        """What ``question`` finds. Raises Unavailable while the history is being opened, or made anew after damage."""
        history = self._history
        if history is None:
            raise Unavailable("the history is being opened", retry_after=1)
        try:
            return question(history)
        except sqlite3.DatabaseError as error:
            if not tells_damage(error):
                raise Unavailable(f"the history cannot be read now: {error}", retry_after=2) from error
            log.exception("history_damaged", store=self.store.name)
            self._damaged = True
            self._wake()
            raise Unavailable("the history is damaged and is being made anew", retry_after=2) from error

    def wait(self, sequence: int, seconds: float) -> bool:
        """See `Follower.wait`; who waits is not put off for a writer."""
        self._asked_for = max(self._asked_for, sequence)
        return super().wait(sequence, seconds)

    def close(self) -> None:
        """Release the file."""
        if self._history is not None:
            self._history.close()
            self._history = None

    def step(self) -> bool:
        """See `Follower.step`."""
        if self._damaged:
            self._start_over()
        try:
            return super().step()
        except sqlite3.DatabaseError as error:
            # Tried again a second later: with a new file if this one is damaged, else with the same.
            self._damaged = tells_damage(error)
            raise

    def _open(self) -> int:
        self.close()
        try:
            self._history = History(self._path)
            return self._history.sequence
        except sqlite3.DatabaseError as error:
            if not tells_damage(error):
                raise
        self._start_over()
        self._history = History(self._path)
        return 0

    def _start_over(self) -> None:
        self.close()
        log.error("history_started_over", store=self.store.name)
        for path in self._path.parent.glob("history.sqlite*"):
            path.unlink()
        self._damaged, self.sequence = False, -1

    def _advance(self) -> None:
        if self._held_back():
            self._stopping.wait(LOOK_AGAIN_SECONDS)
            return
        started = time.perf_counter()
        changes = self._next()
        if not changes or changes[-1].sequence >= self.store.journal.last:
            self._behind_since = None
        if changes:
            self._opened().take(changes)
            self._move(changes[-1].sequence)
            self._give_way(time.perf_counter() - started)

    def _held_back(self) -> bool:
        """Whether it waits for a writer, as nobody asks for what it has not seen; not for long."""
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        unasked = self.store.writing and self.sequence >= self._asked_for
        return unasked and time.monotonic() - self._behind_since < HELD_BACK_SECONDS

    def _next(self) -> list[ChangeSet]:
        found: list[ChangeSet] = []
        rows = 0
        for change in self._tail.read(self.sequence + 1, self.store.journal.last):
            found.append(change)
            rows += change.size
            if rows >= ROWS_AT_ONCE:
                break
        return found

    def _dump(self, session: Session, rows: Path) -> StoreState:
        return read.dump(session, rows)

    def _take_all(self, rows: Path, state: StoreState) -> None:
        nodes, edges = snapshot.read_nodes(rows), snapshot.read_edges(rows)
        self._opened().begin_at(nodes, edges, state.sequence, state.time)

    def _opened(self) -> History:
        if self._history is None:
            raise Unavailable("the history is not open")
        return self._history


class Historian:
    """A companion of the pool: keeps the history of every store while it is open."""

    def __init__(self) -> None:
        self._open: dict[str, HistoryFollower] = {}
        self._lock = threading.Lock()
        self._worker = Worker("historian")

    def opened(self, store: Store) -> None:
        """Begin to follow a store."""
        follower = HistoryFollower(store, lambda: self._worker.turns.wake(follower))
        with self._lock:
            self._open[store.name] = follower
        store.needed_from.append(lambda: follower.sequence + 1)
        self._worker.follow(follower)

    def closing(self, store: Store) -> None:
        """Stop following a store."""
        with self._lock:
            follower = self._open.pop(store.name, None)
        if follower is not None and self._worker.forget(follower):
            follower.close()

    def of(self, store: Store) -> HistoryFollower:
        """The history of an open store. Raises Unavailable when it has none."""
        with self._lock:
            found = self._open.get(store.name)
        if found is None:
            raise Unavailable("this store keeps no history: it is turned off, or the store is just closing")
        return found

    def halt(self) -> None:
        """Begin no further step, and end those in progress soon: all stores are about to close."""
        self._worker.turns.close()
        with self._lock:
            for follower in self._open.values():
                follower.stop()

    def close(self) -> None:
        """End the thread; the stores are closed already."""
        self._worker.close()
