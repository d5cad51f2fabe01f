"""Memory index of a store: up to date when read, rebuilt when invalid, and absent if not needed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from tests.projections.memory_index.follow import contents
from tests.stores.writing import batch, forget_close, layout, opened, write

NOW = 1 << 50


def memory(node_id: str, **extras: Any) -> NodeUpsert:
    return NodeUpsert(0, node_id, "fact", f"about {node_id}", extras=NodeExtrasUpsert(confidence=0.5, **extras))


def remembered(store: OpenStore) -> list[str]:
    """Return the memories in the index, each of which must have a row."""

    def look(memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> list[str]:
        ids = sorted(memories.ids(MemoryFilter(now=NOW), 99))
        assert all(row.is_memory for row in rows.nodes(ids).values())
        return ids

    return store.memories.ask(look)


def whole(store: OpenStore) -> dict[str, Any]:
    return store.memories.ask(lambda memories, _: contents(memories))


def test_a_store_without_memories_and_names_has_no_file(tmp_path: Path) -> None:
    path = layout(tmp_path).memories
    with opened(tmp_path) as store:
        write(store, batch(*"abc", edges=[("a", "b", "is_about")]))
        write(store, WriteBatch(nodes=[NodeUpsert(0, "a", extras=NodeExtrasUpsert(summary="A", tags=("x",)))]))
        assert remembered(store) == []
        assert not path.exists()
        write(store, WriteBatch(nodes=[memory("a")]))
        assert remembered(store) == ["a"]
        assert path.exists()
        about = store.memories.ask(lambda memories, _: memories.entities_of("a", NOW, 9))
        assert about == [("b", 1.0)]


def test_the_index_follows_every_commit_and_reopens(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(4):
            write(store, WriteBatch(nodes=[memory(f"m{number}"), memory("m", name=f"Number {number}")]))
            assert remembered(store) == ["m", *(f"m{each}" for each in range(number + 1))]
        write(store, WriteBatch(delete_nodes=["m1"]))
        found = whole(store)
    with opened(tmp_path) as store:
        assert whole(store) == found


@pytest.mark.parametrize("how", ["missing", "damaged", "behind", "another format"])
def test_an_invalid_index_is_rebuilt(tmp_path: Path, how: str) -> None:
    path = layout(tmp_path).memories
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[memory("a", name="A"), memory("b"), NodeUpsert(0, "e", "t")]))
        write(
            store,
            WriteBatch(edges=[EdgeUpsert(0, ("a", "e", "is_about"))], accesses=[MemoryAccessRecord("a", 3, NOW, 0.75)]),
        )
        found = whole(store)
    if how == "missing":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(b"\xff" * path.stat().st_size)
    else:
        statement = "UPDATE cursor SET sequence = -1" if how == "behind" else "PRAGMA user_version = 77"
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(statement)
    with opened(tmp_path) as store:
        assert whole(store) == found


def test_damage_in_the_middle_is_detected_and_repaired(tmp_path: Path) -> None:
    path = layout(tmp_path).memories
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[memory(f"m{number}") for number in range(400)]))
        found = whole(store)
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xee" * (len(content) - 8192)
    path.write_bytes(content)
    with opened(tmp_path) as store:
        assert whole(store) == found


def test_accesses_are_rebuilt_from_snapshot_and_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[memory("a"), memory("b")]))
        write(store, WriteBatch(accesses=[MemoryAccessRecord("a", 1, NOW, 0.6), MemoryAccessRecord("b", 1, NOW, 0.6)]))
        store.compactor.run()
        write(store, WriteBatch(accesses=[MemoryAccessRecord("a", 2, NOW + 1, 0.7)]))
        found = whole(store)
        assert store.accesses.of(["a", "b"]) == {
            "a": MemoryAccessRecord("a", 2, NOW + 1, 0.7),
            "b": MemoryAccessRecord("b", 1, NOW, 0.6),
        }
    layout(tmp_path).memories.unlink()
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert whole(store) == found


def test_the_last_memory_may_be_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, WriteBatch(nodes=[memory("a")]))
        assert remembered(store) == ["a"]
        write(store, WriteBatch(delete_nodes=["a"]))
        assert remembered(store) == []
    with opened(tmp_path) as store:
        assert remembered(store) == []
        write(store, WriteBatch(nodes=[memory("b")]))
        assert remembered(store) == ["b"]
