"""File format of a base segment: its two files, columns and texts, and their checksums.

    magic · columns, each at a multiple of 64 bytes · checksums, 64 bits for each 4 KiB before them · directory
    (JSON) · its length and its checksum

Columns are plain little-endian arrays, so that traversals are arithmetic on them. Each uses the narrowest type for its
largest value, and stores a single value if all are equal. Rows are JSON in a text file, to which each base appends its
new rows. The directory records how much of that file belongs to the base, and its checksums. Common suffixes of rows
are stored once, next to the columns.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import write_all_bytes
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_rows_digest import SerializedStoreState
from kgserve.storage.rows.row_json_encoder import RowsDamaged, RowsFormatMismatch

ROWS_MAGIC = b"KGROWS03"
_ROWS_KIND = ROWS_MAGIC[:6]
COLUMN_ALIGNMENT_BYTES = 64
BLOCK_BITS = 12
ROWS_BLOCK_BYTES = 1 << BLOCK_BITS
FOOTER_BYTES = 24
NO_ROW_NUMBER = 0xFFFFFFFF
"""Number of a missing node or edge."""

NumberArray = NDArray[Any]
MappedBytes = mmap.mmap | bytes

COLUMN_TYPES = {
    "id_at": "<u8",
    "node_at": "<u8",
    "node_size": "<u4",
    "node_ending": "<u4",
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
    "edge_ending": "<u4",
    "in_edge": "<u4",
    "name_at": "<u8",
    "ending_at": "<u8",
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
"""Columns and the widest type of each.

``node_at`` and ``edge_at`` are offsets of rows in the text file, ``text_sums`` the checksums of its blocks.
``node_ending`` and ``edge_ending`` are numbers of suffixes. ``hashed`` lists nodes in the order of the ``hashes`` of
their ids, and ``in_edge`` lists edges in the order of their targets.
"""
OFFSET_COLUMNS = ("id_at", "out_at", "in_at", "name_at", "ending_at")
"""Columns of offsets into another column or text; each has one more entry than there are items."""
TEXT_COLUMNS = ("ids", "names", "endings")
_NARROWER_TYPES = ("u1", "<u2", "<u4")
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
"""Bounds of rows with unlimited validity."""


class BaseSegmentFileSection(msgspec.Struct, frozen=True):
    """Byte range of a column or text in the file.

    For a column also its type, and the number of entries if a single value is stored, else 0.
    """

    offset: int
    size: int
    type: str = ""
    repeated: int = 0


class BaseSegmentFooter(SerializedStoreState, frozen=True):
    """Footer of a base segment's file: the state of its rows, and the sections.

    ``texts`` is the name of the text file, of which the first ``texts_size`` bytes belong to this base. ``linked``: the
    store may have links, which are not rows.
    """

    sections: dict[str, BaseSegmentFileSection]
    texts: str = ""
    texts_size: int = 0
    linked: bool = False


class ChecksummedBlocks:
    """Bytes whose blocks are verified against checksums before use."""

    def __init__(self, data: MappedBytes, sums: Sequence[int], end: int, name: str) -> None:
        """Take the checksums of the blocks up to ``end``; ``name`` is the file's name for errors."""
        self.data = data
        self.checked = bytearray(len(sums))
        self._sums = sums
        self._end = end
        self._name = name

    def check(self, blocks: Iterable[int]) -> None:
        """Verify some blocks. Raises RowsDamaged."""
        data, sums, end, checked = memoryview(self.data), self._sums, self._end, self.checked
        for block in blocks:
            start = block << BLOCK_BITS
            if xxhash.xxh3_64_intdigest(data[start : min(start + ROWS_BLOCK_BYTES, end)]) != sums[block]:
                raise RowsDamaged(f"{self._name} does not match its checksums at offset {start}")
            checked[block] = 1

    def check_all(self) -> None:
        """Verify every block. Raises RowsDamaged. Takes a second for some gigabytes."""
        self.check(range(len(self._sums)))

    def check_range(self, start: int, end: int) -> None:
        """Verify the unverified blocks of a byte range. Raises RowsDamaged."""
        checked = self.checked
        blocks = range(start >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1)
        self.check([block for block in blocks if not checked[block]])

    def check_ranges(self, starts: NumberArray, ends: NumberArray) -> None:
        """Verify many byte ranges, most of which span one or two blocks. Raises RowsDamaged."""
        bits, one = np.uint64(BLOCK_BITS), np.uint64(1)
        first, last = (starts >> bits).astype(np.int64), ((ends - one) >> bits).astype(np.int64)
        checked = np.frombuffer(self.checked, np.uint8)
        outer = np.concatenate((first, last))
        self.check(np.unique(outer[checked[outer] == 0]).tolist())
        for at in np.flatnonzero(last - first > 1).tolist():
            self.check_range(int(starts[at]), int(ends[at]))


def read_base_segment_footer(path: Path) -> BaseSegmentFooter:
    """Read only the footer of a base segment's file. Raises RowsDamaged and FileNotFoundError."""
    with memory_map_file(path) as data:
        return parse_base_segment_footer(data, path.name)[0]


def memory_map_file(path: Path, size: int = 0) -> mmap.mmap:
    """Map a file into memory, optionally its first ``size`` bytes. Raises RowsDamaged if it is shorter.

    Raises FileNotFoundError if it does not exist.
    """
    if path.is_dir() or (path.is_symlink() and not path.exists()):
        raise RowsDamaged(f"{path.name} is not a regular file")
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except ValueError:
            raise RowsDamaged(f"{path.name} is empty or truncated") from None


def memory_map_base_segment_texts(path: Path, directory: BaseSegmentFooter) -> MappedBytes:
    """Map the text file of the base segment at a path into memory. Raises RowsDamaged."""
    if not directory.texts_size:
        return b""
    try:
        return memory_map_file(path.with_name(directory.texts), directory.texts_size)
    except FileNotFoundError:
        raise RowsDamaged(f"{directory.texts} is missing") from None


def parse_base_segment_footer(data: mmap.mmap, name: str) -> tuple[BaseSegmentFooter, Sequence[int]]:
    """Return the footer of a base segment's file, and the checksums of its blocks. Raises RowsDamaged."""
    end = len(data)
    if end < FOOTER_BYTES + len(ROWS_MAGIC) or data[: len(ROWS_MAGIC)] != ROWS_MAGIC or data[end - 8 :] != ROWS_MAGIC:
        if end > FOOTER_BYTES and data[: len(_ROWS_KIND)] == data[end - 8 : end - 8 + len(_ROWS_KIND)] == _ROWS_KIND:
            raise RowsFormatMismatch(f"{name} was written by another version")
        raise RowsDamaged(f"{name} is not a file of rows")
    length, expected = (int.from_bytes(data[end - at : end - at + 8], "little") for at in (24, 16))
    text = data[max(end - FOOTER_BYTES - length, 0) : end - FOOTER_BYTES]
    if xxhash.xxh3_64_intdigest(text) != expected:
        raise RowsDamaged(f"{name} has a directory that does not match its checksum")
    try:
        directory = decode_json(text, BaseSegmentFooter)
        sums = directory.sections["sums"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise RowsDamaged(f"{name} has an unreadable directory: {error}") from error
    if set(directory.sections) != {*COLUMN_TYPES, *TEXT_COLUMNS, "sums"}:
        raise RowsDamaged(f"{name} has unexpected sections")
    return directory, np.frombuffer(data, "<u8", sums.size // 8, sums.offset).data


_WRITE_BUFFER_BYTES = 4 << 20
_TEXT_JOIN_BATCH = 1_000


class ChecksummedWriter:
    """Writer that computes a checksum of each block, from a block boundary on. The caller syncs the file."""

    def __init__(self, file: BinaryIO) -> None:
        self.offset = file.seek(0, 1)
        self._file = file
        self._pending = bytearray()
        self._hash = xxhash.xxh3_64()
        self._hashed = 0
        self.sums: list[int] = []

    def write(self, data: bytes | memoryview) -> None:
        """Append data."""
        self.offset += len(data)
        if len(data) > _WRITE_BUFFER_BYTES:
            self._flush()
            self._write_blocks(memoryview(data))
            return
        self._pending += data
        if len(self._pending) > _WRITE_BUFFER_BYTES:
            self._flush()

    def end_block(self) -> None:
        """Flush, and add the checksum of the incomplete block."""
        self._flush()
        if self._hashed:
            self.sums.append(self._hash.intdigest())

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._write_blocks(memoryview(pending))

    def _write_blocks(self, data: memoryview) -> None:
        write_all_bytes(self._file.fileno(), data)
        if self._hashed:
            data = self._begin_block(data)
        whole = len(data) - len(data) % ROWS_BLOCK_BYTES
        self.sums += [
            xxhash.xxh3_64_intdigest(data[at : at + ROWS_BLOCK_BYTES]) for at in range(0, whole, ROWS_BLOCK_BYTES)
        ]
        self._begin_block(data[whole:])

    def _begin_block(self, data: memoryview) -> memoryview:
        """Add data to the checksum of the current block; return the data of the following blocks."""
        part = data[: ROWS_BLOCK_BYTES - self._hashed]
        self._hash.update(part)
        self._hashed += len(part)
        if self._hashed == ROWS_BLOCK_BYTES:
            self.sums.append(self._hash.intdigest())
            self._hash.reset()
            self._hashed = 0
        return data[len(part) :]


class BaseSegmentRowJsonWriter(ChecksummedWriter):
    """Writer that appends the JSON of rows to a base segment's text file."""

    def add(self, texts: Sequence[bytes]) -> NumberArray:
        """Append texts; return their offsets."""
        sizes = np.array([len(text) for text in texts], np.uint64)
        places = self.offset + np.cumsum(sizes) - sizes
        for first in range(0, len(texts), _TEXT_JOIN_BATCH):
            self.write(b"".join(texts[first : first + _TEXT_JOIN_BATCH]))
        return places

    def finish(self) -> None:
        """Pad the last block, so that the next base starts with a new one."""
        self.write(bytes(-self.offset % ROWS_BLOCK_BYTES))
        self.end_block()


class BaseSegmentColumnsWriter(ChecksummedWriter):
    """Writer of a base segment's file of columns, complete after `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._sections: dict[str, BaseSegmentFileSection] = {}
        self.write(ROWS_MAGIC)

    def column(self, name: str, values: NumberArray) -> None:
        """Write a section with a column."""
        found, repeated = _narrow_column(np.ascontiguousarray(values, COLUMN_TYPES[name]))
        with self.text(name, found.dtype.str, repeated):
            self.write(found.data.cast("B"))

    def text(self, name: str, type_: str = "", repeated: int = 0) -> _SectionWriter:
        """Return a context manager for a section; data written inside belongs to it."""
        self.write(bytes(-self.offset % COLUMN_ALIGNMENT_BYTES))
        return _SectionWriter(self, name, type_, repeated)

    def texts(self, name: str, column: str, texts: Sequence[bytes]) -> None:
        """Write a section with concatenated texts, and a column of their offsets."""
        self.column(column, np.cumsum([0, *map(len, texts)]))
        with self.text(name):
            self.write(b"".join(texts))

    def finish(self, state: StoreState, texts: str = "", texts_size: int = 0, *, linked: bool = False) -> None:
        """Write checksums and directory; ``texts_size`` bytes of the file ``texts`` belong to this base."""
        self.write(bytes(-self.offset % COLUMN_ALIGNMENT_BYTES))
        self.end_block()
        sums = np.array(self.sums, "<u8").tobytes()
        self._sections["sums"] = BaseSegmentFileSection(self.offset, len(sums))
        directory = msgspec.json.encode(
            BaseSegmentFooter.of(state, sections=self._sections, texts=texts, texts_size=texts_size, linked=linked)
        )
        tail = len(directory).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(directory).to_bytes(8, "little")
        write_all_bytes(self._file.fileno(), sums + directory + tail + ROWS_MAGIC)

    def end_section(self, name: str, start: int, type_: str, repeated: int) -> None:
        """Record the end of a section."""
        self._sections[name] = BaseSegmentFileSection(start, self.offset - start, type_, repeated)


class _SectionWriter:
    def __init__(self, writer: BaseSegmentColumnsWriter, name: str, type_: str, repeated: int) -> None:
        self._writer, self._start, self._of = writer, writer.offset, (type_, repeated)
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer.end_section(self._name, self._start, *self._of)


def _narrow_column(values: NumberArray) -> tuple[NumberArray, int]:
    """Return the column as stored, and its number of entries if it is a single repeated value."""
    if len(values) > 1 and (values == values[0]).all():
        return values[:1], len(values)
    if values.dtype.kind == "u" and len(values):
        most = values.max()
        return values.astype(next((each for each in _NARROWER_TYPES if most <= np.iinfo(each).max), values.dtype)), 0
    return values, 0
