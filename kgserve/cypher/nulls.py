"""Where a null may stand. Without a type it crashes the engine, as the list of IN and in 20 functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgserve.cypher.outline import Outline
from kgserve.cypher.words import KEYWORDS

_COMPARISONS = frozenset({"=", "<>", "<", ">", "<=", ">="})
_ENDS = KEYWORDS - {"IN", "STARTS", "ENDS", "CONTAINS", "IS"}
_BEGINS = frozenset({"WHERE", "AND", "OR", "XOR", "NOT", "WHEN", "RETURN", "WITH", "CASE"})


def check(outline: Outline, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a null, written or the value of a parameter, that would have no type."""
    for index in range(len(outline)):
        if _is_null(outline, index, parameters) and not _is_safe(outline, index):
            name = outline.tokens[index].text
            raise outline.at(index, f"{name} has no type: write CAST(NULL AS STRING), or compare with it; it stands")
    _check_cases(outline, parameters)


def _is_null(outline: Outline, index: int, parameters: Mapping[str, Any]) -> bool:
    token = outline.tokens[index]
    if token.kind == "parameter":
        return parameters.get(token.text[1:], False) is None
    return outline.words[index] == "NULL"


def _is_safe(outline: Outline, index: int) -> bool:
    before, after = outline.word(index - 1), outline.word(index + 1)
    if before == "IS" or (before == "NOT" and outline.word(index - 2) == "IS"):
        return True
    if outline.calls(outline.opener[index]) == "cast" and outline.tokens[index + 1].text.upper() in {"AS", ","}:
        return outline.symbol(index - 1) == "("
    if before in {"THEN", "ELSE"}:
        return after in {"WHEN", "ELSE", "END"}
    if outline.symbol(index - 1) in _COMPARISONS:
        return _ends(outline, index + 1)
    begins = before in _BEGINS or (outline.symbol(index - 1) == "(" and not outline.calls(index - 1))
    return begins and (after == "IS" or (outline.symbol(index + 1) in _COMPARISONS and before != "CASE"))


def _ends(outline: Outline, index: int) -> bool:
    """Whether an expression ends before this token."""
    return index >= len(outline) or outline.symbol(index) in {")", ",", "]", "}", "|"} or outline.word(index) in _ENDS


def _check_cases(outline: Outline, parameters: Mapping[str, Any]) -> None:
    """A CASE whose every branch is null has no type either."""
    typed: list[bool] = []
    for index, word in enumerate(outline.words):
        if word == "CASE":
            typed.append(False)
        elif word in {"THEN", "ELSE"} and typed:
            typed[-1] = typed[-1] or not (index + 1 < len(outline) and _is_null(outline, index + 1, parameters))
        elif word == "END" and typed and not typed.pop():
            raise outline.at(index, "a CASE of nulls alone has no type: it ends")
