"""Traces by OpenTelemetry, for who asks for them. Nothing of it is imported until then.

The OpenTelemetry libraries read their own variables (OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER
and so on); where to send traces is the setting ``otel_endpoint``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from typing import Any
from urllib.parse import urlsplit

from kgserve.errors import InvalidInput

_PATH = "/v1/traces"
_SERVER_ERROR = 500
_LAST_SECONDS = 2.0

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Phase = tuple[str, float, float]
"""A name, and the beginning and end on the monotonic clock, in seconds."""


class Tracing:
    """Makes spans and hands them to an exporter, in batches and in a thread of its own."""

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
        sending.join(_LAST_SECONDS)
        if sending.is_alive():
            self._give_up()
            sending.join(_LAST_SECONDS)

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
    url = endpoint if endpoint.rstrip("/").endswith(_PATH) else endpoint.rstrip("/") + _PATH
    sender = exporter.OTLPSpanExporter(endpoint=url)
    return Tracing(export.BatchSpanProcessor(sender), sender.shutdown)


def _wall(seconds: float, shift: int) -> int:
    return int(seconds * 1e9) + shift
