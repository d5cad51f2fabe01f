from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgserve.client import Client
from tests.client.scripted import ScriptedServer, answering
from tests.server.http.serving import RunningServer


@pytest.fixture(scope="package")
def client(served: RunningServer) -> Iterator[Client]:
    """Yield a client of the server that all tests of a worker process share."""
    with Client(served.url) as client:
        yield client


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """Yield a server with scripted answers."""
    with answering() as server:
        yield server
