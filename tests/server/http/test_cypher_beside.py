"""Statements concurrent with reads, and with shutdown."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from kgserve.platform.metrics.exposition import MetricsScrape
from tests.server.http.asking import ENDLESS, UNLIMITED, ask, post, values
from tests.server.http.serving import PATIENCE, accepted, refusal, serving
from tests.stores.writing import until


def scrape(http: httpx.Client) -> MetricsScrape:
    return MetricsScrape.read(http.get(http.base_url.join("/metrics")).text)


def test_reads_continue_during_writing_statements(tmp_path: Path) -> None:
    """One statement writes for long, and more of them wait than there are read threads."""
    long = ENDLESS.replace(
        "RETURN count(i + j + k)", "WITH count(i + j + k) AS n CREATE (:Entity {id: 'x', type: 't'})"
    )
    with (
        serving(tmp_path / "data", read_connections=1) as served,
        httpx.Client(base_url=f"{served.url}/api/memory/demo", timeout=60, limits=UNLIMITED) as http,
        ThreadPoolExecutor(20) as threads,
    ):
        accepted(http.post("/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        first = threads.submit(post, http, "", long, mode="write", timeout_ms=2_500)
        until(lambda: scrape(http).value("kgserve_requests_in_progress") == 2)  # That statement, and the query.
        text = "CREATE (:Entity {{id: 'w{}', type: 't'}})"
        writes = [threads.submit(post, http, "", text.format(i), mode="write") for i in range(18)]
        counts: list[int] = []
        while not first.done():
            [[count]] = ask(http, "", "MATCH (n) RETURN count(*)")["rows"]
            counts.append(count)
        assert counts[0] == 1, "it was answered before the first statement, and those behind it, had ended"
        refusal(first.result(), 408)
        assert {write.result().status_code for write in writes} == {200}
        assert ask(http, "", "MATCH (n) RETURN count(*)")["rows"] == [[19]]


def test_shutdown_interrupts_a_statement(tmp_path: Path) -> None:
    statuses: list[int] = []

    def hang(url: str) -> None:
        try:
            statuses.append(
                httpx.post(f"{url}/api/memory/demo/cypher", json={"query": ENDLESS}, timeout=60).status_code
            )
        except httpx.TransportError:
            statuses.append(0)

    with serving(tmp_path / "data", shutdown_grace=2) as served:
        accepted(httpx.post(f"{served.url}/api/memory/demo/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        waiting = threading.Thread(target=hang, args=(served.url,))
        waiting.start()
        time.sleep(0.5)
        stopped = time.perf_counter()
    waiting.join()
    assert time.perf_counter() - stopped < PATIENCE
    assert statuses[0] in {0, 408, 503}
    with serving(tmp_path / "data") as served, httpx.Client(base_url=served.url) as http:
        assert values(http, "/api/memory/demo", "MATCH (n) RETURN n.id") == ["a"]
