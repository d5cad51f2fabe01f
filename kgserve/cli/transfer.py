"""``kgserve import`` and ``kgserve export``: whole stores in the exchange format, one JSON object per line."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from kgserve.cli.indexes import await_indexes
from kgserve.cli.remote import check, connect, decode, find, server_options, store_path
from kgserve.cli.terminal import Progress, as_size
from kgserve.model.answers import ImportAnswer

BLOCK = 256 << 10
"""Bytes sent at a time."""


@click.command("import")
@click.argument("store")
@click.argument("file", type=click.File("rb"))
@click.option("--wait-index", is_flag=True, help="Wait until search finds what was imported.")
@server_options
def import_(store: str, file: BinaryIO, *, wait_index: bool, server: str | None, data_dir: str | None) -> int:
    """Send FILE, or standard input for "-", into STORE.

    Lines are {"kind": "node", …} or {"kind": "edge", …}, as `kgserve export` writes them. A line that is wrong is
    reported by its number and left out; the exit code is then 1.
    """
    with connect(find(server, data_dir)) as client:
        with Progress(f"Importing into {store}", total=_size(file)) as progress:
            response = client.post(
                store_path(store, "import"),
                content=_blocks(file, progress),
                headers={"Content-Type": "application/x-ndjson"},
            )
        answer = decode(response, ImportAnswer)
        _summarise(store, answer)
        if wait_index:
            await_indexes(client, store, answer.sequence)
    return 0 if answer.ok else 1


@click.command()
@click.argument("store")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: standard output]"
)
@server_options
def export(store: str, output: Path | None, server: str | None, data_dir: str | None) -> None:
    """Write the whole of STORE as it is at one moment, one JSON object per line.

    With -o the file appears when it is complete; an export that breaks off leaves none behind.
    """
    hidden = output is None and sys.stdout.isatty()
    with (
        connect(find(server, data_dir)) as client,
        client.stream("GET", store_path(store, "export")) as response,
    ):
        check(response)
        with _destination(output) as file, Progress(f"Exporting {store}", hidden=hidden) as progress:
            for block in response.iter_bytes():
                file.write(block)
                progress.add(block)
    if output is not None:
        click.echo(f"{progress.lines:,} lines, {as_size(progress.bytes)}, in {output}", err=True)


def _blocks(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)  # of a pipe, what is there: waiting for a whole block would stall the rest
    while block := read(BLOCK):
        yield block
        progress.add(block)


def _size(file: BinaryIO) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _summarise(store: str, answer: ImportAnswer) -> None:
    for kind in ("nodes", "edges"):
        created, updated, unchanged = (
            getattr(answer, f"{kind}_{outcome}") for outcome in ("created", "updated", "unchanged")
        )
        sent = getattr(answer, f"{kind}_sent")
        click.echo(f"{kind}: {sent:,} sent, {created:,} created, {updated:,} updated, {unchanged:,} unchanged")
    click.echo(f"{store} is at sequence {answer.sequence:,}")
    _list_lines("skipped", answer.edges_skipped_count, [(line.line, line.message) for line in answer.edges_skipped])
    _list_lines("wrong", answer.error_count, [(line.line, line.message) for line in answer.errors])


def _list_lines(what: str, count: int, lines: list[tuple[int, str]]) -> None:
    if not count:
        return
    click.echo(f"{count:,} {'line' if count == 1 else 'lines'} {what}:", err=True)
    for number, message in lines:
        click.echo(f"  line {number}: {message}", err=True)
    if count > len(lines):
        click.echo(f"  … and {count - len(lines):,} more", err=True)


@contextmanager
def _destination(output: Path | None) -> Generator[BinaryIO]:
    """Standard output, or a file that appears under its name only when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif output.exists() and not output.is_file():  # a device or a named pipe cannot be replaced
        with output.open("wb") as file:
            yield file
    else:
        from kgserve.client.files import complete

        with complete(output) as file:
            yield file
