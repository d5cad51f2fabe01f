from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.cypher.guard import GuardedCypherStatement, validate_cypher_statement_for_engine
from kgserve.errors import Forbidden, InvalidInput


def read(text: str, **parameters: Any) -> GuardedCypherStatement:
    return validate_cypher_statement_for_engine(text, parameters, writable=False)


FILES = [
    "LOAD FROM '/etc/passwd' RETURN *",
    "COPY Entity FROM 'x.csv'",
    "COPY (MATCH (n) RETURN n) TO 'x.csv'",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "ATTACH 'x' AS y (dbtype kuzu)",
    "DETACH y",
    "USE y",
    "INSTALL httpfs",
    "LOAD EXTENSION httpfs",
    "UNINSTALL json",
    "UPDATE json",
    "CALL read_csv_serial('x') RETURN *",
    "CALL `read_parquet`('x') RETURN *",
    "CALL project_graph('g', ['Entity'], ['RELATES_TO'])",
]
SETTINGS = [
    "CALL threads=1",
    "CALL auto_checkpoint = false",
    "CALL clear_warnings()",
    "CALL current_setting('home_directory') RETURN *",
]
TRANSACTIONS = ["BEGIN TRANSACTION", "BEGIN TRANSACTION READ ONLY", "COMMIT", "ROLLBACK", "CHECKPOINT"]
DEFINITIONS = [
    "DROP TABLE Entity",
    "ALTER TABLE Entity ADD x INT64",
    "CREATE NODE TABLE A(id STRING, PRIMARY KEY(id))",
    "CREATE REL TABLE R(FROM Entity TO Entity)",
    "CREATE SEQUENCE s",
    "CREATE MACRO f(x) AS x + 1",
    "CREATE TYPE t AS INT64",
    "CREATE USER u",
    "COMMENT ON TABLE Entity IS 'x'",
]


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("text", FILES + SETTINGS + TRANSACTIONS + DEFINITIONS)
def test_files_settings_transactions_and_tables_are_forbidden(text: str, writable: bool) -> None:
    disguises = [
        text,
        text.lower(),
        f"/* x */ {text}",
        text.replace(" ", "/**/"),
        f"EXPLAIN {text}",
        f"PROFILE {text}",
        f"{text};",
    ]
    for disguised in disguises:
        with pytest.raises(Forbidden, match=r"line 1, column \d+"):
            validate_cypher_statement_for_engine(disguised, {}, writable=writable)


@pytest.mark.parametrize(
    "text",
    [
        "RETURN 1 AS x UNION LOAD FROM 'x' RETURN *",
        "UNWIND [1] AS AS LOAD FROM 'x' RETURN *",
        "MATCH (n) WHERE n.as LOAD FROM 'x' RETURN 1",
        "MATCH (as) WHERE as LOAD FROM 'x' RETURN 1",
        "WITH DISTINCT AS LOAD FROM 'x' RETURN *",
        "MATCH (n) WHERE EXISTS { MATCH (n) LOAD FROM 'x' } RETURN 1",
        "MATCH (n) //\rLOAD FROM 'x' RETURN 1",
        "MATCH (n) /***/ LOAD FROM 'x' /***/ RETURN 1",
    ],
)
def test_disguised_forbidden_clauses_are_rejected(text: str) -> None:
    with pytest.raises(Forbidden):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE (n:Entity {id: 'x'})",
        "MATCH (n) SET n.id = 'x'",
        "MATCH (n) DETACH DELETE n",
        "MERGE (n:Entity {id: 'x'})",
    ],
)
def test_writes_require_writable(text: str) -> None:
    with pytest.raises(Forbidden, match="writes"):
        read(text)
    assert validate_cypher_statement_for_engine(text, {}, writable=True).updates


def test_internal_table_is_out_of_reach() -> None:
    with pytest.raises(Forbidden):
        validate_cypher_statement_for_engine("MATCH (s:`storecommit`) DELETE s", {}, writable=True)
    for name in ("StoreCommit", "`storecommit`", "Entity:STORECOMMIT"):
        with pytest.raises(InvalidInput, match="case matters"):
            read(f"MATCH (s:{name}) RETURN s")


@given(st.sampled_from(FILES + TRANSACTIONS), st.sampled_from('"`'))
def test_keywords_in_quotes_are_allowed(text: str, quote: str) -> None:
    inside = text.replace("`", "").replace("'", "\\'" if quote == '"' else "'")
    quoted = f"{quote}{inside}{quote}"
    text = f"RETURN {quoted} AS x" if quote == '"' else f"RETURN 1 AS {quoted}"
    assert read(text).text.replace("\\", "") == text.replace("\\", "")


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n) WHERE n.copy = 1 RETURN n.load AS load, {drop: 1, use: 2}",
        "MATCH (begin:Entity) RETURN begin.id, count(begin)",
        "MATCH (n:`DROP`) RETURN n.`LOAD`",
        "WITH 1 AS set, 2 AS commit RETURN [set, commit]",
    ],
)
def test_keywords_as_names_are_allowed(text: str) -> None:
    assert not read(text).updates


@pytest.mark.parametrize(
    "text",
    [
        "RETURN 1; RETURN 2",
        ";RETURN 1",
        "RETURN 1;;",
        "",
        " ",
        "/* x */",
        ";",
        "REMOVE n.x",
        "FOREACH (x IN [1] | RETURN x)",
    ],
)
def test_exactly_one_statement_is_required(text: str) -> None:
    with pytest.raises(InvalidInput):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "RETURN " + "(" * 3_000 + "1" + ")" * 3_000,
        "RETURN " + "[" * 5_000,
        "RETURN " + "+".join(["1"] * 10_001),
        "RETURN " + "NOT " * 700 + "true",
        "RETURN " + "[" * 33 + "]" * 33,
        "RETURN " + "CASE WHEN true THEN " * 9 + "1" + " END" * 9,
        "RETURN [1]" + "[1]" * 700,
        "MATCH ()" + "-[]->()" * 11 + " RETURN 1",
        " ".join(["MATCH (n)"] * 101) + " RETURN 1",
        " UNION ".join(["RETURN 1"] * 22),
        "WITH [1] AS a " + "WITH [a, a] AS a " * 7 + "RETURN a",
        "WITH 'x' AS a " + "WITH a + a AS a " * 7 + "RETURN a",
        "RETURN '" + "a" * 65_536 + "'",
        "RETURN range(1, 100000000)",
        "RETURN range(1, 9000), range(1, 9000)",
        "RETURN range(1, size('a'))",
        "RETURN range(1, -9223372036854775808, 3)",
        "RETURN repeat('a', 1000000)",
        "RETURN repeat(repeat('a', 1000), 1000)",
        "RETURN lpad('a', 1000000, 'b')",
        "RETURN CAST(NULL AS INT64[100000])",
        "RETURN CAST(NULL, 'INT64[100000]')",
    ],
)
def test_oversized_statements_are_rejected_quickly(text: str) -> None:
    start = time.thread_time()
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert time.thread_time() - start < 10  # 0.01 s on an idle machine; fully expanded it takes minutes or all memory
    assert caught.value.errors[0].path == "query"


@pytest.mark.parametrize(
    "text",
    [
        "RETURN id(NULL)",
        "MATCH (n) RETURN n.id IN NULL",
        "WITH NULL AS x RETURN labels(x)",
        "RETURN labels(CASE WHEN true THEN NULL END)",
        "RETURN abs(x -> x)",
        "RETURN all(x IN [1] WHERE x > 0)",
        "MATCH (n) RETURN n.created_at =~ 'a'",
        "MATCH (n) WITH n.created_at AS t RETURN t[1:2]",
        "RETURN label({a: 1})",
        "MATCH (n) RETURN list_sort(['a'], n.created_at)",
        "RETURN 9223372036854775807!",
        "RETURN to_days(9223372036854775807)",
        "RETURN substring('abc', 1, -1)",
        "MATCH (n) RETURN n ORDER BY n.id SKIP 9223372036854775807 LIMIT 3",
        "RETURN string_split('a', 'b')",
        "MATCH (n) RETURN split_part(n.created_at, 'a', 1)",
        "RETURN less_than(1, 2)",
        "RETURN regexp_extract('a', '(a)', -1)",
        "MATCH (n) RETURN regexp_replace(n.id < 'a', 'b', 'c')",
    ],
)
def test_engine_crashing_statements_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="line 1"):
        read(text)


def test_comments_are_blanked_and_positions_preserved() -> None:
    text = "/* a\nb */ RETURN // c\n 1\u00a0+ 2 ; // d"
    statement = read(text)
    assert statement.text == "    \n     RETURN     \n 1 + 2"
    assert statement.text.index("+") == text.index("+")


@pytest.mark.parametrize("value", [10**8, 2.5, "3", None, [1]])
def test_limits_apply_to_parameters(value: Any) -> None:
    with pytest.raises(InvalidInput):
        read("RETURN range(1, $n)", n=value)
    assert read("RETURN range(1, $n)", n=50).parameters == {"n": 50}


def test_missing_parameter_is_reported() -> None:
    with pytest.raises(InvalidInput) as caught:
        read("RETURN $a, $b, $a, $c", b=1)
    assert [error.path for error in caught.value.errors] == ["params.a", "params.c"]


def test_unused_parameters_are_dropped() -> None:
    assert read("RETURN $a AS `$b`", a=1, b=2**70).parameters == {"a": 1}


def test_empty_list_parameters_are_inlined() -> None:
    statement = read("MATCH (n) WHERE n.id IN $ids RETURN n", ids=[])
    assert statement.text == "MATCH (n:Entity) WHERE n.id IN []   RETURN n"
    assert statement.parameters == {}


def test_null_parameters_are_allowed_in_comparisons() -> None:
    text = "MATCH (n) WHERE $t IS NULL OR n.type = $t RETURN CASE WHEN n.x IS NOT NULL THEN 1 ELSE NULL END"
    assert read(text, t=None).parameters == {"t": None}
    with pytest.raises(InvalidInput, match=r"\$t is null without a type"):
        read("MATCH (n) WHERE n.id IN $t RETURN n", t=None)


def test_explain_is_limited_to_reads() -> None:
    assert read("EXPLAIN LOGICAL MATCH (n) RETURN n").explains
    with pytest.raises(Forbidden):
        validate_cypher_statement_for_engine("EXPLAIN CREATE (n:Entity {id: 'x'})", {}, writable=True)


@given(st.text(max_size=200))
def test_any_text_is_accepted_or_rejected_cleanly(text: str) -> None:
    with suppress(InvalidInput, Forbidden):
        assert not read(text).updates


@pytest.mark.parametrize(
    ("text", "safe", "unsafe"),
    [
        ("UNWIND range(1, $n) AS i RETURN i", {"n": 3}, {"n": 1_000_000}),
        ("MATCH (n) RETURN n.id SKIP $n LIMIT 5", {"n": 3}, {"n": 1 << 62}),
        ("RETURN upper($n)", {"n": "a"}, {"n": None}),
        ("RETURN repeat('a', $n)", {"n": 3}, {"n": 1_000_000}),
        ("RETURN $n + 1", {"n": 3}, {"n": 1 << 70}),
        ("RETURN $n", {"n": "a"}, {}),
    ],
)
def test_cached_statement_is_revalidated_for_other_parameters(
    text: str, safe: dict[str, Any], unsafe: dict[str, Any]
) -> None:
    for _ in range(3):
        assert read(text, **safe).parameters == safe
    with pytest.raises(InvalidInput):
        read(text, **unsafe)


def test_cached_statement_gets_current_parameters() -> None:
    text = "MATCH (n {id: $id}) RETURN n"
    assert [read(text, id=value, other=1).parameters for value in ("a", "b", "c")] == [
        {"id": v} for v in ("a", "b", "c")
    ]
    with pytest.raises(InvalidInput):
        read(text, id="\ud800")
    assert "[]" in read("RETURN $id", id=[]).text


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n) WHERE $x < 0 RETURN n",
        "MATCH (n) WHERE n.id = 'a' AND $x = 1 RETURN n",
        "MATCH (n) WHERE (n.id = 'a' OR n.id = 'b') AND ($x = 1 AND n.type = 't') RETURN n",
        "MATCH (n) WHERE NOT ($x > 1) SET n.content = 'x'",
        "MATCH (n) WHERE label(n) = $x RETURN n",
        "OPTIONAL MATCH (n) WHERE size($x) > 1 RETURN n",
        "MATCH (n) WHERE EXISTS { MATCH (n)-[]->(m) WHERE $x = 2 } RETURN n",
        "MATCH (n) WHERE CASE WHEN $x = 1 AND true THEN true ELSE false END RETURN n",
        "MATCH (n) RETURN n.type, count(DISTINCT n.id), sum(n.version)",
        "MATCH (n) WITH count(DISTINCT n.id) AS c, n.type AS t, max(n.version) AS m RETURN c, t, m",
        "MATCH (n) RETURN n.type, count(DISTINCT n.id) + count(*)",
        "WITH [1, 2] AS list RETURN 1 IN list[1:2]",
        "MATCH (n) RETURN n.version IN [1, 2, 3][1:2]",
    ],
)
def test_statements_with_wrong_engine_answers_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"([Ff]ound|is) at line 1"):
        validate_cypher_statement_for_engine(text, {"x": 1}, writable=True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "MATCH (n) WITH n WHERE $x < 0 RETURN n"),
        (str, "MATCH (n) WHERE $x IS NULL OR n.type = $x RETURN n"),
        (str, "MATCH (n) WHERE n.id STARTS WITH $x AND n.type = 't' RETURN n"),
        (int, "MATCH (n) WHERE id(n) = $x RETURN n"),
        (list, "UNWIND $x AS i MATCH (n) WHERE i > 0 RETURN n"),
        (int, "MATCH (n) WHERE CASE WHEN n.id = 'a' AND $x = 1 THEN true ELSE false END RETURN n"),
        (int, "MATCH (n) RETURN n.type, sum(n.version), count(DISTINCT n.id), count(DISTINCT n.type)"),
        (int, "MATCH (n) RETURN count(DISTINCT n.id), sum(n.version)"),
        (int, "WITH [1, 2] AS list RETURN 1 IN (list[1:2]), 1 IN list, [1, 2, 3][1:2]"),
        (int, "MATCH (n) WHERE 1 < 2 RETURN n"),
    ],
)
def test_statements_with_correct_engine_answers_are_accepted(kind: type, text: str) -> None:
    assert validate_cypher_statement_for_engine(text, {"x": {int: 1, str: "a", list: [1]}[kind]}, writable=True)
