"""Limits of statement time and of concurrent readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.errors import TimedOut, Unavailable
from tests.stores.writing import batch, opened, write

SLOW = "MATCH (a:Entity), (b:Entity), (c:Entity), (d:Entity), (e:Entity) RETURN sum(a.version + b.version + e.version)"


def test_a_query_timeout_leaves_the_store_usable(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*(f"n{number}" for number in range(120))))
        for _ in range(3):
            with pytest.raises(TimedOut), store.engine.reading(timeout=0.1) as session:
                session.rows(SLOW)
        with store.engine.reading() as session:
            assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[120]]


def test_readers_are_bounded(tmp_path: Path) -> None:
    with (
        opened(tmp_path, read_connections=1, query_timeout=0.2) as store,
        store.engine.reading(),
        pytest.raises(Unavailable),
        store.engine.reading(),
    ):
        pass
