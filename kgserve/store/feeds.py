"""The feeds of a pool, by name, and the news of stores that come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import TypeAlias, TypeVar

from kgserve.store.feed import Feed, Wake
from kgserve.store.layout import Layout

T = TypeVar("T")
NamedWake: TypeAlias = Callable[[str], None]


class Feeds:
    """One feed per store that was open or listened to."""

    def __init__(self, layout: Callable[[str], Layout]) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._wakes: dict[int, Wake] = {}
        self._named_wakes: dict[int, NamedWake] = {}
        self._numbers = count()
        self._arrivals: dict[str, int] = {}
        self.turn = 0

    def of(self, store: str) -> Feed:
        """The feed of a store, which need not be open."""
        with self._lock:
            feed = self._feeds.get(store)
            if feed is None:
                feed = self._feeds[store] = Feed(self._layout(store))
            return feed

    def listen(self, wake: Wake) -> Callable[[], None]:
        """Have ``wake`` called when a store was made, changed or dropped and ``turn`` has moved on; what ends it."""
        return self._listen(self._wakes, wake)

    def listen_by_name(self, wake: NamedWake) -> Callable[[], None]:
        """As `listen`, with the name of the store that was made, changed or dropped."""
        return self._listen(self._named_wakes, wake)

    def created(self, store: str) -> None:
        """A store was made."""
        self._announce(store)

    def arrived(self, store: str, sequence: int) -> None:
        """A store is open, at a sequence, and served here from now on if it was not before."""
        with self._lock:
            if store in self._arrivals:
                return
            self._arrivals[store] = sequence
        self._announce(store)

    def arrival(self, store: str) -> int | None:
        """The sequence since which a cluster's store is served here; None for one that is not, or is being opened."""
        with self._lock:
            return self._arrivals.get(store)

    def changed(self, store: str) -> None:
        """The settings of a store were changed; its own feed says how."""
        self._announce(store)

    def dropped(self, store: str) -> None:
        """A store's files are gone; its listeners end."""
        with self._lock:
            self._arrivals.pop(store, None)
            feed = self._feeds.pop(store, None)
        if feed is not None:
            feed.close(dropped=True)
        self._announce(store)

    def moved(self, store: str) -> None:
        """A store is another server's now; its listeners end, to go on there."""
        with self._lock:
            self._arrivals.pop(store, None)
            feed = self._feeds.pop(store, None)
        if feed is not None:
            feed.close()

    def close(self) -> None:
        """End all listeners."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.close()
        self._announce()

    def _listen(self, wakes: dict[int, T], wake: T) -> Callable[[], None]:
        with self._lock:
            number = next(self._numbers)
            wakes[number] = wake

        def unlisten() -> None:
            with self._lock:
                wakes.pop(number, None)

        return unlisten

    def _announce(self, store: str | None = None) -> None:
        with self._lock:
            self.turn += 1
            wakes, named = list(self._wakes.values()), list(self._named_wakes.values())
        for wake in wakes:
            wake()
        if store is not None:
            for wake in named:
                wake(store)
