"""Listening to one store, several, or all of them, from any place in their past on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kgserve.errors import Gone, NotFound, TooLarge
from kgserve.model.events import REST, Event, EventKind, Position, Selection, format_positions
from kgserve.ops.graph import Graphs
from kgserve.store.feed import Entry, Reader

MAX_STORES = 1_000
_START = Position.after(0)


class Delivery(msgspec.Struct, frozen=True):
    """An event on its way out. ``id`` says where to go on after it; what no journal holds has none."""

    id: str | None
    kind: str
    data: bytes


class Page(msgspec.Struct, frozen=True):
    """The next events; ``idle`` when there are no more now, ``ended`` when there will never be any."""

    deliveries: list[Delivery] = []
    idle: bool = False
    ended: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """What to listen to: stores by name, None for all that there are and will be, and from where on.

    A store without a position is listened to from now on; `REST` gives the position of all that are not named.
    With ``prefixed``, ids name the positions of all stores, the event's own first.
    """

    stores: tuple[str, ...] | None
    positions: Mapping[str, Position] = {}
    selection: Selection = Selection()
    prefixed: bool = True

    def position(self, store: str) -> Position | None:
        """Where to begin with a store."""
        return self.positions.get(store, self.positions.get(REST))


class EventReader:
    """Takes events out of the journals at the listener's own speed; holds no store open. For one thread at a time."""

    def __init__(self, graphs: Graphs, wanted: Wanted, wake: Callable[[], None]) -> None:
        """``wake`` is called by any thread when there is news; it must neither block nor raise."""
        self._pool = graphs.pool
        self._wanted = wanted
        self._wake = wake
        self._followers: dict[str, _Follower] = {}
        self._fresh: deque[_Follower] = deque()
        self._waiting: list[Delivery] = []
        self._turn: int | None = None
        self._unlisten: Callable[[], None] | None = None

    def open(self) -> None:
        """Begin to listen. Blocks. Raises NotFound, Gone when a position cannot be gone on from, TooLarge."""
        if self._wanted.stores is not None:
            self._begin({name: self._wanted.position(name) for name in self._wanted.stores})
            return
        self._unlisten = self._pool.feeds.listen(self._wake)
        self._turn = self._pool.feeds.turn
        names = self._pool.here()
        self._begin({name: self._wanted.position(name) for name in names})
        for name in self._wanted.positions.keys() - set(names) - {REST}:
            self._announce("store_dropped", name, _now())

    @property
    def place(self) -> str:
        """Where a listener who has everything that was read may go on; empty when there is nothing left to follow."""
        if not self._wanted.prefixed:
            return "".join(str(follower.reader.position) for follower in self._followers.values())
        return self._place_but("")

    @property
    def behind(self) -> int:
        """Events that wait, of the stores that were caught up with once."""
        return sum(follower.reader.behind for follower in self._followers.values())

    def read_now(self) -> Page | None:
        """As `read`, where nothing may block; None when it would have to."""
        return self._read(may_block=False)

    def read(self) -> Page:
        """The next events. Blocks. Raises Gone when the journal begins later by now, JournalDamaged, TooLarge."""
        return self._read(may_block=True) or Page()

    def close(self) -> None:
        """Listen no longer."""
        if self._unlisten is not None:
            self._unlisten()
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()

    def _read(self, *, may_block: bool) -> Page | None:
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
        return Page(deliveries, idle, ended=idle and self._unlisten is None and not self._followers)

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
        if len(self._followers) + len(positions) > MAX_STORES:
            raise TooLarge(f"one stream follows at most {MAX_STORES:,} stores; name those that you want with ?store=")
        for name, position in positions.items():
            self._follow(name, position)
        if self._wanted.stores is None:
            made = [name for name, at in positions.items() if at == _START and name not in self._wanted.positions]
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
        _check_reachable(follower.reader)
        follower.news()

    def _look_round(self) -> None:
        """Follow the stores that were made since the last look; those that were dropped end by themselves."""
        self._turn = self._pool.feeds.turn
        for name in self._pool.here():
            if name not in self._followers:
                with suppress(NotFound, FileNotFoundError):  # dropped again
                    self._begin({name: _START})

    def _end(self, follower: _Follower) -> None:
        follower.reader.close()
        self._followers.pop(follower.name, None)
        if follower.reader.feed.dropped or not self._pool.layout(follower.name).exists:
            self._announce("store_dropped", follower.name, _now())
            if self._unlisten is not None:
                self._turn = -1  # a store of the same name may be there by now

    def _deliver(self, name: str, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        before, behind = (f"{name}:", self._place_but(name)) if self._wanted.prefixed else ("", "")
        after = f",{behind}" if behind else ""
        for entry in entries:
            event = entry.event
            place = f"{before}{event.sequence}-{event.index}{after}" if event.index >= 0 else None
            self._waiting.append(Delivery(place, event.kind, entry.data))

    def _announce(self, kind: EventKind, name: str, at: int, said: dict[str, Any] | None = None) -> None:
        if self._wanted.selection.takes(event := Event(kind, name, 0, 0, at, said or {})):
            place = f"{name}:0-0,{self._place_but(name)}" if kind == "store_created" else self.place
            self._waiting.append(Delivery(place or None, kind, event.json()))

    def _place_but(self, name: str) -> str:
        """The positions of all stores but one; followed by that of stores yet to be made."""
        places = {each: follower.reader.position for each, follower in self._followers.items() if each != name}
        return format_positions(places if self._wanted.stores is not None else {**places, REST: _START})


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
