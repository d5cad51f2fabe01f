"""Limits of one caller on shared resources. The pools are tested in tests/server/test_admission.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.platform.gil_yield import fair_pause_seconds
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.server.admission import ACTIVE_CALLER_SECONDS, ActiveCallers, ActiveRequestCounter
from tests.platform.access.keys import bearer, given
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving
from tests.server.http.sockets import eventually
from tests.server.mcp.talking import Stateless

BATCH = {"nodes": [{"id": "n", "type": "t", "content": "words"}], "edges": []}
MANY = 20
WAITS = 24


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("fair") / "data"
    with serving(data, max_waits_per_key=WAITS, max_transfers_per_key=1) as running:
        yield running


@pytest.fixture
def http(served: RunningServer) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=served.url, timeout=PATIENCE, limits=limits) as client:
        yield client


def indexes_of(served: RunningServer, name: str) -> CurrentAndPastTextIndexes:
    [indexer] = [each for each in served.pool.companions if isinstance(each, TextIndexWorker)]
    with served.pool.lease(name) as store:
        return indexer.of(store)


@contextmanager
def held_up(served: RunningServer, name: str) -> Generator[None]:
    """Block indexing of a store until the end of the block."""
    keyword = indexes_of(served, name).keyword
    eventually(lambda: keyword.sequence > 0)
    with keyword._step_lock:
        yield


def search(http: httpx.Client, name: str, at_least: int) -> httpx.Response:
    return http.post(f"/api/memory/{name}/search", json={"query": "words", "mode": "keyword", "at_least": at_least})


def call(http: httpx.Client, name: str, at_least: int) -> dict[str, Any]:
    arguments = {"query": "words", "mode": "keyword", "index": name, "at_least": at_least}
    return Stateless(http).call("search_knowledge", arguments)


def waiting(http: httpx.Client) -> int:
    return int(float(next(line.split()[1] for line in metrics(http) if 'shared{what="index_waits"}' in line)))


def metrics(http: httpx.Client) -> list[str]:
    return http.get("/metrics").text.splitlines()


def test_waiting_searches_do_not_block_others(served: RunningServer, http: httpx.Client) -> None:
    for name in ("slow", "quick"):
        accepted(http.post(f"/api/memory/{name}/inject", json=BATCH))
    assert search(http, "quick", 1).status_code == 200
    with ThreadPoolExecutor(2 * MANY) as clients:
        with held_up(served, "slow"):
            new = accepted(http.post("/api/memory/slow/inject", json={"nodes": [{"id": "m", "type": "t"}]}))["sequence"]
            over_rest = [clients.submit(search, http, "slow", new) for _ in range(MANY // 2)]
            over_mcp = [clients.submit(call, http, "slow", new) for _ in range(MANY // 2)]
            eventually(lambda: waiting(http) == MANY)
            for path in ("/ready", "/api/memory/quick/stats", "/api/memory/quick/nodes/n", "/api/memory/slow/nodes/n"):
                assert http.get(path).status_code == 200
            accepted(http.post("/api/memory/quick/traverse", json={"start_id": "n", "depth": 3}))
            accepted(http.post("/api/memory/slow/traverse", json={"start_id": "n", "depth": 3}))
            assert search(http, "quick", 1).status_code == 200
            assert not call(http, "quick", 1)["isError"]
            assert waiting(http) == MANY
        assert {each.result().status_code for each in over_rest} == {200}
        assert not any(each.result()["isError"] for each in over_mcp)
    assert waiting(http) == 0


def test_waiting_search_quota_per_caller(served: RunningServer, http: httpx.Client) -> None:
    accepted(http.post("/api/memory/crowded/inject", json=BATCH))
    with ThreadPoolExecutor(WAITS) as clients, held_up(served, "crowded"):
        new = accepted(http.post("/api/memory/crowded/inject", json={"nodes": [{"id": "m", "type": "t"}]}))["sequence"]
        waits = [clients.submit(search, http, "crowded", new) for _ in range(WAITS)]
        eventually(lambda: waiting(http) == WAITS)
        refused = search(http, "crowded", new)
        assert "of your requests are waiting" in refusal(refused, 429)["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert 'kgserve_share_refusals_total{what="index_waits"} 1.0' in metrics(http)
        assert not any(map(Future.done, waits))


def test_index_wait_has_a_timeout(served: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.graph.search.node_search.AT_LEAST_TIMEOUT_SECONDS", 0.2)
    accepted(http.post("/api/memory/ending/inject", json=BATCH))
    with held_up(served, "ending"):
        new = accepted(http.post("/api/memory/ending/inject", json={"nodes": [{"id": "m", "type": "t"}]}))["sequence"]
        assert "only 1" in refusal(search(http, "ending", new), 503)["detail"]


def test_transfer_quota_per_caller(served: RunningServer, http: httpx.Client) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def lines() -> Iterator[bytes]:
        yield b'{"kind": "node", "id": "a", "type": "t"}\n'
        begun.set()
        assert go_on.wait(PATIENCE)

    def send() -> httpx.Response:
        return http.post("/api/memory/sent/import", content=lines(), headers={"content-type": "application/x-ndjson"})

    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(send)
        assert begun.wait(PATIENCE)
        eventually(lambda: http.get("/api/memory/sent").status_code == 200)
        for refused in (http.post("/api/memory/other/import", content=b""), http.get("/api/memory/sent/export")):
            assert "of your imports and exports are already open" in refusal(refused, 429)["detail"]
        go_on.set()
        assert first.result().status_code == 200
    assert http.get("/api/memory/sent/export").status_code == 200


def test_each_key_has_its_own_share(tmp_path: Path) -> None:
    keys = [bearer(given(tmp_path, "write", name=name)) for name in ("greedy", "modest")]
    with serving(tmp_path, max_waits_per_key=1) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        accepted(http.post("/api/memory/s/inject", json=BATCH, headers=keys[0]))
        with ThreadPoolExecutor(2) as clients, held_up(served, "s"):
            nodes = {"nodes": [{"id": "m", "type": "t"}]}
            new = accepted(http.post("/api/memory/s/inject", json=nodes, headers=keys[0]))["sequence"]
            asked = {"query": "words", "mode": "keyword", "at_least": new}

            def wait(key: dict[str, str]) -> httpx.Response:
                return http.post("/api/memory/s/search", json=asked, headers=key)

            waits = [clients.submit(wait, key) for key in keys]
            taken = 'kgserve_shared{what="index_waits"} 2.0'
            eventually(lambda: taken in http.get("/metrics", headers=keys[0]).text.splitlines())
            assert [wait(key).status_code for key in keys] == [429, 429]
        assert {each.result().status_code for each in waits} == {200}


def test_indexing_yields_to_several_active_callers(tmp_path: Path) -> None:
    keys = [bearer(given(tmp_path, "write", name=name)) for name in ("one", "two")]
    with serving(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        accepted(http.post("/api/memory/s/inject", json=BATCH, headers=keys[0]))
        schedule = indexes_of(served, "s").vector.schedule
        assert not schedule.are_others_served()
        accepted(http.get("/api/memory/s/nodes/n", headers=keys[1]))
        assert schedule.are_others_served()


def test_long_request_yields_to_other_callers() -> None:
    callers = ActiveCallers()
    use = ActiveRequestCounter(callers)

    def ask(*askers: str) -> None:
        for each in askers:
            time.sleep(0.001)
            use.begin()
            callers.record_request(each)

    ask("one", "mine")
    since = use.begun
    assert use.count_other_callers("mine", since) == 0
    ask("mine")
    assert use.count_other_callers("mine", since) == 1
    ask("other", "one", "other")
    assert use.count_other_callers("mine", since) == 2
    use.begun -= 2 * ACTIVE_CALLER_SECONDS
    assert use.count_other_callers("mine", since - 3 * ACTIVE_CALLER_SECONDS) == 0
    assert [fair_pause_seconds(0.1, others) for others in (0, 1, 3, 100)] == pytest.approx([0, 0.1, 0.3, 1])
