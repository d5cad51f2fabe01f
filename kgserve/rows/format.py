"""The two files of a base: columns and texts, and how what is written there is known to be whole.

    magic · columns, each at a multiple of 64 bytes · sums, one of 64 bits for each 4 KiB before them · directory
    (JSON) · its length and its sum

Columns are plain arrays in little-endian order, so that a walk is arithmetic on them. The rows themselves are JSON in a
file of texts, to whose end each base adds what is new; one base says how much of the file is its, and has the sums.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.decoding import decode_json
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text
from kgserve.rows.encoding import RowsDamaged

MAGIC = b"KGROWS02"
ALIGNMENT = 64
BLOCK_BITS = 12
BLOCK = 1 << BLOCK_BITS
FOOTER = 24
NOWHERE = 0xFFFFFFFF
"""The number of a node or an edge that is none."""

Numbers = NDArray[Any]
Bytes = mmap.mmap | bytes

COLUMNS = {
    "id_at": "<u8",
    "node_at": "<u8",
    "node_size": "<u4",
    "node_flags": "u1",
    "hashes": "<u8",
    "hashed": "<u4",
    "out_at": "<u4",
    "in_at": "<u4",
    "source": "<u4",
    "target": "<u4",
    "relation": "<u4",
    "weight": "<f8",
    "created": "<i8",
    "edge_flags": "u1",
    "edge_at": "<u8",
    "edge_size": "<u4",
    "in_edge": "<u4",
    "name_at": "<u8",
    "dated_nodes": "<u4",
    "dated_node_from": "<i8",
    "dated_node_to": "<i8",
    "dated_edges": "<u4",
    "dated_edge_from": "<i8",
    "dated_edge_to": "<i8",
    "ordered_edges": "<u4",
    "ordinals": "<i8",
    "text_sums": "<u8",
}
"""Names and types of the columns. ``node_at`` and ``edge_at`` are the places of rows in the file of texts, and the sums
of its blocks ``text_sums``; ``hashed`` the nodes in the order of the ``hashes`` of their ids; ``in_edge`` edges in the
order of their targets."""
OFFSETS = ("id_at", "out_at", "in_at", "name_at")
"""Columns that say where texts or lists begin in another one, with one more entry than there are of them."""
TEXTS = ("ids", "names")
FIRST, LAST = -(1 << 63), (1 << 63) - 1
"""The bounds of what has been true for ever, and always will be."""


class Section(msgspec.Struct, frozen=True):
    """Where a column or a text is in the file, in bytes."""

    offset: int
    size: int


class Directory(msgspec.Struct, frozen=True):
    """The end of the file: the state that its rows are of, and where everything is.

    ``texts`` is the name of the file beside it that has the rows, in so many bytes.
    """

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int
    sections: dict[str, Section]
    texts: str = ""
    texts_size: int = 0

    @property
    def state(self) -> StoreState:
        """The state of the store at this commit."""
        return StoreState(self.sequence, self.time, from_text(self.digest), self.nodes, self.edges)


class Blocks:
    """Bytes that are compared with their sums, block by block, before they are used."""

    def __init__(self, data: Bytes, sums: Sequence[int], end: int, name: str) -> None:
        """``sums`` are those of the blocks up to ``end``; ``name`` is the file's, for errors."""
        self.data = data
        self.checked = bytearray(len(sums))
        self._sums = sums
        self._end = end
        self._name = name

    def check(self, blocks: Iterable[int]) -> None:
        """Compare some blocks. Raises RowsDamaged."""
        data, sums, end, checked = memoryview(self.data), self._sums, self._end, self.checked
        for block in blocks:
            start = block << BLOCK_BITS
            if xxhash.xxh3_64_intdigest(data[start : min(start + BLOCK, end)]) != sums[block]:
                raise RowsDamaged(f"{self._name} does not fit its checksums at offset {start}")
            checked[block] = 1

    def check_all(self) -> None:
        """Compare every block. Raises RowsDamaged. Takes a second for some gigabytes."""
        self.check(range(len(self._sums)))

    def check_range(self, start: int, end: int) -> None:
        """Compare what has not been yet from one place to another. Raises RowsDamaged."""
        checked = self.checked
        blocks = range(start >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1)
        self.check([block for block in blocks if not checked[block]])

    def check_ranges(self, starts: Numbers, ends: Numbers) -> None:
        """As `check_range`, of many ranges, most of which are in one block or two."""
        bits, one = np.uint64(BLOCK_BITS), np.uint64(1)
        first, last = (starts >> bits).astype(np.int64), ((ends - one) >> bits).astype(np.int64)
        checked = np.frombuffer(self.checked, np.uint8)
        outer = np.concatenate((first, last))
        self.check(np.unique(outer[checked[outer] == 0]).tolist())
        for at in np.flatnonzero(last - first > 1).tolist():
            self.check_range(int(starts[at]), int(ends[at]))


def read_directory(path: Path) -> Directory:
    """What a file says at its end, with nothing else looked at. Raises RowsDamaged, and FileNotFoundError."""
    with mapped(path) as data:
        return directory_of(data, path.name)[0]


def mapped(path: Path, size: int = 0) -> mmap.mmap:
    """A file in memory, or so many bytes of it. Raises RowsDamaged when it has fewer, and FileNotFoundError."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except ValueError:
            raise RowsDamaged(f"{path.name} is empty, or cut off") from None


def texts_of(path: Path, directory: Directory) -> Bytes:
    """The texts of the base at a path. Raises RowsDamaged."""
    if not directory.texts_size:
        return b""
    try:
        return mapped(path.with_name(directory.texts), directory.texts_size)
    except FileNotFoundError:
        raise RowsDamaged(f"{directory.texts} is not there") from None


def directory_of(data: mmap.mmap, name: str) -> tuple[Directory, Sequence[int]]:
    """What a file says at its end, and the sums of its blocks. Raises RowsDamaged."""
    end = len(data)
    if end < FOOTER + len(MAGIC) or data[: len(MAGIC)] != MAGIC or data[end - 8 :] != MAGIC:
        raise RowsDamaged(f"{name} is no file of rows")
    length, expected = (int.from_bytes(data[end - at : end - at + 8], "little") for at in (24, 16))
    text = data[max(end - FOOTER - length, 0) : end - FOOTER]
    if xxhash.xxh3_64_intdigest(text) != expected:
        raise RowsDamaged(f"{name} has a directory that does not fit its checksum")
    try:
        directory = decode_json(text, Directory)
        sums = directory.sections["sums"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise RowsDamaged(f"{name} has no directory of ours: {error}") from error
    if set(directory.sections) != {*COLUMNS, *TEXTS, "sums"}:
        raise RowsDamaged(f"{name} is of another format")
    return directory, np.frombuffer(data, "<u8", sums.size // 8, sums.offset).data
