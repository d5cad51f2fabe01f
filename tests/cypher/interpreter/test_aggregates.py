"""Aggregates of openCypher."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kgserve.cypher.interpreter.aggregates import (
    check_aggregate_argument_count,
    create_aggregate_accumulator,
    find_outermost_aggregates,
)
from kgserve.cypher.interpreter.opencypher_syntax_tree import FunctionInvocation
from kgserve.errors import InvalidInput
from tests.cypher.interpreter.evaluate import evaluate, parse_expression


def aggregate(name: str, items: list[Any], *others: Any, is_distinct: bool = False) -> Any:
    accumulator = create_aggregate_accumulator(name, is_distinct=is_distinct)
    for each in items:
        accumulator.add((each, *others))
    return accumulator.result()


@pytest.mark.parametrize(
    ("name", "items", "expected"),
    [
        ("count", [], 0),
        ("count", [1, None, 1], 2),
        ("collect", [1, None, "a"], [1, "a"]),
        ("collect", [], []),
        ("sum", [], 0),
        ("sum", [1, 2, None], 3),
        ("sum", [1, 2.5], 3.5),
        ("avg", [], None),
        ("avg", [1, 2, None], 1.5),
        ("avg", [2**62, 2**62, 2**62], float(2**62)),
        ("min", [], None),
        ("min", [1, "a", None, [1, 2], 0.2, "b"], [1, 2]),
        ("max", [1, "a", None, [1, 2], 0.2, "b"], 1),
        ("max", [1, 2.0, 5, None, 3.2], 5),
        ("min", ["a", "B", "b"], "B"),
        ("max", [[1], [2], [2, 1]], [2, 1]),
        ("max", [True, False], True),
        ("stdev", [], 0.0),
        ("stdev", [1], 0.0),
        ("stdev", [1, 2, 3, None], 1.0),
        ("stdevp", [1, 3], 1.0),
    ],
)
def test_aggregates_ignore_nulls(name: str, items: list[Any], expected: Any) -> None:
    value = aggregate(name, items)
    assert type(value) is type(expected)
    assert value == expected


@pytest.mark.parametrize(
    ("percentile", "interpolated", "nearest"),
    [(0.0, 10.0, 10.0), (0.25, 17.5, 10.0), (0.5, 25.0, 20.0), (0.75, 32.5, 30.0), (0.9, 37.0, 40.0), (1, 40.0, 40.0)],
)
def test_percentiles(percentile: float, interpolated: float, nearest: float) -> None:
    items = [40.0, None, 10.0, 30.0, 20.0]
    assert aggregate("percentilecont", items, percentile) == pytest.approx(interpolated)
    assert aggregate("percentiledisc", items, percentile) == nearest
    assert aggregate("percentiledisc", [None], percentile) is None


@pytest.mark.parametrize("percentile", [1000, -1, 1.1, None, "0.5", math.nan])
@pytest.mark.parametrize("name", ["percentilecont", "percentiledisc"])
def test_a_percentile_out_of_range_is_refused(name: str, percentile: Any) -> None:
    with pytest.raises(InvalidInput, match=r"must be 0\.0 to 1\.0"):
        aggregate(name, [10.0], percentile)


def test_distinct_values_are_aggregated_once() -> None:
    assert aggregate("count", [1, 1.0, "1", None, None], is_distinct=True) == 2
    assert aggregate("collect", [[1], [1.0], {"a": None}, {"a": None}], is_distinct=True) == [[1], {"a": None}]
    assert aggregate("sum", [2, 2, 3], is_distinct=True) == 5


def test_count_of_rows_counts_nulls() -> None:
    accumulator = create_aggregate_accumulator("count")
    for _ in range(3):
        accumulator.add(())
    assert accumulator.result() == 3


@pytest.mark.parametrize("name", ["sum", "avg", "stdev", "stdevp"])
@pytest.mark.parametrize("value", ["a", True, [1], {}])
def test_only_numbers_are_added(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match="expects numbers"):
        aggregate(name, [1, value])


def test_an_integer_sum_reports_overflow() -> None:
    with pytest.raises(InvalidInput, match="overflow"):
        aggregate("sum", [2**63 - 1, 1])


def test_durations_are_added_and_averaged() -> None:
    items = [evaluate("duration('PT1H')"), None, evaluate("duration('PT2H')")]
    assert str(aggregate("sum", items)) == "PT3H"
    assert str(aggregate("avg", items)) == "PT1H30M"
    with pytest.raises(InvalidInput, match="numbers and durations"):
        aggregate("avg", [*items, 1])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("count(*) + sum(a)", 2),
        ("a + 1", 0),
        ("[x IN collect(a) | x]", 1),
        ("size(collect(a)) + toUpper(min(b))", 2),
        ("CASE WHEN max(a) > 1 THEN {k: avg(a)} END", 2),
        ("COUNT { MATCH (n) RETURN count(n) }", 0),
    ],
)
def test_aggregates_of_an_expression_are_found(text: str, count: int) -> None:
    assert len(list(find_outermost_aggregates(parse_expression(text)))) == count


@pytest.mark.parametrize("text", ["count()", "sum(1, 2)", "percentileCont(1)"])
def test_wrong_numbers_of_arguments_are_refused(text: str) -> None:
    call = parse_expression(text)
    assert isinstance(call, FunctionInvocation)
    with pytest.raises(InvalidInput, match=r"takes \d arguments?, not \d"):
        check_aggregate_argument_count(call)
