"""The newest commits of a store as events, in memory, bounded."""

from __future__ import annotations

from collections import deque

import msgspec

from kgserve.model.change import ChangeSet
from kgserve.model.events import Event, Position, expand

RING_EVENTS = 4_096
RING_BYTES = 4 << 20
_QUICK_EVENTS = 32
_QUICK_BYTES = 64 << 10


class Entry(msgspec.Struct, frozen=True):
    """An event and its data as JSON."""

    event: Event
    data: bytes


class Commit:
    """A change set as events. JSON is made once, for the first listener that wants it."""

    def __init__(self, store: str, change: ChangeSet) -> None:
        self.sequence = change.sequence
        self.events = expand(store, change)
        self.bytes = sum(event.cost for event in self.events)
        self._data: list[bytes | None] = [None] * len(self.events)

    @property
    def quick(self) -> bool:
        """Whether it is encoded, or small enough for that to be done where nothing may block."""
        return (len(self.events) <= _QUICK_EVENTS and self.bytes <= _QUICK_BYTES) or None not in self._data

    def entry(self, index: int) -> Entry:
        """One event with its data."""
        data = self._data[index]
        if data is None:
            data = self._data[index] = self.events[index].json()
        return Entry(self.events[index], data)


class Ring:
    """Consecutive commits, the oldest of which are forgotten. Not for several threads at once."""

    def __init__(self, most: int = RING_EVENTS) -> None:
        """Keep at most so many commits, so many events, and 4 MiB."""
        self._most = most
        self._commits: deque[Commit] = deque()
        self._events = self._bytes = 0

    def append(self, commit: Commit) -> None:
        """Add the next commit; one that does not follow on makes all others be forgotten."""
        if self._commits and commit.sequence != self._commits[-1].sequence + 1:
            self.clear()
        self._commits.append(commit)
        self._count(commit, 1)
        while len(self._commits) > self._most or self._events > self._most or self._bytes > RING_BYTES:
            self._count(self._commits.popleft(), -1)

    def since(self, position: Position, most: int) -> list[Commit] | None:
        """At most so many commits from a position on; None when it does not reach back that far."""
        held = len(self._commits)
        if not held or not self._commits[0].sequence <= position.sequence <= self._commits[-1].sequence:
            return None
        start = position.sequence - self._commits[0].sequence
        return [self._commits[at] for at in range(start, min(held, start + most))]

    def clear(self) -> None:
        """Forget everything."""
        self._commits.clear()
        self._events = self._bytes = 0

    def _count(self, commit: Commit, sign: int) -> None:
        self._events += sign * len(commit.events)
        self._bytes += sign * commit.bytes
