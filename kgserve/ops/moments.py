"""A moment in the past, as callers name it: a commit or a time."""

from __future__ import annotations

import time

import msgspec

from kgserve.errors import Conflict, FieldError, InvalidInput, Unavailable
from kgserve.history.history import gone
from kgserve.model.times import parse_time
from kgserve.store.store import Store
from kgserve.views.history import Historian, HistoryFollower

WAIT_SECONDS = 10.0
MAX_DIGITS = 18


class Past(msgspec.Struct, frozen=True):
    """When a reader wants to look, and who remembers. ``as_of`` is a sequence or an RFC 3339 time."""

    historian: Historian | None
    as_of: int | str

    def of(self, store: Store) -> tuple[HistoryFollower, int]:
        """The history of a store, and the commit that is meant: the one named, or the last one up to the time.

        A moment that is yet to come is now. Raises InvalidInput, Gone for what is no longer known, Unavailable while
        the history is behind, Conflict when none is kept.
        """
        follower = _history_of(self.historian, store)
        present = store.state.sequence
        at = min(self._sequence(follower, present), present)
        oldest = follower.look(lambda history: history.oldest)
        if at < oldest:
            raise gone(oldest)
        return follower, at

    def moment(self, store: Store) -> int:
        """The time that is meant, in microseconds: that of the commit, if it is named. Raises as `of`."""
        follower, at = self.of(store)
        if self._is_sequence:
            return follower.look(lambda history: history.time_of(at))
        return min(parse_time(self._text), time.time_ns() // 1000)

    @property
    def _is_sequence(self) -> bool:
        return self._text.isascii() and self._text.isdecimal() and len(self._text) <= MAX_DIGITS

    @property
    def _text(self) -> str:
        return str(self.as_of)

    def _sequence(self, follower: HistoryFollower, present: int) -> int:
        if self._is_sequence:
            _catch_up(follower, min(int(self.as_of), present))
            return int(self.as_of)
        try:
            moment = parse_time(self._text)
        except ValueError as error:
            message = f"is neither a sequence nor a time: {error}"
            raise InvalidInput(f"as_of: {message}", (FieldError("as_of", message),)) from None
        _catch_up(follower, present)
        return follower.look(lambda history: history.sequence_at(moment))


def whole_history(historian: Historian | None, store: Store) -> HistoryFollower:
    """The history of an open store, once it has seen the last commit of now.

    Raises Conflict when none is kept, Unavailable when it does not come so far within ten seconds.
    """
    follower = _history_of(historian, store)
    _catch_up(follower, store.state.sequence)
    return follower


def _history_of(historian: Historian | None, store: Store) -> HistoryFollower:
    if historian is None:
        raise Conflict("histories are turned off on this server; only the present can be read")
    return historian.of(store)


def _catch_up(follower: HistoryFollower, sequence: int) -> None:
    if not follower.wait(sequence, WAIT_SECONDS):
        seen = max(follower.sequence, 0)
        raise Unavailable(f"the history has not seen sequence {sequence} yet, only {seen}", retry_after=2)
