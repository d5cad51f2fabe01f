from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.running import ServerProcessHandle, serving


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcessHandle]:
    """Yield one server with hashed vectors for all tests of a worker process; each test uses its own stores."""
    with serving(tmp_path_factory.mktemp("served") / "data", "--embedding-provider", "hashing") as running:
        yield running
