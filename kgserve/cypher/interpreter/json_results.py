"""Results of statements as JSON answers show them: values, and the types of columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.stored_temporal_values import format_temporal_attributes_as_iso
from kgserve.errors import InvalidInput
from kgserve.platform.json_values import name_non_finite_float

ANY_COLUMN = "ANY"
NULL_COLUMN = "NULL"
_COLUMN_TYPES: dict[type[Any], str] = {
    NodeReference: "NODE",
    RelationshipReference: "REL",
    PathValue: "RECURSIVE_REL",
    str: "STRING",
    int: "INT64",
    float: "DOUBLE",
    bool: "BOOL",
    list: "LIST",
    dict: "MAP",
}


def convert_cypher_value_to_json(value: Any) -> Any:
    """Return a run-time value as JSON.

    Nodes and relationships are objects of all their columns, a path is ``{"nodes": [...], "relations": [...]}``, and
    temporal values are ISO texts. Raises InvalidInput for NaN and infinite numbers, which JSON lacks.
    """
    converter = _CONVERTERS.get(type(value))
    if converter is not None:
        return converter(value)
    return str(value) if temporal_functions.is_temporal_value(value) else value


def convert_cypher_column_value_to_json(value: Any, type_: str) -> Any:
    """Return the value of a column of a type as JSON.

    In a column of floats, those that JSON lacks are the strings ``NaN``, ``Infinity`` and ``-Infinity``. Raises
    InvalidInput where they could be taken for texts.
    """
    if type_ == _COLUMN_TYPES[float] and isinstance(value, float) and not math.isfinite(value):
        return name_non_finite_float(value)
    return convert_cypher_value_to_json(value)


def infer_result_column_type(values: Iterable[Any]) -> str:
    """Return the type of a column's values: ``NULL`` if all are null, ``ANY`` if types are mixed."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        return ANY_COLUMN
    return next((_name_type(kind) for kind in kinds), NULL_COLUMN)


def _name_type(kind: type[Any]) -> str:
    return _COLUMN_TYPES.get(kind) or temporal_functions.COLUMN_TYPES.get(kind, ANY_COLUMN).replace(" ", "_")


def _convert_float(value: float) -> float:
    if math.isfinite(value):
        return value
    raise InvalidInput(
        "the result has NaN or an infinite number next to other values, and JSON would not tell it from a text; "
        "return toString(x), or use Bolt"
    )


def _convert_node(node: NodeReference) -> dict[str, Any]:
    return _convert_columns(node.graph.node_columns(node.id))


def _convert_relationship(relationship: RelationshipReference) -> dict[str, Any]:
    return _convert_columns(relationship.graph.relationship_columns(relationship.key))


def _convert_columns(columns: dict[str, Any]) -> dict[str, Any]:
    attributes = columns.get("attributes")
    if isinstance(attributes, str):
        columns = {**columns, "attributes": format_temporal_attributes_as_iso(attributes)}
    return _convert_map(columns)


def _convert_path(path: PathValue) -> dict[str, Any]:
    return {
        "nodes": [_convert_node(node) for node in path.nodes],
        "relations": [_convert_relationship(relationship) for relationship in path.relationships],
    }


def _convert_list(values: list[Any]) -> list[Any]:
    return [convert_cypher_value_to_json(value) for value in values]


def _convert_map(values: dict[str, Any]) -> dict[str, Any]:
    return {name: convert_cypher_value_to_json(value) for name, value in values.items()}


_CONVERTERS: dict[type[Any], Callable[[Any], Any]] = {
    NodeReference: _convert_node,
    RelationshipReference: _convert_relationship,
    PathValue: _convert_path,
    float: _convert_float,
    list: _convert_list,
    dict: _convert_map,
}
