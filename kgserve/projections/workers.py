"""Workers that run the background projections of every open store, and the threads that serve them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from typing_extensions import override

from kgserve.errors import Unavailable
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.base import StoreFollowedByProjections
from kgserve.projections.update_scheduler import ProjectionThread

AnyStore = TypeVar("AnyStore", bound=StoreFollowedByProjections)
WorkerState = TypeVar("WorkerState")
AnyProjection = TypeVar("AnyProjection", bound=BackgroundProjection)


class StoreProjectionWorker(ABC, Generic[AnyStore, WorkerState]):
    """Base of workers that attach projections to each store while the store is open.

    Implements `stores.pool.StorePoolObserver`. ``WorkerState`` is what the worker holds for one store.
    """

    of_copies = False

    def __init__(self, *threads: ProjectionThread) -> None:
        """Initialize with the ``threads`` that serve the projections."""
        self._threads = threads
        self._open: dict[str, WorkerState] = {}
        self._lock = threading.Lock()

    def give_way(self, are_others_served: Callable[[], bool]) -> None:
        """Yield cores to requests while ``are_others_served`` returns true.

        Long work takes about three times as long meanwhile.
        """
        for thread in self._threads:
            thread.schedule.are_others_served = are_others_served

    def on_store_opened(self, store: AnyStore) -> None:
        """Start following a store."""
        own = self._begun(store)
        if own is None:
            return
        with self._lock:
            self._open[store.name] = own
        for thread, projection in self._served(own):
            thread.follow(projection)

    def on_store_closing(self, store: AnyStore) -> None:
        """Stop following a store; blocks until its steps in progress have ended."""
        with self._lock:
            own = self._open.pop(store.name, None)
        if own is not None:
            self._let_go(own)

    def halt(self) -> None:
        """Start no further step and ask running steps to end soon, because all stores are about to close."""
        for thread in self._threads:
            thread.schedule.close()
        for own in self._all_states():
            for _, projection in self._served(own):
                projection.stop()

    def close(self) -> None:
        """End the threads; the stores are closed already."""
        for thread in self._threads:
            thread.close()

    def state_of_store(self, store: AnyStore) -> WorkerState | None:
        """Return what the worker holds for a store, None when the store is not followed or is closing."""
        with self._lock:
            return self._open.get(store.name)

    @abstractmethod
    def _begun(self, store: AnyStore) -> WorkerState | None:
        """Return what to hold for a newly opened store, None to ignore the store."""

    @abstractmethod
    def _served(self, own: WorkerState) -> Iterable[tuple[ProjectionThread, BackgroundProjection]]:
        """Return the projections of a store, each with the thread that serves it."""

    def _let_go(self, own: WorkerState) -> None:
        """Close what is held for a store."""
        for thread, projection in self._served(own):
            if thread.forget(projection):
                projection.close()

    def _all_states(self) -> list[WorkerState]:
        """Return what is held for all open stores."""
        with self._lock:
            return list(self._open.values())

    def _of(self, store: AnyStore, missing: str) -> WorkerState:
        """Return what is held for an open store. Raises Unavailable with the text ``missing`` when there is nothing."""
        found = self.state_of_store(store)
        if found is None:
            if not self.of_copies:
                store.require_local_owner()
            raise Unavailable(missing)
        return found


class SingleThreadProjectionWorker(StoreProjectionWorker[AnyStore, AnyProjection]):
    """Worker with one projection per store, all served by one thread."""

    @override
    def _served(self, own: AnyProjection) -> Iterable[tuple[ProjectionThread, BackgroundProjection]]:
        return ((self._threads[0], own),)


class PeriodicProjectionWorker(SingleThreadProjectionWorker[AnyStore, AnyProjection]):
    """Worker with one projection per store, and a timer thread that wakes each of them periodically."""

    def __init__(self, thread: ProjectionThread, name: str, seconds: float) -> None:
        """Start the timer thread, called ``name``; it calls `_remind` for each store every ``seconds``."""
        super().__init__(thread)
        self._closed = threading.Event()
        self._timer = threading.Thread(target=self._remind_all, args=(seconds,), name=name, daemon=True)
        self._timer.start()

    @override
    def halt(self) -> None:
        self._closed.set()
        super().halt()

    @override
    def close(self) -> None:
        self._closed.set()
        super().close()
        self._timer.join()

    @abstractmethod
    def _remind(self, own: AnyProjection) -> None:
        """Have a projection check whether work is due."""

    def _remind_all(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            for own in self._all_states():
                self._remind(own)
