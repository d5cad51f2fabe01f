"""The files and archives of each format, and the parts in them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from kgserve.errors import InvalidInput, TooLarge
from kgserve.graph.transfer.formats.graphml import read_graphml, write_graphml
from kgserve.graph.transfer.formats.kb_notes_sqlite_import import (
    is_kb_notes_folder,
    is_sqlite_file,
    open_kb_notes_and_links,
)
from kgserve.graph.transfer.formats.mcp_memory_server_file import (
    read_mcp_observations_as_memories,
    write_mcp_memory_server_file,
)
from kgserve.graph.transfer.formats.mem0_file import read_mem0_memories, write_mem0_file
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    KIND_EDGES,
    KIND_NODES,
    ImportSourceTable,
    order_nodes_before_edges,
    read_ndjson_exchange_lines,
)
from kgserve.graph.transfer.formats.nodes_and_edges_csv import (
    CsvTable,
    TableFileOpener,
    open_mapped_csv_tables,
    read_csv_import_mapping,
    write_nodes_and_edges_csv,
)
from kgserve.graph.transfer.formats.nodes_and_edges_parquet import ParquetTable, write_nodes_and_edges_parquet

ExportFormat = Literal["ndjson", "parquet", "csv", "graphml", "memory-server"]
ImportFormat = Literal["ndjson", "parquet", "csv", "graphml", "memory-server", "graphiti", "kb"]
PAIR_FORMATS = frozenset({"parquet", "csv"})
"""Formats of two files: nodes and edges."""

_FORMATS_BY_SUFFIX: dict[str, ImportFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".graphml": "graphml",
    ".xml": "graphml",
    ".kuzu": "graphiti",
}


def detect_export_format(path: Path | None) -> ExportFormat:
    """Return the format of a file to write, by its suffix; JSON lines for an unknown one."""
    match _FORMATS_BY_SUFFIX.get(path.suffix.lower()) if path else None:
        case "parquet" | "csv" | "graphml" as found:
            return found
        case _:
            return "ndjson"


def detect_import_format(paths: Sequence[Path]) -> ImportFormat:
    """Return the format of files to read, by their suffix; for a folder, by its contents."""
    first = paths[0]
    if is_kb_notes_folder(first) or (first.suffix.lower() not in _FORMATS_BY_SUFFIX and is_sqlite_file(first)):
        return "kb"
    if first.is_dir():
        kinds = {
            found for path in first.iterdir() if (found := _FORMATS_BY_SUFFIX.get(path.suffix.lower())) in PAIR_FORMATS
        }
        if len(kinds) != 1:
            raise InvalidInput(f"{first} is a folder; it must contain nodes and edges as either .csv or .parquet")
        return "csv" if kinds == {"csv"} else "parquet"
    return _FORMATS_BY_SUFFIX.get(first.suffix.lower(), "ndjson")


def node_and_edge_file_paths(target: Path, kind: str) -> tuple[Path, Path]:
    """Return the two files for ``target``: those in a folder, or ``name.nodes.csv`` and ``name.edges.csv``."""
    if target.is_dir():
        return target / f"{KIND_NODES}.{kind}", target / f"{KIND_EDGES}.{kind}"
    stem = target.name.removesuffix(f".{kind}")
    return target.with_name(f"{stem}.{KIND_NODES}.{kind}"), target.with_name(f"{stem}.{KIND_EDGES}.{kind}")


def find_node_and_edge_files(paths: Sequence[Path], kind: str) -> list[Path]:
    """Return the files that an import of a pair reads; ``name.csv`` or a folder means the two files of an export."""
    files: list[Path] = []
    for path in paths:
        both = node_and_edge_file_paths(path, kind)
        if path.is_dir() or (not path.exists() and any(each.exists() for each in both)):
            files += [each for each in both if each.exists()]
        else:
            files.append(path)
    if not files:
        raise InvalidInput(
            f"there is no {KIND_NODES}.{kind} and no {KIND_EDGES}.{kind} in {', '.join(map(str, paths))}"
        )
    return files


def open_import_source_tables(
    kind: str, paths: Sequence[Path], stack: ExitStack, mapping: Path | None = None
) -> list[ImportSourceTable]:
    """Return the parts of the files of an import, nodes first; ``stack`` closes the files.

    Supports every format except Graphiti's. Raises InvalidInput for files of another format. With a mapping, only those
    of its files that ``paths`` name are read, or all if it is empty.
    """
    if mapping is not None:
        return open_mapped_csv_tables(read_csv_import_mapping(mapping), mapping.parent, paths, stack)
    if kind == "kb":
        return [part for path in paths for part in stack.enter_context(open_kb_notes_and_links(path))]
    if kind in PAIR_FORMATS:
        tables = [_table(kind, path, stack) for path in find_node_and_edge_files(paths, kind)]
        return [table.part() for table in sorted(tables, key=lambda table: table.kind == KIND_EDGES)]
    return [read_stream_as_import_table(kind, stack.enter_context(path.open("rb")), path.name) for path in paths]


def read_stream_as_import_table(kind: str, file: BinaryIO, name: str) -> ImportSourceTable:
    """Return the rows of a sequentially read file (GraphML, memories or NDJSON) as one import table."""
    match kind:
        case "graphml":
            records = order_nodes_before_edges(read_graphml(file, name))
        case "memories":
            records = order_nodes_before_edges(read_mcp_observations_as_memories(file))
        case "mem0":
            return ImportSourceTable(name, "row", order_nodes_before_edges(read_mem0_memories(file, name)))
        case _:
            records = read_ndjson_exchange_lines(file)
    return ImportSourceTable(name, "line", records)


def write_single_file_export(kind: str, blocks: Iterable[bytes], file: BinaryIO, scratch: Path | None = None) -> int:
    """Write an export in a format of one file, and return the number of its lines.

    Temporary files are created in ``scratch``.
    """
    match kind:
        case "graphml":
            return write_graphml(blocks, file, scratch)
        case "mem0":
            return write_mem0_file(blocks, file)
        case _:
            return write_mcp_memory_server_file(blocks, file)


def write_node_and_edge_files(kind: str, blocks: Iterable[bytes], sink: TableFileOpener) -> int:
    """Write an export in a format of two files, and return the number of its lines."""
    return write_nodes_and_edges_parquet(blocks, sink) if kind == "parquet" else write_nodes_and_edges_csv(blocks, sink)


def _table(kind: str, path: Path, stack: ExitStack) -> CsvTable | ParquetTable:
    if kind == "parquet":
        return ParquetTable(path, path.name)
    return CsvTable(stack.enter_context(path.open("rb")), path.name, stack)


MAX_EXTRACTED_BYTES = 16 << 30
"""Extracted size of an archive, whatever its directory says."""

_MAX_ZIP_DIRECTORY_BYTES = 64 << 10
_EXTRACT_BLOCK_BYTES = 1 << 20
_ZIP_END_SIGNATURE = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_ZIP64_LOCATOR_SIGNATURE = b"PK\x06\x07"
_ZIP64_LOCATOR_BYTES = 20
# Other methods allocate memory as the archive requests.
_COMPRESSION_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError, zlib.error)


def write_export_zip(kind: str, blocks: Iterable[bytes], file: BinaryIO) -> int:
    """Write an export as a ZIP archive of two files, CSV or Parquet; return the number of its lines."""
    method = zipfile.ZIP_DEFLATED if kind == "csv" else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:

        @contextmanager
        def opened(part: str) -> Generator[BinaryIO]:
            with archive.open(f"{part}.{kind}", "w", force_zip64=True) as member:
                yield member  # pyright: ignore[reportReturnType] - has the methods used here

        return write_node_and_edge_files(kind, blocks, opened)


def extract_import_zip(file: BinaryIO, folder: Path) -> tuple[str, list[Path]]:
    """Extract nodes and edges from a ZIP archive into ``folder``; return their format and paths.

    Raises InvalidInput for another kind of file, TooLarge if the contents exceed the limit.
    """
    _check_directory_size(file)
    found: dict[str, Path] = {}
    size = 0
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = _member_name(member)
                if name is None:
                    continue
                if name in found:
                    raise InvalidInput(f"the archive has several files named {name}; import them one after another")
                found[name] = folder / name
                with archive.open(member) as source, found[name].open("wb") as target:
                    while piece := source.read(_EXTRACT_BLOCK_BYTES):
                        size += len(piece)
                        if size > MAX_EXTRACTED_BYTES:
                            raise TooLarge(f"the archive has more than {MAX_EXTRACTED_BYTES >> 30} GiB of contents")
                        target.write(piece)
    except _ZIP_ERRORS as error:
        raise InvalidInput(f"the body is not a readable zip archive: {error}") from error
    kinds = {name.rpartition(".")[2] for name in found}
    if len(kinds) != 1:
        raise InvalidInput("the archive must contain nodes.csv and edges.csv, or nodes.parquet and edges.parquet")
    return kinds.pop(), list(found.values())


def _member_name(member: zipfile.ZipInfo) -> str | None:
    """Return the local name of a member; only these names become files. Skips the dot files that macOS adds."""
    if member.filename.rpartition("/")[2].startswith("."):
        return None
    for part in (KIND_NODES, KIND_EDGES):
        for kind in ("csv", "parquet"):
            if member.filename.endswith(f"{part}.{kind}"):
                if member.compress_type not in _COMPRESSION_METHODS:
                    raise InvalidInput(f"{member.filename}: its compression method is not supported; use deflate")
                return f"{part}.{kind}"
    return None


def _check_directory_size(file: BinaryIO) -> None:
    """Raise InvalidInput if the directory of the archive, which is read as a whole, is too large."""
    size = file.seek(0, 2)
    start = max(0, size - _ZIP_END_BYTES - _ZIP64_LOCATOR_BYTES)
    file.seek(start)
    tail = file.read()
    end = tail[-_ZIP_END_BYTES:]
    if not end.startswith(_ZIP_END_SIGNATURE) or end[-2:] != b"\0\0":
        raise InvalidInput("the body is not a zip archive, or has a comment")
    if (
        tail[:-_ZIP_END_BYTES].startswith(_ZIP64_LOCATOR_SIGNATURE)
        or int.from_bytes(end[12:16], "little") > _MAX_ZIP_DIRECTORY_BYTES
    ):
        raise InvalidInput("the archive contains too many files; two are expected")
    file.seek(0)
