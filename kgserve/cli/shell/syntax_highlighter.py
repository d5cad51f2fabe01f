"""Colours of a statement at the prompt: keywords, functions, labels, relationship types and property keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.formatted_text.utils import split_lines
from prompt_toolkit.lexers import Lexer
from typing_extensions import override

from kgserve.cypher.completion import COMPLETION_KEYWORDS

TokenRole = Literal[
    "comment", "string", "number", "parameter", "keyword", "function", "label", "relation type", "property", "plain",
]  # fmt: skip

_STYLES: dict[TokenRole, str] = {
    "comment": "class:pygments.comment",
    "string": "class:pygments.literal.string",
    "number": "class:pygments.literal.number",
    "parameter": "class:pygments.name.variable",
    "keyword": "class:pygments.keyword",
    "function": "class:pygments.name.function",
    "label": "class:pygments.name.class",
    "relation type": "class:pygments.name.constant",
    "property": "class:pygments.name.attribute",
    "plain": "",
}
_KEYWORDS = frozenset({*COMPLETION_KEYWORDS, "ASCENDING", "DESCENDING", "EXPLAIN", "PROFILE"})
_LITERAL_ROLES: dict[str, TokenRole] = {"string": "string", "number": "number", "parameter": "parameter"}
_LABEL_ROLES = frozenset({"label", "relation type"})
_SUBQUERY_WORDS = frozenset({"CALL", "COLLECT", "COUNT", "EXISTS"})
_TOKEN_PATTERN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<string>'(?:\\.|[^'\\])*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\Z))
  | (?P<quoted>`[^`]*(?:`|\Z))
  | (?P<parameter>\$\w+)
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<word>[^\W\d]\w*)
  | (?P<space>\s+)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_MAX_COLOURED_CHARS = 20_000
"""Longer texts are not coloured, because each key press does it again."""


class CypherHighlightToken(NamedTuple):
    """Part of a statement's text, and its role for highlighting."""

    role: TokenRole
    text: str


class _Token(NamedTuple):
    kind: str
    text: str


class _RoleFinder:
    """Roles of tokens, by the brackets around them and by their neighbours."""

    def __init__(self) -> None:
        self._brackets: list[str] = []
        self._before = _Token("symbol", "")
        self._role_before: TokenRole = "plain"

    def find(self, token: _Token, after: str) -> TokenRole:
        """Return the role of a token that is no space or comment; ``after`` is the text of the next such token."""
        if (literal := _LITERAL_ROLES.get(token.kind)) is not None:
            role = literal
        elif token.kind in {"word", "quoted"}:
            role = self._role_of_name(token, after)
        else:
            self._note_bracket(token.text)
            role = "plain"
        if token.text not in {"|", "&"}:
            self._role_before = role
        self._before = token
        return role

    def _role_of_name(self, token: _Token, after: str) -> TokenRole:
        inside = self._brackets[-1] if self._brackets else ""
        before = self._before.text
        continues = before in {"|", "&"} and inside != "[" and self._role_before in _LABEL_ROLES
        if continues or (before == ":" and inside != "{"):
            return "relation type" if inside == "-[" else "label"
        if (before == "." and after != "(") or (inside == "{" and after == ":"):
            return "property"
        if token.kind == "quoted":
            return "plain"
        if token.text.upper() in _KEYWORDS and before != ".":
            return "keyword"
        return "function" if after == "(" else "plain"

    def _note_bracket(self, text: str) -> None:
        if text in {"(", "[", "{"}:
            is_relation = text == "[" and self._before.text == "-"
            is_subquery = text == "{" and (self._before.text.upper() in _SUBQUERY_WORDS or self._before.text == ")")
            is_subquery = is_subquery and self._role_before != "property"
            self._brackets.append("-[" if is_relation else "" if is_subquery else text)
        elif text in {")", "]", "}"} and self._brackets:
            self._brackets.pop()


def tokenize_cypher_for_highlighting(text: str) -> Iterator[CypherHighlightToken]:
    """Yield the parts of a statement, which may be unfinished. Together they are the text."""
    tokens = [_Token(found.lastgroup or "symbol", found[0]) for found in _TOKEN_PATTERN.finditer(text)]
    next_texts = [""] * len(tokens)
    for at in range(len(tokens) - 1, 0, -1):
        is_blank = tokens[at].kind in {"space", "comment"}
        next_texts[at - 1] = next_texts[at] if is_blank else tokens[at].text
    finder = _RoleFinder()
    for token, after in zip(tokens, next_texts, strict=True):
        if token.kind == "comment":
            yield CypherHighlightToken("comment", token.text)
        elif token.kind == "space":
            yield CypherHighlightToken("plain", token.text)
        else:
            yield CypherHighlightToken(finder.find(token, after), token.text)


class CypherPromptHighlighter(Lexer):
    """Syntax highlighter of the Cypher prompt; shell commands stay plain."""

    @override
    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        text = document.text
        is_plain = len(text) > _MAX_COLOURED_CHARS or (text.startswith(":") and not text.startswith(":export"))
        pieces = [CypherHighlightToken("plain", text)] if is_plain else tokenize_cypher_for_highlighting(text)
        lines = [*split_lines([(_STYLES[piece.role], piece.text) for piece in pieces])]
        return lambda number: lines[number] if number < len(lines) else []
