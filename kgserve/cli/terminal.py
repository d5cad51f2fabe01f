"""What people see: tables and progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import click
import msgspec


class Column(msgspec.Struct, frozen=True):
    """A column of a table; numbers stand on the right, ``bytes`` are shown in units on a terminal."""

    title: str
    kind: str = "text"


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
    """Print to standard output: a table on a terminal, tab-separated lines with a header otherwise."""
    if sys.stdout.isatty():
        _show_drawn(columns, rows)
        return
    click.echo("\t".join(column.title.lower().replace(" ", "_") for column in columns))
    for row in rows:
        click.echo("\t".join(_one_line(value) for value in row))


def as_size(size: int) -> str:
    """A number of bytes for people, in units of 1,024."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _show_drawn(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.title, justify="left" if column.kind == "text" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_drawn(column, value)) for column, value in zip(columns, row, strict=True)))
    Console().print(table)


def _drawn(column: Column, value: Any) -> str:
    if column.kind == "bytes":
        return as_size(value)
    return f"{value:,}" if column.kind == "number" else str(value)


def _one_line(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


class Progress:
    """Bytes and lines that have passed, drawn on standard error when that is a terminal.

    ``total`` is the number of bytes to come, None when nobody knows.
    """

    def __init__(self, title: str, total: int | None = None, *, hidden: bool = False) -> None:
        self.bytes = 0
        self.lines = 0
        self._bar = None if hidden or not sys.stderr.isatty() else _bar(total)
        self._task = self._bar.add_task(title, total=total, lines=0, pace="") if self._bar else None

    def add(self, block: bytes) -> None:
        """Count one block."""
        self.bytes += len(block)
        self.lines += block.count(b"\n")
        if self._bar and self._task is not None:
            elapsed = self._bar.tasks[0].elapsed or 0.0
            pace = f"{self.lines / elapsed:,.0f} lines/s" if elapsed else ""
            self._bar.update(self._task, completed=self.bytes, lines=self.lines, pace=pace)

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing and leave the last state on the screen."""
        if self._bar:
            self._bar.stop()


def _bar(total: int | None) -> Any:
    from rich import progress
    from rich.console import Console

    known = [progress.BarColumn(), progress.TaskProgressColumn()] if total is not None else [progress.SpinnerColumn()]
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        *known,
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TextColumn("{task.fields[pace]}"),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
    )
