from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.cli.running import PATIENCE, Running, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests of a worker process; each test uses stores of its own."""
    with serving(tmp_path_factory.mktemp("served") / "data") as running:
        yield running


@pytest.fixture
def empty_server(server: Running) -> Running:
    """The worker's server, without any store: what earlier tests have left is dropped."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for store in client.get("/api/memory").raise_for_status().json()["stores"]:
            client.delete(f"/api/memory/{store['name']}", params={"confirm": store["name"]}).raise_for_status()
    return server
