from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.conformance.agent import Agent
from tests.embedding.prepared import model_settings
from tests.server.http.serving import RunningServer, serving


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serve with the local embedding model, as a fresh installation does."""
    data = tmp_path_factory.mktemp("conformance") / "data"
    with serving(
        data, embedding_provider="local", models_dir=model_settings().models_dir, max_open_stores=8
    ) as running:
        yield running


@pytest.fixture
def http(served: RunningServer, store: str) -> Iterator[httpx.Client]:
    """Yield a client of the server for a store that no other test uses."""
    with httpx.Client(base_url=served.url, headers={"Kgserve-Store": store}, timeout=60) as client:
        yield client


@pytest.fixture
def agent(http: httpx.Client, store: str) -> Agent:
    """Return an MCP client of the same store."""
    return Agent(http, store)
