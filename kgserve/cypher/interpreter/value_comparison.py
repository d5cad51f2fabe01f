"""Comparison of values at run time: three-valued logic, equality, equivalence, order and property access.

Functions raise InvalidInput without a place; the expression compiler adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import ge, gt, le, lt
from typing import Any, cast

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL, NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.marker_labels import is_marker_label, remove_marker_label_properties
from kgserve.errors import InvalidInput

_SCALARS = frozenset({str, int, bool, float})
_NUMBERS = frozenset({int, float})
_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "a list",
    dict: "a map",
    NodeReference: "a node",
    RelationshipReference: "a relationship",
    PathValue: "a path",
}
ORDER_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_WITH_PROPERTIES = frozenset({dict, NodeReference, RelationshipReference})
_MAX_SHOWN_CHARACTERS = 40
# Python takes them for false and true.
_TRUTH_NUMBERS = (0, 1)
_NAN_KEY = ("nan",)


def describe_value_type(value: Any) -> str:
    """Return the type of a value with its article: ``a string``."""
    return _TYPE_NAMES.get(type(value)) or f"a {temporal_functions.temporal_type_name(value).lower()}"


def describe_value(value: Any) -> str:
    """Describe a value by its type, and the value itself if it is short: ``a string ('abc')``."""
    kind = describe_value_type(value)
    if type(value) not in _SCALARS:
        return kind
    shown = str(value).lower() if type(value) is bool else repr(value)
    return f"{kind} ({shown})" if len(shown) <= _MAX_SHOWN_CHARACTERS else kind


def is_number(value: Any) -> bool:
    """Return whether a value is an integer or a float."""
    return type(value) in _NUMBERS


# Equality


def are_values_equal(a: Any, b: Any) -> bool | None:  # noqa: PLR0911 - one for each type
    """Return whether two values are equal; None if that is unknown."""
    if a is None or b is None:
        return None
    kind_a, kind_b = type(a), type(b)
    if kind_a is kind_b:
        if kind_a in _SCALARS:
            return a == b
        if kind_a is list:
            return _lists_equal(a, b)
        if kind_a is dict:
            return _maps_equal(a, b)
        return bool(a == b)
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        return a == b
    return False


def _lists_equal(a: list[Any], b: list[Any]) -> bool | None:
    if len(a) != len(b):
        return False
    result: bool | None = True
    for left, right in zip(a, b, strict=True):
        equal = are_values_equal(left, right)
        if equal is False:
            return False
        if equal is None:
            result = None
    return result


def _maps_equal(a: dict[str, Any], b: dict[str, Any]) -> bool | None:
    if a.keys() != b.keys():
        return False
    return _lists_equal(list(a.values()), [b[key] for key in a])


def is_in_list(items: Any, value: Any) -> bool | None:
    """Return whether a list has an element equal to a value (``IN``); None if that is unknown."""
    if items is None:
        return None
    if type(items) is not list:
        raise InvalidInput(f"IN expects a list on its right side, not {describe_value(items)}")
    kind = type(value)
    if kind is str or kind is NodeReference or (kind in _NUMBERS and value not in _TRUTH_NUMBERS and value == value):  # noqa: PLR0124
        return True if value in items else None if None in items else False
    result: bool | None = False
    for each in cast("list[Any]", items):
        equal = are_values_equal(value, each)
        if equal is True:
            return True
        if equal is None:
            result = None
    return result


def value_equivalence_key(value: Any) -> Hashable:
    """Return a key that values share if DISTINCT, grouping and UNION treat them as the same."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return cast("Hashable", value)
    if kind is bool:
        return ("boolean", value)
    if kind is float:
        return _NAN_KEY if value != value else value  # noqa: PLR0124
    if kind is list:
        return ("list", *map(value_equivalence_key, value))
    if kind is dict:
        return ("map", frozenset((key, value_equivalence_key(each)) for key, each in value.items()))
    return cast("Hashable", value)


# Order


def evaluate_cypher_ordering_comparison(a: Any, b: Any, operator: str) -> bool | None:
    """Return the result of ``<``, ``<=``, ``>`` or ``>=``; None if the values are not comparable."""
    if a is None or b is None:
        return None
    kind_a, kind_b = type(a), type(b)
    if kind_a in _NUMBERS and kind_b in _NUMBERS:
        return ORDER_OPERATORS[operator](a, b)
    if kind_a is list and kind_b is list:
        return _compare_lists(a, b, operator)
    if kind_a is kind_b and (kind_a is str or kind_a is bool):
        return ORDER_OPERATORS[operator](a, b)
    if temporal_functions.is_temporal_value(a) and temporal_functions.is_temporal_value(b):
        order = temporal_functions.compare_temporal_values(a, b)
        return None if order is None else ORDER_OPERATORS[operator](order, 0)
    return None


def _compare_lists(a: list[Any], b: list[Any], operator: str) -> bool | None:
    for left, right in zip(a, b, strict=False):
        equal = are_values_equal(left, right)
        if equal is None:
            return None
        if not equal:
            return evaluate_cypher_ordering_comparison(left, right, operator[0])
    return ORDER_OPERATORS[operator](len(a), len(b))


def build_order_by_sort_key(value: Any) -> tuple[Any, ...]:
    """Return a key of the total order of ORDER BY over values of all types, ascending; null is last."""
    kind = type(value)
    if kind is str:
        return (6, value)
    if kind is int:
        return (8, value)
    if value is None:
        return (10,)
    if kind is float:
        return (8, value) if value == value else (9,)  # noqa: PLR0124
    return (
        _SORT_KEYS[kind](value)
        if kind in _SORT_KEYS
        else (5, temporal_functions.temporal_type_sort_rank(value), temporal_functions.temporal_sort_key(value))
    )


def _map_sort_key(value: dict[str, Any]) -> tuple[Any, ...]:
    entries = sorted(value.items(), key=_first)
    return (
        0,
        len(entries),
        tuple(name for name, _ in entries),
        tuple(build_order_by_sort_key(each) for _, each in entries),
    )


def _first(entry: tuple[str, Any]) -> str:
    return entry[0]


def _path_sort_key(value: PathValue) -> tuple[Any, ...]:
    return (4, tuple(each.id for each in value.nodes), tuple(each.key for each in value.relationships))


_SORT_KEYS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    dict: _map_sort_key,
    NodeReference: lambda value: (1, value.id),
    RelationshipReference: lambda value: (2, value.key),
    list: lambda value: (3, tuple(map(build_order_by_sort_key, value))),
    PathValue: _path_sort_key,
    bool: lambda value: (7, value),
}


# Properties and elements


def get_cypher_value_property(value: Any, name: str) -> Any:
    """Return ``value.name``; null for null. Raises InvalidInput for values without properties."""
    kind = type(value)
    if kind is NodeReference:
        return value.graph.node_property(value.id, name)
    if kind is dict:
        return value.get(name)
    if value is None:
        return None
    if kind is RelationshipReference:
        return value.graph.relationship_property(value.key, name)
    if temporal_functions.is_temporal_value(value):
        return temporal_functions.get_temporal_component(value, name)
    raise InvalidInput(f"{describe_value(value)} has no properties; .{name} needs a node, relationship or map")


def get_cypher_value_properties(value: Any) -> dict[str, Any] | None:
    """Return all properties of a node, relationship or map; null for null. Raises InvalidInput."""
    match value:
        case None:
            return None
        case NodeReference():
            return remove_marker_label_properties(value.graph.node_properties(value.id))
        case RelationshipReference():
            return value.graph.relationship_properties(value.key)
        case dict():
            return cast("dict[str, Any]", value)
        case _:
            raise InvalidInput(f"properties belong to nodes, relationships and maps, not to {describe_value(value)}")


def get_subscript_value(subject: Any, index: Any) -> Any:
    """Return the value of a subscript, ``subject[index]``; null outside a list. Raises InvalidInput."""
    if subject is None or index is None:
        return None
    if type(subject) is list:
        if type(index) is not int:
            raise InvalidInput(f"the index of a list must be an integer, not {describe_value(index)}")
        return subject[index] if -len(subject) <= index < len(subject) else None
    if type(subject) not in _WITH_PROPERTIES and not temporal_functions.is_temporal_value(subject):
        raise InvalidInput(f"{describe_value(subject)} has no elements; [] needs a list, map, node or relationship")
    if type(index) is not str:
        raise InvalidInput(f"the key of {describe_value_type(subject)} must be a string, not {describe_value(index)}")
    return get_cypher_value_property(subject, index)


def get_list_slice(subject: Any, first: Any, last: Any) -> list[Any] | None:
    """Return a slice of a list, ``subject[first..last]``; null if an argument is null. Raises InvalidInput."""
    if subject is None or first is None or last is None:
        return None
    if type(subject) is not list:
        raise InvalidInput(f"only lists have slices, not {describe_value(subject)}")
    for each in (first, last):
        if type(each) is not int:
            raise InvalidInput(f"the bounds of a slice must be integers, not {describe_value(each)}")
    return cast("list[Any]", subject)[first:last]


def has_labels(value: Any, labels: frozenset[str], *, is_any: bool) -> bool | None:
    """Return whether a node has all of some labels, or any of them; for a relationship, whether they are its type."""
    match value:
        case None:
            return None
        case NodeReference():
            label = value.graph.node_label(value.id)
            if label is None:
                raise InvalidInput(f"node {value.id!r} was deleted; its labels cannot be read")
            if any(map(is_marker_label, labels)):
                found = (
                    value.graph.node_property(value.id, each) is True if is_marker_label(each) else each == label
                    for each in labels - {NO_LABEL}
                )
                return any(found) if is_any else all(found)
        case RelationshipReference():
            label = value.key[2]
        case _:
            raise InvalidInput(f"only nodes and relationships have labels, not {describe_value(value)}")
    return label in labels and label != NO_LABEL and (is_any or len(labels) == 1)


# Strings


def evaluate_starts_with_operator(value: Any, prefix: Any) -> bool | None:
    """Return whether a string begins with another; null if one of them is no string."""
    return value.startswith(prefix) if type(value) is str and type(prefix) is str else None


def evaluate_ends_with_operator(value: Any, suffix: Any) -> bool | None:
    """Return whether a string ends with another; null if one of them is no string."""
    return value.endswith(suffix) if type(value) is str and type(suffix) is str else None


def evaluate_contains_operator(value: Any, part: Any) -> bool | None:
    """Return whether a string contains another; null if one of them is no string."""
    return part in value if type(value) is str and type(part) is str else None
