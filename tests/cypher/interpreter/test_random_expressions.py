"""Random expressions: the same value with constants and with variables, and no error but those for people."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.opencypher_syntax_tree import QueryExpression
from kgserve.cypher.interpreter.scalar_function_table import FUNCTIONS
from kgserve.cypher.interpreter.value_comparison import (
    are_values_equal,
    build_order_by_sort_key,
    evaluate_cypher_ordering_comparison,
    value_equivalence_key,
)
from kgserve.errors import InvalidInput, TooLarge
from tests.cypher.interpreter.evaluate import new_compiler, parse_expression, replace_literals
from tests.cypher.interpreter.memory_graph import MemoryGraph

GRAPH = MemoryGraph().add_node("a", "Task", s="x", a=2).add_node("b").add_relationship("a", "KNOWS", "b", w=1.5)
NODE = NodeReference(GRAPH, "a")
RELATIONSHIP = RelationshipReference(GRAPH, ("a", "b", "KNOWS"))
ROW = {
    "n": NODE,
    "r": RELATIONSHIP,
    "p": PathValue((NODE, NodeReference(GRAPH, "b")), (RELATIONSHIP,)),
    "m": None,
    "gone": NodeReference(GRAPH, "gone"),
}
VALUES = (
    *("null", "true", "0", "1", "-1", "9223372036854775807", "1000000"),
    *("0.0", "1.5", "1e308", "(0.0/0.0)", "(1/0.0)"),
    *(
        "''",
        "'abc'",
        "'é'",
        "'12'",
        "'2020-01-01'",
        "[]",
        "[1]",
        "[1, null, 'a']",
        "[[1]]",
        "{}",
        "{a: 1}",
        "{a: null}",
    ),
    *("n", "r", "p", "m", "gone", "date('2020-01-01')", "duration('P1DT2H')", "localtime('10:00')"),
)
OPERATORS = ["+", "-", "*", "/", "%", "^", "=", "<>", "<", "<=", ">", ">=", "IN", "STARTS WITH", "CONTAINS", "=~"]
# A slot is an underscore between two spaces.
FORMS = [
    "( _ )[ _ ]",
    "( _ )[ _ .. _ ]",
    "( _ ).a",
    "( _ ).year",
    "( _ ):Task",
    "-( _ )",
    "( _ ) IS NULL",
    "n {.s, x: _ }",
    "[x IN _ | x]",
    "[x IN _ WHERE x = _ | _ ]",
    "single(x IN _ WHERE x = _ )",
    "reduce(a = _ , x IN _ | a + x)",
    "[ _ , _ ]",
    "{k: _ , l: _ }",
    "CASE _ WHEN _ THEN _ ELSE _ END",
    "CASE WHEN _ = _ THEN _ END",
    "( _ < _ <= _ )",
    "coalesce( _ , _ )",
]
CALLS = [
    *((each.name, each.least, len(each.kinds)) for each in FUNCTIONS.values() if not each.is_volatile),
    *(
        (name, each.min_arguments, each.max_arguments)
        for name, each in temporal_functions.FUNCTIONS.items()
        if not name.endswith("realtime")
    ),
]


def generate(random: Random, depth: int) -> str:
    choice = random.random() if depth else 0
    if choice < 0.2:
        return random.choice(VALUES)
    if choice < 0.5:
        form = f"( _ {random.choice(OPERATORS)} _ )"
    elif choice < 0.75:
        name, least, most = random.choice(CALLS)
        form = f"{name}({','.join([' _ '] * random.randint(least, most))})"
    else:
        form = random.choice(FORMS)
    first, *rest = form.split(" _ ")
    return first + "".join(f" {generate(random, depth - 1)} {part}" for part in rest)


def run(text: str, tree: QueryExpression, row: dict[str, Any]) -> str:
    try:
        value = new_compiler(text).compile(tree)(row)
    except (InvalidInput, TooLarge):
        return "an error"
    assert are_values_equal(value, value) in {True, None} or "nan" in repr(value)
    assert evaluate_cypher_ordering_comparison(value, value, "<") is not True
    assert build_order_by_sort_key(value) == build_order_by_sort_key(value)
    assert len({value_equivalence_key(value), value_equivalence_key(value)}) == 1
    return repr(value)


@pytest.mark.parametrize("seed", range(4))
def test_constants_and_variables_give_the_same_value(seed: int) -> None:
    random = Random(seed)
    results: list[str] = []
    for _ in range(400):
        text = generate(random, random.randint(1, 3))
        tree = parse_expression(text)
        with_variables, literals = replace_literals(tree)
        results.append(run(text, tree, ROW))
        assert results[-1] == run(text, with_variables, {**ROW, **literals}), text
    assert results.count("an error") < len(results) * 0.8
