"""``kgserve import`` and ``kgserve export``: whole stores, as lines of JSON or in the formats of others."""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click
from typing_extensions import override

from kgserve.cli.options import connect, given, server_options
from kgserve.cli.stores import await_indexes
from kgserve.cli.terminal import Progress, as_size
from kgserve.graph.answers import ImportAnswer, nothing_imported
from kgserve.platform.permissions import private_files
from kgserve.platform.settings import load

if TYPE_CHECKING:
    from kgserve.client import Client
    from kgserve.client.embedded import Library
    from kgserve.graph.transfer.formats.csv_pair import Sink
    from kgserve.graph.transfer.formats.lines import Conversion, InputPart

EXPORT_FORMATS = ("ndjson", "parquet", "csv", "graphml", "memory-server")
IMPORT_FORMATS = (*EXPORT_FORMATS, "graphiti", "kb")
LINE_FORMATS = frozenset({"ndjson", "memory-server"})
"""What is sent as it is: the importer tells these lines apart."""
MEMORIES_FORMAT = "memories"
"""The memory server's lines as memories."""
STREAM_FORMATS = LINE_FORMATS | {"graphml", MEMORIES_FORMAT}
"""What standard input can hold."""

INPUT_BLOCK_BYTES = 256 << 10
"""Bytes sent at a time."""

MAX_INPUT_SILENCE_SECONDS = 5.0
KEEPALIVE_BLANKS = b" " * 1024
"""Blanks before a line belong to it and change nothing. A body that brings nothing for too long is given up on."""


@click.command("import")
@click.argument("store")
@click.argument("files", metavar="FILE...", nargs=-1)
@click.option(
    "--format",
    "kind",
    type=click.Choice(IMPORT_FORMATS),
    help="What FILEs are.  [default: as their names end, else ndjson]",
)
@click.option(
    "--mapping",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML or JSON file that says what the columns of CSV files mean.",
)
@click.option(
    "--as-memories",
    is_flag=True,
    help="Of the memory server's files: make entities by name, and a memory about it of each observation.",
)
@click.option("--wait-index", is_flag=True, help="Wait until search finds what was imported.")
@server_options
@private_files()
def import_(
    store: str, files: tuple[str, ...], *, kind: str | None, mapping: Path | None, as_memories: bool, wait_index: bool
) -> int:
    """Send FILEs, or standard input for "-", into STORE.

    Lines are {"kind": "node", …} or {"kind": "edge", …}, as `kgserve export` writes them, or those of the official MCP
    memory server; other formats are turned into such. With --as-memories importing a file again doubles nothing.

    A line or row that is wrong is reported by its number in its file
    and left out; the exit code is then 1. With --data, a folder that nobody serves is opened.
    """
    with ExitStack() as stack:
        if as_memories and (kind not in {None, "memory-server"} or mapping is not None):
            raise click.UsageError("--as-memories is for files of the memory server: --format memory-server")
        conversion, blocks, total = _read(files, MEMORIES_FORMAT if as_memories else kind, mapping, stack)
        if conversion is not None and conversion.fault_count and not conversion.lines:
            _summarise(store, conversion.answered(nothing_imported()), conversion)
            return 1
        with _opened_stores(indexes=wait_index) as opened:
            with Progress(f"Importing into {store}", total=total) as progress:
                answer = _send(opened, store, _counted(blocks, progress))
            if conversion is not None:
                answer = conversion.answered(answer)
            _summarise(store, answer, conversion)
            if wait_index and answer.sequence:
                await_indexes(opened.store(store).stats, answer.sequence)
    return 0 if answer.ok else 1


@contextmanager
def _opened_stores(*, indexes: bool = False) -> Generator[Client | Library]:
    """The server that was named or serves the data folder; the folder itself if it was named and nobody serves it.

    ``indexes``: whether those are wanted, too; a folder's are filled by the next server otherwise. Raises Conflict when
    another process than a server has the folder.
    """
    from kgserve.platform.server_discovery import find

    data_dir, named = given("data_dir"), given("server") is not None
    if named or data_dir is None or not Path(data_dir).is_dir() or find(Path(data_dir)) is not None:
        with connect() as client:
            yield client
        return
    from kgserve.client.embedded import Library

    settings = load({"data_dir": data_dir})
    with (
        _without_warnings(),
        Library(data_dir, history=settings.history, indexes=settings.indexes if indexes else "none") as library,
    ):
        yield library


@contextmanager
def _without_warnings() -> Generator[None]:
    """A command says itself how it went: slow commits are no news in it."""
    logger = logging.getLogger("kgserve")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _send(opened: Client | Library, store: str, blocks: Iterator[bytes]) -> ImportAnswer:
    """Import lines as they come."""
    from kgserve.client import Client
    from kgserve.client.lines import Upload
    from kgserve.client.streams import IMPORT_ROUTE

    class AsRead(Upload):
        """Sent as it is read: what a pipe has brought does not wait until there is more of it."""

        @override
        def blocks(self) -> Generator[bytes]:
            self.begun = True
            yield from blocks

    if not isinstance(opened, Client):
        return opened.store(store).import_(blocks)
    return opened.connection.answer(IMPORT_ROUTE.call({"store": store}, body=AsRead(()), wait=None))


@contextmanager
def _received(
    opened: Client | Library, store: str, as_of: str | None, valid_at: str | None
) -> Generator[Iterator[bytes]]:
    """The lines of an export, in blocks that may end anywhere."""
    from kgserve.client import Client
    from kgserve.client.streams import export

    call = export(store, as_of=as_of, valid_at=valid_at).call
    if isinstance(opened, Client):
        with opened.http.begun(call) as response:
            yield response.iter_bytes()
    else:
        with opened.local.begun(call) as (_, blocks):
            yield blocks


def lines_of(file: BinaryIO, silence: float = MAX_INPUT_SILENCE_SECONDS) -> Iterator[bytes]:
    """What is in the file, block by block; from a pipe what is there, and blanks while it is silent between lines."""
    read = getattr(file, "read1", file.read)  # waiting for a whole block would stall what comes behind the pipe
    between_lines = True
    while True:
        while between_lines and not _speaks(file, silence):
            yield KEEPALIVE_BLANKS
        block = read(INPUT_BLOCK_BYTES)
        if not block:
            return
        between_lines = block.endswith(b"\n")
        yield block


def _speaks(file: BinaryIO, seconds: float) -> bool:
    """Whether a read would return within a time: it has something, or ends."""
    try:
        return bool(select.select([file], [], [], seconds)[0])
    except (OSError, ValueError):  # no file of the system's: it is all there
        return True


def _read(
    files: tuple[str, ...], kind: str | None, mapping: Path | None, stack: ExitStack
) -> tuple[Conversion | None, Iterator[bytes], int | None]:
    """The lines to send, what they are made from unless they are the file's own, and their size in bytes if known."""
    from kgserve.graph.transfer.formats.files import import_format

    if mapping is not None:
        if kind not in {None, "csv"}:
            raise click.UsageError("--mapping is for CSV files: --format csv")
        return _converted("csv", [Path(file) for file in files], mapping, stack)
    if not files:
        raise click.UsageError("name the FILEs to import, or - for standard input")
    if "-" in files:
        return _from_pipe(files, kind)
    paths = [Path(file) for file in files]
    kind = kind or import_format(paths)
    _check_present(paths, kind)
    if kind in LINE_FORMATS and len(paths) == 1:
        file = stack.enter_context(paths[0].open("rb"))
        return None, lines_of(file), _size(file)
    return _converted(kind, paths, None, stack)


def _from_pipe(files: tuple[str, ...], kind: str | None) -> tuple[Conversion | None, Iterator[bytes], int | None]:
    from kgserve.graph.transfer.formats.files import stream_part
    from kgserve.graph.transfer.formats.lines import Conversion

    kind = kind or "ndjson"
    if len(files) > 1:
        raise click.UsageError("standard input goes alone")
    if kind not in STREAM_FORMATS:
        raise click.UsageError(f"{kind} cannot be read from standard input; name its files")
    file = sys.stdin.buffer
    if kind in LINE_FORMATS:
        return None, lines_of(file), _size(file)
    conversion = Conversion([stream_part(kind, file, "")])
    return conversion, _begun(conversion.blocks()), None


def _converted(
    kind: str, paths: list[Path], mapping: Path | None, stack: ExitStack
) -> tuple[Conversion, Iterator[bytes], int | None]:
    from kgserve.graph.transfer.formats.files import open_parts
    from kgserve.graph.transfer.formats.lines import Conversion

    parts = _foreign(paths, stack) if kind == "graphiti" else open_parts(kind, paths, stack, mapping)
    conversion = Conversion(parts)
    return conversion, _begun(conversion.blocks()), None


def _begun(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, the first of them read: what is no such file is refused before a server hears of it."""
    first = next(blocks, None)
    return iter(()) if first is None else chain((first,), blocks)


def _foreign(paths: list[Path], stack: ExitStack) -> list[InputPart]:
    from kgserve.graph.transfer.formats.graphiti import read_graphiti
    from kgserve.projections.cypher_engine.driver.foreign import foreign_file

    parts: list[InputPart] = []
    for path in paths:
        file = stack.enter_context(foreign_file(path))
        parts += read_graphiti(path.name, file.tables, file.rows)
    return parts


def _check_present(paths: list[Path], kind: str) -> None:
    from kgserve.graph.transfer.formats.files import PAIR_FORMATS, pair
    from kgserve.graph.transfer.formats.kb import is_kb_folder

    for path in paths:
        stands_for_two = kind in PAIR_FORMATS and any(each.exists() for each in pair(path, kind))
        if not (path.exists() or stands_for_two):
            raise click.BadParameter(f"{str(path)!r}: No such file or directory", param_hint="FILE")
        if path.is_dir() and kind not in PAIR_FORMATS and not (kind == "kb" and is_kb_folder(path)):
            raise click.BadParameter(f"{str(path)!r} is a folder, and {kind} is a file", param_hint="FILE")


@click.command()
@click.argument("store")
@click.option(
    "-o",
    "--output",
    help="File to write; of two files NAME.csv is NAME.nodes.csv and NAME.edges.csv, and FOLDER/ what is in it.  "
    "[default: standard output]",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(EXPORT_FORMATS),
    help="What to write.  [default: as the name ends, else ndjson]",
)
@click.option("--as-of", metavar="WHEN", help="As it was: a sequence, or a time such as 2025-07-15T12:00:00Z.")
@click.option("--valid-at", metavar="TIME", help="Only what was true in the world then, or `now`.")
@server_options
def export(store: str, *, output: str | None, kind: str | None, as_of: str | None, valid_at: str | None) -> None:
    """Write the whole of STORE as it is at one moment, one JSON object per line or in another format.

    With -o files appear when they are complete; an export that breaks off leaves none behind. With --data, a folder
    that nobody serves is opened.
    """
    from kgserve.graph.transfer.formats.files import PAIR_FORMATS, export_format

    target = None if output is None else Path(output)
    chosen = kind or export_format(target)
    hidden = target is None and sys.stdout.isatty()
    if chosen in PAIR_FORMATS and output is None:
        raise click.UsageError(f"{chosen} is two files; name them with -o")
    if target is not None and target.is_dir() and chosen not in PAIR_FORMATS:
        raise click.BadParameter(f"{output} is a folder; csv and parquet can be written into one", param_hint="-o")
    with (
        _opened_stores() as opened,
        _received(opened, store, as_of, valid_at) as blocks,
        Progress(f"Exporting {store}", hidden=hidden) as progress,
    ):
        written = _write(chosen, _counted(blocks, progress), output)
    if written:
        size = as_size(sum(path.stat().st_size for path in written))
        click.echo(f"{progress.lines:,} lines, {size}, in {' and '.join(map(str, written))}", err=True)


def _write(kind: str, blocks: Iterator[bytes], output: str | None) -> list[Path]:
    """Write an export; the files that it is in."""
    from kgserve.graph.transfer.formats.files import PAIR_FORMATS, pair

    if output is not None and kind in PAIR_FORMATS:
        target = Path(output)
        if output.endswith(os.sep):
            target.mkdir(parents=True, exist_ok=True)
        files = pair(target, kind)
        _write_pair(kind, blocks, files)
        return list(files)
    with _destination(None if output is None else Path(output)) as file:
        if kind == "ndjson":
            file.writelines(blocks)
        else:
            from kgserve.graph.transfer.formats.files import write_stream

            write_stream(kind, blocks, file)
    return [] if output is None else [Path(output)]


def _write_pair(kind: str, blocks: Iterator[bytes], files: tuple[Path, Path]) -> None:
    from kgserve.client.lines import complete
    from kgserve.graph.transfer.formats.files import write_pair

    with complete(files[0]) as nodes, complete(files[1]) as edges:
        opened = {"nodes": nodes, "edges": edges}
        sink: Sink = lambda part: nullcontext(opened[part])  # noqa: E731 - a name for its type
        write_pair(kind, blocks, sink)


def _counted(blocks: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    for block in blocks:
        yield block
        progress.add(block)


def _size(file: BinaryIO) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _summarise(store: str, answer: ImportAnswer, conversion: Conversion | None) -> None:
    for kind in ("nodes", "edges"):
        created, updated, unchanged = (
            getattr(answer, f"{kind}_{outcome}") for outcome in ("created", "updated", "unchanged")
        )
        sent = getattr(answer, f"{kind}_sent")
        click.echo(f"{kind}: {sent:,} sent, {created:,} created, {updated:,} updated, {unchanged:,} unchanged")
    click.echo(f"{store} is at sequence {answer.sequence:,}" if answer.sequence else f"nothing was written to {store}")
    unit = "line" if conversion is None else conversion.unit
    for what, count, faults in (
        ("skipped", answer.edges_skipped_count, answer.edges_skipped),
        ("wrong", answer.error_count, answer.errors),
    ):
        # What was converted has its place in the message.
        texts = [f"line {fault.line}: {fault.message}" if conversion is None else fault.message for fault in faults]
        _list_faults(f"{unit if count == 1 else f'{unit}s'} {what}", count, texts)
    _list_merged(answer, unit, has_places=conversion is not None)


def _list_merged(answer: ImportAnswer, unit: str, *, has_places: bool) -> None:
    texts = [
        each.message if has_places else f"line {each.line} repeats line {each.earlier_line}: {each.message}"
        for each in answer.merged
    ]
    _list_faults(
        f"{unit if answer.merged_count == 1 else f'{unit}s'} merged into earlier ones", answer.merged_count, texts
    )


def _list_faults(what: str, count: int, texts: list[str]) -> None:
    if not count:
        return
    click.echo(f"{count:,} {what}:", err=True)
    for text in texts:
        click.echo(f"  {text}", err=True)
    if count > len(texts):
        click.echo(f"  … and {count - len(texts):,} more", err=True)


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
        from kgserve.client.lines import complete

        with complete(output) as file:
            yield file
