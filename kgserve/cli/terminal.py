"""Output of commands: tables and progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import click
import msgspec

from kgserve.cli.options import get_click_option_value, save_click_option_value
from kgserve.cli.shell.formats import format_tab_separated_line
from kgserve.storage.model.projection_statuses import IndexStatus

Function = TypeVar("Function", bound=Callable[..., Any])


def make_json_option(text: str) -> Callable[[Function], Function]:
    """Return the option ``--json``, which `print_json_if_requested` reads."""
    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, callback=save_click_option_value, help=text
    )


as_json_option = make_json_option("Print the server's answer as JSON.")


class TerminalTableColumn(msgspec.Struct, frozen=True):
    """A column of a table. Numbers are right-aligned; ``bytes`` are shown in units on a terminal."""

    title: str
    kind: str = "text"


def print_table_or_tsv(columns: Sequence[TerminalTableColumn], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on a terminal, or tab-separated lines with a header otherwise, to standard output."""
    if sys.stdout.isatty():
        _draw_table(columns, rows)
        return
    click.echo("\t".join(column.title.lower().replace(" ", "_") for column in columns))
    for row in rows:
        click.echo(format_tab_separated_line([str(value) for value in row]), nl=False)


def print_json_if_requested(value: Any) -> bool:
    """Print ``value`` as JSON to standard output if ``--json`` was given. Return True if it was."""
    if get_click_option_value("as_json"):
        click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
        return True
    return False


def format_size(size: int) -> str:
    """Return a number of bytes as text in units of 1,024."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _draw_table(columns: Sequence[TerminalTableColumn], rows: Iterable[Sequence[Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.title, justify="left" if column.kind == "text" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_format_cell(column, value)) for column, value in zip(columns, row, strict=True)))
    Console().print(table)


def _format_cell(column: TerminalTableColumn, value: Any) -> str:
    if column.kind == "text" or value == "":
        return str(value)
    return format_size(value) if column.kind == "bytes" else f"{value:,}"


def print_listed_texts(what: str, count: int, texts: Sequence[str]) -> None:
    """Print on standard error how many there are of something, if any, and those of them that are known."""
    if not count:
        return
    click.echo(f"{count:,} {what}:", err=True)
    for text in texts:
        click.echo(f"  {text}", err=True)
    if count > len(texts):
        click.echo(f"  … and {count - len(texts):,} more", err=True)


class _LiveDisplay:
    """Display that is drawn within a `with` block, if at all."""

    _bar: Any

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing, and leave the last state on the screen."""
        if self._bar:
            self._bar.stop()


class TransferProgressBar(_LiveDisplay):
    """Progress of bytes and lines, drawn on standard error if that is a terminal.

    ``total`` is the expected number of bytes, None if unknown.
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

    def count(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield blocks, and count each after it was used."""
        for block in blocks:
            yield block
            self.add(block)


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


class IndexProgressDisplay(_LiveDisplay):
    """Progress of a store's indexes, one line each, drawn on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._bar = _index_bar() if sys.stderr.isatty() else None
        self._tasks: dict[str, tuple[Any, int]] = {}

    def show(self, indexes: Iterable[IndexStatus]) -> None:
        """Draw the current state."""
        for index in indexes:
            if self._bar is not None:
                self._draw(self._bar, index)

    def _draw(self, bar: Any, index: IndexStatus) -> None:
        task, total = self._tasks.get(index.name, (None, 0))
        if task is None:
            task = bar.add_task(f"{index.name.capitalize()} index", total=None, entities="", note="")
        complete = not (index.lag or index.pending or index.error)
        # During a rebuild, nodes without words still count as pending.
        total = index.entities if complete else max(total, index.entities + index.pending)
        self._tasks[index.name] = (task, total)
        note = index.error or ("" if complete else f"{index.lag:,} {'commit' if index.lag == 1 else 'commits'} to go")
        done = total - index.pending
        entities = f"{done:,} of {total:,} entities"
        if index.progress is not None:  # the index being replaced has entities, too
            bar.update(task, total=1, completed=index.progress, entities=f"{index.progress:.0%} rebuilt", note=note)
        elif complete:  # also without any entities
            bar.update(task, total=1, completed=1, entities=entities, note=note)
        else:  # the bar is indeterminate while the total is unknown
            bar.update(task, total=total if index.pending else None, completed=done, entities=entities, note=note)


def _index_bar() -> Any:
    from rich import progress

    entities, note = progress.TextColumn("{task.fields[entities]}"), "{task.fields[note]}"
    return _progress(progress.BarColumn(), entities, progress.TextColumn(note, markup=False))
