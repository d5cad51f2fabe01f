"""The last versions of nodes that were deleted, from which numbering goes on when one of them is made again.

A view of the journal and its snapshots in SQLite, asked by the writer alone, for the nodes that a group creates.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from typing import TypeVar

import msgspec
import structlog

from kgserve.platform.sqlite_files import asked, of_some, opened, remove_files, seal, write_anew
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import all_ended
from kgserve.storage.journal.tail import last_versions
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.digest import checksum

log = structlog.get_logger()

_Found = TypeVar("_Found")

FORMAT = 2
WORTH_A_FILE = 1 << 20
"""So much journal is not looked through at each opening to see that nothing was deleted."""
_SCHEMA = """
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
_OF = "SELECT id, version, hash FROM ended WHERE id IN"
_ALL = "SELECT id, version, hash FROM ended"
_PUT = "INSERT OR REPLACE INTO ended VALUES (?, ?, ?)"

_encode = msgspec.msgpack.Encoder().encode


class EndedView:
    """Of one store; without a file until a node was deleted. The file is opened for the first node that is created."""

    def __init__(self, layout: Layout, journal: Journal) -> None:
        self._layout = layout
        self._journal = journal
        self._lock = threading.RLock()
        self._file: sqlite3.Connection | None = None
        self._seen = -1
        # Known to be so: then nothing need be asked, nor told until a node is deleted.
        self.is_empty = False

    def versions(self, ids: Collection[str], at: int) -> dict[str, int]:
        """The last versions of those of some nodes that were deleted by a commit. Raises Unavailable."""
        return self._ask(lambda: self._versions(ids, at))

    def taking(self, changes: Sequence[ChangeSet]) -> None:
        """Take in commits, if it was asked before."""
        with self._lock:
            if self.is_empty and any(change.last_versions for change in changes):
                self.is_empty = False
            elif self._file is not None and self._seen >= changes[0].sequence - 1:
                file = self._file
                try:
                    for change in changes:
                        if change.last_versions:
                            pairs = zip(change.nodes_deleted, change.last_versions, strict=True)
                            _apply(file, dict(pairs), change.sequence)
                    self._seen = changes[-1].sequence
                except sqlite3.Error:
                    log.exception("ended_damaged", store=self._layout.name)
                    self._forget()

    def erase(self, ids: Iterable[str]) -> None:
        """Leave nothing of some nodes. Raises sqlite3.Error, Unavailable."""
        with self._lock:
            if self._file is None and not self._layout.ended.exists():
                return
            file = self._file or _opened(self._layout)
            try:
                with file:
                    file.executemany("DELETE FROM ended WHERE id = ?", ((node_id,) for node_id in ids))
                write_anew(file)
            finally:
                if self._file is None:
                    file.close()
                    seal(self._layout.ended)

    def check(self) -> bool:
        """Whether the file says what the journal does; if not, it is made anew. Blocks; numbers are given meanwhile."""
        with ExitStack() as held:
            with self._lock:
                at = self._journal.last
                if self._ask(lambda: None if self.is_empty else self._known(at)) is None:
                    return True
                beside = held.enter_context(closing(sqlite3.connect(self._layout.ended, isolation_level=None)))
                beside.execute("BEGIN")
                beside.execute("SELECT sequence FROM cursor").fetchone()
            stated = _sum(map(_checksum, chain.from_iterable(all_ended(self._layout, self._journal, at))))
            reason = "it does not say what the journal does"
            try:
                found = _sum(_checksum(pair) for pair in _intact(beside.execute(_ALL)))
            except sqlite3.Error as error:
                found, reason = None, str(error)
        if found == stated:
            return True
        log.error("check_failed", store=self._layout.name, view="ended", reason=reason)
        with self._lock:
            self._forget()
        return False

    def close(self) -> None:
        """Release the file."""
        with self._lock, suppress(sqlite3.Error):
            if self._file is None and self.is_empty and self._journal.bytes > WORTH_A_FILE:
                self._file, self._seen = _opened(self._layout), self._journal.last
            if self._file is not None:
                _apply(self._file, {}, self._seen)
                self._file.close()
                self._file = None
                seal(self._layout.ended)

    # With the lock held

    def _ask(self, question: Callable[[], _Found]) -> _Found:
        told = "the numbers of deleted nodes are being made anew"
        with self._lock:
            return asked(question, self._forget, "ended_damaged", told, store=self._layout.name)

    def _versions(self, ids: Collection[str], at: int) -> dict[str, int]:
        file = None if self.is_empty else self._known(at)
        return {} if file is None else dict(_intact(of_some(file.execute, _OF, [*ids])))

    def _known(self, at: int) -> sqlite3.Connection | None:
        """The file, which has seen a commit; None where nothing was deleted. Raises sqlite3.Error, JournalDamaged."""
        file = self._file
        if file is None:
            if not self._layout.ended.exists() and next(all_ended(self._layout, self._journal, at), None) is None:
                self.is_empty = True
                return None
            file = self._file = _opened(self._layout)
            [(self._seen,)] = file.execute("SELECT sequence FROM cursor")
        if self._seen != at:
            self._follow(file, at)
        return file

    def _follow(self, file: sqlite3.Connection, at: int) -> None:
        if not self._journal.oldest - 1 <= self._seen <= at:
            with file:
                file.execute("DELETE FROM ended")
                file.executemany(_PUT, map(_stored, chain.from_iterable(all_ended(self._layout, self._journal, at))))
                file.execute("UPDATE cursor SET sequence = ?", (at,))
        else:
            _apply(file, last_versions(self._journal.frames(self._seen), self._seen, at), at)
        self._seen = at

    def _forget(self) -> None:
        """Have the file made anew when it is next asked."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.is_empty = False
        remove_files(self._layout.ended)


def _apply(file: sqlite3.Connection, found: Mapping[str, int], sequence: int) -> None:
    with file:
        file.executemany(_PUT, (_stored(each) for each in found.items() if each[1]))
        file.executemany("DELETE FROM ended WHERE id = ?", ((node_id,) for node_id in found if not found[node_id]))
        file.execute("UPDATE cursor SET sequence = ?", (sequence,))


def _stored(pair: tuple[str, int]) -> tuple[str, int, int]:
    return *pair, _checksum(pair)


def _checksum(pair: tuple[str, int]) -> int:
    return checksum(_encode(pair))


def _intact(found: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, int]]:
    """The versions of nodes. Raises sqlite3.DatabaseError for what does not fit its checksum."""
    for node_id, version, expected in found:
        if _checksum((node_id, version)) != expected:
            raise sqlite3.DatabaseError("a number does not fit its checksum")
        yield node_id, version


def _sum(checksums: Iterable[int]) -> tuple[int, int]:
    """How many there are, and what they come to in any order."""
    count = total = 0
    for each in checksums:
        count, total = count + 1, (total + each) % (1 << 64)
    return count, total


def _opened(layout: Layout) -> sqlite3.Connection:
    return opened(layout.ended, _SCHEMA, FORMAT)
