"""Links in the engine's file: loaded on first use, then kept up to date."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.projections.cypher_engine import rebuild
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.stores.test_links import link, links, weights
from tests.stores.writing import assert_whole, batch, flip, forget_close, layout, opened, tamper, write

ASKED = "MATCH (a)-[k:LINKS_TO]->(e:Elsewhere) RETURN a.id, e.store, e.id, k.weight"
ENDS = "MATCH (e:Elsewhere) RETURN e.store, e.id"


def rows(store: OpenStore, query: str) -> list[list[Any]]:
    statement = validate_cypher_statement_for_engine(query, {}, writable=False)
    with store.engine.reading(width=NodeEdgeColumnSet.LINKS) as session, session.reading(statement) as cursor:
        return [msgspec.json.decode(line) for line in cursor.lines()]


def assert_same(store: OpenStore) -> None:
    """Assert that the engine has each of the store's links once, and no other foreign nodes."""
    expected = weights(store)
    found = rows(store, ASKED)
    assert {(source, name, target): weight for source, name, target, weight in found} == expected
    assert len(found) == len(expected)
    assert sorted(map(tuple, rows(store, ENDS))) == sorted({key[1:] for key in expected})


def some_batch(rng: random.Random) -> WriteBatch:
    keys = [(rng.choice("abcdef"), rng.choice("xy"), rng.choice("12345")) for _ in range(rng.randrange(60))]
    puts = [link(*key, rng.random()) for key in keys]
    gone = [CrossStoreLinkKey(name, (source, target, "knows")) for source, name, target in keys[:9]]
    match rng.randrange(4):
        case 0:
            return WriteBatch(delete_nodes=[rng.choice("abcdef")])
        case 1:
            return WriteBatch(delete_links=gone)
        case _:
            return WriteBatch(nodes=batch(*"abcdef").nodes, links=puts)


@pytest.mark.parametrize(("seed", "few"), [(1, True), (2, False)])
def test_the_engine_applies_link_changes(tmp_path: Path, seed: int, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr(rebuild, "MAX_INLINE_REBUILD_ROWS", 0)
    rng = random.Random(seed)
    for _ in range(2):
        with opened(tmp_path) as store:
            for _ in range(5):
                write(store, *(some_batch(rng) for _ in range(rng.randrange(1, 4))))
                assert_same(store)
            assert store.engine.width is NodeEdgeColumnSet.LINKS
            assert store.check_engine()
            assert_whole(store)
        if rng.random() < 0.5:
            forget_close(tmp_path)
    with opened(tmp_path) as store:
        assert_same(store)


def test_links_are_loaded_on_first_use(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b", edges=[("a", "b", "r")]), links(link("a", "x", "1")))
        with store.engine.reading():
            assert store.engine.width is NodeEdgeColumnSet.PLAIN
        assert_same(store)
        assert store.engine.width is NodeEdgeColumnSet.LINKS
    with opened(tmp_path) as store:
        write(store, links(link("b", "x", "1"), link("a", "x", "1", 0.5)))
        before = store.engine.rebuilds
        assert_same(store)
        # Reopened as it was closed.
        assert store.engine.rebuilds == before
        store.compactor.run()
        write(store, WriteBatch(delete_nodes=["a"]))
        assert_same(store)


def test_links_survive_reopening_the_engine_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b"), links(link("a", "x", "1"), link("b", "x", "1"), link("b", "y", "1")))
        assert_same(store)
        # The engine cannot delete a link that it has lost, so it is rebuilt.
        tamper(store, "MATCH (:Entity {id: 'b'})-[k:LINKS_TO]->(:Elsewhere) DELETE k")
        write(store, WriteBatch(delete_nodes=["b"]))
        assert_same(store)
        assert store.engine.rebuilds == 1
    flip(layout(tmp_path).engine, 100)
    with opened(tmp_path) as store:
        assert_same(store)
    layout(tmp_path).engine.unlink()
    with opened(tmp_path) as store:
        assert_same(store)


@pytest.mark.parametrize(
    "statement",
    [
        "MATCH (:Entity {id: 'b'})-[k:LINKS_TO]->(:Elsewhere) DELETE k",
        "MATCH (:Entity {id: 'b'})-[k:LINKS_TO]->(:Elsewhere) SET k.weight = 0.5",
        "MATCH (e:Elsewhere {id: '1'}) SET e.id = '2'",
        "MATCH (a:Entity {id: 'a'}), (e:Elsewhere {id: '1'}) CREATE (a)-[:LINKS_TO {relation_type: 'rogue'}]->(e)",
    ],
)
def test_a_check_detects_and_repairs_altered_links(tmp_path: Path, statement: str) -> None:
    with opened(tmp_path) as store:
        write(store, batch("a", "b"), links(link("a", "x", "1", 0.25), link("b", "x", "1")))
        assert_same(store)
        assert store.check().ok
        tamper(store, statement)
        assert not store.check().ok
        assert_same(store)
        write(store, WriteBatch(delete_nodes=["a", "b"]))
        assert_same(store)
        assert store.check().ok
