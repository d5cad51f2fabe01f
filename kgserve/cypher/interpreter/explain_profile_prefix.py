"""Prefix EXPLAIN or PROFILE of a statement."""

from __future__ import annotations

import re
from typing import Literal

PlanRequest = Literal["", "EXPLAIN", "PROFILE"]

_SPACE = r"(?:\s|/\*.*?\*/|//[^\n]*)*"
_PREFIX = re.compile(rf"{_SPACE}\b(EXPLAIN|PROFILE)\b", re.IGNORECASE | re.DOTALL)
_FIRST_CHARACTERS = frozenset("EePpCc/")
"""First characters of statements that may have a prefix."""
_CYPHER_OPTION = re.compile(r"\s*CYPHER(?:\s+(?:\d+|\d+\.\d+|\w+\s*=\s*\w+))*\s+", re.IGNORECASE)


def split_explain_profile_prefix(statement: str) -> tuple[PlanRequest, str]:
    """Split the prefix EXPLAIN or PROFILE from a statement, which gets spaces in its place."""
    if statement.lstrip()[:1] not in _FIRST_CHARACTERS:
        return "", statement
    option = _CYPHER_OPTION.match(statement)
    if option is not None:
        statement = _blank(statement, option.end())
    match = _PREFIX.match(statement)
    if match is None:
        return "", statement
    plan: PlanRequest = "EXPLAIN" if match[1].upper() == "EXPLAIN" else "PROFILE"
    return plan, _blank(statement, match.end())


def _blank(text: str, count: int) -> str:
    """Return a text with spaces in place of the first ``count`` characters that are no line ends."""
    return re.sub(r"[^\n]", " ", text[:count]) + text[count:]
