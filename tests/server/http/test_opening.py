"""Many concurrent requests for a store that is not open yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.server.http.serving import accepted, serving

CLIENTS = 30


def test_concurrent_requests_wait_for_opening(tmp_path: Path) -> None:
    def write(number: int) -> int:
        body = {"nodes": [{"id": f"n{number}", "type": "t"}]}
        return client.post("/api/memory/new/inject", json=body).status_code

    def read(number: int) -> int:
        return client.get(f"/api/memory/new/nodes/n{number}").status_code

    limits = httpx.Limits(max_connections=CLIENTS)
    for work in (write, read):
        with (
            serving(tmp_path / "data") as served,
            httpx.Client(base_url=served.url, limits=limits, timeout=30) as client,
            ThreadPoolExecutor(CLIENTS) as threads,
        ):
            assert list(threads.map(work, range(CLIENTS))) == [200] * CLIENTS
            assert accepted(client.get("/api/memory/new/stats"))["nodes"] == CLIENTS
