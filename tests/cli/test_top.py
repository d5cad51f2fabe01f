"""``kgserve top``: one frame for scripts, and the live view on a real pseudo-terminal."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from kgserve.cli.top import (
    StoreMetricsRow,
    TimedMetricsScrape,
    compute_server_overview_from_scrapes,
    sort_store_metrics_rows,
)
from kgserve.platform.metrics.exposition import MetricsScrape
from tests.cli.running import ServerProcessHandle, kgserve, serving
from tests.cli.screen import Screen

TOP_TIMEOUT_SECONDS = 60.0
QUICK = {"KGSERVE_INDEXES": "false"}


def inject(server: ServerProcessHandle, store: str, *ids: str) -> None:
    nodes = [{"id": each, "type": "hen"} for each in ids]
    httpx.post(f"{server.url}/api/memory/{store}/inject", json={"nodes": nodes}).raise_for_status()


def watching(*options: str, width: int = 120, height: int = 70) -> Screen:
    return Screen(["top", "--interval", "0.2", *options], width, height)


def leave(screen: Screen, key: str) -> int:
    """Press a key that ends it. Return its exit code."""
    screen.type(key)
    return screen.end()


def test_once_prints_one_frame(server: ServerProcessHandle) -> None:
    inject(server, "topmost", "a", "b")
    done = kgserve("top", "--once", "--interval", "0.3", "--sort", "nodes", "--data", server.data)
    assert done.code == 0, done.err
    assert f"at {server.url}" in done.out
    assert re.search(r"memory \d+\.\d MiB", done.out)
    assert re.search(r"^\s*topmost\s+\d+\.\d\s+\d+\s+0\s+2\b", done.out, re.MULTILINE), done.out
    assert "quits" not in done.out
    assert "\x1b" not in done.out


def test_engine_processes_are_shown(server: ServerProcessHandle) -> None:
    inject(server, "asked", "a", "b")
    query = {"query": "MATCH (e:Entity) RETURN count(*)"}
    httpx.post(f"{server.url}/api/memory/asked/cypher", json=query).raise_for_status()
    done = kgserve("top", "--once", "--interval", "0.2", "--sort", "engine", "--data", server.data)
    assert done.code == 0, done.err
    assert re.search(r"engines \d+/16\s+engine memory \d+\.\d MiB", done.out), done.out
    assert re.search(r"^\s*asked\s.*\s\d+\.\d MiB\s", done.out, re.MULTILINE), done.out


def test_a_pipe_is_rejected(server: ServerProcessHandle) -> None:
    done = kgserve("top", "--server", server.url)
    assert done.code == 2
    assert "--once" in done.err


def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    done = kgserve("top", "--once", "--server", "127.0.0.1:9")
    assert done.code == 3
    assert "no server answers" in done.err


def test_a_server_other_than_kgserve_is_reported(server: ServerProcessHandle) -> None:
    done = kgserve("top", "--once", "--server", f"{server.url}/docs")
    assert done.code == 1
    assert done.err.strip()


def test_keys_sort_and_quit(server: ServerProcessHandle) -> None:
    inject(server, "alive", "a", "b", "c")
    with watching("--server", server.url) as screen:
        screen.see(r"^\s*alive\s+\d+\.\d\s")
        screen.see(r"now: writes")
        screen.type("s")
        screen.see(r"now: lag")
        inject(server, "newcomer", "a")
        screen.see(r"^\s*newcomer\s")
        assert leave(screen, "q") == 0


def test_a_narrow_and_low_terminal_shows_what_fits(server: ServerProcessHandle) -> None:
    for number in range(3):
        inject(server, f"a-store-with-a-rather-long-name-{number}", "a")
    with watching("--server", server.url, "--sort", "name", width=40, height=14) as screen:
        screen.see(r"Store\s+Writes/s\s+Lag$")
        screen.see(r"^\s*a-store-with\S*…\s+0\.0\s+\d+$")
        screen.see(r"… and \d+ more")
        screen.see(r"^q quits")
        assert max(len(line) for line in screen.shown.splitlines()) <= 40
        assert leave(screen, "q") == 0


@pytest.mark.slow
def test_a_stopped_server_is_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, variables=QUICK) as first:
        inject(first, "kept", "a")
        with watching("--data", str(data)) as screen:
            screen.see(r"^\s*kept\s")
            first.process.terminate()
            first.process.wait(TOP_TIMEOUT_SECONDS)
            screen.see(r"No answer since [\d:]+, retrying: ")
            screen.see(r"^\s*kept\s")
            assert f"at {first.url}" in screen.shown
            with serving(data, variables=QUICK) as second:
                inject(second, "new", "a")
                screen.see(rf"at {second.url}")
                screen.see(r"^\s*new\s")
                assert "trying again" not in screen.shown
                assert leave(screen, "q") == 0


BEFORE = """
kgserve_requests_total{method="GET",route="/health",status="200"} 10
kgserve_requests_total{method="GET",route="/metrics",status="200"} 5
kgserve_requests_total{method="GET",route="unmatched",status="404"} 1
kgserve_request_duration_seconds_bucket{le="0.1",method="GET",route="/health"} 10
kgserve_request_duration_seconds_bucket{le="+Inf",method="GET",route="/health"} 10
kgserve_store_nodes{store="a"} 1
kgserve_store_writes_total{store="a"} 7
"""
AFTER = """
kgserve_requests_total{method="GET",route="/health",status="200"} 30
kgserve_requests_total{method="GET",route="/metrics",status="200"} 6
kgserve_requests_total{method="GET",route="unmatched",status="404"} 5
kgserve_request_duration_seconds_bucket{le="0.1",method="GET",route="/health"} 30
kgserve_request_duration_seconds_bucket{le="+Inf",method="GET",route="/health"} 30
kgserve_store_nodes{store="a"} 3
kgserve_store_nodes{store="b"} 1
kgserve_store_writes_total{store="a"} 11
kgserve_store_writes_total{store="b"} 400
kgserve_store_view_lag_commits{store="a",view="keyword"} 2
kgserve_store_view_lag_commits{store="a",view="vector"} 9
kgserve_store_last_check_ok{store="a"} 0
kgserve_store_engine_process_bytes{store="a"} 3e7
kgserve_store_engine_process_bytes{store="b"} 1e7
kgserve_store_waiting_statements{store="a"} 4
kgserve_store_engine_losses_total{store="b"} 2
"""


def test_rates_cover_the_time_between_two_scrapes() -> None:
    seen = compute_server_overview_from_scrapes(
        TimedMetricsScrape(10.0, MetricsScrape.read(BEFORE)), TimedMetricsScrape(12.0, MetricsScrape.read(AFTER))
    )
    assert seen.requests == pytest.approx(12.0)  # its own scrapes are excluded
    assert seen.errors == pytest.approx(2.0)
    assert seen.p95 == pytest.approx(0.095)
    assert seen.writes == pytest.approx(2.0)  # a new store has no rate yet
    assert seen.memory is None
    by_name = {store.name: store for store in seen.stores}
    assert (by_name["a"].lag, by_name["a"].check, by_name["b"].check) == (9, False, None)
    assert (by_name["a"].engine, by_name["a"].waiting, by_name["b"].lost) == (30_000_000, 4, 2)
    assert seen.engine_memory == 40_000_000


def test_a_restarted_server_has_no_negative_rates() -> None:
    seen = compute_server_overview_from_scrapes(
        TimedMetricsScrape(10.0, MetricsScrape.read(AFTER)), TimedMetricsScrape(12.0, MetricsScrape.read(BEFORE))
    )
    assert (seen.requests, seen.errors, seen.p95, seen.writes) == (0.0, 0.0, None, 0.0)


def test_sort_orders() -> None:
    def line(name: str, nodes: int) -> StoreMetricsRow:
        return StoreMetricsRow(name, nodes, 0, 0, 0.0, 0, 0, 0, None)

    stores = [line("b", 1), line("c", 5), line("a", 1)]
    assert [each.name for each in sort_store_metrics_rows(stores, "nodes")] == ["c", "a", "b"]
    assert [each.name for each in sort_store_metrics_rows(stores, "name")] == ["a", "b", "c"]
