from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.cli.running import ServerProcessHandle, serving
from tests.mcp_clients.packages import installed
from tests.mcp_clients.suite import Run, running

_numbers = count(1)


class ServerAccess(msgspec.Struct, frozen=True):
    """Access of a client to the server: at ``url`` with ``headers``, or through the bridge that ``command`` starts."""

    url: str | None
    command: list[str] | None
    headers: dict[str, str] = {}


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Yield one server process for all tests of a worker process; each test uses its own store."""
    with serving(tmp_path_factory.mktemp("served") / "data", "--embedding-provider", "hashing") as running:
        yield running


@pytest.fixture(params=["http", "bridge"])
def way(request: pytest.FixtureRequest, server: ServerProcessHandle) -> ServerAccess:
    """Return each kind of access to the server."""
    return way_to(server, "all", bridge=request.param == "bridge")


def way_to(server: ServerProcessHandle, tools: str, *, bridge: bool) -> ServerAccess:
    """Return access to the server with a certain tool set."""
    if not bridge:
        return ServerAccess(f"{server.url}/mcp?tools={tools}&answers=both", None)
    wishes = ["--data", str(server.data), "--tools", tools, "--answers", "both"]
    return ServerAccess(None, [sys.executable, "-m", "kgserve", "mcp", *wishes])


@pytest.fixture
def store() -> str:
    """Return the name of a store that no other test uses."""
    return f"client-{next(_numbers)}"


@pytest.fixture(scope="package")
def packages(npm_packages: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder with the installed npm clients.

    The first use starts the protocol's conformance suite, which takes 20 s of mostly waiting; its result is checked
    last.
    """
    if any("runs" in item.fixturenames for item in request.session.items if isinstance(item, pytest.Function)):
        request.getfixturevalue("runs")
    return npm_packages


@pytest.fixture(scope="package")
def runs(npm_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Run]]:
    """Yield the running conformance suite by protocol version, against a server of its own."""
    folder = tmp_path_factory.mktemp("suite")
    with (
        serving(folder / "data", "--embedding-provider", "hashing") as server,
        running(npm_packages, server.url, folder) as begun,
    ):
        yield begun


@pytest.fixture(scope="session")
def npm_packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same folder; worker processes share the outcome of the installation."""
    base = tmp_path_factory.getbasetemp()
    return installed((base.parent if hasattr(request.config, "workerinput") else base) / "no-mcp-clients")
