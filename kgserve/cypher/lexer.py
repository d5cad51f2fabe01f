"""Cypher text cut into tokens, as Kùzu 0.11.3 cuts it, with its brackets matched.

Where the two could still differ, the engine does not get to choose: `guard.examine` passes on a text without comments
and with plain spaces, and characters that mean something to the engine but are not known here are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from kgserve.cypher.words import FIRST, FORBIDDEN, KEYWORDS, WRITES
from kgserve.errors import FieldError, Forbidden, InvalidInput

Kind = Literal["word", "quoted", "string", "number", "parameter", "symbol", "comment", "space"]


class Token(msgspec.Struct, frozen=True):
    """A piece of a text; ``start`` and ``end`` count characters. ``quoted`` is a name in back-ticks, with them."""

    kind: Kind
    text: str
    start: int
    end: int


class Unterminated(InvalidInput):
    """A string, a comment or a name in back-ticks does not end: more text may be to come."""


# Possessive: no part gives back what it took, so that matching is linear. The engine knows no other escapes, and takes
# a string with one for stray characters and code.
_ESCAPE = r"\\(?:[\\'\"bBfFnNrRtT]|[uU][0-9A-Fa-f]{4})"
_TOKEN = re.compile(
    rf"""
    (?P<space>[\s\u180e\ufeff]++)
  | (?P<comment>//[^\n\r]*+|/\*(?s:.*?)\*/)
  | (?P<word>[^\W\d][\w$]*+)
  | (?P<string>'(?:[^'\\]|{_ESCAPE})*+'|"(?:[^"\\]|{_ESCAPE})*+")
  | (?P<quoted>`[^`]++`(?:`[^`]++`)*+)
  | (?P<number>[0-9]++(?:\.[0-9]++)?(?:[eE]-?[0-9]++)?|\.[0-9]++(?:[eE]-?[0-9]++)?)
  | (?P<parameter>\$(?:[^\W\d][\w$]*+|[0-9]++))
  | (?P<symbol>\.\.|<=|>=|<>|!=|=~|<<|>>|/(?!\*)|[-()\[\]{{}}.,:;=<>+*%^|&!])
    """,
    re.VERBOSE,
)
_GAPS = ("space", "comment")


def scan(text: str) -> Iterator[Token]:
    """All tokens in order, with the spaces and comments between them; they tile the text.

    Raises InvalidInput where none can be: at an unknown character or escape, or what is opened and not closed.
    """
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        yield Token(match.lastgroup, match[0], position, match.end())  # pyright: ignore[reportArgumentType]
        position = match.end()


def tokens(text: str) -> list[Token]:
    """The tokens that mean something, without spaces and comments. Raises InvalidInput as `scan` does."""
    return [token for token in scan(text) if token.kind not in _GAPS]


def statements(text: str) -> list[tuple[int, int]]:
    """Start and end of each statement, without the ``;`` that ends it; the last may lack it. None is empty."""
    spans: list[tuple[int, int]] = []
    start = end = -1
    for token in tokens(text):
        if token.kind == "symbol" and token.text == ";":
            if start >= 0:
                spans.append((start, end))
            start = -1
        else:
            start = token.start if start < 0 else start
            end = token.end
    if start >= 0:
        spans.append((start, end))
    return spans


def complete(text: str) -> bool:
    """Whether nothing more is to come: a ``;`` ends the text, or it cannot be read at all."""
    try:
        found = tokens(text)
    except Unterminated:
        return False
    except InvalidInput:
        return True
    return bool(found) and found[-1].text == ";"


def place(text: str, offset: int) -> str:
    """The place of a character, for people: ``line 2, column 7``."""
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def invalid(text: str, offset: int, what: str) -> InvalidInput:
    """The error for a fault at a character of a text."""
    return _at(InvalidInput, text, offset, what)


def _at(kind: type[InvalidInput], text: str, offset: int, what: str) -> InvalidInput:
    message = f"{what} at {place(text, offset)}"
    return kind(message, (FieldError("query", message),))


_OPENED = {"'": "this string", '"': "this string", "`": "this name in back-ticks"}
_SOUND = {quote: re.compile(rf"{quote}(?:[^{quote}\\]|{_ESCAPE})*+") for quote in "'\""}


def _unreadable(text: str, offset: int) -> InvalidInput:
    character = text[offset]
    if text.startswith("/*", offset):
        return _at(Unterminated, text, offset, "this comment does not end: it begins")
    if text.startswith("``", offset):
        return invalid(text, offset, "a name in back-ticks cannot be empty")
    if (sound := _SOUND.get(character)) and (match := sound.match(text, offset)) and match.end() < len(text):
        return invalid(text, match.end(), "unknown escape in a string; a backslash is written \\\\")
    if character in _OPENED:
        return _at(Unterminated, text, offset, f"{_OPENED[character]} does not end: it begins")
    if character == "$":
        return invalid(text, offset, "a parameter needs a name right after $,")
    return invalid(text, offset, f"unexpected character {character!a}")


MAX_NESTING = 32
"""Brackets within brackets: the engine's parser crashes at 300 with a stack of 2 MiB, and is slow before."""

_NAMES = frozenset({"word", "quoted"})
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_ACTING = FORBIDDEN | WRITES | FIRST


class Outline:
    """Tokens by index. ``opener[i]`` is the innermost bracket around one, -1 for none; ``partner`` joins brackets."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        """Match the brackets. Raises InvalidInput for a bracket without its partner, and for deep nesting."""
        self.text = text
        self.tokens = tokens
        self.opener: list[int] = []
        self.partner: dict[int, int] = {}
        self._words = [_upper(token) for token in tokens]
        self._symbols = [token.text if token.kind == "symbol" else "" for token in tokens]
        self._names = [token.text.strip("`").lower() if token.kind in _NAMES else "" for token in tokens]
        self._match()
        self.words = [
            "" if word in KEYWORDS and self._is_name(index, word) else word for index, word in enumerate(self._words)
        ]
        """Words in upper case; empty for all other tokens, and for keywords that are only names here."""

    def __len__(self) -> int:
        return len(self.tokens)

    def symbol(self, index: int) -> str:
        """The symbol at an index, empty when there is none."""
        return self._symbols[index] if 0 <= index < len(self._symbols) else ""

    def word(self, index: int) -> str:
        """The word at an index in upper case, empty when there is none or it is only a name."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def bracket(self, index: int) -> str:
        """The innermost bracket around a token, empty for none."""
        return self.symbol(self.opener[index])

    def calls(self, index: int) -> str:
        """The name, in lower case, that the parenthesis at an index calls; empty when it calls nothing."""
        return self.name(index - 1) if self.symbol(index) == "(" else ""

    def name(self, index: int) -> str:
        """The word or quoted name at an index, in lower case, as the engine takes names; empty when there is none."""
        return self._names[index] if 0 <= index < len(self._names) else ""

    def is_variable(self, index: int) -> bool:
        """Whether a name stands there that neither is a keyword nor called."""
        return self.name(index) != "" and self.words[index] not in KEYWORDS and not self.calls(index + 1)

    def is_clause(self, index: int) -> bool:
        """Whether a word is none of STARTS WITH and ENDS WITH, which begin no clause."""
        return self.word(index) != "WITH" or self.word(index - 1) not in {"STARTS", "ENDS"}

    def is_lambda(self, index: int) -> bool:
        """Whether the token is the arrow's dash of ``x -> …``, and not of a pattern."""
        return self.symbol(index) == "-" and self.symbol(index + 1) == ">" and self.symbol(index - 1) not in {"-", "]"}

    def is_subscript(self, index: int) -> bool:
        """Whether a bracket comes right after an expression: an element or a slice of it."""
        if self.symbol(index) != "[" or index == 0:
            return False
        before = self.tokens[index - 1]
        return before.kind in {"word", "quoted", "parameter", "string"} or before.text in {")", "]", "}"}

    def is_relation(self, index: int) -> bool:
        """Whether a relation of a pattern begins there: ``[`` after a dash, or the first of two dashes."""
        symbol = self.symbol(index)
        return (symbol == "[" and self.symbol(index - 1) == "-") or (symbol == "-" and self.symbol(index + 1) == "-")

    def has_own(self, bracket: int, symbol: str) -> bool:
        """Whether a symbol stands directly within a pair of brackets."""
        within = range(bracket + 1, self.partner[bracket])
        return any(self.symbol(at) == symbol and self.opener[at] == bracket for at in within)

    def items(self, start: int, end: int) -> list[range]:
        """What stands between commas, from a token to before another; within brackets only between those of theirs."""
        opener = self.opener[start] if start < len(self) else -1
        commas = [at for at in range(start, end) if self.symbol(at) == "," and self.opener[at] == opener]
        return [range(*each) for each in zip([start, *(at + 1 for at in commas)], [*commas, end], strict=True)]

    def at(self, index: int, what: str) -> InvalidInput:
        """The error for a fault at a token."""
        return invalid(self.text, self.tokens[min(index, len(self.tokens) - 1)].start, what)

    def not_allowed(self, index: int, what: str) -> Forbidden:
        """The refusal of a token, with its place."""
        return Forbidden(self.at(index, what).message)

    def _match(self) -> None:
        open_brackets: list[int] = []
        for index, bracket in enumerate(self._symbols):
            if bracket and bracket in ")]}":
                if not open_brackets or _PAIRS[self.tokens[open_brackets[-1]].text] != bracket:
                    raise self.at(index, f"{bracket} closes nothing")
                self.partner[open_brackets[-1]] = index
                self.partner[index] = open_brackets.pop()
            self.opener.append(open_brackets[-1] if open_brackets else -1)
            if bracket in _PAIRS:
                open_brackets.append(index)
                if len(open_brackets) > MAX_NESTING:
                    raise self.at(index, f"brackets may be nested {MAX_NESTING} deep; this is deeper")
        if open_brackets:
            raise self.at(open_brackets[-1], f"{self.tokens[open_brackets[-1]].text} is not closed: it opens")

    def _is_name(self, index: int, word: str) -> bool:
        before, after = self.symbol(index - 1), self.symbol(index + 1)
        if before == "." or self._is_alias(index):
            return True
        if word not in _ACTING:
            return after == ":" and self.symbol(self.opener[index]) == "{"
        # No clause can begin after these, nor within parentheses and square brackets.
        return before in {":", ","} or after in {":", "."} or self.symbol(self.opener[index]) in {"(", "["}

    def _is_alias(self, index: int) -> bool:
        """Whether the word follows an AS that can be nothing but that: a variable may be called "as" too."""
        if self._words[max(index - 1, 0)] != "AS" or index == 1:
            return False
        before = self.tokens[index - 2]
        if before.kind == "word" and self.symbol(index - 3) != ".":
            return self._words[index - 2] not in KEYWORDS
        return before.kind != "symbol" or before.text in {")", "]", "}", "*"}


def _upper(token: Token) -> str:
    return token.text.upper() if token.kind == "word" and token.text.isascii() else ""
