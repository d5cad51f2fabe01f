"""Access data of memories in exports and imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.graph.transfer.import_export import open_store_export_stream
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.graph.transfer.test_importing import imported
from tests.graphs import graph_of
from tests.stores.test_access_commits import kept
from tests.stores.test_accesses import journaled, once_more
from tests.stores.writing import batch, settings, write

MEMORIES = WriteBatch(
    nodes=[
        NodeUpsert(number, name, "fact", name, extras=NodeExtrasUpsert(confidence=1.0))
        for number, name in enumerate("ab")
    ]
)
READ = {"access_count", "last_accessed_at", "access_confidence"}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path)) as opened:
        yield opened


@pytest.fixture
def store(pool: StorePool) -> Iterator[OpenStore]:
    with pool.lease("s", create=True) as store:
        write(store, MEMORIES, batch("plain", edges=[("a", "plain", "is_about")]))
        journaled(store)
        yield store


def exported(pool: StorePool, store: str = "s") -> bytes:
    with open_store_export_stream(graph_of(pool, store)) as stream:
        return b"".join(stream)


def export_lines(text: bytes) -> dict[str, dict[str, Any]]:
    rows = map(msgspec.json.decode, text.splitlines())
    return {row["id"]: row for row in rows if row["kind"] == "node"}


def test_export_includes_access_data(pool: StorePool, store: OpenStore) -> None:
    before = exported(pool)
    assert not any(READ & row.keys() for row in export_lines(before).values())
    for _ in range(3):
        store.accesses.update(["a"], once_more)
    assert store.accesses.flush_and_wait()
    store.accesses.update(["a"], once_more)
    found = export_lines(exported(pool))
    assert {name: found["a"].pop(name) for name in READ} == {
        "access_count": 4,
        "last_accessed_at": "1970-01-01T00:00:00.000004Z",
        "access_confidence": 0.25,
    }
    assert found == export_lines(before), "all else is as it was"
    assert len(store.accesses) == 0, "an export writes what waits"


def test_import_restores_access_counts(pool: StorePool, store: OpenStore) -> None:
    store.accesses.update(["a", "b"], once_more)
    store.accesses.update(["b"], once_more)
    text = exported(pool)
    assert imported(pool, text, store="copy").ok
    with pool.lease("copy") as copy:
        assert kept(copy) == {"a": 1, "b": 2}
        journaled(copy)
        assert sorted(exported(pool, "copy").splitlines()) == sorted(text.splitlines())
        sequence = copy.state.sequence
        assert imported(pool, text, store="copy").sequence == sequence, "nothing is written twice"


def test_import_keeps_latest_access(pool: StorePool, store: OpenStore) -> None:
    store.accesses.update(["a"], once_more)
    old = exported(pool)
    store.accesses.update(["a", "b"], once_more)
    new = exported(pool)
    store.accesses.update(["b"], once_more)
    for text in (old, new, old):
        assert imported(pool, text).ok
    assert store.accesses.of("ab") == {"a": MemoryAccessRecord("a", 2, 2, 0.5), "b": MemoryAccessRecord("b", 2, 2, 0.5)}
    imported(pool, new, old, store="copy")
    with pool.lease("copy") as copy:
        assert kept(copy) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "said",
    [
        '"access_count":1',
        '"access_count":0,"last_accessed_at":"2025-07-15T12:00:00Z","access_confidence":1',
        '"access_count":1,"last_accessed_at":"yesterday","access_confidence":1',
        '"access_count":1,"last_accessed_at":"2025-07-15T12:00:00Z","access_confidence":1.5',
        '"last_accessed_at":"2025-07-15T12:00:00Z","access_confidence":1',
    ],
)
def test_import_rejects_invalid_access_data(pool: StorePool, store: OpenStore, said: str) -> None:
    answer = imported(pool, b'{"kind":"node","id":"c","type":"fact","confidence":1,%s}\n' % said.encode())
    assert (answer.error_count, answer.nodes_created) == (1, 0)
    assert "access" in answer.errors[0].message
    assert kept(store) == {}


def test_rejected_node_gets_no_access_data(pool: StorePool, store: OpenStore) -> None:
    """A node rejected for its missing type also discards the access data of its line."""
    line = '{"kind":"node","id":"x","access_count":1,"last_accessed_at":"2025-07-15T12:00:00Z","access_confidence":1}\n'
    assert imported(pool, line.encode()).error_count == 1
    assert kept(store) == {}
