"""Snapshots, and merging change sets into them."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import JournalDamaged
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.row_materialization import materialize_rows_to_parquet
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.storage.journal.history import History, mixed


def folded(tmp_path: Path, history: History, upto: int, base: Path | None = None, after: int = 0) -> Path:
    """Install and return a snapshot of a history after ``upto`` change sets."""
    rows = tmp_path / f"rows-{upto}-{after}"
    rows.mkdir()
    state = materialize_rows_to_parquet(base, history.changes[after:upto], rows).state
    return snapshot.publish_journal_snapshot(rows, tmp_path, state)


def held(folder: Path) -> tuple[set[NodeRow], set[EdgeRow]]:
    nodes = {NodeRow(*row) for rows in snapshot.read_snapshot_row_batches(folder / snapshot.NODES_FILE) for row in rows}
    edges = {EdgeRow(*row) for rows in snapshot.read_snapshot_row_batches(folder / snapshot.EDGES_FILE) for row in rows}
    return nodes, edges


def test_folding_matches_plan(tmp_path: Path) -> None:
    history = mixed()
    nodes, edges = held(folded(tmp_path, history, len(history.changes)))
    assert nodes == set(history.workspace.nodes.values())
    assert edges == {row for row in history.workspace.edges.values() if row is not None}


@pytest.mark.parametrize("middle", range(7))
def test_folding_from_snapshot_gives_same_rows(tmp_path: Path, middle: int) -> None:
    history = mixed()
    end = len(history.changes)
    base = folded(tmp_path, history, middle)
    assert snapshot.verify_snapshot(base).state == (history.changes[middle - 1].state if middle else StoreState())
    again = folded(tmp_path, history, end, base, middle)
    assert held(again) == (
        set(history.workspace.nodes.values()),
        {row for row in history.workspace.edges.values() if row is not None},
    )
    assert snapshot.digest_and_count_snapshot_rows(again) == (
        history.state.digest,
        history.state.nodes,
        history.state.edges,
    )
    assert snapshot.verify_snapshot(again).state == history.state


def test_folding_more_rows_than_a_batch(tmp_path: Path) -> None:
    history = History()
    count = 2 * snapshot.MAX_SNAPSHOT_BATCH_ROWS + 5
    history.add(WriteBatch(nodes=[NodeUpsert(i, f"n{i}", "t") for i in range(count)]))
    history.add(WriteBatch(nodes=[NodeUpsert(i, f"n{i}", content="x") for i in range(0, count, 1000)]))
    base = folded(tmp_path, history, 1)
    assert held(folded(tmp_path, history, 2, base, 1))[0] == set(history.workspace.nodes.values())


def test_large_rows_are_read_in_small_batches(tmp_path: Path) -> None:
    history, size = History(), snapshot.MAX_SNAPSHOT_BATCH_BYTES >> 2
    history.add(WriteBatch(nodes=[NodeUpsert(i, f"n{i}", "t", f"{i:0{size}}") for i in range(10)]))
    batches = [
        batch.num_rows
        for batch in snapshot.read_snapshot_record_batches(folded(tmp_path, history, 1) / snapshot.NODES_FILE)
    ]
    assert sum(batches) == 10
    assert max(batches) <= snapshot.MAX_SNAPSHOT_BATCH_BYTES // size


def test_rows_with_wrong_digest_are_rebased(tmp_path: Path) -> None:
    history = mixed()
    assert materialize_rows_to_parquet(None, history.changes[1:], tmp_path).is_digest_replaced
    base = folded(tmp_path, history, 2)
    wrong = materialize_rows_to_parquet(base, history.changes[3:], tmp_path)
    assert wrong.is_digest_replaced
    assert snapshot.digest_and_count_snapshot_rows(tmp_path) == (
        wrong.state.digest,
        wrong.state.nodes,
        wrong.state.edges,
    )


@pytest.mark.parametrize("name", [snapshot.NODES_FILE, snapshot.EDGES_FILE])
@pytest.mark.parametrize("kind", ["flipped", "cut", "gone", "longer"])
def test_damaged_file_is_reported_by_name(tmp_path: Path, name: str, kind: str) -> None:
    path = folded(tmp_path, mixed(), 6) / name
    data = path.read_bytes()
    changed = {"flipped": data[:9] + bytes([data[9] ^ 1]) + data[10:], "cut": data[:-1], "longer": data + b"\0"}
    path.unlink() if kind == "gone" else path.write_bytes(changed[kind])
    with pytest.raises(JournalDamaged, match=name):
        snapshot.verify_snapshot(path.parent)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{}", b"[]", None])
def test_damaged_manifest_is_reported_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = folded(tmp_path, mixed(), 6) / snapshot.SNAPSHOT_MANIFEST_FILE
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=snapshot.SNAPSHOT_MANIFEST_FILE):
        snapshot.verify_snapshot(path.parent)


def test_renamed_snapshot_is_rejected(tmp_path: Path) -> None:
    path = folded(tmp_path, mixed(), 6)
    other = path.rename(tmp_path / "snapshot.5")
    with pytest.raises(JournalDamaged):
        snapshot.verify_snapshot(other)


def test_snapshots_are_listed_newest_first_and_old_ones_are_removed(tmp_path: Path) -> None:
    history = mixed()
    for upto in (2, 6, 4):
        folded(tmp_path, history, upto)
    (tmp_path / "snapshot.7.new").mkdir()
    assert [snapshot.parse_snapshot_sequence(path) for path in snapshot.list_journal_snapshots(tmp_path)] == [6, 4, 2]
    assert snapshot.remove_old_snapshots(tmp_path, 2) == 4
    assert [snapshot.parse_snapshot_sequence(path) for path in snapshot.list_journal_snapshots(tmp_path)] == [6, 4]


def test_reinstalling_a_snapshot_replaces_it(tmp_path: Path) -> None:
    history = mixed()
    first = folded(tmp_path, history, 6)
    again = tmp_path / "again"
    again.mkdir()
    materialize_rows_to_parquet(None, history.changes, again)
    assert snapshot.publish_journal_snapshot(again, tmp_path, history.state) == first
    snapshot.verify_snapshot(first)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("snapshot")) == [first.name]


def test_snapshot_survives_a_failed_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, rename = mixed(), Path.rename
    first = folded(tmp_path, history, 6)
    again = tmp_path / "again"
    again.mkdir()
    materialize_rows_to_parquet(None, history.changes[:6], again)
    (again / snapshot.ACCESSES_FILE).write_bytes(b"")

    def refuse_new_name(path: Path, target: Path) -> Path:
        if path == again:
            raise OSError(errno.ENOSPC, "no space left")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse_new_name)
        with pytest.raises(OSError, match="no space"):
            snapshot.publish_journal_snapshot(again, tmp_path, history.changes[5].state)
    assert not snapshot.verify_snapshot(first).files.keys() & {snapshot.ACCESSES_FILE}


@pytest.mark.parametrize("middle", range(0, 7, 3))
def test_folding_on_disk_gives_same_rows(tmp_path: Path, middle: int) -> None:
    history = mixed()
    base = folded(tmp_path, history, middle) if middle else None
    rows = tmp_path / "rows"
    rows.mkdir()
    done = materialize_rows_to_parquet(base, history.changes[middle:], rows, memory_bytes=1)
    assert (done.state, done.is_digest_replaced) == (history.state, False)
    assert held(rows) == (
        set(history.workspace.nodes.values()),
        {row for row in history.workspace.edges.values() if row is not None},
    )
    assert sorted(path.name for path in rows.iterdir()) == [snapshot.EDGES_FILE, snapshot.NODES_FILE]


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize("middle", [0, 2])
def test_dangling_edges_can_be_dropped(tmp_path: Path, middle: int, memory_bytes: int) -> None:
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(i, name, "t") for i, name in enumerate("abc")]))
    history.add(WriteBatch(edges=[EdgeUpsert(i, (x, y, "r")) for i, (x, y) in enumerate(("ab", "bc", "ca"))]))
    forgot = msgspec.structs.replace(history.add(WriteBatch(delete_nodes=["b"])), edges_deleted=[])
    base = folded(tmp_path, history, middle) if middle else None
    changes = [*history.changes[middle:2], forgot]
    materialize_rows_to_parquet(base, changes, tmp_path, memory_bytes=memory_bytes)
    assert {edge.source + edge.target for edge in held(tmp_path)[1]} == {"ab", "bc", "ca"}
    assert (
        materialize_rows_to_parquet(base, changes, tmp_path, drop_loose=True, memory_bytes=memory_bytes).state.edges
        == 1
    )
    assert {edge.source + edge.target for edge in held(tmp_path)[1]} == {"ca"}


def test_wrong_rows_are_rebased_on_disk(tmp_path: Path) -> None:
    history = mixed()
    base = folded(tmp_path, history, 2)
    wrong = materialize_rows_to_parquet(base, history.changes[3:], tmp_path, memory_bytes=1)
    assert wrong.is_digest_replaced
    assert wrong == materialize_rows_to_parquet(base, history.changes[3:], tmp_path)
