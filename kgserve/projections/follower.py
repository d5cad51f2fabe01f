"""Views of a store that follow its journal, and the threads that serve them.

A view pulls what it has yet to see after its own sequence, takes it in, then moves on: doing that twice comes to the
same. A thread takes the views that have something to do in turn, a step each, so that one import never starves another
store. A step that fails is tried again, a second later at first and up to a minute later after that; the graph is not
concerned.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec
import structlog

from kgserve.errors import Conflict, KgserveError, Unavailable
from kgserve.platform.allocator import give_back
from kgserve.platform.settings import Indexed
from kgserve.projections.base import FollowedStore
from kgserve.projections.text import Text
from kgserve.storage.journal.tail import Tail
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.fields import Width
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.rows.snapshot import Rows

log = structlog.get_logger()

# A step after each commit took as much of the interpreter as the commits themselves.
LINGER_SECONDS = 0.1
LINGER_AT_MOST = 20
"""So many times that, where many stores are written to."""
MANY_WAIT = 4
REST = 3
"""So many times what a step took a thread rests after it, where many views wait: requests come first."""
LONGEST_REST_SECONDS = 1.0
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
IDLE_SECONDS = 10.0
"""Without anything to do, until a thread returns to the system what its work has left free."""
ROWS_AT_ONCE = 20_000
_NICENESS = 10
# Threads of that niceness hardly get on while others keep all cores busy, and a server that stops is waited for.
CLOSED_PATIENCE_SECONDS = 2.0
_SHORT_JOURNAL = 1 << 20

IndexName = Literal["keyword", "vector", "past-keyword", "past-vector"]
Index = TypeVar("Index", bound=Sized)


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


class FollowerStopped(Exception):
    """The view is closing: the step in progress was left where it was."""


class Erasure(NamedTuple):
    """Nodes of which a view is to hold nothing from up to a commit; and ``former``, of which nothing that is over."""

    ids: tuple[str, ...]
    former: tuple[str, ...]
    through: int


class View(ABC):
    """A view of one open store, kept in step. One thread calls `step` at a time; any thread reads and waits."""

    name: str

    def __init__(self, store: FollowedStore) -> None:
        self.store = store
        self.sequence = -1
        self.pending = 0
        self.error: str | None = None
        self.refill_wanted = False
        self._refilling = False
        self._turn = threading.Lock()
        self.schedule = Schedule()  # nobody's, until a thread follows
        self._moved = threading.Condition()
        self._watchers: set[Callable[[], None]] = set()
        self._stopping = threading.Event()

    @property
    def reached(self) -> int:
        """The commit that it has seen; 0 while it is not open, and from the moment on at which a refill is wanted."""
        return 0 if self.being_refilled else max(self.sequence, 0)

    @property
    def being_refilled(self) -> bool:
        """Whether it is being made anew, or is about to be."""
        return self.refill_wanted or self._refilling

    @property
    def woken_by(self) -> list[Callable[[], None]]:
        """What is called when there may be something to take in: for waking, not for work."""
        return self.store.after_commit

    def step(self) -> bool:
        """Follow for a while; whether there is more to do. Raises what it meets."""
        self._continue()
        self._open_if_closed()
        if self.refill_wanted or self._out_of_reach():
            self._refill()
        else:
            self._advance()
        self.error = None
        return self._is_behind()

    def serve(self) -> bool:
        """As `step`, for any thread: one after the other."""
        with self._turn:
            return self.step()

    def erase(self, erasure: Erasure) -> None:
        """Have its files hold nothing more of some nodes, in the caller's thread. Twice comes to the same. Blocks."""
        with self._turn:
            self._continue()
            self._open_if_closed()
            self._erase(erasure)

    def wait(self, sequence: int, seconds: float) -> bool:
        """Block until the view has seen a commit; whether it has. No wait for one that could not be opened."""
        if self.sequence < sequence:
            self.schedule.hurry(self)
        with self._moved:
            self._moved.wait_for(lambda: self.sequence >= sequence or self._unopened, seconds)
            return self.sequence >= sequence

    def has_yet_to_see(self, sequence: int) -> bool:
        """Whether it is still to see a commit, and may."""
        return self.sequence < sequence and not self._unopened and not self._stopping.is_set()

    def watch(self, told: Callable[[], None]) -> Callable[[], None]:
        """Have ``told`` called, by any thread, whenever it has moved, failed or ended; what ends that."""
        with self._moved:
            self._watchers.add(told)

        def unwatch() -> None:
            with self._moved:
                self._watchers.discard(told)

        return unwatch

    def wake(self) -> None:
        """Have a step made soon."""
        self.schedule.wake(self)

    def fail(self, error: str) -> None:
        """Note why a step failed."""
        with self._moved:
            self.error = error
            self._tell()

    def stop(self) -> None:
        """Let a step in progress end soon."""
        self._stopping.set()
        with self._moved:
            self._tell()

    @abstractmethod
    def _erase(self, erasure: Erasure) -> None:
        """See `erase`. Twice must come to the same."""

    @abstractmethod
    def close(self) -> None:
        """Save what is worth saving and release what is open; no step is in progress."""

    @abstractmethod
    def _open(self) -> int:
        """Open what is on disk; the commit that it has seen, 0 for none."""

    def _out_of_reach(self) -> bool:
        """Whether what it follows cannot take it from where it stands to the present."""
        journal = self.store.journal
        return self.sequence < journal.oldest - 1 or self.sequence > journal.last

    @abstractmethod
    def _refill(self) -> None:
        """Begin anew."""

    @abstractmethod
    def _advance(self) -> None:
        """Take in some of what it has yet to see, if there is any, and move on. Twice must come to the same."""

    @abstractmethod
    def _is_behind(self) -> bool:
        """Whether there is more to take in, at the end of a step."""

    def _open_if_closed(self) -> None:
        if self.sequence < 0:
            self._begin_at(self._open())

    def _begin_at(self, sequence: int) -> None:
        """Stand at a commit, all that is after which is yet to be taken in."""
        self._move(sequence)

    def _continue(self) -> None:
        """Raise Stopped when the view is closing."""
        if self._stopping.is_set():
            raise FollowerStopped

    def _has_memories(self) -> bool:
        with self.store.reading() as rows:
            return rows.width == Width.MEMORY

    def _give_way(self, worked: float) -> None:
        """After some seconds of work, serve who is waited for in other stores, and leave cores to writer and requests.

        That for twice as long: a thread of low priority that was put aside while it held the interpreter's lock would
        hold up everybody.
        """
        self.schedule.serve_hurried(self)
        if self.store.writing or self.schedule.are_others_served():
            self._stopping.wait(min(2 * worked, LONGEST_REST_SECONDS))

    @property
    def _unopened(self) -> bool:
        return self.sequence < 0 and self.error is not None

    def _move(self, sequence: int) -> None:
        with self._moved:
            self.sequence = sequence
            self._tell()

    def _tell(self) -> None:
        """Wake all who wait; with the lock held."""
        self._moved.notify_all()
        for told in self._watchers:
            told()


def indexed(store: FollowedStore) -> Indexed:
    """What is indexed of a store: as it was chosen for it, or else for the server."""
    chosen = store.description.indexes
    return store.settings.indexes if chosen == "default" else chosen


def not_kept(store: FollowedStore) -> str:
    """Why something is not indexed, in words."""
    kept = indexed(store)
    what = "nothing" if kept == "none" else "words alone"
    change = f"kgserve settings {store.name} indexes=words+meaning"
    return f"of store {store.name!r} {what} is indexed, by the setting indexes ({kept}); `{change}` changes that"


class IndexView(View, Generic[Index]):
    """An index of the texts of one store, in a folder of its own."""

    folder: IndexName
    needs: frozenset[Indexed] = frozenset({"words", "words+meaning"})
    """It is there where one of these is indexed of the store."""
    being_opened: str
    """What is answered meanwhile."""
    _index: Index | None = None
    _indexed: tuple[str, ...] | None = None
    """The attributes that its texts have words of; None until it is opened."""

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        self._folder = store.layout.views / self.folder

    @property
    def is_kept(self) -> bool:
        """Whether the store has it. One that it has no longer goes with the next step."""
        return indexed(self.store) in self.needs

    def step(self) -> bool:
        """See `View.step`."""
        if self.is_kept:
            return super().step()
        self._go()
        return False

    def wait(self, sequence: int, seconds: float) -> bool:
        """See `View.wait`. No wait for one that the store does not have."""
        return self.is_kept and super().wait(sequence, seconds)

    def _go(self) -> None:
        """Be gone, with all files, until it is wanted again."""
        self.refill_wanted = True  # so that nothing is saved first
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.refill_wanted, self.pending, self.error = False, 0, None
        self._move(-1)

    @property
    def files(self) -> Path:
        """The folder."""
        return self._folder

    @property
    @abstractmethod
    def model(self) -> str:
        """What it is made with."""

    def state(self) -> IndexState:
        """How it stands."""
        entities = 0 if self._index is None else len(self._index)
        size = folder_bytes(self._folder)
        return IndexState(self.folder, self.reached, entities, self.pending, size, self.model, self.error)

    def check_model(self) -> None:
        """Raise Conflict when it is of another model than the server's."""

    def reconsider(self) -> None:
        """Have it made anew if the store wants other attributes indexed than it has words of; come, or go."""
        if self.is_kept != (self.sequence >= 0):
            self.wake()
        if self._indexed is not None and self._indexed != self.store.description.indexed_attributes:
            self.refill_wanted = True
            self.wake()

    def _opened(self) -> Index:
        if self._index is None:
            if not self.is_kept:
                raise Conflict(not_kept(self.store))
            self.check_model()
            raise Unavailable(self.being_opened, retry_after=1)
        return self._index

    def _made_of(self, *parts: str) -> str:
        """What the index is made of from now on, as its files say it: its model, and what the store wants indexed."""
        self._indexed = self.store.description.indexed_attributes
        return " ".join([*parts, *([msgspec.json.encode(self._indexed).decode()] if self._indexed else ())])

    def _text(self, row: NodeRow, since: int | None = None, until: int | None = None) -> Text:
        """The texts of a state."""
        return Text.of(row, self._indexed or (), since, until)

    def _texts_of(self, rows: Rows) -> Iterator[Text]:
        """The texts of all entities that have words."""
        return (text for row in rows.all_nodes() if (text := self._text(row)).has_words)

    @abstractmethod
    def _clear(self) -> None:
        """Forget everything."""


class Follower(View):
    """A view of the journal."""

    rows_at_once = ROWS_AT_ONCE
    """Rows of a step, about."""

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        # Where the store stood when it was opened: an index that has to come that far is not ready until it has.
        self._goal = store.state.sequence
        self._behind = False
        self._tail = Tail(store.layout.journal)

    @abstractmethod
    def _take(self, changes: list[ChangeSet]) -> None:
        """Take in consecutive change sets. Doing it twice must come to the same."""

    @abstractmethod
    def _take_all(self, rows: Rows) -> None:
        """Forget everything, and take in the rows of a commit."""

    def _begin_at(self, sequence: int) -> None:
        super()._begin_at(sequence)
        self._behind = self.sequence < self._goal

    def _refilling_is_shorter(self) -> bool:
        """Whether an empty index had better read all entities than all that was ever written."""
        return self.store.journal.bytes > _SHORT_JOURNAL

    def _advance(self) -> None:
        if changes := self._tail.page(self.sequence, self.store.journal.last, self.rows_at_once):
            self._take(changes)
            self._move(changes[-1].sequence)

    def _is_behind(self) -> bool:
        if self.sequence < self.store.state.sequence:
            return True
        if self._behind and not self.refill_wanted:
            # It was opened behind or made anew, and has caught up: who listens is told.
            self._behind = False
            self.store.feed.publish_marker("index_ready", {"index": self.name, "sequence": self.sequence})
        return False

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


class FollowStep(msgspec.Struct, frozen=True):
    """The net effect of change sets up to ``sequence``. Entities without any words are to be removed."""

    put: list[Text]
    removed: list[str]
    sequence: int


class IndexFollower(Follower, IndexView[Index]):
    """An index of what a store holds now."""

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        self._opening = threading.Lock()
        self._begun = 0

    @property
    def visible_up_to(self) -> int:
        """The last commit of which a search may have seen anything: `sequence` moves when all of a step is in."""
        return max(self.sequence, self._begun)

    def wait(self, sequence: int, seconds: float) -> bool:
        """See `View.wait`. Who waits opens it, for its thread gives way to all others, and may be at another store."""
        if not self.is_kept:
            return False
        deadline = time.monotonic() + seconds
        # What has failed is left to that thread, which tries it again, later and later, and says why.
        if self.sequence < 0 and self.error is None and self._opening.acquire(timeout=seconds):
            try:
                with contextlib.suppress(Exception):
                    super()._open_if_closed()
            finally:
                self._opening.release()
        return super().wait(sequence, max(deadline - time.monotonic(), 0))

    def _go(self) -> None:
        with self._opening:
            super()._go()

    @abstractmethod
    def _fill(self, texts: Iterator[Text], sequence: int) -> None:
        """Take in everything there is, after `_clear`."""

    @abstractmethod
    def _follow(self, step: FollowStep) -> None:
        """Take in some changes. Doing it twice must come to the same."""

    @property
    @abstractmethod
    def _saved(self) -> int:
        """The commit that the files go up to."""

    @abstractmethod
    def _save(self, sequence: int) -> None:
        """Have the files go up to a commit, since the one that they go up to nothing has changed that they hold."""

    def _open_if_closed(self) -> None:
        with self._opening:
            super()._open_if_closed()

    def _take(self, changes: list[ChangeSet]) -> None:
        step = self._net_effect(changes)
        self._begun = step.sequence
        if step.put or step.removed:
            self._follow(step)
        elif self._saved < self.store.journal.oldest - 1:
            # What is on the disk could no longer be gone on with.
            self._save(step.sequence)

    def _take_all(self, rows: Rows) -> None:
        self._begun = rows.at
        # First: who needs a commit is not to look at what is being cleared.
        self._move(0)
        self._clear()
        self._fill(self._texts_of(rows), rows.at)

    def _net_effect(self, changes: Iterable[ChangeSet]) -> FollowStep:
        """What consecutive change sets come to."""
        rows, sequence = net_rows(changes)
        texts = (self._text(row) for row in rows.values() if row is not None)
        put = {text.id: text for text in texts if text.has_words}
        return FollowStep(list(put.values()), [node_id for node_id in rows if node_id not in put], sequence)


def net_rows(changes: Iterable[ChangeSet]) -> tuple[dict[str, NodeRow | None], int]:
    """What consecutive change sets make of each node that they name, None where it is gone; and the last of them."""
    rows: dict[str, NodeRow | None] = {}
    sequence = 0
    for change in changes:
        rows.update(dict.fromkeys(change.nodes_deleted))
        rows.update((row.id, row) for row in change.nodes_created)
        rows.update((row.id, row) for row in change.nodes_updated)
        sequence = change.sequence
    return rows, sequence


def folder_bytes(folder: Path) -> int:
    """Size of the files of a folder, which may come and go meanwhile."""
    size = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.is_file() else 0
    return size


class Schedule:
    """Who is to be served when, and who is being served; woken views come once each."""

    def __init__(self, linger: float = LINGER_SECONDS) -> None:
        self._linger = linger
        self._due: dict[View, float] = {}
        self._served: list[View] = []  # the second one in the midst of a step of the first
        self._server: int | None = None
        self.serve: Callable[[View], object] = View.serve
        self.are_others_served: Callable[[], bool] = lambda: False
        """Whether requests are answered that long work had better give way to."""
        self._changed = threading.Condition()
        self._closed = False
        self._resting_until = -math.inf
        self._lingering: set[View] = set()
        self._hurried: set[View] = set()

    def wake_later(self, view: View) -> None:
        """Serve a view in a moment, when more may have come: a step for each commit would cost too much.

        The more of them wait already, the longer the moment, so that many stores do not take more steps than a few.
        """
        with self._changed:
            if view not in self._due:
                waiting = min(len(self._due) + 1, LINGER_AT_MOST)
                self._due[view] = time.monotonic() + waiting * self._linger
                self._lingering.add(view)
                self._changed.notify_all()

    def hurry(self, view: View) -> None:
        """Serve a view before all others, and now if it was only waiting for more to come."""
        with self._changed:
            if view in self._lingering:
                self._lingering.discard(view)
                self._due[view] = time.monotonic()
            if view in self._due or view in self._served:
                self._hurried.add(view)
                self._changed.notify_all()

    def wake(self, view: View) -> None:
        """Serve a view soon; one that was put off stays so."""
        with self._changed:
            self._due.setdefault(view, time.monotonic())
            self._changed.notify_all()

    def put_off(self, view: View, seconds: float) -> None:
        """Serve a view then, whoever wakes it meanwhile; 0 ends an earlier delay."""
        with self._changed:
            self._lingering.discard(view)
            self._due[view] = time.monotonic() + seconds
            self._changed.notify_all()

    def take(self, seconds: float = math.inf) -> View | None:
        """The next that is due; blocks; None at the end, and when nobody was due for so many seconds."""
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

    def serve_hurried(self, beside: View) -> None:
        """In a long step of a view, serve those of other stores that are due and waited for; by who makes that step.

        Making an index anew is one step, of minutes where much is to be embedded. What is to be made anew itself is
        left to its turn.
        """
        while (view := self._take_hurried(beside)) is not None:
            try:
                self.serve(view)
            finally:
                self.done()

    def _take_hurried(self, beside: View) -> View | None:
        with self._changed:
            if self._closed or self._served != [beside] or self._server != threading.get_ident():
                return None
            now = time.monotonic()
            found = (view for view, at in self._due.items() if at <= now and view in self._hurried)
            due = next((view for view in found if view.store is not beside.store and not view.being_refilled), None)
            if due is not None:
                self._drop(due)
                self._served.append(due)
            return due

    @property
    def closed(self) -> bool:
        """Whether nobody is served any more."""
        return self._closed

    def rest(self, worked: float) -> None:
        """Serve only who is waited for for some time, after a step of so many seconds, if many views are due."""
        with self._changed:
            if len(self._due) >= MANY_WAIT:
                self._resting_until = time.monotonic() + min(REST * worked, LONGEST_REST_SECONDS)

    def done(self) -> None:
        """Whoever was served last is no longer."""
        with self._changed:
            self._served.pop()
            self._changed.notify_all()

    def forget(self, view: View, patience: float | None = None) -> bool:
        """Serve a view no more; blocks while it is being served, for so many seconds: whether it ended.

        Once closed, for 2 s at most.
        """
        with self._changed:
            patience = CLOSED_PATIENCE_SECONDS if self._closed else patience
            over = self._changed.wait_for(lambda: view not in self._served, patience)
            self._drop(view)
            return over

    def close(self) -> None:
        """Serve nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_due(self, now: float) -> View | None:
        due = [view for view, at in self._due.items() if at <= now]
        hurried = (view for view in due if view in self._hurried)
        return next(hurried, due[0] if due and now >= self._resting_until else None)

    def _drop(self, view: View) -> None:
        self._due.pop(view, None)
        self._lingering.discard(view)
        self._hurried.discard(view)


def lower_priority() -> None:
    """Have this thread come after requests and writes; idle cores are used anyway.

    Linux gives each thread a niceness of its own.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class FollowerThread:
    """One thread and its turns."""

    def __init__(self, name: str, linger: float = LINGER_SECONDS) -> None:
        self.schedule = Schedule(linger)
        self.schedule.serve = self._serve
        self._failures: dict[View, int] = {}
        self._patience = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """End the thread, or leave it behind after 2 s, for the process is about to end: whether it has ended."""
        self.schedule.close()
        self._thread.join(CLOSED_PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def follow(self, view: View) -> None:
        """Serve a view now, a moment after each commit of its store, and at once when somebody waits for it."""
        view.schedule = self.schedule
        view.woken_by.append(partial(self.schedule.wake_later, view))
        self.schedule.wake(view)

    def forget(self, view: View, patience: float | None = None) -> bool:
        """See `Schedule.forget`."""
        view.stop()
        over = self.schedule.forget(view, patience)
        self._failures.pop(view, None)
        return over

    def _run(self) -> None:
        lower_priority()
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A function of its own, so that no view is held while there is nothing to do.
        view = self.schedule.take(self._patience)
        if view is None:
            # What writers of tantivy have freed stays with the process: 50 MiB after small writes, 80 after an import.
            give_back()
            self._patience = math.inf
            return not self.schedule.closed
        self._patience = IDLE_SECONDS
        began = time.monotonic()
        try:
            self._serve(view)
        finally:
            self.schedule.done()
            self.schedule.rest(time.monotonic() - began)
        return True

    def _serve(self, view: View) -> None:
        try:
            more = view.serve()
        except FollowerStopped:
            return
        except Exception as error:  # noqa: BLE001  # an index may fail in any way; it must not end the thread
            self._put_off(view, error)
            return
        self._failures.pop(view, None)
        if more:
            self.schedule.wake(view)

    def _put_off(self, view: View, error: Exception) -> None:
        failures = self._failures[view] = self._failures.get(view, 0) + 1
        seconds = min(FIRST_RETRY_SECONDS * 2 ** (failures - 1), LAST_RETRY_SECONDS)
        view.fail(error.message if isinstance(error, KgserveError) else "internal error; see the log")
        log.warning(
            "index_step_failed",
            store=view.store.name,
            index=view.name,
            retry_in=seconds,
            error=str(error),
            exc_info=not isinstance(error, KgserveError),
        )
        self.schedule.put_off(view, seconds)
