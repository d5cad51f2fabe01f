from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import msgspec
import pytest

from kgserve.cypher.write_analysis import StatementWriteBounds
from kgserve.errors import KgserveError, StorageFull, Unavailable
from kgserve.projections.cypher_engine.driver.dry_run_row_diff import EDGE_LOOKUP, NODE_LOOKUP
from kgserve.projections.cypher_engine.engine.protocol import StatementRowChanges
from kgserve.stores.open_store import OpenStore
from kgserve.stores.scratch_database import ScratchStatement, build_scratch_engine_file
from tests.stores.writing import batch, opened, write

NOWHERE = Path("/dev/null/scratch")
NAMES = frozenset((*NODE_LOOKUP.columns, *EDGE_LOOKUP.columns))
KEPT = ("version", "sequence", "created_at", "updated_at")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with opened(tmp_path / "data", read_connections=1) as store:
        write(store, batch(*"abc", content="x", edges=[("a", "b", "r"), ("b", "c", "r")]))
        yield store


@contextmanager
def copy_of(store: OpenStore) -> Generator[ScratchStatement]:
    size = sum(store.engine.bytes())
    folder = store.layout.scratch / "statement"
    copy = build_scratch_engine_file(store.engine.reading(timeout=0), folder, store.engine.options, size)
    try:
        with copy.run_statement(store.rows.rows()) as trial:
            yield trial
    finally:
        copy.close()


def after(store: OpenStore, *statements: LiteralString) -> StatementRowChanges:
    with copy_of(store) as trial:
        for text in statements:
            trial.session.run(text)
        found = trial.difference()
        # Compares fingerprints only; the result is the same, except for statements that are refused anyway.
        looked = trial.difference(StatementWriteBounds(names=NAMES))
        assert looked.doubled == found.doubled
        assert found.doubled or shown(looked) == shown(found)
        return found


def shown(found: StatementRowChanges) -> list[list[str]]:
    return [sorted(map(repr, part)) for part in msgspec.structs.astuple(found)]


def test_an_untouched_copy_has_no_difference(store: OpenStore) -> None:
    assert after(store) == StatementRowChanges(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])


def test_created_changed_and_deleted_rows_are_found(store: OpenStore) -> None:
    found = after(
        store,
        "CREATE (:Entity {id: 'n', type: 'u'})",
        "MATCH (e:Entity {id: 'a'}) SET e.content = NULL",
        "MATCH (e:Entity {id: 'c'}) DETACH DELETE e",
        "MATCH (:Entity {id: 'a'})-[k:RELATES_TO]->(:Entity) SET k.weight = 7",
    )
    changed, new = sorted(found.nodes, key=lambda row: row.now["id"])
    assert (new.now["id"], new.now["type"], new.before) == ("n", "u", None)
    assert [new.now[field] for field in KEPT] == [None] * 4
    assert changed.now["content"] is None
    assert changed.before is not None
    assert changed.before["content"] == "x"
    assert [changed.now[field] for field in KEPT] == [changed.before[field] for field in KEPT]
    assert found.nodes_gone == ["c"]
    assert found.edges_gone == [("b", "c", "r")]
    assert [(row.now["source"], row.now["weight"]) for row in found.edges] == [("a", 7.0)]
    assert found.doubled == []


def test_a_statement_does_not_change_the_store(store: OpenStore) -> None:
    state = store.state
    after(store, "MATCH (e:Entity) DETACH DELETE e")
    assert store.state == state
    with store.engine.reading() as session:
        assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[3]]


def test_duplicate_and_untyped_edges(store: OpenStore) -> None:
    make = "MATCH (a:Entity {id: 'a'}), (b:Entity {id: 'b'}) CREATE (a)-[:RELATES_TO {relation_type: 'r'}]->(b)"
    assert after(store, make).doubled == [("a", "b", "r")]
    make = "MATCH (a:Entity {id: 'a'}), (b:Entity {id: 'b'}) CREATE (a)-[:RELATES_TO {weight: 1}]->(b)"
    [edge] = after(store, make).edges
    assert (edge.now["relation_type"], edge.before) == (None, None)
    found = after(store, "MATCH (:Entity)-[k:RELATES_TO]->(:Entity {id: 'c'}) SET k.relation_type = NULL")
    assert found.edges_gone == [("b", "c", "r")]
    assert [row.now["relation_type"] for row in found.edges] == [None]


def test_times_beyond_the_range_of_python(store: OpenStore) -> None:
    [row] = after(store, "MATCH (e:Entity {id: 'a'}) SET e.created_at = timestamp('20000-01-01')").nodes
    assert row.now["created_at"] == 568_971_820_800_000_000
    assert row.before is not None
    assert isinstance(row.before["created_at"], int)


def test_non_finite_numbers(store: OpenStore) -> None:
    [row] = after(store, "MATCH (:Entity {id: 'a'})-[k:RELATES_TO]->() SET k.weight = cast('nan' AS DOUBLE)").edges
    assert row.now["weight"] != row.now["weight"]


def test_an_empty_store(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        assert after(store) == StatementRowChanges(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])
        found = after(
            store, "CREATE (:Entity {id: 'a', type: 't'})-[:RELATES_TO {relation_type: 'r'}]->(:Entity {id: 'b'})"
        )
        assert sorted(row.now["id"] for row in found.nodes) == ["a", "b"]
        assert len(found.edges) == 1
        write(store, batch("a", edges=[]))
        found = after(store, "MATCH (e:Entity) DELETE e")
        assert (found.nodes, found.nodes_gone) == ([], ["a"])


def test_unusual_texts_survive(tmp_path: Path) -> None:
    odd = ["it's", 'say "hi"', "nul\0end", "two\r\nlines", "back\\slash", "😀", " ", "NULL", ""]
    with opened(tmp_path / "data") as store:
        write(store, batch(*(name or "empty" for name in odd), content="a,b\n'\"\\"))
        assert after(store) == StatementRowChanges(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])
        assert sorted(after(store, "MATCH (e:Entity) DELETE e").nodes_gone) == sorted(name or "empty" for name in odd)


def test_a_scratch_copy_holds_no_read_session(store: OpenStore) -> None:
    with copy_of(store), store.engine.reading() as session:
        assert session.rows("MATCH (e:Entity) RETURN count(*)") == [[3]]


def test_closing_removes_all_scratch_files(store: OpenStore) -> None:
    with copy_of(store):
        assert [path.name for path in store.layout.scratch.iterdir()] == ["statement"]
    assert list(store.layout.scratch.iterdir()) == []
    with pytest.raises(KgserveError), copy_of(store) as copy:
        copy.session.run("CREATE (:Entity {id: 'a', type: 't'})")
    assert list(store.layout.scratch.iterdir()) == []
    with copy_of(store) as copy:
        (store.layout.scratch / "statement" / "junk").write_text("x")
        assert copy.session.rows("MATCH (e:Entity) RETURN count(*)") == [[3]]
    assert list(store.layout.scratch.iterdir()) == []


def test_a_full_disk_refuses_a_scratch_copy(store: OpenStore) -> None:
    options = store.engine.options
    with pytest.raises(StorageFull, match="MiB are left"):
        build_scratch_engine_file(store.engine.reading(), store.layout.scratch / "statement", options, 1 << 60)
    with pytest.raises(Unavailable, match="copying a store"):
        build_scratch_engine_file(store.engine.reading(), NOWHERE, options, 0)
    assert list(store.layout.scratch.iterdir()) == []
    assert after(store).nodes == []
