"""The clock that stamps a store's commits. It logs when the time of day was set, and stamps of the future."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kgserve.journal.journal import list_segments
from kgserve.model.plan import MAX_DRIFT
from kgserve.model.times import format_time

log = structlog.get_logger()

_MICROSECONDS = 1_000_000


class CommitClock:
    """The time of day for one store's commits, compared with its newest stamp and with the time since start-up.

    For the writing thread; `future_stamp` may be read by any.
    """

    def __init__(self, store: str, newest: int, read: Callable[[], int] | None = None) -> None:
        """``newest`` is the time of the last commit, or of the newest file if that is later, in microseconds."""
        self._store = store
        self._read = read or wall_time
        self._newest = newest
        self._offset = self._read() - _elapsed()
        if self.future_stamp is not None:
            self._warn("stamps_of_the_future", "the clock is now behind")

    @property
    def future_stamp(self) -> int | None:
        """The newest stamp of the store if it lies in the future, in microseconds."""
        return self._newest if self._newest - self._read() > MAX_DRIFT else None

    def now(self) -> int:
        """Return the time of day in microseconds, and log by how much it was set since the last call, if it was."""
        now = self._read()
        offset = now - _elapsed()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > MAX_DRIFT:
            log.warning("clock_jumped", store=self._store, seconds=round(jump / _MICROSECONDS), now=format_time(now))
            if self.future_stamp is not None:
                self._warn("stamps_of_the_future", "the clock was set back")
        return now

    def stamped(self, newest: int) -> None:
        """Take in the time of a commit, in microseconds."""
        self._newest = max(self._newest, newest)

    def repaired(self) -> None:
        """Take in that no row has a stamp of the future any more."""
        self._newest = min(self._newest, self._read())

    def _warn(self, event: str, reason: str) -> None:
        log.warning(
            event,
            store=self._store,
            newest=format_time(self._newest),
            now=format_time(self._read()),
            reason=reason,
            advice="commits are stamped with the clock's time; check the clock, then stop the server and run "
            "`kgserve doctor --repair-times`",
        )


def wall_time() -> int:
    """Return the time of day in microseconds since 1970."""
    return time.time_ns() // 1000


def newest_file_time(journal: Path) -> int:
    """Return when a journal's last segment was last written to, in microseconds; 0 for an empty journal."""
    segments = list_segments(journal)
    return segments[-1].path.stat().st_mtime_ns // 1000 if segments else 0


def _elapsed() -> int:
    """Microseconds on a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
