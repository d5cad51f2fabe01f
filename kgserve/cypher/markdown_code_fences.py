"""Removal of the Markdown code fences in which language models send statements."""

from __future__ import annotations

import re

_OPENING_FENCE = re.compile(
    r"(?P<fence>`{3,}|~{3,})[ \t]*(?:(?:opencypher|cypher|cql|kuzu|sql|text)(?!\S))?", re.IGNORECASE
)


def blank_code_fences(text: str) -> str:
    """Replace the fences around a statement by blanks, so that error positions match the original text.

    Texts without a fence around the whole statement are returned unchanged.
    """
    inner = text.strip()
    opening = _OPENING_FENCE.match(inner)
    if opening is None:
        return text
    fence, statement = opening["fence"], inner[opening.end() :]
    if not statement.endswith(fence) or fence in statement[: -len(fence)]:
        return text
    start = text.index(fence)
    end = start + len(inner)
    kept = text[start + opening.end() : end - len(fence)]
    return f"{text[:start]}{' ' * opening.end()}{kept}{' ' * len(fence)}{text[end:]}"
