"""The two files of CSV and Parquet as one zip archive, for those who send and get one body."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kgserve.errors import InvalidInput, TooLarge
from kgserve.formats.columns import EDGES, NODES
from kgserve.formats.files import write_pair

MAX_EXTRACTED_BYTES = 16 << 30
"""What an archive may come to, whatever it says of itself."""

_MAX_DIRECTORY_BYTES = 64 << 10
_PIECE = 1 << 20
_END = b"PK\x05\x06"
_END_BYTES = 22
_LOCATOR = b"PK\x06\x07"
_LOCATOR_BYTES = 20
# Others take memory by what the archive says.
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_BROKEN = (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError, zlib.error)


def write_archive(kind: str, blocks: Iterable[bytes], file: BinaryIO) -> int:
    """Write an export as ``nodes.csv`` and ``edges.csv``, or as Parquet; the number of its lines."""
    method = zipfile.ZIP_DEFLATED if kind == "csv" else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:

        @contextmanager
        def opened(part: str) -> Generator[BinaryIO]:
            with archive.open(f"{part}.{kind}", "w", force_zip64=True) as member:
                yield member  # pyright: ignore[reportReturnType] - it has what is used of a BinaryIO

        return write_pair(kind, blocks, opened)


def extract(file: BinaryIO, folder: Path) -> tuple[str, list[Path]]:
    """Take the nodes and edges out of an archive into ``folder``: their format and paths.

    Raises InvalidInput for what is no such archive, TooLarge when it comes to more than is taken.
    """
    _check_end(file)
    found: dict[str, Path] = {}
    size = 0
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = _wanted(member)
                if name is None or name in found:
                    continue
                found[name] = folder / name
                with archive.open(member) as source, found[name].open("wb") as target:
                    while piece := source.read(_PIECE):
                        size += len(piece)
                        if size > MAX_EXTRACTED_BYTES:
                            raise TooLarge(f"the archive comes to more than {MAX_EXTRACTED_BYTES >> 30} GiB")
                        target.write(piece)
    except _BROKEN as error:
        raise InvalidInput(f"the body is no zip archive that can be read: {error}") from error
    kinds = {name.rpartition(".")[2] for name in found}
    if len(kinds) != 1:
        raise InvalidInput("the archive must hold nodes.csv and edges.csv, or nodes.parquet and edges.parquet")
    return kinds.pop(), list(found.values())


def _wanted(member: zipfile.ZipInfo) -> str | None:
    """What a member is called here: only these names ever become files. Macs add files that begin with a dot."""
    if member.filename.rpartition("/")[2].startswith("."):
        return None
    for part in (NODES, EDGES):
        for kind in ("csv", "parquet"):
            if member.filename.endswith(f"{part}.{kind}"):
                if member.compress_type not in _METHODS:
                    raise InvalidInput(f"{member.filename}: is compressed in a way that is not taken; use deflate")
                return f"{part}.{kind}"
    return None


def _check_end(file: BinaryIO) -> None:
    """The directory at an archive's end is read as a whole: refuse one that is large."""
    size = file.seek(0, 2)
    start = max(0, size - _END_BYTES - _LOCATOR_BYTES)
    file.seek(start)
    tail = file.read()
    end = tail[-_END_BYTES:]
    if not end.startswith(_END) or end[-2:] != b"\0\0":
        raise InvalidInput("the body is no zip archive, or one with a comment")
    if tail[:-_END_BYTES].startswith(_LOCATOR) or int.from_bytes(end[12:16], "little") > _MAX_DIRECTORY_BYTES:
        raise InvalidInput("the archive has too many files in it; two are expected")
    file.seek(0)
