"""Scalar functions of openCypher."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kgserve.cypher.interpreter import arithmetic, string_functions, temporal_functions, value_size_limits
from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES
from kgserve.cypher.interpreter.graph_element_functions import format_element_id, hash_graph_element, parse_element_id
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.kuzu_function_hints import NEAREST_FORMS
from kgserve.cypher.interpreter.scalar_function_table import FUNCTIONS, find_scalar_function
from kgserve.cypher.lexer import ALLOWED_FUNCTIONS
from kgserve.errors import InvalidInput, TooLarge
from tests.cypher.interpreter.evaluate import NOW, evaluate, is_same
from tests.cypher.interpreter.memory_graph import MemoryGraph
from tests.cypher.interpreter.statements import run_statement

GRAPH = (
    MemoryGraph()
    .add_node("a", "Task", status="open", size=3)
    .add_node("b")
    .add_relationship("a", "KNOWS", "b", since=2020)
)
NODE, BARE_NODE = NodeReference(GRAPH, "a"), NodeReference(GRAPH, "b")
RELATIONSHIP = RelationshipReference(GRAPH, ("a", "b", "KNOWS"))
ELEMENTS = {
    "n": NODE,
    "m": BARE_NODE,
    "r": RELATIONSHIP,
    "p": PathValue((NODE, BARE_NODE), (RELATIONSHIP,)),
    "gone": NodeReference(GRAPH, "gone"),
}
NAN = math.nan


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abs(-3)", 3),
        ("abs(-3.5)", 3.5),
        ("ceil(1.2)", 2.0),
        ("ceiling(-1.2)", -1.0),
        ("floor(-1.2)", -2.0),
        ("floor(3)", 3.0),
        ("sign(-2.5)", -1),
        ("sign(0)", 0),
        ("round(1.5)", 2.0),
        ("round(-1.5)", -1.0),
        ("round(0.49999999999999994)", 0.0),
        ("round(3)", 3.0),
        ("round(3.14159, 3)", 3.142),
        ("round(-1.55, 1)", -1.6),
        ("round(1.249, 1, 'UP')", 1.3),
        ("round(1.249, 1, 'down')", 1.2),
        ("round(1.25, 1, 'HALF_EVEN')", 1.2),
        ("round(1.25, 1, 'HALF_DOWN')", 1.2),
        ("round(-1.21, 1, 'FLOOR')", -1.3),
        ("round(-1.29, 1, 'CEILING')", -1.2),
        ("round(1.0 / 0)", math.inf),
        ("sqrt(12.96)", 3.6),
        ("sqrt(-1)", NAN),
        ("exp(0)", 1.0),
        ("exp(1000)", math.inf),
        ("log(e())", 1.0),
        ("log(0)", -math.inf),
        ("log(-1)", NAN),
        ("log10(100)", 2.0),
        ("sin(0)", 0.0),
        ("cos(0)", 1.0),
        ("round(tan(pi() / 4), 5)", 1.0),
        ("round(cot(pi() / 4), 5)", 1.0),
        ("cot(0)", math.inf),
        ("asin(2)", NAN),
        ("acos(1)", 0.0),
        ("atan(0)", 0.0),
        ("atan2(0, 1)", 0.0),
        ("degrees(pi())", 180.0),
        ("radians(180) = pi()", True),
        ("haversin(0)", 0.0),
        ("isNaN(0.0 / 0)", True),
        ("isNaN(1)", False),
        ("0 <= rand() < 1", True),
        ("rand() = rand()", False),
    ],
)
def test_mathematical_functions(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toString(1)", "1"),
        ("toString(1.0)", "1.0"),
        ("toString(12345678.9)", "1.23456789E7"),
        ("toString(0.00001)", "1.0E-5"),
        ("toString(-0.5)", "-0.5"),
        ("toString(true)", "true"),
        ("toString('a')", "a"),
        ("toString(date('2024-02-29'))", "2024-02-29"),
        ("toInteger('42')", 42),
        ("toInteger(' -42 ')", -42),
        ("toInteger('2.9')", 2),
        ("toInteger('1e3')", 1000),
        ("toInteger(-2.9)", -2),
        ("toInteger(true)", 1),
        ("toInteger('foo')", None),
        ("toInteger('')", None),
        ("toInteger('1_000')", None),
        ("toInteger('٣')", None),
        ("toInteger('0x1F')", None),
        ("toFloat('1.5')", 1.5),
        ("toFloat('.5')", 0.5),
        ("toFloat(3)", 3.0),
        ("toFloat('nan')", None),
        ("toFloat('Infinity')", math.inf),
        ("toFloat('foo')", None),
        ("toBoolean('TRUE')", True),
        ("toBoolean(' false ')", False),
        ("toBoolean('f alse')", None),
        ("toBoolean(0)", False),
        ("toIntegerOrNull([])", None),
        ("toIntegerOrNull(1e300)", None),
        ("toFloatOrNull(true)", None),
        ("toBooleanOrNull(1.5)", None),
        ("toStringOrNull({})", None),
        ("toStringOrNull(1)", "1"),
        ("toIntegerList(['1', 'x', 2.5, null, []])", [1, None, 2, None, None]),
        ("toFloatList([1, '2.5'])", [1.0, 2.5]),
        ("toStringList([1, true])", ["1", "true"]),
        ("toBooleanList(['true', 0])", [True, False]),
    ],
)
def test_conversions(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toUpper('aß')", "ASS"),
        ("upper('a')", "A"),
        ("toLower('Ä')", "ä"),
        ("lower('A')", "a"),
        ("trim('  a ')", "a"),
        ("ltrim('  a ')", "a "),
        ("rtrim('  a ')", "  a"),
        ("btrim('xyax', 'xy')", "a"),
        ("ltrim('xxa', 'x')", "a"),
        ("left('hello', 2)", "he"),
        ("left('hello', 20)", "hello"),
        ("left(null, null)", None),
        ("right('hello', 2)", "lo"),
        ("right('hello', 0)", ""),
        ("substring('hello', 1)", "ello"),
        ("substring('hello', 1, 3)", "ell"),
        ("substring('hello', 10)", ""),
        ("substring(null, 1)", None),
        ("replace('hello', 'l', 'w')", "hewwo"),
        ("replace('hello', null, 'w')", None),
        ("split('a,b,c', ',')", ["a", "b", "c"]),
        ("split('a,b;c', [',', ';'])", ["a", "b", "c"]),
        ("split('abc', '')", ["a", "b", "c"]),
        ("split('', ',')", [""]),
        ("reverse('abc')", "cba"),
        ("size('🧐a')", 2),
        ("char_length('abc')", 3),
        ("character_length('')", 0),
        ("normalize('e\\u0301')", "é"),
        ("size(normalize('é', 'NFD'))", 2),
    ],
)
def test_string_functions(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("size([1, null])", 2),
        ("head([1, 2])", 1),
        ("head([])", None),
        ("last([1, 2])", 2),
        ("last([])", None),
        ("tail([1, 2, 3])", [2, 3]),
        ("tail([])", []),
        ("reverse([1, 'a', null])", [None, "a", 1]),
        ("range(1, 3)", [1, 2, 3]),
        ("range(3, 1)", []),
        ("range(3, 1, -1)", [3, 2, 1]),
        ("range(0, 10, 4)", [0, 4, 8]),
        ("range(0, 0)", [0]),
        ("range(1, 9223372036854775807, 9223372036854775807)", [1]),
        ("size(range(1, 1000000))", 1_000_000),
        ("isEmpty([])", True),
        ("isEmpty('a')", False),
        ("isEmpty({})", True),
        ("nullIf(1, 1.0)", None),
        ("nullIf(1, 2)", 1),
        ("nullIf(null, 1)", None),
        ("valueType(1)", "INTEGER NOT NULL"),
        ("valueType([1, 'a'])", "LIST<INTEGER NOT NULL | STRING NOT NULL> NOT NULL"),
        ("valueType(date())", "DATE NOT NULL"),
        ("valueType(null)", "NULL"),
        ("keys({a: 1, b: null})", ["a", "b"]),
        ("properties({a: 1})", {"a": 1}),
    ],
)
def test_list_and_map_functions(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("labels(n)", ["Task"]),
        ("labels(m)", []),
        ("labels(null)", None),
        ("type(r)", "KNOWS"),
        ("keys(n)", ["id", "status", "size"]),
        ("keys(r)", ["since"]),
        ("properties(n)", {"id": "a", "status": "open", "size": 3}),
        ("properties(r)", {"since": 2020}),
        ("properties(null)", None),
        ("nodes(p)", [NODE, BARE_NODE]),
        ("relationships(p)", [RELATIONSHIP]),
        ("length(p)", 1),
        ("length(null)", None),
        ("startNode(r)", NODE),
        ("endNode(r)", BARE_NODE),
        ("elementId(n)", "a"),
        ("elementId(r)", '["a","b","KNOWS"]'),
        ("id(n) = id(startNode(r))", True),
        ("id(n) = id(m)", False),
    ],
)
def test_graph_functions(text: str, expected: Any) -> None:
    check(expected, text)


def check(expected: Any, text: str) -> None:
    assert is_same(evaluate(text, **ELEMENTS), expected)


def test_element_ids_can_be_restored() -> None:
    for node_id in ("a", "['", '["x', 'ä "quoted"', '["a","b"]'):
        assert parse_element_id(format_element_id(NodeReference(GRAPH, node_id))) == node_id
    key = ('a"b', "ü", "KNOWS")
    assert parse_element_id(format_element_id(RelationshipReference(GRAPH, key))) == key
    assert 0 <= hash_graph_element(NODE) < 2**53
    assert json.loads(json.dumps(hash_graph_element(NODE))) == evaluate("id(n)", n=NODE)


@pytest.mark.parametrize("name", sorted(name for name, each in FUNCTIONS.items() if each.kinds and not each.takes_null))
def test_null_makes_the_result_of_a_function_null(name: str) -> None:
    function = FUNCTIONS[name]
    assert evaluate(f"{name}({', '.join(['null'] * function.least)})") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("toUpper(1)", r"the argument of toUpper\(\) must be a string, not an integer \(1\)"),
        ("substring('a', 'b')", r"argument 2 of substring\(\) must be an integer, not a string \('b'\)"),
        ("sqrt('a')", "must be a number, not a string"),
        ("size(1)", "must be a list or a string, not an integer"),
        ("size(p)", "must be a list or a string, not a path"),
        ("length(n)", r"length\(\) must be a path, not a node"),
        ("length([1])", "must be a path, not a list"),
        ("labels(p)", "must be a node, not a path"),
        ("labels(1)", "must be a node"),
        ("type(n)", "must be a relationship, not a node"),
        ("keys(1)", "must be a map or a node or a relationship"),
        ("properties('Cypher')", "not a string"),
        ("properties([true])", "not a list"),
        ("nodes(n)", "must be a path"),
        ("startNode(n)", "must be a relationship"),
        ("id(1)", "must be a node or a relationship"),
        ("labels(gone)", "was deleted"),
        ("keys(gone)", "was deleted"),
        ("toInteger([])", r"toInteger\(\) expects"),
        ("toInteger({})", "expects"),
        ("toInteger(n)", "not a node"),
        ("toInteger('9223372036854775808')", "overflow"),
        ("toInteger(1e19)", "overflow"),
        ("toInteger(0.0 / 0)", "cannot convert NaN"),
        ("toFloat(true)", "expects"),
        ("toBoolean(1.0)", "expects"),
        ("toString([])", "expects"),
        ("toString(r)", "not a relationship"),
        ("left('a', -1)", "must be zero or more, not -1"),
        ("left('a', null)", "must be zero or more, not null"),
        ("substring('a', -1)", "start of substring"),
        ("substring('a', 0, -1)", "length of substring"),
        ("split('a', [1])", "expects strings as separators"),
        ("range(1, 2, 0)", "must not be 0"),
        ("range(1.0, 2)", "must be an integer"),
        ("range(true, 2)", "must be an integer"),
        ("range(0, 1000000)", "would have 1000001 elements"),
        ("range(0, -1000001, -1)", "at most 1000000"),
        ("abs(-9223372036854775808)", "overflow"),
        ("round(1.5, -1)", "precision"),
        ("round(1.5, 1, 'SIDEWAYS')", "has no mode"),
        ("normalize('a', 'NFX')", "has no form"),
        ("head('abc')", "must be a list"),
        ("toUpper()", "takes 1 argument, not 0"),
        ("left('a')", "takes 2 arguments, not 1"),
        ("round(1, 2, 'UP', 4)", "takes 1 to 3 arguments, not 4"),
        ("pi(1)", "takes 0 arguments, not 1"),
        ("tupper('a')", r"unknown function tupper\(\); did you mean toUpper\(\)"),
        ("foo.bar(1)", r"unknown function foo\.bar\(\)"),
        ("point({x: 1})", "not supported: point"),
        ("point.distance(1, 2)", "not supported: point.distance"),
        ("count(1)", "not allowed here"),
        ("toUpper(DISTINCT 'a')", "DISTINCT"),
    ],
)
def test_wrong_calls_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"{message}.*, at line 1, column "):
        evaluate(text, **ELEMENTS)


@pytest.mark.parametrize(
    "text",
    [
        "replace(x, 'a', x)",
        "reduce(s = x, i IN range(1, 60) | s + s)",
        "reduce(s = x, i IN range(1, 60) | replace(s, 'a', 'aa'))",
        "reduce(l = [1], i IN range(1, 60) | l + l)",
        "reduce(l = [1], i IN range(1, 60) | [l, l])",
        "reduce(l = {a: 1}, i IN range(1, 60) | {a: l, b: l})",
        "reduce(l = [], i IN range(1, 1000) | [l])",
        "[i IN range(1, 1000) | range(1, 1000)]",
        "[i IN range(1, 1000) | [j IN range(1, 100) | [i, j]]]",
        "[i IN range(1, 1000) | [[i, big], [big]]]",
        "split(reduce(s = x, i IN range(1, 10) | s + s), '')",
    ],
)
def test_the_size_of_values_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arithmetic, string_functions, value_size_limits):
        monkeypatch.setattr(module, "MAX_LIST_ELEMENTS", 20_000)
    monkeypatch.setattr(arithmetic, "MAX_TEXT_CHARACTERS", 1_000_000)
    monkeypatch.setattr(string_functions, "MAX_TEXT_CHARACTERS", 1_000_000)
    with pytest.raises(TooLarge, match=r"more than|at most \d+ deep"):
        evaluate(text, x="a" * 10_000, big=[*range(1_000)])


def test_functions_of_the_time_use_the_time_of_the_statement() -> None:
    assert evaluate("timestamp()") == int(NOW.timestamp() * 1000)
    assert evaluate("toString(date())") == "2024-02-29"
    assert len({evaluate("randomUUID()") for _ in range(3)}) == 3


ENGINE_ONLY = sorted(
    {name.lower() for name in ALLOWED_FUNCTIONS}
    - {*FUNCTIONS, *temporal_functions.FUNCTIONS, *AGGREGATE_NAMES, "coalesce", "timestamp"}
)
FORM_VARIABLES = "list other x i position text part start length count a b n r p y m d"
WITHOUT_COUNTERPART = {
    "bitshift_left", "bitshift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "even", "gamma", "hash",
    "json_contains", "json_valid", "lgamma", "lpad", "md5", "octet_length", "regexp_extract",
    "regexp_extract_all", "regexp_replace", "regexp_split_to_array", "rpad", "sha256",
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINE_ONLY)
def test_functions_of_the_engine_name_a_form_that_works(name: str) -> None:
    with pytest.raises(InvalidInput, match="is a function of the engine") as caught:
        find_scalar_function(name, NOW)
    assert (name in NEAREST_FORMS) == (name not in WITHOUT_COUNTERPART)
    if name in NEAREST_FORMS:
        assert NEAREST_FORMS[name] in str(caught.value)
        columns = ", ".join(f"row.{each} AS {each}" for each in FORM_VARIABLES.split())
        assert run_statement(GRAPH, f"UNWIND $none AS row WITH {columns} RETURN {NEAREST_FORMS[name]}", none=[]) == []


def test_timestamp_counts_milliseconds() -> None:
    assert evaluate("timestamp()") == int(NOW.timestamp() * 1000)
    assert evaluate("datetime({epochMillis: timestamp()}) = datetime()") is True
