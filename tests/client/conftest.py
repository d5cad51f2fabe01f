from __future__ import annotations

from collections.abc import Iterator

import pytest

from kgserve.client import Client
from tests.client.scripted import Scripted, answering
from tests.server.http.serving import Served


@pytest.fixture(scope="package")
def client(served: Served) -> Iterator[Client]:
    """A client of the server that all tests of a worker process share."""
    with Client(served.url) as client:
        yield client


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A server that says what the test has written down."""
    with answering() as server:
        yield server
