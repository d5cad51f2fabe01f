"""Reader of SQLite's file format, for files that SQLite itself can no longer read.

Pages are read one by one (https://www.sqlite.org/fileformat2.html); pages in the write-ahead log take precedence.
Unreadable content is skipped without an error.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kgserve.projections.history.history_sql import HISTORY_PAGE_BYTES
from kgserve.projections.history.page_checksums import read_wal_frames

TABLE_LEAF, TABLE_INTERIOR, INDEX_LEAF, INDEX_INTERIOR = 0x0D, 0x05, 0x0A, 0x02
_FILE_HEADER = 100
_MAX_BTREE_DEPTH = 32
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
_BIG_ENDIAN_MAGIC = 0x377F0683

RecordValues = tuple[Any, ...]


class SqlitePageCell(NamedTuple):
    """Cell of a page: row number, values, and child page; 0 or () for fields that the page type lacks."""

    child: int
    rowid: int
    values: RecordValues


class SqlitePageRow(NamedTuple):
    """Row of a table or entry of an index, read from a page of a possibly damaged file."""

    page: int
    rowid: int
    values: RecordValues


class UnreadableSqlitePage(NamedTuple):
    """Unreadable or damaged page of a tree; rows after ``after`` may have been on it or below it."""

    page: int
    after: int


class DatabasePages:
    """Pages of a file and its log; child pointers on ``damaged`` pages are not reliable."""

    def __init__(self, path: Path, damaged: frozenset[int]) -> None:
        """Read a file and its log completely. Raises OSError."""
        self._data = _map_file(path)
        self._log_pages = _log_pages(path.with_name(f"{path.name}-wal"))
        self.damaged = damaged - self._log_pages.keys()
        self.count = max(-(-len(self._data) // HISTORY_PAGE_BYTES), max(self._log_pages, default=0))

    def page(self, number: int) -> bytes:
        """Return the content of a page, empty if it does not exist."""
        return (
            self._log_pages.get(number) or self._data[(number - 1) * HISTORY_PAGE_BYTES : number * HISTORY_PAGE_BYTES]
        )

    def root_pages(self) -> dict[str, int]:
        """Return the root pages of tables and indexes by name, as far as page 1 is readable."""
        rows = self.iterate_tree(1, lambda _: None)
        return {str(row.values[1]): row.values[3] for row in rows if len(row.values) == 5 and row.values[3]}  # noqa: PLR2004

    def iterate_tree(self, root: int, unread: Callable[[UnreadableSqlitePage], object]) -> Iterator[SqlitePageRow]:
        """Yield all rows of a table or entries of an index in order. Damaged pages are reported, and read."""
        yield from self._walk(root, 0, set(), unread)

    def leaf_pages(self) -> Iterator[int]:
        """Yield the numbers of the pages with table rows, without free pages."""
        free = self._free()
        for number in range(1, self.count + 1):
            page = self.page(number)
            if number not in free and len(page) == HISTORY_PAGE_BYTES and page[_header_offset(number)] == TABLE_LEAF:
                yield number

    def cells(self, number: int) -> Iterator[SqlitePageCell]:
        """Yield the readable cells of a page."""
        page, start = self.page(number), _header_offset(number)
        if len(page) < HISTORY_PAGE_BYTES or page[start] not in {
            TABLE_LEAF,
            TABLE_INTERIOR,
            INDEX_LEAF,
            INDEX_INTERIOR,
        }:
            return
        kind, count = page[start], int.from_bytes(page[start + 3 : start + 5])
        at = start + (8 if kind in {TABLE_LEAF, INDEX_LEAF} else 12)
        for offset in range(at, min(at + 2 * count, HISTORY_PAGE_BYTES - 1), 2):
            cell = self._cell(page, kind, int.from_bytes(page[offset : offset + 2]))
            if cell is not None:
                yield cell

    def _walk(
        self, number: int, after: int, path: set[int], unread: Callable[[UnreadableSqlitePage], object]
    ) -> Iterator[SqlitePageRow]:
        page, start = self.page(number), _header_offset(number)
        whole = len(page) == HISTORY_PAGE_BYTES and page[start] in {
            TABLE_LEAF,
            TABLE_INTERIOR,
            INDEX_LEAF,
            INDEX_INTERIOR,
        }
        if not whole or number in self.damaged:
            unread(UnreadableSqlitePage(number, after))
        if not whole or number in path or len(path) > _MAX_BTREE_DEPTH:
            return
        for cell in self.cells(number):
            if cell.child:
                yield from self._walk(cell.child, after, {*path, number}, unread)
            if page[start] != TABLE_INTERIOR:
                yield SqlitePageRow(number, cell.rowid, cell.values)
            after = cell.rowid or after
        if page[start] in {TABLE_INTERIOR, INDEX_INTERIOR}:
            last = int.from_bytes(page[start + 8 : start + 12])
            yield from self._walk(last, after, {*path, number}, unread)

    def _cell(self, page: bytes, kind: int, at: int) -> SqlitePageCell | None:
        child = rowid = size = 0
        try:
            if kind in {TABLE_INTERIOR, INDEX_INTERIOR}:
                child, at = int.from_bytes(page[at : at + 4]), at + 4
            if kind != TABLE_INTERIOR:
                size, at = _varint(page, at)
            if kind in {TABLE_LEAF, TABLE_INTERIOR}:
                rowid, at = _varint(page, at)
            if kind == TABLE_INTERIOR:
                return SqlitePageCell(child, rowid, ())
            return SqlitePageCell(child, rowid, _record(self._payload(page, at, size, kind)))
        except (IndexError, ValueError, struct.error):
            return None

    def _payload(self, page: bytes, at: int, size: int, kind: int) -> bytes:
        """Return the bytes of a cell, including overflow pages. Raises ValueError if some are missing."""
        if size > len(self._data) + len(self._log_pages) * HISTORY_PAGE_BYTES:
            raise ValueError(size)
        most = HISTORY_PAGE_BYTES - 35 if kind == TABLE_LEAF else (HISTORY_PAGE_BYTES - 12) * 64 // 255 - 23
        if size <= most:
            return page[at : at + size]
        least = (HISTORY_PAGE_BYTES - 12) * 32 // 255 - 23
        local = least + (size - least) % (HISTORY_PAGE_BYTES - 4)
        local = local if local <= most else least
        parts, left = [page[at : at + local]], size - local
        following = int.from_bytes(page[at + local : at + local + 4])
        while left > 0:
            more = self.page(following) if following else b""
            if len(more) < HISTORY_PAGE_BYTES:
                raise ValueError(following)
            parts.append(more[4 : 4 + left])
            left -= len(parts[-1])
            following = int.from_bytes(more[:4])
        return b"".join(parts)

    def _free(self) -> set[int]:
        """Return the free pages, which may still contain old content."""
        free: set[int] = set()
        trunk = int.from_bytes(self.page(1)[32:36])
        while trunk and trunk not in free and len(page := self.page(trunk)) == HISTORY_PAGE_BYTES:
            free.add(trunk)
            count = min(int.from_bytes(page[4:8]), HISTORY_PAGE_BYTES // 4 - 2)
            free.update(struct.unpack(f">{count}I", page[8 : 8 + 4 * count]))
            trunk = int.from_bytes(page[:4])
        return free


def _map_file(path: Path) -> bytes | mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _header_offset(number: int) -> int:
    return _FILE_HEADER if number == 1 else 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer, and the offset after it. Raises IndexError."""
    value = 0
    for offset in range(at, at + 8):
        value = value << 7 | data[offset] & 0x7F
        if data[offset] < 0x80:  # noqa: PLR2004 - the last byte lacks the continuation bit
            return value, offset + 1
    value = value << 8 | data[at + 8]
    return (value - (1 << 64) if value >> 63 else value), at + 9


def _record(payload: bytes) -> RecordValues:
    """Return the values of a record. Raises IndexError, ValueError and struct.error if it is invalid."""
    header, at = _varint(payload, 0)
    types: list[int] = []
    while at < header:
        kind, at = _varint(payload, at)
        types.append(kind)
    values: list[Any] = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise ValueError(at)
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind < len(_INTEGER_BYTES):
        end = at + _INTEGER_BYTES[kind]
        return (int.from_bytes(payload[at:end], signed=True) if kind else None), end
    if kind == 7:  # noqa: PLR2004 - a float
        return struct.unpack(">d", payload[at : at + 8])[0], at + 8
    if kind in {8, 9}:
        return kind - 8, at
    end = at + (kind - 12) // 2
    if kind < 12 or end > len(payload):  # noqa: PLR2004 - 10 and 11 are invalid
        raise ValueError(kind)
    return (payload[at:end] if kind % 2 == 0 else payload[at:end].decode()), end


def _log_pages(log: Path) -> dict[int, bytes]:
    """Return the pages of committed transactions in a write-ahead log."""
    committed: dict[int, bytes] = {}
    uncommitted: dict[int, bytes] = {}
    try:
        data = log.read_bytes()
    except FileNotFoundError:
        return committed
    order = ">" if int.from_bytes(data[:4]) == _BIG_ENDIAN_MAGIC else "<"
    sums = _wal_checksums(data[:24], (0, 0), order)
    at = 32
    for page, commit, header in read_wal_frames(log):
        content = data[at + 24 : at + 24 + HISTORY_PAGE_BYTES]
        at += 24 + HISTORY_PAGE_BYTES
        if len(content) < HISTORY_PAGE_BYTES:
            break
        sums = _wal_checksums(header[:8] + content, sums, order)
        if struct.pack(">2I", *sums) != header[16:24]:
            break
        uncommitted[page] = content
        if commit:
            committed |= uncommitted
            uncommitted = {}
    return committed


def _wal_checksums(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = one + first + two & 0xFFFFFFFF
        two = two + second + one & 0xFFFFFFFF
    return one, two
