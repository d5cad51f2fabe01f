"""Cypher text cut into tokens, as Kùzu 0.11.3 cuts it.

Where the two could still differ, the engine does not get to choose: `guard.examine` passes on a text without comments
and with plain spaces, and characters that mean something to the engine but are not known here are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from kgserve.errors import FieldError, InvalidInput

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


def offset_of(text: str, line: int, column: int) -> int:
    """The character at a line and a column, both from 1; the end of the text when it has none there."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    if not 1 <= line <= len(starts):
        return len(text)
    return min(starts[line - 1] + column - 1, len(text))


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
