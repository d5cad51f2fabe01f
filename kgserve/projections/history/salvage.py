"""What is whole in a damaged history: its rows, each checked, in a file of its own, with the gaps that are left.

A row on a page that fits its seal is as it was written. One on a damaged page is taken if its content fits its
checksum and the commits and times between which it held fit what else says so. Indexes are on other pages, and name
the rows that are missing: a gap is as narrow as they allow, else it begins where the last row before it did.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kgserve.projections.history import packing
from kgserve.projections.history import statements as sql
from kgserve.projections.history.pages import DatabasePages, Row, UnreadPage, Values
from kgserve.projections.history.seal import PageSeal, Sealed
from kgserve.storage.model.digest import checksum

MAX_NAMED_ROWS = 10_000
"""Of more missing rows only the commits are noted, not the ids."""
_encode = msgspec.msgpack.Encoder().encode


class Gap(msgspec.Struct, frozen=True, order=True):
    """Commits as of which something is missing, from one up to but not with another; None: up to the present.

    ``table`` is where a row is missing, and ``id`` whose it was; None for any.
    """

    first: int
    last: int | None
    table: str
    id: str | None = None


class Salvaged(msgspec.Struct):
    """What was found whole in a file, as values of its tables."""

    sequence: int = 0
    oldest: int = 0
    rows: dict[str, list[Values]] = {}
    moments: dict[int, int] = {}
    said: list[Values] = []
    gaps: list[Gap] = []
    damaged_pages: int = 0
    missing: int = 0


class _Table(NamedTuple):
    """How a table's rows are laid out: places of columns in a row, and the indexes that name each of its rows."""

    columns: int
    first: int
    last: int
    started: int
    ended: int
    key: tuple[int, ...]
    unpack: Callable[..., Any]
    indexes: tuple[tuple[str, int], ...]
    """Each with the place of ``first`` in its entries, which begin with an id and end with the row's number."""


_TABLES = {
    "node": _Table(9, 1, 2, 5, 6, (0, 4, 3), packing.node, (("sqlite_autoindex_node_1", 1),)),
    "edge": _Table(
        10, 3, 4, 6, 7, (0, 1, 2, 5), packing.edge,
        (("edge_by_source", 2), ("sqlite_autoindex_edge_1", 3), ("edge_by_target", 1)),
    ),
    "link": _Table(11, 4, 5, 7, 8, (0, 2, 3, 6, 1), packing.link, (("sqlite_autoindex_link_1", 4),)),
}  # fmt: skip
_BY_COLUMNS = {table.columns: name for name, table in _TABLES.items()}


def read_whole(path: Path, seal: PageSeal, sealed: Sealed | None) -> Salvaged:
    """All that is whole in a file. Raises OSError."""
    damaged = frozenset(seal.faults(sealed, 1, sealed.pages)) if sealed else frozenset[int]()
    doubted = damaged | frozenset(seal.unknown(sealed) if sealed else ())
    return _Reading(DatabasePages(path, damaged), damaged, doubted, sealed).all()


def write_whole(salvaged: Salvaged, connection: sqlite3.Connection) -> None:
    """Put it all into an empty history."""
    with connection as transaction:
        for name, rows in salvaged.rows.items():
            marks = ", ".join("?" * _TABLES[name].columns)
            transaction.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", rows)  # noqa: S608 - constants
        transaction.executemany("INSERT OR REPLACE INTO moment VALUES (?, ?)", salvaged.moments.items())
        transaction.executemany(sql.INSERT_CO_AUTHOR, salvaged.said)
        add_gaps(transaction, salvaged.gaps)
        transaction.execute("UPDATE cursor SET sequence = ?, oldest = ?", (salvaged.sequence, salvaged.oldest))


def add_gaps(transaction: sqlite3.Connection, gaps: Iterable[Gap]) -> None:
    """Note what is missing."""
    transaction.executemany(sql.INSERT_GAP, ((gap.first, gap.last, gap.table, gap.id) for gap in gaps))


class _Reading:
    """One file being read."""

    def __init__(
        self, pages: DatabasePages, damaged: frozenset[int], doubted: frozenset[int], sealed: Sealed | None
    ) -> None:
        self._pages = pages
        self._damaged = damaged
        # Without a seal every page may be damaged.
        self._is_doubted: Callable[[int], bool] = doubted.__contains__ if sealed else lambda _: True
        self._roots = {**(sealed.roots if sealed else {}), **pages.roots()}
        self._sealed = sealed
        self._found = Salvaged(damaged_pages=len(damaged))
        self._rows: dict[str, dict[int, Row]] = {name: {} for name in _TABLES}

    def all(self) -> Salvaged:
        found = self._found
        self._read_leaves()
        found.sequence, found.oldest = self._cursor()
        self._read_moments()
        for name, table in _TABLES.items():
            kept = self._kept(table, self._rows[name])
            found.rows[name] = [row.values for _, row in sorted(kept.items())]
            found.gaps += self._gaps(name, table, kept)
        found.gaps += self._earlier_gaps()
        found.said = [*self._said()]
        found.missing = len(found.gaps)
        if len(found.gaps) > MAX_NAMED_ROWS:
            found.gaps = merged(found.gaps)
        return found

    def _read_leaves(self) -> None:
        """Every row of a table, wherever its page is: which table it is of, the number of its columns says."""
        for number in self._pages.leaves():
            for cell in self._pages.cells(number):
                name = _BY_COLUMNS.get(len(cell.values))
                if name is not None:
                    self._rows[name][cell.rowid] = Row(number, cell.rowid, cell.values)
                elif number not in self._damaged and len(cell.values) == 2 and _are_integers(cell.values[1]):  # noqa: PLR2004
                    self._found.moments[cell.rowid] = cell.values[1]

    def _cursor(self) -> tuple[int, int]:
        """What the file has seen, and since when it knows: as its seal says, unless it has moved since."""
        sealed = (self._sealed.sequence, self._sealed.oldest) if self._sealed else (0, 0)
        rows = self._pages.tree(self._roots["cursor"], lambda _: None) if "cursor" in self._roots else iter(())
        row = next(rows, None)
        if row is None or len(row.values) != 3 or not _are_integers(*row.values[1:]):  # noqa: PLR2004
            return sealed if self._sealed else (max(self._found.moments, default=0), 0)
        return sealed if row.page in self._damaged else (row.values[1], row.values[2])

    def _read_moments(self) -> None:
        """Times of commits are in their index, too, and with each row that began or ended then."""
        moments = self._found.moments
        if root := self._roots.get("moment_by_time"):
            for row in self._pages.tree(root, lambda _: None):
                if row.page not in self._damaged and _are_integers(*row.values):
                    moments.setdefault(row.values[-1], row.values[0])
        for name, table in _TABLES.items():
            for row in self._rows[name].values():
                if row.page not in self._damaged and _are_integers(row.values[table.last], row.values[table.ended]):
                    moments.setdefault(row.values[table.last], row.values[table.ended])

    def _kept(self, table: _Table, rows: dict[int, Row]) -> dict[int, Row]:
        kept: dict[int, Row] = {}
        by_key: dict[Values, Row] = {}
        for rowid, row in rows.items():
            if not self._is_whole(table, row):
                continue
            other = by_key.get(row.values[: table.first + 1])
            if other is not None:
                if other.values[table.last] is not None or row.values[table.last] is None:
                    continue  # a page that is free now had it before it ended
                kept.pop(other.rowid, None)
            by_key[row.values[: table.first + 1]] = kept[rowid] = row
        return kept

    def _is_whole(self, table: _Table, row: Row) -> bool:
        values = row.values
        first, last, content, expected = (values[at] for at in (table.first, table.last, -2, -1))
        try:
            content = content.encode() if isinstance(content, str) else content
            found = table.unpack(content, expected, *(values[at] for at in table.key))
        except (msgspec.MsgspecError, ValueError, TypeError, AttributeError):
            return False
        if found is None or not _are_integers(first, values[table.started]):
            return False
        if not self._is_doubted(row.page):
            return True
        oldest, moments = self._found.oldest, self._found.moments
        began = first <= oldest or moments.get(first) == values[table.started]
        return began and (last is None or (last > first and moments.get(last) == values[table.ended]))

    def _gaps(self, name: str, table: _Table, kept: dict[int, Row]) -> list[Gap]:
        """What is missing of a table: by an index that is whole, else from where rows may be missing on."""
        unread = list[UnreadPage]()
        is_whole = name in self._roots and self._is_read(self._roots[name], kept, unread)
        if is_whole and self._sealed is not None:
            return []
        for index, place in table.indexes:
            entries = self._entries(index)
            if entries is not None:
                return self._named(name, place, entries, kept)
        return [] if is_whole else [Gap(self._begin_of(table, kept, unread), None, name)]

    def _is_read(self, root: int, kept: dict[int, Row], unread: list[UnreadPage]) -> bool:
        """Whether all rows of a table were read, and kept."""
        rows = {row.rowid for row in self._pages.tree(root, unread.append)}
        return not unread and rows <= kept.keys()

    def _entries(self, index: str) -> list[Row] | None:
        """The entries of an index, None unless all of it can be read."""
        root, unread = self._roots.get(index), list[UnreadPage]()
        if root is None:
            return None
        entries = [*self._pages.tree(root, unread.append)]
        return None if unread else entries

    def _named(self, name: str, place: int, entries: list[Row], kept: dict[int, Row]) -> list[Gap]:
        ends = self._ends(name, entries)
        return [
            Gap(entry.values[place], ends.get(entry.values[-1]), name, entry.values[0])
            for entry in entries
            if entry.values[-1] not in kept
        ]

    def _ends(self, name: str, entries: list[Row]) -> dict[int, int]:
        """The commits by which nodes' states had ended, by the numbers of their rows."""
        if name != "node":
            return {}
        ends = {one.values[2]: other.values[1] for one, other in pairwise(entries) if one.values[0] == other.values[0]}
        known = self._entries("node_by_end") or ()
        return ends | {entry.values[2]: entry.values[0] for entry in known}

    def _begin_of(self, table: _Table, kept: dict[int, Row], unread: list[UnreadPage]) -> int:
        """The first commit as of which a row may be missing: that of the last row before the pages that are lost."""
        after = min((each.after for each in unread), default=0)
        before = (row.values[table.first] for rowid, row in kept.items() if rowid <= after)
        return max(max(before, default=0), self._found.oldest)

    def _earlier_gaps(self) -> Iterator[Gap]:
        """Yield the gaps that the file names already: what an earlier salvage did not find is still missing."""
        root = self._roots.get("gap")
        for row in self._pages.tree(root, lambda _: None) if root else ():
            if len(row.values) == 4:  # noqa: PLR2004
                yield Gap(*row.values)

    def _said(self) -> Iterator[Values]:
        root = self._roots.get("said")
        for row in self._pages.tree(root, lambda _: None) if root else ():
            values = row.values
            # In the order of the key; the table has the time before the checksum.
            if len(values) == 6 and checksum(_encode((*values[:5],))) == values[5]:  # noqa: PLR2004
                yield values


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """The same commits as few gaps, by table, without ids."""
    by_table: dict[str, list[Gap]] = defaultdict(list)
    for gap in sorted(gaps, key=lambda each: each.first):
        found = by_table[gap.table]
        before = found[-1] if found else None
        if before is not None and (before.last is None or gap.first <= before.last):
            last = None if before.last is None or gap.last is None else max(before.last, gap.last)
            found[-1] = Gap(before.first, last, gap.table)
        else:
            found.append(Gap(gap.first, gap.last, gap.table))
    return [gap for found in by_table.values() for gap in found]


def _are_integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)
