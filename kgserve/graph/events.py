"""Listening to one store, several, or all of them, from any place in their past on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from kgserve.errors import Gone, NotFound, TooLarge
from kgserve.graph.handle import Graphs
from kgserve.storage.changefeed import FeedEntry, Reader
from kgserve.storage.model.events import EVERY_OTHER_STORE, EventKind, Position, Selection, StoreEvent, format_positions

MAX_FOLLOWED_STORES = 1_000
Came: TypeAlias = Callable[[str, int], Position | None]
"""Where to begin with a store that a node serves since a sequence, by name; None when somebody else knows."""
START_POSITION = Position.after(0)
"""Before everything that happens in a store."""


class Delivery(msgspec.Struct, frozen=True):
    """An event on its way out. ``id`` says where to go on after it; what no journal holds has none."""

    id: str | None
    kind: str
    data: bytes


class EventPage(msgspec.Struct, frozen=True):
    """The next events; ``idle`` when there are no more now, ``ended`` when there will never be any."""

    deliveries: list[Delivery] = []
    idle: bool = False
    ended: bool = False


class EventSubscription(msgspec.Struct, frozen=True):
    """What to listen to: stores by name, None for all that there are and will be, and from where on.

    A store without a position is listened to from now on; `EVERY_OTHER_STORE` gives the position of all that are not
    named.
    With ``prefixed``, ids name the positions of all stores, the event's own first. ``goes_on``: another node listens,
    and has done so before; a store without a position is one that came to this node meanwhile.
    """

    stores: tuple[str, ...] | None
    positions: Mapping[str, Position] = {}
    selection: Selection = Selection()
    prefixed: bool = True
    goes_on: bool = False

    def position(self, store: str) -> Position | None:
        """Where to begin with a store."""
        return self.positions.get(store, self.positions.get(EVERY_OTHER_STORE))


class EventReader:
    """Takes events out of the journals at the listener's own speed; holds no store open. For one thread at a time."""

    def __init__(
        self, graphs: Graphs, wanted: EventSubscription, wake: Callable[[], None], came: Came | None = None
    ) -> None:
        """``wake`` is called by any thread when there is news; it must neither block nor raise.

        ``came`` says where to begin with a store of a cluster that comes to this node.
        """
        self._graphs = graphs
        self._pool = graphs.pool
        self._came = came or (lambda name, _: wanted.positions.get(name))
        self._is_over = False
        self._wanted = wanted
        self._wake = wake
        self._followers: dict[str, _Follower] = {}
        self._fresh: deque[_Follower] = deque()
        self._waiting: list[Delivery] = []
        self._turn: int | None = None
        self._unlisten: Callable[[], None] | None = None

    def open(self) -> None:
        """Begin to listen. Blocks. Raises NotFound, Gone when a position cannot be gone on from, TooLarge.

        And Conflict for stores by name that several nodes of a cluster serve.
        """
        if self._wanted.stores is not None:
            first, *others = self._wanted.stores
            self._graphs.graph(first).beside(others)
            self._begin({name: self._wanted.position(name) for name in self._wanted.stores})
            return
        self._unlisten = self._pool.feeds.listen(self._wake)
        self._turn = self._pool.feeds.turn
        self._begin({name: self._start(name) for name in self._here()})
        for name in self._wanted.positions.keys() - {*self._pool.names(), EVERY_OTHER_STORE}:
            self._announce("store_dropped", name, _now())

    @property
    def place(self) -> str:
        """Where a listener who has everything that was read may go on; empty when there is nothing left to follow."""
        if not self._wanted.prefixed:
            return "".join(str(follower.reader.position) for follower in self._followers.values())
        return self._place_but("")

    @property
    def positions(self) -> dict[str, Position]:
        """How far each store was read that is followed."""
        return {name: follower.reader.position for name, follower in self._followers.items()}

    @property
    def behind(self) -> int:
        """Events that wait, of the stores that were caught up with once."""
        return sum(follower.reader.behind for follower in self._followers.values())

    def read_now(self) -> EventPage | None:
        """As `read`, where nothing may block; None when it would have to."""
        return self._read(may_block=False)

    def read(self) -> EventPage:
        """The next events. Blocks. Raises Gone when the journal begins later by now, JournalDamaged, TooLarge."""
        return self._read(may_block=True) or EventPage()

    def close(self) -> None:
        """Listen no longer."""
        if self._unlisten is not None:
            self._unlisten()
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _read(self, *, may_block: bool) -> EventPage | None:
        if self._unlisten is not None and self._turn != self._pool.feeds.turn:
            if not may_block:
                return None
            self._look_round()
        while self._fresh and not self._waiting:
            follower = self._fresh.popleft()
            follower.fresh = False
            if self._followers.get(follower.name) is not follower:
                continue  # it has ended, and was woken once more
            more = self._take_from(follower, may_block=may_block)
            if more is None:
                follower.news()
                return None
            if more:
                follower.news()
                break
        deliveries, self._waiting = self._waiting, []
        idle = not self._fresh and self._turn in (None, self._pool.feeds.turn)
        is_over = self._is_over or (self._unlisten is None and not self._followers)
        return EventPage(deliveries, idle, ended=idle and is_over)

    def _take_from(self, follower: _Follower, *, may_block: bool) -> bool | None:
        """Put a page of one store's events with those that wait; whether it has more, None when it would block."""
        reader = follower.reader
        closed = reader.feed.closed
        try:
            entries = reader.take(self._wanted.selection, may_block=may_block)
        except FileNotFoundError:
            self._end(follower)
            return False
        if entries is None:
            return None
        self._deliver(follower.name, entries)
        if entries or not reader.caught_up():
            return True
        if closed:
            self._end(follower)
        return False

    def _begin(self, positions: Mapping[str, Position | None]) -> None:
        if len(self._followers) + len(positions) > MAX_FOLLOWED_STORES:
            raise TooLarge(
                f"one stream follows at most {MAX_FOLLOWED_STORES:,} stores; name those that you want with ?store="
            )
        for name, position in positions.items():
            self._follow(name, position)
        if self._wanted.stores is None:
            made = [
                name for name, at in positions.items() if at == START_POSITION and name not in self._wanted.positions
            ]
            for name in made:
                layout = self._pool.layout(name)
                known = layout.description()
                settings = {} if known is None else msgspec.to_builtins(known.settings)
                self._announce("store_created", name, layout.created_at(), settings)

    def _follow(self, name: str, position: Position | None) -> None:
        self._pool.require_files(name)
        follower = _Follower(name, self._fresh, self._wake)
        follower.reader = Reader(self._pool.feeds.of(name), position, follower.news_from_outside)
        self._followers[name] = follower
        try:
            _check_reachable(follower.reader)
        except Gone:
            # A store that nobody in the cluster served before: it is not new, and was not listened to.
            if self._pool.feeds.arrival(name) is None or position != self._wanted.positions.get(EVERY_OTHER_STORE):
                raise
            follower.reader.position = Position.after(follower.reader.feed.latest)
        follower.news()

    def _look_round(self) -> None:
        """Follow the stores that were made since the last look; those that were dropped end by themselves."""
        self._turn = self._pool.feeds.turn
        for name in self._here():
            if name in self._followers:
                continue
            with suppress(NotFound, FileNotFoundError):  # dropped again
                came = self._pool.feeds.arrival(name) or 0
                if (position := self._came(name, came) if came else START_POSITION) is None:
                    # Who listens knows where to go on, and comes back with that.
                    self._is_over = True
                else:
                    self._begin({name: position})

    def _here(self) -> list[str]:
        """The stores that there are to follow here, whose files are up to date."""
        names = self._pool.here()
        if not self._pool.placement.is_shared:
            return names
        return [name for name in names if self._pool.feeds.arrival(name) is not None]

    def _start(self, name: str) -> Position | None:
        position, came = self._wanted.position(name), self._pool.feeds.arrival(name)
        return Position.after(came or 0) if position is None and self._wanted.goes_on else position

    def _end(self, follower: _Follower) -> None:
        follower.reader.close()
        self._followers.pop(follower.name, None)
        if follower.reader.feed.dropped or self._is_gone(follower.name):
            self._announce("store_dropped", follower.name, _now())
            if self._unlisten is not None:
                self._turn = -1  # a store of the same name may be there by now

    def _is_gone(self, name: str) -> bool:
        return not self._pool.layout(name).exists and self._pool.placement.away(name) is None

    def _deliver(self, name: str, entries: Sequence[FeedEntry]) -> None:
        if not entries:
            return
        before, behind = (f"{name}:", self._place_but(name)) if self._wanted.prefixed else ("", "")
        after = f",{behind}" if behind else ""
        for entry in entries:
            event = entry.event
            place = f"{before}{event.sequence}-{event.index}{after}" if event.index >= 0 else None
            self._waiting.append(Delivery(place, event.kind, entry.data))

    def _announce(self, kind: EventKind, name: str, at: int, said: dict[str, Any] | None = None) -> None:
        if self._wanted.selection.takes(event := StoreEvent(kind, name, 0, 0, at, said or {})):
            place = f"{name}:0-0,{self._place_but(name)}" if kind == "store_created" else self.place
            self._waiting.append(Delivery(place or None, kind, event.json()))

    def _place_but(self, name: str) -> str:
        """The positions of all stores but one; followed by that of stores yet to be made."""
        places = {each: follower.reader.position for each, follower in self._followers.items() if each != name}
        return format_positions(
            places if self._wanted.stores is not None else {**places, EVERY_OTHER_STORE: START_POSITION}
        )


class _Follower:
    """A store that is followed, in the queue of those that may have news at most once."""

    reader: Reader

    def __init__(self, name: str, queue: deque[_Follower], wake: Callable[[], None]) -> None:
        self.name = name
        self.fresh = False
        self._queue = queue
        self._wake = wake

    def news(self) -> None:
        """It may have events."""
        if not self.fresh:
            self.fresh = True
            self._queue.append(self)

    def news_from_outside(self) -> None:
        """The same, from any thread."""
        self.news()
        self._wake()


def _check_reachable(reader: Reader) -> None:
    """Raises Gone when a position lies before the journal's beginning or behind its end."""
    position, feed = reader.position, reader.feed
    latest, oldest = feed.latest, feed.oldest
    if position > Position.after(latest):
        raise Gone(
            f"store {feed.store!r} has come to sequence {latest} only: it was made anew or restored; "
            f"its oldest sequence is {oldest}",
            oldest,
        )
    if position.sequence < oldest and position.sequence <= latest:
        raise Gone(f"the oldest sequence that the journal of store {feed.store!r} still holds is {oldest}", oldest)


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
