"""Compaction replaces the engine's file without disturbing readers."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine import rebuild
from kgserve.projections.cypher_engine.projection import NO_STATEMENT_YET
from kgserve.storage import current_rows_rebuild
from kgserve.storage.current_rows_rebuild import link_current_snapshot_rows
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.row_materialization import RowMaterializationResult
from kgserve.storage.rows import current_rows
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.stores import open_store
from kgserve.stores.open_store import OpenStore
from tests.captured_log import capture_log
from tests.stores.writing import (
    SYNC_SECONDS,
    ask,
    assert_whole,
    batch,
    forget_close,
    ids,
    layout,
    opened,
    until,
    write,
)

LAST = "MATCH (c:StoreCommit) RETURN max(c.sequence)"


def test_compaction_keeps_all_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc", edges=[("a", "b", "r"), ("b", "c", "r")]))
        outgrow(store)
        digest, old = store.state.digest, store.engine._engine
        assert old is not None
        store.compactor.run()
        assert store.compactor.done == 1
        assert store.state.digest == digest
        assert old.closed
        assert not old.path.exists()
        assert store.engine.bytes()[1] < 100_000
        assert snapshot.list_journal_snapshots(store.layout.journal) == []
        store.compactor.run()
        assert [
            snapshot.verify_snapshot(path).sequence for path in snapshot.list_journal_snapshots(store.layout.journal)
        ] == [1]
        write(store, batch("d", edges=[("c", "d", "r")]))
        assert_whole(store)
    assert {path.name for path in layout(tmp_path).root.glob("graph*")} == {"graph.kuzu", "graph.kuzu.wal"}
    with opened(tmp_path) as store:
        assert store.engine.rebuilds == 0
        assert ids(store) == list("abcd")


def test_the_rows_of_a_current_whole_snapshot_are_reused(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    with opened(tmp_path) as store:
        write(store, batch("a"))
        assert link_current_snapshot_rows(store.layout, store.state, target) is None
        store.compactor.run()
        [found] = snapshot.list_journal_snapshots(store.layout.journal)
        linked = link_current_snapshot_rows(store.layout, store.state, target)
        assert linked == RowMaterializationResult(store.state, store.state)
        assert all((target / name).samefile(found / name) for name in (snapshot.NODES_FILE, snapshot.EDGES_FILE))
        write(store, batch("b"))
        assert link_current_snapshot_rows(store.layout, store.state, target) is None
        store.compactor.run()
        (snapshot.list_journal_snapshots(store.layout.journal)[0] / snapshot.EDGES_FILE).write_bytes(b"")
        assert link_current_snapshot_rows(store.layout, store.state, target) is None


@pytest.mark.parametrize("changed", [3, 60])
def test_an_engine_file_is_built_from_a_recent_snapshot_and_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    """All rows are written only if many changed after the snapshot."""
    written: list[Path] = []
    write_rows = current_rows_rebuild.write_current_rows_to_folder
    monkeypatch.setattr(rebuild, "MAX_INLINE_REBUILD_ROWS", 0)
    monkeypatch.setattr(rebuild, "ROWS_WRITTEN_PER_ROW_APPLIED", 2)

    def count_and_write(layout: StoreLayout, *given: Any) -> RowMaterializationResult:
        written.append(layout.root)
        return write_rows(layout, *given)

    monkeypatch.setattr(rebuild, "write_current_rows_to_folder", count_and_write)
    with opened(tmp_path) as store:
        write(store, batch(*(f"n{number}" for number in range(40)), edges=[("n1", "n2", "r")]))
        store.compactor.run()
        write(store, batch(*(f"m{number}" for number in range(changed - 1)), edges=[("n1", "m0", "r")]))
        written.clear()
        assert store.engine.forget()
        assert len(ids(store)) == 40 + changed - 1
        assert_whole(store)
        # Servers of other tests may rebuild files in this process meanwhile.
        assert written.count(store.layout.root) == (changed > 20)


@pytest.mark.parametrize("engine_open", [True, False])
def test_an_idle_store_returns_the_space_of_deleted_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, engine_open: bool
) -> None:
    monkeypatch.setattr(current_rows, "MIN_UNUSED_TEXT_BYTES", 5_000)
    monkeypatch.setattr(open_store, "IDLE_MERGE_DELAY_SECONDS", 0.0)
    with opened(tmp_path) as store:
        write(store, batch(*"abcdef", edges=[("a", "b", "r"), ("b", "c", "r")], content="x" * 3_000))
        ask(store)
        store.folding.at_once()
        write(store, batch(delete_nodes=[*"ab"]))
        store.folding.at_once()
        assert store.rows.needs_rewrite
        if not engine_open:
            until(store.engine.give_way)
        old = store.rows.rows().base.texts_size
        until(lambda: not store.writing)
        # Not before: the store's own threads would start with the engine that is still open.
        monkeypatch.setattr(open_store, "RECLAIM_DELAY_SECONDS", 0.0)
        store.tend()
        store.compactor.wait()
        assert not store.rows.needs_rewrite
        assert store.rows.rows().base.texts_size < old
        assert bool([*layout(tmp_path).root.glob("graph*.kuzu")]) is engine_open
        # Not again at once, and nothing is left to return.
        store.tend()
        assert store.compactor.done == 1
        assert ids(store) == list("cdef")
        assert_whole(store)


def outgrow(store: OpenStore) -> None:
    """Make a new engine file due."""
    ask(store)
    engine = store.engine._engine
    assert engine is not None
    engine.kept_bytes = 1 << 40


def test_an_empty_store_can_be_compacted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.compactor.run()
        assert store.compactor.done == 1
        write(store, batch("a"))
        assert_whole(store)


def test_compaction_removes_old_snapshots_and_segments(tmp_path: Path) -> None:
    with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
        for number in range(4):
            write(store, batch(f"n{number}", content="x" * MEBIBYTE), batch(f"m{number}"))
            store.compactor.run()
        kept = [
            snapshot.parse_snapshot_sequence(path) for path in snapshot.list_journal_snapshots(store.layout.journal)
        ]
        assert kept == [8, 6]
        assert 1 < store.journal.oldest <= 7
        assert list(store.layout.scratch.iterdir()) == []


def test_the_only_snapshot_survives_a_kill_while_it_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, journal_segment_mb=1, journal_retention_mb=0) as store:
        for number in range(2):
            write(store, batch(f"n{number}", content="x" * MEBIBYTE))
        store.compactor.run()
        assert store.journal.oldest > 1
    forget_close(tmp_path)
    [only] = snapshot.list_journal_snapshots(layout(tmp_path).journal)
    only.rename(only.with_name(f"{only.name}.replaced"))
    layout(tmp_path).invalidate_projections()
    with opened(tmp_path) as store:
        assert ids(store) == ["n0", "n1"]
        assert store.check().ok
    assert snapshot.list_journal_snapshots(layout(tmp_path).journal) == [only]


def test_swapping_the_engine_file_does_not_disturb_readers(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*(f"n{i}" for i in range(300))))
        with store.engine.reading() as session:
            before = session.rows(LAST)
            session.run("BEGIN TRANSACTION READ ONLY")
            outgrow(store)
            store.compactor.run()
            write(store, batch("later"))
            assert session.rows(LAST) == before
            assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[300]]
            session.run("COMMIT")
        until(lambda: len(list(store.layout.root.glob("graph*.kuzu"))) == 1)
        with store.engine.reading() as session:
            assert session.rows(LAST) == [[store.state.sequence]]


def test_an_idle_engine_file_stays_open_until_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        outgrow(store)
        view, rebuilt = store.engine, store.engine.build_from_journal

        def build_while_idle(*how: Any) -> Any:
            built = rebuilt(*how)
            view.asked_at = NO_STATEMENT_YET
            view.tend()
            assert view.is_open
            return built

        monkeypatch.setattr(view, "build_from_journal", build_while_idle)
        begun = view.begun
        store.compactor.run()
        assert (store.compactor.done, view.begun, view.is_open) == (1, begun + 1, True)
        view.tend()
        assert not view.is_open
        assert_whole(store)


def test_closing_the_engine_waits_for_a_rebuild(tmp_path: Path) -> None:
    with opened(tmp_path) as store, ExitStack() as stack:
        write(store, batch("a"))
        outgrow(store)
        view, waiting = store.engine, threading.Thread(target=store.engine.tend)
        with view.commits:
            view.asked_at = NO_STATEMENT_YET
            waiting.start()
            waiting.join(0.2)
            assert stack.enter_context(view.keep_open())
        waiting.join()
        assert view.is_open


@pytest.mark.parametrize("act", ["compacted", "erased"])
def test_an_engine_file_closed_by_eviction_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        outgrow(store)
        view, rebuilt = store.engine, store.engine.build_from_journal

        def build_while_evicted(*how: Any) -> Any:
            built = rebuilt(*how)
            assert view.give_way()
            return built

        monkeypatch.setattr(view, "build_from_journal", build_while_evicted)
        with capture_log(store=store.name) as logs:
            store.compactor.run() if act == "compacted" else store.compactor.erase(store.state.sequence)
        assert not [each for each in logs if each["log_level"] == "error"]
        assert not view.is_open
        left = {path.name for path in store.layout.root.glob("graph*.kuzu")}
        assert left == ({"graph.kuzu"} if act == "compacted" else set())
        monkeypatch.undo()
        assert_whole(store)


def test_writes_continue_during_compaction(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*(f"n{i}" for i in range(500))))
        stop = threading.Event()
        writers = [threading.Thread(target=keep_writing, args=(store, f"w{n}-", stop)) for n in range(3)]
        for thread in writers:
            thread.start()
        for _ in range(2):
            outgrow(store)
            store.compactor.run()
        stop.set()
        for thread in writers:
            thread.join()
        assert store.compactor.done == 2
        assert store.engine.rebuilds == 0
        assert_whole(store)


def keep_writing(store: OpenStore, prefix: str, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(SYNC_SECONDS):
        write(store, batch(f"{prefix}{number}", edges=[(f"{prefix}{number}", "n1", "r")]))
        number += 1


def test_an_oversized_engine_log_triggers_compaction_when_idle(tmp_path: Path) -> None:
    with opened(tmp_path, compact_wal_mb=1) as store:
        write(store, *(batch(f"n{i}", content="x" * 400_000) for i in range(4)))
        until(lambda: store.compactor.done == 1)
        assert store.engine.bytes()[1] < MEBIBYTE
        assert_whole(store)


def test_a_change_with_deleted_created_and_updated_edges_applies_to_a_new_file(tmp_path: Path) -> None:
    """Within a transaction, kuzu misreads edges of nodes that lost stored edges and got new ones."""
    stored = [("j", end, "k") for end in "cfb"] + [("j", end, "m") for end in "efbg"]
    made = [("i", "f", "k"), ("j", "i", "m"), ("j", "j", "k"), ("j", "k", "m"), ("j", "l", "k"), ("j", "i", "k")]
    with opened(tmp_path) as store:
        write(store, batch(*"bcefgijkl", edges=stored))
        outgrow(store)
        store.compactor.run()
        write(store, batch(edges=[*made, ("j", "f", "k")], delete_edges=[("j", "f", "m")]))
        ask(store)
        assert store.engine.rebuilds == 0
        assert_whole(store)


def test_packed_frames_count_with_their_unpacked_size(tmp_path: Path) -> None:
    """A rebuild has to read the unpacked frames, however small the journal is."""
    with opened(tmp_path, compact_wal_mb=1) as store:
        for turn in range(10):
            write(store, batch(*(f"{turn}-{n}" for n in range(1_000)), content="alike " * 20))
        assert store.journal.bytes < MEBIBYTE / 2
        until(lambda: store.compactor.done > 0)
        assert snapshot.list_journal_snapshots(store.layout.journal)
        until(lambda: not store.compactor.wanted())
        assert_whole(store)
