"""Cypher writes: a statement is one write like any other, or changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from bench.server import ServerProcess
from kgserve.errors import Forbidden, InvalidInput, KgserveError, StorageFull, TimedOut, TooLarge
from kgserve.graph.cypher.row_changes import MAX_CHANGED_ROWS, convert_row_changes_to_write_batch
from kgserve.graph.request_bodies import SearchRequest
from kgserve.graph.search.node_search import search_store_nodes
from kgserve.projections.cypher_engine.engine.protocol import StatementRowChanges
from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.stores.pool import StorePool
from tests.bench.forked import forked_servers  # noqa: F401  # pyright: ignore[reportUnusedImport]  # pytest finds it here
from tests.graph.bare_engine import ReferenceEngine
from tests.graph.statement_helpers import changed, fill, rows, single_value, write
from tests.graphs import graph_of
from tests.projections.indexing import indexed
from tests.server.http.serving import accepted
from tests.stores.writing import NAME, PATIENCE, assert_copy_right, assert_whole, ids, settings, until


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("kept") / "data")) as pool:
        yield pool


@pytest.fixture
def steady(kept: StorePool) -> StorePool:
    """Keep the store open for many tests."""
    with kept.lease(NAME, create=True) as store:
        with store.engine.reading() as session:
            ids = [node_id for [node_id] in session.rows("MATCH (e:Entity) RETURN e.id")]
        store.submit(WriteBatch(delete_nodes=ids)).result(PATIENCE)
    fill(kept)
    return kept


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
def test_statement_has_same_effect_as_in_bare_engine(steady: StorePool, query: str) -> None:
    bare = ReferenceEngine()
    bare.fill(rows(steady))
    bare.run(query)
    with steady.lease(NAME) as store:
        sequence = store.state.sequence
        assert changed(steady, query) == WRITES[query]
        assert rows(steady) == bare.rows()
        assert store.state.sequence == sequence + bool(WRITES[query])
        assert_copy_right(store)
        assert_whole(store)


def test_cypher_write_maintains_versions_and_times(pool: StorePool) -> None:
    before = single_value(pool, "MATCH (n {id: 'a'}) RETURN n")
    write(pool, "MATCH (n {id: 'a'}) SET n.content = 'new'")
    write(pool, "MATCH (a)-[r]->(b) SET r.weight = 4")
    after = single_value(pool, "MATCH (n {id: 'a'}) RETURN n")
    assert (after["version"], after["sequence"]) == (2, 2)
    assert after["created_at"] == before["created_at"] < after["updated_at"]
    assert single_value(pool, "MATCH (n {id: 'b'}) RETURN n.version") == 1
    relation = single_value(pool, "MATCH ()-[r]->() RETURN r")
    assert (relation["version"], relation["sequence"], relation["weight"]) == (2, 3, 4.0)
    own = msgspec.json.decode(relation["attributes"])
    assert own["k"] == 1
    assert own["created_at"] < own["updated_at"]


def test_cypher_write_returns_rows(pool: StorePool) -> None:
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


def test_reading_statement_is_allowed_in_write_mode(pool: StorePool) -> None:
    answer = write(pool, "MATCH (n) RETURN count(*)")
    assert (answer.rows, answer.changes) == ([[3]], None)


def test_cypher_write_parameters(pool: StorePool) -> None:
    query = "UNWIND $rows AS row MERGE (n:Entity {id: row.id}) SET n.type = row.type, n.attributes = $text"
    params = {"rows": [{"id": "a", "type": "p"}, {"id": "it's", "type": 'q"'}], "text": '{"ü": "\\n"}'}
    assert changed(pool, query, params=params) == {"nodes_created": 1, "nodes_updated": 1}
    assert single_value(pool, "MATCH (n {type: 'q\"'}) RETURN n.id + n.attributes") == 'it\'s{"ü":"\\n"}'


def test_labels_are_case_sensitive(pool: StorePool) -> None:
    fill(pool)
    assert changed(pool, "CREATE (:entity {id: 'e', content: 'x'})") == {"nodes_created": 1}
    for label, found in (("entity", ["e"]), ("ENTITY", []), ("storecommit", []), ("Entity", ["a", "b", "c", "e"])):
        query = f"MATCH (n:{label}) RETURN n.id ORDER BY n.id"
        assert [node_id for [node_id] in write(pool, query).rows] == found
        assert single_value(pool, f"MATCH (n:{label}) RETURN count(n)") == len(found)
    assert changed(pool, "MATCH (n:entity) DETACH DELETE n") == {"nodes_deleted": 1}


INTERPRETED = {
    "MATCH (n {id: 'a'}) SET n.weight = 6": "MATCH (n) WHERE n.weight = 6 RETURN n.id = 'a'",
    "MATCH (a)-[r]->(b) SET r.content = 'z'": "MATCH ()-[r]->() RETURN r.content = 'z'",
    "MATCH (n {id: 'a'}) SET n.type = null": "MATCH (n {id: 'a'}) RETURN n.type IS NULL",
    "CREATE (:Entity {id: 'x'})": "MATCH (n) WHERE n.type IS NULL RETURN n.id = 'x'",
    "CREATE (:Entity {type: 'made'})": "MATCH (n {type: 'made'}) RETURN n.id <> ''",
    "MERGE (n:Entity {content: 'b'}) SET n.summary = 's'": "MATCH (n {id: 'b'}) RETURN n.summary = 's'",
}


@pytest.mark.parametrize("query", INTERPRETED)
def test_what_the_engine_refuses_is_written_by_the_interpreter(steady: StorePool, query: str) -> None:
    assert sum(changed(steady, query).values()) == 1
    assert single_value(steady, INTERPRETED[query]) is True


ORDERED = {
    "UNWIND [1, 2, 3] AS i MATCH (n {id: 'a'}) SET n.content = n.content + 'x'": "axxx",
    "MATCH (n {id: 'a'}), (m {id: 'a'}) SET m.content = 'mm' SET n.content = n.content + '!'": "mm!",
    "MATCH (a)-[r]-(b) UNWIND [1, 2] AS i SET a.content = a.content + 'x'": "axx",
    "UNWIND [1, 2] AS i MERGE (n:Entity {id: 'a'}) ON MATCH SET n.content = n.content + 'x'": "axx",
    "MATCH (n {id: 'a'}) WITH n, n.content AS old SET n.content = 'x' SET n.content = n.content + old": "xa",
    "MATCH (a {id: 'a'})-[r]->(b) SET a.content = 'k' DELETE r": "k",
    "MATCH (a {id: 'a'})-[r]->(b) DELETE r SET a.content = 'k'": "k",
    "MATCH (n {id: 'a'}) SET n.content = n.content + 'x' SET n.content = n.content + 'y'": "axy",
}


@pytest.mark.parametrize("query", ORDERED)
def test_a_row_sees_what_earlier_rows_have_set(steady: StorePool, query: str) -> None:
    write(steady, query)
    assert single_value(steady, "MATCH (n {id: 'a'}) RETURN n.content") == ORDERED[query]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("UNWIND ['c', 'b'] AS i MATCH (n {id: 'a'}) SET n.content = i RETURN n.content", [["b"], ["b"]]),
        ("MATCH (n {id: 'a'}), (m {id: 'a'}) SET n.content = 'x' RETURN m.content", [["x"]]),
        ("MATCH (n {id: 'a'}) WITH n, n.content AS old SET n.content = 'x' RETURN old, n.content", [["a", "x"]]),
        ("MATCH ()-[r]->() UNWIND [1, 2] AS i SET r.weight = r.weight + 1 RETURN DISTINCT r.weight", [[2.5]]),
        ("MATCH (n {id: 'a'}) SET n.content = null RETURN n.content", [[""]]),
    ],
)
def test_a_write_returns_what_it_has_set(steady: StorePool, query: str, rows: list[list[object]]) -> None:
    assert write(steady, query).rows == rows


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
    ("CREATE (:Entity {id: 'x', type: 't'}) CREATE (:Entity {id: 'a', type: 't'})", InvalidInput, "exists already"),
    ("CREATE (:Entity {id: '', type: 't'})", InvalidInput, "id is empty"),
    ("CREATE (:Entity {id: $long, type: 't'})", InvalidInput, "longer than 512"),
    ("MATCH (n {id: 'a'}) SET n.type = '_'", InvalidInput, "reserved for nodes without a label"),
    ("MATCH (n {id: 'a'}) SET n.version = n.version + 1", InvalidInput, "version is managed"),
    ("MATCH (n {id: 'a'}) SET n.sequence = NULL", InvalidInput, "sequence is managed"),
    ("MATCH (n {id: 'a'}) SET n.created_at = timestamp('2000-01-01')", InvalidInput, "created_at is managed"),
    ("MATCH (n {id: 'a'}) SET n.updated_at = timestamp('20000-01-01')", InvalidInput, "updated_at is managed"),
    ("CREATE (:Entity {id: 'x', type: 't', version: 500})", InvalidInput, "version is managed"),
    ("MATCH ()-[r]->() SET r.sequence = r.sequence + 1", InvalidInput, "sequence is managed"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '[1]'", InvalidInput, "text of a JSON object"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '{'", InvalidInput, "text of a JSON object"),
    ("MATCH (n {id: 'a'}) SET n.attributes = '{\"a\": 9223372036854775808}'", InvalidInput, "64-bit"),
    ("MATCH ()-[r]->() SET r.attributes = 'x'", InvalidInput, "text of a JSON object"),
    ("MATCH ()-[r]->() SET r.relation_type = NULL", InvalidInput, "no relation_type"),
    ("MATCH (a {id: 'b'}), (b {id: 'c'}) CREATE (a)-[:RELATES_TO {weight: 1}]->(b)", InvalidInput, "no relation_type"),
    ("MATCH ()-[r]->() SET r.relation_type = 'S'", InvalidInput, "another relation_type"),
    ("MATCH (a)-[r]->(b) CREATE (a)-[:RELATES_TO {relation_type: r.relation_type}]->(b)", InvalidInput, "second edge"),
    ("MATCH ()-[r]->() SET r.weight = cast('NaN' AS DOUBLE)", InvalidInput, "a finite number"),
    ("MATCH ()-[r]->() SET r.weight = cast('inf' AS DOUBLE)", InvalidInput, "a finite number"),
    ("MATCH (n {id: 'a'}) DELETE n", InvalidInput, "node 'a' has connected edges, such as 'R'"),
    ("MATCH (n {id: 'a'}) SET n.id = 'z'", InvalidInput, "an id cannot change"),
    ("MATCH (n {id: 'a'}) SET n.colour = [{day: 1}]", InvalidInput, "colour"),
    ("MATCH (n {id: 'a'}) SET n.content = 'x' RETURN m", InvalidInput, "variable m"),
    ("MATCH (n {id: 'a'}) SET n.content = ", InvalidInput, "unexpected end"),
    ("MATCH (n:StoreCommit) DELETE n", Forbidden, "reserved by kgserve"),
    ("MATCH (n:Entity:StoreCommit) DELETE n", Forbidden, "reserved by kgserve"),
    ("DROP TABLE Entity", Forbidden, "DROP"),
    (FOREVER, TimedOut, "time limit"),
    (WITHOUT_END, StorageFull, "memory limit"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "kind", "message"), FAILURES, ids=range(len(FAILURES)))
def test_failed_statement_changes_nothing(
    steady: StorePool, query: str, kind: type[KgserveError], message: str
) -> None:
    before = rows(steady)
    patience = 100 if kind is TimedOut else 60_000
    with steady.lease(NAME) as store:
        state = store.state
        with pytest.raises(kind, match=message) as caught:
            write(steady, query, params={"long": "é" * 257}, timeout_ms=patience)
        assert type(caught.value) is kind
        assert store.state == state
        assert rows(steady) == before
        fill(steady, [{"id": "after", "type": "t"}], [])
        assert store.state.sequence == state.sequence + 1
        assert single_value(steady, "MATCH (a {id: 'a'})-[:RELATES_TO* SHORTEST 1..2]->(b) RETURN b.id") == "b"
        assert_copy_right(store)
        assert_whole(store)


def test_statement_with_too_many_changed_rows_is_rejected() -> None:
    gone = [str(number) for number in range(MAX_CHANGED_ROWS + 1)]
    with pytest.raises(TooLarge, match="200001 rows"):
        convert_row_changes_to_write_batch(
            StatementRowChanges(nodes=[], edges=[], nodes_gone=gone, edges_gone=[], doubled=[])
        )


def test_cypher_write_survives_loss_of_engine_file(tmp_path: Path) -> None:
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
            assert store.engine.rebuilds == 1
            assert_whole(store)


def test_cypher_write_reaches_every_projection(tmp_path: Path) -> None:
    with indexed(tmp_path / "data") as (pool, indexer), pool.lease(NAME, create=True) as store:
        listener = ChangeFeedReader(store.feed, None, lambda: None)
        assert listener.take(ChangeFeedEventFilter()) == []
        query = "CREATE (:Entity {id: 'x', type: 't', content: 'a quick fox'})-[:RELATES_TO {relation_type: 'R'}]->"
        write(pool, query + "(:Entity {id: 'y', type: 't', content: 'a lazy dog'})")
        write(pool, "MATCH (n {id: 'y'}) SET n.content = 'a lazy fox'")
        write(pool, "MATCH (n {id: 'x'}) DETACH DELETE n")
        told = [
            (entry.event.sequence, type(entry.event).__name__) for entry in listener.take(ChangeFeedEventFilter()) or ()
        ]
        assert [sequence for sequence, _ in told] == [1, 1, 1, 2, 3, 3]
        found = search_store_nodes(
            graph_of(pool, NAME, indexer), SearchRequest(query="fox", mode="keyword", at_least=3)
        )
        assert [hit.node.id for hit in found.hits] == ["y"]
        assert ids(store) == ["y"]


def test_acknowledged_statement_survives_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = {"embedding_provider": "hashing"}
    done: list[int] = []
    with ServerProcess(data, options) as server:
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
        with store.engine.reading() as session:
            [[content, version]] = session.rows("MATCH (n:Entity) RETURN n.content, n.version")
        assert int(content) in {len(done), len(done) + 1}
        assert version == int(content) + 1
        assert_whole(store)
