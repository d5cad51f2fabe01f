from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.errors import StorageFull
from kgserve.platform.metrics.app_metrics_and_request_context import (
    OriginatingRequest,
    SlowOperationLog,
    Telemetry,
    add_request_part_seconds,
    attribute_time_to_request_part,
    get_originating_request,
    reset_originating_request,
    set_originating_request,
)
from kgserve.platform.settings import Settings
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.writer_thread import QueuedWrite, WriterThread
from tests.captured_log import capture_log

PATIENCE = 30


def write_of(request_id: str) -> QueuedWrite:
    token = set_originating_request(OriginatingRequest(request_id))
    try:
        return QueuedWrite(WriteBatch(), Future())
    finally:
        reset_originating_request(token)


def test_parts_are_attributed_to_the_current_request() -> None:
    add_request_part_seconds("engine", 1.0)  # outside of any request
    token = set_originating_request(origin := OriginatingRequest("r1"))
    try:
        add_request_part_seconds("engine", 0.5)
        add_request_part_seconds("engine", 0.25)
        with attribute_time_to_request_part("embedding"):
            assert get_originating_request() is origin
    finally:
        reset_originating_request(token)
    assert get_originating_request() is None
    assert origin.parts["engine"] == 0.75
    assert origin.parts.keys() == {"engine", "embedding"}


@pytest.mark.parametrize("error", [StorageFull("no room"), RuntimeError("a defect")])
def test_a_failed_commit_is_logged_with_its_request_ids(error: Exception) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def commit(writes: list[QueuedWrite]) -> None:
        if writes[0].origin is not None and writes[0].origin.request_id == "first":
            begun.set()
            go_on.wait(PATIENCE)
        raise error

    with capture_log(store="hens") as lines:
        writer = WriterThread("hens", commit, lambda: None, 10)
        writes = [write_of(name) for name in ("first", "second", "third", "second")]
        writer.submit(writes[0])
        assert begun.wait(PATIENCE)
        for write in [*writes[1:], QueuedWrite(WriteBatch(), Future())]:
            writer.submit(write)
        go_on.set()
        writer.stop()
    assert [type(write.future.exception(PATIENCE)) for write in writes] == [type(error)] * 4
    assert [line.get("request_id") for line in lines] == ["first", None]
    assert [line.get("request_ids") for line in lines] == [None, ["second", "third"]]
    assert {line["event"] for line in lines} <= {"commit_refused", "commit_failed"}


def test_only_slow_operations_are_logged() -> None:
    slow = SlowOperationLog(100)
    with capture_log() as lines:
        slow.note("commit", 0.0999, {"journal": 0.05})
        slow.note("commit", 0.1, {"journal": 0.05}, store="hens")
        SlowOperationLog(0).note("commit", 1e6, {})
    assert slow.counted.counts() == {("commit",): 1}
    assert lines == [
        {
            "event": "slow_operation",
            "log_level": "warning",
            "kind": "commit",
            "ms": 100.0,
            "parts_ms": {"journal": 50.0},
            "store": "hens",
        }
    ]


def test_a_slow_tool_call_is_logged_with_its_parts() -> None:
    observation = Telemetry(Settings(slow_ms=200))
    token = set_originating_request(OriginatingRequest("r1", {"engine": 0.25}))
    try:
        with capture_log() as lines:
            observation.called("search", "ok", 0.5)
            observation.called("search", "error", 0.1)
    finally:
        reset_originating_request(token)
    [line] = lines
    assert (line["kind"], line["tool"], line["outcome"], line["ms"]) == ("tool", "search", "ok", 500.0)
    assert line["parts_ms"] == {"engine": 250.0}
    assert observation.calls.counts() == {("search", "ok"): 1, ("search", "error"): 1}


def test_the_slow_log_shows_only_the_clauses_of_a_statement() -> None:
    text = "MATCH (secret:Entity) WHERE secret.content = 'MATCH me' /* LIMIT */ RETURN secret.id AS `limit`, $value"
    assert (
        validate_cypher_statement_for_engine(text, {"value": "hidden"}, writable=False).shape == "MATCH WHERE RETURN AS"
    )


def test_metric_labels_for_routes_methods_and_statuses_are_bounded() -> None:
    requests = Telemetry(Settings()).requests
    for method in ("GET", "BREW", "A" * 50, "get"):
        requests.done(method, "/health", 200, (1, 2), 0.01)
    requests.done("GET", "/health", 499, (0, 0), None)
    shown: dict[Any, Any] = {place: each.statuses for place, each in requests.routes.items()}
    assert shown == {("/health", "GET"): {200: 1, 499: 1}, ("/health", "other"): {200: 3}}
    assert sum(requests.routes["/health", "GET"].seconds.measured().counts) == 1
