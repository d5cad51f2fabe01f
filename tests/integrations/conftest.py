from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgserve.client import Client, Store
from tests.server.http.serving import RunningServer


@pytest.fixture(scope="package")
def client(served: RunningServer) -> Iterator[Client]:
    """Yield a client of the server that all tests of a worker process share."""
    with Client(served.url) as client:
        yield client


@pytest.fixture
def graph(client: Client, store: str) -> Store:
    """Return a store that no other test uses and that does not exist yet."""
    return client.store(store)
