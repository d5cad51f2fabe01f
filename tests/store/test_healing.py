"""An engine that is wrong or refuses is replaced; the journal is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.model.batch import WriteBatch
from tests.store.writing import PATIENCE, assert_whole, batch, forget_close, ids, opened, write, write_together

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
def test_a_check_finds_an_altered_engine_and_heals_it(tmp_path: Path, statement: str) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        state = store.state
        assert store.check().ok
        with store.view.commits:
            store.view.writer.run(statement)  # pyright: ignore[reportArgumentType]
        assert not store.check().ok
        assert store.last_check is not None
        assert (store.last_check.ok, store.view.rebuilds) == (False, 1)
        assert store.check().ok
        assert store.state == state
        assert ids(store) == ["a", "b"]
        write(store, batch("c"))
        assert_whole(store)


def test_a_write_that_the_engine_refuses_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with store.view.commits:
            store.view.writer.run("CREATE (:StoreCommit {sequence: 2})")
        [report] = write(store, batch("b", "c", edges=[("b", "c", "r")]))
        assert (report.nodes_created, report.edges_created, report.sequence) == (2, 1, 2)
        assert store.view.rebuilds == 1
        assert ids(store) == ["a", "b", "c"]
        assert_whole(store)
    forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert ids(store) == ["a", "b", "c"]


def test_a_group_that_the_engine_refuses_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        with store.view.commits:
            store.view.writer.run("CREATE (:StoreCommit {sequence: 5})")
        together = write_together(
            store, batch("c"), WriteBatch(delete_nodes=["a"]), batch("d", edges=[("c", "d", "r")])
        )
        assert [future.result(PATIENCE).sequence for future in together] == [3, 4, 5]
        assert "a" not in ids(store)
        assert store.state.edges == 1
        assert_whole(store)


def test_rows_that_cannot_be_read_before_a_write_are_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]))
        with store.view.commits:
            store.view.writer.run("MATCH (e:Entity {id: 'a'}) SET e.created_at = NULL")
        [report] = write(store, batch("a", content="new"))
        assert report.nodes_updated == 1
        assert store.view.rebuilds == 1
        assert_whole(store)


def test_reads_go_on_while_the_engine_is_healed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a"))
        with store.reading() as session:
            with store.view.commits:
                store.view.heal("a test")
            assert session.rows("MATCH (e:Entity) RETURN e.id") == [["a"]]
        assert_whole(store)
