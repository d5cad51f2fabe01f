from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import httpx
import pytest

from tests.cli.running import ServerProcessHandle, serving
from tests.server.mcp.talking import MODES, Mode, lines

_numbers = count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """One server process for all tests of a worker process; each test uses stores of its own."""
    data = tmp_path_factory.mktemp("served") / "data"
    with serving(data, "--embedding-provider", "hashing") as running, lines(running.url):
        yield running


@pytest.fixture
def bare(server: ServerProcessHandle) -> Iterator[httpx.Client]:
    """A connection to that server."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Protocol revision: session-based or stateless."""
    return request.param


@pytest.fixture
def store() -> str:
    """Name of a store that no other test uses."""
    return f"mcp-{next(_numbers)}"
