"""What people see: tables and progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import click
import msgspec

from kgserve.cli.options import given, keep
from kgserve.cli.shell.formats import tabbed
from kgserve.storage.model.statuses import IndexStatus

Function = TypeVar("Function", bound=Callable[..., Any])


def json_option(text: str) -> Callable[[Function], Function]:
    """The option ``--json``, by which `told_as_json` goes."""
    return click.option("--json", "as_json", is_flag=True, expose_value=False, callback=keep, help=text)


as_json_option = json_option("Print the server's answer as JSON.")


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table; numbers stand on the right, ``bytes`` are shown in units on a terminal."""

    title: str
    kind: str = "text"


def show_table(columns: Sequence[TableColumn], rows: Iterable[Sequence[Any]]) -> None:
    """Print to standard output: a table on a terminal, tab-separated lines with a header otherwise."""
    if sys.stdout.isatty():
        _show_drawn(columns, rows)
        return
    click.echo("\t".join(column.title.lower().replace(" ", "_") for column in columns))
    for row in rows:
        click.echo(tabbed([str(value) for value in row]), nl=False)


def told_as_json(value: Any) -> bool:
    """Print to standard output as JSON, if that was asked for; whether it was."""
    if given("as_json"):
        click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
        return True
    return False


def as_size(size: int) -> str:
    """A number of bytes for people, in units of 1,024."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _show_drawn(columns: Sequence[TableColumn], rows: Iterable[Sequence[Any]]) -> None:
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


def _drawn(column: TableColumn, value: Any) -> str:
    if column.kind == "text" or value == "":
        return str(value)
    return as_size(value) if column.kind == "bytes" else f"{value:,}"


class _TerminalDrawing:
    """Something that is drawn while one is inside, if it is drawn at all."""

    _bar: Any

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing and leave the last state on the screen."""
        if self._bar:
            self._bar.stop()


class Progress(_TerminalDrawing):
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


def _bar(total: int | None) -> Any:
    from rich import progress

    known = [progress.BarColumn(), progress.TaskProgressColumn()] if total is not None else [progress.SpinnerColumn()]
    pace = progress.TextColumn("{task.fields[pace]}")
    return _progress(*known, progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn(), pace)


def _progress(*columns: Any) -> Any:
    from rich import progress
    from rich.console import Console

    first, last = progress.TextColumn("{task.description}"), progress.TimeElapsedColumn()
    return progress.Progress(first, *columns, last, console=Console(stderr=True))


class IndexProgress(_TerminalDrawing):
    """How far the indexes of a store are, drawn on standard error when that is a terminal: one line for each."""

    def __init__(self) -> None:
        self._bar = _index_bar() if sys.stderr.isatty() else None
        self._tasks: dict[str, tuple[Any, int]] = {}

    def show(self, indexes: Iterable[IndexStatus]) -> None:
        """Draw the present state."""
        for index in indexes:
            if self._bar is not None:
                self._draw(self._bar, index)

    def _draw(self, bar: Any, index: IndexStatus) -> None:
        task, total = self._tasks.get(index.name, (None, 0))
        if task is None:
            task = bar.add_task(f"{index.name.capitalize()} index", total=None, entities="", note="")
        through = not (index.lag or index.pending or index.error)
        # While it is filled, nodes without any words are still counted among those to come.
        total = index.entities if through else max(total, index.entities + index.pending)
        self._tasks[index.name] = (task, total)
        note = index.error or ("" if through else f"{index.lag:,} {'commit' if index.lag == 1 else 'commits'} to go")
        done = total - index.pending
        entities = f"{done:,} of {total:,} entities"
        if through:  # also when there are none at all
            bar.update(task, total=1, completed=1, entities=entities, note=note)
        else:  # a bar moves without an end while nobody knows it
            bar.update(task, total=total if index.pending else None, completed=done, entities=entities, note=note)


def _index_bar() -> Any:
    from rich import progress

    entities, note = progress.TextColumn("{task.fields[entities]}"), "{task.fields[note]}"
    return _progress(progress.BarColumn(), entities, progress.TextColumn(note, markup=False))
