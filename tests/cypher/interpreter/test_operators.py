"""Operators of openCypher: logic, comparison, order, arithmetic, access and branches."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from kgserve.cypher.interpreter.graph_view_interface import (
    ExecutionLimits,
    NodeReference,
    PathValue,
    RelationshipReference,
)
from kgserve.cypher.interpreter.regex_match import _compile
from kgserve.cypher.interpreter.value_comparison import build_order_by_sort_key, value_equivalence_key
from kgserve.errors import InvalidInput, TimedOut
from tests.cypher.interpreter.evaluate import evaluate, is_same, new_compiler, parse_expression, replace_literals
from tests.cypher.interpreter.memory_graph import MemoryGraph

GRAPH = (
    MemoryGraph()
    .add_node("a", "Task", status="open", size=3)
    .add_node("b", "Person", name="Ann")
    .add_node("_:1")
    .add_relationship("a", "KNOWS", "b", since=2020)
)
NODE = NodeReference(GRAPH, "a")
BARE_NODE = NodeReference(GRAPH, "_:1")
RELATIONSHIP = RelationshipReference(GRAPH, ("a", "b", "KNOWS"))
PATH = PathValue((NODE, NodeReference(GRAPH, "b")), (RELATIONSHIP,))
ELEMENTS = {"n": NODE, "m": BARE_NODE, "r": RELATIONSHIP, "p": PATH, "nothing": None}


def check(expected: Any, text: str) -> None:
    """Compare the value of an expression, and that of the same with variables instead of its literals."""
    tree, literals = replace_literals(parse_expression(text))
    for value in (evaluate(text, **ELEMENTS), new_compiler(text).compile(tree)({**ELEMENTS, **literals})):
        assert is_same(value, expected)


@pytest.mark.parametrize(
    ("a", "b", "both", "either", "exactly_one"),
    [
        (True, True, True, True, False),
        (True, False, False, True, True),
        (True, None, None, True, None),
        (False, False, False, False, False),
        (False, None, False, None, None),
        (None, None, None, None, None),
    ],
)
def test_logic_has_three_values(
    a: bool | None, b: bool | None, both: bool | None, either: bool | None, exactly_one: bool | None
) -> None:
    for x, y in ((a, b), (b, a)):
        for given in ({"x": x, "y": y}, {}):
            parameters = {"x": x, "y": y}
            mark = "" if given else "$"
            assert evaluate(f"{mark}x AND {mark}y", parameters, **given) is both
            assert evaluate(f"{mark}x OR {mark}y", parameters, **given) is either
            assert evaluate(f"{mark}x XOR {mark}y", parameters, **given) is exactly_one
    assert evaluate("NOT x", x=a) is (None if a is None else not a)


@pytest.mark.parametrize(
    "text", ["x AND true", "true AND x", "false OR x", "x XOR null", "NOT x", "[y IN [1] WHERE x]"]
)
@pytest.mark.parametrize("value", [1, 0, "true", [], {}, 1.0])
def test_a_condition_must_be_a_boolean(text: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"boolean.*line 1, column \d+"):
        evaluate(text, x=value)


def test_constants_in_conditions_are_checked_at_compile_time() -> None:
    with pytest.raises(InvalidInput, match=r"AND expects booleans, not an integer \(1\), at line 1, column"):
        new_compiler("x AND 1").compile(parse_expression("x AND 1"))


COMPARISONS = [
    ("1 = 1.0", True),
    ("1 = '1'", False),
    ("1 = true", False),
    ("0 = false", False),
    ("true = true", True),
    ("null = null", None),
    ("null <> 1", None),
    ("[1, null] = [1, null]", None),
    ("[1, null] = [2, null]", False),
    ("[1, null] = [1]", False),
    ("[[1]] = [[1.0]]", True),
    ("[1] = 1", False),
    ("{a: 1} = {a: 1.0}", True),
    ("{a: null} = {a: null}", None),
    ("{a: 1} = {a: 1, b: null}", False),
    ("{a: 1, b: 2} <> {b: 2, a: 1}", False),
    ("0.0 / 0.0 = 0.0 / 0.0", False),
    ("0.0 / 0.0 <> 0.0 / 0.0", True),
    ("1 < 2.5", True),
    ("2 < 'a'", None),
    ("'a' < 'b'", True),
    ("'Z' < 'a'", True),
    ("'a' >= 'a'", True),
    ("false < true", True),
    ("true < 1", None),
    ("null < 1", None),
    ("1 > null", None),
    ("0.0 / 0.0 < 1", False),
    ("0.0 / 0.0 >= 0.0 / 0.0", False),
    ("0.0 / 0.0 > 'a'", None),
    ("[1, 0] >= [1]", True),
    ("[1, null] >= [1]", True),
    ("[1, 2] >= [1, null]", None),
    ("[1, 'a'] >= [1, 2]", None),
    ("[1, 2] >= [3, null]", False),
    ("{a: 1} < {a: 2}", None),
    ("1 < 2 < 3", True),
    ("1 < 3 < 2", False),
    ("1 < null < 3", None),
    ("3 < 2 < null", False),
    ("1 < 2 = 2.0 <> 3", True),
    ("9007199254740993 = 9007199254740992.0", False),
    ("n = n", True),
    ("n <> m", True),
    ("n < m", None),
    ("r = r", True),
    ("p = p", True),
    ("n = 'a'", False),
    ("n = null", None),
    ("1 IN [2, 1.0]", True),
    ("1 IN [2, null]", None),
    ("1 IN []", False),
    ("null IN []", False),
    ("null IN [1]", None),
    ("1 IN null", None),
    ("n IN [m, n]", True),
    ("n IN [m, null]", None),
    ("r IN [n, r]", True),
    ("'a' IN [1, null, 'a']", True),
    ("5 IN [true, 5.0]", True),
    ("1 IN [true, '1']", False),
    ("0.0 IN [false]", False),
    ("true IN [1, true]", True),
    ("0.0 / 0.0 IN [0.0 / 0.0]", False),
    ("{a: 1} IN [1, {a: 1.0}]", True),
    ("'a' IN ['a', 'b']", True),
    ("'c' IN ['a', 'b']", False),
    ("1 IN ['a', 'b']", False),
    ("2.0 IN [1, 2]", True),
    ("0.0 / 0.0 IN [1, 2]", False),
    ("true IN [1, 2]", False),
    ("'1' IN [1, 2]", False),
    ("null IN ['a', 'b']", None),
    ("[1] IN [[1], [2]]", True),
    ("[null] IN [[1]]", None),
    ("'abc' STARTS WITH 'ab'", True),
    ("'abc' ENDS WITH 'ab'", False),
    ("'abc' CONTAINS 'b'", True),
    ("'abc' CONTAINS ''", True),
    ("'abc' CONTAINS null", None),
    ("1 CONTAINS 'a'", None),
    ("'a' STARTS WITH 1", None),
    ("null IS NULL", True),
    ("n.missing IS NOT NULL", False),
    ("n.status = 'open'", True),
    ("'open' = n.status", True),
    ("n.size > 2", True),
    ("2 < n.size", True),
    ("2 >= n.size", False),
    ("n.size > 'x'", None),
    ("n.status < 'z'", True),
    ("nothing.status = 'open'", None),
    ("n:Task", True),
    ("n:Person", False),
    ("n:Task:Person", False),
    ("n:Task:Task", True),
    ("n:Task|Person", True),
    ("r:KNOWS", True),
    ("nothing:Task", None),
    ("m:Task", False),
    ("m:_", False),
]


@pytest.mark.parametrize(("text", "expected"), COMPARISONS)
def test_comparison(text: str, expected: bool | None) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2", 3),
        ("1 + 2.0", 3.0),
        ("1 + null", None),
        ("'a' + 'b'", "ab"),
        ("'a' + 1", "a1"),
        ("1.5 + 'a'", "1.5a"),
        ("[1] + [2]", [1, 2]),
        ("[1] + 2", [1, 2]),
        ("1 + [2]", [1, 2]),
        ("[1] + null", None),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7 / 2.0", 3.5),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("-9223372036854775808 % -1", 0),
        ("5.5 % 2", 1.5),
        ("1 / 0.0", math.inf),
        ("-1 / 0.0", -math.inf),
        ("0 / 0.0", math.nan),
        ("5 % 0.0", math.nan),
        ("2 ^ 3", 8.0),
        ("(-8) ^ 0.5", math.nan),
        ("0 ^ -1", math.inf),
        ("10.0 ^ 400", math.inf),
        ("(-10.0) ^ 401", -math.inf),
        ("2 ^ null", None),
        ("4 ^ 3 ^ 2", 4096.0),
        ("-(3)", -3),
        ("+n.size", 3),
        ("1 - 2 - 3", -4),
        ("null / 0", None),
        ("9223372036854775807 + 0", 9223372036854775807),
        ("-9223372036854775808 - 0", -9223372036854775808),
        ("n.size * 2", 6),
    ],
)
def test_arithmetic(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9223372036854775807 + 1", "overflow"),
        ("-9223372036854775808 - 1", "overflow"),
        ("9223372036854775807 * 2", "overflow"),
        ("-(n.size - 9223372036854775807 - 4)", "overflow"),
        ("-9223372036854775808 / -1", "overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("true + 1", r"\+ cannot combine a boolean \(true\) and an integer \(1\)"),
        ("'a' + true", "cannot combine"),
        ("'a' * 2", "cannot combine"),
        ("{a: 1} - 1", "cannot combine a map and an integer"),
        ("n + 1", "cannot combine a node"),
        ("[1] - 1", "cannot combine a list"),
        ("-'a'", "expects a number"),
        ("2 ^ 'a'", "cannot combine"),
        ("1 IN 2", "IN expects a list"),
        ("'a' =~ '('", "invalid regular expression"),
        ("'a' =~ '(?=a)'", "lookahead"),
        ("'a' =~ 1", "as a string"),
        ("[1][1.0]", "index of a list must be an integer"),
        ("[1]['a']", "index of a list must be an integer"),
        ("{a: 1}[0]", "key of a map must be a string"),
        ("(1)[0]", "has no elements"),
        ("'abc'[0]", "has no elements"),
        ("(1).a", r"an integer \(1\) has no properties"),
        ("[1].a", "a list has no properties"),
        ("p.a", "a path has no properties"),
        ("[1, 2]['a'..]", "bounds of a slice"),
        ("'abc'[0..1]", "only lists have slices"),
        ("[x IN 1 | x]", "expects a list"),
        ("all(x IN 'a' WHERE true)", "expects a list"),
        ("reduce(a = 0, x IN {} | a)", "expects a list"),
        ("p:Task", "only nodes and relationships have labels"),
        ("$missing", r"parameter \$missing is missing"),
        ("CASE WHEN n.size THEN 1 END", "must be a boolean"),
    ],
)
def test_unsuitable_operands_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"{message}.*, at line 1, column "):
        evaluate(text, **ELEMENTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2, 3][0]", 1),
        ("[1, 2, 3][-1]", 3),
        ("[1, 2, 3][3]", None),
        ("[1, 2, 3][-4]", None),
        ("[1][null]", None),
        ("null[0]", None),
        ("{a: 1}['a']", 1),
        ("{a: 1}['b']", None),
        ("{a: 1}[null]", None),
        ("{a: {b: 2}}.a.b", 2),
        ("n['sta' + 'tus']", "open"),
        ("r['since']", 2020),
        ("r.since", 2020),
        ("n.missing", None),
        ("nothing.name", None),
        ("[1, 2, 3][1..]", [2, 3]),
        ("[1, 2, 3][..2]", [1, 2]),
        ("[1, 2, 3][-2..-1]", [2]),
        ("[1, 2, 3][2..1]", []),
        ("[1, 2, 3][0..10]", [1, 2, 3]),
        ("[1, 2, 3][null..]", None),
        ("[1, 2, 3][..null]", None),
        ("n {.status, .missing, other: 1 + 1}", {"status": "open", "missing": None, "other": 2}),
        ("n {.*, status: 'x'}", {"id": "a", "status": "x", "size": 3}),
        ("nothing {.*}", None),
        ("r {.*}", {"since": 2020}),
        ("CASE 2 WHEN 1 THEN 'a' WHEN 2.0 THEN 'b' ELSE 'c' END", "b"),
        ("CASE null WHEN null THEN 'a' ELSE 'b' END", "b"),
        ("CASE n.size WHEN 4 THEN 'a' END", None),
        ("CASE WHEN null THEN 1 WHEN n.size = 3 THEN 2 END", 2),
        ("CASE WHEN true THEN 1 ELSE 1 / 0 END", 1),
        ("[x IN [1, 2, 3] WHERE x > 1 | x * 2]", [4, 6]),
        ("[x IN [1, null, 3] WHERE x > 1]", [3]),
        ("[x IN null | x]", None),
        ("[x IN [1, 2] | [y IN [x, 10] | x + y]]", [[2, 11], [4, 12]]),
        ("reduce(a = 0, x IN [1, 2, 3] | a + x)", 6),
        ("reduce(a = 0, x IN null | a + x)", None),
        ("reduce(a = 'x', x IN [] | a + x)", "x"),
        ("coalesce(null, n.missing, 3, 1 / 0)", 3),
        ("coalesce(null)", None),
    ],
)
def test_access_branches_and_comprehensions(text: str, expected: Any) -> None:
    check(expected, text)


@pytest.mark.parametrize(
    ("items", "everyone", "anyone", "no_one", "exactly_one"),
    [
        ("[]", True, False, True, False),
        ("[2]", True, True, False, True),
        ("[1]", False, False, True, False),
        ("[2, 2]", True, True, False, False),
        ("[1, 2]", False, True, False, True),
        ("[null]", None, None, None, None),
        ("[2, null]", None, True, False, None),
        ("[1, null]", False, None, None, None),
        ("[2, 2, null]", None, True, False, False),
        ("null", None, None, None, None),
    ],
)
def test_quantifiers_have_three_values(
    items: str, everyone: bool | None, anyone: bool | None, no_one: bool | None, exactly_one: bool | None
) -> None:
    kinds = ("all", "any", "none", "single")
    for kind, expected in zip(kinds, (everyone, anyone, no_one, exactly_one), strict=True):
        assert evaluate(f"{kind}(x IN {items} WHERE x = 2)") is expected, kind


@pytest.mark.parametrize(
    "text",
    [
        "[x IN items | x + 1]",
        "all(x IN items WHERE x >= 0)",
        "reduce(a = 0, x IN items | a + x)",
        "[x IN range(1, 5) | size(range(x, 100000))]",
        "[x IN range(1, 5) | 0.5 IN items]",
    ],
)
def test_long_evaluations_are_stopped_in_time(text: str) -> None:
    checks = 0

    def check_time() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise TimedOut("out of time")

    compiler = new_compiler(text)
    compiler.environment.limits = ExecutionLimits(check_time)
    with pytest.raises(TimedOut):
        compiler.compile(parse_expression(text))({"items": [*range(20_000)]})


def test_inner_variables_shadow_outer_ones() -> None:
    row = {"x": 7, "y": 1}
    assert evaluate("[[x IN [1] | x + y], x]", **row) == [[2], 7]
    assert evaluate("all(x IN [1] WHERE x = y) AND x = 7", **row) is True
    assert row == {"x": 7, "y": 1}


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("hello", "he.*", True),
        ("hello", "he", False),
        ("HELLO", "(?i)he.*", True),
        ("É", "(?i)é", True),
        ("a\nb", "a.b", False),
        ("a\nb", "(?s)a.b", True),
        ("b", "a|b", True),
        ("ab", "a|b", False),
        ("٣", r"\d", False),
        ("x1", r"\w\d", True),
        ("a" * 50_000, "(a+)+b", False),
        ("ab" * 20_000, ".*a.*b.*c", False),
        (None, "a", None),
        (1, "1", None),
        ("a", None, None),
    ],
)
def test_regular_expressions_match_whole_texts(text: Any, pattern: Any, expected: bool | None) -> None:
    assert evaluate("x =~ y", x=text, y=pattern) is expected


def test_both_matchers_of_regular_expressions_agree() -> None:
    generator = random.Random(7)
    atoms = ["a", "b", ".", "*", "+", "?", "|", r"\.", r"\d", "[ab]", "[^a-c]", "A", "é", "k", "\n"]
    compared = 0
    for _ in range(400):
        pattern = generator.choice(["", "(?i)"]) + "".join(generator.choices(atoms, k=generator.randint(1, 6)))
        try:
            program = _compile(pattern)
        except InvalidInput:
            continue
        if program.python is not None:
            compared += 1
            for text in ("", "a", "ab", "A.", "aab", "a\nb", "1", "٣", "É", "é", "\u212a", "ab1.|"):
                assert program.matches(text) == program._replace(python=None).matches(text), (pattern, text)
    assert compared > 100


@pytest.mark.parametrize(
    ("value", "message"),
    [(2**63, "64 bits"), ([{"a": -(2**63) - 1}], "64 bits"), (b"x", "unsupported type bytes"), ({1: 2}, "not strings")],
)
def test_parameters_of_other_types_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"parameter .value has .*{message}"):
        evaluate("$value", {"value": value})


def test_order_over_mixed_types() -> None:
    ascending = [
        {},
        {"a": 1},
        {"b": 0},
        {"a": 1, "b": 1},
        NODE,
        RELATIONSHIP,
        [],
        [1],
        [1, "a"],
        [1, 0],
        [1, None],
        [2],
        [None],
        PATH,
        "",
        "B",
        "a",
        False,
        True,
        -math.inf,
        1,
        1.5,
        2,
        math.inf,
        math.nan,
        None,
    ]
    shuffled = [*ascending]
    random.Random(3).shuffle(shuffled)
    for found, expected in zip(sorted(shuffled, key=build_order_by_sort_key), ascending, strict=True):
        assert found is expected


def test_equivalence_of_values_for_distinct() -> None:
    same = [
        (1, 1.0),
        (None, None),
        (math.nan, math.nan),
        ([1, None], [1.0, None]),
        ({"a": 1}, {"a": 1.0}),
        (NODE, NODE),
    ]
    other = [
        (1, True),
        (1, "1"),
        (0, False),
        ([1], 1),
        ([], {}),
        ([None], []),
        ({"a": None}, {}),
        (NODE, "a"),
        ("nan", math.nan),
    ]
    assert all(value_equivalence_key(a) == value_equivalence_key(b) for a, b in same)
    assert all(value_equivalence_key(a) != value_equivalence_key(b) for a, b in other)


def test_constants_are_computed_once_and_never_before_they_are_needed() -> None:
    compiler = new_compiler("", size=[1, 2])
    assert compiler.compile(parse_expression("1 + 2 * 3"))({}) == 7
    failing = compiler.compile(parse_expression("CASE WHEN x THEN 1 / 0 ELSE 2 END"))
    assert failing({"x": False}) == 2
    with pytest.raises(InvalidInput, match="division by zero"):
        failing({"x": True})
