"""An index as a view of the journal: it pulls changes after its own cursor, applies them, then moves the cursor."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from kgserve.journal.tail import Tail
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store
from kgserve.views.following import Step, next_step
from kgserve.views.text import Text

log = structlog.get_logger()

_SHORT_JOURNAL = 1 << 20

LONGEST_REST_SECONDS = 1.0

IndexName = Literal["keyword", "vector"]


class IndexState(msgspec.Struct, frozen=True):
    """How an index stands: the last commit that it has seen, and what is still to come of the present step.

    ``entities`` are those in it, ``pending`` those to come, ``bytes`` its size on disk, ``error`` the last failure that
    is not overcome yet.
    """

    name: IndexName
    sequence: int
    entities: int
    pending: int
    bytes: int
    model: str
    error: str | None


class Stopped(Exception):
    """The index is closing: the step in progress was left where it was."""


class View(ABC):
    """A view of one open store, kept in step. One thread calls `step`; any thread reads and waits."""

    name: str

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sequence = -1
        self.error: str | None = None
        self.refill_wanted = False
        self.hurry: Callable[[], None] = _nobody
        self.wake: Callable[[], None] = _nobody
        self.wake_later: Callable[[], None] = _nobody
        self._moved = threading.Condition()
        self._stopping = threading.Event()

    @abstractmethod
    def step(self) -> bool:
        """Follow for a while; whether there is more to do. Raises what it meets."""

    def wait(self, sequence: int, seconds: float) -> bool:
        """Block until the index has seen a commit; whether it has. No wait for an index that could not be opened."""
        if self.sequence < sequence:
            self.hurry()
        with self._moved:
            self._moved.wait_for(lambda: self.sequence >= sequence or self._unopened, seconds)
            return self.sequence >= sequence

    def fail(self, error: str) -> None:
        """Note why a step failed."""
        with self._moved:
            self.error = error
            self._moved.notify_all()

    def stop(self) -> None:
        """Let a step in progress end soon."""
        self._stopping.set()

    @abstractmethod
    def close(self) -> None:
        """Save what is worth saving and release what is open; no step is in progress."""

    @abstractmethod
    def _open(self) -> int:
        """Open what is on disk; the commit that it has seen, 0 for none."""

    def _continue(self) -> None:
        """Raise Stopped when the index is closing."""
        if self._stopping.is_set():
            raise Stopped

    def _give_way(self, worked: float) -> None:
        """After some seconds of work, leave cores and interpreter to a writer for twice as long.

        A thread of low priority that was put aside while it held the interpreter's lock would hold up everybody.
        """
        if self.store.writing:
            self._stopping.wait(min(2 * worked, LONGEST_REST_SECONDS))

    @property
    def _unopened(self) -> bool:
        return self.sequence < 0 and self.error is not None

    def _move(self, sequence: int) -> None:
        with self._moved:
            self.sequence = sequence
            self._moved.notify_all()


class Follower(View):
    """A view of the journal."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.pending = 0
        self._refilling = False
        # Where the store stood when it was opened: an index that has to come that far is not ready until it has.
        self._goal = store.state.sequence
        self._behind = False
        self._tail = Tail(store.layout.journal)

    @property
    def reached(self) -> int:
        """The commit that it has seen; 0 while it is not open, and from the moment on at which a refill is wanted."""
        return 0 if self.being_refilled else max(self.sequence, 0)

    @property
    def being_refilled(self) -> bool:
        """Whether it is being made anew, or is about to be."""
        return self.refill_wanted or self._refilling

    def step(self) -> bool:
        """Follow for a while; whether there is more to do. Raises what the index or the journal meets."""
        self._continue()
        if self.sequence < 0:
            self._move(self._open())
            self._behind = self.sequence < self._goal
        if self.refill_wanted or self._out_of_reach():
            self._refill()
        else:
            self._advance()
        self.error = None
        if self.sequence < self.store.state.sequence:
            return True
        self._say_ready()
        return False

    @abstractmethod
    def _advance(self) -> None:
        """Take in some of the changes after the cursor, if there are any, and move it. Twice must come to the same."""

    @abstractmethod
    def _take_all(self, rows: Rows) -> None:
        """Forget everything, and take in the rows of a commit."""

    def _out_of_reach(self) -> bool:
        """Whether the journal cannot take it from its cursor to the present."""
        journal = self.store.journal
        return self.sequence < journal.oldest - 1 or self.sequence > journal.last

    def _refilling_is_shorter(self) -> bool:
        """Whether an empty index had better read all entities than all that was ever written."""
        return self.store.journal.bytes > _SHORT_JOURNAL

    def _say_ready(self) -> None:
        """Tell who listens that the index has caught up, after it was opened behind or made anew."""
        if self._behind and not self.refill_wanted:
            self._behind = False
            self.store.feed.publish_marker("index_ready", {"index": self.name, "sequence": self.sequence})

    def _refill(self) -> None:
        # Taken back at once, so that who asks meanwhile gets another one.
        self.refill_wanted, self._refilling, self._behind = False, True, True
        try:
            self._fill_anew()
        except BaseException:
            self.refill_wanted = True
            raise
        finally:
            self._refilling = False

    def _fill_anew(self) -> None:
        name, started = self.store.name, time.perf_counter()
        log.info("index_refill_started", store=name, index=self.name)
        try:
            with self.store.reading() as rows:
                self.pending = rows.state.nodes
                self._take_all(rows)
        finally:
            self.pending = 0
        self._move(rows.at)
        seconds = round(time.perf_counter() - started, 3)
        log.info("index_refill_done", store=name, index=self.name, sequence=rows.at, seconds=seconds)


class IndexFollower(Follower):
    """One index of the texts of one store."""

    _touched = 0

    @property
    def shown(self) -> int:
        """The last commit of which a search may have seen anything: `sequence` moves when all of a step is in."""
        return max(self.sequence, self._touched)

    @abstractmethod
    def state(self) -> IndexState:
        """How it stands."""

    @abstractmethod
    def _clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def _fill(self, texts: Iterator[Text], sequence: int) -> None:
        """Take in everything there is, after `_clear`."""

    @abstractmethod
    def _follow(self, step: Step) -> None:
        """Take in some changes. Doing it twice must come to the same."""

    def _advance(self) -> None:
        step = next_step(self._tail, self.sequence, self.store.journal.last)
        if step is not None:
            self._touched = step.sequence
            self._follow(step)
            self._move(step.sequence)

    def _take_all(self, rows: Rows) -> None:
        self._touched = rows.at
        self._clear()
        self._move(0)
        self._fill(_texts(rows), rows.at)


def _nobody() -> None:
    """Who is not served by a thread cannot be hurried."""


def folder_bytes(folder: Path) -> int:
    """Size of the files of a folder, which may come and go meanwhile."""
    size = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.is_file() else 0
    return size


def _texts(rows: Rows) -> Iterator[Text]:
    return (text for row in rows.all_nodes() if (text := Text.of(row)).has_words)
