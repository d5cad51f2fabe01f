"""Answers as people see them: lines in a terminal, tables in a notebook, the first rows of each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from html import escape
from itertools import starmap
from typing import Any, NamedTuple

_SHOWN_ROWS = 20
_SHOWN_TEXT = 200
_WIDEST = 60


class Table(NamedTuple):
    """Columns and rows, of which the first are shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> Iterator[str]:
        """The head and the first rows, one line each, in columns that are as wide as they must be."""
        cells = [[_one_line(cell) for cell in row] for row in (self.columns, *self.rows[:_SHOWN_ROWS])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  " + "  ".join(starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
        if self._more:
            yield f"  … and {self._more:,} more"

    def html(self) -> str:
        """The same for a notebook, with longer texts."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows[:_SHOWN_ROWS])
        more = f"<p>… and {self._more:,} more</p>" if self._more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    @property
    def _more(self) -> int:
        return max(len(self.rows) - _SHOWN_ROWS, 0)


class Displayed:
    """An answer that is shown as a line about it and tables."""

    __slots__ = ()

    @abstractmethod
    def _about(self) -> str:
        """What it is, in a few words."""

    @abstractmethod
    def _tables(self) -> Sequence[Table]:
        """What is in it."""

    def __repr__(self) -> str:
        lines = (line for table in self._tables() if table.rows for line in table.lines())
        return "\n".join([self._head(), *lines])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._head())}</p>" + "".join(table.html() for table in self._tables() if table.rows)

    def _head(self) -> str:
        return f"<{type(self).__name__}: {self._about()}>"


def counted(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _one_line(value: Any) -> str:
    """A cell of a terminal: without line ends and what moves the cursor."""
    text = _text(value)
    text = " ".join((text[: 4 * _WIDEST] if len(text) > 4 * _WIDEST else text).split())
    printable = "".join(sign if sign.isprintable() else "·" for sign in text)
    return printable if len(printable) <= _WIDEST else printable[: _WIDEST - 1] + "…"


def _cell(value: Any) -> str:
    text = _text(value)
    return f"<td>{escape(text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + '…')}</td>"


def _text(value: Any) -> str:
    """A value; nothing for what is not there, and of a score the digits that tell hits apart."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
