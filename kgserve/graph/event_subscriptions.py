"""Subscriptions to the events of one store, several, or all, from any position in their past."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from kgserve.errors import Gone, NotFound, TooLarge
from kgserve.graph.event_checkpoints import (
    START_POSITION,
    CaughtUpStreamStores,
    EventCheckpoints,
    read_store_incarnations,
)
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.storage.changefeed import ChangeFeedReader, EncodedStoreEvent
from kgserve.storage.model.change_feed_events import (
    EVERY_OTHER_STORE,
    ChangeFeedEventFilter,
    EventKind,
    FeedPosition,
    StoreEvent,
    format_change_feed_positions,
)
from kgserve.storage.model.store_incarnations import find_last_valid_sequence

MAX_FOLLOWED_STORES = 1_000
"""Stores that a stream follows one by one. A stream of all stores follows more only while they have news."""
MAX_AWAKE_STORES = 256
"""Stores that a stream of more stores keeps following when it has read all of their events."""
MAX_NAMED_POSITIONS = 100
"""Positions in the ids of such a stream; all others are in a checkpoint."""
ArrivalPosition: TypeAlias = Callable[[str, int], FeedPosition | None]
"""Callback that returns where to begin with a store that this node has served since a sequence.

None means that another subscriber knows the position.
"""


class EventDelivery(msgspec.Struct, frozen=True):
    """An event to deliver. ``id`` is the position to resume after; None for events that no journal holds."""

    id: str | None
    kind: str
    data: bytes


class EventPage(msgspec.Struct, frozen=True):
    """The next events; ``idle`` if no more are available now, ``ended`` if none will ever follow."""

    deliveries: list[EventDelivery] = []
    idle: bool = False
    ended: bool = False


class EventSubscription(msgspec.Struct, frozen=True):
    """The stores to follow by name, or None for all current and future ones, and the positions to begin at.

    A store without a position is followed from now on; `EVERY_OTHER_STORE` gives the position of all stores not named.
    With ``prefixed``, ids contain the positions of all stores, the event's own first. ``goes_on``: another node
    continues an earlier subscription; a store without a position has moved to this node meanwhile. ``checkpoint`` names
    the `EventCheckpoints` file that has the positions of stores not named.
    """

    stores: tuple[str, ...] | None
    positions: Mapping[str, FeedPosition] = {}
    selection: ChangeFeedEventFilter = ChangeFeedEventFilter()
    prefixed: bool = True
    goes_on: bool = False
    checkpoint: str = ""

    def position(self, store: str) -> FeedPosition | None:
        """Return the position to begin at in a store."""
        return self.positions.get(store, self.positions.get(EVERY_OTHER_STORE))


class JournalEventReader:
    """Reader of events from the journals, at the subscriber's own pace.

    It holds no store open. Not safe for use from several threads at once.
    """

    def __init__(
        self,
        graphs: CallerStoreHandles,
        wanted: EventSubscription,
        wake: Callable[[], None],
        came: ArrivalPosition | None = None,
    ) -> None:
        """``wake`` is called from any thread when new events may be available; it must neither block nor raise.

        ``came`` returns where to begin with a store of a cluster that moves to this node.
        """
        self._graphs = graphs
        self._pool = graphs.pool
        self._arrival_position = came or (lambda name, _: wanted.positions.get(name))
        self._is_over = False
        self._wanted = wanted
        self._wake = wake
        self._followers: dict[str, _Follower] = {}
        self._fresh: deque[_Follower] = deque()
        self._waiting: list[EventDelivery] = []
        self._turn: int | None = None
        self._unlisten: Callable[[], None] | None = None
        self._dormant: CaughtUpStreamStores | None = None

    def open(self) -> None:
        """Begin to follow the stores. Blocks.

        Raises NotFound, Gone for a position that cannot be resumed from, TooLarge, and Conflict for named stores that
        several nodes of a cluster serve.
        """
        if self._wanted.checkpoint:
            self._wanted = self._with_checkpoint()
        if self._wanted.stores is not None:
            first, *others = self._wanted.stores
            self._graphs.graph(first).handles_including(others)
            for name in self._wanted.stores:
                self._pool.require_files(name)
                if self._find_end_of_incarnation(name) is not None:
                    raise self._build_ended_incarnation_error(name)
            self._follow_all({name: self._wanted.position(name) for name in self._wanted.stores})
            return
        self._unlisten = self._pool.feeds.listen(self._wake)
        self._turn = self._pool.feeds.store_list_generation
        names, recreated = self._separate_recreated_stores(self._local_stores())
        if len(names) > MAX_FOLLOWED_STORES and not self._pool.placement.is_shared:
            self._dormant = CaughtUpStreamStores(self._pool, self._wake)
            self._enroll(names, self._dormant)
            self._dormant.save(self.positions)
        else:
            self._follow_all({name: self._start_position(name) for name in names})
        for name in self._wanted.positions.keys() - {*self._pool.names(), EVERY_OTHER_STORE}:
            self._announce("store_dropped", name, _now())
        for name in recreated:
            self._announce_recreated_store(name)

    @property
    def place(self) -> str:
        """Position from which a subscriber that has read everything may resume; empty if no store is left to follow."""
        if not self._wanted.prefixed:
            return "".join(map(str, self.positions.values()))
        return self._other_positions("")

    @property
    def positions(self) -> dict[str, FeedPosition]:
        """Position read up to, by followed store."""
        return {name: follower.position for name, follower in self._followers.items()}

    @property
    def unread_event_count(self) -> int:
        """Number of events not read yet, of stores that were once caught up with."""
        return sum(follower.reader.unread_event_count for follower in self._followers.values())

    def read_without_waiting(self) -> EventPage | None:
        """Return the same as `read` without blocking; None if it would block."""
        return self._read(may_block=False)

    def read(self) -> EventPage:
        """Return the next events.

        Blocks. Raises Gone if the journal no longer reaches back far enough, JournalDamaged, TooLarge.
        """
        return self._read(may_block=True) or EventPage()

    def close(self) -> None:
        """Stop following."""
        if self._unlisten is not None:
            self._unlisten()
        if self._dormant is not None:
            self._dormant.close()
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _read(self, *, may_block: bool) -> EventPage | None:
        if self._unlisten is not None and self._turn != self._pool.feeds.store_list_generation:
            if not may_block:
                return None
            self._follow_new_stores()
        if self._dormant is not None and not self._tend_dormant(self._dormant, may_block=may_block):
            return None
        while self._fresh and not self._waiting:
            follower = self._fresh.popleft()
            follower.fresh = False
            if self._followers.get(follower.name) is not follower:
                continue  # the follower has already ended
            more = self._read_follower(follower, may_block=may_block)
            if more is None:
                follower.enqueue()
                return None
            if more:
                follower.enqueue()
                break
        deliveries, self._waiting = self._waiting, []
        has_news = bool(self._fresh) or (self._dormant is not None and self._dormant.has_news)
        idle = not has_news and self._turn in (None, self._pool.feeds.store_list_generation)
        is_over = self._is_over or (self._unlisten is None and not self._followers)
        return EventPage(deliveries, idle, ended=idle and is_over)

    def _read_follower(self, follower: _Follower, *, may_block: bool) -> bool | None:
        """Queue a page of one store's events; return whether it has more, or None if that would block."""
        reader = follower.reader
        closed = reader.feed.closed
        if closed and self._dormant is not None and not may_block:
            return None  # the end of a store is saved in a checkpoint
        try:
            entries = reader.take(self._wanted.selection, may_block=may_block)
        except FileNotFoundError:
            self._end(follower)
            return False
        if entries is None:
            return None
        if self._dormant is not None:
            self._dormant.moved.add(follower.name)
        self._deliver(follower.name, entries)
        if entries or not reader.is_caught_up():
            return True
        if closed:
            self._end(follower)
        elif self._dormant is not None and len(self._followers) > MAX_AWAKE_STORES:
            self._retire(follower, self._dormant)
        return False

    def _with_checkpoint(self) -> EventSubscription:
        """Return the subscription with the positions of its checkpoint. Raises Gone."""
        positions = EventCheckpoints(self._pool.data_dir).load(self._wanted.checkpoint, "last_event_id")
        visible = self._graphs.caller.can_access
        saved = {name: at for name, at in positions.items() if visible(name)}
        return msgspec.structs.replace(self._wanted, positions={**saved, **self._wanted.positions})

    def _find_end_of_incarnation(self, name: str) -> int | None:
        """Return the last sequence shared with the incarnation of the requested position, if that is after it."""
        position = self._wanted.positions.get(name)
        if position is None:
            return None
        end = find_last_valid_sequence(read_store_incarnations(self._pool, name), position.incarnation)
        return end if end is not None and position.last_seen_sequence > end else None

    def _build_ended_incarnation_error(self, name: str) -> Gone:
        feed = self._pool.feeds.of(name)
        return Gone(
            f"store {name!r} was created again or restored after this event; read it again and continue with "
            f"?since={feed.latest}, or with ?since=0 from its beginning",
            feed.oldest,
        )

    def _separate_recreated_stores(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Return the stores to follow from their positions, and those that were created again. Raises Gone."""
        ends = {name: end for name in names if (end := self._find_end_of_incarnation(name)) is not None}
        for name, end in ends.items():
            if end:
                raise self._build_ended_incarnation_error(name)
        positions = {name: at for name, at in self._wanted.positions.items() if name not in ends}
        self._wanted = msgspec.structs.replace(self._wanted, positions=positions)
        return [name for name in names if name not in ends], [*ends]

    def _announce_recreated_store(self, name: str, marker: int | None = None) -> None:
        """Report the drop of a store and follow the one that was created since from its beginning."""
        if self._dormant is not None:
            self._dormant.save(self.positions)
        self._announce("store_dropped", name, _now())
        with suppress(NotFound, FileNotFoundError):  # dropped, and not created again
            self._follow(name, START_POSITION, marker)
            self._announce_created(name)

    def _enroll(self, names: Iterable[str], dormant: CaughtUpStreamStores) -> None:
        """Add stores to the dormant ones; those with unread events are followed when it is their turn. Raises Gone."""
        for name in names:
            position = self._start_position(name)
            with suppress(NotFound, FileNotFoundError):  # dropped meanwhile
                latest = dormant.latest(name)
                if position is not None and position > latest:
                    self._follow_all({name: position})  # raises Gone
                dormant.add(name, position or latest)
                is_new = position == START_POSITION and name not in self._wanted.positions
                if is_new:
                    dormant.unannounced.add(name)
                if is_new or position not in (None, latest):
                    dormant.rouse(name)

    def _tend_dormant(self, dormant: CaughtUpStreamStores, *, may_block: bool) -> bool:
        """Follow the next store that has news, and save the positions if too many differ. False if that would block."""
        is_due = len(dormant.moved) > MAX_NAMED_POSITIONS
        if not may_block:
            return not is_due and (bool(self._fresh) or not dormant.has_news)
        if is_due:
            dormant.save(self.positions)
        while not self._fresh and (name := dormant.take_roused()) is not None:
            was_dropped, is_new = dormant.was_dropped(name), name in dormant.unannounced
            position, marker = dormant.take(name)
            if was_dropped:
                self._announce_recreated_store(name, marker)
                continue
            with suppress(NotFound, FileNotFoundError):  # dropped, and not created again
                self._follow(name, position, marker)
                if is_new:
                    self._announce_created(name)
        return True

    def _retire(self, follower: _Follower, dormant: CaughtUpStreamStores) -> None:
        """Stop following a store whose events were all read."""
        reader = follower.reader
        del self._followers[follower.name]
        dormant.add(follower.name, follower.position, reader.last_marker)
        reader.close()

    def _follow_all(self, positions: Mapping[str, FeedPosition | None]) -> None:
        if self._dormant is None and len(self._followers) + len(positions) > MAX_FOLLOWED_STORES:
            if self._wanted.stores is not None or self._pool.placement.is_shared:
                raise TooLarge(f"one stream follows at most {MAX_FOLLOWED_STORES:,} stores; select stores with ?store=")
            self._dormant = CaughtUpStreamStores(self._pool, self._wake)
            self._dormant.save(self.positions)
        for name, position in positions.items():
            self._follow(name, position)
        if self._wanted.stores is None:
            made = [
                name for name, at in positions.items() if at == START_POSITION and name not in self._wanted.positions
            ]
            for name in made:
                self._announce_created(name)

    def _announce_created(self, name: str) -> None:
        layout = self._pool.layout(name)
        known = layout.description()
        settings = {} if known is None else msgspec.to_builtins(known.settings)
        self._announce("store_created", name, layout.created_at(), settings)

    def _follow(self, name: str, position: FeedPosition | None, marker: int | None = None) -> None:
        self._pool.require_files(name)
        follower = _Follower(name, self._fresh, self._wake)
        feed = self._pool.feeds.of(name)
        follower.incarnation = feed.incarnation
        position = position and position.in_incarnation("")
        follower.reader = ChangeFeedReader(feed, position, follower.enqueue_from_thread, markers_after=marker)
        if self._dormant is not None:
            self._dormant.moved.add(name)
        self._followers[name] = follower
        try:
            _check_reachable(follower.reader)
        except Gone:
            # No node of the cluster served this store before: it is not new, and was not followed.
            if self._pool.feeds.serving_since(name) is None or position != self._wanted.positions.get(
                EVERY_OTHER_STORE
            ):
                raise
            follower.reader.position = FeedPosition.after(follower.reader.feed.latest)
        follower.enqueue()

    def _follow_new_stores(self) -> None:
        """Follow stores created since the last call; dropped ones end on their own."""
        self._turn = self._pool.feeds.store_list_generation
        names = self._local_stores()
        if self._dormant is not None:
            for name in self._dormant.names() - {*names}:
                self._dormant.take(name)
                self._dormant.save(self.positions)
                self._announce("store_dropped", name, _now())
        for name in names:
            if name in self._followers or (self._dormant is not None and name in self._dormant.names()):
                continue
            with suppress(NotFound, FileNotFoundError):  # dropped again
                came = self._pool.feeds.serving_since(name) or 0
                if (position := self._arrival_position(name, came) if came else START_POSITION) is None:
                    # The subscriber knows the position and reconnects with it.
                    self._is_over = True
                else:
                    self._follow_all({name: position})

    def _local_stores(self) -> list[str]:
        """Return the stores to follow on this node, whose files are up to date."""
        names = self._pool.local_store_names()
        if not self._pool.placement.is_shared:
            return names
        return [name for name in names if self._pool.feeds.serving_since(name) is not None]

    def _start_position(self, name: str) -> FeedPosition | None:
        position, came = self._wanted.position(name), self._pool.feeds.serving_since(name)
        return FeedPosition.after(came or 0) if position is None and self._wanted.goes_on else position

    def _end(self, follower: _Follower) -> None:
        follower.reader.close()
        self._followers.pop(follower.name, None)
        if self._dormant is not None:
            self._dormant.save(self.positions)
        if follower.reader.feed.dropped or self._is_dropped(follower.name):
            self._announce("store_dropped", follower.name, _now())
            if self._unlisten is not None:
                self._turn = -1  # a store of the same name may exist by now

    def _is_dropped(self, name: str) -> bool:
        return not self._pool.layout(name).exists and self._pool.placement.find_remote_store(name) is None

    def _deliver(self, name: str, entries: Sequence[EncodedStoreEvent]) -> None:
        if not entries:
            return
        before, behind = (f"{name}:", self._other_positions(name)) if self._wanted.prefixed else ("", "")
        incarnation = self._followers[name].incarnation
        after = (f"~{incarnation}" if incarnation else "") + (f",{behind}" if behind else "")
        for entry in entries:
            event = entry.event
            place = f"{before}{event.sequence}-{event.index}{after}" if event.index >= 0 else None
            self._waiting.append(EventDelivery(place, event.kind, entry.data))

    def _announce(self, kind: EventKind, name: str, at: int, settings: dict[str, Any] | None = None) -> None:
        if self._wanted.selection.takes(event := StoreEvent(kind, name, 0, 0, at, settings or {})):
            place = f"{name}:0-0,{self._other_positions(name)}" if kind == "store_created" else self.place
            self._waiting.append(EventDelivery(place or None, kind, event.json()))

    def _other_positions(self, name: str) -> str:
        """Return the positions of all stores but one, followed by that of future stores."""
        if self._dormant is not None:
            return self._dormant.format_positions(self.positions, name)
        places = {each: follower.position for each, follower in self._followers.items() if each != name}
        return format_change_feed_positions(
            places if self._wanted.stores is not None else {**places, EVERY_OTHER_STORE: START_POSITION}
        )


class _Follower:
    """A followed store, at most once in the queue of stores that may have events."""

    reader: ChangeFeedReader
    incarnation = ""

    def __init__(self, name: str, queue: deque[_Follower], wake: Callable[[], None]) -> None:
        self.name = name
        self.fresh = False
        self._queue = queue
        self._wake = wake

    @property
    def position(self) -> FeedPosition:
        """Position read up to, in the store's incarnation."""
        return self.reader.position.in_incarnation(self.incarnation)

    def enqueue(self) -> None:
        """Queue the store, because it may have events."""
        if not self.fresh:
            self.fresh = True
            self._queue.append(self)

    def enqueue_from_thread(self) -> None:
        """Queue the store from any thread."""
        self.enqueue()
        self._wake()


def _check_reachable(reader: ChangeFeedReader) -> None:
    """Raise Gone if a position lies before the journal's beginning or after its end."""
    position, feed = reader.position, reader.feed
    latest, oldest = feed.latest, feed.oldest
    if position > FeedPosition.after(latest):
        raise build_unreached_sequence_error(feed.store, latest, oldest)
    if position.sequence < oldest and position.sequence <= latest:
        raise Gone(f"the oldest sequence that the journal of store {feed.store!r} still holds is {oldest}", oldest)


def build_unreached_sequence_error(store: str, latest: int, oldest: int) -> Gone:
    """Return the error for a position after the end of a store."""
    return Gone(
        f"store {store!r} ends at sequence {latest}, its oldest is {oldest}; "
        "if it was created again or restored since, read it again",
        oldest,
    )


def _now() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000
