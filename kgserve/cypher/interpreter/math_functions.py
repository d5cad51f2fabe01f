"""Mathematical functions."""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter.arithmetic import require_int64
from kgserve.cypher.interpreter.scalar_function_definition import (
    INTEGER,
    NUMBER,
    STRING,
    ScalarFunction,
    index_functions_by_name,
)
from kgserve.errors import InvalidInput

_ROUNDING_MODES = {
    "UP": decimal.ROUND_UP,
    "DOWN": decimal.ROUND_DOWN,
    "CEILING": decimal.ROUND_CEILING,
    "FLOOR": decimal.ROUND_FLOOR,
    "HALF_UP": decimal.ROUND_HALF_UP,
    "HALF_DOWN": decimal.ROUND_HALF_DOWN,
    "HALF_EVEN": decimal.ROUND_HALF_EVEN,
}
_ROUNDING = decimal.Context(prec=800)
_MAX_PRECISION = 400


def _absolute(value: float) -> float:
    return require_int64(abs(value)) if type(value) is int else abs(value)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _to_whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """Return a rounding function whose results are floats, also of NaN and infinities."""
    return lambda value: float(function(value)) if math.isfinite(value) else float(value)


def _round_half_up(value: float) -> float:
    """Round to the nearest whole number, ties towards positive infinity."""
    if not math.isfinite(value):
        return float(value)
    below = math.floor(value)
    return float(below + 1 if value - below >= 0.5 else below)  # noqa: PLR2004


def _round(value: float, precision: int = 0, mode: str | None = None) -> float:
    if not precision and mode is None:
        return _round_half_up(value)
    if not 0 <= precision <= _MAX_PRECISION:
        raise InvalidInput(f"the precision of round() must be 0 to {_MAX_PRECISION}, not {precision}")
    rounding = _ROUNDING_MODES.get((mode or "HALF_UP").upper())
    if rounding is None:
        raise InvalidInput(f"round() has no mode {mode!r}; modes: {', '.join(_ROUNDING_MODES)}")
    if not math.isfinite(value):
        return float(value)
    step = decimal.Decimal(1).scaleb(-precision)
    return float(decimal.Decimal(repr(value)).quantize(step, rounding=rounding, context=_ROUNDING))


def _guard(function: Callable[..., float]) -> Callable[..., float]:
    """Return a function that is NaN outside its domain, and infinite where it overflows."""

    def run(*values: float) -> float:
        try:
            return function(*map(float, values))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return run


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda value: -math.inf if value == 0 else _guard(function)(value)


def _cotangent(value: float) -> float:
    tangent = math.tan(value)
    return 1 / tangent if tangent else math.copysign(math.inf, tangent)


def _haversine(value: float) -> float:
    return (1 - math.cos(value)) / 2


def _is_nan(value: float) -> bool:
    return math.isnan(value)


_OF_ONE_NUMBER: dict[str, Callable[[float], Any]] = {
    "abs": _absolute,
    "ceil": _to_whole(math.ceil),
    "ceiling": _to_whole(math.ceil),
    "floor": _to_whole(math.floor),
    "sign": _sign,
    "sqrt": _guard(math.sqrt),
    "exp": _guard(math.exp),
    "log": _logarithm(math.log),
    "log10": _logarithm(math.log10),
    "sin": _guard(math.sin),
    "cos": _guard(math.cos),
    "tan": _guard(math.tan),
    "cot": _guard(_cotangent),
    "asin": _guard(math.asin),
    "acos": _guard(math.acos),
    "atan": _guard(math.atan),
    "degrees": _guard(math.degrees),
    "radians": _guard(math.radians),
    "haversin": _guard(_haversine),
    "isNaN": _is_nan,
}

MATH_FUNCTIONS = index_functions_by_name(
    [
        *(ScalarFunction(name, run, (NUMBER,), 1) for name, run in _OF_ONE_NUMBER.items()),
        ScalarFunction("atan2", _guard(math.atan2), (NUMBER, NUMBER), 2),
        ScalarFunction("round", _round, (NUMBER, INTEGER, STRING), 1),
        ScalarFunction("e", lambda: math.e),
        ScalarFunction("pi", lambda: math.pi),
        ScalarFunction("rand", random.random, is_volatile=True),
    ]
)
