"""A moment in the past, as callers name it: a commit or a time."""

from __future__ import annotations

import msgspec

from kgserve.errors import FieldError, Gone, InvalidInput, Unavailable
from kgserve.model.times import parse_time
from kgserve.store.store import Store
from kgserve.views.historian import Historian, HistoryFollower

WAIT_SECONDS = 10.0
MAX_DIGITS = 18


class Past(msgspec.Struct, frozen=True):
    """When a reader wants to look, and who remembers. ``as_of`` is a sequence or an RFC 3339 time."""

    historian: Historian | None
    as_of: str

    def of(self, store: Store) -> tuple[HistoryFollower, int]:
        """The history of a store, and the commit that is meant: the one named, or the last one up to the time.

        A moment that is yet to come is now. Raises InvalidInput, Gone for what is no longer known, Unavailable while
        the history is behind, or when none is kept.
        """
        follower = history_of(self.historian, store)
        present = store.state.sequence
        at = min(self._sequence(follower, present), present)
        oldest = follower.look(lambda history: history.oldest)
        if at < oldest:
            raise Gone(f"as_of: the history of this store begins at sequence {oldest}", oldest)
        return follower, at

    def _sequence(self, follower: HistoryFollower, present: int) -> int:
        if self.as_of.isascii() and self.as_of.isdecimal() and len(self.as_of) <= MAX_DIGITS:
            caught_up(follower, min(int(self.as_of), present))
            return int(self.as_of)
        try:
            time = parse_time(self.as_of)
        except ValueError as error:
            message = f"is neither a sequence nor a time: {error}"
            raise InvalidInput(f"as_of: {message}", (FieldError("as_of", message),)) from None
        caught_up(follower, present)
        return follower.look(lambda history: history.sequence_at(time))


def history_of(historian: Historian | None, store: Store) -> HistoryFollower:
    """The history of an open store. Raises Unavailable when none is kept."""
    if historian is None:
        raise Unavailable("histories are turned off on this server; only the present can be read", retry_after=3600)
    return historian.of(store)


def caught_up(follower: HistoryFollower, sequence: int) -> None:
    """Wait until a history has seen a commit. Raises Unavailable after ten seconds."""
    if not follower.wait(sequence, WAIT_SECONDS):
        seen = max(follower.sequence, 0)
        raise Unavailable(f"the history has not seen sequence {sequence} yet, only {seen}", retry_after=2)
