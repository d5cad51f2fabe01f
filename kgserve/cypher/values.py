"""Parameters of a statement: from JSON to what Kùzu's Python binding takes.

The binding finds a type for each value by looking at it, and does so badly: a list without elements has none and fails,
a map and a null in one list crash the process, and maps with their keys in different orders count as different types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kgserve.errors import FieldError, InvalidInput

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
_INT64 = 1 << 63


def values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What may be given to the engine. Raises InvalidInput that names the place, such as ``params.rows[3].age``.

    In a list, numbers become all whole or all fractional, and maps get the same keys in the same order, with null for
    what is missing. An empty list stays one: the engine takes none, so `guard.examine` writes it into the text.
    """
    ready = {name: _value(value, f"params.{name}", 0) for name, value in parameters.items()}
    if len(msgspec.json.encode(ready)) > MAX_BYTES:
        raise _fault("params", f"the values are larger than {MAX_BYTES >> 20} MiB together")
    return ready


def count(value: Any) -> int:
    """How many single values a value holds."""
    if isinstance(value, dict):
        return sum(count(part) for part in value.values())
    if isinstance(value, list):
        return sum(count(part) for part in value)
    return 1


def _value(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _fault(path, f"nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool():
            return value
        case int():
            return _integer(value, path)
        case float():
            return _fraction(value, path)
        case str():
            return _text(value, path)
        case list():
            return _list(value, path, depth)
        case dict():
            return _map(value, path, depth)
        case _:
            raise _fault(path, "not a JSON value")


def _integer(value: int, path: str) -> int:
    if not -_INT64 <= value < _INT64:
        raise _fault(path, "the integer does not fit into 64 bits")
    return value


def _fraction(value: float, path: str) -> float:
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - this is how NaN is told
        raise _fault(path, "not a finite number")
    return value


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _fault(path, "the text has half of a surrogate pair") from None
    return value


def _map(value: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
    if not value:
        raise _fault(path, "an empty map has no type")
    if set(value) == {"key", "value"}:
        raise _fault(path, 'a map of just "key" and "value" is taken for something else by the engine; rename one')
    ready: dict[str, Any] = {}
    for name, part in value.items():
        _text(name, path)
        if not name or "\0" in name:
            raise _fault(path, "a key is empty or has a NUL")
        ready[name] = _value(part, f"{path}.{name}", depth + 1)
        if depth == 0 and not _is_typed(ready[name]):
            raise _fault(f"{path}.{name}", "null and empty lists have no type here; leave the key out")
    if len({name.lower() for name in ready}) < len(ready):
        raise _fault(path, "two keys differ only in case")
    return ready


def _list(items: list[Any], path: str, depth: int) -> list[Any]:
    ready = [_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(items)]
    kinds = {_kind(item) for item in ready} - {"null"}
    if kinds == {"whole number", "fractional number"}:
        return [float(item) if item is not None else None for item in ready]
    if len(kinds) > 1:
        raise _fault(path, f"the engine's lists hold one kind of values; here are: {', '.join(sorted(kinds))}")
    if ready and not kinds:
        raise _fault(path, "a list of nulls has no type")
    if kinds == {"map"}:
        return _maps(ready, path)
    if kinds == {"list"}:
        return _lists(ready, path)
    return ready


def _maps(items: list[dict[str, Any] | None], path: str) -> list[dict[str, Any]]:
    names: dict[str, list[Any]] = {}
    for index, item in enumerate(items):
        if item is None:
            raise _fault(f"{path}[{index}]", "null among maps crashes the engine")
        for name in item:
            names.setdefault(name, [])
    for name, column in names.items():
        column.extend((item or {}).get(name) for item in items)
        names[name] = _list(column, f"{path}[].{name}", 0)
        if not any(_is_typed(part) for part in names[name]):
            raise _fault(f"{path}[].{name}", "no value says what type this key has")
    return [{name: column[row] for name, column in names.items()} for row in range(len(items))]


def _lists(items: list[list[Any] | None], path: str) -> list[list[Any] | None]:
    """Inner lists are of one type: that of all their elements together."""
    flat = _list([part for item in items if item for part in item], f"{path}[]", 0)
    if not flat:
        raise _fault(path, "a list of empty lists has no type")
    parts = iter(flat)
    return [None if item is None else [next(parts) for _ in item] for item in items]


_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "whole number",
    float: "fractional number",
    str: "text",
    list: "list",
    dict: "map",
}


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _is_typed(value: Any) -> bool:
    return value is not None and value != []


def _fault(path: str, what: str) -> InvalidInput:
    return InvalidInput(f"{path}: {what}", (FieldError(path, what),))
