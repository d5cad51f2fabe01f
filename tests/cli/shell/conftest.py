from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import httpx
import pytest

from tests.cli.running import ServerProcessHandle, serving

_numbers = count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Yield one server for all tests of a worker process."""
    # No statement ends before it is interrupted.
    variables = {"KGSERVE_INDEXES": "false", "KGSERVE_QUERY_TIMEOUT": "600"}
    with serving(tmp_path_factory.mktemp("shell") / "data", variables=variables) as running:
        yield running


@pytest.fixture
def store(server: ServerProcessHandle) -> str:
    """Return a store of three letters, two of them related, that no other test uses."""
    name = f"s{next(_numbers)}-letters"
    nodes = [{"id": each, "type": "letter", "content": f'the "{each}",\nand more'} for each in "abc"]
    nodes[2] |= {"type": "rare letter", "content": ""}
    edges = [
        {"from": "a", "to": "b", "relation_type": "BEFORE"},
        {"from": "c", "to": "b", "relation_type": "AFTER"},
    ]
    answer = httpx.post(f"{server.url}/api/memory/{name}/inject", json={"nodes": nodes, "edges": edges})
    assert answer.is_success, answer.text
    return name


@pytest.fixture(scope="package")
def crowd(server: ServerProcessHandle) -> str:
    """Return a store that is so large that a query takes longer than any test."""
    nodes = [{"id": f"n{number:04}", "type": "thing"} for number in range(1500)]
    assert httpx.post(f"{server.url}/api/memory/crowd/inject", json={"nodes": nodes}).is_success
    return "crowd"
