"""The number of reader processes by load, for `--readers auto`, and the most that a server may have."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import structlog

from kgserve.platform.settings import Settings
from kgserve.server.readers.shared_commit_page import MAX_READERS

log = structlog.get_logger()

AUTO_READERS = "auto"
MAX_AUTO_READERS = 4
MIN_BUSY_SHARE = 0.6
"""Share of a core that the server must use to count as busy."""
MIN_BUSY_READS_PER_SECOND = 300
"""Reads that reader processes could answer, which a busy server must get."""
BUSY_SECONDS_BEFORE_START = 3
IDLE_READS_PER_SECOND = 100
"""Reads per second, of all processes, below which reader processes are idle."""
IDLE_SECONDS_BEFORE_END = 30
_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
"""Quota and period of a container, in microseconds of processor time."""


class ReaderCountController:
    """Controller of the number of reader processes.

    A busy server gets one more after each `BUSY_SECONDS_BEFORE_START`. All end after `IDLE_SECONDS_BEFORE_END`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy_seconds = self._idle_seconds = 0
        self._measured_at, self._processor_seconds = time.monotonic(), time.process_time()

    def measure_processor_share(self) -> float:
        """Return the share of a core that this process has used since the last call."""
        now, spent = time.monotonic(), time.process_time()
        share = (spent - self._processor_seconds) / max(now - self._measured_at, 0.001)
        self._measured_at, self._processor_seconds = now, spent
        return share

    def choose_count(self, running: int, processor_share: float, reads: int) -> int:
        """Return how many should run now, given those that do, and the load of the last second."""
        is_busy = processor_share >= MIN_BUSY_SHARE and reads >= MIN_BUSY_READS_PER_SECOND
        self._busy_seconds = self._busy_seconds + 1 if is_busy else max(0, self._busy_seconds - 1)
        self._idle_seconds = self._idle_seconds + 1 if reads < IDLE_READS_PER_SECOND else 0
        if self._idle_seconds >= IDLE_SECONDS_BEFORE_END:
            return 0
        if running < self._most and self._busy_seconds >= BUSY_SECONDS_BEFORE_START:
            self._busy_seconds = 0
            return running + 1
        return running


def count_allowed_readers(settings: Settings) -> int:
    """Return how many reader processes a server may have; 0, with a log line, where they are not supported."""
    if settings.readers == "0":
        return 0
    is_auto = settings.readers == AUTO_READERS
    reason = _describe_conflict(settings)
    most = min(_count_cores() - 1, MAX_AUTO_READERS) if is_auto and reason is None else 0
    if reason is None and is_auto and most < 1:
        reason = "there is one core only"
    if reason is not None:
        (log.debug if is_auto else log.warning)("readers_off", reason=reason)
        return 0
    return most if is_auto else min(int(settings.readers), MAX_READERS)


def _count_cores(quota_file: Path = _QUOTA_FILE) -> int:
    """Return how many cores this process may use: fewer than it sees if a container has a quota."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no control group, or "max"
        quota, period = map(int, quota_file.read_text(encoding="ascii").split())
        cores = min(cores, quota // period)
    return cores


def _describe_conflict(settings: Settings) -> str | None:
    unsupported = {
        "TLS": settings.tls_cert,
        "clusters": settings.cluster,
        "followers": settings.follow,
        "tracing": settings.otel_endpoint,
    }
    for what, setting in unsupported.items():
        if setting:
            return f"reader processes do not support {what}"
    try:
        if sys.platform.startswith("linux"):
            for descriptor in (os.pidfd_open(os.getpid()), os.memfd_create("kgserve-commits")):
                os.close(descriptor)
            return None
    except (OSError, AttributeError):
        pass
    return "reader processes need Linux 5.3 or later"
