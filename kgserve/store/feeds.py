"""The feeds of a pool, by name, and the news of stores that come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from kgserve.store.feed import Feed, Wake
from kgserve.store.layout import Layout


class Feeds:
    """One feed per store that was open or listened to."""

    def __init__(self, layout: Callable[[str], Layout]) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._wakes: dict[int, Wake] = {}
        self._numbers = count()
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
        with self._lock:
            number = next(self._numbers)
            self._wakes[number] = wake

        def unlisten() -> None:
            with self._lock:
                self._wakes.pop(number, None)

        return unlisten

    def created(self) -> None:
        """A store was made."""
        self._announce()

    def changed(self) -> None:
        """The settings of a store were changed; its own feed says how."""
        self._announce()

    def dropped(self, store: str) -> None:
        """A store's files are gone; its listeners end."""
        with self._lock:
            feed = self._feeds.pop(store, None)
        if feed is not None:
            feed.close(dropped=True)
        self._announce()

    def close(self) -> None:
        """End all listeners. Blocks for handlers a while."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.close()
        self._announce()

    def _announce(self) -> None:
        with self._lock:
            self.turn += 1
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake()
