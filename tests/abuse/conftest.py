from __future__ import annotations

from typing import cast

import pytest

from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # pytest finds it here


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often a server is killed: as often as the list says when it is run by itself, and a few times else."""
    return cast("int", request.config.getoption("--kills", 2))
