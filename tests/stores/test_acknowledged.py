"""Acknowledged writes survive, and writes that cannot be kept are refused, whatever happened before."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kgserve.errors import JournalDamaged, KgserveError
from kgserve.graph.url_parameters import NodeListParameters
from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine import rebuild
from kgserve.storage.journal import journal
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of, nodes_of
from tests.stores.writing import (
    NAME,
    PATIENCE,
    ask,
    assert_whole,
    batch,
    flip,
    forget_close,
    frames,
    ids,
    layout,
    newest_segment,
    opened,
    settings,
    tamper,
    write,
    write_together,
)


@pytest.mark.parametrize("had_edges", [False, True])
def test_a_node_created_and_deleted_in_one_group_takes_its_new_edges_along(tmp_path: Path, had_edges: bool) -> None:
    with opened(tmp_path) as store:
        if had_edges:
            write(store, batch("x", "y", edges=[("x", "y", "r")]))
        made, gone = write_together(
            store,
            batch("a", "b", "c", edges=[("a", "b", "r"), ("c", "a", "r"), ("a", "a", "r"), ("b", "c", "r")]),
            WriteBatch(delete_nodes=["a"]),
        )
        assert made.result(PATIENCE).edges_created == 4
        report = gone.result(PATIENCE)
        assert (report.nodes_deleted, report.edges_deleted) == (1, 3)
        assert store.state.edges == 1 + had_edges
        assert_whole(store)
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert "a" not in ids(store)
        assert_whole(store)


@pytest.mark.parametrize("cut", ["at a frame", "in a frame", "the whole segment"])
def test_a_journal_shorter_than_the_clean_close_marker_is_reported_as_damaged(tmp_path: Path, cut: str) -> None:
    with opened(tmp_path, journal_segment_mb=1) as store:
        write(store, batch("big", content="x" * MEBIBYTE), *(batch(f"n{i}") for i in range(5)))
        assert len(store.journal.segments) == 2
    path = newest_segment(tmp_path)
    if cut == "the whole segment":
        path.unlink()
    else:
        offset = frames(tmp_path)[3].offset - (cut == "in a frame")
        with path.open("r+b") as file:
            file.truncate(offset)
    with pytest.raises(JournalDamaged), opened(tmp_path):
        pass


def test_salvage_of_a_journal_before_a_snapshot_continues_after_the_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, *(batch(f"n{i}") for i in range(10)))
        store.compactor.run()
    found = frames(tmp_path)
    flip(newest_segment(tmp_path), found[4].end - 1)
    forget_close(tmp_path)
    assert list(journal.truncate_damaged_journal(layout(tmp_path).journal))
    with opened(tmp_path) as store:
        assert store.state.sequence == store.journal.last == 10
        write(store, batch("after"))
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert len(ids(store)) == 11
        assert_whole(store)


def test_a_write_that_the_engine_rejects_is_acknowledged_and_applied_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "MAX_INLINE_REBUILD_ROWS", 0)
    with opened(tmp_path) as store:
        write(store, batch("a"))
        tamper(store, "CREATE (:StoreCommit {sequence: 2})")
        scratch = store.layout.scratch
        scratch.rmdir() if scratch.is_dir() else None
        scratch.write_text("in the way of every rebuild")
        write(store, batch("b"))
        for _ in ("while it is healed", "when it is opened again"):
            with pytest.raises(KgserveError):
                ask(store)
        assert ids(store) == ["a", "b"]
        scratch.unlink()
        write(store, batch("c"))
        assert_whole(store)


def test_an_unreadable_catalog_is_rebuilt(tmp_path: Path) -> None:
    wanted = [f"node-{n:05}" for n in range(5000)]
    with opened(tmp_path) as store:
        write(store, batch(*wanted))
        assert ids(store) == wanted
    catalog = layout(tmp_path).catalog
    content = catalog.read_bytes()
    head = 6 * 4096
    catalog.write_bytes(content[:head] + bytes(len(content) - head))
    with StorePool(settings(tmp_path)) as pool:
        with contextlib.suppress(KgserveError):
            nodes_of(graph_of(pool, NAME), NodeListParameters(limit=1000))
        found: list[str] = []
        page = nodes_of(graph_of(pool, NAME), NodeListParameters(limit=1000))
        found += [node.id for node in page.nodes]
        while page.next_cursor is not None:
            page = nodes_of(graph_of(pool, NAME), NodeListParameters(limit=1000, cursor=page.next_cursor))
            found += [node.id for node in page.nodes]
    assert found == wanted
