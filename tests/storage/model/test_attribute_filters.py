"""Equality of attribute values in filters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgserve.storage.model.attribute_filters import (
    build_attribute_filter_conditions,
    compute_node_attribute_digests,
    matches_attribute_conditions,
)

SAME: list[tuple[Any, Any]] = [
    ("a", "a"),
    ("", ""),
    ("é\0😀", "é\0😀"),
    (1, 1),
    (1, 1.0),
    (0, -0.0),
    (1e300, 1e300),
    (1 << 60, float(1 << 60)),
    (True, True),
    (None, None),
]
OTHERS: list[tuple[Any, Any]] = [
    ("a", "A"),
    ("1", 1),
    (True, 1),
    (False, 0),
    (None, ""),
    (None, False),
    (None, "null"),
    ((1 << 60) + 1, float(1 << 60)),
    (0.1, 0.10000000000000002),
    ("a", ["a"]),
    (None, []),
    (1, {"k": 1}),
]


@pytest.mark.parametrize(("wanted", "own", "same"), [(*p, True) for p in SAME] + [(*p, False) for p in OTHERS])
def test_equality_of_attribute_values(wanted: Any, own: Any, same: bool) -> None:
    attributes = json.dumps({"k": own, "other": {"k": wanted}})
    asked = build_attribute_filter_conditions({"k": wanted})
    assert matches_attribute_conditions(attributes, asked) is same
    assert (asked[0].digest in compute_node_attribute_digests(attributes)) is same


def test_all_conditions_must_match_and_keys_are_exact() -> None:
    assert matches_attribute_conditions('{"a":1,"b":null}', build_attribute_filter_conditions({"b": None, "a": 1}))
    assert not matches_attribute_conditions('{"a":1}', build_attribute_filter_conditions({"a": 1, "b": None}))
    assert not matches_attribute_conditions('{"a":1}', build_attribute_filter_conditions({"A": 1}))
    assert matches_attribute_conditions("{}", build_attribute_filter_conditions({}))
    assert matches_attribute_conditions("{}", build_attribute_filter_conditions(None))
    assert not compute_node_attribute_digests('{"ab":"c"}') & compute_node_attribute_digests('{"a":"bc"}')
