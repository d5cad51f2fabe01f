"""Batched SQLite queries."""

from __future__ import annotations

import sqlite3

from kgserve.platform.sqlite_files import select_rows_by_in_list, select_rows_by_values_join


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
