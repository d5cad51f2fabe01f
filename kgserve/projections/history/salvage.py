"""Recovery of the intact rows of a damaged history into a new file, with the remaining gaps.

A row on a page that matches its seal is intact. A row on a damaged page is kept if its content matches its checksum,
and if the commits and times of its validity are consistent with the rest. Indexes are on other pages and name the
missing rows. Gaps are as narrow as the indexes allow, or else begin at the last row before the lost pages.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kgserve.projections.history import history_sql as sql
from kgserve.projections.history import row_format
from kgserve.projections.history.damaged_sqlite_reader import (
    DatabasePages,
    RecordValues,
    SqlitePageRow,
    UnreadableSqlitePage,
)
from kgserve.projections.history.page_checksums import PageChecksumFile, PageChecksumFileHeader
from kgserve.storage.model.store_rows_digest import checksum_63bit

MAX_GAPS_WITH_ID = 10_000
"""Maximum number of missing rows recorded by id; beyond that, only the commits are recorded."""
_encode = msgspec.msgpack.Encoder().encode


class MissingHistoryCommitRange(msgspec.Struct, frozen=True, order=True):
    """Range of commits with missing states, from ``first`` up to but excluding ``last``; None: up to the current state.

    ``table`` is the table that lacks a row, and ``id`` the node it belongs to; None for any.
    """

    first: int
    last: int | None
    table: str
    id: str | None = None


class SalvagedHistory(msgspec.Struct):
    """Intact content of a damaged history file, as values of its tables."""

    sequence: int = 0
    oldest: int = 0
    rows: dict[str, list[RecordValues]] = {}
    moments: dict[int, int] = {}
    said: list[RecordValues] = []
    gaps: list[MissingHistoryCommitRange] = []
    damaged_pages: int = 0
    missing: int = 0


class _Table(NamedTuple):
    """Layout of a table: positions of columns in a row, and the indexes that list its rows."""

    columns: int
    first: int
    last: int
    started: int
    ended: int
    key: tuple[int, ...]
    unpack: Callable[..., Any]
    indexes: tuple[tuple[str, int], ...]
    """Names, each with the position of ``first`` in the entries, which begin with an id and end with the row number.

    The first index has the whole key of a state.
    """


_TABLES = {
    "node": _Table(9, 1, 2, 5, 6, (0, 4, 3), row_format.unpack_history_node, (("sqlite_autoindex_node_1", 1),)),
    "edge": _Table(
        10, 3, 4, 6, 7, (0, 1, 2, 5), row_format.unpack_history_edge,
        (("sqlite_autoindex_edge_1", 3), ("edge_by_source", 2), ("edge_by_target", 1)),
    ),
    "link": _Table(
        11, 4, 5, 7, 8, (0, 2, 3, 6, 1), row_format.unpack_history_cross_store_link, (("sqlite_autoindex_link_1", 4),)
    ),
}  # fmt: skip
_BY_COLUMNS = {table.columns: name for name, table in _TABLES.items()}


def salvage_intact_history_content(
    path: Path, seal: PageChecksumFile, sealed: PageChecksumFileHeader | None
) -> SalvagedHistory:
    """Return all intact content of a file. Raises OSError."""
    damaged = frozenset(seal.faults(sealed, 1, sealed.pages)) if sealed else frozenset[int]()
    suspect = damaged | frozenset(seal.pages_with_damaged_checksum(sealed) if sealed else ())
    return _SalvageReader(DatabasePages(path, damaged), damaged, suspect, sealed).all()


def read_intact_history_content(connection: sqlite3.Connection) -> SalvagedHistory:
    """Return the content of a file whose rows are all intact. Raises sqlite3.Error."""
    sequence, oldest = connection.execute(sql.SELECT_EXTENT).fetchone()
    rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in _TABLES}  # noqa: S608 - constants
    said = [values for values in connection.execute("SELECT * FROM said") if _is_co_author_intact(values)]
    gaps = [MissingHistoryCommitRange(*found) for found in connection.execute(sql.SELECT_GAPS)]
    moments = dict(connection.execute("SELECT sequence, time FROM moment"))
    return SalvagedHistory(sequence, oldest, rows, moments, said, gaps, missing=len(gaps))


def write_salvaged_history(salvaged: SalvagedHistory, connection: sqlite3.Connection) -> None:
    """Insert salvaged content into an empty history."""
    with connection as transaction:
        for name, rows in salvaged.rows.items():
            marks = ", ".join("?" * _TABLES[name].columns)
            transaction.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", rows)  # noqa: S608 - constants
        transaction.executemany("INSERT OR REPLACE INTO moment VALUES (?, ?)", salvaged.moments.items())
        transaction.executemany(sql.INSERT_CO_AUTHOR, salvaged.said)
        insert_history_gaps(transaction, salvaged.gaps)
        transaction.execute("UPDATE cursor SET sequence = ?, oldest = ?", (salvaged.sequence, salvaged.oldest))


def insert_history_gaps(transaction: sqlite3.Connection, gaps: Iterable[MissingHistoryCommitRange]) -> None:
    """Record gaps, ranges of commits with missing states, in a history."""
    transaction.executemany(sql.INSERT_GAP, ((gap.first, gap.last, gap.table, gap.id) for gap in gaps))


class _SalvageReader:
    """Reader that salvages one file."""

    def __init__(
        self,
        pages: DatabasePages,
        damaged: frozenset[int],
        suspect: frozenset[int],
        sealed: PageChecksumFileHeader | None,
    ) -> None:
        self._pages = pages
        self._damaged = damaged
        # Without a seal every page may be damaged.
        self._is_suspect: Callable[[int], bool] = suspect.__contains__ if sealed else lambda _: True
        self._roots = {**(sealed.roots if sealed else {}), **pages.root_pages()}
        self._sealed = sealed
        self._found = SalvagedHistory(damaged_pages=len(damaged))
        self._earliest = 0
        self._rows: dict[str, list[SqlitePageRow]] = {name: [] for name in _TABLES}

    def all(self) -> SalvagedHistory:
        found = self._found
        self._read_leaves()
        found.sequence, found.oldest = self._cursor()
        self._read_moments()
        for name, table in _TABLES.items():
            kept = self._intact_rows(table, self._rows[name])
            found.rows[name] = [row.values for _, row in sorted(kept.items())]
            found.gaps += self._gaps(name, table, kept)
        found.gaps += self._earlier_gaps()
        found.said = [*self._co_authors()]
        found.missing = len(found.gaps)
        if len(found.gaps) > MAX_GAPS_WITH_ID:
            found.gaps = merge_history_gaps(found.gaps)
        return found

    def _read_leaves(self) -> None:
        """Collect the rows on all leaf pages; the number of columns determines the table."""
        for number in self._pages.leaf_pages():
            for cell in self._pages.cells(number):
                name = _BY_COLUMNS.get(len(cell.values))
                if name is not None:
                    self._rows[name].append(SqlitePageRow(number, cell.rowid, cell.values))
                elif number not in self._damaged and len(cell.values) == 2 and _are_integers(cell.values[1]):  # noqa: PLR2004
                    self._found.moments[cell.rowid] = cell.values[1]

    def _cursor(self) -> tuple[int, int]:
        """Return the last and oldest commit of the file, from its cursor, or from its seal if that page is damaged."""
        sealed = (self._sealed.sequence, self._sealed.oldest) if self._sealed else (0, 0)
        rows = self._pages.iterate_tree(self._roots["cursor"], lambda _: None) if "cursor" in self._roots else iter(())
        row = next(rows, None)
        if row is None or len(row.values) != 3 or not _are_integers(*row.values[1:]):  # noqa: PLR2004
            return sealed if self._sealed else (max(self._found.moments, default=0), 0)
        return sealed if row.page in self._damaged else (row.values[1], row.values[2])

    def _read_moments(self) -> None:
        """Collect times of commits from their index, and from rows that end then."""
        moments = self._found.moments
        if root := self._roots.get("moment_by_time"):
            for row in self._pages.iterate_tree(root, lambda _: None):
                if row.page not in self._damaged and _are_integers(*row.values):
                    moments.setdefault(row.values[-1], row.values[0])
        for name, table in _TABLES.items():
            for row in self._rows[name]:
                if row.page not in self._damaged and _are_integers(row.values[table.last], row.values[table.ended]):
                    moments.setdefault(row.values[table.last], row.values[table.ended])
        self._earliest = moments[min(moments)] if moments else 0

    def _intact_rows(self, table: _Table, rows: list[SqlitePageRow]) -> dict[int, SqlitePageRow]:
        """Return the intact rows by number. A row whose number another row has gets a negative one.

        The number of a row is part of no checksum, so those on intact pages come first.
        """
        kept: dict[int, SqlitePageRow] = {}
        numbers: dict[RecordValues, int] = {}
        for row in sorted(rows, key=lambda row: self._is_suspect(row.page)):
            if not self._is_whole(table, row):
                continue
            key = row.values[: table.first + 1]
            number = numbers.get(key)
            if number is None:
                number = row.rowid if row.rowid not in kept else -1 - len(kept)
            elif kept[number].values[table.last] is not None or row.values[table.last] is None:
                continue  # a stale copy on a free page or between the cells of a page, older than the end of the state
            numbers[key], kept[number] = number, row
        return self._without_stale_rows(table, kept)

    def _without_stale_rows(self, table: _Table, kept: dict[int, SqlitePageRow]) -> dict[int, SqlitePageRow]:
        """Drop the rows on damaged pages without an end whose state had ended: these are older copies."""
        newest: dict[RecordValues, int] = {}
        for row in kept.values():
            key = row.values[: table.first]
            newest[key] = max(newest.get(key, 0), row.values[table.first])
        ended = {entry.values[-1] for entry in self._entries("node_by_end") or ()} if table.first == 1 else set[int]()
        return {
            number: row
            for number, row in kept.items()
            if row.values[table.last] is not None
            or not self._is_suspect(row.page)
            or (number not in ended and row.values[table.first] >= newest[row.values[: table.first]])
        }

    def _is_whole(self, table: _Table, row: SqlitePageRow) -> bool:
        values = row.values
        first, last, content, expected = (values[at] for at in (table.first, table.last, -2, -1))
        try:
            content = content.encode() if isinstance(content, str) else content
            found = table.unpack(content, expected, *(values[at] for at in table.key))
        except (msgspec.MsgspecError, ValueError, TypeError, AttributeError):
            return False
        if found is None or not _are_integers(first, values[table.started]):
            return False
        if not self._is_suspect(row.page):
            return True
        moments = self._found.moments
        if last is None:
            return self._began_then(first, values[table.started])
        ended = values[table.ended]
        has_ended = _are_integers(last, ended) and last > first and moments.get(last) == ended
        return has_ended and self._began_then(first, values[table.started])

    def _began_then(self, first: int, started: int) -> bool:
        """Return whether a state can have begun at a commit and a time.

        The times of the oldest commits are unknown; they precede all others.
        """
        moments = self._found.moments
        if first in moments or first > self._found.oldest:
            return moments.get(first) == started
        return first >= 0 and started <= self._earliest

    def _gaps(self, name: str, table: _Table, kept: dict[int, SqlitePageRow]) -> list[MissingHistoryCommitRange]:
        """Return the gaps of a table: by an intact index, or else from the first lost page on."""
        unread = list[UnreadableSqlitePage]()
        is_whole = name in self._roots and self._is_read(self._roots[name], kept, unread)
        if is_whole and self._sealed is not None:
            return []
        for index, place in table.indexes:
            entries = self._entries(index)
            if entries is not None:
                return self._gaps_from_index(name, table, place, entries, kept)
        return (
            []
            if is_whole
            else [MissingHistoryCommitRange(self._first_incomplete_commit(table, kept, unread), None, name)]
        )

    def _is_read(self, root: int, kept: dict[int, SqlitePageRow], unread: list[UnreadableSqlitePage]) -> bool:
        """Return whether all rows of a table were read and kept."""
        rows = {row.rowid for row in self._pages.iterate_tree(root, unread.append)}
        return not unread and rows <= kept.keys()

    def _entries(self, index: str) -> list[SqlitePageRow] | None:
        """Return the entries of an index, None unless it is completely readable."""
        root, unread = self._roots.get(index), list[UnreadableSqlitePage]()
        if root is None:
            return None
        entries = [*self._pages.iterate_tree(root, unread.append)]
        return None if unread else entries

    def _gaps_from_index(
        self, name: str, table: _Table, place: int, entries: list[SqlitePageRow], kept: dict[int, SqlitePageRow]
    ) -> list[MissingHistoryCommitRange]:
        ends = self._ends(name, entries)
        keys = {row.values[: table.first + 1] for row in kept.values()}

        def is_kept(entry: SqlitePageRow) -> bool:
            if place == table.first:
                return entry.values[:-1] in keys
            row = kept.get(entry.values[-1])
            return row is not None and row.values[table.first] == entry.values[place]

        return [
            MissingHistoryCommitRange(entry.values[place], ends.get(entry.values[-1]), name, entry.values[0])
            for entry in entries
            if not is_kept(entry)
        ]

    def _ends(self, name: str, entries: list[SqlitePageRow]) -> dict[int, int]:
        """Return the commits by which node states had ended, by row number."""
        if name != "node":
            return {}
        ends = {one.values[2]: other.values[1] for one, other in pairwise(entries) if one.values[0] == other.values[0]}
        known = self._entries("node_by_end") or ()
        return ends | {entry.values[2]: entry.values[0] for entry in known}

    def _first_incomplete_commit(
        self, table: _Table, kept: dict[int, SqlitePageRow], unread: list[UnreadableSqlitePage]
    ) -> int:
        """Return the first commit as of which a row may be missing: that of the last row before the lost pages."""
        after = min((each.after for each in unread), default=0)
        before = (row.values[table.first] for rowid, row in kept.items() if rowid <= after)
        return max(max(before, default=0), self._found.oldest)

    def _earlier_gaps(self) -> Iterator[MissingHistoryCommitRange]:
        """Yield the gaps that the file already records, which an earlier salvage has left."""
        root = self._roots.get("gap")
        for row in self._pages.iterate_tree(root, lambda _: None) if root else ():
            if len(row.values) == 4:  # noqa: PLR2004
                yield MissingHistoryCommitRange(*row.values)

    def _co_authors(self) -> Iterator[RecordValues]:
        root = self._roots.get("said")
        for row in self._pages.iterate_tree(root, lambda _: None) if root else ():
            if _is_co_author_intact(row.values):
                yield row.values


def _is_co_author_intact(values: RecordValues) -> bool:
    # The table stores the key first; the time precedes the checksum.
    return len(values) == 6 and checksum_63bit(_encode((*values[:5],))) == values[5]  # noqa: PLR2004


def merge_history_gaps(gaps: Iterable[MissingHistoryCommitRange]) -> list[MissingHistoryCommitRange]:
    """Return the fewest gaps that cover the same commits, by table, without ids."""
    by_table: dict[str, list[MissingHistoryCommitRange]] = defaultdict(list)
    for gap in sorted(gaps, key=lambda each: each.first):
        found = by_table[gap.table]
        before = found[-1] if found else None
        if before is not None and (before.last is None or gap.first <= before.last):
            last = None if before.last is None or gap.last is None else max(before.last, gap.last)
            found[-1] = MissingHistoryCommitRange(before.first, last, gap.table)
        else:
            found.append(MissingHistoryCommitRange(gap.first, gap.last, gap.table))
    return [gap for found in by_table.values() for gap in found]


def _are_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)
