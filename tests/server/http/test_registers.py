"""Single keys over all interfaces concurrently, as in `bench.linearizability`, while bases are compacted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from bench.register_clients import StoreUnderTest, initial_inject, make_store_clients
from kgserve.storage.rows.current_rows import DeltaMergeLimits
from tests.server.http.serving import accepted, serving

OPERATIONS = 200


def test_each_key_is_linearizable_over_all_interfaces(tmp_path: Path) -> None:
    site = StoreUnderTest("registers", seed=1, most=OPERATIONS)
    with serving(tmp_path) as served:
        with httpx.Client(base_url=served.url, timeout=30) as http:
            accepted(http.put(f"/api/memory/{site.store}", json={"conflict_policy": "manual"}), 201)
            accepted(http.post(f"/api/memory/{site.store}/inject", content=initial_inject()))
        with served.pool.lease(site.store) as store:
            store.rows.limits = DeltaMergeLimits(rows=20)
            asyncio.run(_visited(site, served.url))
            assert store.rows.folds > 0
    assert site.violations() == []
    assert {face for face, _, _ in site.counts} == {"REST", "MCP"}


async def _visited(site: StoreUnderTest, url: str) -> None:
    site.begins(url)
    clients = [
        asyncio.create_task(each.stay()) for each in make_store_clients(site, rest_clients=3, modes=("auto", "legacy"))
    ]
    await asyncio.gather(*clients)
