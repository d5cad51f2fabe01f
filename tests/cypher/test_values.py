from __future__ import annotations

from typing import Any

import pytest

from kgserve.cypher.guard import prepare_cypher_parameters
from kgserve.errors import InvalidInput


@pytest.mark.parametrize(
    ("value", "ready"),
    [
        (None, None),
        ([], []),
        (-(2**63), -(2**63)),
        ("a\0b", "a\0b"),
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([{"a": 1, "b": "x"}, {"b": "y", "a": 2}], [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ([{"a": 1}, {"b": "y"}], [{"a": 1, "b": None}, {"a": None, "b": "y"}]),
        ([{"a": 1}, {"a": 1.5}], [{"a": 1.0}, {"a": 1.5}]),
        ([[1], [], [2.5]], [[1.0], [], [2.5]]),
    ],
)
def test_parameter_values_are_converted_for_the_engine(value: Any, ready: Any) -> None:
    result = prepare_cypher_parameters({"v": value})["v"]
    assert result == ready
    if isinstance(ready, list) and ready and isinstance(ready[0], dict):
        assert [list(item) for item in result] == [list(ready[0])] * len(ready)


def nested(depth: int) -> Any:
    return [1] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (2**63, "params.v"),
        (10**400, "params.v"),
        ([1, 2**70], "params.v[1]"),
        ([0.5, 2**53 + 1], "params.v[1]"),
        ({"a": {"b": 2**70}}, "params.v.a.b"),
        ("\ud800", "params.v"),
        (float("nan"), "params.v"),
        ([1, "a"], "params.v"),
        ([True, 1], "params.v"),
        ([None], "params.v"),
        ([[]], "params.v"),
        ({}, "params.v"),
        ({"a": None}, "params.v.a"),
        ({"a": []}, "params.v.a"),
        ([{"a": 1}, None], "params.v[1]"),
        ([{"a": {"b": 1}}, {"a": None}], "params.v[].a[1]"),
        ({"key": [1], "value": [1]}, "params.v"),
        ({"a": 1, "A": 2}, "params.v"),
        (nested(40), "params.v" + "[0]" * 33),
        ("a" * (1 << 20), "params"),
        (object(), "params.v"),
    ],
)
def test_unsupported_parameter_values_are_rejected_with_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        prepare_cypher_parameters({"v": value})
    assert caught.value.errors[0].path == path
