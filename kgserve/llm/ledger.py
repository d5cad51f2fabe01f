"""What a model is yet to be given of one store: memories that wait, how often each was tried, and what a day has cost.

A file beside the journal. It is no view: what was set aside, and what was spent, can be had from nowhere else. One
that cannot be read is begun anew, at the present.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from kgserve.errors import Unavailable

log = structlog.get_logger()

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cursor (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS waiting (
    id TEXT PRIMARY KEY, place INTEGER NOT NULL, due REAL NOT NULL, tries INTEGER NOT NULL, faults INTEGER NOT NULL,
    aside INTEGER NOT NULL, error TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting_due ON waiting (aside, due);
CREATE TABLE IF NOT EXISTS spent (day TEXT PRIMARY KEY, tokens INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
_NOTE = """
INSERT INTO waiting VALUES (?, ?, 0, 0, 0, 0, '')
ON CONFLICT (id) DO UPDATE SET place = excluded.place, due = 0, tries = 0, faults = 0, aside = 0, error = ''
"""
_DUE = "SELECT id, place, tries, faults FROM waiting WHERE aside = 0 AND due <= ? ORDER BY due, place LIMIT 1"
_FAIL = "UPDATE waiting SET tries = ?, faults = ?, due = ?, aside = ?, error = ? WHERE id = ? AND place = ?"
_AGAIN = "UPDATE waiting SET due = 0, tries = 0, faults = 0, aside = 0 WHERE aside = 1"
_SPEND = "INSERT INTO spent VALUES (?, ?) ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens"
_ASIDE = "SELECT id, tries, error FROM waiting WHERE aside = 1 ORDER BY place LIMIT ?"


class Waiting(NamedTuple):
    """A memory that waits since the commit ``place``; of its ``tries`` the ``faults`` were not the service's."""

    id: str
    place: int
    tries: int
    faults: int


class Ledger:
    """The file of one store, for any thread."""

    def __init__(self, path: Path, sequence: int) -> None:
        """Open it; where there is none, or none that can be read, what comes after ``sequence`` is new."""
        self._lock = threading.Lock()
        try:
            self._connection = _opened(path, sequence)
        except sqlite3.DatabaseError as error:
            log.warning("extraction_ledger_renewed", path=path.name, reason=str(error))
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                each.unlink(missing_ok=True)
            self._connection = _opened(path, sequence)

    def close(self) -> None:
        """Release the file."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def _asking(self) -> Generator[sqlite3.Connection]:
        """The file, for one at a time. Raises Unavailable."""
        try:
            with self._lock:
                yield self._connection
        except sqlite3.Error as error:
            raise Unavailable(f"what waits for the language model cannot be read or written: {error}", 5) from error

    @contextmanager
    def _changing(self) -> Generator[sqlite3.Connection]:
        """The same for a change, all of which is made or nothing."""
        with self._asking() as connection, connection:
            yield connection

    @property
    def sequence(self) -> int:
        """The commit up to which new memories were noted."""
        return self._one("SELECT sequence FROM cursor")

    def note(self, new: Iterable[tuple[str, int]], gone: Iterable[str], sequence: int) -> None:
        """Have memories wait, each since a commit; and others no more. What came up to ``sequence`` is noted then."""
        with self._changing() as transaction:
            transaction.executemany("DELETE FROM waiting WHERE id = ?", ((each,) for each in gone))
            transaction.executemany(_NOTE, new)
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def next(self, now: float) -> Waiting | None:
        """The memory whose turn it is, if there is one; ``now`` in seconds of the clock."""
        with self._asking() as connection:
            found = connection.execute(_DUE, (now,)).fetchone()
        return None if found is None else Waiting(*found)

    @property
    def next_due(self) -> float | None:
        """When the next one may be tried; None where none waits."""
        with self._asking() as connection:
            return connection.execute("SELECT min(due) FROM waiting WHERE aside = 0").fetchone()[0]

    def done(self, waiting: Waiting) -> None:
        """It no longer waits, unless it has changed meanwhile."""
        with self._changing() as transaction:
            transaction.execute("DELETE FROM waiting WHERE id = ? AND place = ?", (waiting.id, waiting.place))

    def fail(self, waiting: Waiting, due: float, error: str, *, aside: bool) -> None:
        """It is to be tried again when ``due``, or is set aside."""
        values = (waiting.tries, waiting.faults, due, aside, error, waiting.id, waiting.place)
        with self._changing() as transaction:
            transaction.execute(_FAIL, values)

    def again(self, ids: Collection[str] | None, sequence: int) -> int:
        """Have some memories wait, or all that were set aside: how many."""
        with self._changing() as transaction:
            if ids is None:
                return transaction.execute(_AGAIN).rowcount
            transaction.executemany(_NOTE, ((each, sequence) for each in ids))
            return len(ids)

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many were set aside."""
        with self._asking() as connection:
            found = dict(connection.execute("SELECT aside, count(*) FROM waiting GROUP BY aside").fetchall())
        return found.get(0, 0), found.get(1, 0)

    def aside(self, most: int) -> list[tuple[str, int, str]]:
        """The first that were set aside: id, tries, and why."""
        with self._asking() as connection:
            return connection.execute(_ASIDE, (most,)).fetchall()

    def spent(self, day: str) -> int:
        """The tokens of a day."""
        with self._asking() as connection:
            found = connection.execute("SELECT tokens FROM spent WHERE day = ?", (day,)).fetchone()
        return 0 if found is None else found[0]

    def spend(self, day: str, tokens: int) -> None:
        """Lay tokens to the account of a day; those before are forgotten."""
        with self._changing() as transaction:
            transaction.execute("DELETE FROM spent WHERE day <> ?", (day,))
            transaction.execute(_SPEND, (day, tokens))

    def _one(self, query: str) -> int:
        with self._asking() as connection:
            return connection.execute(query).fetchone()[0]


def _opened(path: Path, sequence: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power loss may take the last entries back: then the journal is read once more, and marks in the rows say
        # what was extracted.
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.executescript(_SCHEMA)
            connection.execute("INSERT OR IGNORE INTO cursor VALUES (1, ?)", (sequence,))
        connection.execute("SELECT count(*) FROM waiting").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
