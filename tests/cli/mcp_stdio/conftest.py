from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.platform.server_discovery import find_running_server_of_data_folder
from tests.cli.mcp_stdio.editor import SMALL
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, serving
from tests.stores.writing import until


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Yield one server for all tests of a worker process; each test uses its own stores."""
    with serving(tmp_path_factory.mktemp("bridged") / "data", variables=SMALL) as running:
        yield running


@pytest.fixture(scope="package")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the data folder of a slow server, with its log next to it."""
    data = tmp_path_factory.mktemp("slow") / "data"
    log = data.with_suffix(".log").open("w")
    command = [sys.executable, "-m", "tests.cli.mcp_stdio.slow_server", str(data)]
    with log, subprocess.Popen(command, stderr=log, env=environment()) as process:
        try:
            until(lambda: find_running_server_of_data_folder(data) is not None)
            yield data
        finally:
            process.terminate()
            process.wait(SERVER_TIMEOUT_SECONDS)
