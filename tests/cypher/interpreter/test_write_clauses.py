"""Clauses that write, and the overlay that collects their changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from typing_extensions import override

from kgserve.cypher.interpreter.execution import execute_cypher_statement
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits, RelationshipKey
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.semantic_checks import check_query_semantics
from kgserve.errors import InvalidInput
from tests.cypher.interpreter.memory_graph import MemoryGraph
from tests.cypher.interpreter.statements import NOW, evaluate_on, run_statement, show_value


def friends() -> MemoryGraph:
    return (
        MemoryGraph()
        .add_node("u", "User", name="u")
        .add_node("a", "Friend", n=1)
        .add_node("b", "Friend", n=2)
        .add_relationship("u", "KNOWS", "a", since=1)
        .add_relationship("u", "KNOWS", "b", since=2)
    )


def show_graph(graph: MemoryGraph) -> set[str]:
    rows = run_statement(graph, "MATCH (n) RETURN n")
    edges = run_statement(graph, "MATCH (n)-[r]->(m) RETURN n.id, r, m.id")
    return {row[0] for row in rows} | {f"{row[0]}-{row[1]}->{row[2]}" for row in edges}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # CREATE
        ("CREATE (n:N {id: 'x', v: 1, w: null}) RETURN n", [["(x:N {'v': 1})"]]),
        ("CREATE p = (a:A)-[:R {w: 1}]->(:B)<-[:S]-(a) RETURN p", [["(:A)-[:R {'w': 1}]->(:B)<-[:S]-(:A)"]]),
        ("CREATE (n {type: 'T'}) RETURN n, labels(n), n.type", [["(:T)", ["T"], "T"]]),
        ("CREATE (n) RETURN labels(n), keys(n), n.id STARTS WITH '_:'", [[[], [], True]]),
        ("CREATE (n {m: {a: [1, null], b: {c: 1.5}}}) RETURN n.m.b.c", [[1.5]]),
        ("MATCH (f:Friend) CREATE (f)-[r:R]->(n:N {v: f.n * 2}) RETURN n.v ORDER BY n.v", [[2], [4]]),
        ("CREATE (a:A {v: 1}), (b:B {v: a.v + 1}) RETURN b.v", [[2]]),
        # MERGE
        (
            "MERGE (n:Friend {n: 1}) ON MATCH SET n.m = 1 ON CREATE SET n.c = 1 RETURN n",
            [["(a:Friend {'m': 1, 'n': 1})"]],
        ),
        (
            "MERGE (n:Friend {n: 9}) ON MATCH SET n.m = 1 ON CREATE SET n.c = 1 RETURN n",
            [["(:Friend {'c': 1, 'n': 9})"]],
        ),
        ("MERGE (n:Friend) ON MATCH SET n.m = n.n RETURN n.m ORDER BY n.m", [[1], [2]]),
        (
            "UNWIND [8, 9, 8] AS k MERGE (n:K {k: k}) ON CREATE SET n.c = 0 ON MATCH SET n.c = n.c + 1 RETURN k, n.c",
            [[8, 1], [9, 0], [8, 1]],
        ),
        ("UNWIND range(1, 9) AS i MERGE (n:K {k: i % 3}) RETURN count(DISTINCT n)", [[3]]),
        ("MATCH (u:User), (f:Friend) MERGE (u)-[r:KNOWS]-(f) RETURN count(r)", [[2]]),
        (
            "MATCH (u:User), (f:Friend) MERGE (f)-[r:LIKES]-(u) RETURN startNode(r).id ORDER BY startNode(r).id",
            [["a"], ["b"]],
        ),
        ("MATCH (a {id: 'a'}), (b {id: 'b'}) MERGE (a)<-[r:R]-(b) RETURN startNode(r).id", [["b"]]),
        ("MERGE (a:User)-[:KNOWS]->(b:Friend {n: 1})-[:R]->(c:C) RETURN a.id STARTS WITH '_:'", [[True]]),
        ("MERGE (a:X) MERGE (b:X) RETURN a = b", [[True]]),
        ("MATCH (n:Nothing) MERGE (m:X) RETURN m", []),
        # SET and REMOVE
        ("MATCH (n {id: 'a'}) SET n.n = n.n + 1, n['k' + '1'] = 5 RETURN n", [["(a:Friend {'k1': 5, 'n': 2})"]]),
        ("MATCH (n {id: 'a'}) SET n.n = null RETURN n, n.n", [["(a:Friend)", None]]),
        ("MATCH (n {id: 'a'}) SET n = {x: 1, y: null} RETURN n", [["(a:Friend {'x': 1})"]]),
        ("MATCH (n {id: 'a'}) SET n += {x: 1, n: null} RETURN n", [["(a:Friend {'x': 1})"]]),
        ("MATCH (n {id: 'a'}), (u:User) SET n = u RETURN n", [["(a:Friend {'name': 'u'})"]]),
        (
            "MATCH ()-[r]->(n {id: 'a'}) SET r = n SET n = r RETURN r, n",
            [["[:KNOWS {'id': 'a', 'n': 1}]", "(a:Friend {'n': 1})"]],
        ),
        ("MATCH (n {id: 'a'}) SET n.type = 'Foe' RETURN labels(n)", [[["Foe"]]]),
        ("MATCH (n {id: 'a'}) REMOVE n:Friend:Foe SET n:Foe SET n:Foe RETURN n", [["(a:Foe {'n': 1})"]]),
        ("MATCH (n {id: 'a'}) REMOVE n:Foe, n.n RETURN n", [["(a:Friend)"]]),
        ("MATCH ()-[r]->({id: 'a'}) REMOVE r.since SET r.x = 1 RETURN r", [["[:KNOWS {'x': 1}]"]]),
        ("OPTIONAL MATCH (n:Nothing) SET n.x = 1, n:X, n = {y: 1} REMOVE n.x, n:X RETURN n", [[None]]),
        ("MATCH (n:Friend) SET n.n = 7 WITH n LIMIT 1 MATCH (m {n: 7}) RETURN count(m)", [[2]]),
        # DELETE
        ("MATCH (n:Friend) DETACH DELETE n WITH count(*) AS c MATCH (m) RETURN c, count(m)", [[2, 1]]),
        ("MATCH ()-[r]->(n) DELETE r, n RETURN type(r)", [["KNOWS"], ["KNOWS"]]),
        ("MATCH (n:User) DETACH DELETE n WITH n OPTIONAL MATCH (n)-->(m) RETURN m", [[None]]),
        (
            "MATCH p = (:User)-->({id: 'a'}) WITH {k: [p]} AS m DETACH DELETE m.k[0] WITH 1 AS x MATCH (n) RETURN n.id",
            [["b"]],
        ),
        (
            "MATCH (u:User) DELETE u WITH u MATCH (n)-[r]->(m) RETURN count(r) AS c UNION MATCH (u:User) RETURN 1 AS c",
            None,
        ),
        ("OPTIONAL MATCH (n:Nothing) DETACH DELETE n RETURN n", [[None]]),
        ("MATCH (u)-[r]->(n) DELETE r CREATE (u)-[q:KNOWS]->(n) RETURN q", [["[:KNOWS]"], ["[:KNOWS]"]]),
        # FOREACH and subqueries
        (
            """MATCH (f:Friend) WITH collect(f) AS l
            FOREACH (f IN l | SET f.x = 1 FOREACH (i IN [1, 2] | CREATE (f)-[:C]->(:D {i: i})))
            WITH 1 AS one MATCH (f {x: 1})-->(d) RETURN sum(d.i)""",
            [[6]],
        ),
        ("FOREACH (x IN null | CREATE (:N)) WITH 1 AS one MATCH (n:N) RETURN n", []),
        ("MATCH (f:Friend) CALL { WITH f CREATE (n:N {v: f.n}) } RETURN count(*)", [[2]]),
        ("MATCH (f:Friend) CALL (f) { CREATE (n:N {v: f.n}) RETURN n.v AS v } RETURN v ORDER BY v", [[1], [2]]),
        ("UNWIND [1, 2] AS i CALL (i) { MERGE (n:N) ON MATCH SET n.i = i RETURN n } RETURN n.i", [[2], [2]]),
    ],
)
def test_updates(statement: str, expected: list[list[Any]] | None) -> None:
    if expected is None:
        with pytest.raises(InvalidInput, match="it still has the relationship KNOWS"):
            run_statement(friends(), statement)
    else:
        assert run_statement(friends(), statement) == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE (:A:B)", "a node has one label: keep 'A' and put 'B' into a property"),
        ("CREATE (:A {id: 5})", r"the property id of a node must be a string that is not empty, not an integer \(5\)"),
        ("CREATE (:A {id: ''})", "must be a string that is not empty"),
        ("CREATE (:A {id: 'u'})", "a node with the id 'u' exists already, with the label 'User'; MERGE it"),
        ("MERGE (:A {id: 'u'})", "a node with the id 'u' exists already"),
        ("CREATE (:A {type: 'B'})", "'A' and 'B' differ"),
        ("CREATE (:`_`)", "the label '_' is reserved"),
        ("MATCH (u:User)-->(f) CREATE (u)-[:KNOWS]->(f)", "a relationship KNOWS from 'u' to 'a' exists already"),
        ("MATCH (n:User) DETACH DELETE n CREATE (:User {id: 'u'})", "node 'u' was deleted by the same statement"),
        ("MATCH (n:User) DETACH DELETE n CREATE (n)-[:R]->(:X)", "node 'u' was deleted; no relationship can be"),
        ("OPTIONAL MATCH (n:Nothing) CREATE (n)-[:R]->(:X)", "no relationship can be created at n: it is null"),
        ("MERGE (n {x: toInteger(null)})", "MERGE cannot use null for property 'x'"),
        ("MATCH (n:User) SET n:Admin", "has the label 'User' already.*REMOVE n:User first, or SET n.type = 'Admin'"),
        ("MATCH (n:User) SET n.id = 'v'", "an id cannot change"),
        ("MATCH (n:User) REMOVE n.id", "an id cannot change"),
        ("MATCH (n:User) SET n.type = 5", "the property type of a node is its label: a string"),
        ("MATCH (n:User) SET n.type = '_'", "the label '_' is reserved for nodes without a label"),
        ("MATCH (n:User) SET n.x = [1, {a: 1}]", "property 'x' cannot be a list of maps"),
        ("MATCH (n:User) SET n.x = n", "property 'x' cannot be a node"),
        ("MATCH (n:User) SET n.x = {`$date`: '2020-01-01'}", "stands for date"),
        ("MATCH (n:User) SET n.x = 1.0 / 0", "property 'x' cannot be NaN or an infinite number"),
        ("MATCH (n:User) WITH n, {k: 5} AS m SET n = m.k", "SET n expects a map, node or relationship, not an integer"),
        ("MATCH (n:User) DELETE n", "node 'u' cannot be deleted: it still has the relationship KNOWS from 'u' to"),
        ("MATCH (n:Friend) DETACH DELETE n RETURN n.n", "was deleted by this statement; it has no properties"),
        ("MATCH (n:Friend) DETACH DELETE n RETURN labels(n)", "was deleted"),
        ("MATCH (n:Friend) DETACH DELETE n SET n.x = 1", "was deleted by this statement"),
        ("MATCH ()-[r]->() DELETE r RETURN r.since", "the relationship KNOWS from 'u' to 'a' was deleted"),
        ("MATCH (n) WITH {l: collect(n)} AS m DELETE m.l", "DELETE expects nodes, relationships and paths, not a list"),
        ("FOREACH (x IN {k: 5}.k | CREATE (:N))", "FOREACH expects a list, not an integer"),
    ],
)
def test_refused_updates(statement: str, message: str) -> None:
    graph = friends()
    before = show_graph(graph)
    with pytest.raises(InvalidInput, match=message):
        run_statement(graph, statement)
    assert show_graph(graph) == before


def test_results_without_properties_show_deleted_elements() -> None:
    edits = GraphChangeOverlay(friends())
    [[node, edge]] = evaluate_on(edits, "MATCH (n {id: 'a'})<-[r]-() DELETE r, n RETURN n, r")
    assert edits.node_columns(node.id)["attributes"] == "{}"
    assert edits.relationship_columns(edge.key)["attributes"] == "{}"


def test_changes_are_differences_to_the_base() -> None:
    edits = GraphChangeOverlay(friends())
    evaluate_on(
        edits,
        "MATCH (u:User)-[r]->(a {id: 'a'}), (b {id: 'b'})<-[s]-() "
        "SET u.name = 'u', a.n = 5, a.type = 'X', s.since = 3 DELETE r CREATE (u)-[:NEW {v: 1}]->(n:N {id: 'n', v: 2}) "
        "CREATE (gone:N) DELETE gone",
    )
    changes = edits.changes()
    assert [(each.id, each.label, each.properties) for each in changes.created_nodes] == [("n", "N", {"v": 2})]
    [updated] = changes.updated_nodes
    assert (updated.id, updated.label_before, updated.label) == ("a", "Friend", "X")
    assert (updated.properties_before, updated.properties) == ({"n": 1}, {"n": 5})
    assert not changes.deleted_nodes
    assert [(each.key, each.properties) for each in changes.created_relationships] == [(("u", "n", "NEW"), {"v": 1})]
    [edge] = changes.updated_relationships
    assert (edge.key, edge.properties_before, edge.properties) == (("u", "b", "KNOWS"), {"since": 2}, {"since": 3})
    assert [each.key for each in changes.deleted_relationships] == [("u", "a", "KNOWS")]
    assert edits.counts.nodes_created == 2


def test_statement_that_changes_nothing_has_no_changes() -> None:
    edits = GraphChangeOverlay(friends())
    evaluate_on(edits, "MATCH (n) SET n += {} SET n.x = 1 REMOVE n.x MERGE (m:User) CREATE (k:K) DELETE k")
    assert edits.changes().is_empty


def test_relationship_that_is_deleted_and_created_again_is_an_update() -> None:
    edits = GraphChangeOverlay(friends())
    evaluate_on(edits, "MATCH (u)-[r]->(a {id: 'a'}) DELETE r CREATE (u)-[:KNOWS {since: 9}]->(a)")
    [edge] = edits.changes().updated_relationships
    assert (edge.properties_before, edge.properties) == ({"since": 1}, {"since": 9})


class GraphWithDefaults(MemoryGraph):
    """Has values for properties that were not given, as rows have versions and weights."""

    @override
    def unset_node_property(self, node_id: str, name: str, *, is_new: bool) -> Any:
        return 7 if name == "version" else None

    @override
    def unset_relationship_property(self, key: RelationshipKey, name: str, *, is_new: bool) -> Any:
        return 8 if name == "version" else None


def test_changed_elements_have_the_defaults_of_the_base() -> None:
    graph = GraphWithDefaults().add_node("a", "A", x=1).add_relationship("a", "R", "a", y=1)
    edits = GraphChangeOverlay(GraphChangeOverlay(graph))
    changed = "MATCH (n)-[r]->(n) SET n.z = 1, r.z = 1 REMOVE n.x, r.y "
    assert evaluate_on(edits, changed + "RETURN n.version, n.x, n.z, r.version, r.y, r.z") == [[7, None, 1, 8, None, 1]]


def test_lookups_find_defaults_of_changed_elements() -> None:
    graph = GraphWithDefaults().add_node("a", "A", version=7).add_node("b", "A")
    edits = GraphChangeOverlay(graph)
    evaluate_on(edits, "MATCH (n) SET n.x = 1 CREATE (m:A {id: n.id + 'c'})")
    rows = evaluate_on(edits, "UNWIND [7, 7, 7] AS v MATCH (n {version: v}) RETURN v, count(n)")
    assert rows == [[7, 12]]


def test_columns_of_times_accept_temporal_values() -> None:
    edits = GraphChangeOverlay(friends())
    assert evaluate_on(
        edits, "MATCH (n:User) SET n.valid_from = datetime('2020-01-01') RETURN toString(n.valid_from)"
    ) == [["2020-01-01T00:00Z"]]


def test_lists_of_names_follow_the_changes() -> None:
    edits = GraphChangeOverlay(friends())
    evaluate_on(edits, "MATCH (n:Friend) DETACH DELETE n CREATE (:New {k: 1})-[:R {q: 1}]->()")
    assert edits.labels() == ["New", "User"]
    assert edits.relationship_types() == ["R"]
    assert {"k", "q"} <= set(edits.property_keys())
    assert (edits.node_count(), edits.node_count("New")) == (5, 2)


def test_edits_can_be_stacked() -> None:
    first = GraphChangeOverlay(friends())
    evaluate_on(first, "MATCH (n:User) DETACH DELETE n CREATE (:N {id: 'n', v: 1})")
    second = GraphChangeOverlay(first)
    assert [show_value(row[0]) for row in evaluate_on(second, "MERGE (n:N {v: 1}) SET n.w = 1 RETURN n")] == [
        "(n:N {'v': 1, 'w': 1})"
    ]
    assert [each.id for each in second.changes().updated_nodes] == ["n"]


class StepCounter(ExecutionLimits):
    """Limits that count the steps of a statement."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.steps = 0

    @override
    def step(self, count: int = 1) -> None:
        self.steps += count


@pytest.mark.parametrize(
    "statement",
    [
        "UNWIND range(1, 300) AS i MERGE (n:N {version: 10 + i})",
        "UNWIND range(1, 300) AS i MERGE (n:N {kind: 'same', i: i})",
        "UNWIND range(1, 300) AS i MERGE (n:N {type: 'N', i: i})",
        "UNWIND range(1, 300) AS i CREATE (n:N {i: i}) WITH n MATCH (hub {id: 'a'}) MERGE (hub)-[:R]-(n)",
    ],
)
def test_merging_many_rows_takes_linear_work(statement: str) -> None:
    query, counter = parse_cypher_query(statement), StepCounter()
    edits = GraphChangeOverlay(GraphWithDefaults().add_node("a"))
    execute_cypher_statement(query, check_query_semantics(query, statement), edits, {}, counter, NOW, statement)
    assert edits.node_count() == 301
    assert counter.steps < 5_000


class CountingGraph(MemoryGraph):
    """Graph that counts how often relationships are read."""

    reads = 0

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> Iterable[RelationshipKey]:
        self.reads += 1
        return super().relationships(node_id, is_outgoing=is_outgoing, types=types)


def test_a_statement_checks_only_the_nodes_that_it_deletes() -> None:
    graph = CountingGraph()
    for number in range(100):
        graph.add_node(f"n{number}", "N")
    edits = GraphChangeOverlay(graph)
    for number in range(100):
        evaluate_on(edits, f"MATCH (n:N {{id: 'n{number}'}}) DELETE n")
    assert edits.node_count() == 0
    assert graph.reads <= 200
