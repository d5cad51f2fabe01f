from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.memory.extraction.chat_service import Service, running, says
from tests.server.http.serving import PATIENCE, RunningServer


@pytest.fixture(scope="module")
def model() -> Iterator[Service]:
    with running() as found:
        yield found


@pytest.fixture
def service(model: Service) -> Service:
    """Return the fake model service, without recorded requests."""
    model.asked.clear()
    model.script.clear()
    model.usually = says()
    return model


@pytest.fixture
def http(there: RunningServer) -> Iterator[httpx.Client]:
    """Return a client of the module's server, with an empty store."""
    with httpx.Client(base_url=there.url, timeout=PATIENCE) as client:
        yield client
        assert client.delete("/api/memory/default", params={"confirm": "default"}).status_code in {200, 404}
