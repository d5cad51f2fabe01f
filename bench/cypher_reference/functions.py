"""Functions by name in lower case: those of openCypher, and those of the engines as their documentation has them.

openCypher counts from 0; the engines' own functions, such as `list_extract`, count from 1.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

from bench.cypher_reference.arithmetic import as_integer, is_integer, negate, power
from bench.cypher_reference.times import date_part, read_timestamp
from bench.cypher_reference.values import (
    Bag,
    CypherError,
    Node,
    Path,
    Relationship,
    Timestamp,
    UnmodelledFeature,
    Zero,
    compare,
    contains,
    group_key,
    is_number,
    order_key,
    type_name,
)

Function = Callable[..., Any]
MAX_COUNT = 20_000
MAX_DIGITS = 9


def call(name: str, arguments: list[Any]) -> Any:
    """Return what a function gives; null for a null argument unless the function knows what to do with it."""
    lowered = name.lower()
    function = STRICT.get(lowered) or WITH_NULLS.get(lowered)
    if function is None:
        raise UnmodelledFeature(f"there is no function {name}")
    if lowered in OF_ORDER and any(isinstance(each, Bag) and len(each) > 1 for each in arguments):
        raise UnmodelledFeature("the order of a list is open")
    try:
        found = None if lowered in STRICT and any(each is None for each in arguments) else function(*arguments)
    except (TypeError, re.error) as error:
        raise CypherError(f"{name}: {error}") from None
    except (OverflowError, ValueError, MemoryError) as error:
        raise UnmodelledFeature(f"{name}: {error}") from None
    has_order = not any(isinstance(each, Bag) for each in arguments)
    return found if has_order or not isinstance(found, list) else Bag(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CypherError(f"a text is needed, not {type_name(value)}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CypherError(f"a list is needed, not {type_name(value)}")
    return value


def _number(value: Any) -> Any:
    if not is_number(value):
        raise CypherError(f"a number is needed, not {type_name(value)}")
    return value


def _whole(value: Any) -> int:
    if not is_integer(value):
        raise CypherError(f"an integer is needed, not {type_name(value)}")
    return value


def _of_text(function: Callable[[str], Any]) -> Function:
    return lambda value: function(_text(value))


def _of_list(function: Callable[[list[Any]], Any]) -> Function:
    return lambda value: function(_list(value))


def _of_float(function: Callable[[float], float]) -> Function:
    """A function of a float; NaN where it is not defined."""

    def evaluate(value: Any) -> float:
        try:
            return float(function(float(_number(value))))
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return evaluate


def _logarithm(base: int | None) -> Function:
    def evaluate(value: Any) -> float:
        number = float(_number(value))
        if number == 0:
            return -math.inf
        if math.isnan(number) or number < 0:
            return math.nan
        functions = {2: math.log2, 10: math.log10}
        return math.log(number) if base is None else functions[base](number)

    return evaluate


def _rounding(function: Callable[[float], float]) -> Function:
    def evaluate(value: Any) -> float:
        number = float(_number(value))
        return math.copysign(float(function(number)), number) if math.isfinite(number) else number

    return evaluate


def _round(value: Any, digits: int = 0) -> float:
    """Return the nearest, ties towards positive infinity, as openCypher has it."""
    number = float(_number(value))
    if not math.isfinite(number):
        return number
    if not 0 <= _whole(digits) <= MAX_DIGITS:
        raise UnmodelledFeature("too many digits")
    if digits:
        return math.copysign(math.floor(abs(number) * 10.0**digits + 0.5), number) / 10.0**digits
    below = math.floor(number)
    return float(below + (number - below >= 0.5))


def _sign(value: Any) -> int:
    number = _number(value)
    if math.isnan(number):
        raise UnmodelledFeature("the sign of NaN")
    return (number > 0) - (number < 0)


def _absolute(value: Any) -> Any:
    number = _number(value)
    return as_integer(abs(number)) if is_integer(number) else abs(number)


def _power(base: Any, exponent: Any) -> float:
    return power(_number(base), _number(exponent))


def _substring(text: Any, start: Any, length: Any = None) -> str:
    text, start = _text(text), _whole(start)
    size = len(text) if length is None else _whole(length)
    if start < 0 or size < 0:
        raise CypherError("substring needs numbers of 0 or more")
    return text[start : start + size]


def _left(text: Any, count: Any) -> str:
    if _whole(count) < 0:
        raise CypherError("left needs a number of 0 or more")
    return _text(text)[:count]


def _right(text: Any, count: Any) -> str:
    if _whole(count) < 0:
        raise CypherError("right needs a number of 0 or more")
    return _text(text)[-count:] if count else ""


def _bounded(count: Any) -> int:
    if not 0 <= _whole(count) <= MAX_COUNT:
        raise UnmodelledFeature("a count out of bounds")
    return count


def _pad(text: Any, count: Any, filler: Any, *, is_left: bool) -> str:
    text, filler, count = _text(text), _text(filler), _bounded(count)
    if count <= len(text) or not filler:
        return text[:count]
    padding = (filler * count)[: count - len(text)]
    return padding + text if is_left else text + padding


def _size(value: Any) -> int:
    if not isinstance(value, (str, list)):
        raise CypherError(f"size needs a list or a text, not {type_name(value)}")
    return len(value)


def _length(value: Any) -> int:
    if not isinstance(value, Path):
        raise CypherError(f"length needs a path, not {type_name(value)}")
    return len(value.relationships)


def _reverse(value: Any) -> Any:
    return value[::-1] if isinstance(value, list) else _text(value)[::-1]


def _text_test(test: Callable[[str, str], bool]) -> Function:
    return lambda text, other: test(_text(text), _text(other))


def _engine_text(value: Any) -> str:
    """Convert as the engines' own function does, which writes `True`, and floats in a form of its own."""
    if isinstance(value, (float, list, dict, Timestamp)):
        raise UnmodelledFeature("the engines' own form")
    return str(value)


def as_text(value: Any) -> str:
    """Convert a single value to text."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _float_text(value)
        case str() | int():
            return str(value)
        case _:
            raise CypherError(f"a text cannot be made of {type_name(value)}")


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return repr(value).upper().replace("E+", "E")


_INTEGER_TEXT = re.compile(r"[-+]?\d+")
_NUMBER_TEXT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def to_integer(value: Any) -> int | None:
    """Convert to an integer as `toInteger` does: null for a text that is no number."""
    match value:
        case bool():
            return int(value)
        case int():
            return value
        case float():
            return as_integer(int(value)) if math.isfinite(value) else None
        case str():
            number = value.strip()
            if _INTEGER_TEXT.fullmatch(number):
                return as_integer(int(number))
            return as_integer(int(float(number))) if _NUMBER_TEXT.fullmatch(number) else None
        case _:
            raise CypherError(f"an integer cannot be made of {type_name(value)}")


def to_float(value: Any) -> float | None:
    """Convert to a float as `toFloat` does: null for a text that is no number."""
    if isinstance(value, str):
        return float(value) if _NUMBER_TEXT.fullmatch(value.strip()) else None
    return float(_number(value))


def to_boolean(value: Any) -> bool | None:
    """Convert to a boolean as `toBoolean` does: null for a text that is neither of the two."""
    if isinstance(value, bool):
        return value
    if is_integer(value):
        return value != 0
    return {"true": True, "false": False}.get(_text(value).strip().lower())


def _range(start: Any, end: Any, step: Any = 1) -> list[int]:
    if _whole(step) == 0:
        raise CypherError("range needs a step other than 0")
    values = range(_whole(start), _whole(end) + (1 if step > 0 else -1), step)
    _bounded(len(values))
    return list(values)


def _head(value: Any) -> Any:
    return _list(value)[0] if value else None


def _last(value: Any) -> Any:
    return _list(value)[-1] if value else None


def _keys(value: Any) -> list[str]:
    match value:
        case dict():
            return list(value)
        case Node() | Relationship():
            return [name for name, each in value.properties.items() if each is not None]
        case _:
            raise CypherError(f"keys needs a map, a node or a relationship, not {type_name(value)}")


def _labels(value: Any) -> list[str]:
    if not isinstance(value, Node):
        raise CypherError(f"labels needs a node, not {type_name(value)}")
    return ["Entity"]


def _label(value: Any) -> str:
    if not isinstance(value, (Node, Relationship)):
        raise CypherError(f"label needs a node or a relationship, not {type_name(value)}")
    return "Entity" if isinstance(value, Node) else "RELATES_TO"


def _path_part(part: str) -> Function:
    def evaluate(value: Any) -> list[Any]:
        if not isinstance(value, Path):
            raise CypherError(f"a path is needed, not {type_name(value)}")
        return list(getattr(value, part))

    return evaluate


def _element(values: Any, position: Any) -> Any:
    """Return an element by its position from 1; a negative one counts from the end."""
    values = _list(values)
    if _whole(position) == 0 or abs(position) > len(values):
        raise CypherError("there is no such element")
    return values[position - 1 if position > 0 else position]


def _position(values: Any, value: Any) -> int:
    keys = [group_key(each) for each in _list(values)]
    return keys.index(group_key(value)) + 1 if group_key(value) in keys else 0


def _distinct(values: Any) -> list[Any]:
    kept = {group_key(each): each for each in reversed(_list(values)) if each is not None}
    return Bag(kept.values())


def _sorted(values: Any, order: Any = "ASC", nulls: Any = "NULLS FIRST") -> list[Any]:
    some = sorted((each for each in _list(values) if each is not None), key=order_key, reverse=order.upper() == "DESC")
    empty = [None] * (len(values) - len(some))
    return empty + some if nulls.upper() == "NULLS FIRST" else some + empty


def _list_sum(values: Any) -> Any:
    total: Any = sum(_number(each) for each in _list(values) if each is not None)
    return Zero(0) if total == 0 else as_integer(total) if is_integer(total) else total


def _list_product(values: Any) -> Any:
    product: Any = math.prod(_number(each) for each in _list(values) if each is not None)
    return as_integer(product) if is_integer(product) else product


def _joined(separator: Any, values: Any) -> str:
    return _text(separator).join("" if each is None else as_text(each) for each in _list(values))


def _split(text: Any, separator: Any) -> list[str]:
    return _text(text).split(_text(separator)) if separator else list(text)


def _split_part(text: Any, separator: Any, position: Any) -> str:
    found = _split(text, separator)
    return found[position - 1] if 1 <= _whole(position) <= len(found) else ""


def _coalesce(*values: Any) -> Any:
    return next((each for each in values if each is not None), None)


def _extreme(operator: str) -> Function:
    """The first of the largest, or of the smallest; values that cannot be compared are an error."""

    def evaluate(*values: Any) -> Any:
        best = values[0]
        for each in values[1:]:
            is_better = compare(operator, each, best)
            if is_better is None or type(each) is not type(best):
                raise CypherError("greatest and least need values of one type")
            best = each if is_better else best
        return best

    return evaluate


def _nullif(value: Any, other: Any) -> Any:
    return None if compare("=", value, other) else value


def _concat_ws(separator: Any, *texts: Any) -> str | None:
    return None if separator is None else _text(separator).join(_text(each) for each in texts if each is not None)


def _list_concat(one: Any, other: Any) -> Any:
    return None if one is None or other is None else _list(one) + _list(other)


def _timestamp(text: Any) -> Timestamp:
    return text if isinstance(text, Timestamp) else read_timestamp(_text(text))


STRICT: dict[str, Function] = {
    "abs": _absolute,
    "acos": _of_float(math.acos),
    "asin": _of_float(math.asin),
    "atan": _of_float(math.atan),
    "atan2": lambda y, x: math.atan2(_number(y), _number(x)),
    "bitwise_and": lambda a, b: _whole(a) & _whole(b),
    "bitwise_or": lambda a, b: _whole(a) | _whole(b),
    "bitwise_xor": lambda a, b: _whole(a) ^ _whole(b),
    "bitshift_left": lambda a, b: as_integer(_whole(a) << _bounded(b)),
    "bitshift_right": lambda a, b: _whole(a) >> _bounded(b),
    "cbrt": _of_float(math.cbrt),
    "ceil": _rounding(math.ceil),
    "ceiling": _rounding(math.ceil),
    "cos": _of_float(math.cos),
    "cot": _of_float(lambda x: 1 / math.tan(x) if x else math.inf),
    "degrees": _of_float(math.degrees),
    "exp": _of_float(math.exp),
    "floor": _rounding(math.floor),
    "lgamma": _of_float(math.lgamma),
    "ln": _logarithm(None),
    "log": _logarithm(None),
    "log10": _logarithm(10),
    "log2": _logarithm(2),
    "negate": negate,
    "pi": lambda: math.pi,
    "e": lambda: math.e,
    "pow": _power,
    "radians": _of_float(math.radians),
    "round": _round,
    "sign": _sign,
    "sin": _of_float(math.sin),
    "sqrt": _of_float(math.sqrt),
    "tan": _of_float(math.tan),
    "contains": _text_test(lambda text, other: other in text),
    "starts_with": _text_test(str.startswith),
    "prefix": _text_test(str.startswith),
    "ends_with": _text_test(str.endswith),
    "suffix": _text_test(str.endswith),
    **dict.fromkeys(("lower", "lcase", "tolower"), _of_text(str.lower)),
    **dict.fromkeys(("upper", "ucase", "toupper"), _of_text(str.upper)),
    "trim": _of_text(str.strip),
    "btrim": _of_text(str.strip),
    "ltrim": _of_text(str.lstrip),
    "rtrim": _of_text(str.rstrip),
    "left": _left,
    "right": _right,
    "lpad": lambda text, count, filler: _pad(text, count, filler, is_left=True),
    "rpad": lambda text, count, filler: _pad(text, count, filler, is_left=False),
    "md5": _of_text(lambda text: hashlib.md5(text.encode()).hexdigest()),  # noqa: S324 - a function of the engines
    "sha256": _of_text(lambda text: hashlib.sha256(text.encode()).hexdigest()),
    "octet_length": _of_text(lambda text: len(text.encode())),
    "repeat": lambda text, count: _text(text) * _bounded(count),
    "replace": lambda text, old, new: _text(text).replace(_text(old), _text(new)) if old else _text(text),
    "reverse": _reverse,
    "size": _size,
    "char_length": _of_text(len),
    "split": _split,
    "split_part": _split_part,
    "string_split": _split,
    **dict.fromkeys(("substring", "substr"), _substring),
    "tostring": as_text,
    **dict.fromkeys(("to_string", "string"), _engine_text),
    "tointeger": to_integer,
    "tofloat": to_float,
    "toboolean": to_boolean,
    "regexp_matches": lambda text, pattern: re.search(_text(pattern), _text(text)) is not None,
    "length": _length,
    "isempty": lambda value: not value if isinstance(value, dict) else _size(value) == 0,
    "list_has_all": lambda values, others: {group_key(each) for each in _list(others)} <= set(map(group_key, values)),
    "range": _range,
    "head": _head,
    "last": _last,
    "tail": _of_list(lambda values: values[1:]),
    "keys": _keys,
    "labels": _labels,
    "label": _label,
    "nodes": _path_part("nodes"),
    "relationships": _path_part("relationships"),
    "rels": _path_part("relationships"),
    **dict.fromkeys(("list_extract", "list_element"), _element),
    **dict.fromkeys(("list_reverse",), _of_list(lambda values: values[::-1])),
    "list_sort": _sorted,
    "list_reverse_sort": lambda values: _sorted(values, "DESC"),
    "list_distinct": _distinct,
    "list_unique": lambda values: len(_distinct(values)),
    "list_sum": _list_sum,
    "list_product": _list_product,
    "list_to_string": _joined,
    "list_any_value": _of_list(lambda values: _coalesce(*values)),
    "greatest": _extreme(">"),
    "least": _extreme("<"),
    "timestamp": _timestamp,
    **dict.fromkeys(("date_part", "datepart"), date_part),
}

OF_ORDER = frozenset({
    "list_extract", "list_element", "list_to_string", "list_position", "list_indexof", "list_any_value", "head", "last",
    "tail",
})  # fmt: skip
"""Functions whose answer depends on the order of a list."""

WITH_NULLS: dict[str, Function] = {
    "coalesce": _coalesce,
    "ifnull": _coalesce,
    "nullif": _nullif,
    "concat": lambda *texts: _concat_ws("", *texts),
    "concat_ws": _concat_ws,
    **dict.fromkeys(("list_concat", "list_cat"), _list_concat),
    "list_append": lambda values, value: None if values is None else [*_list(values), value],
    "list_prepend": lambda values, value: None if values is None else [value, *_list(values)],
    **dict.fromkeys(("list_contains", "list_has"), contains),
    **dict.fromkeys(
        ("list_position", "list_indexof"),
        lambda values, value: None if values is None or value is None else _position(values, value),
    ),
}
