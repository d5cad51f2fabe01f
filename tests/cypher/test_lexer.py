from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.cypher.lexer import (
    UnterminatedTokenError,
    describe_text_position,
    scan_cypher_tokens,
    scan_significant_tokens,
)
from kgserve.errors import InvalidInput

PIECES = [
    "MATCH",
    "n",
    " ",
    "\n",
    "'a'",
    '"b"',
    "`c d`",
    "$p",
    "1.5e-3",
    "..",
    "<=",
    "(",
    "]",
    "/* x */",
    "// y\n",
    "é",
    ";",
    "\\",
]


@given(st.one_of(st.lists(st.sampled_from(PIECES)).map("".join), st.text(max_size=60)))
def test_tokens_cover_the_text(text: str) -> None:
    try:
        list(scan_cypher_tokens(text))
    except InvalidInput as error:
        refused = error.errors
    else:
        refused = ()
    if refused:
        assert refused[0].path == "query"
        assert "line " in refused[0].message
        return
    found = list(scan_cypher_tokens(text))
    assert "".join(token.text for token in found) == text
    assert [token.start for token in found[1:]] == [token.end for token in found[:-1]]
    assert all(text[token.start : token.end] == token.text for token in found)


@given(
    st.sampled_from(["LOAD FROM", "COPY (", "; DROP TABLE x", "CALL threads=1", "/* CREATE */ // SET"]),
    st.sampled_from("'\"`"),
)
def test_quoted_words_are_one_token(words: str, quote: str) -> None:
    assert [token.kind for token in scan_significant_tokens(f"RETURN {quote}{words}{quote}")][1:] == [
        "quoted" if quote == "`" else "string"
    ]


def test_token_kinds() -> None:
    found = scan_significant_tokens(
        "MATCH (`a b`:T) // c\nWHERE n.x >= $p /* d */ AND 'it\\'s' <> \"\\u00e9\" RETURN 1..3, .5e-2"
    )
    kinds = {token.text: token.kind for token in found}
    assert kinds["`a b`"] == "quoted"
    assert kinds["$p"] == "parameter"
    assert kinds["'it\\'s'"] == "string"
    assert kinds[">="] == kinds[".."] == "symbol"
    assert kinds["1"] == kinds[".5e-2"] == "number"
    assert "//" not in kinds


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("RETURN 'a", "line 1, column 8"),
        ("RETURN\n /* a", "line 2, column 2"),
        ("RETURN `a", "line 1, column 8"),
        ('"\\"', "line 1, column 1"),
    ],
)
def test_unterminated_tokens_are_reported_with_position(text: str, where: str) -> None:
    with pytest.raises(UnterminatedTokenError) as caught:
        scan_significant_tokens(text)
    assert caught.value.errors[0].path == "query"
    assert where in caught.value.message


@pytest.mark.parametrize("text", [r"'\q'", r"'\x41'", r"'\u12'", "``", "$ a", "a # b", "a ? b", "a ⟨ b", "\x00"])
def test_texts_that_the_engine_tokenizes_differently_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput):
        scan_significant_tokens(text)


@pytest.mark.parametrize(("offset", "line", "column"), [(0, 1, 1), (2, 1, 3), (3, 2, 1), (6, 3, 1), (8, 4, 2)])
def test_positions_have_line_and_column(offset: int, line: int, column: int) -> None:
    assert describe_text_position("ab\ncd\n\nef", offset) == f"line {line}, column {column}"


@pytest.mark.parametrize(
    "text", ["'" + "a" * 60_000, "'" + "\\\\" * 30_000, "/*" * 30_000, "`a" * 30_000, "(" * 60_000, "1" * 60_000]
)
def test_scanning_takes_linear_time(text: str) -> None:
    start = time.thread_time()
    with suppress(InvalidInput):
        scan_significant_tokens(text)
    assert time.thread_time() - start < 10  # 0.03 s on an idle machine; quadratic time takes minutes
