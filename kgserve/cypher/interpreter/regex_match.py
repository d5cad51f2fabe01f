"""Regular expressions of ``=~``: the syntax of RE2, which the engines have too."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from kgserve.cypher.interpreter.values import describe_value
from kgserve.cypher.regexes import find_regex_fault
from kgserve.errors import InvalidInput


def match_text(value: Any, pattern: Any) -> bool | None:
    """Return whether a whole string matches; null if it is no string. Raises InvalidInput for an invalid pattern."""
    if pattern is None:
        return None
    if type(pattern) is not str:
        raise InvalidInput(f"=~ expects a regular expression as a string, not {describe_value(pattern)}")
    if type(value) is not str:
        return None
    return _compile(pattern).fullmatch(value) is not None


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    if fault := find_regex_fault(pattern):
        raise InvalidInput(f"invalid regular expression: {fault}")
    return re.compile(pattern)
