"""Arithmetic of openCypher: 64-bit integers that report overflow, IEEE floats, lists, strings and temporal values.

All functions return null if an operand is null, and raise InvalidInput for unsuitable operands.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.value_comparison import describe_value
from kgserve.errors import InvalidInput, TooLarge
from kgserve.platform.json_values import name_non_finite_float

MAX_INTEGER = 2**63 - 1
MIN_INTEGER = -(2**63)
MAX_LIST_ELEMENTS = 2_000_000
MAX_TEXT_CHARACTERS = 16 * 1024 * 1024
_MIN_PLAIN_FLOAT = 1e-3
_MAX_PLAIN_FLOAT = 1e7


def require_int64(value: int) -> int:
    """Return an integer that fits into 64 bits. Raises InvalidInput on overflow."""
    if MIN_INTEGER <= value <= MAX_INTEGER:
        return value
    raise InvalidInput("integer overflow: the result does not fit into 64 bits; use toFloat() on an operand")


def add_or_concatenate(a: Any, b: Any) -> Any:  # noqa: PLR0911 - one for each combination
    """Return ``a + b``: the sum of numbers or temporal values, or the concatenation of lists or strings."""
    kind_a, kind_b = type(a), type(b)
    if kind_a is int and kind_b is int:
        return require_int64(a + b)
    if a is None or b is None:
        return None
    if kind_a is list or kind_b is list:
        return _concatenate_lists(a if kind_a is list else [a], b if kind_b is list else [b])
    if kind_a is str and kind_b is str:
        return _concatenate_texts(a, b)
    if _is_number(a) and _is_number(b):
        return a + b
    if kind_a is str and _is_number(b):
        return _concatenate_texts(a, to_cypher_string(b))
    if kind_b is str and _is_number(a):
        return _concatenate_texts(to_cypher_string(a), b)
    if temporal_functions.is_temporal_value(a) and temporal_functions.is_temporal_value(b):
        return temporal_functions.add_duration(a, b)
    raise _unsuitable("+", a, b)


def _concatenate_lists(a: list[Any], b: list[Any]) -> list[Any]:
    if len(a) + len(b) > MAX_LIST_ELEMENTS:
        raise TooLarge(f"a list would have more than {MAX_LIST_ELEMENTS} elements; filter earlier, or use UNWIND")
    return [*a, *b]


def _concatenate_texts(a: str, b: str) -> str:
    if len(a) + len(b) > MAX_TEXT_CHARACTERS:
        raise TooLarge(f"a string would have more than {MAX_TEXT_CHARACTERS} characters")
    return a + b


def subtract_cypher_values(a: Any, b: Any) -> Any:
    """Return ``a - b``."""
    if type(a) is int and type(b) is int:
        return require_int64(a - b)
    if a is None or b is None:
        return None
    if _is_number(a) and _is_number(b):
        return a - b
    if temporal_functions.is_temporal_value(a) and temporal_functions.is_temporal_value(b):
        return temporal_functions.subtract_duration(a, b)
    raise _unsuitable("-", a, b)


def multiply_cypher_values(a: Any, b: Any) -> Any:
    """Return ``a * b``."""
    if type(a) is int and type(b) is int:
        return require_int64(a * b)
    if a is None or b is None:
        return None
    if _is_number(a) and _is_number(b):
        return a * b
    if temporal_functions.is_temporal_value(a) and _is_number(b):
        return temporal_functions.multiply_duration(a, b)
    if temporal_functions.is_temporal_value(b) and _is_number(a):
        return temporal_functions.multiply_duration(b, a)
    raise _unsuitable("*", a, b)


def divide_cypher_values(a: Any, b: Any) -> Any:
    """Return ``a / b``; of integers, truncated towards zero."""
    if a is None or b is None:
        return None
    if type(a) is int and type(b) is int:
        return _divide_integers(a, b)
    if _is_number(a) and _is_number(b):
        return a / b if b != 0 else _divide_by_zero(a, b)
    if temporal_functions.is_temporal_value(a) and _is_number(b):
        return temporal_functions.divide_duration(a, b)
    raise _unsuitable("/", a, b)


def _divide_integers(a: int, b: int) -> int:
    if b == 0:
        raise InvalidInput("division by zero; test the divisor first, for example with CASE")
    quotient = abs(a) // abs(b)
    return require_int64(quotient if (a < 0) == (b < 0) else -quotient)


def _divide_by_zero(a: float, b: float) -> float:
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def take_remainder(a: Any, b: Any) -> Any:
    """Return ``a % b``, with the sign of ``a``."""
    if a is None or b is None:
        return None
    if type(a) is int and type(b) is int:
        return a - b * _divide_integers(a, b) if b != -1 else 0
    if _is_number(a) and _is_number(b):
        return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)
    raise _unsuitable("%", a, b)


def raise_to_power(a: Any, b: Any) -> float | None:
    """Return ``a ^ b``, always a float."""
    if a is None or b is None:
        return None
    if not (_is_number(a) and _is_number(b)):
        raise _unsuitable("^", a, b)
    base, exponent = float(a), float(b)
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        if base == 0:
            return -math.inf if math.copysign(1.0, base) < 0 and exponent % 2 == 1 else math.inf
        return math.nan


def negate_cypher_value(a: Any) -> Any:
    """Return ``-a``."""
    if a is None:
        return None
    if type(a) is int:
        return require_int64(-a)
    if type(a) is float:
        return -a
    if temporal_functions.is_temporal_value(a):
        return temporal_functions.multiply_duration(a, -1)
    raise InvalidInput(f"- expects a number, not {describe_value(a)}")


def apply_unary_plus(a: Any) -> Any:
    """Return ``+a``. Raises InvalidInput unless it is a number."""
    if a is None or _is_number(a):
        return a
    raise InvalidInput(f"+ expects a number, not {describe_value(a)}")


def to_cypher_string(value: Any) -> str:
    """Return a number, boolean, string or temporal value as ``toString()`` prints it."""
    if type(value) is bool:
        return "true" if value else "false"
    return _float_text(value) if type(value) is float else str(value)


def _float_text(value: float) -> str:
    """Return the shortest decimal form that Java prints: ``1.0E7`` from ten million on and below a thousandth."""
    if not math.isfinite(value):
        return name_non_finite_float(value)
    if value == 0 or _MIN_PLAIN_FLOAT <= abs(value) < _MAX_PLAIN_FLOAT:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    power = len(digits) - 1 + int(exponent)
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{fraction}E{power}"


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind is int or kind is float


def _unsuitable(operator: str, a: Any, b: Any) -> InvalidInput:
    hint = "; use toString()" if operator == "+" and str in {type(a), type(b)} else ""
    return InvalidInput(f"{operator} cannot combine {describe_value(a)} and {describe_value(b)}{hint}")
