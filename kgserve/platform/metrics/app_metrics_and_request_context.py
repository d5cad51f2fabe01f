"""Counters and timings of one application, and the request context that work is attributed to.

Counters and histograms are plain objects that cost about half a microsecond per event; everything else happens at
scrape time in `admin.metrics`. `SlowOperationLog` writes one line per slow operation, with the parts of its time but
none of its content.

Context variables follow a request into its worker threads, but not through a store's write queue. Each write therefore
carries its `OriginatingRequest`, and the writer thread logs with the ids of the requests it works for.
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

log = structlog.get_logger("kgserve.metrics.slow")

MetricLabels = tuple[str, ...]

DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of duration buckets, from an in-memory read to a large import."""
GROUP_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Upper bounds of commit-group size buckets; the write queue limits the size."""


class LabeledCounter:
    """Thread-safe counter by labels. Label values must come from a bounded set."""

    def __init__(self) -> None:
        self._counts: dict[MetricLabels, float] = {}
        self._lock = threading.Lock()

    def add(self, *labels: str, count: float = 1) -> None:
        """Add to the counter with these labels."""
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0) + count

    def counts(self) -> dict[MetricLabels, float]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)

    def total(self) -> float:
        """Return the sum of all counts."""
        return sum(self.counts().values())


class HistogramSnapshot(msgspec.Struct, frozen=True):
    """Snapshot of a histogram: ``counts`` by bucket, one more than there are bounds, and the sum of all values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Histogram:
    """Thread-safe histogram with fixed bounds."""

    def __init__(self, bounds: Sequence[float] = DURATION_BUCKETS_SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Add a value."""
        at = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[at] += 1
            self._sum += value

    def measured(self) -> HistogramSnapshot:
        """Return a snapshot."""
        with self._lock:
            return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add the values of another histogram with the same bounds, whose sum is ``total``."""
        with self._lock:
            self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
            self._sum += total


class LabeledHistograms:
    """Histograms by labels."""

    def __init__(self, bounds: Sequence[float] = DURATION_BUCKETS_SECONDS) -> None:
        self._bounds = bounds
        self._histograms: dict[MetricLabels, Histogram] = {}

    def observe(self, *labels: str, value: float) -> None:
        """Add a value to the histogram with these labels."""
        found = self._histograms.get(labels)
        if found is None:
            found = self._histograms.setdefault(labels, Histogram(self._bounds))
        found.observe(value)

    def measured(self) -> dict[MetricLabels, HistogramSnapshot]:
        """Return a snapshot of each histogram."""
        return {labels: histogram.measured() for labels, histogram in list(self._histograms.items())}


class SlowOperationLog:
    """Logs operations that take at least ``milliseconds``; 0 turns it off."""

    def __init__(self, milliseconds: int) -> None:
        self.seconds = milliseconds / 1000 if milliseconds else float("inf")
        self.counted = LabeledCounter()

    def note(self, kind: str, seconds: float, parts: Mapping[str, float], **fields: Any) -> None:
        """Log the operation if it was slow."""
        if seconds < self.seconds:
            return
        self.counted.add(kind)
        shown = {
            name: round(each * 1000, 1) for name, each in dict(parts).items()
        }  # copied, since the writer thread may add parts
        log.warning("slow_operation", kind=kind, ms=round(seconds * 1000, 1), parts_ms=shown, **fields)


class OriginatingRequest(msgspec.Struct, eq=False):
    """A request that work is attributed to.

    ``parts`` are the seconds of its parts so far, ``trace`` is its trace context, if traced.
    """

    request_id: str
    parts: dict[str, float] = {}
    trace: Any = None

    def add(self, part: str, seconds: float) -> None:
        """Add seconds to a part."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds


_origin: ContextVar[OriginatingRequest | None] = ContextVar("origin", default=None)


def get_originating_request() -> OriginatingRequest | None:
    """Return the request that this thread or task works for."""
    return _origin.get()


def set_originating_request(origin: OriginatingRequest) -> Token[OriginatingRequest | None]:
    """Attribute work of this context to a request. Return the token for `reset_originating_request`."""
    return _origin.set(origin)


def reset_originating_request(token: Token[OriginatingRequest | None]) -> None:
    """Attribute work of this context to the request that it had before `set_originating_request`."""
    _origin.reset(token)


def add_request_part_seconds(part: str, seconds: float) -> None:
    """Add seconds to a part of the current request, if any."""
    origin = _origin.get()
    if origin is not None:
        origin.add(part, seconds)


@contextmanager
def attribute_time_to_request_part(name: str) -> Generator[None]:
    """Attribute the time spent in the block to a part of the current request."""
    started = time.perf_counter()
    try:
        yield
    finally:
        add_request_part_seconds(name, time.perf_counter() - started)


@contextmanager
def bind_request_ids(origins: Iterable[OriginatingRequest | None]) -> Generator[None]:
    """Bind the ids of these requests to log lines in the block: one as ``request_id``, several as ``request_ids``."""
    ids = list(dict.fromkeys(origin.request_id for origin in origins if origin is not None))
    if not ids:
        yield
        return
    bound: dict[str, Any] = {"request_id": ids[0]} if len(ids) == 1 else {"request_ids": ids}
    with structlog.contextvars.bound_contextvars(**bound):
        yield


class PhaseTimer:
    """Timer of consecutive phases. ``started`` and ``laps`` are `time.perf_counter` readings in seconds."""

    def __init__(self) -> None:
        self.started = self._at = time.perf_counter()
        self.laps: list[TimedPhase] = []

    def lap(self, name: str) -> None:
        """End the current phase under this name."""
        now = time.perf_counter()
        self.laps.append((name, self._at, now))
        self._at = now

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the last phase."""
        return self._at - self.started

    def parts(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        return {name: until - since for name, since, until in self.laps}


_KNOWN_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
UNMATCHED_ROUTE = "unmatched"
"""Route label of all unknown paths, which bounds the number of labels."""


class RouteCounters:
    """Counters of one method of one route. Only the event loop's thread updates it, so it has no lock."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.received = 0
        self.sent = 0
        self.seconds = Histogram()


class RequestCounters:
    """Counters of answered requests by route template and method."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], RouteCounters] = {}
        self.refused = LabeledCounter()

    def done(self, method: str, route: str, status: int, sizes: tuple[int, int], seconds: float | None) -> None:
        """Count an answered request; ``sizes`` are the bytes of the request and response bodies.

        ``seconds`` is None for a stream that ends when its listener leaves, since that is not a latency.
        """
        found = self.of_route(route, method)
        found.statuses[status] = found.statuses.get(status, 0) + 1
        found.received += sizes[0]
        found.sent += sizes[1]
        if seconds is not None:
            found.seconds.observe(seconds)

    def of_route(self, route: str, method: str) -> RouteCounters:
        """Return the counters of a route and method."""
        place = (route, method if method in _KNOWN_METHODS else "other")
        found = self.routes.get(place)
        if found is None:
            found = self.routes[place] = RouteCounters()
        return found


class CommitMetrics:
    """Commit metrics of all stores."""

    def __init__(self) -> None:
        self.groups = Histogram(GROUP_SIZE_BUCKETS)
        self.seconds = Histogram()
        self.waits = Histogram()
        self.phases = LabeledCounter()


class StoreWriteCounters:
    """Write counters of one store since it was opened. Only its writer thread updates them."""

    def __init__(self) -> None:
        self.commits = 0
        self.writes = 0
        self.failures = 0
        self.seconds = 0.0


class EmbeddingCounters:
    """Counters of texts sent to the embedding model."""

    def __init__(self) -> None:
        self.texts = LabeledCounter()
        self.seconds = LabeledCounter()
        self._begun = LabeledCounter()

    @contextmanager
    def of(self, count: int) -> Generator[None]:
        """Count ``count`` texts as being embedded within the block."""
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
        """Number of texts being embedded now."""
        return max(self._begun.total() - self.texts.total(), 0)


class ClusterNodeMetrics:
    """Cluster metrics of a node: seconds of takeovers and of log writes, and failed log writes.

    ``asked`` counts requests that it forwarded to other nodes.
    """

    def __init__(self) -> None:
        self.takeovers = Histogram()
        self.appends = Histogram()
        self.failures = LabeledCounter()
        self.asked = LabeledCounter()


class Telemetry:
    """Metrics, slow log and tracing of one application."""

    def __init__(self, settings: Settings, tracing: RequestTracer | None = None) -> None:
        """Send traces to ``tracing``, or to the endpoint in the settings.

        Raises InvalidInput if tracing cannot be set up.
        """
        self.requests = RequestCounters()
        self.commits = CommitMetrics()
        self.calls = LabeledCounter()
        self.call_seconds = LabeledHistograms()
        self.checks = LabeledCounter()
        self.streams_dropped = LabeledCounter()
        self.stores_over_quota = 0
        """New stores that the quota of stores per key refused."""
        self.slow = SlowOperationLog(settings.slow_ms)
        self.tracing = tracing or create_tracer(settings.otel_endpoint)

    def close(self) -> None:
        """Send remaining traces."""
        if self.tracing is not None:
            self.tracing.close()

    def span(self, name: str, attributes: SpanAttributes) -> AbstractContextManager[Any]:
        """Return a context manager for a span, which does nothing without tracing."""
        return nullcontext() if self.tracing is None else self.tracing.span(name, attributes)

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        """Record an MCP tool call."""
        self.calls.add(tool, outcome)
        self.call_seconds.observe(tool, value=seconds)
        origin = get_originating_request()
        self.slow.note("tool", seconds, origin.parts if origin is not None else {}, tool=tool, outcome=outcome)

    def record_commit_group(
        self,
        store: str,
        count: StoreWriteCounters,
        origins: Sequence[OriginatingRequest | None],
        laps: PhaseTimer,
        rows: int,
    ) -> None:
        """Record a committed group of writes, after its last lap and before its callers get their reports.

        For the writer thread only.
        """
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
            self.tracing.commit(store, traced, laps.laps, {"kgserve.writes": len(origins), "kgserve.rows": rows})

    def record_queue_wait(self, origin: OriginatingRequest | None, seconds: float) -> None:
        """Record how long a write waited in the queue."""
        self.commits.waits.observe(seconds)
        if origin is not None:
            origin.add("queue", seconds)


_TRACES_PATH = "/v1/traces"
_SERVER_ERROR = 500
_TRACE_FLUSH_TIMEOUT_SECONDS = 2.0

SpanAttributes = Mapping[str, str | int | float | bool | Sequence[str]]
TimedPhase = tuple[str, float, float]
"""Name of a phase, and its start and end as `time.perf_counter` readings in seconds."""


class RequestTracer:
    """Creates spans and passes them to an OpenTelemetry exporter, in batches and in a separate thread.

    OpenTelemetry is only imported when this is used. Its libraries read their own variables (OTEL_SERVICE_NAME,
    OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER and others); the endpoint is the setting ``otel_endpoint``.
    """

    def __init__(self, processor: Any, give_up: Callable[[], None] = lambda: None) -> None:
        """Send spans to ``processor``, an OpenTelemetry span processor.

        ``give_up`` aborts its attempts to send them.
        """
        self._give_up = give_up
        resources = import_module("opentelemetry.sdk.resources")
        self._api = import_module("opentelemetry.trace")
        self._context = import_module("opentelemetry.context")
        version = metadata.version("kgserve")
        own = resources.Resource.create({"service.name": "kgserve", "service.version": version})
        resource = own.merge(resources.OTELResourceDetector().detect())  # the environment takes precedence
        self._provider = import_module("opentelemetry.sdk.trace").TracerProvider(
            resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kgserve", version)
        propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = propagation.TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send remaining spans.

        Blocks for a few seconds at most, so that an unreachable receiver does not delay shutdown.
        """
        sending = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        sending.start()
        sending.join(_TRACE_FLUSH_TIMEOUT_SECONDS)
        if sending.is_alive():
            self._give_up()
            sending.join(_TRACE_FLUSH_TIMEOUT_SECONDS)

    @contextmanager
    def request(self, request_id: str, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Generator[Any]:
        """Yield a span for a request; its parent is the request's ``traceparent`` header, if present."""
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
        """Return the context in which another thread can create child spans of this one."""
        return self._api.set_span_in_context(span)

    def answered(self, span: Any, method: str, route: str, status: int) -> None:
        """Set the final name and status of a request's span."""
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= _SERVER_ERROR:
            span.set_status(self._api.StatusCode.ERROR)

    @contextmanager
    def span(self, name: str, attributes: SpanAttributes) -> Generator[Any]:
        """Yield a span for a unit of work, as a child of the current span."""
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span

    def failed(self, span: Any) -> None:
        """Mark a span as failed."""
        span.set_status(self._api.StatusCode.ERROR)

    def commit(
        self, store: str, requests: Sequence[Any], phases: Sequence[TimedPhase], attributes: SpanAttributes
    ) -> None:
        """Create the spans of a finished commit, as children of the first of ``requests`` and linked to the others.

        ``requests`` are contexts from `context_of`. ``phases`` must not be empty.
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


def create_tracer(endpoint: str) -> RequestTracer | None:
    """Return tracing to an OTLP receiver over HTTP, or None without an endpoint. Raises InvalidInput."""
    if not endpoint:
        return None
    place = urlsplit(endpoint)
    if place.scheme not in {"http", "https"} or not place.hostname:
        raise InvalidInput(f"otel_endpoint: {endpoint!r} is not a valid URL; use a form such as http://host:4318")
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        export = import_module("opentelemetry.sdk.trace.export")
    except ImportError:
        raise InvalidInput(
            "otel_endpoint is set, but the OpenTelemetry libraries are not installed; "
            "run pip install 'kgserve[otel]', or leave the setting empty"
        ) from None
    url = endpoint if endpoint.rstrip("/").endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
    sender = exporter.OTLPSpanExporter(endpoint=url)
    return RequestTracer(export.BatchSpanProcessor(sender), sender.shutdown)


def _wall(seconds: float, shift: int) -> int:
    return int(seconds * 1e9) + shift
