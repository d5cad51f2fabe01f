"""SQLite files: batched queries, and memory of idle connections."""

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
from pathlib import Path

from kgserve.platform.sqlite_files import (
    ConcurrentSqliteDatabase,
    open_sqlite_database,
    release_sqlite_caches,
    select_rows_by_in_list,
    select_rows_by_values_join,
)

TEXTS = "CREATE TABLE IF NOT EXISTS texts (n INTEGER PRIMARY KEY, text TEXT)"


class Texts(ConcurrentSqliteDatabase):
    """A file of 200 texts."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_sqlite_database(path, TEXTS, 1), path)
        self._writer.executemany("INSERT INTO texts (text) VALUES (?)", [("x" * 2_000,)] * 200)
        self._writer.commit()

    def read(self) -> list[tuple[int, str]]:
        """Return all texts."""
        return self._read("SELECT n, text FROM texts")

    def release_while_both_connections_are_used(self) -> None:
        """Release the caches of all files, which does not wait for this one."""
        with self._writing, self._reading:
            release_sqlite_caches()


def made(rows: int) -> sqlite3.Connection:
    file = sqlite3.connect(":memory:")
    file.execute("CREATE TABLE numbers (n INTEGER, half INTEGER)")
    file.executemany("INSERT INTO numbers VALUES (?, ?)", ((n, n // 2) for n in range(rows)))
    return file


def test_queries_with_more_values_than_one_statement_allows() -> None:
    file = made(3_000)
    assert sorted(select_rows_by_in_list(file.execute, "SELECT n FROM numbers WHERE n IN", range(-5, 3_000))) == [
        (n,) for n in range(3_000)
    ]
    pairs = [(n, 7) for n in range(3_000)]
    found = select_rows_by_values_join(file.execute, "SELECT n FROM numbers WHERE (n, half) IN", pairs, "")
    assert sorted(found) == [(14,), (15,)]


def test_a_database_can_be_closed_after_a_partial_iteration() -> None:
    file = made(2)
    some = select_rows_by_in_list(file.execute, "SELECT n FROM numbers WHERE n IN", [0, 1])
    rows = select_rows_by_values_join(file.execute, "SELECT n FROM numbers WHERE (n, half) IN", [(0, 0), (1, 0)], "")
    assert next(some) == next(rows) == (0,)
    file.close()
    some.close()  # pyright: ignore[reportAttributeAccessIssue]  # it is a generator
    rows.close()  # pyright: ignore[reportAttributeAccessIssue]  # as above


def test_idle_connections_keep_no_pages_in_memory(tmp_path: Path) -> None:
    def used() -> int:
        return ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used()

    release_sqlite_caches()
    before = used()
    file, other = Texts(tmp_path / "texts.sqlite"), Texts(tmp_path / "other.sqlite")
    assert len(file.read()) == len(other.read()) == 200
    full = used() - before
    file.release_while_both_connections_are_used()
    half = used() - before
    release_sqlite_caches()
    left = used() - before
    assert full > 1_000_000 > left
    assert full * 0.4 < half < full * 0.75
    assert len(file.read()) == 200
    file.close()
    release_sqlite_caches()
    other.close()
