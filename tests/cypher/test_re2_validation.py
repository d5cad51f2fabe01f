from __future__ import annotations

import pytest

from kgserve.cypher.re2_validation import find_re2_syntax_error

READ = (
    "", ".*1.*", r"\pL+\p{Lu}", "(?i)abc", "(?i:a)b", "[[:alpha:]]+", r"[^\]a]", r"\Qa(b\E", r"\d{1,3}", "(?P<x>a)",
    "[*+]", r"\x{1F600}", r"\\+", ".+?", "^$", r"[\w.-]+@[a-z]+\.(com|de)", r"[\pL\d]",
)  # fmt: skip
UNREADABLE = (
    "(", ")", "*", "(?=a)", "(?<!a)b", r"(a)\1", "a{2000}", "[z-a]", r"\p{Foo}", "a**", "a++", r"\u0041", "x{2,1}",
    "\\", "[a", r"[\p{Foo}]", r"\Z",
)  # fmt: skip


@pytest.mark.parametrize("expression", READ)
def test_valid_re2_expressions_are_accepted(expression: str) -> None:
    assert find_re2_syntax_error(expression) == ""


@pytest.mark.parametrize("expression", UNREADABLE)
def test_invalid_re2_expressions_are_reported(expression: str) -> None:
    assert find_re2_syntax_error(expression)
