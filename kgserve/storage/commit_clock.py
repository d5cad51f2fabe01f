"""The clock that stamps a store's commits. It logs when the time of day was set, and stamps of the future."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kgserve.errors import Conflict
from kgserve.platform.times import format_time
from kgserve.storage.journal.journal import list_segments
from kgserve.storage.plan import MAX_CLOCK_DRIFT_MICROSECONDS, MIN_COMMIT_TIME_MICROSECONDS

log = structlog.get_logger()

_MICROSECONDS_PER_SECOND = 1_000_000
_HOUR_MICROSECONDS = 3_600 * _MICROSECONDS_PER_SECOND
MAX_PLAUSIBLE_IDLE_MICROSECONDS = 7 * 24 * _HOUR_MICROSECONDS
"""A store that seems to have been idle for longer may have been opened under a clock that is ahead, in microseconds."""
CLOCK_TRUST_MICROSECONDS = 24 * _HOUR_MICROSECONDS
"""How long a process has to run before such a clock is believed, in microseconds."""


REPAIR_TIMES_ADVICE = "stop the server and run `kgserve doctor --repair-times`"
CLUSTER_REPAIR_TIMES_ADVICE = (
    "back the store up, restore it into a data folder of its own, run `kgserve doctor --repair-times` there, and bring "
    "it into the cluster again: see Times of the future in docs/cluster.md"
)


class CommitClock:
    """The time of day for one store's commits, compared with its newest stamp and with the time since start-up.

    For the writing thread; `future_stamp` may be read by any.
    """

    def __init__(
        self, store: str, newest: int, read: Callable[[], int] | None = None, *, is_shared: bool = False
    ) -> None:
        """``newest`` is the time of the last commit, or of the newest file if that is later, in microseconds.

        is_shared: whether the store is one of a cluster, which `doctor` does not repair.
        """
        self._store = store
        self._advice = CLUSTER_REPAIR_TIMES_ADVICE if is_shared else REPAIR_TIMES_ADVICE
        self._read = read or wall_time
        self._newest = newest
        self.idle = max(self._read() - newest, 0) if newest else 0
        """How long nothing was written before the store was opened, by the clock, in microseconds."""
        self._offset = self._read() - _elapsed()
        if self.future_stamp is not None:
            self._warn("stamps_of_the_future", "the clock is now behind")

    @property
    def future_stamp(self) -> int | None:
        """The newest stamp of the store if it lies in the future, in microseconds."""
        return self._newest if self._newest - self._read() > MAX_CLOCK_DRIFT_MICROSECONDS else None

    def now(self) -> int:
        """Return the time of day in microseconds, and log by how much it was set since the last call, if it was."""
        now = self._read()
        offset = now - _elapsed()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > MAX_CLOCK_DRIFT_MICROSECONDS:
            log.warning(
                "clock_jumped", store=self._store, seconds=round(jump / _MICROSECONDS_PER_SECOND), now=format_time(now)
            )
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
            advice=f"commits are stamped with the clock's time; check the clock, then {self._advice}",
        )


class RetentionClock:
    """The time by which old data is forgotten: the time of day, but never ahead of the time since the process began.

    A clock that is set forward makes everything look old. What was forgotten by it does not come back.
    """

    def __init__(self, read: Callable[[], int] | None = None, elapsed: Callable[[], int] | None = None) -> None:
        self._read = read or wall_time
        self._elapsed = elapsed or _elapsed
        self._began = self._elapsed()
        self._offset = self._read() - self._began

    def now(self) -> int:
        """Return the time of day, in microseconds, without what the clock was set forward since the process began.

        A process that began under an impossible clock goes by the present one.
        """
        if self._began + self._offset < MIN_COMMIT_TIME_MICROSECONDS:
            return self._read()
        return min(self._read(), self._elapsed() + self._offset)

    def require(self) -> int:
        """Return `now`. Raises Conflict if the clock was set forward since the process began."""
        ahead = self._read() - self.now()
        if ahead > MAX_CLOCK_DRIFT_MICROSECONDS:
            raise Conflict(
                f"the clock was set forward by {ahead // _MICROSECONDS_PER_SECOND:,} seconds since this server "
                "started, so ages are not known: set the clock right, or restart the server if it is right now"
            )
        return self.now()

    def is_believed(self, idle: int) -> bool:
        """Whether the time of day says how old a store's data is, which was opened after so many idle microseconds."""
        return idle <= MAX_PLAUSIBLE_IDLE_MICROSECONDS or self._elapsed() - self._began >= CLOCK_TRUST_MICROSECONDS


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


RETENTION_CLOCK = RetentionClock()
"""This process's."""
