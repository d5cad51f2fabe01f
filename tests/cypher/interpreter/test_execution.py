"""Projections, subqueries, unions, procedures and the order of clauses."""

from __future__ import annotations

from typing import Any

import pytest

from kgserve import __version__
from kgserve.cypher.interpreter.execution import execute_cypher_statement
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.semantic_checks import check_query_semantics
from kgserve.errors import InvalidInput, TimedOut, TooLarge
from tests.cypher.interpreter.memory_graph import MemoryGraph
from tests.cypher.interpreter.statements import NOW, run_statement

ITEMS = (
    MemoryGraph()
    .add_node("a", "A", num=5, group=4)
    .add_node("b", "B", num=1, group=2)
    .add_node("c", "C", num=3, group=4)
    .add_relationship("a", "R", "b")
)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # ORDER BY
        ("MATCH (n) RETURN n.id ORDER BY n.num", [["b"], ["c"], ["a"]]),
        ("MATCH (n) RETURN n.id ORDER BY n.group DESC, n.num LIMIT 2", [["c"], ["a"]]),
        ("MATCH (n) RETURN n.num AS n ORDER BY n + 1", [[1], [3], [5]]),
        ("MATCH (n) RETURN n.num AS n ORDER BY n.num", [[1], [3], [5]]),
        ("MATCH (n) WITH n.group AS g, sum(n.num) AS s ORDER BY sum(n.num) DESC RETURN g, s", [[4, 8], [2, 1]]),
        ("MATCH (n) RETURN n.group, count(*) ORDER BY n.group", [[2, 1], [4, 2]]),
        ("MATCH (n) RETURN DISTINCT n.group * 2 AS d ORDER BY n.group * 2 DESC", [[8], [4]]),
        ("MATCH (n) WITH n AS m, 1 AS one ORDER BY n.num RETURN collect(m.id)", [[["b", "c", "a"]]]),
        ("UNWIND [1, null, 'a', 1.5] AS x RETURN x ORDER BY x DESC", [[None], [1.5], [1], ["a"]]),
        ("UNWIND range(5000, 1, -1) AS x RETURN x ORDER BY x SKIP 2 LIMIT 2", [[3], [4]]),
        ("UNWIND range(1, 5000) AS x RETURN x % 2 AS k, x ORDER BY k DESC LIMIT 3", [[1, 1], [1, 3], [1, 5]]),
        # SKIP and LIMIT
        ("UNWIND [1, 2, 3] AS x RETURN x SKIP $skip LIMIT toInteger($limit)", [[2], [3]]),
        ("UNWIND [1, 2, 3] AS x RETURN x LIMIT 0", []),
        ("UNWIND [1, 2, 3] AS x RETURN x SKIP 9223372036854775807", []),
        # WHERE after WITH
        ("MATCH (n) WITH n.id AS i WHERE n.num > 1 RETURN i ORDER BY i", [["a"], ["c"]]),
        ("MATCH (n) WITH n.id AS i WHERE i = 'b' OR n.num = 5 RETURN i ORDER BY i", [["a"], ["b"]]),
        ("MATCH (n) WITH n ORDER BY n.num LIMIT 2 WHERE n.num > 1 RETURN n.id", [["c"]]),
        ("MATCH (n) WITH n.group AS g, count(*) AS c WHERE c > 1 RETURN g, c", [[4, 2]]),
        # Groups
        ("MATCH (n) RETURN n.group AS g, n.group + count(*) AS s ORDER BY g", [[2, 3], [4, 6]]),
        (
            "MATCH (n) RETURN n.group AS g, [x IN collect(n.id) | x + n.group] AS l ORDER BY g",
            [[2, ["b2"]], [4, ["a4", "c4"]]],
        ),
        ("MATCH (n) WITH *, count(*) AS c RETURN n.id, c ORDER BY n.id", [["a", 1], ["b", 1], ["c", 1]]),
        ("MATCH (n:None) RETURN count(*), collect(n), sum(n.num), max(n.num)", [[0, [], 0, None]]),
        ("MATCH (n:None) RETURN n.group, count(*)", []),
        ("UNWIND [1, 1.0, '1', true, null, null] AS x RETURN x, count(*)", [[1, 2], ["1", 1], [True, 1], [None, 2]]),
        ("UNWIND [[1, null], [1, null], [1]] AS x RETURN DISTINCT x", [[[1, None]], [[1]]]),
        ("MATCH (n) WITH DISTINCT * RETURN count(*)", [[3]]),
        ("MATCH (a) OPTIONAL MATCH (a)-->(b) WITH DISTINCT * RETURN count(*), count(b)", [[3, 1]]),
        ("RETURN count(*) AS c", [[1]]),
        # UNWIND, UNION
        ("UNWIND null AS x RETURN x", []),
        ("UNWIND 5 AS x RETURN x", [[5]]),
        ("UNWIND [[1, 2], [3]] AS x UNWIND x AS y RETURN y", [[1], [2], [3]]),
        ("RETURN 1 AS x UNION RETURN 1.0 AS x UNION RETURN 2 AS x", [[1], [2]]),
        ("RETURN 1 AS x UNION ALL RETURN 1 AS x", [[1], [1]]),
        ("RETURN 1 AS x, 2 AS y UNION ALL RETURN 4 AS y, 3 AS x", [[1, 2], [3, 4]]),
        # Subqueries
        ("MATCH (n) CALL { WITH n MATCH (n)-->(m) RETURN m } RETURN n.id, m.id", [["a", "b"]]),
        (
            "MATCH (n) CALL (n) { MATCH (n)-->(m) RETURN count(m) AS c } RETURN n.id, c ORDER BY n.id",
            [["a", 1], ["b", 0], ["c", 0]],
        ),
        (
            "UNWIND [1, 2] AS i CALL { RETURN 5 AS x UNION ALL RETURN 6 AS x } RETURN i, x",
            [[1, 5], [1, 6], [2, 5], [2, 6]],
        ),
        ("UNWIND [1, 2] AS i CALL { WITH i UNWIND range(1, i) AS j RETURN j } RETURN i, j", [[1, 1], [2, 1], [2, 2]]),
        ("UNWIND [3, 1] AS i CALL { MATCH (i) RETURN count(i) AS c } RETURN i, c", [[3, 3], [1, 3]]),
        ("MATCH (n:A) CALL { WITH COUNT { (n) } AS c RETURN c } RETURN c", [[3]]),
        ("MATCH (n) WHERE EXISTS { (n)-->(:B) } RETURN n.id", [["a"]]),
        ("MATCH (n) RETURN n.id, COUNT { (n)--() } AS c ORDER BY n.id", [["a", 1], ["b", 1], ["c", 0]]),
        (
            "MATCH (n {id: 'a'}) RETURN COLLECT { MATCH (m) WHERE m.num < n.num RETURN m.id ORDER BY m.id }",
            [[["b", "c"]]],
        ),
        ("MATCH (n) WHERE (n)-[:R]->() RETURN [(n)-->(m) | m.id]", [[["b"]]]),
        ("MATCH (a {id: 'a'}), (b:B) RETURN length(shortestPath((a)-[*]->(b)))", [[1]]),
        # Procedures
        ("CALL db.labels()", [["A"], ["B"], ["C"]]),
        ("CALL db.labels() YIELD label AS l WHERE l <> 'B' RETURN l", [["A"], ["C"]]),
        ("CALL db.relationshipTypes", [["R"]]),
        ("CALL db.propertyKeys() YIELD propertyKey RETURN collect(propertyKey)", [[["group", "id", "num"]]]),
        ("CALL dbms.components() YIELD name, versions RETURN name, versions", [["kgserve", [__version__]]]),
        ("MATCH (n:A) CALL db.labels() YIELD label RETURN n.id, label LIMIT 2", [["a", "A"], ["a", "B"]]),
    ],
)
def test_reads(statement: str, expected: list[list[Any]]) -> None:
    assert run_statement(ITEMS, statement, skip=1, limit=2.5) == expected


def test_schema_has_a_node_per_label_and_a_relationship_per_type() -> None:
    [[nodes, edges]] = run_statement(ITEMS, "CALL db.schema.visualization()")
    assert [each.split(":")[1][:1] for each in nodes] == ["A", "B", "C"]
    assert edges == ["[:R {'name': 'R'}]"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UNWIND [1] AS x RETURN x LIMIT $limit",
            r"LIMIT expects an integer that is not negative, not an integer \(-1\)",
        ),
        ("UNWIND [1] AS x RETURN x SKIP $skip", r"SKIP expects an integer that is not negative, not a float \(1.5\)"),
        ("UNWIND ['a', 1] AS x RETURN sum(x)", "expects numbers, not a string.*column 29"),
        ("CALL db.nothing()", "there is no procedure db.nothing; available are db.labels, db.propertyKeys,"),
        ("CALL db.labels(1)", "procedure db.labels takes no arguments"),
        ("CALL db.labels() YIELD name RETURN name", "procedure db.labels has no column name; it yields label"),
    ],
)
def test_refused_reads(statement: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_statement(ITEMS, statement, limit=-1, skip=1.5)


def run_limited(statement: str, limits: ExecutionLimits) -> list[list[Any]]:
    query = parse_cypher_query(statement)
    info = check_query_semantics(query, statement)
    graph = GraphChangeOverlay(ITEMS) if info.is_updating else ITEMS
    return list(execute_cypher_statement(query, info, graph, {}, limits, NOW, statement).rows)


@pytest.mark.parametrize(
    "statement",
    [
        "UNWIND range(1, 100000) AS x RETURN count(x)",
        "MATCH (a), (b), (c), (d), (e), (f), (g), (h) RETURN count(*)",
        "UNWIND range(1, 100000) AS x MATCH (n) WHERE n.num = x RETURN n",
    ],
)
def test_time_limit(statement: str) -> None:
    def check() -> None:
        raise TimedOut("too slow")

    with pytest.raises(TimedOut):
        run_limited(statement, ExecutionLimits(check))


@pytest.mark.parametrize(
    "statement",
    [
        "UNWIND range(1, 5000) AS x RETURN collect(x)",
        "UNWIND range(1, 5000) AS x RETURN DISTINCT x",
        "UNWIND range(1, 5000) AS x RETURN x, count(*)",
        "UNWIND range(1, 5000) AS x RETURN x ORDER BY -x",
        "UNWIND range(1, 5000) AS x RETURN x UNION RETURN 1 AS x",
        "UNWIND range(1, 5000) AS x UNWIND [x, 1 / (5000 - x)] AS y CREATE ()",
    ],
)
def test_memory_limit(statement: str) -> None:
    with pytest.raises(TooLarge, match="more than 4000 values"):
        run_limited(statement, ExecutionLimits(lambda: None, 4000))


def test_sorting_with_a_limit_holds_few_rows() -> None:
    limits = ExecutionLimits(lambda: None, 4000)
    assert run_limited("UNWIND range(1, 50000) AS x RETURN x ORDER BY -x LIMIT 1", limits) == [[50000]]


def test_writing_needs_a_graph_that_can_be_written() -> None:
    query = parse_cypher_query("CREATE (n)")
    with pytest.raises(InvalidInput, match="writing is not possible here"):
        execute_cypher_statement(
            query, check_query_semantics(query, "CREATE (n)"), ITEMS, {}, ExecutionLimits(lambda: None), NOW
        )


GROUPED = "WITH DISTINCT x, count(*) AS c ORDER BY x SKIP 0 LIMIT 1 "


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("WITH 1 AS x " + "WITH x + 1 AS x " * 1_000 + "RETURN x", 1_001),
        ("WITH 1 AS x " + GROUPED * 400 + "RETURN x", 1),
        ("WITH 1 AS x " + "UNWIND [x] AS x0 WITH x0 AS x " * 400 + "RETURN x", 1),
        ("".join(f"OPTIONAL MATCH (n{at}) " for at in range(1_000)) + "RETURN count(*)", 1),
        ("".join(f"CALL {{ RETURN 1 AS x{at} }} " for at in range(1_000)) + "RETURN count(*)", 1),
        ("CALL { " * 8 + f"WITH 1 AS x {GROUPED * 60} RETURN x" + f" }} {GROUPED * 60} RETURN x" * 8, 1),
    ],
    ids=range(6),
)
def test_very_many_clauses_need_no_deep_stack(statement: str, expected: int) -> None:
    assert run_statement(MemoryGraph(), statement) == [[expected]]
