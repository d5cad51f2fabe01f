from __future__ import annotations

import math
from typing import Any

import pytest

from tests.cypher.differential.comparison import smaller
from tests.cypher.differential.generator import Generator
from tests.cypher.reference import tree as t
from tests.cypher.reference.interpreter import Interpreter, same, same_rows
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.text import render
from tests.cypher.reference.values import CypherError, Node, Relationship, UnmodelledFeature
from tests.cypher.reference_parser import parse

NODES = [Node(name, {"id": name, "type": "T", "x": n or None}) for n, name in enumerate("abc")]
EDGES = [
    Relationship(source, target, {"relation_type": kind, "weight": weight})
    for source, target, kind, weight in (
        ("a", "b", "K", 1.0),
        ("b", "c", "K", None),
        ("a", "b", "L", 2.0),
        ("c", "c", "K", 0.5),
    )
]
GRAPH = Graph(NODES, EDGES)


def rows(text: str, **parameters: Any) -> list[list[Any]]:
    return Interpreter(GRAPH, parameters).run(parse(text)).rows


VALUES = {
    "1 + 2 * 3 = 7 AND NOT false": True,
    "7 / 2": 3,
    "-7 / 2": -3,
    "-7 % 3": -1,
    "2 ^ 3 ^ 2": 64.0,
    "-0.0 ^ -1": float("-inf"),
    "cot(-0.0)": float("-inf"),
    "1.0 / 0": math.inf,
    "1 = 1.0": True,
    "'1' = 1": False,
    "'1' < 1": None,
    "0.0 / 0.0 < 1": False,
    "1 < 2 < 2": False,
    "[1, 2] = [1, null]": None,
    "[1, 2] < [1, 3]": True,
    "null AND false": False,
    "null XOR true": None,
    "5 IN [1, 2, null]": None,
    "null IN []": False,
    "[1, 2] IN [[1, null]]": None,
    "[10, 20, 30][1]": 20,
    "[10, 20, 30][-1]": 30,
    "[10, 20, 30][3]": None,
    "[10, 20, 30][1..]": [20, 30],
    "[10, 20, 30][..-1]": [10, 20],
    "[1] + 2": [1, 2],
    "'abc' CONTAINS ''": True,
    "'abc' STARTS WITH 1": None,
    "substring('hello', 1, 3)": "ell",
    "size('aé😀')": 3,
    "'\\u00e9\\n\\t\\\\\\''": "é\n\t\\'",
    "CASE 1 WHEN 1.0 THEN 'a' ELSE 'b' END": "a",
    "CASE null WHEN null THEN 'a' END": None,
    "{a: 1}.A": None,
    "all(x IN [1, null] WHERE x > 0)": None,
    "[x IN [1, 2, 3] WHERE x > 1 | x * 2]": [4, 6],
    "-9223372036854775808": -(1 << 63),
    "toInteger('1.9')": 1,
    "toString(1.0)": "1.0",
    "round(-1.5)": -1.0,
    "log(1)": 0.0,
}


@pytest.mark.parametrize("expression", VALUES)
def test_expressions_match_opencypher(expression: str) -> None:
    assert same(VALUES[expression], rows(f"RETURN {expression} AS c")[0][0])


@pytest.mark.parametrize(
    "expression",
    [
        "9223372036854775807 + 1", "-(-9223372036854775808)", "1 / 0", "1 % 0", "1 AND true", "size(1)", "1[0]",
        "'\\q'", "[1]['a']", "left('a', -1)", "true + 1", "1 IN 1", "count(count(*))", "x",
    ],
)  # fmt: skip
def test_errors_match_opencypher(expression: str) -> None:
    with pytest.raises(CypherError):
        rows(f"RETURN {expression} AS c")


QUERIES = {
    "MATCH (x)-[]-(y)-[]-(z) RETURN count(*)": [[10]],
    "MATCH (x)-[*1..3]->(y) RETURN count(*)": [[9]],
    "MATCH (x)-[r]-(x) RETURN r.weight": [[0.5]],
    "MATCH (x {id: 'a'})-[r1]->(m), (x)-[r2]->(m) RETURN count(*)": [[2]],
    "MATCH (x {id: 'a'}) OPTIONAL MATCH p = (x)<--() RETURN p, length(p)": [[None, None]],
    "MATCH (n) WHERE n.x > 0.5 RETURN count(*)": [[2]],
    "MATCH (n) RETURN n.x ORDER BY n.x DESC": [[None], [2], [1]],
    "MATCH (n) RETURN sum(n.x), avg(n.x), count(n.x), collect(n.x)": [[3, 1.5, 2, [1, 2]]],
    "UNWIND [] AS x RETURN sum(x), avg(x), min(x), collect(x)": [[0, None, None, []]],
    "UNWIND [1, 1.0, null, null] AS x RETURN DISTINCT x": [[1], [None]],
    "UNWIND [4, 8, 3] AS x RETURN x % 3 AS x ORDER BY x": [[0], [1], [2]],
    "UNWIND ['b', 1, null, true, [1]] AS x RETURN x ORDER BY x": [[[1]], ["b"], [True], [1], [None]],
    "RETURN 1 AS c UNION RETURN 1 AS c": [[1]],
    "MATCH (n) WHERE size((n)--()) > 1 RETURN n.id ORDER BY n.id": [["a"], ["b"], ["c"]],
}


@pytest.mark.parametrize("text", QUERIES)
def test_query_results_match_opencypher(text: str) -> None:
    answer = Interpreter(GRAPH, {}).run(parse(text))
    assert same_rows(answer, QUERIES[text]), answer.rows


def outcome(statement: t.Statement, parameters: dict[str, Any]) -> Any:
    try:
        return Interpreter(GRAPH, parameters).run(statement)
    except CypherError:
        return "an error"
    except UnmodelledFeature:
        return "not modelled"


def test_rendered_statements_parse_to_the_same_tree() -> None:
    generator = Generator(7)
    for _ in range(400):
        made = generator.make()
        if any(isinstance(part, t.Lambda) for part in t.parts(made.statement)):
            continue
        expected, found = (outcome(each, made.parameters) for each in (made.statement, parse(render(made.statement))))
        alike = expected == found if isinstance(expected, str) else same_rows(expected, found.rows)
        assert alike, render(made.statement)


def test_generator_is_deterministic() -> None:
    one, other = Generator(3), Generator(3)
    assert [render(one.make().statement) for _ in range(50)] == [render(other.make().statement) for _ in range(50)]


def test_minimized_statements_can_be_parsed() -> None:
    statement = parse(
        "MATCH (a)-[r]->(b) WHERE a.x > 1 + 2 RETURN CASE WHEN a.x = 1 THEN 'y' END AS c ORDER BY c LIMIT 2"
    )
    found = [render(each) for each in smaller(statement)]
    assert "MATCH (a) WHERE a.x > 1 + 2 RETURN CASE WHEN a.x = 1 THEN 'y' END AS c ORDER BY c LIMIT 2" in found
    for text in found:
        parse(text)
