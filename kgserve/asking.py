"""Asking SQLite about many rows at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_AT_ONCE = 500
_Value = str | int | bytes


def of_some(
    run: Callable[..., sqlite3.Cursor],
    query: str,
    values: Sequence[_Value],
    *,
    before: Sequence[_Value] = (),
    end: str = "",
) -> Iterator[Any]:
    """The rows of a query that goes on with ``IN``, for some values; ``before`` are others, in front of them.

    In slices, each asked for when the one before was read. Not by json_each, for which a NUL ends a text.
    """
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        yield from run(f"{query} ({', '.join('?' * len(some))}) {end}", [*before, *some])


def of_rows(
    run: Callable[..., sqlite3.Cursor], query: str, rows: Sequence[Sequence[_Value]], end: str
) -> Iterator[Any]:
    """The rows of a query that goes on with rows of values to join, and then with ``end``; in such slices as well."""
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        marks = f"({', '.join('?' * len(some[0]))})"
        values = [each for row in some for each in row]
        yield from run(f"{query} (VALUES {', '.join([marks] * len(some))}) {end}", values)


def named(name: str, values: Sequence[_Value]) -> dict[str, _Value]:
    """Values as parameters of a query: `NAME0`, `NAME1`."""
    return {f"{name}{at}": value for at, value in enumerate(values)}
