"""Clocks that stamp commits and decide ages. They log clock changes and stamps that lie in the future."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from kgserve.errors import Conflict
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.journal.journal import list_journal_segments
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS, MIN_COMMIT_TIME_MICROSECONDS

log = structlog.get_logger()

_MICROSECONDS_PER_SECOND = 1_000_000
_HOUR_MICROSECONDS = 3_600 * _MICROSECONDS_PER_SECOND
MAX_PLAUSIBLE_IDLE_MICROSECONDS = 7 * 24 * _HOUR_MICROSECONDS
"""Longest idle time that is believed at once. A longer one may mean that the clock is ahead."""
CLOCK_TRUST_MICROSECONDS = 24 * _HOUR_MICROSECONDS
"""Uptime after which the process believes a clock that reports a longer idle time."""


REPAIR_TIMES_ADVICE = "stop the server and run `kgserve doctor --repair-times`"
CLUSTER_REPAIR_TIMES_ADVICE = (
    "back up the store, restore it into a separate data folder, run `kgserve doctor --repair-times` there, and import "
    "it into the cluster again: see Times of the future in docs/cluster-operations.md"
)


class CommitClock:
    """Clock of one store's commits; compares the time of day with the newest stamp and with the time since start-up.

    Used by the writing thread; `future_stamp` may be read by any thread.
    """

    def __init__(
        self, store: str, newest: int, read: Callable[[], int] | None = None, *, is_shared: bool = False
    ) -> None:
        """Start from ``newest``: time of the last commit or of the newest file, whichever is later, in microseconds.

        is_shared: the store belongs to a cluster, where `kgserve doctor` cannot repair it.
        """
        self._store = store
        self._advice = CLUSTER_REPAIR_TIMES_ADVICE if is_shared else REPAIR_TIMES_ADVICE
        self._read = read or wall_time
        self._newest = newest
        self.idle = max(self._read() - newest, 0) if newest else 0
        """Microseconds between the last write and the opening of the store, according to the clock."""
        self._offset = self._read() - _elapsed()
        if self.future_stamp is not None:
            self._warn("stamps_of_the_future", "the clock is now behind")

    @property
    def future_stamp(self) -> int | None:
        """Newest stamp of the store in microseconds if it lies in the future, otherwise None."""
        return self._newest if self._newest - self._read() > MAX_CLOCK_DRIFT_MICROSECONDS else None

    def now(self) -> int:
        """Return the time of day in microseconds; log a warning if the clock was set since the last call."""
        now = self._read()
        offset = now - _elapsed()
        jump, self._offset = offset - self._offset, offset
        if abs(jump) > MAX_CLOCK_DRIFT_MICROSECONDS:
            log.warning(
                "clock_jumped",
                store=self._store,
                seconds=round(jump / _MICROSECONDS_PER_SECOND),
                now=format_rfc3339_timestamp(now),
            )
            if self.future_stamp is not None:
                self._warn("stamps_of_the_future", "the clock was set back")
        return now

    def record_stamp(self, newest: int) -> None:
        """Record the time of a commit, in microseconds."""
        self._newest = max(self._newest, newest)

    def mark_repaired(self) -> None:
        """Record that no row has a future stamp anymore."""
        self._newest = min(self._newest, self._read())

    def _warn(self, event: str, reason: str) -> None:
        log.warning(
            event,
            store=self._store,
            newest=format_rfc3339_timestamp(self._newest),
            now=format_rfc3339_timestamp(self._read()),
            reason=reason,
            advice=f"commits are stamped with the clock's time; check the clock, then {self._advice}",
        )


class ForwardJumpGuardedClock:
    """Clock that decides the age of data: the time of day, but never ahead of the time since the process began.

    A clock that is set forward makes all data look old, and deleted data cannot be restored.
    """

    def __init__(self, read: Callable[[], int] | None = None, elapsed: Callable[[], int] | None = None) -> None:
        self._read = read or wall_time
        self._elapsed = elapsed or _elapsed
        self._began = self._elapsed()
        self._offset = self._read() - self._began

    def now(self) -> int:
        """Return the time of day in microseconds, minus any forward jump since the process began.

        A process that began with an impossible clock uses the current clock unchanged.
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
                "started, so ages cannot be computed. Correct the clock, or restart the server if the clock is right"
            )
        return self.now()

    def is_trusted(self, idle: int) -> bool:
        """Return True if the time of day can be trusted for a store that was idle for ``idle`` microseconds."""
        return idle <= MAX_PLAUSIBLE_IDLE_MICROSECONDS or self._elapsed() - self._began >= CLOCK_TRUST_MICROSECONDS


def wall_time() -> int:
    """Return the time of day in microseconds since 1970."""
    return time.time_ns() // 1000


def read_last_journal_write_time(journal: Path) -> int:
    """Return when a journal's last segment was last written to, in microseconds; 0 for an empty journal."""
    segments = list_journal_segments(journal)
    return segments[-1].path.stat().st_mtime_ns // 1000 if segments else 0


def _elapsed() -> int:
    """Return microseconds of a clock that cannot be set and that continues while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


RETENTION_CLOCK = ForwardJumpGuardedClock()
"""Retention clock of this process."""
