"""Answers drawn on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kgserve.model.answers import CypherAnswer
from kgserve.shell.cells import cell, is_node, is_path, is_relation

NARROWEST = 8
"""Characters that a column needs to say anything; with less, each row is drawn as a list of its own."""
LONGEST = 1000
"""Characters of a value that are looked at: a terminal shows fewer."""


def draw(answer: CypherAnswer, console: Console) -> None:
    """Print the rows as a table, one line each, long values cut; or row by row when there are too many columns."""
    if not answer.columns:
        return
    if len(answer.columns) * NARROWEST > _room(len(answer.columns), console.width):
        for number, row in enumerate(answer.rows, 1):
            console.print(_record(number, answer.columns, row))
    else:
        console.print(_table(answer, console.width))


def fitted(wanted: Sequence[int], room: int) -> list[int]:
    """Widths of columns: those that want less than an even share have it, the others share what is left."""
    widths = [0] * len(wanted)
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        widths[index] = min(wanted[index], room // (len(wanted) - place))
        room -= widths[index]
    return widths


def _table(answer: CypherAnswer, width: int) -> RenderableType:
    head = [_plain(column) for column in answer.columns]
    rows = [[_text(value) for value in row] for row in answer.rows]
    wanted = [max(text.cell_len for text in column) for column in zip(head, *rows, strict=True)]
    table = _empty()
    for index, each in enumerate(fitted(wanted, _room(len(head), width))):
        numbers = rows and all(_is_number(row[index]) for row in answer.rows)
        table.add_column(
            head[index], justify="right" if numbers else "left", width=each, no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _room(columns: int, width: int) -> int:
    """Characters for the columns themselves; between two of them are three."""
    return width - 3 * columns + 1


def _record(number: int, columns: list[str], row: list[Any]) -> RenderableType:
    table = _empty()
    table.add_column(f"row {number}", no_wrap=True, style="bold")
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for column, value in zip(columns, row, strict=True):
        table.add_row(_plain(column), _text(value))
    return table


def _empty() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")


def _text(value: Any) -> Text:
    """A cell in its colour."""
    return _plain(cell(value)[:LONGEST], _style(value))


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def printable(text: str) -> str:
    """A text on one line, without anything that would steer a terminal."""
    return "".join(each if each.isprintable() else _visible(each) for each in text)


def _visible(character: str) -> str:
    return {"\n": "↵", "\t": " ", "\r": ""}.get(character, "\N{REPLACEMENT CHARACTER}")


def _style(value: Any) -> str:
    if value is None:
        return "dim"
    if is_node(value) or is_relation(value) or is_path(value):
        return "cyan"
    return "magenta" if isinstance(value, int | float) else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
