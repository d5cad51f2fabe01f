"""Which of the resources that somebody subscribed to have changed, told by the feeds of their stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.errors import KgserveError
from kgserve.mcp.uris import Place
from kgserve.ops.touched import Touched
from kgserve.store.pool import StorePool

MAX_STORES = 256
"""Stores that are followed at once: of each that is, the newest commits are kept in memory."""


class News(NamedTuple):
    """The places that have changed, and the stores that came, went, or got other settings."""

    changed: set[Place]
    announced: set[str]


class _Store:
    """What is watched in a store, and its commits, unless it is not there."""

    def __init__(self) -> None:
        self.watched: Counter[Place] = Counter()
        self.commits: Touched | None = None

    def close(self) -> None:
        """Follow it no longer."""
        if self.commits is not None:
            self.commits.close()
            self.commits = None


class Watching:
    """Follows the stores that somebody subscribed to something of. For one event loop, that calls `begin` first.

    What blocks runs in a thread of its own.
    """

    def __init__(self, pool: StorePool) -> None:
        self._pool = pool
        self._thread = CapacityLimiter(1)
        self._stores: dict[str, _Store] = {}
        self._written_to: set[str] = set()
        self._announced: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.some_news = asyncio.Event()

    def begin(self) -> None:
        """Remember the loop that is to be woken."""
        self._loop = asyncio.get_running_loop()

    def has_room(self, places: Iterable[Place]) -> bool:
        """Whether the stores of these places can be followed as well."""
        return len(self._stores.keys() | {place.store for place in places if place.store}) <= MAX_STORES

    async def add(self, places: Iterable[Place]) -> None:
        """Watch these as well, from now on. A store that is not there is looked for when one is made."""
        for place in (each for each in places if each.store):
            self._stores.setdefault(place.store or "", _Store()).watched[place] += 1
        for name in {place.store for place in places if place.store}:
            await self._follow(name)

    def remove(self, places: Iterable[Place]) -> None:
        """Watch these no longer, unless somebody else does."""
        for place in places:
            if place.store and (store := self._stores.get(place.store)) is not None:
                store.watched[place] -= 1
                store.watched += Counter()  # keeps those that are positive
                if not store.watched:
                    self._stores.pop(place.store).close()

    def announced(self, store: str) -> None:
        """A store was made, dropped, or got other settings."""
        self._announced.add(store)
        self.some_news.set()

    async def news(self) -> News:
        """What has changed since the last time."""
        self.some_news.clear()
        written, self._written_to = self._written_to, set()
        announced, self._announced = self._announced, set()
        changed = {Place(name) for name in announced}
        for name in announced:
            changed |= await self._looked_after(name)
        for name in written - announced:
            changed |= await self._written(name)
        return News(changed, announced)

    def close(self) -> None:
        """Follow nothing any longer."""
        while self._stores:
            self._stores.popitem()[1].close()

    async def _looked_after(self, name: str) -> set[Place]:
        """What changed in a store that was announced: all of it, unless it is the one that is followed."""
        store = self._stores.get(name)
        if store is None:
            return set()
        if store.commits is not None and not store.commits.feed.closed:
            return await self._written(name)
        store.close()
        await self._follow(name)  # before it is told, so that nothing is missed
        return {*store.watched}

    async def _written(self, name: str) -> set[Place]:
        store = self._stores.get(name)
        if store is None or (commits := store.commits) is None:
            return set()
        wanted = frozenset(place.node for place in store.watched if place.node is not None)
        try:
            nodes = await anyio.to_thread.run_sync(lambda: commits.since(wanted), limiter=self._thread)
        except KgserveError:
            return set()  # it is gone, which is announced
        if nodes is None:
            return set()
        return {Place(name), Place(name, remembered=True), *(Place(name, node) for node in nodes)}

    async def _follow(self, name: str) -> None:
        if (store := self._stores.get(name)) is None or store.commits is not None:
            return
        try:
            commits = await anyio.to_thread.run_sync(lambda: self._commits(name), limiter=self._thread)
        except (KgserveError, FileNotFoundError):
            return
        if commits is None:
            return
        if self._stores.get(name) is not store or store.commits is not None:  # meanwhile
            commits.close()
        else:
            store.commits = commits

    def _commits(self, name: str) -> Touched | None:
        if not self._pool.layout(name).exists:
            return None
        return Touched(self._pool.feeds.of(name), self._waker(name))

    def _waker(self, name: str) -> Callable[[], None]:
        loop = self._loop

        def wake() -> None:
            if loop is not None:
                loop.call_soon_threadsafe(self._wake, name)

        return wake

    def _wake(self, name: str) -> None:
        self._written_to.add(name)
        self.some_news.set()
