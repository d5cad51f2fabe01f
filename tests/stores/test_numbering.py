"""Version numbers of recreated nodes continue from their former value, whatever happens to the files."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.storage.journal import snapshot
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.stores.writing import assert_whole, batch, hurt, layout, opened, write, write_together


def version(store: OpenStore, node: str) -> int:
    with store.reading() as rows:
        row = rows.node(node)
    assert row is not None
    return row.version


def delete(*ids: str, forgets: bool = False) -> WriteBatch:
    return WriteBatch(delete_nodes=[*ids], forgets=forgets)


class _Model:
    """Model of the versions of existing nodes and the last versions of deleted ones."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.there = dict[str, int]()
        self.last = dict[str, int]()

    def step(self, store: OpenStore) -> None:
        node = self.choose.choice("abcdef")
        if node in self.there and self.choose.random() < 0.5:
            write(store, delete(node))
            self.last[node] = self.there.pop(node)
        else:
            write(store, batch(node, content=str(self.choose.random())))
            self.there[node] = self.there.get(node, self.last.get(node, 0)) + 1

    def agrees(self, store: OpenStore) -> bool:
        return {node: version(store, node) for node in self.there} == self.there


@pytest.mark.parametrize("seed", range(3))
def test_version_numbers_match_a_model_across_reopening_loss_and_compaction(tmp_path: Path, seed: int) -> None:
    model = _Model(seed)
    for round_ in range(10):
        with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
            for _ in range(model.choose.randrange(1, 10)):
                model.step(store)
            if model.choose.random() < 0.3:
                write(store, batch("large", content=str(round_) * (1 << 20)))
                store.compactor.run()
            assert model.agrees(store)
        hurt(tmp_path, layout(tmp_path).ended, model.choose)
    with opened(tmp_path) as store:
        assert model.agrees(store)
        assert_whole(store)


def test_writes_of_one_group_see_each_others_versions(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        parts = batch("a"), delete("a"), batch("a"), delete("a", forgets=True), batch("a")
        futures = write_together(store, *parts)
        assert [future.result().nodes_created for future in futures] == [1, 0, 1, 0, 1]
        assert version(store, "a") == 1
        write(store, delete("a"), batch("a"))
        assert version(store, "a") == 2
        write(store, WriteBatch(nodes=batch("a").nodes, delete_nodes=["a"]))
        assert version(store, "a") == 3


def test_a_snapshot_includes_versions_of_deleted_nodes(tmp_path: Path) -> None:
    with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
        write(store, batch("a"), delete("a"), batch("b", content="x"), batch("b", content="y"), delete("b"))
        for round_ in range(3):
            write(store, batch("large", content=f"{round_}" * (1 << 20)), batch("next", content=str(round_)))
            store.compactor.run()
        assert store.journal.oldest > 5
        newest = snapshot.list_journal_snapshots(store.layout.journal)[0]
        assert dict(pair for some in snapshot.read_deleted_node_last_versions(newest) for pair in some) == {
            "a": 1,
            "b": 2,
        }
    shutil.rmtree(layout(tmp_path).views)
    with opened(tmp_path) as store:
        write(store, batch("a", "b", "c"))
        assert [version(store, node) for node in "abc"] == [2, 3, 1]


def test_a_store_without_deletions_has_no_tombstone_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"), batch("b"))
    assert not layout(tmp_path).ended.exists()


@pytest.mark.parametrize("harm", ["UPDATE ended SET version = 7", "DELETE FROM ended"])
def test_damaged_tombstones_are_detected_and_rebuilt(tmp_path: Path, harm: str) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"), delete("a"), batch("b"))
        assert store.check().ok
    with closing(sqlite3.connect(layout(tmp_path).ended)) as file, file:
        file.execute(harm)
    # Simulates damage before the store was closed.
    layout(tmp_path).ended.with_name("ended.sqlite-seal").unlink()
    with opened(tmp_path) as store:
        if harm.startswith("DELETE"):  # entries are verified against their checksum when read
            assert [store.check().ok for _ in range(2)] == [False, True]
        write(store, batch("a"))
        assert version(store, "a") == 2


def test_a_purge_removes_tombstones(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("secret"), batch("other"), delete("secret", "other"), batch("new"))
        before = store.end_segment()
        # A consumer of the journal that reads it a little later.
        positions = iter([1, before])
        store.needed_from.append(lambda: next(positions, before + 1))
        store.erase(before, ["secret"])
        [kept] = snapshot.list_journal_snapshots(store.layout.journal)
        assert [pair for some in snapshot.read_deleted_node_last_versions(kept) for pair in some] == [("other", 1)]
    for path in layout(tmp_path).root.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path
    with opened(tmp_path) as store:
        write(store, batch("secret", "other"))
        assert [version(store, node) for node in ("secret", "other")] == [1, 2]
