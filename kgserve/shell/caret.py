"""Showing where in a statement an error is."""

from __future__ import annotations

import re
import unicodedata

from kgserve.errors import InvalidInput, KgserveError

PLACE = re.compile(r"\bline (\d+), column (\d+)")
REACH = 60
"""Characters of a long line that are shown on either side of the place."""


def sentences(error: KgserveError) -> list[str]:
    """What an error says, without saying anything twice."""
    faults = [fault.message for fault in error.errors] if isinstance(error, InvalidInput) else []
    message = error.message.removeprefix("query: ")
    return list(dict.fromkeys([message, *(fault for fault in faults if fault not in error.message)]))


def place(error: KgserveError) -> tuple[int, int] | None:
    """Line and column of an error in its statement, both from 1, if it names them."""
    found = next((found for sentence in sentences(error) if (found := PLACE.search(sentence))), None)
    return (int(found[1]), int(found[2])) if found else None


def pointed(text: str, line: int, column: int) -> list[str]:
    """The line that is meant, and below it a caret at the column; nothing when the text has no such line."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return []
    whole = lines[line - 1].replace("\t", " ").rstrip("\r")
    at = min(column - 1, len(whole))
    start = max(0, at - REACH)
    before = ("…" if start else "") + whole[start:at]
    after = whole[at : at + REACH] + ("…" if len(whole) > at + REACH else "")
    return [f"  {before}{after}", f"  {' ' * _columns(before)}^"]


def _columns(text: str) -> int:
    """Columns of a terminal that a text takes; East Asian letters take two."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
