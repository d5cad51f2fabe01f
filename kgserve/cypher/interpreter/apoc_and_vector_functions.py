"""Cypher functions beyond openCypher that clients of Neo4j call: those of APOC, and vector similarities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter.graph_view_interface import NodeReference, RelationshipReference
from kgserve.cypher.interpreter.scalar_function_definition import (
    LIST,
    MAP,
    NODE,
    RELATIONSHIP,
    STRING,
    ScalarFunction,
    index_functions_by_name,
)
from kgserve.cypher.interpreter.value_comparison import get_cypher_value_properties, value_equivalence_key
from kgserve.errors import InvalidInput


def _clean_map(values: dict[str, Any], names: list[Any], unwanted: list[Any]) -> dict[str, Any]:
    """Return a map without some keys, without some values, and without null."""
    without = {value_equivalence_key(each) for each in unwanted}
    dropped = {each for each in names if isinstance(each, str)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and name not in dropped and value_equivalence_key(value) not in without
    }


def _read_property(source: NodeReference | RelationshipReference | dict[str, Any], name: str) -> Any:
    return (get_cypher_value_properties(source) or {}).get(name)


def _read_vectors(first: list[Any], second: list[Any]) -> tuple[list[float], list[float]]:
    for vector in (first, second):
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in vector):
            raise InvalidInput("a vector must be a list of numbers")
    if len(first) != len(second) or not first:
        raise InvalidInput(f"vectors must have equally many numbers, not {len(first)} and {len(second)}")
    return first, second


def _cosine_similarity(first: list[Any], second: list[Any]) -> float:
    """Return the cosine of the angle between two vectors, from 0 for opposite ones to 1."""
    a, b = _read_vectors(first, second)
    norm = math.hypot(*a) * math.hypot(*b)
    if norm == 0 or not math.isfinite(norm):
        raise InvalidInput("a vector must have a length that is finite and not 0")
    return (1 + max(-1.0, min(1.0, sum(x * y for x, y in zip(a, b, strict=True)) / norm))) / 2


def _euclidean_similarity(first: list[Any], second: list[Any]) -> float:
    """Return 1 / (1 + d²) for the distance d of two vectors."""
    return 1 / (1 + math.dist(*_read_vectors(first, second)) ** 2)


def _vector_function(name: str, run: Callable[[list[Any], list[Any]], float]) -> ScalarFunction:
    return ScalarFunction(f"vector.similarity.{name}", run, (LIST, LIST), 2)


CLIENT_FUNCTIONS = index_functions_by_name(
    [
        ScalarFunction("apoc.map.clean", _clean_map, (MAP, LIST, LIST), 3),
        ScalarFunction("apoc.any.property", _read_property, (NODE | RELATIONSHIP | MAP, STRING), 2),
        _vector_function("cosine", _cosine_similarity),
        _vector_function("euclidean", _euclidean_similarity),
    ]
)
