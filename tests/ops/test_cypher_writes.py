"""Changing a store by Cypher: what a statement does is one write like any other, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bench.server import Server
from kgserve.errors import Conflict, Forbidden, InvalidInput, KgserveError, StorageFull, TimedOut, TooLarge
from kgserve.model.answers import CypherAnswer, CypherChanges
from kgserve.model.batch import WriteBatch
from kgserve.model.events import Selection
from kgserve.model.requests import CypherRequest, InjectRequest, SearchRequest
from kgserve.ops.cypher import Interruption, run
from kgserve.ops.cypher_changes import MAX_CHANGED, batch_of
from kgserve.ops.inject import inject
from kgserve.ops.search import search
from kgserve.store.aside import Difference
from kgserve.store.feed import Reader
from kgserve.store.pool import StorePool
from kgserve.store.store import Store
from tests.http.serving import accepted
from tests.ops.bare import EDGE, NODE, Bare, Rows, Statements, plain
from tests.store.writing import NAME, PATIENCE, assert_whole, settings, until
from tests.views.indexing import indexed

NODES = [{"id": name, "type": "t", "content": name} for name in "abc"]
EDGES = [{"from": "a", "to": "b", "relation_type": "R", "weight": 0.5, "attributes": {"k": 1}}]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool)
        yield pool


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("kept") / "data")) as pool:
        yield pool


@pytest.fixture
def steady(kept: StorePool) -> StorePool:
    """The same, opened once for many tests."""
    with kept.lease(NAME, create=True) as store:
        with store.reading() as session:
            ids = [node_id for [node_id] in session.rows("MATCH (e:Entity) RETURN e.id")]
        store.submit(WriteBatch(delete_nodes=ids)).result(PATIENCE)
    fill(kept)
    return kept


def fill(pool: StorePool, nodes: list[dict[str, Any]] = NODES, edges: list[dict[str, Any]] = EDGES) -> None:
    inject(pool, NAME, msgspec.convert({"nodes": nodes, "edges": edges}, InjectRequest)).result(PATIENCE)


def write(pool: StorePool, query: str, **more: Any) -> CypherAnswer:
    return run(pool, NAME, CypherRequest(query=query, mode="write", **more))


def changed(pool: StorePool, query: str, **more: Any) -> dict[str, int]:
    """What a statement changed, zeros left out."""
    changes = write(pool, query, **more).changes
    assert isinstance(changes, CypherChanges)
    found = msgspec.structs.asdict(changes)
    with pool.lease(NAME) as store:
        assert found.pop("sequence") == store.state.sequence
    return {name: count for name, count in found.items() if count}


def rows(pool: StorePool) -> tuple[Rows, Rows]:
    """All nodes and edges; an edge's attributes without the times that kgserve keeps among them."""
    with pool.lease(NAME) as store, store.reading() as session:
        return plain(session.rows(NODE)), plain(session.rows(EDGE))


def one(pool: StorePool, query: str) -> Any:
    [[value]] = run(pool, NAME, CypherRequest(query=query)).rows
    return value


WRITES = {
    "CREATE (n:Entity {id: 'x', type: 'u', content: 'c', attributes: '{\"b\": 1, \"a\": [2]}'})": {"nodes_created": 1},
    "CREATE (n:Entity {id: 'x', type: 'u'})": {"nodes_created": 1},
    "CREATE (x:Entity {id: 'x', type: 'u'})-[:RELATES_TO {relation_type: 'S'}]->(y:Entity {id: 'y', type: 'u'})": {
        "nodes_created": 2,
        "edges_created": 1,
    },
    "MERGE (n:Entity {id: 'a'}) ON CREATE SET n.type = 'new' ON MATCH SET n.content = 'met'": {"nodes_updated": 1},
    "MERGE (n:Entity {id: 'z'}) ON CREATE SET n.type = 'new' ON MATCH SET n.content = 'met'": {"nodes_created": 1},
    "MATCH (n) SET n.content = 'all'": {"nodes_updated": 3},
    "MATCH (n {id: 'a'}) SET n.content = NULL, n.attributes = NULL": {"nodes_updated": 1},
    "MATCH (n) SET n.content = n.content": {},
    "MATCH (n {id: 'nobody'}) SET n.content = 'x'": {},
    "MATCH (n {id: 'c'}) DELETE n": {"nodes_deleted": 1},
    "MATCH (n {id: 'a'}) DETACH DELETE n": {"nodes_deleted": 1, "edges_deleted": 1},
    "MATCH (n) DETACH DELETE n": {"nodes_deleted": 3, "edges_deleted": 1},
    "MATCH (n {id: 'c'}) DELETE n CREATE (m:Entity {id: 'c', type: 'again'})": {"nodes_updated": 1},
    "MATCH (a)-[r]->(b) SET r.weight = 2, r.attributes = '{\"n\": 2}'": {"edges_updated": 1},
    "MATCH (a)-[r]->(b) SET r.weight = NULL": {"edges_updated": 1},
    "MATCH (a)-[r]->(b) DELETE r": {"edges_deleted": 1},
    "MATCH (a)-[r]->(b) DELETE r CREATE (b)-[:RELATES_TO {relation_type: 'back'}]->(a)": {
        "edges_created": 1,
        "edges_deleted": 1,
    },
    "MATCH (a)-[r]->(b) DELETE r CREATE (a)-[:RELATES_TO {relation_type: 'R', weight: 9}]->(b)": {"edges_updated": 1},
    "MATCH (a {id: 'a'}), (b {id: 'b'}) MERGE (a)-[r:RELATES_TO {relation_type: 'R'}]->(b) ON MATCH SET r.weight = 7": {
        "edges_updated": 1
    },
    "MATCH (a {id: 'b'}), (b {id: 'c'}) MERGE (a)-[r:RELATES_TO {relation_type: 'R'}]->(b) SET r.weight = 3": {
        "edges_created": 1
    },
    "MATCH (a {id: 'a'}) CREATE (a)-[:RELATES_TO {relation_type: 'self'}]->(a)": {"edges_created": 1},
    "UNWIND range(1, 500) AS i CREATE (:Entity {id: 'x' + cast(i AS STRING), type: 'u'})": {"nodes_created": 500},
}


@pytest.mark.parametrize("query", WRITES)
def test_a_statement_does_what_the_bare_engine_does(steady: StorePool, query: str) -> None:
    bare = Bare()
    bare.fill(rows(steady))
    bare.run(query)
    with steady.lease(NAME) as store:
        sequence = store.state.sequence
        assert changed(steady, query) == WRITES[query]
        assert rows(steady) == bare.rows()
        assert store.state.sequence == sequence + bool(WRITES[query])
        assert list(store.layout.scratch.iterdir()) == []
        assert_whole(store)


def test_versions_and_times_are_kept(pool: StorePool) -> None:
    before = one(pool, "MATCH (n {id: 'a'}) RETURN n")
    write(pool, "MATCH (n {id: 'a'}) SET n.content = 'new'")
    write(pool, "MATCH (a)-[r]->(b) SET r.weight = 4")
    after = one(pool, "MATCH (n {id: 'a'}) RETURN n")
    assert (after["version"], after["sequence"]) == (2, 2)
    assert after["created_at"] == before["created_at"] < after["updated_at"]
    assert one(pool, "MATCH (n {id: 'b'}) RETURN n.version") == 1
    relation = one(pool, "MATCH ()-[r]->() RETURN r")
    assert (relation["version"], relation["sequence"], relation["weight"]) == (2, 3, 4.0)
    own = msgspec.json.decode(relation["attributes"])
    assert own["k"] == 1
    assert own["created_at"] < own["updated_at"]


def test_rows_come_back_from_a_write(pool: StorePool) -> None:
    query = "MATCH (a {id: 'a'})-[r]->(b) SET a.content = 'new', r.weight = 2 RETURN a.content, r, b.id, a"
    answer = write(pool, query)
    assert answer.columns == ["a.content", "r", "b.id", "a"]
    [[content, relation, other, node]] = answer.rows
    assert (content, other, node["content"], relation["weight"]) == ("new", "b", "new", 2.0)
    assert (relation["_from"], relation["_to"]) == ("a", "b")
    query = "UNWIND range(1, 20) AS i CREATE (n:Entity {id: 'x' + cast(i AS STRING), type: 't'}) RETURN n.id"
    answer = write(pool, query, max_rows=3)
    assert (answer.row_count, answer.truncated) == (3, True)
    assert answer.changes is not None
    assert answer.changes.nodes_created == 20
    assert write(pool, "MATCH (n {id: 'x1'}) DELETE n RETURN 1", max_rows=0).rows == []


def test_statements_that_only_read_may_come_in_mode_write(pool: StorePool) -> None:
    answer = write(pool, "MATCH (n) RETURN count(*)")
    assert (answer.rows, answer.changes) == ([[3]], None)


def test_parameters(pool: StorePool) -> None:
    query = "UNWIND $rows AS row MERGE (n:Entity {id: row.id}) SET n.type = row.type, n.attributes = $text"
    params = {"rows": [{"id": "a", "type": "p"}, {"id": "it's", "type": 'q"'}], "text": '{"ü": "\\n"}'}
    assert changed(pool, query, params=params) == {"nodes_created": 1, "nodes_updated": 1}
    assert one(pool, "MATCH (n {type: 'q\"'}) RETURN n.id + n.attributes") == 'it\'s{"ü":"\\n"}'


FOREVER = """
UNWIND range(1, 3000) AS i UNWIND range(1, 3000) AS j UNWIND range(1, 3000) AS k WITH count(i + j + k) AS n
CREATE (:Entity {id: 'x', type: 't'})
"""
WITHOUT_END = """
UNWIND range(1, 3000) AS i UNWIND range(1, 3000) AS j CREATE (:Entity {id: cast(i * 10000 + j AS STRING), type: 't'})
"""
FAILURES: list[tuple[str, type[KgserveError], str]] = [
    ("UNWIND range(1, 9) AS i CREATE (:Entity {id: cast(10 / (5 - i) AS STRING), type: 't'})", InvalidInput, "zero"),
    ("MATCH (n) SET n.content = cast(cast('x' + n.id AS INT64) AS STRING)", InvalidInput, "Could not convert"),
    ("CREATE (:Entity {id: 'x', type: 't'}) CREATE (:Entity {id: 'a', type: 't'})", InvalidInput, "duplicated primary"),
    ("CREATE (:Entity {id: 'x'})", InvalidInput, "no type"),
    ("CREATE (:Entity {id: '', type: 't'})", InvalidInput, "id is empty"),
    ("CREATE (:Entity {type: 't'})", InvalidInput, "primary key"),
    ("CREATE (:Entity {id: $long, type: 't'})", InvalidInput, "longer than 512"),
    ("MATCH (n {id: 'a'}) SET n.type = NULL", InvalidInput, "no type"),
    ("MATCH (n {id: 'a'}) SET n.version = 7", InvalidInput, "version is kept"),
    ("MATCH (n {id: 'a'}) SET n.sequence = NULL", InvalidInput, "sequence is kept"),
    ("MATCH (n {id: 'a'}) SET n.created_at = timestamp('2000-01-01')", InvalidInput, "created_at is kept"),
    ("MATCH (n {id: 'a'}) SET n.updated_at = timestamp('20000-01-01')", InvalidInput, "updated_at is kept"),
    ("CREATE (:Entity {id: 'x', type: 't', version: 5})", InvalidInput, "version is kept"),
    ("MATCH ()-[r]->() SET r.sequence = 9", InvalidInput, "sequence is kept"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '[1]'", InvalidInput, "text of a JSON object"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '{'", InvalidInput, "text of a JSON object"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '{\"a\": 9223372036854775808}'", InvalidInput, "64-bit"),
    ("MATCH ()-[r]->() SET r.attributes = 'x'", InvalidInput, "text of a JSON object"),
    ("MATCH ()-[r]->() SET r.relation_type = NULL", InvalidInput, "no relation_type"),
    ("MATCH (a {id: 'b'}), (b {id: 'c'}) CREATE (a)-[:RELATES_TO {weight: 1}]->(b)", InvalidInput, "no relation_type"),
    ("MATCH ()-[r]->() SET r.relation_type = 'S'", InvalidInput, "another relation_type"),
    ("MATCH (a)-[r]->(b) CREATE (a)-[:RELATES_TO {relation_type: r.relation_type}]->(b)", InvalidInput, "second edge"),
    ("MATCH ()-[r]->() SET r.weight = cast('NaN' AS DOUBLE)", InvalidInput, "no finite number"),
    ("MATCH ()-[r]->() SET r.weight = cast('inf' AS DOUBLE)", InvalidInput, "no finite number"),
    ("MATCH (n {id: 'a'}) DELETE n", InvalidInput, "connected edges"),
    ("MATCH (n {id: 'a'}) SET n.id = 'z'", InvalidInput, "primary key"),
    ("MATCH (n {id: 'a'}) SET n.colour = 'red'", InvalidInput, "colour"),
    ("MATCH (n {id: 'a'}) SET n.content = 'x' RETURN m", InvalidInput, "Variable m"),
    ("MATCH (n {id: 'a'}) SET n.content = ", InvalidInput, "syntax error"),
    ("MATCH (n:StoreCommit) DELETE n", Forbidden, "kgserve's own"),
    ("MATCH (n:Entity:StoreCommit) DELETE n", Forbidden, "kgserve's own"),
    ("DROP TABLE Entity", Forbidden, "DROP"),
    (FOREVER, TimedOut, "time limit"),
    (WITHOUT_END, StorageFull, "more memory"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "kind", "message"), FAILURES, ids=range(len(FAILURES)))
def test_a_statement_that_fails_has_changed_nothing(
    steady: StorePool, query: str, kind: type[KgserveError], message: str
) -> None:
    before = rows(steady)
    patience = 100 if kind is TimedOut else 10_000
    with steady.lease(NAME) as store:
        state = store.state
        with pytest.raises(kind, match=message) as caught:
            write(steady, query, params={"long": "é" * 257}, timeout_ms=patience)
        assert type(caught.value) is kind
        assert store.state == state
        assert rows(steady) == before
        fill(steady, [{"id": "after", "type": "t"}], [])
        assert store.state.sequence == state.sequence + 1
        assert one(steady, "MATCH (a {id: 'a'})-[:RELATES_TO* SHORTEST 1..2]->(b) RETURN b.id") == "b"
        assert list(store.layout.scratch.iterdir()) == []
        assert_whole(store)


def test_too_many_rows() -> None:
    gone = [str(number) for number in range(MAX_CHANGED + 1)]
    with pytest.raises(TooLarge, match="200001 rows"):
        batch_of(Difference(nodes=[], edges=[], nodes_gone=gone, edges_gone=[], doubled=[]))


def test_what_was_written_outlives_the_engine_s_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with StorePool(settings(data)) as pool:
        fill(pool)
        for query in WRITES:
            if "id: 'x'" not in query and "DETACH" not in query:
                write(pool, query)
        written = rows(pool)
        with pool.lease(NAME) as store:
            files = store.layout.engine
    files.unlink(missing_ok=True)
    with StorePool(settings(data)) as pool:
        assert rows(pool) == written
        with pool.lease(NAME) as store:
            assert store.view.rebuilds == 1
            assert_whole(store)


def test_every_view_hears_of_it(tmp_path: Path) -> None:
    with indexed(tmp_path / "data") as (pool, indexer), pool.lease(NAME, create=True) as store:
        listener = Reader(store.feed, None, lambda: None)
        assert listener.take(Selection()) == []
        query = "CREATE (:Entity {id: 'x', type: 't', content: 'a quick fox'})-[:RELATES_TO {relation_type: 'R'}]->"
        write(pool, query + "(:Entity {id: 'y', type: 't', content: 'a lazy dog'})")
        write(pool, "MATCH (n {id: 'y'}) SET n.content = 'a lazy fox'")
        write(pool, "MATCH (n {id: 'x'}) DETACH DELETE n")
        told = [(entry.event.sequence, type(entry.event).__name__) for entry in listener.take(Selection()) or ()]
        assert [sequence for sequence, _ in told] == [1, 1, 1, 2, 3, 3]
        found = search(pool, indexer, NAME, SearchRequest(query="fox", mode="keyword", at_least=3))
        assert [hit.node.id for hit in found.hits] == ["y"]
        assert [row.id for row in store.listing(lambda catalog: catalog.page(None, None, 10))] == ["y"]


def test_a_kill_loses_no_acknowledged_statement(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = {"embedding_provider": "hashing"}
    done: list[int] = []
    with Server(data, options) as server:
        base = f"http://127.0.0.1:{server.port}/api/memory/demo"
        accepted(httpx.post(f"{base}/inject", json={"nodes": [{"id": "n", "type": "t", "content": "0"}]}))

        def count() -> None:
            text = "MATCH (n {id: 'n'}) SET n.content = cast(cast(n.content AS INT64) + 1 AS STRING) RETURN n.content"
            while True:
                try:
                    answer = accepted(httpx.post(f"{base}/cypher", json={"query": text, "mode": "write"}, timeout=30))
                except httpx.TransportError:
                    return
                done.append(int(answer["rows"][0][0]))

        counting = threading.Thread(target=count)
        counting.start()
        until(lambda: len(done) >= 5)
        time.sleep(0.05)
        server.kill()
        counting.join()
    assert done == list(range(1, len(done) + 1))
    with StorePool(settings(data)) as pool, pool.lease("demo") as store:
        with store.reading() as session:
            [[content, version]] = session.rows("MATCH (n:Entity) RETURN n.content, n.version")
        assert int(content) in {len(done), len(done) + 1}
        assert version == int(content) + 1
        assert_whole(store)


def test_no_increment_is_lost(tmp_path: Path) -> None:
    """Two clients read and write a counter by statement while eight inject, one of them into the same node."""
    increment = "MATCH (n {id: 'n'}) SET n.content = cast(cast(n.content AS INT64) + 1 AS STRING) RETURN n.content"
    times, stop = 8, threading.Event()
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool, [{"id": "n", "type": "t", "content": "0"}], [])

        def count() -> list[int]:
            return [int(write(pool, increment).rows[0][0]) for _ in range(times)]

        def disturb(thread: int) -> int:
            number = 0
            while not stop.is_set():
                node = (
                    {"id": "n", "attributes": {"i": number}}
                    if thread == 0
                    else {"id": f"m{thread}-{number}", "type": "u"}
                )
                fill(pool, [node], [])
                number += 1
            return number

        with ThreadPoolExecutor(10) as threads:
            injects = [threads.submit(disturb, thread) for thread in range(8)]
            counts = [threads.submit(count) for _ in range(2)]
            seen = [number for counted in counts for number in counted.result(60)]
            stop.set()
            added = [injected.result(PATIENCE) for injected in injects]
        assert sorted(seen) == list(range(1, 2 * times + 1))
        assert one(pool, "MATCH (n {id: 'n'}) RETURN n.content") == str(2 * times)
        assert one(pool, "MATCH (n {type: 'u'}) RETURN count(*)") == sum(added[1:])
        assert min(added) > 0
        with pool.lease(NAME) as store:
            assert_whole(store)


def test_one_that_was_interrupted_before_its_turn_is_not_run(pool: StorePool) -> None:
    control = Interruption()
    request = CypherRequest(query="CREATE (:Entity {id: 'x', type: 't'})", mode="write")
    control.interrupt()
    with pytest.raises(TimedOut):
        run(pool, NAME, request, control)
    assert one(pool, "MATCH (n) RETURN count(*)") == 3


def test_interruptions_stop_nothing_that_comes_later(pool: StorePool) -> None:
    """Each session goes from one statement to the next while its former users still interrupt."""
    stop = threading.Event()
    controls: list[Interruption] = []

    def pester() -> None:
        while not stop.is_set():
            for control in controls[-50:]:
                control.interrupt()

    pestering = threading.Thread(target=pester)
    pestering.start()
    try:
        query = CypherRequest(query="MATCH (a), (b), (c) RETURN count(*)")
        for _ in range(200):
            control = Interruption()
            assert run(pool, NAME, query, control).rows == [[27]]
            controls.append(control)
    finally:
        stop.set()
        pestering.join()


def test_a_store_is_not_dropped_under_a_statement(pool: StorePool) -> None:
    query = "UNWIND range(1, 3000) AS i UNWIND range(1, 1500) AS j WITH count(i + j) AS n"
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write, pool, query + " CREATE (:Entity {id: 'x', type: 't'})")
        until(lambda: writing.running() and bool(list(scratch(pool))))
        try:
            pool.drop(NAME)
        except Conflict:
            pass
        else:
            assert writing.done()
        answer = writing.result(PATIENCE)
    assert answer.changes is not None
    assert answer.changes.nodes_created == 1


def scratch(pool: StorePool) -> Iterator[Path]:
    folder = pool.layout(NAME).scratch
    return folder.iterdir() if folder.exists() else iter(())


def test_compaction_beside_statements(pool: StorePool) -> None:
    stop = threading.Event()

    def compact(store: Store) -> None:
        while not stop.is_set():
            store.compactor.run()

    with pool.lease(NAME) as store:
        compacting = threading.Thread(target=compact, args=(store,))
        compacting.start()
        try:
            for number in range(6):
                assert changed(pool, f"CREATE (:Entity {{id: 'x{number}', type: 't'}})") == {"nodes_created": 1}
        finally:
            stop.set()
            compacting.join()
        assert store.compactor.done > 0
        assert_whole(store)


@pytest.mark.parametrize("seed", range(2))
def test_random_statements_come_to_the_same_as_in_the_bare_engine(tmp_path: Path, seed: int) -> None:
    statements, said = Statements(seed), []
    with StorePool(settings(tmp_path / "data")) as pool:
        fill(pool, [{"id": "n0", "type": "t"}], [])
        for _ in range(14):
            bare = Bare()
            bare.fill(rows(pool))
            said.append(statements.next())
            bare.run(said[-1])
            write(pool, said[-1])
            assert rows(pool) == bare.rows(), said
        with pool.lease(NAME) as store:
            assert_whole(store)
