from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kgserve
from kgserve.client import Client
from kgserve.client.embedded import Library
from tests.server.http.serving import RunningServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the path of a data folder that does not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def library(folder: Path) -> Iterator[Library]:
    """Yield that folder, opened in this process."""
    with kgserve.open(folder, embedding_provider="hashing") as library:
        yield library


@pytest.fixture(scope="package")
def client(served: RunningServer) -> Iterator[Client]:
    """Yield a client of the server that all tests of a worker process share."""
    with Client(served.url) as client:
        yield client
