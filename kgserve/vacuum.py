"""Files of SQLite made to hold nothing of what was deleted from them: neither in free pages nor in their logs."""

from __future__ import annotations

import sqlite3
import time

from kgserve.errors import Unavailable

_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


def write_anew(connection: sqlite3.Connection) -> None:
    """Write a file anew with what it holds, and empty its log; no transaction of the connection is open.

    Others read meanwhile. Deleting alone, even with `secure_delete`, leaves what pages have been told before they were
    put in order. Raises sqlite3.Error, and Unavailable while somebody does not let go of an old state.
    """
    connection.execute("VACUUM")
    empty_log(connection)


def empty_log(connection: sqlite3.Connection) -> None:
    """Have a file hold all that its log has, and nothing be left of that. Raises as `write_anew` does."""
    deadline = time.monotonic() + _SECONDS
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > deadline:
            raise Unavailable("a file's log could not be emptied, for it is being read; try again later")
        time.sleep(_PAUSE_SECONDS)
