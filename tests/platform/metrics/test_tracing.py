"""Traces as a collector receives them, sent by a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kgserve.errors import InvalidInput
from kgserve.platform import settings
from kgserve.platform.metrics.app_metrics_and_request_context import create_tracer
from tests.cli.running import environment
from tests.platform.metrics.receiver import Receiver, receiving
from tests.server.http.serving import accepted, serving
from tests.server.http.sockets import connected, replies, until_closed
from tests.server.mcp.talking import Stateless

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INJECT = "POST /api/memory/{store}/inject"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Return the spans of a few requests, after the server has stopped and sent them."""
    with receiving() as receiver:
        data = tmp_path_factory.mktemp("traced") / "data"
        with serving(data, otel_endpoint=receiver.url) as served, httpx.Client(base_url=served.url, timeout=30) as http:
            carried = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "traced-one"}
            node = {"id": "a", "type": "hen", "content": "brown"}
            accepted(http.post("/api/memory/hens/inject", json={"nodes": [node]}, headers=carried))
            accepted(http.post("/api/memory/hens/search", json={"query": "brown", "mode": "keyword", "at_least": 1}))
            assert http.get("/secret/of/a/caller").status_code == 404
            Stateless(http).call("list_stores", {})
            for probe in ("/health", "/ready"):
                accepted(http.get(probe, headers=carried))
            _ask_at_once(served.port)
        yield receiver


def _ask_at_once(port: int) -> None:
    """Send two requests in one packet; the second waits for the first."""
    first = f"GET /docs HTTP/1.1\r\nHost: localhost\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n\r\n"
    second = "GET /docs/docs.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(port) as connection:
        connection.sendall((first + second).encode())
        assert [reply.status for reply in replies(until_closed(connection))] == [200, 200]


def test_a_request_continues_the_callers_trace(traced: Receiver) -> None:
    request = traced.one(INJECT)
    assert (request.trace, request.parent) == (TRACE, PARENT)
    assert request.service == "kgserve"
    assert request.attributes["http.route"] == "/api/memory/{store}/inject"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["kgserve.request_id"] == "traced-one"


def test_a_commit_span_is_a_child_of_its_request_and_shows_its_phases(traced: Receiver) -> None:
    request, commit = traced.one(INJECT), traced.one("commit")
    assert (commit.trace, commit.parent) == (TRACE, request.id)
    assert commit.attributes["kgserve.store"] == "hens"
    assert (commit.attributes["kgserve.writes"], commit.attributes["kgserve.rows"]) == (1, 1)
    for name in ("commit plan", "commit journal", "commit rows"):
        phase = traced.one(name)
        assert phase.parent == commit.id
        assert commit.begun <= phase.begun <= phase.ended <= commit.ended
    assert abs(commit.begun - request.begun) < 60e9


def test_searches_and_tools_have_spans_of_their_own(traced: Receiver) -> None:
    search, request = traced.one("search"), traced.one("POST /api/memory/{store}/search")
    assert search.parent == request.id
    assert search.attributes["kgserve.search.mode"] == "keyword"
    assert request.parent == ""
    tool = traced.one("tool list_stores")
    assert tool.trace == traced.one("POST /mcp").trace
    assert tool.attributes["kgserve.tool"] == "list_stores"


def test_pipelined_requests_have_separate_traces(traced: Receiver) -> None:
    """A pipelined request is started at the end of the previous one, in its context."""
    assert traced.one("GET /docs").parent == PARENT
    after = traced.one("GET /docs/docs.css")
    assert (after.parent, after.trace == TRACE) == ("", False)


def test_spans_contain_no_paths(traced: Receiver) -> None:
    assert traced.one("GET unmatched").attributes["http.response.status_code"] == 404
    assert "secret" not in str([(span.name, span.attributes) for span in traced.spans])


def test_health_probes_are_not_traced(traced: Receiver) -> None:
    assert [span.name for span in traced.spans if "/health" in span.name or "/ready" in span.name] == []


def test_tracing_is_off_without_an_endpoint() -> None:
    assert create_tracer("") is None


def test_standard_opentelemetry_variables_are_used() -> None:
    general = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318"}
    for_traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:4318/v1/traces"}
    own = {"KGSERVE_OTEL_ENDPOINT": ""}
    assert settings.load_settings({}, general).otel_endpoint == "http://all:4318"
    assert settings.load_settings({}, general | for_traces).otel_endpoint == "http://traces:4318/v1/traces"
    assert settings.load_settings({}, general | for_traces | own).otel_endpoint == ""
    assert settings.load_settings({}, {}).otel_endpoint == ""


def test_a_missing_otel_extra_is_reported_with_the_install_command(tmp_path: Path) -> None:
    broken = tmp_path / "path" / "opentelemetry"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not installed')\n")
    done = subprocess.run(
        [sys.executable, "-m", "kgserve", "serve", "--data", str(tmp_path / "data"), "--port", "0"],
        env=environment({"PYTHONPATH": str(broken.parent), "KGSERVE_OTEL_ENDPOINT": "http://127.0.0.1:1"}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "pip install 'kgserve[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://"])
def test_an_invalid_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="otel_endpoint"):
        create_tracer(endpoint)
