"""Change feeds: notify listeners of a store's commits, in order, from the journal.

A feed belongs to a store's name, not to the open store. It outlives eviction, so listeners never hold a store open. The
feed knows the newest sequence and the callbacks to wake. Listeners pull at their own speed: the newest commits from
memory, which are kept while any listener exists, and older ones from the journal's files. A slow listener therefore
costs no memory, and catching up passes into live delivery without a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
from typing_extensions import override

from kgserve.errors import NoStore
from kgserve.storage.journal.journal_reader import JournalReader, find_oldest_journal_sequence
from kgserve.storage.model.change_feed_events import (
    ChangeFeedEventFilter,
    EventKind,
    FeedPosition,
    StoreEvent,
    expand_change_set_into_events,
)
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_incarnations import StoreIncarnation
from kgserve.storage.store_folder_layout import StoreLayout, read_closed_store_state

WakeCallback = Callable[[], None]

MAX_FEED_PAGE_COMMITS = 1_000
_MAX_MARKERS = 64
MAX_RING_EVENTS = 4_096
MAX_RING_BYTES = 4 << 20
_MAX_QUICK_EVENTS = 32
_MAX_QUICK_BYTES = 64 << 10


class ChangeFeedPageLimits(msgspec.Struct, frozen=True):
    """Bounds of one page: events returned, bytes of JSON, and events scanned (a strict selection matches few)."""

    events: int = 1_000
    bytes: int = 256 << 10
    scanned: int = 10_000


_DEFAULT_PAGE_LIMITS = ChangeFeedPageLimits()


@contextmanager
def _missing_store_as_no_store(store: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NoStore(store) from None


class EncodedStoreEvent(msgspec.Struct, frozen=True):
    """An event and its data as JSON."""

    event: StoreEvent
    data: bytes


class ChangeFeedCommit:
    """A change set as events. Each event is encoded to JSON once, for the first listener that needs it."""

    def __init__(self, store: str, change: ChangeSet) -> None:
        self.sequence = change.sequence
        self.events = expand_change_set_into_events(store, change)
        self.bytes = sum(event.cost for event in self.events)
        self._data: list[bytes | None] = [None] * len(self.events)

    @property
    def is_cheap_to_encode(self) -> bool:
        """True if all events are encoded, or few and small enough to encode without blocking."""
        return (len(self.events) <= _MAX_QUICK_EVENTS and self.bytes <= _MAX_QUICK_BYTES) or None not in self._data

    def encode_entry(self, index: int) -> EncodedStoreEvent:
        """Return the event at an index together with its JSON."""
        data = self._data[index]
        if data is None:
            data = self._data[index] = self.events[index].json()
        return EncodedStoreEvent(self.events[index], data)


class CommitRingBuffer:
    """Ring buffer of consecutive commits. Not thread-safe."""

    def __init__(self, max_entries: int = MAX_RING_EVENTS) -> None:
        """Keep at max_entries ``max_entries`` commits, ``max_entries`` events and `MAX_RING_BYTES`."""
        self._max_entries = max_entries
        self._commits: deque[ChangeFeedCommit] = deque()
        self._events = self._bytes = 0

    def append(self, commit: ChangeFeedCommit) -> None:
        """Add the next commit; clear the buffer first if its sequence is not consecutive."""
        if self._commits and commit.sequence != self._commits[-1].sequence + 1:
            self.clear()
        self._commits.append(commit)
        self._count(commit, 1)
        while (
            len(self._commits) > self._max_entries or self._events > self._max_entries or self._bytes > MAX_RING_BYTES
        ):
            self._count(self._commits.popleft(), -1)

    def commits_since(self, position: FeedPosition, max_entries: int) -> list[ChangeFeedCommit] | None:
        """Return up to ``max_entries`` commits from a position on; None if the buffer does not cover the position."""
        held = len(self._commits)
        if not held or not self._commits[0].sequence <= position.sequence <= self._commits[-1].sequence:
            return None
        start = position.sequence - self._commits[0].sequence
        return [self._commits[at] for at in range(start, min(held, start + max_entries))]

    def clear(self) -> None:
        """Drop all commits."""
        self._commits.clear()
        self._events = self._bytes = 0

    def _count(self, commit: ChangeFeedCommit, sign: int) -> None:
        self._events += sign * len(commit.events)
        self._bytes += sign * commit.bytes


class ChangeFeed:
    """Events of one store. Thread-safe."""

    def __init__(
        self, layout: StoreLayout, kept: int = MAX_RING_EVENTS, registry: ChangeFeedRegistry | None = None
    ) -> None:
        """Keep the newest ``kept`` events in memory while the feed has listeners; older ones come from the files.

        registry: has the listeners of all stores.
        """
        self.store = layout.name
        self.layout = layout
        self.closed = False
        self.dropped = False
        self.recorded = 0
        self._lock = threading.RLock()
        self._latest: int | None = None
        self._incarnations: tuple[StoreIncarnation, ...] | None = None
        self._wakes: dict[int, WakeCallback] = {}
        self._ring = CommitRingBuffer(kept)
        self._markers: deque[tuple[int, StoreEvent]] = deque(maxlen=_MAX_MARKERS)
        self._registry = registry
        self._numbers = count(1) if registry is None else registry.numbers

    @property
    def latest(self) -> int:
        """The newest sequence. Raises NoStore if the store does not exist."""
        with self._lock:
            if self._latest is None:
                # The store is closed. Opening it calls `opened`, which waits for this lock before any write.
                with _missing_store_as_no_store(self.store):
                    self._latest = read_closed_store_state(self.layout).sequence
            return self._latest

    @property
    def known_latest(self) -> int | None:
        """The newest sequence, or None if it has to be read from the files."""
        return self._latest

    @property
    def incarnations(self) -> tuple[StoreIncarnation, ...]:
        """Incarnations of the store after the first."""
        if self._incarnations is None:
            description = self.layout.description()
            if description is None:
                return ()
            self._incarnations = description.incarnations
        return self._incarnations

    @property
    def incarnation(self) -> str:
        """Tag of the store's present incarnation; empty for the first."""
        incarnations = self.incarnations
        return incarnations[-1].tag if incarnations else ""

    @property
    def oldest(self) -> int:
        """The first sequence that the journal still holds. Raises NoStore if the store does not exist."""
        with _missing_store_as_no_store(self.store):
            return find_oldest_journal_sequence(self.layout.journal)

    def publish_marker(self, kind: EventKind, fields: Mapping[str, Any]) -> None:
        """Send current listeners an event that is not in the journal, such as ``index_ready``. Thread-safe."""
        with self._lock:
            if not self._wakes and (self._registry is None or not self._registry.is_followed):
                return
            event = StoreEvent(kind, self.store, self.latest, -1, time.time_ns() // 1000, dict(fields))
            self._markers.append((next(self._numbers), event))
        self.wake()

    def listen(self, wake: WakeCallback) -> Callable[[], None]:
        """Register ``wake`` to be called on news, from any thread; return the function that unregisters it.

        ``wake`` must neither block nor raise.
        """
        with self._lock:
            number = next(self._numbers)
            self._wakes[number] = wake
        return lambda: self._unlisten(number)

    def recent(self, position: FeedPosition, max_entries: int = MAX_FEED_PAGE_COMMITS) -> list[ChangeFeedCommit] | None:
        """Return commits from memory: [] if none is newer, None if they must be read from the files."""
        with self._lock:
            if position.sequence > self.latest:
                return []
            return self._ring.commits_since(position, max_entries)

    def markers_after(self, after: int) -> list[tuple[int, StoreEvent]]:
        """Return the markers with a number above ``after``."""
        return [each for each in tuple(self._markers) if each[0] > after]

    def number(self) -> int:
        """Return a number above those of all existing markers."""
        with self._lock:
            return next(self._numbers)

    # Called by the store and the pool

    def opened(self, latest: int) -> None:
        """Record that the store is open at a sequence."""
        self.record((), latest)
        self.wake()

    @property
    def is_heard(self) -> bool:
        """True if there are listeners, for whom `record` reads the rows of commits."""
        return bool(self._wakes)

    def record(self, changes: Iterable[ChangeSet], latest: int) -> None:
        """Record commits that are durable and visible. Call `wake` after their callers are answered."""
        commits = [ChangeFeedCommit(self.store, change) for change in changes] if self._wakes else []
        with self._lock:
            self._latest = latest
            for commit in commits:
                self._ring.append(commit)
                self.recorded += len(commit.events)

    def wake(self) -> None:
        """Wake all listeners."""
        with self._lock:
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake()
        if self._registry is not None:
            self._registry.pass_on(self.store)

    def drop_buffered_commits(self) -> None:
        """Drop all commits from memory; listeners that are behind read the journal."""
        with self._lock:
            self._ring.clear()

    def close(self, *, dropped: bool = False) -> None:
        """End all listeners after they read what exists; ``dropped`` if the store was deleted, not just closed."""
        self.dropped = dropped
        self.closed = True
        self.wake()

    def _unlisten(self, number: int) -> None:
        with self._lock:
            self._wakes.pop(number, None)
            if not self._wakes:
                self._ring.clear()
                if self._registry is None or not self._registry.is_followed:
                    self._markers.clear()


class ChangeFeedReader:
    """Cursor of one listener in a feed. Not thread-safe."""

    def __init__(
        self,
        feed: ChangeFeed,
        position: FeedPosition | None,
        wake: WakeCallback,
        limits: ChangeFeedPageLimits = _DEFAULT_PAGE_LIMITS,
        markers_after: int | None = None,
    ) -> None:
        """Begin at a position, or after the newest commit. Blocks briefly. Raises NoStore.

        markers_after: number of the last marker that was read before; by default, all existing ones.
        """
        self._limits = limits
        self.feed = feed
        self._unlisten = feed.listen(wake)
        try:
            self.last_marker = feed.number() if markers_after is None else markers_after
            latest = feed.latest  # read even if a position is given: later reads of it do not block
            self.position = position or FeedPosition.after(latest)
        except BaseException:
            self._unlisten()
            raise
        self._tail = JournalReader(feed.layout.journal)
        self._consumed: int | None = None

    @property
    def unread_event_count(self) -> int:
        """Number of unread events after the reader first caught up; 0 before that."""
        return 0 if self._consumed is None else max(0, self.feed.recorded - self._consumed)

    def take(self, selection: ChangeFeedEventFilter, *, may_block: bool = True) -> list[EncodedStoreEvent] | None:
        """Return the next page of events and move ``position`` behind it.

        A page can be empty while more events are left: ``position`` still advances. Return None if reading would block
        and ``may_block`` is false.

        Raises Gone when the journal no longer holds the position, FileNotFoundError when the store was deleted,
        JournalDamaged.
        """
        recorded = self.feed.recorded
        commits = self.feed.recent(self.position)
        if commits == []:
            self._consumed = recorded
            return self._take_markers(selection)
        if may_block:
            return self._fill_page(commits if commits is not None else self._from_files(), selection)
        quick = next((at for at, each in enumerate(commits or ()) if not each.is_cheap_to_encode), len(commits or ()))
        return self._fill_page((commits or [])[:quick], selection) if quick else None

    def is_caught_up(self) -> bool:
        """Return True if no unread commit exists."""
        return self.position.sequence > self.feed.latest

    def close(self) -> None:
        """Stop listening."""
        self._unlisten()

    def _from_files(self) -> Iterator[ChangeFeedCommit]:
        for change in self._tail.read(self.position.sequence, self.feed.latest):
            yield ChangeFeedCommit(self.feed.store, change)

    def _fill_page(
        self, commits: Iterable[ChangeFeedCommit], selection: ChangeFeedEventFilter
    ) -> list[EncodedStoreEvent]:
        page: list[EncodedStoreEvent] = []
        limits = self._limits
        size = scanned = 0
        for commit in commits:
            for index in range(self.position.index, len(commit.events)):
                if len(page) >= limits.events or size >= limits.bytes:
                    return page
                if selection.takes(commit.events[index]):
                    page.append(commit.encode_entry(index))
                    size += len(page[-1].data)
                self.position = FeedPosition(commit.sequence, index + 1)
            self.position = FeedPosition.after(commit.sequence)
            scanned += len(commit.events) + 1
            if self._consumed is not None:
                self._consumed += len(commit.events)
            if scanned >= limits.scanned:
                break
        return page

    def _take_markers(self, selection: ChangeFeedEventFilter) -> list[EncodedStoreEvent]:
        found = self.feed.markers_after(self.last_marker)
        if found:
            self.last_marker = found[-1][0]
        return [EncodedStoreEvent(event, event.json()) for _, event in found if selection.takes(event)]


T = TypeVar("T")
NamedWakeCallback: TypeAlias = Callable[[str], None]


class ChangeFeedLookup(Protocol):
    """Change feeds by store name, as listeners see them."""

    @property
    def store_list_generation(self) -> int:
        """Number of creations, changes and deletions of stores so far."""
        ...

    def of(self, store: str) -> ChangeFeed:
        """Return the feed of a store, which need not be open."""
        ...

    def listen(self, wake: WakeCallback) -> Callable[[], None]:
        """Call ``wake`` when ``store_list_generation`` advances. Return the function that unregisters it."""
        ...

    def listen_to_commits(self, wake: NamedWakeCallback) -> Callable[[], None]:
        """Call ``wake`` with the name of each store that has news. Return the function that unregisters it."""
        ...

    def next_number(self) -> int:
        """Return a number above those of all existing markers."""
        ...

    def drop_count(self, store: str) -> int:
        """Return how often a store of this name was dropped since the process began."""
        ...

    def known_latest(self, store: str) -> int | None:
        """Return the newest sequence of a store that was opened or listened to, else None. Never blocks."""
        ...

    def listen_by_name(self, wake: NamedWakeCallback) -> Callable[[], None]:
        """Call ``wake`` with the name of each created, changed or dropped store.

        Return the function that unregisters it.
        """
        ...

    def serving_since(self, store: str) -> int | None:
        """Return the sequence since which this process serves a store; None if it does not serve it yet."""
        ...


class ChangeFeedRegistry(ChangeFeedLookup):
    """Registry of feeds, one per store that was opened or listened to."""

    def __init__(self, layout: Callable[[str], StoreLayout]) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._feeds: dict[str, ChangeFeed] = {}
        self._wakes: dict[int, WakeCallback] = {}
        self._named_wakes: dict[int, NamedWakeCallback] = {}
        self._commit_wakes: dict[int, NamedWakeCallback] = {}
        self.numbers = count(1)
        """Numbers of listeners and markers; one series, so that markers of different stores can be compared."""
        self._drops: dict[str, int] = {}
        self._arrivals: dict[str, int] = {}
        self._turn = 0

    @property
    @override
    def store_list_generation(self) -> int:
        return self._turn

    @override
    def of(self, store: str) -> ChangeFeed:
        with self._lock:
            feed = self._feeds.get(store)
            if feed is None:
                feed = self._feeds[store] = ChangeFeed(self._layout(store), registry=self)
            return feed

    @override
    def listen(self, wake: WakeCallback) -> Callable[[], None]:
        return self._listen(self._wakes, wake)

    @override
    def listen_by_name(self, wake: NamedWakeCallback) -> Callable[[], None]:
        return self._listen(self._named_wakes, wake)

    @override
    def listen_to_commits(self, wake: NamedWakeCallback) -> Callable[[], None]:
        return self._listen(self._commit_wakes, wake)

    @override
    def known_latest(self, store: str) -> int | None:
        feed = self._feeds.get(store)
        return None if feed is None else feed.known_latest

    @override
    def next_number(self) -> int:
        return next(self.numbers)

    @override
    def drop_count(self, store: str) -> int:
        return self._drops.get(store, 0)

    @property
    def is_followed(self) -> bool:
        """True if anything listens to all stores."""
        return bool(self._commit_wakes)

    def pass_on(self, store: str) -> None:
        """Wake those that listen to all stores."""
        if self._commit_wakes:
            for wake in [*self._commit_wakes.values()]:
                wake(store)

    def announce_created_store(self, store: str) -> None:
        """Announce a new store."""
        self._announce(store)

    def announce_serving(self, store: str, sequence: int) -> None:
        """Record that a store is open at a sequence; announce it if this process did not serve it before."""
        with self._lock:
            if store in self._arrivals:
                return
            self._arrivals[store] = sequence
        self._announce(store)

    @override
    def serving_since(self, store: str) -> int | None:
        with self._lock:
            return self._arrivals.get(store)

    def announce_changed_settings(self, store: str) -> None:
        """Announce a change of a store's settings; its own feed carries the details."""
        self._announce(store)

    def announce_dropped_store(self, store: str) -> None:
        """End the listeners of a deleted store and announce the deletion."""
        with self._lock:
            self._drops[store] = self._drops.get(store, 0) + 1
        self._end_feed(store, dropped=True)
        self.pass_on(store)
        self._announce(store)

    def announce_moved_store(self, store: str) -> None:
        """End the listeners of a store that moved to another server; they reconnect there."""
        self._end_feed(store)

    def _end_feed(self, store: str, *, dropped: bool = False) -> None:
        with self._lock:
            self._arrivals.pop(store, None)
            feed = self._feeds.pop(store, None)
        if feed is not None:
            feed.close(dropped=dropped)

    def close(self) -> None:
        """End all listeners."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.close()
        self._announce()

    def _listen(self, wakes: dict[int, T], wake: T) -> Callable[[], None]:
        with self._lock:
            number = next(self.numbers)
            wakes[number] = wake

        def unlisten() -> None:
            with self._lock:
                wakes.pop(number, None)

        return unlisten

    def _announce(self, store: str | None = None) -> None:
        with self._lock:
            self._turn += 1
            wakes, named = list(self._wakes.values()), list(self._named_wakes.values())
        for wake in wakes:
            wake()
        if store is not None:
            for wake in named:
                wake(store)
