"""Output of rows, notes and errors: formatted on a terminal, plain in a pipe."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kgserve.cli.shell.cypher_script_splitter import StatementOrCommand
from kgserve.cli.shell.formats import (
    WRITERS,
    Mode,
    format_cell,
    is_graph_node_value,
    is_graph_path_value,
    is_graph_relation_value,
)
from kgserve.errors import InvalidInput, KgserveError
from kgserve.graph.answers import CypherAnswer

MIN_COLUMN_CHARS = 8
"""Minimum width of a column in characters; with less, each row is drawn as its own list."""
MAX_CELL_CHARS = 1000
"""Maximum number of characters of a value that are rendered."""
ERROR_POSITION = re.compile(r"\bline (\d+), column (\d+)")
ERROR_CONTEXT_CHARS = 60
"""Characters of a long line that are shown on either side of an error."""


class ShellOutput:
    """Output of the shell. ``terminal`` is True if standard output is a terminal."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self._first = True

    def show(self, answer: CypherAnswer, mode: Mode) -> None:
        """Write rows to standard output in the given mode."""
        if mode == "table" and self.terminal:
            print_rows_as_table(answer, Console(highlight=False))
        else:
            self._write(answer, mode)
        sys.stdout.flush()  # a program may read concurrently

    def tell(self, message: str) -> None:
        """Write output that the user requested."""
        sys.stdout.write(f"{message}\n")

    def note(self, message: str) -> None:
        """Write a note to the user, on a terminal only."""
        if self.terminal:
            self._coloured(sys.stdout, "dim", message)

    def warn(self, message: str) -> None:
        """Write a warning to standard error."""
        sys.stdout.flush()
        self._coloured(sys.stderr, "yellow", message)

    def fail(self, error: KgserveError, entry: StatementOrCommand | None = None, source: str | None = None) -> None:
        """Write an error with its position in ``source``, and mark the position within the statement."""
        sys.stdout.flush()
        first, *rest = (
            escape_unprintable(line)
            for sentence in list_distinct_messages_of_error(error)
            for line in sentence.split("\n")
        )
        where = f"{source}:{entry.line}: " if source and entry else ""
        self._coloured(sys.stderr, "bold red", f"{where}{first}")
        for line in rest:
            self._coloured(sys.stderr, "red", f"  {line}")
        found = find_statement_error_position(error)
        if found and entry:
            for line in format_error_caret_lines(entry.text, *found):
                sys.stderr.write(f"{escape_unprintable(line)}\n")

    def _write(self, answer: CypherAnswer, mode: Mode) -> None:
        if mode == "table" and not answer.columns:
            return
        if mode == "table" and not self._first:
            sys.stdout.write("\n")  # separates tables in a pipe
        self._first = False
        for text in WRITERS[mode](answer):
            sys.stdout.write(text)

    def _coloured(self, stream: TextIO, style: str, message: str) -> None:
        console = Console(file=stream, highlight=False, soft_wrap=True)
        console.print(Text(message, style=style))


def print_rows_as_table(answer: CypherAnswer, console: Console) -> None:
    """Print rows as a table with shortened values, or as one list per row if the columns do not fit."""
    if not answer.columns:
        return
    if len(answer.columns) * MIN_COLUMN_CHARS > _available_width(len(answer.columns), console.width):
        for number, row in enumerate(answer.rows, 1):
            console.print(_record(number, answer.columns, row))
    else:
        console.print(_table(answer, console.width))


def fit_column_widths(wanted: Sequence[int], available: int) -> list[int]:
    """Distribute the available width over columns. Narrow columns leave the rest of their share to others."""
    widths = [0] * len(wanted)
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        widths[index] = min(wanted[index], available // (len(wanted) - place))
        available -= widths[index]
    return widths


def escape_unprintable(text: str) -> str:
    """Return a text as one line without control characters, which could affect the terminal."""
    return "".join(each if each.isprintable() else _visible(each) for each in text)


def list_distinct_messages_of_error(error: KgserveError) -> list[str]:
    """Return the messages of an error without repetitions."""
    faults = [fault.message for fault in error.errors] if isinstance(error, InvalidInput) else []
    message = error.message.removeprefix("query: ")
    return list(dict.fromkeys([message, *(fault for fault in faults if fault not in error.message)]))


def find_statement_error_position(error: KgserveError) -> tuple[int, int] | None:
    """Return line and column of an error in its statement, both from 1; None if the error names none."""
    found = next(
        (found for sentence in list_distinct_messages_of_error(error) if (found := ERROR_POSITION.search(sentence))),
        None,
    )
    return (int(found[1]), int(found[2])) if found else None


def format_error_caret_lines(text: str, line: int, column: int) -> list[str]:
    """Return the line of an error, and below it a caret at the column; nothing when the text has no such line."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return []
    whole = lines[line - 1].replace("\t", " ").rstrip("\r")
    at = min(column - 1, len(whole))
    start = max(0, at - ERROR_CONTEXT_CHARS)
    before = ("…" if start else "") + whole[start:at]
    after = whole[at : at + ERROR_CONTEXT_CHARS] + ("…" if len(whole) > at + ERROR_CONTEXT_CHARS else "")
    return [f"  {before}{after}", f"  {' ' * _columns(before)}^"]


def _table(answer: CypherAnswer, width: int) -> RenderableType:
    head = [_plain(column) for column in answer.columns]
    rows = [[_text(value) for value in row] for row in answer.rows]
    wanted = [max(text.cell_len for text in column) for column in zip(head, *rows, strict=True)]
    table = _empty()
    for index, each in enumerate(fit_column_widths(wanted, _available_width(len(head), width))):
        numbers = rows and all(_is_number(row[index]) for row in answer.rows)
        table.add_column(
            head[index], justify="right" if numbers else "left", width=each, no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _available_width(columns: int, width: int) -> int:
    """Return the characters left for cell contents; columns are separated by three characters."""
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
    """Return a cell in its colour."""
    return _plain(format_cell(value)[:MAX_CELL_CHARS], _style(value))


def _plain(text: str, style: str = "") -> Text:
    return Text(escape_unprintable(text), style=style)


def _visible(character: str) -> str:
    return {"\n": "↵", "\t": " ", "\r": ""}.get(character, "\N{REPLACEMENT CHARACTER}")


def _style(value: Any) -> str:
    if value is None:
        return "dim"
    if is_graph_node_value(value) or is_graph_relation_value(value) or is_graph_path_value(value):
        return "cyan"
    return "magenta" if isinstance(value, int | float) else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _columns(text: str) -> int:
    """Return the number of terminal columns of a text; East Asian wide characters take two."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )
