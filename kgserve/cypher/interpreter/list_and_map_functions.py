"""Functions of lists, maps and values of any type."""

from __future__ import annotations

from typing import Any, cast

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.scalar_function_definition import (
    ANY,
    INTEGER,
    LIST,
    MAP,
    STRING,
    ScalarFunction,
    index_functions_by_name,
)
from kgserve.cypher.interpreter.value_comparison import are_values_equal
from kgserve.errors import InvalidInput

MAX_RANGE_ELEMENTS = 1_000_000
_VALUE_TYPES: dict[type, str] = {
    bool: "BOOLEAN",
    int: "INTEGER",
    float: "FLOAT",
    str: "STRING",
    dict: "MAP",
    NodeReference: "NODE",
    RelationshipReference: "RELATIONSHIP",
    PathValue: "PATH",
}


def _first(items: list[Any]) -> Any:
    return items[0] if items else None


def _last(items: list[Any]) -> Any:
    return items[-1] if items else None


def _tail(items: list[Any]) -> list[Any]:
    return items[1:]


def _reverse(value: list[Any] | str) -> list[Any] | str:
    return value[::-1]


def _size(value: list[Any] | str) -> int:
    return len(value)


def _is_empty(value: list[Any] | str | dict[str, Any]) -> bool:
    return not value


def _range(first: int, last: int, step: int = 1) -> list[int]:
    if step == 0:
        raise InvalidInput("the step of range() must not be 0")
    numbers = range(first, last + (1 if step > 0 else -1), step)
    count = max((last - first) // step + 1, 0)
    if count > MAX_RANGE_ELEMENTS:
        raise InvalidInput(f"range() would have {count} elements; at most {MAX_RANGE_ELEMENTS} are supported")
    return list(numbers)


def _null_if(first: Any, second: Any) -> Any:
    return None if are_values_equal(first, second) is True else first


def _name_type(value: Any) -> str:
    """Return the type of a value as GQL writes it."""
    if value is None:
        return "NULL"
    if type(value) is list:
        names = sorted({_name_type(each) for each in cast("list[Any]", value)})
        return f"LIST<{' | '.join(names) or 'NOTHING'}> NOT NULL"
    name = _VALUE_TYPES.get(type(value)) or temporal_functions.temporal_type_name(value)
    return f"{name} NOT NULL"


LIST_FUNCTIONS = index_functions_by_name(
    [
        ScalarFunction("size", _size, (LIST | STRING,), 1),
        ScalarFunction("head", _first, (LIST,), 1),
        ScalarFunction("last", _last, (LIST,), 1),
        ScalarFunction("tail", _tail, (LIST,), 1),
        ScalarFunction("reverse", _reverse, (LIST | STRING,), 1),
        ScalarFunction("range", _range, (INTEGER, INTEGER, INTEGER), 2),
        ScalarFunction("isEmpty", _is_empty, (LIST | STRING | MAP,), 1),
        ScalarFunction("nullIf", _null_if, (ANY, ANY), 2, takes_null=True),
        ScalarFunction("valueType", _name_type, (ANY,), 1, takes_null=True),
    ]
)
