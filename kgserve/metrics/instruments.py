"""Counters and histograms as plain objects: an event costs about half a microsecond, the rest is left to a scrape."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

Labels = tuple[str, ...]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of durations: from a read out of memory to a large import."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Upper bounds of group sizes, which the write queue bounds."""


class Tally:
    """Counts by labels. Whoever counts says only what there is a bounded number of."""

    def __init__(self) -> None:
        self._counts: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, *labels: str, count: float = 1) -> None:
        """Count something that has happened."""
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0) + count

    def counts(self) -> dict[Labels, float]:
        """All of them now."""
        with self._lock:
            return dict(self._counts)

    def total(self) -> float:
        """Their sum."""
        return sum(self.counts().values())


class Measured(msgspec.Struct, frozen=True):
    """A histogram at one moment: ``counts`` by bucket, one more than there are bounds, and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Histogram:
    """How often values fell between bounds."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Take a value in."""
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def measured(self) -> Measured:
        """How it stands."""
        with self._lock:
            return Measured(self._bounds, tuple(self._counts), self._sum)


class Histograms:
    """Histograms by labels."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._histograms: dict[Labels, Histogram] = {}

    def observe(self, *labels: str, value: float) -> None:
        """Take a value in."""
        found = self._histograms.get(labels)
        if found is None:
            found = self._histograms.setdefault(labels, Histogram(self._bounds))
        found.observe(value)

    def measured(self) -> dict[Labels, Measured]:
        """How they stand."""
        return {labels: histogram.measured() for labels, histogram in list(self._histograms.items())}
