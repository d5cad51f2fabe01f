"""JSON values: comparison without Python's equality, for which true, 1 and 1.0 are the same, and missing floats."""

from __future__ import annotations

import math
from typing import Any, cast

_EXACT_TYPES = frozenset({str, int, bool, type(None)})


def name_non_finite_float(value: float) -> str:
    """Return the text for a float that JSON lacks: ``NaN``, ``Infinity`` or ``-Infinity``."""
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def is_same_json_value(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON text, in any order of keys.

    true, 1 and 1.0 differ, and so do 0.0 and -0.0. Values that JSON lacks, such as times, need equal types and texts.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        mine, others = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return mine.keys() == others.keys() and all(is_same_json_value(mine[name], others[name]) for name in mine)
    if kind is list:
        return len(one) == len(other) and all(map(is_same_json_value, one, other))
    return bool(one == other) and (kind in _EXACT_TYPES or str(one) == str(other))
