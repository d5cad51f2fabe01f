"""Markdown code fences around statements, in all interfaces."""

from __future__ import annotations

import pytest

from kgserve.cypher.markdown_code_fences import blank_code_fences

FENCED = [
    "```cypher\nRETURN 1 AS one\n```",
    "```\nRETURN 1 AS one\n```\n",
    "\n  ~~~ Cypher\r\nRETURN 1 AS one;\r\n~~~",
    "```RETURN 1 AS one```",
    "````cypher RETURN 1 AS one ````",
]


@pytest.mark.parametrize("text", FENCED)
def test_fences_are_blanked(text: str) -> None:
    found = blank_code_fences(text)
    assert len(found) == len(text)
    assert found.count("\n") == text.count("\n")
    assert found.strip().rstrip(";") == "RETURN 1 AS one"
    assert found.index("RETURN") == text.index("RETURN")


@pytest.mark.parametrize(
    "text",
    [
        "RETURN 1",
        "RETURN '```'",
        "```cypher\nRETURN 1",
        "Try this:\n```cypher\nRETURN 1\n```",
        "```\nRETURN 1\n```\n```\nRETURN 2\n```",
        "MATCH (n) RETURN n.`a``b`",
    ],
)
def test_other_texts_are_unchanged(text: str) -> None:
    assert blank_code_fences(text) == text
