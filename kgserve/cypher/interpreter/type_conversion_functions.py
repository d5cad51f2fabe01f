"""Functions that convert values to other types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.arithmetic import MAX_INTEGER, MIN_INTEGER, to_cypher_string
from kgserve.cypher.interpreter.scalar_function_definition import ANY, LIST, ScalarFunction, index_functions_by_name
from kgserve.cypher.interpreter.value_comparison import describe_value
from kgserve.errors import InvalidInput

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:NaN|Infinity)")


def _to_string(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str | bool | int | float) or temporal_functions.is_temporal_value(value):
        return to_cypher_string(value)
    raise InvalidInput(f"toString() expects a string, number, boolean or temporal value, not {describe_value(value)}")


def _to_boolean(value: Any) -> bool | None:
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value != 0
    if type(value) is str:
        return {"true": True, "false": False}.get(value.strip().lower())
    raise InvalidInput(f"toBoolean() expects a string, integer or boolean, not {describe_value(value)}")


def _to_integer(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    if type(value) is bool:
        return int(value)
    if type(value) is float:
        return _truncate(value)
    if type(value) is not str:
        raise InvalidInput(f"toInteger() expects a string, number or boolean, not {describe_value(value)}")
    text = value.strip()
    if _INTEGER.fullmatch(text):
        return _check_range(int(text)) if len(text) <= len(str(MIN_INTEGER)) else _check_range(_parse_long(text))
    return _truncate(float(text)) if _FLOAT.fullmatch(text) else None


def _parse_long(text: str) -> int:
    """Return a number of many digits, or one out of range: Python refuses to parse texts of thousands of digits."""
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > len(str(MAX_INTEGER)):
        return MAX_INTEGER + 1
    return int(f"{'-' if text.startswith('-') else ''}{digits or 0}")


def _truncate(value: float) -> int:
    if not math.isfinite(value):
        raise InvalidInput(f"toInteger() cannot convert {to_cypher_string(value)}")
    return _check_range(math.trunc(value))


def _check_range(value: int) -> int:
    if MIN_INTEGER <= value <= MAX_INTEGER:
        return value
    raise InvalidInput("integer overflow: the result of toInteger() does not fit into 64 bits")


def _to_float(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is not str:
        raise InvalidInput(f"toFloat() expects a string or number, not {describe_value(value)}")
    text = value.strip()
    return float(text) if _FLOAT.fullmatch(text) else None


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion whose result is null where the value is unsuitable."""

    def run(value: Any) -> Any:
        try:
            return convert(value)
        except InvalidInput:
            return None

    return run


def _each(convert: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """Return a conversion of the elements of a list; unsuitable elements become null."""
    convert_element = _or_null(convert)
    return lambda items: [convert_element(each) for each in items]


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "toString": _to_string,
    "toBoolean": _to_boolean,
    "toInteger": _to_integer,
    "toFloat": _to_float,
}

CONVERSION_FUNCTIONS = index_functions_by_name(
    [
        *(ScalarFunction(name, convert, (ANY,), 1) for name, convert in _CONVERSIONS.items()),
        *(ScalarFunction(f"{name}OrNull", _or_null(convert), (ANY,), 1) for name, convert in _CONVERSIONS.items()),
        *(ScalarFunction(f"{name}List", _each(convert), (LIST,), 1) for name, convert in _CONVERSIONS.items()),
    ]
)
