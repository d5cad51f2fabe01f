"""Arithmetic of openCypher: 64-bit integers that raise on overflow, and IEEE 754 floats."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, TypeGuard

from tests.cypher.reference.values import MAX_INTEGER, MIN_INTEGER, Bag, CypherError, is_number, type_name


def is_integer(value: Any) -> TypeGuard[int]:
    """Return whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def as_integer(value: int) -> int:
    """Return an integer within 64 bits. Raises CypherError for a larger one."""
    if not MIN_INTEGER <= value <= MAX_INTEGER:
        raise CypherError("integer overflow")
    return value


def add(left: Any, right: Any) -> Any:
    """Add numbers, or concatenate texts, lists, or a list and an element."""
    if left is None or right is None:
        return None
    match left, right:
        case (list(), _) | (_, list()):
            joined = [*_as_list(left), *_as_list(right)]
            return Bag(joined) if isinstance(left, Bag) or isinstance(right, Bag) else joined
        case str(), str():
            return left + right
        case (str(), _) | (_, str()) if is_number(left) or is_number(right):
            return "".join(each if isinstance(each, str) else number_text(each) for each in (left, right))
        case _:
            return _calculate("+", left, right)


def number_text(value: float) -> str:
    """Return a number as `toString` does: floats from 10⁷, and below 10⁻³, have an exponent."""
    if is_integer(value):
        return str(value)
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(repr(value)):f}"
    digits = Decimal(repr(value)).normalize().as_tuple()
    sign, figures = "-" * digits.sign, "".join(map(str, digits.digits))
    return f"{sign}{figures[0]}.{figures[1:] or '0'}E{len(figures) - 1 + int(digits.exponent)}"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def calculate(operator: str, left: Any, right: Any) -> Any:
    """Apply one of `+ - * / % ^`."""
    if operator == "+":
        return add(left, right)
    return None if left is None or right is None else _calculate(operator, left, right)


def negate(value: Any) -> Any:
    """Return the negated number."""
    if value is None:
        return None
    if not is_number(value):
        raise CypherError(f"- needs a number, not {type_name(value)}")
    return as_integer(-value) if is_integer(value) else -value


def power(base: float, exponent: float) -> float:
    """Return `base ^ exponent` as a float."""
    try:
        return math.pow(float(base), float(exponent))
    except OverflowError:
        return _infinity(base, exponent)
    except ValueError:
        return _infinity(base, exponent) if base == 0 else math.nan


def _infinity(base: float, exponent: float) -> float:
    """Return an infinity with the sign of the power; the sign of -0.0 counts."""
    return math.copysign(math.inf, base) if float(exponent) % 2 == 1 else math.inf


def _calculate(operator: str, left: Any, right: Any) -> Any:
    if not is_number(left) or not is_number(right):
        raise CypherError(f"{operator} cannot take {type_name(left)} and {type_name(right)}")
    if operator == "^":
        return power(left, right)
    if is_integer(left) and is_integer(right):
        return as_integer(_of_integers(operator, left, right))
    return _of_floats(operator, float(left), float(right))


def _of_integers(operator: str, left: int, right: int) -> int:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _ if right == 0:
            raise CypherError("division by zero")
        case "/":
            return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case _:
            return abs(left) % abs(right) * (-1 if left < 0 else 1)


def _of_floats(operator: str, left: float, right: float) -> float:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right == 0:
            is_undefined = left == 0 or math.isnan(left)
            return math.nan if is_undefined else math.copysign(math.inf, left) * math.copysign(1, right)
        case "/":
            return left / right
        case _:
            return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)
