"""Writes of the interpreter: they change only what they name, and return what later reads show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.cypher.statement_execution import run_cypher_request
from kgserve.graph.request_bodies import CypherRequest
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow, split_edge_times_from_attributes
from kgserve.stores.pool import StorePool
from tests.graph.statement_helpers import changed, fill, write
from tests.graphs import graph_of
from tests.stores.writing import NAME, settings

SEED = 20261130
COUNT = 120
CLASHING = (
    *("id", "type", "content", "weight", "version", "sequence", "tags", "summary", "valid_from", "attributes"),
    *("created_at", "updated_at", "created_by", "name", "ended", "conflicts", "relation_type", "ordinal", "confidence"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, 1.0, -0.0, "", "80 kg", "2020-01-01", [], [1, None], [{"a": 1}], {"b": {"c": None}}),
    *({"$date": "2020-01-01"}, {"$date": "soon"}, {"$datetime": "2020-01-01T00:00Z"}),
)
NODE_COLUMNS: dict[str, Any] = {
    "content": "text",
    "summary": "short",
    "tags": ["x", "y"],
    "name": "Name",
    "confidence": 0.5,
    "importance": 1,
    "valid_from": "2020-01-01T00:00:00Z",
    "freshness_at": "2030-01-01T00:00:00.000001Z",
    "layer": 2,
}
EDGE_COLUMNS: dict[str, Any] = {
    "weight": 0.5,
    "ordinal": 3,
    "confidence": 0.25,
    "context": "c",
    "valid_from": "2020-01-01T00:00:00Z",
    "valid_to": "2021-01-01T00:00:00Z",
}
STAMPS = {"version", "sequence", "created_at", "updated_at"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("changed") / "data")) as pool:
        yield pool


@pytest.fixture(scope="module")
def random_rows(kept: StorePool) -> StorePool:
    fill(kept, *make_random_rows(random.Random(SEED)))
    return kept


def run(pool: StorePool, query: str, **more: Any) -> list[list[Any]]:
    return run_cypher_request(graph_of(pool, NAME), CypherRequest(query=query, **more)).rows


def make_random_rows(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    def attributes(*left_out: str) -> dict[str, Any]:
        names = [name for name in CLASHING if rng.random() < 0.4 and name not in left_out]
        return {name: rng.choice(VALUES) for name in [*names, "key", "other"]}

    def columns(known: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in known.items() if rng.random() < 0.3}

    nodes = [
        {"id": f"n{at}", "type": "T", "attributes": attributes() | {"key": at}, **columns(NODE_COLUMNS)}
        for at in range(COUNT)
    ]
    edges = [
        {"from": f"n{at}", "to": f"n{(at + 1) % COUNT}", "relation_type": "R"}
        # Both times of an edge are sent in its attributes.
        | {"attributes": attributes("created_at", "updated_at") | {"key": at}, **columns(EDGE_COLUMNS)}
        for at in range(COUNT)
    ]
    return nodes, edges


def read_rows(pool: StorePool) -> list[NodeRow | EdgeRow]:
    """Return all rows without the stamps of a commit; edges with their own attributes only."""
    with pool.lease(NAME) as store, store.reading() as rows:
        nodes = [row for batch in rows.node_rows() for row in batch]
        edges = [edge for row in nodes for edge in rows.outgoing(row.id)]
    found: list[NodeRow | EdgeRow] = [
        msgspec.structs.replace(row, version=0, sequence=0, updated_at=0) for row in nodes
    ]
    for edge in edges:
        own = split_edge_times_from_attributes(edge.attributes).own
        found.append(msgspec.structs.replace(edge, version=0, sequence=0, attributes=own))
    return found


def with_attribute(row: NodeRow | EdgeRow, **added: Any) -> NodeRow | EdgeRow:
    attributes = msgspec.json.decode(row.attributes) | added
    return msgspec.structs.replace(row, attributes=msgspec.json.encode(attributes, order="sorted").decode())


def without_stamps(columns: Any) -> Any:
    attributes = {
        name: value for name, value in msgspec.json.decode(columns["attributes"]).items() if name not in STAMPS
    }
    return {name: value for name, value in columns.items() if name not in STAMPS} | {"attributes": attributes}


SHOWN = "n, properties(n), n.attributes, n.id, n.type, n.content, n.weight, n.tags, n.summary, n.valid_from, n.name"
WRITES = {
    "MATCH (n:T) SET n.seen = true": "node",
    "MATCH (n:T) SET n += {seen: true}": "node",
    "MATCH (n:T) SET n['seen'] = true": "node",
    "UNWIND range(0, 119) AS key MERGE (n:T {key: key}) ON MATCH SET n.seen = true": "node",
    "MATCH (:T)-[n:R]->() SET n.seen = true": "edge",
    "MATCH (:T)-[n:R]->() SET n += {seen: true}": "edge",
    "MATCH (a:T)-[:R]->(b) MERGE (a)-[n:R]->(b) ON MATCH SET n.seen = true": "edge",
}


@pytest.mark.parametrize("query", WRITES)
def test_writes_change_nothing_else(random_rows: StorePool, query: str) -> None:
    pool = random_rows
    before = read_rows(pool)
    answer = write(pool, f"{query} RETURN {SHOWN} ORDER BY n.key", max_rows=COUNT)
    kind = NodeRow if WRITES[query] == "node" else EdgeRow
    assert read_rows(pool) == [with_attribute(row, seen=True) if isinstance(row, kind) else row for row in before]
    pattern = "(n:T)" if kind is NodeRow else "(:T)-[n:R]->()"
    later = run(pool, f"MATCH {pattern} RETURN {SHOWN} ORDER BY n.key", max_rows=COUNT)
    for shown, row in zip(answer.rows, later, strict=True):
        assert without_stamps(shown[0]) == without_stamps(row[0])
        assert shown[1:2] + shown[3:] == row[1:2] + row[3:]
    write(pool, f"MATCH {pattern} REMOVE n.seen")
    assert read_rows(pool) == before


HIDDEN = {"id": "EXT-7", "type": "ext", "content": "raw", "version": "1.2", "summary": "own", "owner": None, "z": 1}
ONE = [
    {"id": "a", "type": "package", "attributes": HIDDEN, "summary": "short", "name": "A"},
    {"id": "b", "type": "thing", "attributes": {"summary": "own", "ended": True}},
]
ONE_EDGES = [
    {"from": "a", "to": "b", "relation_type": "USES", "weight": 0.5, "ordinal": 2, "attributes": {"weight": 7}}
]


@pytest.fixture
def one(pool: StorePool) -> StorePool:
    fill(pool, ONE, ONE_EDGES)
    return pool


@pytest.mark.parametrize(
    ("query", "pattern", "shown"),
    [
        ("MATCH (n:package) SET n.tags = ['x', 'y', 'x'] RETURN n.tags, n", "(n:package)", ["x", "y"]),
        ("MATCH (n:package) SET n.tags = [] RETURN n.tags, n", "(n:package)", None),
        ("MATCH (n:package) SET n.summary = '' RETURN n.summary, n", "(n:package)", None),
        ("MATCH (n:package) REMOVE n.summary RETURN n.summary, n", "(n:package)", None),
        ("MATCH (n:package) SET n.summary = 'new' RETURN n.summary, n", "(n:package)", "new"),
        ("MATCH (n:thing) SET n.summary = 'new', n.ended = 'no' RETURN n.summary, n", "(n:thing)", "new"),
        ("MATCH (n:thing) REMOVE n.summary, n.ended RETURN n.summary, n", "(n:thing)", None),
        (
            "MATCH (n:package) SET n.valid_from = '2024-01-01' RETURN n.valid_from, n",
            "(n:package)",
            "2024-01-01T00:00Z",
        ),
        ("MATCH (n:package) SET n.confidence = 1 RETURN n.confidence, n", "(n:package)", 1.0),
        ("MATCH (n:package) SET n.content = null RETURN n.content, n", "(n:package)", ""),
        ("MATCH (n:package) SET n.content = 'c', n.name = 'N' RETURN n.content, n", "(n:package)", "c"),
        ("MATCH (n:package) SET n = {z: 2} RETURN n.summary, n", "(n:package)", None),
        ("MATCH (n:package) SET n = properties(n) RETURN n.id, n", "(n:package)", "a"),
        ("MATCH (n:package), (m:thing) SET m += n RETURN m.name, m", "(m:thing)", "A"),
        ("MATCH ()-[r:USES]->() SET r.weight = 2 RETURN r.weight, r", "()-[r:USES]->()", 2.0),
        ("MATCH ()-[r:USES]->() SET r.weight = null RETURN r.weight, r", "()-[r:USES]->()", 1.0),
        ("MATCH ()-[r:USES]->() SET r.relation_type = 'USES', r.x = 1 RETURN r.weight, r", "()-[r:USES]->()", 0.5),
        ("MATCH ()-[r:USES]->() SET r = {x: 1, ordinal: 2} RETURN r.weight, r", "()-[r:USES]->()", 1.0),
        (
            "MATCH (a)-[r:USES]->(b) DELETE r CREATE (a)-[s:USES {x: 1}]->(b) RETURN s.ordinal, s",
            "()-[s:USES]->()",
            None,
        ),
        (
            "CREATE (n:T {id: 'n', tags: ['x', 'x'], summary: '', content: '', x: null}) RETURN n.tags, n",
            "(n:T)",
            ["x"],
        ),
        (
            "MATCH (b:thing) CREATE (b)-[r:NEW {weight: 1, relation_type: 'NEW', x: 1}]->(b) RETURN r.weight, r",
            "()-[r:NEW]->()",
            1.0,
        ),
    ],
)
def test_writes_return_what_later_reads_show(one: StorePool, query: str, pattern: str, shown: Any) -> None:
    variable = query[-1]
    more = f", properties({variable}), {variable}.attributes"
    [written] = write(one, query + more).rows
    assert written[0] == shown
    [later] = run(one, f"MATCH {pattern} RETURN {query.partition('RETURN ')[2]}{more}")
    assert (written[0], without_stamps(written[1]), written[2]) == (later[0], without_stamps(later[1]), later[2])
    assert without_stamps({"attributes": written[3]}) == without_stamps({"attributes": later[3]})


def test_attributes_that_columns_hide_stay_when_the_column_changes(one: StorePool) -> None:
    write(one, "MATCH (n:package) SET n.content = 'c', n.summary = 'new', n.z = 2")
    [[node]] = run(one, "MATCH (n:package) RETURN n")
    assert (node["content"], node["summary"]) == ("c", "new")
    assert msgspec.json.decode(node["attributes"]) == HIDDEN | {"z": 2}
    write(one, "MATCH ()-[r:USES]->() SET r.weight = 3")
    [[edge]] = run(one, "MATCH ()-[r:USES]->() RETURN r")
    assert (edge["weight"], msgspec.json.decode(edge["attributes"])["weight"]) == (3.0, 7)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("MATCH (n:package) SET n.seen = 1, n.version = 2", "'a': version is managed by kgserve .* line 1, column 35"),
        ("MATCH (n:package) SET n += {created_at: '2020'}", "created_at is managed"),
        ("MATCH (n:package) REMOVE n.version", "version is managed"),
        ("MERGE (n:package {id: 'a'}) ON MATCH SET n.ended = 'x'", "ended is managed"),
        ("CREATE (n:package {sequence: 1})", "sequence is managed"),
        ("MATCH ()-[r:USES]->() SET r.version = 2", "from 'a' to 'b': version is managed"),
        ("MATCH ()-[r:USES]->() SET r.relation_type = 'X'", "type cannot change; delete it and create another one"),
        ("MATCH ()-[r:USES]->() SET r += {relation_type: 'X'}", "type cannot change"),
        ("MATCH ()-[r:USES]->() REMOVE r.relation_type", "type cannot change"),
        ("MATCH (a:package) CREATE (a)-[:R {relation_type: 'X'}]->(a)", "type cannot change"),
        ("MATCH (n:package) SET n.tags = 'x'", "tags must be a list of strings"),
        ("MATCH ()-[r:USES]->() SET r.weight = '80 kg'", "weight must be a finite number"),
    ],
)
def test_what_cannot_be_set_is_refused_where_it_is_assigned(one: StorePool, query: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        write(one, query)


@pytest.mark.parametrize(
    ("query", "changes"),
    [
        ("MERGE (n:Entity {content: 'a'}) ON MATCH SET n.summary = 's'", {"nodes_updated": 1}),
        ("MERGE (n:Entity {content: 'new'})", {"nodes_created": 1}),
        ("CREATE (n:Entity {type: 'u'})", {"nodes_created": 1}),
        ("MATCH p = ({id: 'a'})-[]->({id: 'b'}) DELETE p", {"nodes_deleted": 2, "edges_deleted": 1}),
    ],
)
def test_writes_that_the_engine_refuses_run_in_the_interpreter(
    pool: StorePool, query: str, changes: dict[str, int]
) -> None:
    assert changed(pool, query) == changes


@pytest.mark.parametrize(
    "query", ["MERGE (n:person {id: 'a'})", "MERGE (n:t {id: 'a', x: 3})", "CREATE (n:t {id: 'a'})"]
)
def test_a_taken_id_is_refused_with_its_label(pool: StorePool, query: str) -> None:
    with pytest.raises(InvalidInput, match="'a' exists already, with the label 't'; MERGE it by label and id alone"):
        write(pool, query)
