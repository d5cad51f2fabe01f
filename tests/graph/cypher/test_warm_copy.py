"""The copy on which statements run is kept between statements, and stays equal to the store."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import InvalidInput, StorageFull
from kgserve.projections.cypher_engine import rebuild
from kgserve.projections.cypher_engine.engine.protocol import NO_ROW_CHANGES, EngineFileOptions
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from kgserve.stores.scratch_database import ScratchDatabase, ScratchEngineFileLruCache, ScratchStatement
from tests.fuzzing import is_thorough
from tests.graph.bare_engine import RandomStatements, ReferenceEngine
from tests.graph.statement_helpers import changed, fill, rows, write
from tests.stores.writing import NAME, PATIENCE, UNTOUCHED, assert_copy_right, assert_whole, batch, settings
from tests.stores.writing import write as submit

FAILING = "MATCH (n) SET n.content = cast(cast('x' + n.id AS INT64) AS STRING)"
REFUSED = [
    "MATCH (n) DETACH DELETE n CREATE (:Entity {id: 'n1'})",
    "MATCH (n {id: 'n1'}) SET n.type = '', n.tags = ['x'], n.valid_to = timestamp('2020-01-01')",
    "MATCH (a)-[r]->(b) SET r.weight = cast('inf' AS DOUBLE), r.ordinal = 7",
    "MATCH (a {id: 'n1'}), (b {id: 'n2'}) CREATE (a)-[:RELATES_TO {weight: 1}]->(b)",
    FAILING,
]


def between(pool: StorePool, r: random.Random) -> None:
    """Write rows without statements, also with rare fields."""
    node, other = (f"n{r.randrange(6)}" for _ in range(2))
    with pool.lease(NAME) as store:
        match r.randrange(3):
            case 0:
                store.submit(WriteBatch(delete_nodes=[node])).result(PATIENCE)
            case 1:
                submit(store, batch(node, other, edges=[(node, other, "R")]))
            case _:
                whole = {
                    "id": node,
                    "type": "u",
                    "summary": "s",
                    "tags": ["x", "y"],
                    "valid_to": "2020-01-01T00:00:00Z",
                }
                fill(pool, [whole], [{"from": node, "to": node, "relation_type": "S", "ordinal": r.randrange(9)}])


@pytest.mark.parametrize(("seed", "few"), [(0, rebuild.MAX_INLINE_REBUILD_ROWS), (1, 0)])
def test_warm_copy_stays_equal_to_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, few: int) -> None:
    """Statements have the same effect as in the bare engine, and the copy stays correct after every write.

    The copy is built from ``few`` rows, or else from the file of the engine.
    """
    monkeypatch.setattr(rebuild, "MAX_INLINE_REBUILD_ROWS", few)
    executed: list[str] = []
    statements, r = RandomStatements(seed), random.Random(seed)
    with StorePool(settings(tmp_path / "data")) as pool, pool.lease(NAME, create=True) as store:
        fill(pool, [{"id": f"n{number}", "type": "t"} for number in range(4)], [])
        for _ in range(24 if is_thorough() else 8):
            refused = r.random() < 0.2
            executed.append(r.choice(REFUSED) if refused else statements.next())
            bare = ReferenceEngine()
            bare.fill(rows(pool))
            if refused:
                with contextlib.suppress(InvalidInput):
                    write(pool, executed[-1])
            else:
                bare.run(executed[-1])
                write(pool, executed[-1])
            assert rows(pool) == bare.rows(), executed
            assert_copy_right(store)
            if r.random() < 0.4:
                between(pool, r)
        assert store.copy.made < 20, executed
        assert_whole(store)


def test_warm_copy_is_reused_by_statements(pool: StorePool) -> None:
    with pool.lease(NAME) as store:
        for number in range(4):
            assert changed(pool, f"MATCH (n {{id: 'a'}}) SET n.content = '{number}' RETURN count(*)") == {
                "nodes_updated": 1
            }
            fill(pool, [{"id": "d", "type": "t", "content": str(number)}], [])
            assert changed(pool, "MATCH (n {id: 'd'}) SET n.content = n.type RETURN count(*)") == {"nodes_updated": 1}
            met = changed(pool, "MATCH (a)-[r]->(b) SET b.type = r.relation_type RETURN count(*)")
            assert met == ({} if number else {"nodes_updated": 1})
        with pytest.raises(InvalidInput, match="JSON object"):
            write(pool, "MATCH (n) SET n.attributes = NULL, n.attributes = 'x'")
        assert changed(pool, "MATCH (n {id: 'a'}) SET n.content = n.type RETURN count(*)") == {"nodes_updated": 1}
        assert store.copy.made == 1
        with pytest.raises(InvalidInput, match="Could not convert"):
            write(pool, FAILING)
        assert not store.copy.is_warm
        assert_copy_right(store)
        write(pool, "MATCH (n {id: 'a'}) SET n.content = 'x' RETURN count(*)")
        assert store.copy.made == 2
        assert_copy_right(store)


def test_edge_changes_require_copy_with_edges(pool: StorePool) -> None:
    fill(pool, [], [{"from": a, "to": b, "relation_type": "S"} for a in "abc" for b in "abc" if a != b])
    with pool.lease(NAME) as store:
        for made, query, counts in (
            (1, "MATCH (n) SET n.content = 'x' RETURN count(*)", {"nodes_updated": 3}),
            (
                1,
                "MATCH (n {id: 'a'})-[r {relation_type: 'S'}]->({id: 'b'}) DELETE r RETURN count(*)",
                {"edges_deleted": 1},
            ),
            (2, "MATCH (n {id: 'b'})<-[r]-({id: 'a'}) DELETE r RETURN count(*)", {"edges_deleted": 1}),
            (3, "MATCH (n {id: 'a'}) DETACH DELETE n RETURN 1", {"nodes_deleted": 1, "edges_deleted": 3}),
            (4, "MATCH (n {id: 'c'}) SET n.content = 'y' RETURN count(*)", {"nodes_updated": 1}),
        ):
            assert changed(pool, query) == counts
            assert store.copy.made == made
            assert_copy_right(store)
        fill(pool, [], [{"from": "b", "to": "b", "relation_type": "S"}])
        assert changed(pool, "MATCH (n {id: 'c'}) DETACH DELETE n RETURN 1") == {"nodes_deleted": 1, "edges_deleted": 2}
        assert store.copy.made == 5
        assert_whole(store)


def untouched(trial: ScratchStatement) -> None:
    assert trial.difference(UNTOUCHED) == NO_ROW_CHANGES


def copy_of(store: OpenStore, copies: ScratchEngineFileLruCache, seconds: float = 60.0) -> ScratchDatabase:
    return ScratchDatabase(store.layout, store.journal, store.engine, store.rows, copies, seconds)


def test_warm_copy_is_released(pool: StorePool) -> None:
    with pool.lease(NAME) as store:
        kept, brief = copy_of(store, ScratchEngineFileLruCache()), copy_of(store, ScratchEngineFileLruCache(), 0.0)
        for copy in (kept, brief):
            copy.run(untouched, UNTOUCHED)
            assert copy.is_warm
            copy.tend()
            assert copy.is_warm == (copy is kept)
            copy.close()
            assert list(store.layout.scratch.iterdir()) == []
        write(pool, "MATCH (n {id: 'a'}) SET n.content = 'x'")
    pool.close()
    assert list(pool.layout(NAME).scratch.iterdir()) == []


def test_number_of_warm_copies_is_limited(pool: StorePool) -> None:
    copies = ScratchEngineFileLruCache(limit=2)
    made: list[ScratchDatabase] = []
    for name in "xyz":
        with pool.lease(name, create=True) as store:
            submit(store, batch("a"))
            made.append(copy_of(store, copies))
            made[-1].run(untouched, UNTOUCHED)
            if name == "y":
                made[0].run(untouched, UNTOUCHED)
    assert [copy.is_warm for copy in made] == [True, False, True]
    for copy in made:
        copy.close()


def test_warm_copy_is_deleted_on_full_disk(pool: StorePool) -> None:
    with pool.lease(NAME) as store:
        write(pool, "MATCH (n {id: 'a'}) SET n.content = 'x' RETURN count(*)")
        options = store.engine.options
        store.engine.options = msgspec.structs.replace(options, file=EngineFileOptions(cache_bytes=1 << 60))
        with pytest.raises(StorageFull, match="runs on a copy"):
            write(pool, "MATCH (n {id: 'a'}) SET n.content = 'y' RETURN count(*)")
        assert list(store.layout.scratch.iterdir()) == []
        store.engine.options = options
        assert changed(pool, "MATCH (n {id: 'a'}) SET n.content = 'y' RETURN count(*)") == {"nodes_updated": 1}
