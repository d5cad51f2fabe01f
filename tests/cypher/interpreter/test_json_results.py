"""Values and column types of statements in JSON answers."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.json_results import (
    convert_cypher_column_value_to_json,
    convert_cypher_value_to_json,
    infer_result_column_type,
)
from kgserve.errors import InvalidInput
from tests.cypher.interpreter.evaluate import evaluate
from tests.cypher.interpreter.memory_graph import MemoryGraph

GRAPH = MemoryGraph().add_node("a", "Task", size=1.5).add_node("b").add_relationship("a", "KNOWS", "b", since=2020)
NODE, OTHER = NodeReference(GRAPH, "a"), NodeReference(GRAPH, "b")
RELATIONSHIP = RelationshipReference(GRAPH, ("a", "b", "KNOWS"))
PATH = PathValue((NODE, OTHER), (RELATIONSHIP,))


def test_graph_elements_show_all_columns() -> None:
    node, relationship = convert_cypher_value_to_json(NODE), convert_cypher_value_to_json(RELATIONSHIP)
    assert node == GRAPH.node_columns("a")
    assert node["_label"] == "Entity"
    assert relationship == GRAPH.relationship_columns(("a", "b", "KNOWS"))
    assert convert_cypher_value_to_json(PATH) == {
        "nodes": [node, convert_cypher_value_to_json(OTHER)],
        "relations": [relationship],
    }


def test_temporal_values_are_strings() -> None:
    value = evaluate("[{a: [date('2015-W30')]}, duration('P1D'), 1, 1.5, true, null, 'x']")
    shown = [{"a": ["2015-07-20"]}, "P1D", 1, 1.5, True, None, "x"]
    assert msgspec.json.decode(msgspec.json.encode(convert_cypher_value_to_json(value))) == shown


def test_numbers_that_json_lacks_are_strings_in_columns_of_floats_only() -> None:
    numbers = (math.nan, math.inf, -math.inf, 1.5)
    assert [convert_cypher_column_value_to_json(each, "DOUBLE") for each in numbers] == [
        "NaN",
        "Infinity",
        "-Infinity",
        1.5,
    ]
    for value, type_ in ((math.nan, "ANY"), ([math.inf], "LIST"), ({"a": [math.nan]}, "MAP")):
        with pytest.raises(InvalidInput, match="use Bolt"):
            convert_cypher_column_value_to_json(value, type_)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "NULL"),
        ([None, None], "NULL"),
        ([None, 1], "INT64"),
        ([1, 1.5], "ANY"),
        ([True, 1], "ANY"),
        ([math.nan], "DOUBLE"),
        ([True], "BOOL"),
        (["a"], "STRING"),
        ([[1], ["a"]], "LIST"),
        ([{}], "MAP"),
        ([NODE, None, OTHER], "NODE"),
        ([RELATIONSHIP], "REL"),
        ([PATH], "RECURSIVE_REL"),
        ([evaluate("date()")], "DATE"),
        ([evaluate("datetime()")], "ZONED_DATETIME"),
        ([evaluate("localtime()")], "LOCAL_TIME"),
        ([evaluate("duration('P1D')")], "DURATION"),
        ([evaluate("date()"), evaluate("datetime()")], "ANY"),
    ],
)
def test_column_types(values: list[Any], expected: str) -> None:
    assert infer_result_column_type(values) == expected
