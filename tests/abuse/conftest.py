from __future__ import annotations

from typing import cast

import pytest

from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # pytest finds it here


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """Number of times to kill a server: as in the abuse list when that runs alone, otherwise a few times."""
    return cast("int", request.config.getoption("--kills", 2))
