from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, serving
from tests.project.bolt_port import bolt_port
from tests.project.ready_commands import ready_commands


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """One server for all tests of a worker process; each test uses stores of its own."""
    data = tmp_path_factory.mktemp("served") / "data"
    with serving(data, "--bolt-port", str(bolt_port())) as running:
        yield running


@pytest.fixture
def empty_server(server: ServerProcessHandle) -> ServerProcessHandle:
    """The worker's server, without any store: what earlier tests have left is dropped."""
    with httpx.Client(base_url=server.url, timeout=SERVER_TIMEOUT_SECONDS) as client:
        for store in client.get("/api/memory").raise_for_status().json()["stores"]:
            client.delete(f"/api/memory/{store['name']}", params={"confirm": store["name"]}).raise_for_status()
    return server


@pytest.fixture(scope="package")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the programs that examples call; those that are installed, where coverage has to see them."""
    if "COVERAGE_PROCESS_CONFIG" in environment():
        yield Path(sys.executable).parent
        return
    with ready_commands(tmp_path_factory.mktemp("bin")) as folder:
        yield folder
