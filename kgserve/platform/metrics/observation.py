"""All that is counted and timed of one application, and what is known of the request that work is done for.

Counters and histograms are plain objects: an event costs about half a microsecond, the rest is left to a scrape, which
`admin.metrics` carries out. `SlowLog` writes one line for whatever took long, with the parts of its time, and nothing
of its content.

Context variables follow a request into the threads that work for it, but not through a store's queue. So each write
carries its `Origin` with it, and the writing thread speaks of the requests whose writes it carries out.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, Token
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import structlog

from kgserve.errors import InvalidInput

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kgserve.platform.settings import Settings

log = structlog.get_logger("kgserve.platform.metrics.slow")

Labels = tuple[str, ...]

DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of durations: from a read out of memory to a large import."""
GROUP_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
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

    def __init__(self, bounds: Sequence[float] = DURATION_BUCKETS_SECONDS) -> None:
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

    def __init__(self, bounds: Sequence[float] = DURATION_BUCKETS_SECONDS) -> None:
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


class SlowLog:
    """Warns of operations that took at least ``milliseconds``, once of each; 0 turns it off."""

    def __init__(self, milliseconds: int) -> None:
        self.seconds = milliseconds / 1000 if milliseconds else float("inf")
        self.counted = Tally()

    def note(self, kind: str, seconds: float, parts: Mapping[str, float], **fields: Any) -> None:
        """Say so if it was slow."""
        if seconds < self.seconds:
            return
        self.counted.add(kind)
        shown = {name: round(each * 1000, 1) for name, each in dict(parts).items()}  # the writing thread may add one
        log.warning("slow_operation", kind=kind, ms=round(seconds * 1000, 1), parts_ms=shown, **fields)


class Origin(msgspec.Struct, eq=False):
    """A request: its id, the seconds of its parts so far, and the context of its trace, if it is traced."""

    request_id: str
    parts: dict[str, float] = {}
    trace: Any = None

    def add(self, part: str, seconds: float) -> None:
        """Lay seconds to a part's account."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current_origin() -> Origin | None:
    """The request that this thread or task works for."""
    return _origin.get()


def begin_request(origin: Origin) -> Token[Origin | None]:
    """From here on work is this request's, also in threads that take the context over; what `end_request` takes."""
    return _origin.set(origin)


def end_request(token: Token[Origin | None]) -> None:
    """Work is whose it was before."""
    _origin.reset(token)


def add_part(part: str, seconds: float) -> None:
    """Lay seconds to the account of the request that is being worked for, if any is."""
    origin = _origin.get()
    if origin is not None:
        origin.add(part, seconds)


@contextmanager
def part(name: str) -> Generator[None]:
    """Account for the time that is spent inside."""
    started = time.perf_counter()
    try:
        yield
    finally:
        add_part(name, time.perf_counter() - started)


@contextmanager
def speaking_of(origins: Iterable[Origin | None]) -> Generator[None]:
    """While inside, log lines bear the ids of these requests: one as ``request_id``, several as ``request_ids``."""
    ids = list(dict.fromkeys(origin.request_id for origin in origins if origin is not None))
    if not ids:
        yield
        return
    bound: dict[str, Any] = {"request_id": ids[0]} if len(ids) == 1 else {"request_ids": ids}
    with structlog.contextvars.bound_contextvars(**bound):
        yield


class Stopwatch:
    """The phases of a piece of work, one after the other. ``started`` and ``laps`` are on the monotonic clock."""

    def __init__(self) -> None:
        self.started = self._at = time.perf_counter()
        self.laps: list[Phase] = []

    def lap(self, name: str) -> None:
        """What was done since the last lap is called so."""
        now = time.perf_counter()
        self.laps.append((name, self._at, now))
        self._at = now

    @property
    def seconds(self) -> float:
        """From the start to the last lap."""
        return self._at - self.started

    def parts(self) -> dict[str, float]:
        """The seconds of each phase."""
        return {name: until - since for name, since, until in self.laps}


_KNOWN_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
UNMATCHED_ROUTE = "unmatched"
"""The route of all paths that are none, so that their number is bounded."""


class RouteCount:
    """The requests of one method of one route. Only the event loop's thread counts, so there is no lock."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.received = 0
        self.sent = 0
        self.seconds = Histogram()


class Requests:
    """Requests that were answered, by route template and method; never by path."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], RouteCount] = {}
        self.refused = Tally()

    def done(self, method: str, route: str, status: int, sizes: tuple[int, int], seconds: float | None) -> None:
        """A request was answered; ``sizes`` are the bytes of its body and of the answer's.

        No ``seconds`` for a stream that ends when its listener leaves: that would be no latency.
        """
        place = (route, method if method in _KNOWN_METHODS else "other")
        found = self.routes.get(place)
        if found is None:
            found = self.routes[place] = RouteCount()
        found.statuses[status] = found.statuses.get(status, 0) + 1
        found.received += sizes[0]
        found.sent += sizes[1]
        if seconds is not None:
            found.seconds.observe(seconds)


class Commits:
    """Commits of all stores."""

    def __init__(self) -> None:
        self.groups = Histogram(GROUP_SIZE_BUCKETS)
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
        """While inside, ``count`` texts are being embedded."""
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


class NodeCounts:
    """What a node of a cluster has done: seconds of take-overs and of writes to the log, and writes that failed.

    ``asked``: requests that it had other nodes answer, in the name of who had asked it.
    """

    def __init__(self) -> None:
        self.takeovers = Histogram()
        self.appends = Histogram()
        self.failures = Tally()
        self.asked = Tally()


class Telemetry:
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

    def committed(
        self, store: str, count: StoreCount, origins: Sequence[Origin | None], laps: Stopwatch, rows: int
    ) -> None:
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
                    origin.add(phase, seconds)
        self.slow.note("commit", laps.seconds, parts, store=store, writes=len(origins), rows=rows)
        if self.tracing is not None:
            traced = [origin.trace for origin in origins if origin is not None and origin.trace is not None]
            self.tracing.commit(
                store, traced, laps.laps, {"kgserve.writes": len(origins), "kgserve.storage.rows": rows}
            )

    def waited(self, origin: Origin | None, seconds: float) -> None:
        """A write has waited in the queue."""
        self.commits.waits.observe(seconds)
        if origin is not None:
            origin.add("queue", seconds)


_TRACES_PATH = "/v1/traces"
_SERVER_ERROR = 500
_TRACE_FLUSH_TIMEOUT_SECONDS = 2.0

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Phase = tuple[str, float, float]
"""A name, and the beginning and end on the monotonic clock, in seconds."""


class Tracing:
    """Makes spans and hands them to an exporter of OpenTelemetry, in batches and in a thread of its own.

    Nothing of OpenTelemetry is imported before. Its libraries read their own variables (OTEL_SERVICE_NAME,
    OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER and so on); where to send traces is the setting ``otel_endpoint``.
    """

    def __init__(self, processor: Any, give_up: Callable[[], None] = lambda: None) -> None:
        """Spans go to ``processor``, one of the OpenTelemetry SDK; ``give_up`` ends its attempts to send them."""
        self._give_up = give_up
        resources = import_module("opentelemetry.sdk.resources")
        self._api = import_module("opentelemetry.trace")
        self._context = import_module("opentelemetry.context")
        version = metadata.version("kgserve")
        own = resources.Resource.create({"service.name": "kgserve", "service.version": version})
        resource = own.merge(resources.OTELResourceDetector().detect())  # what the environment says wins
        self._provider = import_module("opentelemetry.sdk.trace").TracerProvider(
            resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kgserve", version)
        propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = propagation.TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what is left. Blocks for some seconds at most: a receiver that is not there holds up no stop."""
        sending = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        sending.start()
        sending.join(_TRACE_FLUSH_TIMEOUT_SECONDS)
        if sending.is_alive():
            self._give_up()
            sending.join(_TRACE_FLUSH_TIMEOUT_SECONDS)

    @contextmanager
    def request(self, request_id: str, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Generator[Any]:
        """A span around a request; its parent is the ``traceparent`` that came with it, if one did."""
        carried = {k.decode("latin-1"): v.decode("latin-1") for k, v in headers if k in {b"traceparent", b"tracestate"}}
        span = self._tracer.start_span(
            method,
            context=self._propagator.extract(carried),
            kind=self._api.SpanKind.SERVER,
            attributes={"http.request.method": method, "kgserve.request_id": request_id},
        )
        token = self._context.attach(self.context_of(span))
        try:
            yield span
        finally:
            self._context.detach(token)
            span.end()

    def context_of(self, span: Any) -> Any:
        """What work in another thread needs to have its spans below this one."""
        return self._api.set_span_in_context(span)

    def answered(self, span: Any, method: str, route: str, status: int) -> None:
        """Give a request's span the name and status that are known only now."""
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= _SERVER_ERROR:
            span.set_status(self._api.StatusCode.ERROR)

    @contextmanager
    def span(self, name: str, attributes: Attributes) -> Generator[Any]:
        """A span around work, below the one that this thread or task is in."""
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    def failed(self, span: Any) -> None:
        """Mark a span's work as one that did not succeed."""
        span.set_status(self._api.StatusCode.ERROR)

    def commit(self, store: str, requests: Sequence[Any], phases: Sequence[Phase], attributes: Attributes) -> None:
        """Spans of a commit that is over: below the first of its ``requests``, and linked to the others.

        Those are given by `context_of` their spans; there is at least one phase.
        """
        links = [self._api.Link(self._api.get_current_span(each).get_span_context()) for each in requests[1:]]
        shift = time.time_ns() - time.perf_counter_ns()
        span = self._tracer.start_span(
            "commit",
            context=requests[0] if requests else self._context.Context(),
            links=links,
            attributes={"kgserve.store": store, **attributes},
            start_time=_wall(phases[0][1], shift),
        )
        inside = self.context_of(span)
        for name, since, until in phases:
            child = self._tracer.start_span(f"commit {name}", context=inside, start_time=_wall(since, shift))
            child.end(_wall(until, shift))
        span.end(_wall(phases[-1][2], shift))


def tracing_to(endpoint: str) -> Tracing | None:
    """Tracing to an OTLP receiver over HTTP; None without one. Raises InvalidInput when it cannot be."""
    if not endpoint:
        return None
    place = urlsplit(endpoint)
    if place.scheme not in {"http", "https"} or not place.hostname:
        raise InvalidInput(f"otel_endpoint: {endpoint!r} is no address for traces; one looks like http://host:4318")
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        export = import_module("opentelemetry.sdk.trace.export")
    except ImportError:
        raise InvalidInput(
            "traces are to be sent to the setting otel_endpoint, but the OpenTelemetry libraries are not installed: "
            "run pip install 'kgserve[otel]', or leave the setting empty"
        ) from None
    url = endpoint if endpoint.rstrip("/").endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
    sender = exporter.OTLPSpanExporter(endpoint=url)
    return Tracing(export.BatchSpanProcessor(sender), sender.shutdown)


def _wall(seconds: float, shift: int) -> int:
    return int(seconds * 1e9) + shift
