from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.bolt.running import RunningServer, running
from tests.server.bolt.scripted_backend import ScriptedBackend


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def server(backend: ScriptedBackend) -> Iterator[RunningServer]:
    with running(backend) as running_server:
        yield running_server
    assert backend.open_count == 0
