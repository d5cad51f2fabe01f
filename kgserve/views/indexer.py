"""The threads that keep the indexes of all open stores in step: for keywords, for vectors, and for those of the past.

A thread takes the stores that have something to do in turn, a step each, so that one import never starves another
store. A step that fails is tried again, a second later at first and up to a minute later after that; the graph is not
concerned.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time

import structlog

from kgserve.allocator import give_back
from kgserve.embedding.cache import QueryVectors
from kgserve.embedding.embedder import Embedder, MeteredEmbedder
from kgserve.errors import KgserveError, Unavailable
from kgserve.metrics.observation import Embedding
from kgserve.store.store import Store
from kgserve.views.follower import Stopped, View
from kgserve.views.indexes import Indexes

log = structlog.get_logger()

# A step after each commit took as much of the interpreter as the commits themselves.
LINGER_SECONDS = 0.1
# Who looks back waits for as long as it takes; nobody else wants to pay for it.
PAST_LINGER_SECONDS = 1.0
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
REST_SECONDS = 10.0
"""Without anything to do, until a thread returns to the system what its work has left free."""
_NICENESS = 10
# Threads of that niceness hardly get on while others keep all cores busy, and a server that stops is waited for.
CLOSED_PATIENCE_SECONDS = 2.0


class Turns:
    """Who is to be served when, and who is being served; woken followers come once each."""

    def __init__(self, linger: float = LINGER_SECONDS) -> None:
        self._linger = linger
        self._due: dict[View, float] = {}
        self._served: View | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._lingering: set[View] = set()
        self._hurried: set[View] = set()

    def wake_later(self, follower: View) -> None:
        """Serve a follower in a moment, when more may have come: a step for each commit would cost too much."""
        with self._changed:
            if follower not in self._due:
                self._due[follower] = time.monotonic() + self._linger
                self._lingering.add(follower)
                self._changed.notify_all()

    def hurry(self, follower: View) -> None:
        """Serve a follower before all others, and now if it was only waiting for more to come."""
        with self._changed:
            if follower in self._lingering:
                self._lingering.discard(follower)
                self._due[follower] = time.monotonic()
            if follower in self._due or follower is self._served:
                self._hurried.add(follower)
                self._changed.notify_all()

    def wake(self, follower: View) -> None:
        """Serve a follower soon; one that was put off stays so."""
        with self._changed:
            self._due.setdefault(follower, time.monotonic())
            self._changed.notify_all()

    def put_off(self, follower: View, seconds: float) -> None:
        """Serve a follower then, whoever wakes it meanwhile; 0 ends an earlier delay."""
        with self._changed:
            self._lingering.discard(follower)
            self._due[follower] = time.monotonic() + seconds
            self._changed.notify_all()

    def take(self, seconds: float = math.inf) -> View | None:
        """The next that is due; blocks; None at the end, and when nobody was due for so many seconds."""
        with self._changed:
            end = time.monotonic() + seconds
            while not self._closed and (now := time.monotonic()) < end:
                due = self._next_due(now)
                if due is not None:
                    self._drop(due)
                    self._served = due
                    return due
                wake = min([end, *self._due.values()])
                self._changed.wait(None if wake == math.inf else wake - now)
            return None

    @property
    def closed(self) -> bool:
        """Whether nobody is served any more."""
        return self._closed

    def done(self) -> None:
        """Whoever was served is no longer."""
        with self._changed:
            self._served = None
            self._changed.notify_all()

    def forget(self, follower: View) -> bool:
        """Serve a follower no more; blocks while it is being served, once closed for 2 s at most: whether it ended."""
        with self._changed:
            patience = CLOSED_PATIENCE_SECONDS if self._closed else None
            over = self._changed.wait_for(lambda: self._served is not follower, patience)
            self._drop(follower)
            return over

    def close(self) -> None:
        """Serve nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_due(self, now: float) -> View | None:
        due = (follower for follower, at in self._due.items() if at <= now)
        first = next(due, None)
        if first is None or not self._hurried or first in self._hurried:
            return first
        return next((follower for follower in due if follower in self._hurried), first)

    def _drop(self, follower: View) -> None:
        self._due.pop(follower, None)
        self._lingering.discard(follower)
        self._hurried.discard(follower)


class Worker:
    """One thread and its turns."""

    def __init__(self, name: str, linger: float = LINGER_SECONDS) -> None:
        self.turns = Turns(linger)
        self._failures: dict[View, int] = {}
        self._patience = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """End the thread, or leave it behind after 2 s, for the process is about to end: whether it has ended."""
        self.turns.close()
        self._thread.join(CLOSED_PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def follow(self, follower: View) -> None:
        """Serve a follower now, a moment after each commit of its store, and at once when somebody waits for it."""
        follower.hurry = lambda: self.turns.hurry(follower)
        follower.wake = lambda: self.turns.wake(follower)
        follower.wake_later = lambda: self.turns.wake_later(follower)
        follower.store.after_commit.append(lambda: self.turns.wake_later(follower))
        self.turns.wake(follower)

    def forget(self, follower: View) -> bool:
        """See `Turns.forget`."""
        follower.stop()
        over = self.turns.forget(follower)
        self._failures.pop(follower, None)
        return over

    def _run(self) -> None:
        # Linux gives each thread a niceness of its own: requests and writes come first, idle cores are used anyway.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        # A function of its own, so that no follower is held while there is nothing to do.
        follower = self.turns.take(self._patience)
        if follower is None:
            # What writers of tantivy have freed stays with the process: 50 MiB after small writes, 80 after an import.
            give_back()
            self._patience = math.inf
            return not self.turns.closed
        self._patience = REST_SECONDS
        try:
            self._serve(follower)
        finally:
            self.turns.done()
        return True

    def _serve(self, follower: View) -> None:
        try:
            more = follower.step()
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001  # an index may fail in any way; it must not end the thread
            self._put_off(follower, error)
            return
        self._failures.pop(follower, None)
        if more:
            self.turns.wake(follower)

    def _put_off(self, follower: View, error: Exception) -> None:
        failures = self._failures[follower] = self._failures.get(follower, 0) + 1
        seconds = min(FIRST_RETRY_SECONDS * 2 ** (failures - 1), LAST_RETRY_SECONDS)
        follower.fail(error.message if isinstance(error, KgserveError) else "internal error; see the log")
        log.warning(
            "index_step_failed",
            store=follower.store.name,
            index=follower.name,
            retry_in=seconds,
            error=str(error),
            exc_info=not isinstance(error, KgserveError),
        )
        self.turns.put_off(follower, seconds)


class Indexer:
    """A companion of the pool: indexes every store while it is open."""

    def __init__(self, embedder: Embedder, patient: Embedder | None = None) -> None:
        """Index with ``patient``, an embedder of the same model whose threads may wait; queries have ``embedder``."""
        self.embedding = Embedding()
        self.embedder = MeteredEmbedder(embedder, self.embedding)
        self.queries = QueryVectors(self.embedder)
        self._patient = self.embedder if patient is None else MeteredEmbedder(patient, self.embedding)
        # Whether a thread is still at work after `close`: the process then must end without waiting for native threads.
        self.left_behind = False
        self._open: dict[str, Indexes] = {}
        self._lock = threading.Lock()
        self._keyword = Worker("keyword-indexer")
        self._vector = Worker("vector-indexer")
        self._past = Worker("past-indexer", PAST_LINGER_SECONDS)

    def opened(self, store: Store) -> None:
        """Begin to follow a store."""
        indexes = Indexes(store, self.queries, self._patient)
        with self._lock:
            self._open[store.name] = indexes
        for worker, follower in self._served(indexes):
            worker.follow(follower)

    def closing(self, store: Store) -> None:
        """Stop following a store, and save its vectors."""
        with self._lock:
            indexes = self._open.pop(store.name, None)
        if indexes is None:
            return
        for worker, follower in self._served(indexes):
            if not worker.forget(follower):
                # The process is about to end: what is half done is noticed and made anew at the next opening.
                log.warning("index_left_behind", store=store.name, index=follower.name)
                continue
            try:
                follower.close()
            except (KgserveError, OSError):
                log.exception("index_close_failed", store=store.name, index=follower.name)

    def halt(self) -> None:
        """Begin no further step, and end those in progress at their next batch: all stores are about to close."""
        with self._lock:
            found = list(self._open.values())
        for worker in self._workers:
            worker.turns.close()
        for indexes in found:
            for _, follower in self._served(indexes):
                follower.stop()

    def of(self, store: Store) -> Indexes:
        """The indexes of an open store. Raises Unavailable when it has none."""
        with self._lock:
            found = self._open.get(store.name)
        if found is None:
            raise Unavailable("this store is not indexed: indexes are turned off, or it is just closing")
        return found

    def reindex(self, store: Store) -> None:
        """Make all indexes anew, with the present model."""
        indexes = self.of(store)
        indexes.vector.change_model()
        for worker, follower in self._served(indexes):
            follower.refill_wanted = True
            follower.error = None  # of the time before; who waits for the new index would take it for a present one
            worker.turns.put_off(follower, 0.0)

    def close(self) -> None:
        """End the threads; the stores are closed already."""
        ended = [worker.close() for worker in self._workers]
        self.left_behind = not all(ended)
        self.embedder.close()
        self._patient.close()

    @property
    def _workers(self) -> tuple[Worker, ...]:
        return self._keyword, self._vector, self._past

    def _served(self, indexes: Indexes) -> tuple[tuple[Worker, View], ...]:
        """All indexes of a store, each with the thread that serves it."""
        return (
            (self._keyword, indexes.keyword),
            (self._vector, indexes.vector),
            (self._past, indexes.past_keyword),
            (self._past, indexes.past_vector),
        )
