"""Companions of the pool that have projections of every store while it is open, and threads that serve these."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from typing_extensions import override

from kgserve.errors import Unavailable
from kgserve.projections.base import FollowedStore
from kgserve.projections.follower import BackgroundProjection
from kgserve.projections.schedule import FollowerThread

AnyStore = TypeVar("AnyStore", bound=FollowedStore)
Own = TypeVar("Own")
OneProjection = TypeVar("OneProjection", bound=BackgroundProjection)


class StoreWorker(ABC, Generic[AnyStore, Own]):
    """A companion of the pool; see `stores.pool.StoreObserver`."""

    of_copies = False

    def __init__(self, *threads: FollowerThread) -> None:
        """``threads`` are those that serve its projections."""
        self._threads = threads
        self._open: dict[str, Own] = {}
        self._lock = threading.Lock()

    def give_way(self, are_others_served: Callable[[], bool]) -> None:
        """Leave cores to requests while that says so: what takes long takes three times as long then."""
        for thread in self._threads:
            thread.schedule.are_others_served = are_others_served

    def opened(self, store: AnyStore) -> None:
        """Begin to follow a store."""
        own = self._begun(store)
        if own is None:
            return
        with self._lock:
            self._open[store.name] = own
        for thread, projection in self._served(own):
            thread.follow(projection)

    def closing(self, store: AnyStore) -> None:
        """Follow a store no more; blocks until what is in progress has ended."""
        with self._lock:
            own = self._open.pop(store.name, None)
        if own is not None:
            self._let_go(own)

    def halt(self) -> None:
        """Begin no further step, and end those in progress soon: all stores are about to close."""
        for thread in self._threads:
            thread.schedule.close()
        for own in self._every():
            for _, projection in self._served(own):
                projection.stop()

    def close(self) -> None:
        """End the threads; the stores are closed already."""
        for thread in self._threads:
            thread.close()

    def found(self, store: AnyStore) -> Own | None:
        """What it has of a store; None when that is just closing."""
        with self._lock:
            return self._open.get(store.name)

    @abstractmethod
    def _begun(self, store: AnyStore) -> Own | None:
        """What it has of a store from now on; None for nothing."""

    @abstractmethod
    def _served(self, own: Own) -> Iterable[tuple[FollowerThread, BackgroundProjection]]:
        """The projections of a store, each with the thread that serves it."""

    def _let_go(self, own: Own) -> None:
        """Close what it had of a store."""
        for thread, projection in self._served(own):
            if thread.forget(projection):
                projection.close()

    def _every(self) -> list[Own]:
        """What it has of all open stores."""
        with self._lock:
            return list(self._open.values())

    def _of(self, store: AnyStore, missing: str) -> Own:
        """What it has of an open store. Raises Unavailable, with the text ``missing``, when that is nothing."""
        found = self.found(store)
        if found is None:
            if not self.of_copies:
                store.require_own()
            raise Unavailable(missing)
        return found


class SingleThreadWorker(StoreWorker[AnyStore, OneProjection]):
    """One projection of each store, all of them in one thread."""

    @override
    def _served(self, own: OneProjection) -> Iterable[tuple[FollowerThread, BackgroundProjection]]:
        return ((self._threads[0], own),)


class PeriodicWorker(SingleThreadWorker[AnyStore, OneProjection]):
    """The same, each of which is reminded now and then, by a thread of its own."""

    def __init__(self, thread: FollowerThread, name: str, seconds: float) -> None:
        """``name`` is that of the other thread, and ``seconds`` how often it does so."""
        super().__init__(thread)
        self._closed = threading.Event()
        self._reminder = threading.Thread(target=self._remind_all, args=(seconds,), name=name, daemon=True)
        self._reminder.start()

    @override
    def halt(self) -> None:
        self._closed.set()
        super().halt()

    @override
    def close(self) -> None:
        self._closed.set()
        super().close()
        self._reminder.join()

    @abstractmethod
    def _remind(self, own: OneProjection) -> None:
        """Have a projection look whether anything is due."""

    def _remind_all(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            for own in self._every():
                self._remind(own)
