"""Last versions of deleted nodes, from which numbering continues when a node is created again.

A projection of the journal and its snapshots in SQLite. Only the writer queries it, for the nodes that a group of
writes creates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import chain

import msgspec
from typing_extensions import override

from kgserve.platform.sqlite_files import (
    open_sqlite_database,
    select_rows_by_in_list,
    store_sqlite_checksum,
    vacuum_database,
)
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.on_demand_projection import OnDemandProjection
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.journal_reader import (
    CommitNodeDeletions,
    extract_versions_from_deletion_commits,
    read_node_deletion_commits,
)
from kgserve.storage.journal.replay import replay_deleted_node_last_versions
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_rows_digest import checksum_63bit
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

TOMBSTONES_FORMAT = 2
MAX_SCANNED_JOURNAL_BYTES = 1 << 20
"""Journal size above which an empty file is kept, to avoid scanning the journal for deletions at each opening."""
_TOMBSTONES_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -1000;
CREATE TABLE IF NOT EXISTS ended (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, hash INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursor (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL);
INSERT OR IGNORE INTO cursor VALUES (1, -1);
PRAGMA user_version = 2;
"""
_SELECT_ENDED_BY_ID = "SELECT id, version, hash FROM ended WHERE id IN"
_SELECT_ALL_ENDED = "SELECT id, version, hash FROM ended"
_UPSERT_ENDED = "INSERT OR REPLACE INTO ended VALUES (?, ?, ?)"

_encode = msgspec.msgpack.Encoder().encode


class DeletedNodeVersions(OnDemandProjection[sqlite3.Connection]):
    """Last versions of one store's deleted nodes. No file exists until a node is deleted."""

    name = "ended"
    damage_event = "ended_damaged"
    rebuilding_message = "the versions of deleted nodes are being rebuilt; try again shortly"

    def __init__(self, layout: StoreLayout, journal: Journal, rows: CurrentRowsProjection) -> None:
        super().__init__(layout.ended, layout, journal, rows)

    @property
    def is_empty(self) -> bool:
        """True if no node has been deleted, as far as is known without opening the file."""
        return self.sequence >= 0 and self._file is None

    def versions(self, ids: Collection[str], at: int) -> dict[str, int]:
        """Return the last versions of those nodes in ``ids`` that were deleted by a commit. Raises Unavailable."""
        return self._answer(lambda: self._versions(ids, at))

    @override
    def _find_fault(self) -> str | None:
        with ExitStack() as held:
            with self._lock:
                at = self._rows.state.sequence
                self._answer(lambda: self._catch_up(at))
                if self._file is None:
                    return None
                reader = held.enter_context(closing(sqlite3.connect(self._path, isolation_level=None)))
                reader.execute("BEGIN")
                reader.execute("SELECT sequence FROM cursor").fetchone()
            expected = _sum(
                map(_checksum, chain.from_iterable(replay_deleted_node_last_versions(self._layout, self._journal, at)))
            )
            try:
                found = _sum(_checksum(pair) for pair in _verified(reader.execute(_SELECT_ALL_ENDED)))
            except sqlite3.Error as error:
                return str(error)
        return None if found == expected else "its content differs from the journal"

    # Caller holds the lock

    def _versions(self, ids: Collection[str], at: int) -> dict[str, int]:
        self._catch_up(at)
        return (
            {}
            if self._file is None
            else dict(_verified(select_rows_by_in_list(self._file.execute, _SELECT_ENDED_BY_ID, [*ids])))
        )

    @override
    def _open(self) -> int:
        if not self._path.exists():
            return -1
        [(sequence,)] = self._open_file().execute("SELECT sequence FROM cursor")
        return sequence

    def _open_file(self) -> sqlite3.Connection:
        if self._file is None:
            self._file = open_sqlite_database(self._path, _TOMBSTONES_SCHEMA, TOMBSTONES_FORMAT)
        return self._file

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[CommitNodeDeletions], int]:
        return read_node_deletion_commits(self._journal.frames(after), after, last), last

    @override
    def _apply(self, changes: Iterable[CommitNodeDeletions | ChangeSet], sequence: int) -> None:
        found = extract_versions_from_deletion_commits(changes)
        if not found:
            return
        with self._open_file() as file:
            file.executemany(_UPSERT_ENDED, (_row_values(each) for each in found.items() if each[1]))
            file.executemany("DELETE FROM ended WHERE id = ?", ((node_id,) for node_id in found if not found[node_id]))
            _set_position(file, sequence)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        pairs = chain.from_iterable(replay_deleted_node_last_versions(self._layout, self._journal, rows.at))
        first = next(pairs, None)
        if first is None and self._file is None:
            return rows.at
        with self._open_file() as file:
            file.execute("DELETE FROM ended")
            file.executemany(_UPSERT_ENDED, map(_row_values, pairs if first is None else chain((first,), pairs)))
            _set_position(file, rows.at)
        return rows.at

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        if self._file is not None:
            with self._file as file:
                file.executemany("DELETE FROM ended WHERE id = ?", ((node_id,) for node_id in erasure.ids))
            vacuum_database(self._file)

    @override
    def _release(self) -> None:
        with suppress(sqlite3.Error):
            if self.is_empty and self._journal.bytes > MAX_SCANNED_JOURNAL_BYTES:
                self._open_file()
            if self._file is not None and self.sequence >= 0:
                with self._file as file:
                    _set_position(file, self.sequence)
        was_open = self._file is not None
        super()._release()
        if was_open:
            store_sqlite_checksum(self._path)


def _set_position(file: sqlite3.Connection, sequence: int) -> None:
    file.execute("UPDATE cursor SET sequence = ?", (sequence,))


def _row_values(pair: tuple[str, int]) -> tuple[str, int, int]:
    return *pair, _checksum(pair)


def _checksum(pair: tuple[str, int]) -> int:
    return checksum_63bit(_encode(pair))


def _verified(found: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int]]:
    """Yield the verified versions of nodes. Raises sqlite3.DatabaseError on a checksum mismatch."""
    for node_id, version, expected in found:
        if _checksum((node_id, version)) != expected:
            raise sqlite3.DatabaseError("a version does not match its checksum")
        yield node_id, version


def _sum(checksums: Iterable[int]) -> tuple[int, int]:
    """Return the number of checksums and an order-independent sum of them."""
    count = total = 0
    for each in checksums:
        count, total = count + 1, (total + each) % (1 << 64)
    return count, total
