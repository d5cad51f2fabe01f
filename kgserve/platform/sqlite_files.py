"""Files of SQLite: made in their format, asked about many rows at once, taken away, and emptied of what was deleted."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import structlog
import xxhash

from kgserve.errors import Unavailable

log = structlog.get_logger()

_SQLITE_LOCK_TIMEOUT_SECONDS = 30.0
_SEAL_SUFFIX = "-seal"
_SQLITE_RETRY_SECONDS = 0.02


def opened(path: Path | None, script: str, format_: int, **options: Any) -> sqlite3.Connection:
    """A file, or what is in memory alone, which any thread may use; the ``script`` makes what is not there.

    One that cannot be read, whose `user_version` is another ``format_``, or that is not as `seal` left it, is replaced
    by an empty one. ``options`` are those of `sqlite3.connect`.
    """
    if path is None:
        return _connected(":memory:", script, format_, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    _unseal(path)
    try:
        return _connected(path, script, format_, options)
    except sqlite3.DatabaseError:
        remove_files(path)
        return _connected(path, script, format_, options)


class WrittenBesideReading:
    """A file with one connection that writes and one that reads, each used by one thread at a time."""

    def __init__(self, writer: sqlite3.Connection, path: Path) -> None:
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer = writer
        self._reader = sqlite3.connect(path, check_same_thread=False)

    def close(self) -> None:
        """Release the file."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    def _read(self, query: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()


def remove_files(path: Path) -> None:
    """Delete a file, its seal and what SQLite keeps next to it, whatever is there in their places."""
    for each in _files(path):
        remove_path(each)


def remove_path(path: Path) -> None:
    """Delete what is at a path: a file, a link, a folder with all that is in it, or nothing. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def seal(path: Path) -> None:
    """Note the checksum of a file that nobody has open, so that damage is noticed when it is next opened.

    What SQLite left a log of is not sealed: after a crash the file is taken as it is.
    """
    log_ = path.with_name(f"{path.name}-wal")
    with suppress(OSError):
        if path.is_file() and not (log_.exists() and log_.stat().st_size):
            # Not synced: after a power loss it is there, or it is not, or it does not fit and the file is made anew.
            _seal_of(path).write_bytes(_checksum(path))


def _unseal(path: Path) -> None:
    """Delete a file that is not what it was sealed as; the seal goes in any case, as the file is about to change."""
    seal_ = _seal_of(path)
    try:
        known = seal_.read_bytes()
    except FileNotFoundError:
        known = None
    except OSError:
        known = b""
    is_odd = any(each.is_symlink() or (each.exists() and not each.is_file()) for each in _files(path))
    if is_odd or (known is not None and (not path.exists() or known != _checksum(path))):
        log.warning("view_damaged", file=f"{path.parent.name}/{path.name}", reason="it is not as it was left")
        remove_files(path)
    remove_path(seal_)


def _seal_of(path: Path) -> Path:
    return path.with_name(path.name + _SEAL_SUFFIX)


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal", _SEAL_SUFFIX)]


def _checksum(path: Path) -> bytes:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest().encode()


def copy_database(source: Path, target: Path) -> None:
    """Copy a file as of one moment, while others write to it. Raises sqlite3.Error."""
    # For reading alone: at the end of the last connection that may write SQLite would move a log into its file.
    read = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=_SQLITE_LOCK_TIMEOUT_SECONDS)
    with closing(read) as connection, closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)
        # One file, without a log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")


def _connected(path: Path | str, script: str, format_: int, options: dict[str, Any]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, **options)
    try:
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        [(found,)] = connection.execute("PRAGMA user_version")
        if tables and found != format_:
            raise sqlite3.DatabaseError("another format")
        connection.executescript(script)
    except BaseException:
        connection.close()
        raise
    return connection


def write_anew(connection: sqlite3.Connection) -> None:
    """Write a file anew with what it holds, and empty its log; no transaction of the connection is open.

    Others read meanwhile. Deleting alone, even with `secure_delete`, leaves what pages have been told before they were
    put in order. Raises sqlite3.Error, and Unavailable while somebody does not let go of an old state.
    """
    connection.execute("VACUUM")
    empty_log(connection)


def empty_log(connection: sqlite3.Connection) -> None:
    """Have a file hold all that its log has, and nothing be left of that. Raises as `write_anew` does."""
    deadline = time.monotonic() + _SQLITE_LOCK_TIMEOUT_SECONDS
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > deadline:
            raise Unavailable("a file's log could not be emptied, for it is being read; try again later")
        time.sleep(_SQLITE_RETRY_SECONDS)


_PARAMETER_BATCH_SIZE = 500
_Value = str | int | bytes


def of_some(
    run: Callable[..., sqlite3.Cursor],
    query: str,
    values: Sequence[_Value],
    *,
    before: Sequence[_Value] = (),
    end: str = "",
) -> Iterator[Any]:
    """The rows of a query that goes on with ``IN``, for some values; ``before`` are others, in front of them.

    In slices, each asked for when the one before was read. Not by json_each, for which a NUL ends a text.
    """
    for start in range(0, len(values), _PARAMETER_BATCH_SIZE):
        some = values[start : start + _PARAMETER_BATCH_SIZE]
        yield from _each(run(f"{query} ({', '.join('?' * len(some))}) {end}", [*before, *some]))


def of_rows(
    run: Callable[..., sqlite3.Cursor], query: str, rows: Sequence[Sequence[_Value]], end: str
) -> Iterator[Any]:
    """The rows of a query that goes on with rows of values to join, and then with ``end``; in such slices as well."""
    for start in range(0, len(rows), _PARAMETER_BATCH_SIZE):
        some = rows[start : start + _PARAMETER_BATCH_SIZE]
        marks = f"({', '.join('?' * len(some[0]))})"
        values = [each for row in some for each in row]
        yield from _each(run(f"{query} (VALUES {', '.join([marks] * len(some))}) {end}", values))


def _each(found: sqlite3.Cursor) -> Iterator[Any]:
    """What a cursor finds. Who reads no further has no cursor closed, as `yield from` would: its file may be closed."""
    for row in found:  # noqa: UP028
        yield row


def named(name: str, values: Sequence[_Value]) -> dict[str, _Value]:
    """Values as parameters of a query: `NAME0`, `NAME1`."""
    return {f"{name}{at}": value for at, value in enumerate(values)}
