from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.running import Running, serving


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests of a worker process; each test uses stores of its own. Its vectors stand for words."""
    with serving(tmp_path_factory.mktemp("served") / "data", "--embedding-provider", "hashing") as running:
        yield running
