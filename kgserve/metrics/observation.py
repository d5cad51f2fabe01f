"""All that is counted and timed of one application. Its parts are told of events; `ops.metrics` reads them."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from kgserve.metrics.instruments import SIZES, Histogram, Histograms, Tally
from kgserve.metrics.origin import Laps, Origin, current_origin
from kgserve.metrics.slow import SlowLog
from kgserve.metrics.tracing import Attributes, Tracing, tracing_to

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kgserve.settings import Settings

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
UNMATCHED = "unmatched"
"""The route of all paths that are none, so that their number is bounded."""


class Route:
    """The requests of one method of one route. Only the event loop's thread counts, so there is no lock."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.received = 0
        self.sent = 0
        self.seconds = Histogram()


class Requests:
    """Requests that were answered, by route template and method; never by path."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Route] = {}
        self.refused = Tally()

    def done(self, method: str, route: str, status: int, sizes: tuple[int, int], seconds: float | None) -> None:
        """A request was answered; ``sizes`` are the bytes of its body and of the answer's.

        No ``seconds`` for a stream that ends when its listener leaves: that would be no latency.
        """
        place = (route, method if method in _METHODS else "other")
        found = self.routes.get(place)
        if found is None:
            found = self.routes[place] = Route()
        found.statuses[status] = found.statuses.get(status, 0) + 1
        found.received += sizes[0]
        found.sent += sizes[1]
        if seconds is not None:
            found.seconds.observe(seconds)


class Commits:
    """Commits of all stores."""

    def __init__(self) -> None:
        self.groups = Histogram(SIZES)
        self.seconds = Histogram()
        self.waits = Histogram()
        self.phases = Tally()


class StoreCount:
    """What one store has written since it was opened. Only its writing thread counts."""

    def __init__(self) -> None:
        self.commits = 0
        self.writes = 0
        self.failures = 0
        self.seconds = 0.0


class Embedding:
    """Texts that went to the embedding model, and those that it is at."""

    def __init__(self) -> None:
        self.texts = Tally()
        self.seconds = Tally()
        self._begun = Tally()

    @contextmanager
    def of(self, count: int) -> Generator[None]:
        """Around the embedding of some texts."""
        self._begun.add(count=count)
        started = time.perf_counter()
        done = False
        try:
            yield
            done = True
        finally:
            self.seconds.add(count=time.perf_counter() - started)
            self.texts.add("ok" if done else "failed", count=count)

    @property
    def under_way(self) -> float:
        """Texts that are being embedded."""
        return max(self._begun.total() - self.texts.total(), 0)


class Observation:
    """One application under observation. Raises InvalidInput when traces are asked for that cannot be made."""

    def __init__(self, settings: Settings, tracing: Tracing | None = None) -> None:
        """Traces go to ``tracing``, else to where the settings say."""
        self.requests = Requests()
        self.commits = Commits()
        self.calls = Tally()
        self.call_seconds = Histograms()
        self.checks = Tally()
        self.streams_dropped = Tally()
        self.slow = SlowLog(settings.slow_ms)
        self.tracing = tracing or tracing_to(settings.otel_endpoint)

    def close(self) -> None:
        """Send the traces that are left."""
        if self.tracing is not None:
            self.tracing.close()

    def span(self, name: str, attributes: Attributes) -> AbstractContextManager[Any]:
        """A span around work, if there is tracing."""
        return nullcontext() if self.tracing is None else self.tracing.span(name, attributes)

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        """A tool was called over MCP."""
        self.calls.add(tool, outcome)
        self.call_seconds.observe(tool, value=seconds)
        origin = current_origin()
        self.slow.note("tool", seconds, origin.parts if origin is not None else {}, tool=tool, outcome=outcome)

    def committed(self, store: str, count: StoreCount, origins: Sequence[Origin | None], laps: Laps, rows: int) -> None:
        """A group of writes is in: the last lap has just ended. For the writing thread, before callers are answered."""
        commits, parts = self.commits, laps.parts()
        count.commits += 1
        count.writes += len(origins)
        count.seconds += laps.seconds
        commits.groups.observe(len(origins))
        commits.seconds.observe(laps.seconds)
        for phase, seconds in parts.items():
            commits.phases.add(phase, count=seconds)
        for origin in origins:
            if origin is not None:
                for phase, seconds in parts.items():
                    origin.add(phase, seconds)
        self.slow.note("commit", laps.seconds, parts, store=store, writes=len(origins), rows=rows)
        if self.tracing is not None:
            self.tracing.commit(store, origins, laps, {"kgserve.writes": len(origins), "kgserve.rows": rows})

    def waited(self, origin: Origin | None, seconds: float) -> None:
        """A write has waited in the queue."""
        self.commits.waits.observe(seconds)
        if origin is not None:
            origin.add("queue", seconds)
