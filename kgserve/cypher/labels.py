"""Giving every node of a MATCH its label: ``(n)`` means an entity.

The engine's file holds a few tables of kgserve's own; left open, a pattern would match their rows, and every node would
come with their columns.
"""

from __future__ import annotations

from kgserve.cypher.outline import Outline

LABEL = ":Entity"
_ENDS = frozenset({
    "WHERE", "RETURN", "WITH", "MATCH", "OPTIONAL", "UNWIND", "CREATE", "MERGE", "SET", "DELETE", "DETACH", "CALL",
    "UNION", "ORDER", "SKIP", "LIMIT", "HINT",
})  # fmt: skip


def unlabelled(outline: Outline) -> list[int]:
    """Indexes of the tokens after which a label is missing, in order."""
    found: list[int] = []
    for index, word in enumerate(outline.words):
        if word == "MATCH":
            found += _of_pattern(outline, index)
    return found


def _of_pattern(outline: Outline, match: int) -> list[int]:
    found: list[int] = []
    index = match + 1
    while index < len(outline) and not _is_end(outline, match, index):
        symbol = outline.symbol(index)
        if symbol in {"[", "{"}:
            index = outline.partner[index]
        elif symbol == "(" and (place := _open_place(outline, index)) is not None:
            found.append(place)
        index += 1
    return found


def _is_end(outline: Outline, match: int, index: int) -> bool:
    leaves = outline.symbol(index) in {")", "}", "]"} and outline.partner[index] < match
    return leaves or (outline.opener[index] == outline.opener[match] and outline.word(index) in _ENDS)


def _open_place(outline: Outline, parenthesis: int) -> int | None:
    """The token after which the label belongs; None when there is one, or when this is no node."""
    last = parenthesis
    if last + 1 < len(outline) and outline.tokens[last + 1].kind in {"word", "quoted"}:
        last += 1
    return last if outline.symbol(last + 1) in {")", "{"} else None
