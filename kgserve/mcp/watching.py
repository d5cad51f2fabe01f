"""Which of the resources that somebody subscribed to have changed, told by the feeds of their stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.errors import KgserveError, NotFound, ServedElsewhere
from kgserve.journal.tail import Tail
from kgserve.mcp.uris import Place
from kgserve.model.change import ChangeSet
from kgserve.model.events import Event, Position
from kgserve.model.remembered import Told
from kgserve.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow
from kgserve.store.feed import Feed, Wake
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
        if commits.feed.closed and not commits.feed.dropped:
            return await self._looked_after(name)  # it has moved to another node
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
        try:
            self._pool.require_files(name)
        except NotFound:
            return None
        except ServedElsewhere:
            # While a copy of it is open, that follows.
            self._pool.release(self._pool.acquire(name, at_least=0))
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


class Touched:
    """One listener's way through the commits of a store, from now on. For one thread at a time.

    A node is touched by what makes, changes or takes away the node itself or an edge at it.
    """

    def __init__(self, feed: Feed, wake: Wake) -> None:
        """``wake`` is called by any thread when there may be news. Blocks a little. Raises NotFound, JournalDamaged."""
        self.feed = feed
        self._tail = Tail(feed.layout.journal)
        self._unlisten = feed.listen(wake)
        try:
            self._seen = feed.latest
        except BaseException:
            self._unlisten()
            raise

    def since(self, wanted: AbstractSet[str]) -> set[str] | None:
        """Those of the ``wanted`` nodes that were touched since the last look; None when no node was.

        All of them when the commits can no longer be read: who looks again needlessly misses nothing. Blocks. Raises
        NotFound when the store is gone.
        """
        latest, seen = self.feed.latest, self._seen
        if latest <= seen:
            return None
        try:
            return self._read_to(latest, wanted)
        except (KgserveError, FileNotFoundError):
            return set(wanted)
        finally:
            self._seen = latest

    def close(self) -> None:
        """Listen no longer."""
        self._unlisten()

    def _read_to(self, latest: int, wanted: AbstractSet[str]) -> set[str] | None:
        found: set[str] = set()
        is_any = False
        while self._seen < latest and (len(found) < len(wanted) or not is_any):
            for sequence, touched in self._commits(latest):
                found.update(wanted & touched)
                is_any = is_any or bool(touched)
                self._seen = sequence
        return found if is_any else None

    def _commits(self, latest: int) -> Iterator[tuple[int, set[str]]]:
        """The next commits, with the nodes that each touched."""
        commits = self.feed.recent(Position.after(self._seen))
        if not commits:
            for change in self._tail.page(self._seen, latest):
                yield change.sequence, _of_change(change)
            return
        for commit in commits:
            ids = [_of_event(event) for event in commit.events]
            if None in ids:  # too many rows for an event each
                [change] = self._tail.read(commit.sequence, commit.sequence)
                yield commit.sequence, _of_change(change)
            else:
                yield commit.sequence, {node_id for some in ids for node_id in some or ()}


def _of_event(event: Event) -> tuple[str, ...] | None:
    found: tuple[str, ...] | None = None
    match event.subject:
        case NodeRow() as row:
            found = (row.id,)
        case EdgeRow() as row:
            found = _ends(row.key)
        case LinkRow() as row:
            found = (row.edge.source,)
        case LinkKey() as key:
            found = (key.edge[0],)
        case str() as node_id:
            found = (node_id,)
        case Told():
            found = ()  # its row is told of, too
        case tuple() as key:
            found = _ends(key)
        case _:
            pass
    return found


def _of_change(change: ChangeSet) -> set[str]:
    touched = set(change.node_ids())
    for key in (*(row.key for row in (*change.edges_created, *change.edges_updated)), *change.edges_deleted):
        touched.update(_ends(key))
    touched.update(row.edge.source for row in (*change.links_created, *change.links_updated))
    touched.update(key.edge[0] for key in change.links_deleted)
    return touched


def _ends(key: EdgeKey) -> tuple[str, str]:
    return key[0], key[1]
