"""A faulty engine is rebuilt from the journal, which is always trusted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kgserve.errors import Unavailable
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.row_delta import InMemoryRowsDelta
from kgserve.stores.open_store import OpenStore
from tests.captured_log import capture_log
from tests.stores.writing import (
    PATIENCE,
    ask,
    assert_whole,
    batch,
    flip,
    forget_close,
    held,
    ids,
    opened,
    tamper,
    until,
    write,
    write_together,
)

TAMPERING = (
    "MATCH (e:Entity {id: 'a'}) SET e.content = 'rogue'",
    "MATCH (e:Entity {id: 'a'}) SET e.version = 99",
    "MATCH (:Entity {id: 'a'})-[k:RELATES_TO]->(:Entity) SET k.weight = 0.5",
    "MATCH (:Entity {id: 'a'})-[k:RELATES_TO]->(:Entity) DELETE k",
    """
    CREATE (e:Entity {id: 'rogue', type: 't', content: '', attributes: '{}', version: 1, sequence: 1,
                      created_at: timestamp('2020-01-01'), updated_at: timestamp('2020-01-01')})
    """,
    "MATCH (c:StoreCommit) SET c.digest = '00000000000000000000000000000001'",
)


@pytest.mark.parametrize("statement", TAMPERING)
def test_a_check_detects_and_rebuilds_an_altered_engine(tmp_path: Path, statement: str) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        state = store.state
        assert store.check().ok
        tamper(store, statement)
        assert not store.check().ok
        assert store.last_check is not None
        assert (store.last_check.ok, store.engine.rebuilds) == (False, 1)
        assert store.check().ok
        assert store.state == state
        assert ids(store) == ["a", "b"]
        write(store, batch("c"))
        assert_whole(store)


def test_a_write_rejected_by_the_engine_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        tamper(store, "CREATE (:StoreCommit {sequence: 2})")
        [report] = write(store, batch("b", "c", edges=[("b", "c", "r")]))
        assert (report.nodes_created, report.edges_created, report.sequence) == (2, 1, 2)
        ask(store)
        assert store.engine.rebuilds == 1
        assert ids(store) == ["a", "b", "c"]
        assert_whole(store)
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert ids(store) == ["a", "b", "c"]


def test_a_commit_group_rejected_by_the_engine_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        tamper(store, "CREATE (:StoreCommit {sequence: 4})")
        together = write_together(
            store, batch("c"), WriteBatch(delete_nodes=["a"]), batch("d", edges=[("c", "d", "r")])
        )
        assert [future.result(PATIENCE).sequence for future in together] == [2, 3, 4]
        assert "a" not in ids(store)
        assert store.state.edges == 1
        assert_whole(store)


def test_reads_continue_while_the_engine_is_rebuilt(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with store.engine.reading() as session:
            with store.engine.commits:
                store.engine.heal("a test")
            assert session.rows("MATCH (e:Entity) RETURN e.id") == [["a"]]
        assert_whole(store)


def damaged(store: OpenStore) -> None:
    """Flip a byte in the middle of the texts of the current rows."""
    with store.reading() as rows:
        path = rows.base.path.with_name(rows.base.texts)
    flip(path, 20)


def test_damaged_rows_needed_by_a_write_are_rebuilt(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc", content="x" * 300, edges=[("a", "b", "r")]))
        store.rows.fold()
        damaged(store)
        [report] = write(store, batch("a", content="new"))
        assert (report.nodes_updated, report.sequence) == (1, 2)
        assert ids(store) == list("abc")
        assert_whole(store)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_durable_commit_that_cannot_be_shown_is_read_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        apply, left = InMemoryRowsDelta.apply, [*range(failures)]

        def fail_first(delta: InMemoryRowsDelta, change: ChangeSet, floor: int) -> None:
            if left and delta.base.path.is_relative_to(tmp_path):
                raise MemoryError(left.pop())
            apply(delta, change, floor)

        monkeypatch.setattr(InMemoryRowsDelta, "apply", fail_first)
        # Only if the journal cannot be read either, the caller gets an error.
        with pytest.raises(MemoryError) if failures > 1 else contextlib.nullcontext():
            assert write(store, batch("b"))[0].sequence == 2
        assert write(store, batch("c"))[0].sequence == 3
        assert ids(store) == list("abc")
        assert_whole(store)


def test_a_read_of_damaged_rows_is_refused_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc", content="x" * 300))
        store.rows.fold()
        damaged(store)
        with capture_log(event="rows_renewed") as rebuilds:
            with held(store):
                for _ in range(5):
                    with pytest.raises(Unavailable, match="damaged"), store.reading() as rows:
                        rows.node("a")
            until(lambda: store.rows.delta_version_count == 3)
            assert_whole(store)
        assert len(rebuilds) == 1


def test_a_check_detects_and_rebuilds_damaged_rows(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch(*"abc", content="x" * 300))
        store.rows.fold()
        state = store.state
        damaged(store)
        assert not store.check().ok
        assert store.check().ok
        assert store.state == state
        assert store.engine.rebuilds == 0
