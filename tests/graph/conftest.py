"""A pool with a small store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import fill
from tests.stores.writing import settings


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool)
        yield pool
