"""Which statements the interpreter runs, and what is refused although one of both could parse it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.errors import Forbidden, InvalidInput
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.mutations import upsert_nodes_and_edges
from kgserve.graph.request_bodies import CypherRequest, InjectRequest
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import NAME, PATIENCE, settings

NODES = [
    {"id": "a", "type": "task", "content": "first", "attributes": {"status": "open", "source": "mail", "name": "A"}},
    {"id": "b", "type": "task", "attributes": {"status": "done"}, "name": "B"},
    {"id": "c", "type": "person"},
]
EDGES = [
    {"from": "a", "to": "b", "relation_type": "BLOCKS", "attributes": {"since": 3}},
    {"from": "c", "to": "a", "relation_type": "OWNS"},
]


@contextmanager
def open_filled_pool(data: Path) -> Generator[StorePool]:
    """Yield a pool whose store has the nodes and edges."""
    with StorePool(settings(data)) as pool:
        batch = msgspec.convert({"nodes": NODES, "edges": EDGES}, InjectRequest)
        upsert_nodes_and_edges(graph_of(pool, NAME), batch).result(PATIENCE)
        yield pool


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with open_filled_pool(tmp_path_factory.mktemp("routing") / "data") as pool:
        yield pool


@pytest.fixture
def changeable(tmp_path: Path) -> Iterator[StorePool]:
    """A pool of one test, which may change the nodes."""
    with open_filled_pool(tmp_path / "data") as pool:
        yield pool


def run(pool: StorePool, query: str, **more: Any) -> list[list[Any]]:
    return run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query, **more)).rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("MATCH (t:task {status: 'open'})-[r:BLOCKS]->(b) RETURN b.id, type(r), r.since", [["b", "BLOCKS", 3]]),
        ("MATCH (n:Entity) WHERE n.status = 'done' RETURN n.id", [["b"]]),
        ("MATCH (n:Entity)-[r:RELATES_TO {relation_type: 'OWNS'}]->(m:task) RETURN n.id, m.id", [["c", "a"]]),
        ("MATCH (n) RETURN n.name ORDER BY n.id", [["A"], ["B"], [None]]),
        (
            "MATCH (n {id: 'a'}) RETURN n.source, n['source'], keys(n)",
            [["mail", "mail", ["id", "name", "source", "status", "content"]]],
        ),
        ("MATCH (n) WHERE n:person OR n.status IN ['open'] RETURN n.id ORDER BY n.id", [["a"], ["c"]]),
        ("CALL db.labels() YIELD label RETURN label", [["person"], ["task"]]),
        ("CALL db.relationshipTypes()", [["BLOCKS"], ["OWNS"]]),
        ("CALL { RETURN 1 AS x UNION RETURN 2 AS x } RETURN x", [[1], [2]]),
        (
            "MATCH (a:task) CALL { WITH a MATCH (a)-->(b) RETURN count(b) AS c } RETURN a.id, c ORDER BY a.id",
            [["a", 1], ["b", 0]],
        ),
        ("MATCH (a {id: 'a'}) CALL (a) { MATCH (a)--(b) RETURN count(b) AS c } RETURN c", [[2]]),
        ("MATCH (n) RETURN count(*) > 2", [[True]]),
        ("MATCH (n {id: 'a'})-[*0..2]-(m) RETURN DISTINCT m.id ORDER BY m.id", [["a"], ["b"], ["c"]]),
        ("MATCH (n {id: 'a'})-[*0..2]-(m) RETURN count(DISTINCT m.id)", [[3]]),
        ("MATCH (n:nothing) RETURN n", []),
        ("UNWIND $rows AS row RETURN row.a, row['b']", [[1, None], ["x", 2.5]]),
    ],
)
def test_answers_of_statements_that_the_engine_cannot_run(filled: StorePool, query: str, rows: list[Any]) -> None:
    params = {"rows": [{"a": 1, "b": None}, {"a": "x", "b": 2.5}]} if "$rows" in query else {}
    assert run(filled, query, params=params) == rows


SHADOWED = {
    "nodes": [
        {"id": "a", "type": "P", "attributes": {"summary": "s", "tags": ["q"], "valid_from": "x", "weight": 2}},
        {"id": "b", "type": "P", "summary": "column"},
        {"id": "c", "type": "_"},
    ],
    "edges": [{"from": "a", "to": "b", "relation_type": "R", "attributes": {"ordinal": "o", "content": "k"}}],
}


@pytest.fixture(scope="module")
def shadowed(filled: StorePool) -> StorePool:
    batch = msgspec.convert(SHADOWED, InjectRequest)
    upsert_nodes_and_edges(graph_of(filled, "shadowed"), batch).result(PATIENCE)
    return filled


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("MATCH (n) WHERE n.summary = 's' RETURN n.id", [["a"]]),
        ("MATCH (n {summary: 's'}) RETURN n.id", [["a"]]),
        ("MATCH (n) RETURN n.summary ORDER BY n.id", [["s"], ["column"], [None]]),
        ("MATCH (n) WHERE n.tags = ['q'] RETURN n.valid_from", [["x"]]),
        ("MATCH ()-[r]->() RETURN r.ordinal, r.content", [["o", "k"]]),
        ("MATCH (n) WHERE n.weight = 2 RETURN n.id", [["a"]]),
        ("MATCH (n {id: 'c'}) RETURN n.type", [[None]]),
        ("MATCH (n) WHERE n.type IS NULL RETURN count(n)", [[1]]),
        ("MATCH (n) WHERE n.type <> 'Q' RETURN n.id ORDER BY n.id", [["a"], ["b"]]),
        ("MATCH (n) WHERE NOT n.type = 'P' RETURN n.id", []),
        ("MATCH (n {type: '_'}) RETURN n.id", []),
        ("MATCH (n) WHERE n.type = $label RETURN n.id", []),
        ("MATCH (n) WITH collect(n) AS found UNWIND found AS n RETURN n.type ORDER BY n.id", [["P"], ["P"], [None]]),
        ("MATCH (a {id: 'a'})-[* SHORTEST 1..2]->(b) RETURN b.type, b.summary", [["P", "column"]]),
    ],
)
def test_properties_are_the_same_in_the_engine(shadowed: StorePool, query: str, rows: list[Any]) -> None:
    params = {"label": "_"} if "$label" in query else {}
    assert run_cypher_request(graph_of(shadowed, "shadowed"), CypherRequest(query=query, params=params)).rows == rows


@pytest.mark.parametrize(
    ("query", "details"),
    [
        ("MATCH (n:task) RETURN n", "start at (n:task): nodes with label task"),
        ("MATCH (n {id: 'a'})-[:BLOCKS]->(m:task) RETURN m", "start at (n): by id; expand (n)-[:BLOCKS]->(m:task)"),
        (
            "MATCH (n:task)<-[r:OWNS*1..2]-(p) WHERE p.id IN $ids RETURN n",
            "start at (p): by id; expand (p)-[r:OWNS*1..2]->(n:task)",
        ),
        ("MATCH (n:task {status: 'open'}) RETURN n", "start at (n:task): index of attribute status"),
        (
            "MATCH (n:task {summary: 'x'}) RETURN n",
            "start at (n:task): nodes with label task, or a temporary index of summary",
        ),
        ("MATCH (n) RETURN labels(n)", "start at (n): scan of all nodes"),
        (
            "MATCH p = shortestPath((a {id: 'a'})-[*]-(b {id: 'c'})) RETURN p",
            "start at (a): by id; start at (b): by id; search (a)-[*1..]-(b)",
        ),
    ],
)
def test_explain_shows_where_patterns_start(filled: StorePool, query: str, details: str) -> None:
    rows = run(filled, f"EXPLAIN {query}")
    assert rows[0][:2] == ["Match", details]
    assert [row[0] for row in rows[1:]] == ["ProduceResults"]


def test_profile_counts_the_rows_of_clauses(filled: StorePool) -> None:
    subquery = "CALL (n) { MATCH (n)-->(m) RETURN m.id AS id }"
    rows = run(filled, f"PROFILE MATCH (n) WHERE n.status IS NOT NULL {subquery} RETURN DISTINCT n:task")
    assert [(row[0], row[3]) for row in rows] == [
        ("Match", 2), ("Apply", 1), ("  Match", 1), ("  ProduceResults", 1), ("ProduceResults", 1)
    ]  # fmt: skip
    assert all(row[4] >= 0 for row in rows)
    changed = run(filled, "PROFILE MERGE (n:plan {id: 'p'}) SET n.v = 1", mode="write")
    assert [(row[0], row[1], row[3]) for row in changed] == [
        ("Merge", "start at (n:plan): by id", 1),
        ("Update", "", 1),
    ]
    assert run(filled, "EXPLAIN MATCH (n:plan) DELETE n") == [
        ["Match", "start at (n:plan): nodes with label plan", ["n"]], ["Delete", "", []]
    ]  # fmt: skip
    assert run(filled, "MATCH (n:plan) RETURN n.v") == [[1]]
    run(filled, "MATCH (n:plan) DELETE n", mode="write")
    with pytest.raises(InvalidInput, match="line 1, column 15"):
        run(filled, "EXPLAIN MATCH (n:task RETURN n")


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("MATCH (n:task) SET n.x = 1", Forbidden, "only read"),
        ("MATCH (n:task) RETURN m.x", InvalidInput, "variable m is not defined, at line 1, column 23"),
        ("MATCH (n:task {status: $gone}) RETURN n", InvalidInput, r"no value is given for \$gone"),
        ("MATCH (a:task)-[:LINKS_TO]->(b) RETURN b.id", InvalidInput, "Elsewhere"),
        ("MATCH (a) CALL { WITH a RETURN 1 AS x } IN TRANSACTIONS RETURN x", InvalidInput, "IN TRANSACTIONS"),
        ("CALL { CREATE (n:task) } RETURN 1", Forbidden, "only read"),
        ("CALL apoc.help('x')", InvalidInput, "no procedure apoc.help; available are db.labels"),
        ("PROFILE MATCH (n:task) SET n.x = 1", Forbidden, "only read"),
        ("EXPLAIN MATCH (n:task RETURN n", InvalidInput, "line 1"),
        ("LOAD CSV FROM 'x' AS row RETURN row", Forbidden, "LOAD"),
        ("RETURN 1; RETURN 2", InvalidInput, "one statement"),
        ("RETURN $big", InvalidInput, "64 bits"),
        ("MATCH (n:task) RETURN n.created_at + 'x'", InvalidInput, "toString"),
    ],
)
def test_refusals_name_what_is_wrong(filled: StorePool, query: str, error: type[Exception], message: str) -> None:
    params = {"big": 1 << 70} if "$big" in query else {}
    with pytest.raises(error, match=message):
        run(filled, query, params=params)


def test_a_write_that_the_engine_would_get_wrong_runs_in_the_interpreter(filled: StorePool) -> None:
    run(filled, "CREATE (n:knot {id: 'k'})-[:TIES]->(n)", mode="write")
    assert run(filled, "MATCH (a)-[r]-(b) WHERE a.id = 'k' DELETE r RETURN count(*)", mode="write") == [[1]]
    assert run(filled, "MATCH (k {id: 'k'})-[r]-() RETURN count(r)") == [[0]]
    run(filled, "MATCH (k:knot) DELETE k", mode="write")


def test_a_write_keeps_attributes_and_columns_where_they_are(changeable: StorePool) -> None:
    run(changeable, "MATCH (n {id: 'a'}) SET n.seen = true, n.source = 'talk', n.summary = 'short'", mode="write")
    run(changeable, "MATCH (n {id: 'b'}) SET n.name = 'Bee', n.status = null", mode="write")
    with changeable.lease(NAME) as store, store.reading() as rows:
        a, b = rows.node("a"), rows.node("b")
    assert a is not None
    assert b is not None
    assert a.extras is not None
    assert b.extras is not None
    assert a.attributes == '{"name":"A","seen":true,"source":"talk","status":"open"}'
    assert (a.extras.summary, a.extras.source) == ("short", "")
    assert (b.attributes, b.extras.name) == ("{}", "Bee")
    [[created]] = run(changeable, "CREATE (n:note {text: 'x'}) RETURN n", mode="write")
    assert created["attributes"] == '{"text":"x"}'
