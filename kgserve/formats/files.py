"""Which files of a kind there are, and what is in them: the way from paths to parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

from kgserve.errors import InvalidInput
from kgserve.formats.columns import EDGES, NODES
from kgserve.formats.csv_pair import CsvTable, Sink, write_csv
from kgserve.formats.graphml_read import read_graphml
from kgserve.formats.mapping import mapped, read_mapping
from kgserve.formats.memory_server import read_memory
from kgserve.formats.parquet_pair import ParquetTable, write_parquet
from kgserve.formats.records import Part, edges_last, read_lines

ExportFormat = Literal["ndjson", "parquet", "csv", "graphml"]
ImportFormat = Literal["ndjson", "parquet", "csv", "graphml", "memory-server", "graphiti"]
PAIRS = frozenset({"parquet", "csv"})
"""Formats of two files."""

_SUFFIXES: dict[str, ImportFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".graphml": "graphml",
    ".xml": "graphml",
    ".kuzu": "graphiti",
}


def export_format(path: Path | None) -> ExportFormat:
    """The format of a file to write, by how its name ends; lines of JSON if that says nothing."""
    match _SUFFIXES.get(path.suffix.lower()) if path else None:
        case "parquet" | "csv" | "graphml" as found:
            return found
        case _:
            return "ndjson"


def import_format(paths: Sequence[Path]) -> ImportFormat:
    """The format of files to read, by how their names end, and of a folder by what is in it."""
    first = paths[0]
    if first.is_dir():
        kinds = {found for path in first.iterdir() if (found := _SUFFIXES.get(path.suffix.lower())) in PAIRS}
        if len(kinds) != 1:
            raise InvalidInput(f"{first} is a folder; it should hold nodes and edges as either .csv or .parquet")
        return "csv" if kinds == {"csv"} else "parquet"
    return _SUFFIXES.get(first.suffix.lower(), "ndjson")


def pair(target: Path, kind: str) -> tuple[Path, Path]:
    """The two files that ``target`` stands for: in a folder, or ``name.nodes.csv`` and ``name.edges.csv``."""
    if target.is_dir():
        return target / f"{NODES}.{kind}", target / f"{EDGES}.{kind}"
    stem = target.name.removesuffix(f".{kind}")
    return target.with_name(f"{stem}.{NODES}.{kind}"), target.with_name(f"{stem}.{EDGES}.{kind}")


def present(paths: Sequence[Path], kind: str) -> list[Path]:
    """The files that an import of a pair reads; of ``name.csv`` and of a folder the two that an export makes of it."""
    files: list[Path] = []
    for path in paths:
        both = pair(path, kind)
        if path.is_dir() or (not path.exists() and any(each.exists() for each in both)):
            files += [each for each in both if each.exists()]
        else:
            files.append(path)
    if not files:
        raise InvalidInput(f"there is no {NODES}.{kind} and no {EDGES}.{kind} in {', '.join(map(str, paths))}")
    return files


def open_parts(kind: str, paths: Sequence[Path], stack: ExitStack, mapping: Path | None = None) -> list[Part]:
    """What is in the files of an import, nodes first; files are closed with ``stack``.

    For every format but Graphiti's. Raises InvalidInput for files that are something else. With a mapping, only those
    of its files are read that ``paths`` name, or all when there are none.
    """
    if mapping is not None:
        return mapped(read_mapping(mapping), mapping.parent, paths, stack)
    if kind in PAIRS:
        tables = [_table(kind, path, stack) for path in present(paths, kind)]
        return [table.part() for table in sorted(tables, key=lambda table: table.kind == EDGES)]
    return [stream_part(kind, stack.enter_context(path.open("rb")), path.name) for path in paths]


def stream_part(kind: str, file: BinaryIO, name: str) -> Part:
    """What is in one file that is read from its beginning to its end."""
    match kind:
        case "graphml":
            records = edges_last(read_graphml(file, name))
        case "memory-server":
            records = edges_last(read_memory(file))
        case _:
            records = read_lines(file)
    return Part(name, "line", records)


def write_pair(kind: str, blocks: Iterable[bytes], sink: Sink) -> int:
    """Write an export in a format of two files; the number of its lines."""
    return write_parquet(blocks, sink) if kind == "parquet" else write_csv(blocks, sink)


def _table(kind: str, path: Path, stack: ExitStack) -> CsvTable | ParquetTable:
    if kind == "parquet":
        return ParquetTable(path, path.name)
    return CsvTable(stack.enter_context(path.open("rb")), path.name, stack)
