"""Commits that contain only memory accesses: stored wherever the store is, invisible to consumers of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.replay import read_node_accesses_as_of
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.backup.holding import back_up, faults, restored
from tests.stores.writing import (
    NAME,
    ask,
    assert_whole,
    batch,
    flip,
    forget_close,
    layout,
    opened,
    settings,
    write,
)


def accessed(*ids: str, count: int = 1) -> WriteBatch:
    """Return a batch that records ``count`` accesses of each node."""
    return WriteBatch(accesses=[MemoryAccessRecord(node_id, count, count, 0.5) for node_id in ids])


def kept(store: OpenStore) -> dict[str, int]:
    """Return the access count of each node, from snapshot and journal."""
    found = [
        access
        for some in read_node_accesses_as_of(store.layout, store.journal, store.state.sequence)
        for access in some
    ]
    counts = {access.id: access.count for access in found}
    assert len(counts) == len(found)
    return counts


def in_snapshot(store: OpenStore) -> dict[str, int]:
    newest = snapshot.list_journal_snapshots(store.layout.journal)[0]
    return {access.id: access.count for some in snapshot.read_snapshot_access_records(newest) for access in some}


def test_access_commits_advance_the_sequence_without_changing_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc"))
        before = store.state
        write(store, accessed("a", "nobody"), accessed("a", "b", count=2))
        assert (store.state.sequence, store.state.digest) == (3, before.digest)
        write(store, accessed("nobody"))
        assert store.state.sequence == 3
        assert kept(store) == {"a": 2, "b": 2}
        assert_whole(store)
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert (store.state.sequence, kept(store)) == (3, {"a": 2, "b": 2})
        assert_whole(store)


def test_snapshots_include_accesses_and_deletions_remove_them(tmp_path: Path) -> None:
    with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
        write(store, batch(*"abc"))
        store.compactor.run()
        assert not (snapshot.list_journal_snapshots(store.layout.journal)[0] / snapshot.ACCESSES_FILE).exists()
        write(store, accessed(*"abc"), accessed("a", count=5))
        store.compactor.run()
        assert in_snapshot(store) == kept(store) == {"a": 5, "b": 1, "c": 1}
        write(store, WriteBatch(delete_nodes=["a", "b"]), batch("b"), accessed("c", count=7))
        assert kept(store) == {"c": 7}
        # Until the journal no longer covers the first snapshot.
        write(store, batch("large", content="x" * (1 << 20)), batch("next"))
        store.compactor.run()
        write(store, batch("large", content="y" * (1 << 20)), batch("next", content="z"))
        store.compactor.run()
        assert store.journal.oldest > 4
        assert in_snapshot(store) == kept(store) == {"c": 7}
        write(store, WriteBatch(delete_nodes=["c"]))
        store.compactor.run()
        assert not (snapshot.list_journal_snapshots(store.layout.journal)[0] / snapshot.ACCESSES_FILE).exists()


def test_building_an_engine_keeps_accesses_in_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgserve.projections.cypher_engine.rebuild.SNAPSHOT_AFTER_BYTES", 1)
    with opened(tmp_path) as store:
        write(store, batch(*"ab"), accessed("a"))
        ask(store)
        assert in_snapshot(store) == {"a": 1}


def test_access_commits_alone_trigger_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path, compact_wal_mb=1, journal_segment_mb=1) as store:
        ids = [f"{number:0480d}" for number in range(1_250)]
        write(store, batch(*ids))
        store.compactor.run()
        count = 0
        while not store.compactor.wanted():
            count += 1
            assert count < 10
            write(store, accessed(*ids, count=count))
        store.compactor.run()
        assert set(in_snapshot(store).values()) == {count}
        assert not store.compactor.wanted()


def test_a_snapshot_with_damaged_accesses_is_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"ab"), accessed("a"))
        store.compactor.run()
        flip(snapshot.list_journal_snapshots(store.layout.journal)[0] / snapshot.ACCESSES_FILE, 9)
        write(store, accessed("b"))
        assert kept(store) == {"a": 1, "b": 1}
        with pytest.raises(JournalDamaged, match=snapshot.ACCESSES_FILE):
            snapshot.verify_snapshot(snapshot.list_journal_snapshots(store.layout.journal)[0])


@pytest.mark.parametrize("compacted", [False, True])
def test_backups_restore_accesses_at_every_point(tmp_path: Path, compacted: bool) -> None:
    with StorePool(settings(tmp_path / "data")) as pool:
        with pool.lease(NAME, create=True) as store:
            write(store, batch(*"ab"), accessed("a"))
            if compacted:
                store.compactor.run()
            write(store, accessed("a", "b", count=3), WriteBatch(delete_nodes=["a"]))
            back_up(pool, tmp_path / "backup")
            write(store, accessed("b", count=9))
            back_up(pool, tmp_path / "backup")
        assert faults(tmp_path / "backup") == []
        found = {at: kept(restored(pool, tmp_path / "backup", at, f"at{at}")) for at in ("2", "3", "4", "5")}
        assert found == {"2": {"a": 1}, "3": {"a": 3, "b": 3}, "4": {"b": 3}, "5": {"b": 9}}


def test_access_commits_do_not_open_a_closed_engine(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"ab"))
        ask(store)
        store.engine.close()
        write(store, *(accessed("a", count=count) for count in range(1, 5)))
        assert store.engine._behind_since is None
        ask(store)
        assert store.engine.state == store.state
    assert layout(tmp_path).close_mark()
