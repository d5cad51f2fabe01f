"""SQLite files: opening, sealing, copying, batch queries, and rewriting without deleted data."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import structlog
import xxhash

from kgserve.errors import Unavailable

log = structlog.get_logger()

_SQLITE_LOCK_TIMEOUT_SECONDS = 30.0
_SEAL_SUFFIX = "-seal"
_SQLITE_RETRY_SECONDS = 0.02


def open_sqlite_database(path: Path | None, script: str, format_: int, **options: Any) -> sqlite3.Connection:
    """Open a database file, or one in memory, usable from any thread; ``script`` creates the schema.

    A file that is unreadable, has another `user_version` than ``format_``, or does not match its seal is replaced by an
    empty one. ``options`` are passed to `sqlite3.connect`.
    """
    if path is None:
        return _connected(":memory:", script, format_, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    _unseal(path)
    try:
        return _connected(path, script, format_, options)
    except sqlite3.DatabaseError:
        remove_sqlite_files(path)
        return _connected(path, script, format_, options)


class ConcurrentSqliteDatabase:
    """Database with one connection for writing and one for reading, each used by one thread at a time."""

    def __init__(self, writer: sqlite3.Connection, path: Path) -> None:
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer = writer
        self._reader = sqlite3.connect(path, check_same_thread=False)
        register_caching_database(self)

    def close(self) -> None:
        """Close both connections."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    def release_cache(self) -> None:
        """Release SQLite's page caches of the connections that are not in use."""
        for lock, connection in ((self._writing, self._writer), (self._reading, self._reader)):
            if lock.acquire(blocking=False):
                try:
                    release_connection_cache(connection)
                finally:
                    lock.release()

    def _read(self, query: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()


class CachingDatabase(Protocol):
    """Database whose page caches can be released while it is not in use."""

    def release_cache(self) -> None:
        """Release the page caches of connections that are not in use. Does not wait."""
        ...


_caching_databases: WeakSet[CachingDatabase] = WeakSet()
# A set cannot be iterated while another thread adds to it.
_caching_databases_lock = threading.Lock()


def register_caching_database(database: CachingDatabase) -> None:
    """Let `release_sqlite_caches` release the caches of a database for as long as it exists."""
    with _caching_databases_lock:
        _caching_databases.add(database)


def release_sqlite_caches() -> None:
    """Release the page caches of idle connections, which take 80 KiB each even in a small file."""
    with _caching_databases_lock:
        databases = [*_caching_databases]
    for database in databases:
        database.release_cache()


def release_connection_cache(connection: sqlite3.Connection) -> None:
    """Release the page cache of a connection that no other thread uses; a closed one has none."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA shrink_memory")


def remove_sqlite_files(path: Path) -> None:
    """Delete a database with its seal and SQLite's side files, whatever they are."""
    for each in _files(path):
        remove_path(each)


def remove_path(path: Path) -> None:
    """Delete a file, link or folder with its contents, if it exists. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def store_sqlite_checksum(path: Path) -> None:
    """Store the checksum of a closed file, so that damage is detected at the next open.

    A file with a write-ahead log is not sealed and is trusted after a crash.
    """
    log_ = path.with_name(f"{path.name}-wal")
    with suppress(OSError):
        if path.is_file() and not (log_.exists() and log_.stat().st_size):
            # Not synced: if a power loss corrupts the seal, the file is only rebuilt.
            _seal_of(path).write_bytes(_checksum(path))


def _unseal(path: Path) -> None:
    """Delete a file that does not match its seal. The seal is always removed, as the file is about to change."""
    seal_ = _seal_of(path)
    try:
        known = seal_.read_bytes()
    except FileNotFoundError:
        known = None
    except OSError:
        known = b""
    is_odd = any(each.is_symlink() or (each.exists() and not each.is_file()) for each in _files(path))
    if is_odd or (known is not None and (not path.exists() or known != _checksum(path))):
        log.warning("view_damaged", file=f"{path.parent.name}/{path.name}", reason="it changed while it was closed")
        remove_sqlite_files(path)
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


def copy_sqlite_database(source: Path, target: Path) -> None:
    """Copy a database as of one moment while others write to it. Raises sqlite3.Error."""
    # Read-only, because closing the last writable connection makes SQLite checkpoint the log.
    read = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=_SQLITE_LOCK_TIMEOUT_SECONDS)
    with closing(read) as connection, closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)
        # A single file without a log.
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


def vacuum_database(connection: sqlite3.Connection) -> None:
    """Rewrite a file without deleted data and empty its log. The connection must not be in a transaction.

    Others may read meanwhile. Deleting alone, even with `secure_delete`, leaves copies of earlier page contents. Raises
    sqlite3.Error, and Unavailable while a reader holds an old snapshot.
    """
    connection.execute("VACUUM")
    checkpoint_and_truncate_sqlite_wal(connection)


def checkpoint_and_truncate_sqlite_wal(connection: sqlite3.Connection) -> None:
    """Move the whole write-ahead log into the file and truncate it. Raises the errors of `vacuum_database`."""
    deadline = time.monotonic() + _SQLITE_LOCK_TIMEOUT_SECONDS
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > deadline:
            raise Unavailable(
                "the log of a database file could not be emptied because it is being read; try again later"
            )
        time.sleep(_SQLITE_RETRY_SECONDS)


_PARAMETER_BATCH_SIZE = 500
_Value = str | int | bytes


def select_rows_by_in_list(
    run: Callable[..., sqlite3.Cursor],
    query: str,
    values: Sequence[_Value],
    *,
    before: Sequence[_Value] = (),
    end: str = "",
) -> Iterator[Any]:
    """Yield the rows of a query whose ``IN`` list holds ``values``; ``before`` are parameters in front of it.

    Queries are run lazily in batches. json_each is not used, because it ends a text at NUL.
    """
    for start in range(0, len(values), _PARAMETER_BATCH_SIZE):
        some = values[start : start + _PARAMETER_BATCH_SIZE]
        yield from _each(run(f"{query} ({', '.join('?' * len(some))}) {end}", [*before, *some]))


def select_rows_by_values_join(
    run: Callable[..., sqlite3.Cursor], query: str, rows: Sequence[Sequence[_Value]], end: str
) -> Iterator[Any]:
    """Yield the rows of a query that joins a VALUES list of ``rows``, followed by ``end``.

    Queries are run lazily in batches.
    """
    for start in range(0, len(rows), _PARAMETER_BATCH_SIZE):
        some = rows[start : start + _PARAMETER_BATCH_SIZE]
        marks = f"({', '.join('?' * len(some[0]))})"
        values = [each for row in some for each in row]
        yield from _each(run(f"{query} (VALUES {', '.join([marks] * len(some))}) {end}", values))


def _each(found: sqlite3.Cursor) -> Iterator[Any]:
    """Yield the rows of a cursor. Unlike `yield from`, does not close the cursor of an abandoned iteration."""
    for row in found:  # noqa: UP028
        yield row


def to_named_sql_parameters(name: str, values: Sequence[_Value]) -> dict[str, _Value]:
    """Return values as named parameters of a query: `NAME0`, `NAME1`, …."""
    return {f"{name}{at}": value for at, value in enumerate(values)}
