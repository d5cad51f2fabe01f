"""Read-only access to Kùzu files of other programs.

A file without a log is opened in place, read-only. A file with a log is copied first, because opening it replays the
log into the file.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, LiteralString

from kgserve.errors import Conflict, InvalidInput
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Connection, Database
from kgserve.storage.store_folder_layout import WAL_SUFFIX

FOREIGN_PAGE_CACHE_BYTES = 256 << 20
_MAX_FOREIGN_FILE_BYTES = 1 << 40
_KUZU_MAGIC = b"KUZU"


class ForeignKuzuFile:
    """Open Kùzu file of another program."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self.tables = {row["name"]: self._columns(row["name"]) for row in self.rows("CALL show_tables() RETURN *")}

    def rows(self, query: LiteralString) -> Iterator[dict[str, Any]]:
        """Yield the rows of a statement as dictionaries by column name. The engine holds the whole result in memory."""
        yield from self._rows(query)

    def _columns(self, table: str) -> frozenset[str]:
        # CALL takes no parameters for table names.
        quoted = table.replace("\\", "\\\\").replace("'", "\\'")
        return frozenset(row["name"] for row in self._rows(f"CALL table_info('{quoted}') RETURN *"))

    def _rows(self, query: str) -> Iterator[dict[str, Any]]:
        try:
            result = self._connection.execute(query)
            assert not isinstance(result, list)  # noqa: S101 - one statement gives one result
            with result:
                names = result.get_column_names()
                while result.has_next():
                    yield dict(zip(names, result.get_next(), strict=True))
        except RuntimeError as error:
            raise InvalidInput(f"{self._name}: the engine cannot read it: {error}") from error


@contextmanager
def open_foreign_kuzu_file(path: Path) -> Generator[ForeignKuzuFile]:
    """Open a Kùzu file of another program for the duration of the block.

    Raises InvalidInput if it is not a Kùzu file or has another storage version, Conflict if another process has it
    open.
    """
    with path.open("rb") as file, tempfile.TemporaryDirectory(prefix="kgserve-") as folder:
        _check(file, path)
        log = path.with_name(path.name + WAL_SUFFIX)
        whole = not log.exists()
        opened = path if whole else _copy_with_log(path, log, Path(folder))
        database = _open(opened, path, read_only=whole)
        try:
            with Connection(database) as connection:
                yield ForeignKuzuFile(connection, path.name)
        finally:
            database.close()


def _check(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise Conflict(f"{path} is open in another process; close it there first") from error
    fcntl.lockf(file, fcntl.LOCK_UN)
    head = file.read(12)
    if not head.startswith(_KUZU_MAGIC):
        raise InvalidInput(f"{path} is not a Kùzu 0.11 database file")
    found, ours = int.from_bytes(head[4:12], "little"), Database.get_storage_version()
    if found != ours:
        raise InvalidInput(
            f"{path} has storage version {found}, but this engine reads {ours} (Kùzu {Database.get_version()}); "
            "export it with the Kùzu version that wrote it, and import the export"
        )


def _copy_with_log(path: Path, log: Path, folder: Path) -> Path:
    copy = folder / "graph.kuzu"
    shutil.copyfile(path, copy)
    shutil.copyfile(log, copy.with_name(copy.name + WAL_SUFFIX))
    return copy


def _open(path: Path, named: Path, *, read_only: bool) -> Database:
    try:
        return Database(
            str(path),
            buffer_pool_size=FOREIGN_PAGE_CACHE_BYTES,
            max_num_threads=2,
            max_db_size=_MAX_FOREIGN_FILE_BYTES,
            read_only=read_only,
        )
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{named} cannot be opened as a Kùzu file: {error}") from error
