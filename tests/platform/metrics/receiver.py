"""A receiver of OTLP traces over HTTP that stores them, like a collector."""

from __future__ import annotations

import gzip
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typing_extensions import override

from tests.servers import served


class Span(msgspec.Struct, frozen=True):
    """A received span. Ids are hexadecimal, ``parent`` is empty for a root span, times are in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: list[str]
    service: str
    begun: int
    ended: int


class Receiver:
    """URL for traces, and the spans received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        [span] = self.named(name)
        return span

    def take(self, body: bytes) -> None:
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(each.resource.attributes)["service.name"]
            for scope in each.scope_spans:
                self.spans += [_span(span, service) for span in scope.spans]


@contextmanager
def receiving() -> Generator[Receiver]:
    """Run a receiver on a free port within the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            receiver.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        @override
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        yield receiver


def _span(span: Any, service: str) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        links=[link.span_id.hex() for link in span.links],
        service=service,
        begun=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
