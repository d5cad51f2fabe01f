"""Cypher answers in which the engines differ from openCypher, over HTTP with the engine of the test run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.engines import ENGINE
from tests.server.http.asking import ask, post, values
from tests.server.http.serving import accepted, refusal


@pytest.fixture(scope="module")
def chain(http: httpx.Client) -> str:
    """Path of a store with a -> b -> c and a -> c."""
    api = "/api/memory/answers"
    nodes = [
        {"id": name, "type": "t", "content": text, "created_by": ""}
        for name, text in zip("abc", ("x", "", "y"), strict=True)
    ]
    edges = [{"from": one, "to": other, "relation_type": "R"} for one, other in ("ab", "bc", "ac")]
    for each in nodes:
        del each["created_by"]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    return api


EXPRESSIONS: dict[str, Any] = {
    # Texts.
    r"'one\ntwo\t\\ \'\" \u00e9 \ud83d\ude00'": "one\ntwo\t\\ '\" é 😀",
    r"'C:\\new\\table'": "C:\\new\\table",
    r"'one\ntwo' CONTAINS '\n'": True,
    "'abc' CONTAINS ''": True,
    "'' CONTAINS ''": True,
    "$text CONTAINS $empty": True,
    "CAST(NULL AS STRING) CONTAINS ''": None,
    "'a' + CAST(NULL AS STRING)": None,
    "'a' + $text + 'b'": "atextb",
    "substring('hello', 1, 3)": "ell",
    "substring('hello', 2)": "llo",
    "substring('hello', size('a') + 0)": "ello",
    "substring('hello', $one, 1)": "e",
    # Lists and maps.
    "[10, 20, 30][1]": 20,
    "[10, 20, 30][-1]": 30,
    "[10, 20, 30][$one]": 20,
    "[10, 20, 30][-$one]": 30,
    "[1, 2, 3][1..2]": [2],
    "[1, 2, 3][..-1]": [1, 2],
    "[1, 2, 3][1..]": [2, 3],
    "[1, 2, 3][0..0]": [],
    "[1, 2, 3][-2..$one + 2]": [2, 3],
    "{a: 1}.a": 1,
    # A constant null matches nothing, on either side.
    "CASE true WHEN nullif(true, true) THEN 'x' ELSE 'y' END": "y",
    "CASE 1 WHEN CAST(NULL AS INT64) THEN 'x' WHEN 1 THEN 'one' END": "one",
    "CASE CAST(NULL AS INT64) WHEN 1 THEN 'x' WHEN CAST(NULL AS INT64) THEN 'z' ELSE 'y' END": "y",
    "CASE $one + 1 WHEN nullif($one, 1) THEN 'x' WHEN 2 THEN 'two' END": "two",
    # A condition that is itself a CASE.
    "CASE WHEN CASE WHEN true THEN true ELSE $one = 1 END THEN 'x' ELSE 'y' END": "x",
    "CASE WHEN (CASE $one WHEN 1 THEN true END) THEN 'x' END": "x",
    "CASE WHEN {a: $one = 1}.a THEN 'x' END": "x",
    "substring('日本', 2)": "",
    "substring('日本', 5, 1)": "",
    "reverse([1, 2])": [2, 1],
    "1 IN [[1], [2]][0]": True,
    "'ab' IN ['a' + 'b']": True,
    "'a' + 'b' IN ['ab']": True,
    "CAST(NULL AS STRING) IN []": False,
    "null": None,
    # Numbers.
    "0.0 / 0.0 < 1": False,
    "0.0 / 0.0 >= 1": False,
    "0.0 / 0.0 > 0.0 / 0.0": False,
    "1 / 2.0 < 1": True,
    "-9223372036854775808": -(2**63),
    "-$large": -(2**31),
    "log(1)": 0.0,
    "floor(3)": 3.0,
    "ceil(9223372036854775807)": 2.0**63,
    "list_sum([1, 2])": 3,
    "sign(-0.0)": 0,
    "-[1, 2][0]": -1,
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_follow_opencypher(http: httpx.Client, chain: str, expression: str) -> None:
    params = {"text": "text", "empty": "", "one": 1, "large": 2**31}
    answer = ask(http, chain, f"RETURN {expression}", params=params)
    [[found]] = answer["rows"]
    assert (found, type(found)) == (EXPRESSIONS[expression], type(EXPRESSIONS[expression]))


COUNTED: dict[str, int] = {
    "n.version > 0.5": 3,
    "0.5 < n.version": 3,
    "n.version >= 1.0": 3,
    "n.version = 1.0": 3,
    "n.version < 0.5": 0,
    "n.version <> 0.5": 3,
    "n.version > 0.25 + 0.25": 3,
    "n.sequence > 0.5": 3,
    "n.layer > 0.5": 0,
    "n.version > $half": 3,
    "n.version IN [1.0, 2.5]": 3,
    "n.version > 0.5 AND n.id = 'a'": 1,
    "NOT n.version > 1.5": 3,
    "EXISTS { MATCH (n)-[r]->() WHERE r.version > 0.5 }": 2,
    "n.content + n.summary = 'x'": 0,
    "n.name IS NULL": 3,
    "size((n)-[]->()) = 2": 1,
    "(n)-[]->()-[]->()": 1,
    "n.name IN ['a']": 0,
    "NOT n.name IN $none": 3,
}


@pytest.mark.parametrize("condition", COUNTED)
def test_conditions_match_expected_node_counts(http: httpx.Client, chain: str, condition: str) -> None:
    params = {"half": 0.5, "none": []}
    found = values(http, chain, f"MATCH (n:Entity) WHERE {condition} RETURN count(*)", params=params)
    assert found == [COUNTED[condition]]


STATEMENTS: dict[str, list[list[Any]]] = {
    "MATCH (n) RETURN n.id, size((n)-[]->()) ORDER BY n.id": [["a", 2], ["b", 1], ["c", 0]],
    "MATCH (n {id: 'a'}) RETURN labels(n), n.name": [[["t"], None]],
    # No relationship is followed twice.
    "MATCH (x {id: 'a'})-[]-(y)-[]-(z) RETURN y.id, z.id ORDER BY y.id": [["b", "c"], ["c", "b"]],
    "MATCH (x)-->(m)<--(y) RETURN x.id, y.id ORDER BY x.id": [["a", "b"], ["b", "a"]],
    "MATCH (x {id: 'a'})-[r*1..3]-(y) RETURN y.id, length(r) ORDER BY y.id, length(r)": [
        ["a", 3], ["a", 3], ["b", 1], ["b", 2], ["c", 1], ["c", 2],
    ],
    "MATCH (x {id: 'a'})-[*1..2]->(y), (x)-[]->(z) RETURN y.id, z.id ORDER BY y.id, z.id": [
        ["b", "c"], ["c", "b"], ["c", "c"],
    ],
    "MATCH (x)-[]->(y) MATCH (y)-[]->(z) RETURN x.id, z.id": [["a", "c"]],
    "MATCH (a {id: 'a'})-[r]->(b) MATCH (c)-[r]->(d {id: 'c'}) RETURN c.id, d.id": [["a", "c"]],
    "MATCH (a)-->(b)-->(c) RETURN *": [],
    # An OPTIONAL MATCH without a match gives null.
    "OPTIONAL MATCH p = (x {id: 'z'})-[]->(y) RETURN p IS NULL, p IS NOT NULL, length(p), p": [
        [True, False, None, None],
    ],
    "OPTIONAL MATCH p = (x {id: 'z'})-[r*1..2]->(y) RETURN p IS NULL, length(p), r IS NULL": [[True, None, True]],
    "OPTIONAL MATCH p = (x {id: 'a'})-[]->(y {id: 'b'}) RETURN p IS NULL, length(p)": [[False, 1]],
    "OPTIONAL MATCH p = (x {id: 'z'})-[]->(y) RETURN count(p)": [[0]],
    "OPTIONAL MATCH (n {id: 'z'}) RETURN labels(n)": [[None]],
    # Order, and the names of columns.
    "UNWIND [4, 8, 3, 1, 6] AS x RETURN x % 3 AS x ORDER BY x": [[0], [0], [1], [1], [2]],
    "UNWIND [4, 8, 3, 1, 6] AS x WITH x % 3 AS x ORDER BY x LIMIT 3 RETURN x": [[0], [0], [1]],
    "UNWIND [3, 1, 2] AS x WITH x ORDER BY x RETURN collect(x)": [[[1, 2, 3]]],
    "UNWIND [3, 1, 2] AS x WITH x ORDER BY x LIMIT 2 RETURN sum(x)": [[3]],
    "MATCH (n) WITH n ORDER BY n.id DESC LIMIT 1 RETURN collect(n.id)": [[["c"]]],
    "UNWIND [1, 2] AS x WITH x ORDER BY x , x RETURN x": [[1], [2]],
    "MATCH (n) RETURN n.type AS t, count(*) ORDER BY count(*) DESC": [["t", 3]],
    "UNWIND [2.0, 0.0, 1.0] AS x RETURN x / x AS y, x ORDER BY x / x, x DESC": [[1.0, 2.0], [1.0, 1.0], ["NaN", 0.0]],
    "UNWIND [-0.0, -1.0, 1.0] AS x RETURN x ORDER BY x": [[-1.0], [-0.0], [1.0]],
    # Aggregates of nothing.
    "MATCH (n {id: 'z'}) RETURN collect(n.id), sum(n.version), count(*), max(n.id)": [[[], 0, 0, None]],
    "MATCH (n) RETURN collect(n.summary)": [[[]]],
    # Variables that WITH drops.
    "MATCH (c) OPTIONAL MATCH (c)-[r]->() WITH c WHERE r IS NULL RETURN c.id": [["c"]],
    "WITH null AS x RETURN x": [[None]],
}  # fmt: skip


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements_follow_opencypher(http: httpx.Client, chain: str, text: str) -> None:
    found = ask(http, chain, text)["rows"]
    assert found == STATEMENTS[text] or (text.endswith("RETURN *") and len(found) == 1)


@pytest.fixture(scope="module")
def sparse(http: httpx.Client) -> str:
    """Path of a store whose nodes alternately have a name and tags, or neither."""
    api = "/api/memory/sparse"
    nodes = [
        {"id": f"n{i}", "type": "t", "content": "banana"}
        | ({"name": f"Ann{i}", "tags": ["a", "b", "c"], "layer": i % 3} if i % 3 else {})
        for i in range(20)
    ]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes}))
    return api


@pytest.mark.parametrize(
    "expression",
    [
        "toUpper(n.name)",
        "lcase(n.name)",
        "left(n.name, n.layer)",
        "right(n.name, n.layer)",
        "substring(n.name, n.layer)",
        "substring(n.name, n.layer, 2)",
        "split_part(n.content, 'a', n.layer + 1)",
        "lpad(n.name, 9, n.name)",
        "n.tags[0..n.layer]",
        "n.tags[..n.layer]",
        "n.tags[n.layer..2]",
        "trim(n.name) + n.name",
        "CASE WHEN CASE WHEN n.layer = 1 THEN true ELSE false END THEN n.name END",
    ],
)
def test_conditions_keep_values_of_rows_with_nulls(http: httpx.Client, sparse: str, expression: str) -> None:
    """Engines pass values of other rows to some functions with three arguments after a condition."""
    alone = {f"n{i}": values(http, sparse, f"MATCH (n {{id: 'n{i}'}}) RETURN {expression}")[0] for i in range(20)}
    for condition in ("n.layer = 2", "n.id > 'n15'", "n.layer IS NULL OR n.layer = 1"):
        found = ask(http, sparse, f"MATCH (n) WHERE {condition} RETURN n.id, {expression}")["rows"]
        assert found
        assert all(alone[name] == value for name, value in found), condition


def test_a_condition_may_be_a_variable(http: httpx.Client, sparse: str) -> None:
    counted = "count(CASE WHEN found THEN 1 END)"
    assert values(http, sparse, f"MATCH (n) WITH n.layer = 2 AS found RETURN {counted}") == [6]
    collected = "MATCH (n) WITH collect(n.layer = 2) AS everything UNWIND everything AS found"
    assert values(http, sparse, f"{collected} RETURN {counted}") == [6]


def test_a_null_among_lists_of_a_parameter_stays_null(http: httpx.Client, sparse: str) -> None:
    for given in ([["a"], None], [{"a": [1], "b": 1}, {"b": 2}]):
        assert ask(http, sparse, "UNWIND $p AS x RETURN x", params={"p": given})["rows"] == [[each] for each in given]


def test_column_names_keep_the_source_text(http: httpx.Client, chain: str) -> None:
    found = ask(http, chain, "MATCH (a)-->(b)-->(c) RETURN *, [1, 2][0], substring(a.id, 0), a.id")
    assert found["columns"] == ["a", "b", "c", "[1, 2][0]", "substring(a.id, 0)", "a.id"]


@pytest.mark.skipif(ENGINE == "ladybug", reason="it has no JSON functions")
def test_missing_map_key_is_null(http: httpx.Client, chain: str) -> None:
    assert values(http, chain, "MATCH (n {id: 'a'}) RETURN json_extract(n.attributes, 'x')") == [None]


def test_string_escapes_are_stored_correctly(http: httpx.Client, api: str) -> None:
    for text, stored in (
        ("'one\\ntwo'", "one\ntwo"),
        ("'C:\\\\new'", "C:\\new"),
        ("'\\u00e9'", "é"),
        ('"\'\\""', "'\""),
    ):
        accepted(post(http, api, f"MERGE (n:Entity {{id: 'a', type: 't'}}) SET n.content = {text}", mode="write"))
        assert values(http, api, "MATCH (n) RETURN n.content") == [stored]
        assert values(http, api, f"MATCH (n) WHERE n.content = {text} RETURN n.id") == ["a"]
    refusal(post(http, api, "MATCH (n) SET n.content = 'C:\\data'", mode="write"), 400)


def test_self_loop_is_matched_once(http: httpx.Client, api: str) -> None:
    nodes, edges = [{"id": "a", "type": "t"}], [{"from": "a", "to": "a", "relation_type": "R"}]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))
    for pattern, count in (("(a)-[]-(b)", 1), ("(a)-[*1..2]-(b)", 1), ("(a)-[*0..1]->(b)", 2)):
        assert values(http, api, f"MATCH {pattern} RETURN count(*)") == [count]
    assert values(http, api, "MATCH (a)-[]->(b) RETURN count(*)") == [1]
    assert values(http, api, "MATCH (a)-[]-(b) WHERE a.id <> b.id RETURN count(*)") == [0]
    assert values(http, api, "MATCH (a)-[]-(b) RETURN DISTINCT b.id") == ["a"]
    assert values(http, api, "MATCH (a)-[]-(b) RETURN count(DISTINCT b.id)") == [1]


def test_unbounded_path_is_complete(http: httpx.Client, api: str) -> None:
    ids = [f"n{number:02}" for number in range(40)]
    edges = [{"from": one, "to": other, "relation_type": "R"} for one, other in pairwise(ids)]
    body = {"nodes": [{"id": each, "type": "t"} for each in ids[:20]], "edges": edges[:19]}
    accepted(http.post(f"{api}/inject", json=body))
    assert values(http, api, "MATCH (a {id: 'n00'})-[*]->(b) RETURN count(*)") == [19]
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": each, "type": "t"} for each in ids], "edges": edges}))
    assert values(http, api, "MATCH (a {id: 'n00'})-[*]->(b) RETURN count(*)") == [39]


def test_more_than_ten_relationships_are_made_at_once(http: httpx.Client, api: str) -> None:
    chain = "".join(f"-[:RELATES_TO {{relation_type: 'R'}}]->(:Entity {{id: 'n{i}', type: 't'}})" for i in range(1, 16))
    accepted(post(http, api, f"CREATE (:Entity {{id: 'n0', type: 't'}}){chain}", mode="write"))
    assert values(http, api, "MATCH ()-[]->() RETURN count(*)") == [15]


SAME_IN_PYTHON: list[tuple[Any, Any]] = [
    (False, 0), (True, 1), (1, True), (6, 6.0), (6.0, 6), (0.0, -0.0), ([True], [1]), ({"a": [0]}, {"a": [False]}),
]  # fmt: skip


@pytest.mark.parametrize("change", ["SET e.p = $p", "SET e += {p: $p}", "MERGE"])
@pytest.mark.parametrize(("before", "after"), SAME_IN_PYTHON, ids=str)
def test_set_distinguishes_json_values_that_are_equal_in_python(
    http: httpx.Client, api: str, before: Any, after: Any, change: str
) -> None:
    node = {"id": "k", "type": "V", "attributes": {"p": before}}
    accepted(http.post(f"{api}/inject", json={"nodes": [node]}))
    text = (
        'MERGE (e:V {id: "k"}) ON MATCH SET e.p = $p RETURN e.p'
        if change == "MERGE"
        else f'MATCH (e:V {{id: "k"}}) {change} RETURN e.p'
    )
    answer = ask(http, api, text, mode="write", params={"p": after})
    stored = accepted(http.get(f"{api}/nodes/k"))["node"]["attributes"]["p"]
    assert (repr(stored), repr(answer["rows"]), answer["changes"]["nodes_updated"]) == (repr(after), repr([[after]]), 1)
    assert ask(http, api, text, mode="write", params={"p": after})["changes"]["nodes_updated"] == 0
