"""The file of a base: its columns and texts, and how what is written there is known to be whole.

    magic · columns, each at a multiple of 64 bytes · sums, one of 64 bits for each 4 KiB before them · directory
    (JSON) · its length and its sum

Columns are plain arrays in little-endian order, so that a walk is arithmetic on them; the rows themselves are JSON, one
after the other.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
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

COLUMNS = {
    "id_at": "<u8",
    "node_at": "<u8",
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
}
"""Names and types of the columns. ``*_at`` are the offsets of texts or lists, one more than there are of them;
``hashed`` the nodes in the order of the ``hashes`` of their ids; ``in_edge`` edges in the order of their targets."""
TEXTS = ("ids", "nodes", "edges", "names")
FIRST, LAST = -(1 << 63), (1 << 63) - 1
"""The bounds of what has been true for ever, and always will be."""


class Section(msgspec.Struct, frozen=True):
    """Where a column or a text is in the file, in bytes."""

    offset: int
    size: int


class Directory(msgspec.Struct, frozen=True):
    """The end of the file: the state that its rows are of, and where everything is."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int
    sections: dict[str, Section]

    @property
    def state(self) -> StoreState:
        """The state of the store at this commit."""
        return StoreState(self.sequence, self.time, from_text(self.digest), self.nodes, self.edges)


def read_directory(path: Path) -> Directory:
    """What a file says at its end, with nothing else looked at. Raises RowsDamaged, and FileNotFoundError."""
    with mapped(path) as data:
        return directory_of(data, path.name)[0]


def mapped(path: Path) -> mmap.mmap:
    """A file in memory. Raises RowsDamaged when it is empty, and FileNotFoundError."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise RowsDamaged(f"{path.name} is empty") from None


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
