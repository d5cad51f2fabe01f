"""Functions by lower-case name: those of openCypher, and those of the engines as documented.

openCypher counts from 0; the engines' own functions, such as `list_extract`, count from 1.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from tests.cypher.reference.arithmetic import as_integer, is_integer, negate, power
from tests.cypher.reference.times import date_part, read_timestamp
from tests.cypher.reference.values import (
    NO_LABEL,
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

MAX_COUNT = 20_000
MAX_DIGITS = 9
_KINDS: dict[str, Callable[[Any], bool]] = {
    "s": lambda value: isinstance(value, str),
    "l": lambda value: isinstance(value, list),
    "c": lambda value: isinstance(value, (str, list)),
    "n": is_number,
    "i": is_integer,
    "p": lambda value: isinstance(value, Path),
    "r": lambda value: isinstance(value, Relationship),
    "o": lambda value: isinstance(value, Node),
    "x": lambda _: True,
}
_PARAMETER = re.compile(r"[a-z]\??")


def call(name: str, arguments: list[Any]) -> Any:
    """Return the result of a function; null for a null argument unless its signature has a `?` there."""
    lowered = name.lower()
    if lowered not in FUNCTIONS:
        raise UnmodelledFeature(f"there is no function {name}")
    if lowered in OF_ORDER and any(isinstance(each, Bag) and len(each) > 1 for each in arguments):
        raise UnmodelledFeature("the order of a list is open")
    signature, function = FUNCTIONS[lowered]
    kinds = _PARAMETER.findall(signature)
    kinds += kinds[-1:] * (len(arguments) - len(kinds))
    pairs = list(zip(kinds, arguments, strict=False))
    if any(value is None and not kind.endswith("?") for kind, value in pairs):
        return None
    if wrong := [type_name(value) for kind, value in pairs if value is not None and not _KINDS[kind[0]](value)]:
        raise CypherError(f"{name} does not take {' and '.join(wrong)}")
    try:
        found = function(*arguments)
    except (TypeError, re.error) as error:
        raise CypherError(f"{name}: {error}") from None
    except (OverflowError, ValueError, MemoryError) as error:
        raise UnmodelledFeature(f"{name}: {error}") from None
    has_order = not any(isinstance(each, Bag) for each in arguments)
    return found if has_order or not isinstance(found, list) else Bag(found)


def _real(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return a float function that yields NaN where it is undefined."""

    def evaluate(value: float) -> float:
        try:
            return float(function(float(value)))
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return evaluate


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda value: -math.inf if value == 0 else _real(function)(value)


def _rounding(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda value: math.copysign(float(function(value)), value) if math.isfinite(value) else float(value)


def _round(value: float, digits: int = 0) -> float:
    """Round half towards positive infinity, as openCypher does."""
    number = float(value)
    if not math.isfinite(number):
        return number
    if not 0 <= digits <= MAX_DIGITS:
        raise UnmodelledFeature("too many digits")
    if digits:
        return math.copysign(math.floor(abs(number) * 10.0**digits + 0.5), number) / 10.0**digits
    below = math.floor(number)
    return float(below + (number - below >= 0.5))


def _sign(number: float) -> int:
    if math.isnan(number):
        raise UnmodelledFeature("the sign of NaN")
    return (number > 0) - (number < 0)


def _positive(number: int) -> int:
    if number < 0:
        raise CypherError("a number of 0 or more is needed")
    return number


def _bounded(count: int) -> int:
    if not 0 <= count <= MAX_COUNT:
        raise UnmodelledFeature("a count out of bounds")
    return count


def _substring(text: str, start: int, length: int | None = None) -> str:
    return text[_positive(start) :][: _positive(len(text) if length is None else length)]


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        raise UnmodelledFeature("the engines and openCypher differ for an empty text")
    return text.replace(old, new)


def _pad(text: str, count: int, filler: str, *, is_left: bool) -> str:
    if _bounded(count) <= len(text) or not filler:
        return text[:count]
    padding = (filler * count)[: count - len(text)]
    return padding + text if is_left else text + padding


def _engine_text(value: Any) -> str:
    """Convert as the engines' own function does, which writes `True` and a different float format."""
    if isinstance(value, (float, list, dict, Timestamp)):
        raise UnmodelledFeature("the engines' own form")
    return str(value)


def as_text(value: Any) -> str:
    """Convert a scalar to text."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if math.isfinite(value):
            return repr(value).upper().replace("E+", "E")
        case float():
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case str() | int():
            return str(value)
        case _:
            raise CypherError(f"a text cannot be made of {type_name(value)}")


_INTEGER_TEXT = re.compile(r"[-+]?\d+")
_NUMBER_TEXT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def to_integer(value: Any) -> int | None:
    """Convert to an integer like `toInteger`: null for a text that is not a number."""
    match value:
        case bool() | int():
            return int(value)
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
    """Convert to a float like `toFloat`: null for a text that is not a number."""
    if isinstance(value, str):
        return float(value) if _NUMBER_TEXT.fullmatch(value.strip()) else None
    if not is_number(value):
        raise CypherError(f"a float cannot be made of {type_name(value)}")
    return float(value)


def to_boolean(value: Any) -> bool | None:
    """Convert to a boolean like `toBoolean`: null for any other text."""
    if isinstance(value, bool) or is_integer(value):
        return value != 0
    if not isinstance(value, str):
        raise CypherError(f"a boolean cannot be made of {type_name(value)}")
    return {"true": True, "false": False}.get(value.strip().lower())


def _range(start: int, end: int, step: int = 1) -> list[int]:
    if step == 0:
        raise CypherError("range needs a step other than 0")
    values = range(start, end + (1 if step > 0 else -1), step)
    _bounded(len(values))
    return list(values)


def _keys(value: Any) -> list[str]:
    match value:
        case dict():
            return Bag(value)
        case Node() | Relationship():
            return Bag(value.own)
        case _:
            raise CypherError(f"keys needs a map, a node or a relationship, not {type_name(value)}")


def _properties(value: Any) -> dict[str, Any]:
    if not isinstance(value, (Node, Relationship, dict)):
        raise CypherError(f"properties needs a map, a node or a relationship, not {type_name(value)}")
    return value if isinstance(value, dict) else value.own


def _labels(node: Node) -> list[str]:
    label = node.properties["type"]
    return [] if label == NO_LABEL else [label]


def _element_id(value: Any) -> str:
    if not isinstance(value, Node):
        raise UnmodelledFeature("the id of a relationship")
    return value.id


def _label(value: Any) -> str:
    if not isinstance(value, (Node, Relationship)):
        raise CypherError(f"label needs a node or a relationship, not {type_name(value)}")
    return "Entity" if isinstance(value, Node) else "RELATES_TO"


def _element(values: list[Any], position: int) -> Any:
    """Return an element by position from 1; negative positions count from the end."""
    if position == 0 or abs(position) > len(values):
        raise CypherError("there is no such element")
    return values[position - 1 if position > 0 else position]


def _position(values: list[Any], value: Any) -> int:
    keys = [group_key(each) for each in values]
    return keys.index(group_key(value)) + 1 if group_key(value) in keys else 0


def _distinct(values: list[Any]) -> list[Any]:
    return Bag({group_key(each): each for each in reversed(values) if each is not None}.values())


def _sorted(values: list[Any], order: str = "ASC", nulls: str = "NULLS FIRST") -> list[Any]:
    some = sorted((each for each in values if each is not None), key=order_key, reverse=order.upper() == "DESC")
    empty = [None] * (len(values) - len(some))
    return empty + some if nulls.upper() == "NULLS FIRST" else some + empty


def _calculated(values: list[Any], function: Callable[[list[Any]], Any]) -> Any:
    numbers = [each for each in values if each is not None]
    if not all(map(is_number, numbers)):
        raise CypherError("a list of numbers is needed")
    found = function(numbers)
    return as_integer(found) if is_integer(found) else found


def _split_part(text: str, separator: str, position: int) -> str:
    found = _split(text, separator)
    return found[position - 1] if 1 <= position <= len(found) else ""


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator) if separator else list(text)


def _coalesce(*values: Any) -> Any:
    return next((each for each in values if each is not None), None)


def _extreme(than: str) -> Callable[..., Any]:
    """Return a function for the first largest or smallest value; incomparable values are an error."""

    def evaluate(best: Any, *values: Any) -> Any:
        for each in values:
            is_better = compare(than, each, best)
            if is_better is None or type(each) is not type(best):
                raise CypherError("greatest and least need values of one type")
            best = each if is_better else best
        return best

    return evaluate


def _concat_ws(separator: str, *texts: str | None) -> str:
    return separator.join(each for each in texts if each is not None)


def _timestamp(value: Any) -> Timestamp:
    if not isinstance(value, (str, Timestamp)):
        raise CypherError(f"a timestamp cannot be made of {type_name(value)}")
    return value if isinstance(value, Timestamp) else read_timestamp(value)


FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "abs": ("n", lambda n: as_integer(abs(n)) if is_integer(n) else abs(n)),
    "atan2": ("nn", math.atan2),
    "bitwise_and": ("ii", operator.and_),
    "bitwise_or": ("ii", operator.or_),
    "bitwise_xor": ("ii", operator.xor),
    "bitshift_left": ("ii", lambda a, b: as_integer(a << _bounded(b))),
    "bitshift_right": ("ii", lambda a, b: a >> _bounded(b)),
    "ceil": ("n", _rounding(math.ceil)),
    "ceiling": ("n", _rounding(math.ceil)),
    "cot": ("n", _real(lambda x: 1 / math.tan(x) if x else math.copysign(math.inf, x))),
    "floor": ("n", _rounding(math.floor)),
    "negate": ("x", negate),
    "pi": ("", lambda: math.pi),
    "e": ("", lambda: math.e),
    "pow": ("nn", power),
    "round": ("ni", _round),
    "sign": ("n", _sign),
    "ln": ("n", _logarithm(math.log)),
    "log": ("n", _logarithm(math.log)),
    "log10": ("n", _logarithm(math.log10)),
    "log2": ("n", _logarithm(math.log2)),
    **{
        each.__name__: ("n", _real(each))
        for each in (
            math.acos, math.asin, math.atan, math.cbrt, math.cos, math.degrees, math.exp, math.lgamma, math.radians,
            math.sin, math.sqrt, math.tan,
        )
    },
    "contains": ("ss", operator.contains),
    **dict.fromkeys(("starts_with", "prefix"), ("ss", str.startswith)),
    **dict.fromkeys(("ends_with", "suffix"), ("ss", str.endswith)),
    **dict.fromkeys(("lower", "lcase", "tolower"), ("s", str.lower)),
    **dict.fromkeys(("upper", "ucase", "toupper"), ("s", str.upper)),
    **dict.fromkeys(("trim", "btrim"), ("s", lambda text: text.strip())),
    "ltrim": ("s", lambda text: text.lstrip()),
    "rtrim": ("s", lambda text: text.rstrip()),
    "left": ("si", lambda text, count: text[: _positive(count)]),
    "right": ("si", lambda text, count: text[-_positive(count) :] if count else ""),
    "lpad": ("sis", lambda text, count, filler: _pad(text, count, filler, is_left=True)),
    "rpad": ("sis", lambda text, count, filler: _pad(text, count, filler, is_left=False)),
    "md5": ("s", lambda text: hashlib.md5(text.encode()).hexdigest()),  # noqa: S324 - a function of the engines
    "sha256": ("s", lambda text: hashlib.sha256(text.encode()).hexdigest()),
    "octet_length": ("s", lambda text: len(text.encode())),
    "repeat": ("si", lambda text, count: text * _bounded(count)),
    "replace": ("sss", _replace),
    "reverse": ("c", lambda value: value[::-1]),
    "size": ("c", len),
    "char_length": ("s", len),
    **dict.fromkeys(("split", "string_split"), ("ss", _split)),
    "split_part": ("ssi", _split_part),
    **dict.fromkeys(("substring", "substr"), ("sii", _substring)),
    "tostring": ("x", as_text),
    **dict.fromkeys(("to_string", "string"), ("x", _engine_text)),
    "tointeger": ("x", to_integer),
    "tofloat": ("x", to_float),
    "toboolean": ("x", to_boolean),
    "regexp_matches": ("ss", lambda text, pattern: re.search(pattern, text) is not None),
    "length": ("p", lambda path: len(path.relationships)),
    "isempty": ("x", lambda value: len(value) == 0),
    "list_has_all": ("ll", lambda values, others: set(map(group_key, others)) <= set(map(group_key, values))),
    "range": ("iii", _range),
    "head": ("l", lambda values: values[0] if values else None),
    "last": ("l", lambda values: values[-1] if values else None),
    "tail": ("l", lambda values: values[1:]),
    "keys": ("x", _keys),
    "labels": ("o", _labels),
    "type": ("r", lambda each: each.properties["relation_type"]),
    "properties": ("x", _properties),
    "elementid": ("x", _element_id),
    "label": ("x", _label),
    "nodes": ("p", lambda path: list(path.nodes)),
    **dict.fromkeys(("relationships", "rels"), ("p", lambda path: list(path.relationships))),
    **dict.fromkeys(("list_extract", "list_element"), ("li", _element)),
    "list_reverse": ("l", lambda values: values[::-1]),
    "list_sort": ("lss", _sorted),
    "list_reverse_sort": ("l", lambda values: _sorted(values, "DESC")),
    "list_distinct": ("l", _distinct),
    "list_unique": ("l", lambda values: len(_distinct(values))),
    "list_sum": ("l", lambda values: _calculated(values, sum) or Zero(0)),
    "list_product": ("l", lambda values: _calculated(values, math.prod)),
    "list_to_string": ("sl", lambda by, values: by.join("" if each is None else as_text(each) for each in values)),
    "list_any_value": ("l", lambda values: _coalesce(*values)),
    **dict.fromkeys(("list_concat", "list_cat"), ("ll", operator.add)),
    "list_append": ("lx?", lambda values, value: [*values, value]),
    "list_prepend": ("lx?", lambda values, value: [value, *values]),
    **dict.fromkeys(("list_contains", "list_has"), ("lx?", contains)),
    **dict.fromkeys(("list_position", "list_indexof"), ("lx", _position)),
    "greatest": ("x", _extreme(">")),
    "least": ("x", _extreme("<")),
    "timestamp": ("x", _timestamp),
    **dict.fromkeys(("date_part", "datepart"), ("xx", date_part)),
    **dict.fromkeys(("coalesce", "ifnull"), ("x?", _coalesce)),
    "nullif": ("x?x?", lambda value, other: None if compare("=", value, other) else value),
    "concat": ("s?", lambda *texts: _concat_ws("", *texts)),
    "concat_ws": ("ss?", _concat_ws),
}  # fmt: skip
"""Each function with the kinds of its parameters, the last of which stands for further ones."""

OF_ORDER = frozenset({
    "list_extract", "list_element", "list_to_string", "list_position", "list_indexof", "list_any_value", "head", "last",
    "tail",
})  # fmt: skip
"""Functions whose answer depends on the order of a list."""
