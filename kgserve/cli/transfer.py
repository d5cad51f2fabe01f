"""``kgserve import`` and ``kgserve export``: whole stores, as JSON lines or in other formats."""

from __future__ import annotations

import codecs
import logging
import os
import select
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click
from typing_extensions import override

from kgserve.cli.options import add_server_options, get_click_option_value, open_server_client
from kgserve.cli.stores import wait_until_indexes_complete
from kgserve.cli.terminal import TransferProgressBar, format_size, print_listed_texts
from kgserve.errors import NotFound
from kgserve.graph.answers import ImportAnswer, empty_import_answer
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings

if TYPE_CHECKING:
    from kgserve.client import Client
    from kgserve.client.embedded import Library
    from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap, ImportSourceTable
    from kgserve.graph.transfer.formats.nodes_and_edges_csv import TableFileOpener

EXPORT_FORMATS = ("ndjson", "parquet", "csv", "graphml", "memory-server", "mem0", "markdown")
IMPORT_FORMATS = (*EXPORT_FORMATS, "graphiti", "kb")
LINE_FORMATS = frozenset({"ndjson", "memory-server"})
"""Formats that are sent unchanged; the server distinguishes their lines."""
MEMORIES_FORMAT = "memories"
"""Lines of the MCP memory server, converted to memories."""
STREAM_FORMATS = LINE_FORMATS | {"graphml", "mem0", MEMORIES_FORMAT}
"""Formats that can be read from standard input."""
_GZIP_START = b"\x1f\x8b"

INPUT_BLOCK_BYTES = 256 << 10
"""Maximum size of a block in bytes."""

MAX_INPUT_SILENCE_SECONDS = 5.0
KEEPALIVE_BLANKS = b" " * 1024
"""Whitespace sent before a line while the input is idle, which keeps the request from timing out."""


@click.command("import")
@click.argument("store")
@click.argument("files", metavar="FILE...", nargs=-1)
@click.option(
    "--format",
    "kind",
    type=click.Choice(IMPORT_FORMATS),
    help="Format of FILEs.  [default: by file extension, else ndjson]",
)
@click.option(
    "--mapping",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML or JSON file that maps the columns of CSV files.",
)
@click.option(
    "--as-memories",
    is_flag=True,
    help="For files of the MCP memory server: create entities by name, and a memory for each observation.",
)
@click.option("--dry-run", is_flag=True, help="For Markdown: show what an import would change; write nothing.")
@click.option("--delete", is_flag=True, help="For Markdown: delete notes of earlier imports whose files are gone.")
@click.option("--wait-index", is_flag=True, help="Wait until search finds what was imported.")
@add_server_options
@private_umask()
def import_files_command(
    store: str,
    files: tuple[str, ...],
    *,
    kind: str | None,
    mapping: Path | None,
    as_memories: bool,
    dry_run: bool,
    delete: bool,
    wait_index: bool,
) -> int:
    """Import FILEs, or standard input for "-", into STORE.

    Lines are {"kind": "node", …} or {"kind": "edge", …}, as `kgserve export` writes them, or lines of the official MCP
    memory server. Other formats are converted. With --as-memories, a repeated import creates no duplicates.

    Invalid lines or rows, and edges without their nodes, are reported and skipped; the exit code is then 1. If --data
    names a folder without a running server, the command opens it directly.
    """
    with ExitStack() as stack:
        if as_memories and (kind not in {None, "memory-server"} or mapping is not None):
            raise click.UsageError("--as-memories requires files of the MCP memory server: --format memory-server.")
        if (folder := _find_markdown_folder(files, kind)) is not None and mapping is None and not as_memories:
            return _import_markdown(store, folder, dry_run=dry_run, delete=delete, wait_index=wait_index)
        if dry_run or delete:
            raise click.UsageError("--dry-run and --delete require a folder of Markdown notes.")
        conversion, blocks, total = _read(files, MEMORIES_FORMAT if as_memories else kind, mapping, stack)
        if conversion is not None and conversion.fault_count and not conversion.lines:
            _summarise(store, conversion.translate_answer(empty_import_answer()), conversion)
            return 1
        with _open_backend(indexes=wait_index) as opened:
            with TransferProgressBar(f"Importing into {store}", total=total) as progress:
                answer = _send(opened, store, progress.count(blocks))
            if conversion is not None:
                answer = conversion.translate_answer(answer)
            _summarise(store, answer, conversion)
            if wait_index and answer.sequence:
                wait_until_indexes_complete(opened.store(store).stats, answer.sequence)
    return _exit_code(answer)


def _exit_code(answer: ImportAnswer) -> int:
    return 0 if answer.ok and not answer.edges_skipped_count else 1


def _find_markdown_folder(files: tuple[str, ...], kind: str | None) -> Path | None:
    """Return the folder of notes that an import names, or None if it names files of another format."""
    from kgserve.cli.markdown_transfer import is_markdown_folder

    if kind == "markdown" and (len(files) != 1 or not Path(files[0]).is_dir()):
        raise click.UsageError("markdown requires one folder of notes.")
    if kind == "markdown" or (kind is None and len(files) == 1 and is_markdown_folder(Path(files[0]))):
        return Path(files[0])
    return None


def _import_markdown(store: str, folder: Path, *, dry_run: bool, delete: bool, wait_index: bool) -> int:
    """Import a folder of notes; only differences from the store are sent."""
    from kgserve.cli.markdown_transfer import MarkdownImportRun

    with _open_backend(indexes=wait_index) as opened:
        run = MarkdownImportRun(folder, _export_blocks(opened, store, None, None), delete=delete)
        if dry_run:
            return 0 if run.check() else 1
        answer = empty_import_answer()
        with TransferProgressBar(f"Importing into {store}") as progress:
            blocks = progress.count(run.conversion.blocks())
            if (first := next(blocks, None)) is not None:
                answer = _send(opened, store, chain((first,), blocks))
        answer = run.complete(opened.store(store), run.conversion.translate_answer(answer))
        _summarise(store, answer, run.conversion)
        run.report()
        if wait_index and answer.sequence:
            wait_until_indexes_complete(opened.store(store).stats, answer.sequence)
    return _exit_code(answer)


@contextmanager
def _open_backend(*, indexes: bool = False) -> Generator[Client | Library]:
    """Yield a client of the selected server, or the data folder itself if it was named and no server runs.

    ``indexes``: also fill the indexes of an opened folder, which the next server does otherwise. Raises Conflict when a
    process other than a server has locked the folder.
    """
    from kgserve.platform.server_discovery import find_running_server_of_data_folder

    data_dir, named = get_click_option_value("data_dir"), get_click_option_value("server") is not None
    if (
        named
        or data_dir is None
        or not Path(data_dir).is_dir()
        or find_running_server_of_data_folder(Path(data_dir)) is not None
    ):
        with open_server_client() as client:
            yield client
        return
    from kgserve.client.embedded import Library

    settings = load_settings({"data_dir": data_dir})
    with (
        _without_warnings(),
        Library(data_dir, history=settings.history, indexes=settings.indexes if indexes else "none") as library,
    ):
        yield library


@contextmanager
def _without_warnings() -> Generator[None]:
    """Suppress the log's warnings; the command reports its outcome itself."""
    logger = logging.getLogger("kgserve")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _send(opened: Client | Library, store: str, blocks: Iterator[bytes]) -> ImportAnswer:
    """Import lines as they arrive."""
    from kgserve.client import Client
    from kgserve.client.custom_request_builders import IMPORT_ROUTE
    from kgserve.client.json_lines_stream import ImportUpload

    class StreamedUpload(ImportUpload):
        """Upload without buffering: data from a pipe is sent as soon as it arrives."""

        @override
        def blocks(self) -> Generator[bytes]:
            self.begun = True
            yield from blocks

    if not isinstance(opened, Client):
        return opened.store(store).import_(blocks)
    # A stream cannot be sent again, so it goes to the node that serves the store at once.
    with suppress(NotFound):
        opened.store(store).stats()
    upload = IMPORT_ROUTE.call({"store": store}, body=StreamedUpload(()), wait=None, store=store)
    return opened.connection.answer(upload)


@contextmanager
def _export_blocks(
    opened: Client | Library, store: str, as_of: str | None, valid_at: str | None
) -> Generator[Iterator[bytes]]:
    """Yield the lines of an export, in blocks that may end within a line."""
    from kgserve.client import Client
    from kgserve.client.custom_request_builders import export

    call = export(store, as_of=as_of, valid_at=valid_at).call
    if isinstance(opened, Client):
        with opened.http.begun(call) as response:
            yield response.iter_bytes()
    else:
        with opened.local.begun(call) as (_, blocks):
            yield blocks


def read_upload_source_with_keepalive_blanks(
    file: BinaryIO, silence: float = MAX_INPUT_SILENCE_SECONDS
) -> Iterator[bytes]:
    """Yield a file block by block. From a pipe, yield whitespace during pauses of ``silence`` seconds between lines."""
    read = getattr(file, "read1", file.read)  # waiting for a whole block would delay the data of a slow pipe
    between_lines = True
    while True:
        while between_lines and not _is_readable(file, silence):
            yield KEEPALIVE_BLANKS
        block = read(INPUT_BLOCK_BYTES)
        if not block:
            return
        between_lines = block.endswith(b"\n")
        yield block


def _is_readable(file: BinaryIO, seconds: float) -> bool:
    """Return True if a read would return within ``seconds``, with data or the end of the file."""
    readable = select.poll()
    try:
        readable.register(file, select.POLLIN)
        return bool(readable.poll(seconds * 1000))
    except (OSError, ValueError):  # not a file descriptor: all data is present
        return True


def _read(
    files: tuple[str, ...], kind: str | None, mapping: Path | None, stack: ExitStack
) -> tuple[ImportLinesWithSourceMap | None, Iterator[bytes], int | None]:
    """Return the lines to send, their conversion if they are converted, and their size in bytes if known."""
    from kgserve.graph.transfer.formats.import_export_files import detect_import_format

    if mapping is not None:
        if kind not in {None, "csv"}:
            raise click.UsageError("--mapping requires CSV files: --format csv.")
        return _convert("csv", [Path(file) for file in files], mapping, stack)
    if not files:
        raise click.UsageError("Specify the FILEs to import, or - for standard input.")
    if "-" in files:
        return _from_pipe(files, kind)
    paths = [Path(file) for file in files]
    kind = kind or detect_import_format(paths)
    _check_files(paths, kind)
    if kind in LINE_FORMATS and len(paths) == 1:
        file = stack.enter_context(paths[0].open("rb"))
        return None, read_upload_source_with_keepalive_blanks(file), _size(file)
    return _convert(kind, paths, None, stack)


def _from_pipe(
    files: tuple[str, ...], kind: str | None
) -> tuple[ImportLinesWithSourceMap | None, Iterator[bytes], int | None]:
    from kgserve.graph.transfer.formats.import_export_files import read_stream_as_import_table
    from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap

    kind = kind or "ndjson"
    if len(files) > 1:
        raise click.UsageError("`-` cannot be combined with other files.")
    if kind not in STREAM_FORMATS:
        raise click.UsageError(f"{kind} cannot be read from standard input; specify its files.")
    file = sys.stdin.buffer
    if kind in LINE_FORMATS:
        return None, read_upload_source_with_keepalive_blanks(file), _size(file)
    conversion = ImportLinesWithSourceMap([read_stream_as_import_table(kind, file, "")])
    return conversion, _with_first_read(conversion.blocks()), None


def _convert(
    kind: str, paths: list[Path], mapping: Path | None, stack: ExitStack
) -> tuple[ImportLinesWithSourceMap, Iterator[bytes], int | None]:
    from kgserve.graph.transfer.formats.import_export_files import open_import_source_tables
    from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap

    parts = (
        _open_graphiti(paths, stack) if kind == "graphiti" else open_import_source_tables(kind, paths, stack, mapping)
    )
    conversion = ImportLinesWithSourceMap(parts)
    return conversion, _with_first_read(conversion.blocks()), None


def _with_first_read(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Read the first block ahead, so that an invalid file is rejected before a request is sent."""
    first = next(blocks, None)
    return iter(()) if first is None else chain((first,), blocks)


def _open_graphiti(paths: list[Path], stack: ExitStack) -> list[ImportSourceTable]:
    from kgserve.graph.transfer.formats.graphiti_import import read_graphiti
    from kgserve.projections.cypher_engine.driver.foreign_kuzu_file import open_foreign_kuzu_file

    parts: list[ImportSourceTable] = []
    for path in paths:
        file = stack.enter_context(open_foreign_kuzu_file(path))
        parts += read_graphiti(path.name, file.tables, file.rows)
    return parts


def _check_files(paths: list[Path], kind: str) -> None:
    from kgserve.graph.transfer.formats.import_export_files import PAIR_FORMATS, node_and_edge_file_paths
    from kgserve.graph.transfer.formats.kb_notes_sqlite_import import is_kb_notes_folder

    for path in paths:
        is_pair = kind in PAIR_FORMATS and any(each.exists() for each in node_and_edge_file_paths(path, kind))
        if not (path.exists() or is_pair):
            raise click.BadParameter(f"{str(path)!r}: No such file or directory", param_hint="FILE")
        if path.is_dir() and kind not in PAIR_FORMATS and not (kind == "kb" and is_kb_notes_folder(path)):
            raise click.BadParameter(f"{str(path)!r} is a folder; {kind} needs a file", param_hint="FILE")
        if path.is_file() and kind != "graphml" and (advice := _find_encoding_advice(path)):
            raise click.BadParameter(f"{str(path)!r} {advice}", param_hint="FILE")


def _find_encoding_advice(path: Path) -> str | None:
    """Return what to do about a compressed or UTF-16 file, by its first bytes; None for others."""
    with path.open("rb") as file:
        start = file.read(2)
    if start == _GZIP_START:
        return "is compressed; run `gunzip` on it first"
    if start in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        return "is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8"
    return None


@click.command("export")
@click.argument("store")
@click.option(
    "-o",
    "--output",
    help="File to write; csv and parquet write NAME.nodes.csv and NAME.edges.csv for NAME.csv, or into FOLDER/; "
    "markdown writes a note for each node into FOLDER.  "
    "[default: standard output]",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(EXPORT_FORMATS),
    help="Output format.  [default: by file extension, else ndjson]",
)
@click.option("--as-of", metavar="WHEN", help="State to export: a sequence, or a time such as 2025-07-15T12:00:00Z.")
@click.option("--valid-at", metavar="TIME", help="Only facts that were valid at this time, or `now`.")
@add_server_options
def export_store_command(
    store: str, *, output: str | None, kind: str | None, as_of: str | None, valid_at: str | None
) -> None:
    """Export a consistent snapshot of STORE, one JSON object per line or in another format.

    With -o, files appear when they are complete; an interrupted export leaves none. If --data names a folder without a
    running server, the command opens it directly.
    """
    from kgserve.graph.transfer.formats.import_export_files import PAIR_FORMATS, detect_export_format

    output = None if output == "-" else output
    target = None if output is None else Path(output)
    chosen = kind or detect_export_format(target)
    hidden = target is None and sys.stdout.isatty()
    if chosen == "markdown" and (target is None or target.is_file()):
        raise click.UsageError("markdown consists of many files; name a folder with -o.")
    if chosen in PAIR_FORMATS and output is None:
        raise click.UsageError(f"{chosen} consists of two files; specify them with -o.")
    if target is not None and target.is_dir() and chosen not in {*PAIR_FORMATS, "markdown"}:
        raise click.BadParameter(
            f"{output} is a folder; csv, parquet and markdown can be written into one", param_hint="-o"
        )
    with (
        _open_backend() as opened,
        _export_blocks(opened, store, as_of, valid_at) as blocks,
        TransferProgressBar(f"Exporting {store}", hidden=hidden) as progress,
    ):
        written = _write(chosen, progress.count(blocks), output)
    if written:
        size = format_size(sum(path.stat().st_size for path in written))
        names = f"{len(written):,} notes in {output}" if chosen == "markdown" else " and ".join(map(str, written))
        click.echo(f"{progress.lines:,} lines, {size}, in {names}", err=True)


def _write(kind: str, blocks: Iterator[bytes], output: str | None) -> list[Path]:
    """Write an export and return its files."""
    from kgserve.graph.transfer.formats.import_export_files import PAIR_FORMATS, node_and_edge_file_paths

    if output is not None and kind in PAIR_FORMATS:
        target = Path(output)
        if output.endswith(os.sep):
            target.mkdir(parents=True, exist_ok=True)
        files = node_and_edge_file_paths(target, kind)
        _write_pair(kind, blocks, files)
        return list(files)
    if output is not None and kind == "markdown":
        from kgserve.cli.markdown_transfer import write_markdown_folder

        return write_markdown_folder(blocks, Path(output))
    with _destination(None if output is None else Path(output)) as file:
        if kind == "ndjson":
            file.writelines(blocks)
        else:
            from kgserve.graph.transfer.formats.import_export_files import write_single_file_export

            write_single_file_export(kind, blocks, file)
    return [] if output is None else [Path(output)]


def _write_pair(kind: str, blocks: Iterator[bytes], files: tuple[Path, Path]) -> None:
    from kgserve.client.json_lines_stream import write_atomically
    from kgserve.graph.transfer.formats.import_export_files import write_node_and_edge_files

    with write_atomically(files[0]) as nodes, write_atomically(files[1]) as edges:
        opened = {"nodes": nodes, "edges": edges}
        sink: TableFileOpener = lambda part: nullcontext(opened[part])  # noqa: E731 - annotated with its type
        write_node_and_edge_files(kind, blocks, sink)


def _size(file: BinaryIO) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _summarise(store: str, answer: ImportAnswer, conversion: ImportLinesWithSourceMap | None) -> None:
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
        # For converted input, the message contains the position.
        texts = [f"line {fault.line}: {fault.message}" if conversion is None else fault.message for fault in faults]
        print_listed_texts(f"{unit if count == 1 else f'{unit}s'} {what}", count, texts)
    _list_merged(answer, unit, has_places=conversion is not None)
    if answer.settings_kept is True:
        click.echo(
            f"{store} was made or written to before and keeps its settings, which differ from the imported ones; "
            f"`kgserve settings {store}` shows and changes them",
            err=True,
        )


def _list_merged(answer: ImportAnswer, unit: str, *, has_places: bool) -> None:
    texts = [
        each.message if has_places else f"line {each.line} repeats line {each.earlier_line}: {each.message}"
        for each in answer.merged
    ]
    print_listed_texts(
        f"{unit if answer.merged_count == 1 else f'{unit}s'} merged into earlier ones", answer.merged_count, texts
    )


@contextmanager
def _destination(output: Path | None) -> Generator[BinaryIO]:
    """Yield standard output, or a file that appears under its name only when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif output.exists() and not output.is_file():  # a device or a named pipe cannot be replaced
        with output.open("wb") as file:
            yield file
    else:
        from kgserve.client.json_lines_stream import write_atomically

        with write_atomically(output) as file:
            yield file
