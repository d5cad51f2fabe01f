"""Rejection of statements that the engine would answer incorrectly, with position and alternative."""

from __future__ import annotations

from typing import Any

import pytest

from kgserve.cypher.guard import validate_cypher_statement_for_engine
from kgserve.errors import InvalidInput

PARAMETERS = {"text": "a", "number": 1, "rows": [{"a": 1}, {"a": None}], "list": ["a"], "map": {"a": 1}}
REJECTED = {
    # Comparisons through an implicit cast
    "RETURN '1' = 1": (12, "compares a text with a whole number"),
    "RETURN '1.0' < 1.0": (14, "compares a text with a decimal number"),
    "RETURN true = 'True'": (13, "compares a boolean with a text"),
    "RETURN [1] = ['1']": (12, "a list of a whole number with a list of a text"),
    "RETURN {a: 1} = {a: '1'}": (15, "a map with a map"),
    "RETURN CASE '0' WHEN 0 THEN 1 END": (22, "CASE compares a text with a whole number"),
    "RETURN '1' IN [1]": (12, "IN compares a text with a whole number"),
    "RETURN nullif(1, '1')": (8, "nullif() compares"),
    "RETURN [date_trunc('day', timestamp('2020-01-01'))] = 'x'": (53, "a list of a value whose type the engine"),
    "MATCH (n) WHERE greatest(3.0, n.version) IN [] RETURN n": (31, "a decimal number and a whole number"),
    "MATCH (n) WHERE n.id = 1 RETURN n": (22, "compares a text with a whole number"),
    "MATCH (n) WHERE n.created_at > '2024-01-01' RETURN n": (30, "timestamp(…)"),
    "MATCH (n {id: 1}) RETURN n": (13, "compares a text with a whole number"),
    "MATCH (n {version: 1.5}) RETURN n": (11, "would round this number"),
    "UNWIND $rows AS row RETURN row.a = 'x'": (34, "compares a whole number with a text"),
    # Implicit casts to text
    "RETURN size(true)": (13, "size() takes a text or a list, not a boolean"),
    "RETURN lower(5)": (14, "lower() does not take a whole number; wrap it in string(…)"),
    "RETURN concat('a', 1)": (20, "concat() does not take a whole number"),
    "RETURN 'a' + 1": (12, "+ concatenates a text only with texts; wrap the other side in string(…)"),
    "RETURN 0 CONTAINS 0": (10, "CONTAINS needs texts"),
    "RETURN coalesce(true, 'a')": (23, "coalesce() needs values of one type, not a boolean and a text"),
    "RETURN coalesce(1, 2.5)": (8, "would convert whole numbers to decimal"),
    "CREATE (:Entity {id: 1, type: 't'})": (18, "id needs a text, not a whole number"),
    "MATCH (n) SET n.content = true": (15, "n.content needs a text, not a boolean"),
    "MATCH ()-[r]->() SET r.ordinal = 1.5": (22, "r.ordinal needs a whole number"),
    # Numbers
    "RETURN [1, 2.5]": (8, "write whole numbers with .0"),
    "RETURN CASE WHEN true THEN 1 ELSE 2.5 END": (8, "write whole numbers with .0"),
    "RETURN 9223372036854775808": (8, "does not fit into 64 bits"),
    "RETURN - -9223372036854775808": (11, "does not fit into 64 bits"),
    "RETURN 1e400": (8, "too large"),
    "RETURN 9007199254740993 = 9007199254740992.0": (25, "an integer this large"),
    "RETURN max(0.0 / 0.0)": (8, "values that may be NaN"),
    "UNWIND [1.0] AS x RETURN DISTINCT x / x": (35, "may be NaN"),
    "RETURN log(-1) AS x UNION RETURN 1.0 AS x": (1, "a column of this may be NaN"),
    "RETURN count_if(true)": (8, "unknown function count_if"),
    "RETURN CASE WHEN false THEN '' ELSE false END": (8, "these are a text and a boolean"),
    # Lists and maps
    "RETURN list_any_value([])": (8, "the engine returns 0"),
    "RETURN true[0]": (12, "needs a list, not a boolean"),
    "RETURN 'abc'[0]": (13, "needs a list, not a text; use substring for texts"),
    "RETURN [1, 2][1.0]": (14, "a list index must be an integer"),
    "RETURN [x IN [1, 2]]": (8, "a list comprehension"),
    "RETURN 5 IN [1, CAST(NULL AS INT64)]": (10, "takes a null"),
    "RETURN [1, CAST(NULL AS INT64)] = [1, 2]": (33, "a null within a list"),
    "WITH {a: 1} AS m RETURN m.A": (27, "no property A; did you mean a"),
    "RETURN CASE WHEN false THEN {a: 0} ELSE {b: 0} END": (8, "a map of a and a map of b"),
    "RETURN CASE WHEN false THEN [{a: 0, b: 1}] ELSE [{b: 0, a: 1}] END": (8, "a list of a map of a, b and"),
    "RETURN coalesce({a: 0}, {b: 0})": (25, "a map of a and a map of b"),
    "RETURN list_append([{a: 0}], {b: 0})": (30, "a map of a and a map of b"),
    "RETURN list_concat([{a: 0}], [{b: 0}])": (30, "a list of a map of a and a list of a map of b"),
    "RETURN [{a: 0}] + [{b: 0}]": (17, "a list of a map of a and a list of a map of b"),
    "RETURN {a: 0} AS x UNION ALL RETURN {b: 0} AS x": (30, "x is a map of a and a map of b"),
    "RETURN {a: 1, A: 2}": (15, "ignores case in keys"),
    "MATCH (n) RETURN n.ID": (20, "no property ID; did you mean id"),
    "RETURN substr('abc', 1, 1)": (8, "use substring"),
    "RETURN list_filter([1], x -> 1 = 2)": (30, "does not depend on x"),
    "RETURN list_contains([1, CAST(NULL AS INT64)], 2)": (8, "remove the nulls"),
    "MATCH (a)-[r]->(b) RETURN b.tags[r.version..]": (27, "depend on other variables"),
    "MATCH (a)-[r]->(b) RETURN left(a.name, b.layer)": (27, "depend on other variables"),
    "MATCH ()-[r]-() WITH DISTINCT r RETURN 1": (31, "matched in both directions twice"),
    "RETURN left('abc', -1)": (20, "no negative number"),
    "RETURN substring('abc', -1)": (25, "no negative number"),
    "RETURN list_append([1], CAST(NULL AS INT64))": (8, "leave nulls out"),
    # Names
    "RETURN 1 AS a UNION RETURN 2 AS b": (21, "same names, but are a and b"),
    "RETURN 1 AS a, 2 AS a": (1, "two columns have the name a"),
    "WITH 1 AS x, 2 AS X RETURN x": (14, "X and x differ only in case"),
    "WITH 1 AS x RETURN X": (20, "no variable X; did you mean x"),
    "WITH 1 AS p MATCH p = ()-[]->() RETURN p": (19, "p is already a whole number"),
    "MATCH (p)-[]->(), p = ()-[]->() RETURN p": (19, "p names both a node and a path"),
    "MATCH ()-[r]->(), (r) RETURN r": (19, "r names both a relationship and a node"),
    "MATCH (a)-[r]->(b)-[r]->(c) RETURN a": (19, "r occurs twice"),
    "MATCH (a)-[*0..2]->(b) RETURN a": (12, "write *1.."),
    "MATCH (a)-[*0..2]->(b) RETURN DISTINCT a": (12, "write *1.."),
    "MATCH (n) WHERE (n)-[r]->() RETURN n": (20, "r is not bound here"),
    "MATCH (n) RETURN (n)-[]->()": (18, "write EXISTS { MATCH … } or COUNT { MATCH … }"),
    "MATCH (n:End) RETURN n": (10, "replace :End by :Entity and the condition type = 'End'"),
    "MATCH ()-[:Single]->() RETURN 1": (12, "relation_type = 'Single'"),
    "MATCH (a), (b) MERGE (a)-[r]->(b)": (25, "needs a type"),
    "MATCH (n) RETURN n.id, count(*) AS c ORDER BY c < 2 < 3": (53, "two values at a time"),
    "MATCH (n) WITH count(*) AS c WHERE n.id = 'a' RETURN c": (30, "n is not in this WITH"),
    "WITH 1 AS x WITH x + 1 RETURN 1": (18, "needs an alias"),
    "MATCH (n:entity) RETURN n": (10, "case matters"),
    "MATCH (:Entity)-[:relates_to* SHORTEST 1..2]->(n) RETURN n": (19, "case matters"),
    # Reads of what the statement has written
    "MATCH (n), (m) SET n.type = 'a', n.content = m.type": (46, "as it was before SET"),
    "MATCH (n)-[r]->(m) SET n.content = 'x' RETURN m.content": (47, "as it was before SET"),
    "MATCH (n)-[r]->(m) SET n.content = 'x' RETURN m": (47, "as it was before SET"),
    "MATCH p = (n)-[r]->() SET r.weight = 2.0 RETURN p": (49, "as it was before SET"),
    "MATCH (n) WITH n, n.content AS old SET n.content = 'x' RETURN old": (19, "as it was before SET"),
    "UNWIND $list AS i MATCH (n) SET n.content = concat(n.content, 'x')": (52, "as it was before SET"),
    "UNWIND $list AS i MATCH (n) SET n.content = i RETURN n.content": (54, "as it was before SET"),
    "UNWIND $list AS i MERGE (n:Entity {id: i}) ON MATCH SET n.content = n.content + 'x'": (69, "before SET"),
    "MATCH (n)-[r]->() SET n.content = 'x' DELETE r": (39, "set properties and delete"),
    "MATCH (n)-[r]->() DELETE r SET n.content = 'x'": (28, "set properties and delete"),
    "MATCH (n) DETACH DELETE n RETURN n.id": (34, "deleted before it is read"),
}  # fmt: skip


@pytest.mark.parametrize("text", REJECTED)
def test_statements_with_wrong_answers_are_rejected(text: str) -> None:
    column, said = REJECTED[text]
    with pytest.raises(InvalidInput) as caught:
        validate_cypher_statement_for_engine(text, PARAMETERS, writable=True)
    if "takes a null" not in said:
        assert said in caught.value.message
    assert f"line 1, column {column}" in caught.value.message


@pytest.mark.parametrize("text", ["a\\q", "\\N", "\\x41", "\\u12", "\\ud800", "\\u0000"])
def test_unknown_escapes_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"line 1, column (8|9|10)$"):
        validate_cypher_statement_for_engine(f"RETURN '{text}'", {}, writable=False)


@pytest.mark.parametrize(
    ("value", "passes"), [("", True), ("a", True), (1, False), (True, False), (1.5, False), (["a"], False)]
)
def test_cached_statement_is_revalidated_for_other_types(value: Any, *, passes: bool) -> None:
    text = "MATCH (n) WHERE n.content CONTAINS $x RETURN n.id"
    for _ in range(2):
        assert validate_cypher_statement_for_engine(text, {"x": "b"}, writable=False)
        if passes:
            assert ("IS NOT NULL" in validate_cypher_statement_for_engine(text, {"x": value}, writable=False).text) == (
                value == ""
            )
        else:
            with pytest.raises(InvalidInput):
                validate_cypher_statement_for_engine(text, {"x": value}, writable=False)


def test_positions_refer_to_the_original_text() -> None:
    text = "MATCH (a)-[]-(b)-[]-(c)\nWHERE a.content CONTAINS b.content AND 'x\\ny' <> a.id\nRETURN a.id, c.summary"
    statement = validate_cypher_statement_for_engine(text, {}, writable=False)
    for word in ("RETURN", "WHERE", "c.summary"):
        line = text[: text.index(word)].count("\n") + 1
        column = text.index(word) - text.rfind("\n", 0, text.index(word))
        assert statement.place(statement.text.rindex(word)) == (line, column)
