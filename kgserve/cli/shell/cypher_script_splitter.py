"""Splitting of a script into statements and commands."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Literal

import msgspec

from kgserve.cypher.lexer import UnterminatedTokenError, scan_cypher_tokens
from kgserve.errors import InvalidInput

STATEMENT_GAP = re.compile(r"[\s;\u180e\ufeff]+|//[^\n\r]*|/\*.*?\*/", re.DOTALL)
EXPORT_COMMAND = re.compile(r':export\b[ \t]*(?:"[^"\n]*"|[^\s;]+)?')
"""The only command that contains a statement, up to its file name, which is not Cypher."""
STATEMENT_WINDOW_CHARS = 1 << 16
"""Characters that are first searched for a statement's end; copying the rest of a long script each time is slow."""


class StatementOrCommand(msgspec.Struct, frozen=True):
    """A statement without its semicolon, or a command with its colon.

    ``line``: its first line, from 1. ``ended``: False when the text ended before the entry did.
    """

    text: str
    line: int
    ended: bool


def split_cypher_script(text: str) -> Iterator[StatementOrCommand]:
    """Yield the entries of a text in order. A statement ends at a semicolon, a command at the end of its line."""
    newlines = [found.start() for found in re.finditer("\n", text)]
    for start, end, ended in _spans(text):
        yield StatementOrCommand(text[start:end].rstrip(), bisect_left(newlines, start) + 1, ended)


def is_last_statement_unfinished(text: str) -> bool:
    """Return True if the last entry of a text is incomplete."""
    last = deque(split_cypher_script(text), maxlen=1)
    return bool(last) and not last[0].ended


def _spans(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield start, end and completeness of each entry."""
    position = 0
    while position < len(text):
        start = _start_of_entry(text, position)
        if text.startswith(":", start):
            end, ended, position = _end_of_command(text, start)
        else:
            end, ended = _end_of_statement(text, start)
            position = end + 1
        if start < end:
            yield start, end, ended


def _start_of_entry(text: str, offset: int) -> int:
    """Return the offset of the next entry, after whitespace and comments."""
    position = offset
    while found := STATEMENT_GAP.match(text, position):
        position = found.end()
    return position


def _end_of_command(text: str, start: int) -> tuple[int, bool, int]:
    """Return the end of a command, whether it is complete, and the offset after it."""
    if export := EXPORT_COMMAND.match(text, start):
        end, ended = _end_of_statement(text, export.end())
        return end, ended, end + 1
    line = text.find("\n", start)
    end = line if line >= 0 else len(text)
    return end, True, end


def _end_of_statement(text: str, start: int) -> tuple[int, bool]:
    """Return the offset of a statement's semicolon or the end of the text, and whether the statement is complete."""
    end, how = _semicolon(text[start : start + STATEMENT_WINDOW_CHARS])
    if how != "found" and start + STATEMENT_WINDOW_CHARS < len(text):
        end, how = _semicolon(text[start:])
    return start + end, how != "missing"


def _semicolon(text: str) -> tuple[int, Literal["found", "missing", "unreadable"]]:
    """Find the semicolon that ends a statement. Text that cannot be tokenized ends at the next semicolon."""
    position = 0
    try:
        for token in scan_cypher_tokens(text):
            if token.text == ";":
                return token.start, "found"
            position = token.end
    except UnterminatedTokenError:
        return len(text), "missing"
    except InvalidInput:
        semicolon = text.find(";", position)
        return (semicolon if semicolon >= 0 else len(text)), "unreadable"
    return len(text), "missing"
