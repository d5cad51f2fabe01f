"""Functions of strings."""

from __future__ import annotations

import unicodedata
from typing import Any

from kgserve.cypher.interpreter.arithmetic import MAX_LIST_ELEMENTS, MAX_TEXT_CHARACTERS
from kgserve.cypher.interpreter.scalar_function_definition import (
    INTEGER,
    LIST,
    STRING,
    ScalarFunction,
    index_functions_by_name,
)
from kgserve.cypher.interpreter.value_comparison import describe_value
from kgserve.errors import InvalidInput, TooLarge

_NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def _check_length(function: str, name: str, value: int | None) -> int:
    if value is None or value < 0:
        raise InvalidInput(f"the {name} of {function}() must be zero or more, not {'null' if value is None else value}")
    return value


def _left(text: str | None, length: int | None) -> str | None:
    if text is None:
        return None
    return text[: _check_length("left", "length", length)]


def _right(text: str | None, length: int | None) -> str | None:
    if text is None:
        return None
    return text[max(len(text) - _check_length("right", "length", length), 0) :]


def _substring(text: str | None, *bounds: int | None) -> str | None:
    if text is None:
        return None
    start = _check_length("substring", "start", bounds[0])
    if len(bounds) == 1:
        return text[start:]
    return text[start : start + _check_length("substring", "length", bounds[1])]


def _replace(text: str, search: str, replacement: str) -> str:
    occurrences = text.count(search)
    if len(text) + occurrences * len(replacement) > MAX_TEXT_CHARACTERS:
        raise TooLarge(f"the result of replace() has more than {MAX_TEXT_CHARACTERS} characters")
    return text.replace(search, replacement)


def _split(text: str, separators: str | list[Any]) -> list[str]:
    if isinstance(separators, str):
        if text.count(separators) > MAX_LIST_ELEMENTS:
            raise TooLarge(f"the result of split() has more than {MAX_LIST_ELEMENTS} elements")
        return text.split(separators) if separators else list(text)
    parts = [text]
    for separator in separators:
        if not isinstance(separator, str):
            raise InvalidInput(f"split() expects strings as separators, not {describe_value(separator)}")
        parts = [each for part in parts for each in _split(part, separator)]
    return parts


def _normalize(text: str, form: str = "NFC") -> str:
    if form not in _NORMAL_FORMS:
        raise InvalidInput(f"normalize() has no form {form!r}; forms: {', '.join(_NORMAL_FORMS)}")
    return unicodedata.normalize(form, text)


def _length(text: str) -> int:
    return len(text)


STRING_FUNCTIONS = index_functions_by_name(
    [
        ScalarFunction("toUpper", str.upper, (STRING,), 1),
        ScalarFunction("upper", str.upper, (STRING,), 1),
        ScalarFunction("toLower", str.lower, (STRING,), 1),
        ScalarFunction("lower", str.lower, (STRING,), 1),
        ScalarFunction("trim", str.strip, (STRING,), 1),
        ScalarFunction("btrim", str.strip, (STRING, STRING), 1),
        ScalarFunction("ltrim", str.lstrip, (STRING, STRING), 1),
        ScalarFunction("rtrim", str.rstrip, (STRING, STRING), 1),
        ScalarFunction("left", _left, (STRING, INTEGER), 2, takes_null=True),
        ScalarFunction("right", _right, (STRING, INTEGER), 2, takes_null=True),
        ScalarFunction("substring", _substring, (STRING, INTEGER, INTEGER), 2, takes_null=True),
        ScalarFunction("replace", _replace, (STRING, STRING, STRING), 3),
        ScalarFunction("split", _split, (STRING, STRING | LIST), 2),
        ScalarFunction("normalize", _normalize, (STRING, STRING), 1),
        ScalarFunction("char_length", _length, (STRING,), 1),
        ScalarFunction("character_length", _length, (STRING,), 1),
    ]
)
