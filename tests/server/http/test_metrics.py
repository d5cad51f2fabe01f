"""GET /metrics of a server, its dashboard and alerts, and the slow log."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
import yaml
from litestar import Litestar

from kgserve.admin.backup import back_up_single_store
from kgserve.admin.metrics import HttpTransportMetrics
from kgserve.admin.metrics import render_metrics as collected
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.metrics.exposition import MetricsScrape
from kgserve.stores.backup.create import BackupOptions
from kgserve.stores.pool import StorePool
from tests.cli.running import serving as serving_process
from tests.server.http.serving import RunningServer, accepted, exchange, serving
from tests.server.mcp.talking import Stateless
from tests.stores.writing import held

TOP = Path(__file__).parents[3]
PATIENCE = 30.0
INJECT = "/api/memory/{store}/inject"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server of this module, with known counts. It keeps two stores open.

    A language model is configured but never called, so that its metrics exist.
    """
    model = {"llm_url": "http://127.0.0.1:1/v1", "llm_model": "none"}
    with serving(tmp_path_factory.mktemp("watched") / "data", max_open_stores=2, **model) as running:
        yield running


@pytest.fixture
def client(watched: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=watched.url, timeout=PATIENCE) as each:
        yield each


def scrape(client: httpx.Client) -> MetricsScrape:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return MetricsScrape.read(answer.text)


def eventually(look: Callable[[], bool]) -> None:
    """Wait for a condition; counts of a request appear shortly after its response."""
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pool_of(served: RunningServer) -> StorePool:
    return app_of(served).state["service"].graphs.pool


def app_of(served: RunningServer) -> Litestar:
    return cast("Litestar", served.server.config.app)


def inject(client: httpx.Client, store: str, *ids: str) -> httpx.Response:
    nodes = [{"id": each, "type": "hen", "content": f"hen {each}"} for each in ids]
    return client.post(f"/api/memory/{store}/inject", json={"nodes": nodes})


def test_both_formats(client: httpx.Client) -> None:
    plain = client.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert not plain.text.endswith("# EOF\n")
    newer = client.get("/metrics", headers={"accept": "text/plain;version=1.0.0;escaping=underscores"})
    assert newer.headers["content-type"].count("charset") == 1
    assert "version=1.0.0" in newer.headers["content-type"]
    accept = {"accept": "application/openmetrics-text; version=1.0.0; charset=utf-8, text/plain;q=0.5"}
    modern = client.get("/metrics", headers=accept)
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")


def test_requests_are_counted_by_route_template(client: httpx.Client) -> None:
    before = scrape(client)
    accepted(inject(client, "counted", "a", "b"))
    accepted(inject(client, "counted", "c"))

    def grown(name: str, **labels: str) -> float:
        return (scrape(client).value(name, **labels) or 0) - (before.value(name, **labels) or 0)

    eventually(lambda: grown("kgserve_requests_total", route=INJECT, method="POST", status="200") == 2)
    assert grown("kgserve_request_duration_seconds_count", route=INJECT) == 2
    assert grown("kgserve_request_bytes_total", route=INJECT) > 100
    assert grown("kgserve_answer_bytes_total", route=INJECT) > 100


def test_unknown_paths_share_one_metric_label(client: httpx.Client, watched: RunningServer) -> None:
    paths = [f"/nowhere/{number}" for number in range(5)]
    for path in paths:
        assert client.get(path).status_code == 404
    assert exchange(watched.port, b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status in (400, 405)
    eventually(lambda: (scrape(client).value("kgserve_requests_total", route="unmatched", status="404") or 0) >= 5)
    found = scrape(client)
    routes = set(found.by("route", "kgserve_requests_total"))
    assert not routes & set(paths)
    assert routes <= {route.path_format for route in app_of(watched).routes} | {"unmatched"}
    assert set(found.by("method", "kgserve_requests_total")) <= {"GET", "POST", "PUT", "PATCH", "DELETE", "other"}


def test_refusals_are_counted_by_code(client: httpx.Client, watched: RunningServer) -> None:
    assert client.get("/api/memory/nobody/stats").status_code == 404
    assert client.post("/api/memory/counted/inject", content=b"{").status_code in (400, 415)
    assert client.get("/health", headers={"host": "elsewhere.example"}).status_code == 421
    assert exchange(watched.port, b"no HTTP at all\r\n\r\n").status == 400
    assert (scrape(client).value("kgserve_connections") or 0) >= 1
    codes = {"not_found", "misdirected", "invalid"}
    eventually(lambda: codes <= scrape(client).by("code", "kgserve_refusals_total").keys())


def test_metrics_cover_open_stores_only(client: httpx.Client, watched: RunningServer) -> None:
    for name in ("one", "two", "three"):
        accepted(inject(client, name, "a"))
    opened = set(pool_of(watched).open_stores())
    assert len(opened) == 2
    found = scrape(client)
    assert set(found.by("store", "kgserve_store_sequence")) == opened
    assert set(pool_of(watched).open_stores()) == opened
    assert found.value("kgserve_open_stores") == 2
    assert found.value("kgserve_open_stores_limit") == 2
    assert found.value("kgserve_store_nodes", store="three") == 1
    assert found.value("kgserve_store_writes_total", store="three") == 1
    assert (found.value("kgserve_commit_duration_seconds_count") or 0) >= 3
    assert (found.value("kgserve_commit_phase_seconds_total", phase="journal") or 0) > 0


def test_view_lag_reaches_zero(client: httpx.Client) -> None:
    accepted(inject(client, "lagging", "a"))
    views = {"keyword", "vector", "past-keyword", "past-vector", "history"}
    assert set(scrape(client).by("view", "kgserve_store_view_lag_commits", store="lagging")) == views
    eventually(
        lambda: scrape(client).by("view", "kgserve_store_view_lag_commits", store="lagging") == dict.fromkeys(views, 0)
    )
    assert (scrape(client).value("kgserve_embedded_texts_total", outcome="ok") or 0) >= 1


def test_store_check_is_a_metric(client: httpx.Client, watched: RunningServer) -> None:
    accepted(inject(client, "checked", "a"))
    assert scrape(client).value("kgserve_store_last_check_ok", store="checked") is None
    with pool_of(watched).lease("checked") as store:
        store.check()
    found = scrape(client)
    assert found.value("kgserve_store_last_check_ok", store="checked") == 1
    checked_at = found.value("kgserve_store_last_check_timestamp_seconds", store="checked")
    assert abs((checked_at or 0) - time.time()) < 600
    assert (found.value("kgserve_checks_total", outcome="agreed") or 0) >= 1
    listed = next(each for each in accepted(client.get("/api/memory"))["stores"] if each["name"] == "checked")
    assert listed["last_check_ok"] is True
    assert listed["lag"] >= 0
    assert accepted(client.get("/api/memory/checked/stats"))["history_lag"] >= 0


def test_scrape_does_not_wait_for_commits(client: httpx.Client, watched: RunningServer) -> None:
    accepted(inject(client, "busy", "a"))
    with pool_of(watched).lease("busy") as store, held(store), closing(inject_later(watched, "busy")):
        # The writer may still be finishing the first write; the gauge shows that the second has arrived.
        eventually(lambda: (scrape(client).value("kgserve_requests_in_progress") or 0) >= 2)
        eventually(lambda: store.writing)
        assert scrape(client).value("kgserve_store_nodes", store="busy") == 1


def inject_later(served: RunningServer, store: str) -> Any:
    """Send a write without waiting for its response."""
    import socket

    body = msgspec.json.encode({"nodes": [{"id": "later", "type": "hen"}]})
    connection = socket.create_connection(("127.0.0.1", served.port), PATIENCE)
    head = f"POST /api/memory/{store}/inject HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_tool_calls_are_counted(client: httpx.Client) -> None:
    def counted() -> list[float]:
        found = scrape(client)
        values = (
            found.value("kgserve_tool_calls_total", tool="list_stores", outcome="ok"),
            found.value("kgserve_tool_calls_total", tool="describe_store", outcome="error"),
            found.value("kgserve_tool_duration_seconds_count", tool="list_stores"),
        )
        return [value or 0 for value in values]

    before, talk = counted(), Stateless(client)
    talk.call("list_stores", {})
    talk.call("describe_store", {"store": "there is none"})
    assert counted() == [value + 1 for value in before]


def test_event_streams_are_counted_without_latency(client: httpx.Client) -> None:
    route = "/api/memory/{store}/events"
    accepted(inject(client, "followed", "a"))
    with client.stream("GET", "/api/memory/followed/events") as stream, httpx.Client(base_url=client.base_url) as other:
        assert stream.status_code == 200
        assert scrape(other).value("kgserve_event_streams") == 1
    eventually(lambda: scrape(client).value("kgserve_event_streams") == 0)
    eventually(lambda: scrape(client).value("kgserve_requests_total", route=route) == 1)
    assert scrape(client).value("kgserve_request_duration_seconds_count", route=route) == 0


def test_metrics_of_a_restricted_key(client: httpx.Client, watched: RunningServer) -> None:
    for name in ("mine-1", "theirs"):
        accepted(inject(client, name, "a"))
    seen = AuthenticatedCaller("reader", "read", ("mine-*",), "k1")
    body, _ = collected(CallerStoreHandles(pool_of(watched)), seen, HttpTransportMetrics(1, 0, 64), "")
    found = MetricsScrape.read(body.decode())
    assert set(found.by("store", "kgserve_store_sequence")) == {"mine-1"}
    assert "theirs" not in body.decode()
    shown = {name for name in found.samples if not name.startswith("kgserve_store_")}
    assert shown == {"kgserve_build_info"}


def test_dashboard_and_alerts_use_existing_metrics(
    client: httpx.Client, watched: RunningServer, tmp_path: Path
) -> None:
    accepted(inject(client, "charted", "a"))
    pool = pool_of(watched)
    with pool.lease("charted") as store:
        store.check()
    back_up_single_store(pool, tmp_path / "backups", "charted", BackupOptions(live=True))
    Stateless(client).call("list_stores", {})
    assert client.get("/nowhere").status_code == 404
    eventually(lambda: "kgserve_refusals_total" in scrape(client).samples)
    there = scrape(client).samples.keys()
    dashboard = msgspec.json.decode((TOP / "deploy/grafana/kgserve.json").read_bytes())
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    alerts = yaml.safe_load((TOP / "deploy/prometheus/alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    named = {
        name
        for text in (*drawn, *(rule["expr"] for rule in rules))
        for name in re.findall(r"\b(?:kgserve|process)_\w+", text)
    }
    of_nodes = {
        name for name in named if name.startswith("kgserve_cluster_")
    }  # tests/cluster/test_nodes.py covers some.
    # Only with TLS, with a replication target, and on a follower; tests of replication cover the latter.
    assert named - there - of_nodes == {
        "kgserve_certificate_end_timestamp_seconds",
        "kgserve_replication_age_seconds",
        "kgserve_replication_pending_stores",
        "kgserve_follower_age_seconds",
    }
    unused = {re.sub(r"_(bucket|count|sum)$", "", name) for name in there} - {
        re.sub(r"_(bucket|count|sum)$", "", name) for name in named
    }
    assert unused <= {"process_virtual_memory_bytes", "kgserve_store_sequence", "kgserve_event_streams_limit"}
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules)
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in rules)


def test_limits_are_metrics(client: httpx.Client, watched: RunningServer, tmp_path: Path) -> None:
    accepted(inject(client, "kept", "a"))
    before = scrape(client)
    disk = shutil.disk_usage(pool_of(watched).data_dir)
    assert before.value("kgserve_disk_size_bytes") == disk.total
    assert 0 < (before.value("kgserve_disk_free_bytes") or 0) <= disk.total
    assert before.value("kgserve_store_last_backup_timestamp_seconds", store="kept") is None
    began = time.time()
    back_up_single_store(pool_of(watched), tmp_path / "backups", "kept", BackupOptions(live=True))
    made = scrape(client).value("kgserve_store_last_backup_timestamp_seconds", store="kept")
    assert made is not None
    assert began <= made <= time.time()
    assert scrape(client).value("kgserve_store_engine_lag_commits", store="kept") == 1
    asked = {"query": "MATCH (n:Entity) RETURN count(n)"}
    accepted(client.post("/api/memory/kept/cypher", json=asked))
    assert scrape(client).value("kgserve_store_engine_lag_commits", store="kept") == 0


def test_dashboard_is_valid_for_grafana() -> None:
    dashboard = msgspec.json.decode((TOP / "deploy/grafana/kgserve.json").read_bytes())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= dashboard.keys()
    assert {each["name"] for each in dashboard["templating"]["list"]} == {"datasource", "job", "instance", "store"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["expr"].count("(") == target["expr"].count(")"), target["expr"]
            assert target["expr"].count("{") == target["expr"].count("}"), target["expr"]


def test_a_slow_write_has_lines_with_its_request_id_and_parts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_process(data, "--slow-ms", "1", "--embedding-provider", "hashing") as server:
        nodes = [{"id": f"n{number}", "type": "hen", "content": "secret words"} for number in range(600)]
        answer = httpx.post(
            f"{server.url}/api/memory/slow/inject",
            json={"nodes": nodes},
            headers={"x-request-id": "slow-one"},
            timeout=60,
        )
        assert answer.is_success, answer.text
        asked = {"query": "MATCH (n:Entity {content: 'secret words'}) RETURN count(n) AS hidden_name"}
        url = f"{server.url}/api/memory/slow/cypher"
        assert httpx.post(url, json=asked, headers={"x-request-id": "asked"}, timeout=60).is_success
    lines = [msgspec.json.decode(line) for line in data.with_suffix(".log").read_text().splitlines()]
    slow = {(line["kind"], line.get("request_id")): line for line in lines if line["event"] == "slow_operation"}
    commit = slow["commit", "slow-one"]
    assert (commit["store"], commit["writes"], commit["rows"]) == ("slow", 1, 600)
    assert {"plan", "journal", "rows"} <= commit["parts_ms"].keys()
    request = slow["request", "slow-one"]
    assert (request["route"], request["method"], request["store"], request["status"]) == (INJECT, "POST", "slow", 200)
    assert request["caller"]
    assert {"queue", "plan", "journal", "rows"} <= request["parts_ms"].keys()
    assert request["ms"] >= commit["ms"]
    queries = [line["query"] for line in lines if line["event"] == "slow_operation" and line["kind"] == "query"]
    assert queries
    assert not any("secret" in query or "hidden_name" in query for query in queries)
