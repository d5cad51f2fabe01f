"""Writes computed by a query have the same effect as in the bare engine, and need no copy of the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from kgserve.errors import InvalidInput
from kgserve.stores.pool import StorePool
from tests.graph.bare_engine import ReferenceEngine, Rows
from tests.graph.statement_helpers import changed, fill, rows, write
from tests.stores.writing import NAME, assert_whole, settings

NODES = [{"id": name, "type": "t", "content": name} for name in "abcde"]
EDGES: list[dict[str, Any]] = [
    {"from": source, "to": target, "relation_type": name, "weight": weight}
    for source, target, name, weight in [
        ("a", "b", "R", 0.5), ("b", "a", "R", 1.0), ("a", "c", "R", 2.0), ("a", "c", "S", 3.0), ("c", "c", "R", 4.0)
    ]
]  # fmt: skip
PARAMETERS: dict[str, Any] = {"id": "a", "ids": ["a", "c"], "text": "it's", "three": 3}
ASKED = [
    "MATCH (a)-[r:RELATES_TO]->(b) WHERE a.id = $id DELETE r",
    "MATCH (a)<-[r:RELATES_TO]-(b {id: 'a'}) DELETE r",
    "MATCH (a)-[r:RELATES_TO]->(b), (b)-[s:RELATES_TO]->(a) WHERE id(r) <> id(s) DELETE r, s",
    "MATCH (a)-[r:RELATES_TO]->(b) WITH r MATCH (a {id: 'a'}), (b {id: 'b'}) DELETE r",
    "MATCH (a)-[r:RELATES_TO]->(b) WITH r ORDER BY r.weight LIMIT 2 DELETE r",
    "MATCH (a) OPTIONAL MATCH (a)-[r:RELATES_TO]->(b) DELETE r",
    "MATCH (a) OPTIONAL MATCH (a)-[r:RELATES_TO]->(b) SET r.weight = 9",
    "MATCH (a)-[r:RELATES_TO]->(b {id: 'none'}) DELETE r",
    "MATCH (n {id: 'd'}) DELETE n, n",
    "MATCH (n) WHERE NOT (n)-[]->(:Entity) AND NOT (n)<-[]-(:Entity) DELETE n",
    "MATCH (a)-[r:RELATES_TO]->(b) WHERE b.id = 'c' DETACH DELETE a, b",
    "UNWIND $ids AS i MATCH (n {id: i}) DETACH DELETE n",
    "MATCH (n) WITH n ORDER BY n.id DESC LIMIT 2 DETACH DELETE n",
    "UNWIND $ids AS i MATCH (n {id: i}) SET n.content = $text + i",
    "MATCH (a) WHERE (a)-[]->(:Entity) SET a.content = a.content + '!'",
    "MATCH (a)-[r:RELATES_TO]->(b) SET r.weight = $three, a.attributes = '{\"k\": 1}'",
    "MATCH (a)-[r:RELATES_TO]->(b) SET r.weight = size(b.id) * 2, r.attributes = '{\"k\": \"' + b.id + '\"}'",
    "MATCH (a)-[r:RELATES_TO]->(b) SET r.weight = -0.0, r.attributes = '{\"k\": ' + '1}'",
    "MATCH (n) WHERE n.id > 'c' SET n.type = 'u', n.content = n.id",
    "MATCH (n {id: 'a'}) SET n.content = CASE WHEN n.type = 't' THEN 'yes' ELSE 'no' END",
    "MATCH (n {id: 'b'}) DELETE n",
]
# The engine would read the former content.
INTERPRETED = [
    "MATCH (n {id: 'a'}) WITH n, n AS m SET n.content = 'x', n.type = m.content",
]
ON_A_COPY = [
    "MATCH (n {id: 'a'}) SET n.content = 'x', n.content = 'x'",
    # Values of another type, several values for one element, and reads of values set by the same statement.
    "MATCH (n {id: 'a'})-[]->(b) SET n.content = b.id",
    "MATCH (n {id: 'a'}) SET n.content = 'x', n.content = 'y'",
    "MATCH (n {id: 'a'}), (b {id: 'a'}) SET n.content = 'x', b.type = 'y'",
    "MATCH (n {id: 'd'}) DELETE n CREATE (m:Entity {id: 'd', type: 'again'})",
    "MATCH (a)-[r:RELATES_TO*1..2]->(b) DELETE r",
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path_factory.mktemp("kept") / "data")) as pool:
        fill(pool, NODES, EDGES)
        yield pool


@pytest.fixture
def steady(kept: StorePool) -> StorePool:
    write(kept, "MATCH (n) DETACH DELETE n")
    fill(kept, NODES, EDGES)
    return kept


def outcome(steady: StorePool, query: str) -> tuple[Rows, Rows] | None:
    """Return the rows of the bare engine after a statement; None if it fails."""
    bare = ReferenceEngine()
    bare.fill(rows(steady))
    try:
        bare.run(query, {name: value for name, value in PARAMETERS.items() if re.search(rf"\${name}\b", query)})
    except RuntimeError:
        return None
    return bare.rows()


@pytest.mark.parametrize("query", [*ASKED, *INTERPRETED, *ON_A_COPY])
def test_query_based_write_equals_bare_engine(steady: StorePool, query: str) -> None:
    due, before = outcome(steady, query), rows(steady)
    with steady.lease(NAME) as store:
        store.copy.close()
        made = store.copy.made
        if due is None:
            with pytest.raises(InvalidInput):
                write(steady, query, params=PARAMETERS)
        else:
            write(steady, query, params=PARAMETERS)
        assert rows(steady) == (before if due is None else due)
        assert (store.copy.made > made) == (query in ON_A_COPY)
        assert_whole(store)


def test_deletion_without_direction_and_of_nodes_with_their_edges(steady: StorePool) -> None:
    """Delete edges without a direction, and nodes together with all their edges."""
    assert changed(steady, "MATCH (a {id: 'c'})-[r]-(b) DELETE r") == {"edges_deleted": 3}
    assert changed(steady, "MATCH (a)-[r]->(b) DELETE a, r") == {"edges_deleted": 2, "nodes_deleted": 2}
    with steady.lease(NAME) as store:
        assert_whole(store)


@pytest.mark.parametrize(
    "query",
    [
        "MATCH (n {id: 'a'}) SET n.content = $text RETURN n.id, n.content",
        "MATCH (n) SET n.content = n.id + 'x' RETURN n.content + n.type AS both, trim(n.content) AS c, 1 + 1 AS two",
        "MATCH (a)-[r]->(b) SET r.weight = 2.5 RETURN a.id, b.content, r.weight, r.relation_type AS kind",
        "MATCH (n) SET n.type = 'v', n.content = 'x' RETURN CASE WHEN n.type = 'v' THEN n.content ELSE n.id END AS w",
    ],
)
def test_set_returns_same_rows_as_engine(steady: StorePool, query: str) -> None:
    bare = ReferenceEngine()
    bare.fill(rows(steady))
    with steady.lease(NAME) as store:
        made = store.copy.made
        answer = write(steady, query, params=PARAMETERS)
        assert store.copy.made == made
    due = bare.run(query, {"text": PARAMETERS["text"]} if "$" in query else None)
    assert sorted(answer.rows, key=repr) == sorted(due, key=repr)


def test_set_returns_updated_node(steady: StorePool) -> None:
    query = "MATCH (n {id: 'a'}) SET n.content = 'new', n.attributes = '{\"k\": 1}' RETURN n, n.id AS id"
    answer = write(steady, query)
    assert (answer.columns, answer.types, answer.truncated) == (["n", "id"], ["NODE", "STRING"], False)
    [[node, node_id]] = answer.rows
    assert (node["content"], node["attributes"], node["_label"], node["id"]) == ("new", '{"k": 1}', "Entity", node_id)
