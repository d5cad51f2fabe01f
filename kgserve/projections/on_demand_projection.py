"""Projections in SQLite files that their readers bring up to date."""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog
from typing_extensions import override

from kgserve.errors import DiskFull, Unavailable
from kgserve.platform.nonblocking_reads import WouldBlock
from kgserve.platform.sqlite_files import remove_sqlite_files
from kgserve.projections.base import Projection, ProjectionEraseRequest
from kgserve.storage.journal.journal import Journal
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

Found = TypeVar("Found")


class DerivedSqliteFile(ABC):
    """SQLite file derived from other files; if it turns out to be damaged, it is discarded and rebuilt."""

    damage_event: str
    """Name of the log event for damage."""
    rebuilding_message: str
    """Error message for callers when a rebuild did not help."""

    def __init__(self, path: Path, **about: str) -> None:
        """Initialize without opening the file. ``about`` is added to log events."""
        self._path = path
        self._lock = threading.RLock()
        self._about = about

    def close(self) -> None:
        """Save and release the file."""
        with self._lock:
            self._release()

    def _answer(self, question: Callable[[], Found]) -> Found:
        """Run a query on the file, and once more after a rebuild if it is damaged. Raises Unavailable and DiskFull."""
        with self._lock:
            try:
                return question()
            except sqlite3.Error as error:
                self._raise_if_disk_is_full(error)
                damage = error
            try:
                self._note_damage(damage)
                return question()
            except sqlite3.Error as error:
                self._raise_if_disk_is_full(error)
                raise Unavailable(self.rebuilding_message, retry_after=2) from error

    # Caller holds the lock

    def _raise_if_disk_is_full(self, error: sqlite3.Error) -> None:
        """Close the file, which is intact, and raise DiskFull if the disk is full."""
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:  # absent in errors that are not SQLite's
            return
        with suppress(sqlite3.Error):
            self._release()
        raise DiskFull("The disk is full. Free some space and try again.") from error

    @abstractmethod
    def _release(self) -> None:
        """Save and release the file, if it is open."""

    def _note_damage(self, error: sqlite3.Error) -> None:
        log.error(self.damage_event, **self._about, exc_info=error)
        self._discard()

    def _discard(self) -> None:
        """Delete the file; the next query rebuilds it."""
        self._release()
        remove_sqlite_files(self._path)


class _Closable(Protocol):
    def close(self) -> None: ...


File = TypeVar("File", bound=_Closable)


class OnDemandProjection(DerivedSqliteFile, Projection, Generic[File]):
    """Projection brought up to date on demand: by its reader, before a query. Any thread may read.

    ``_open`` sets ``_file``. The first query opens the file.
    """

    def __init__(self, path: Path, layout: StoreLayout, journal: Journal, rows: CurrentRowsProjection) -> None:
        """Initialize without opening the file."""
        DerivedSqliteFile.__init__(self, path, store=layout.name)
        Projection.__init__(self, layout, journal, rows)
        self._rows = rows
        self._file: File | None = None

    def ask(self, question: Callable[[File, RowsSnapshot], Found]) -> Found:
        """Return the result of a query on the file and the rows, both as of the last commit. Raises Unavailable."""
        return self._answer(lambda: self._ask(question))

    def ask_without_blocking(self, question: Callable[[File, RowsSnapshot], Found]) -> Found:
        """Like `ask`. Raises WouldBlock if the file is in use, closed, damaged, or behind the last commit."""
        if not self._lock.acquire(blocking=False):
            raise WouldBlock
        try:
            with self._rows.reading_with_repair() as rows:
                if self.sequence != rows.at or self.rebuild_wanted:
                    raise WouldBlock
                return question(self._opened, rows)
        except sqlite3.Error as error:
            raise WouldBlock from error
        finally:
            self._lock.release()

    def erase(self, erasure: ProjectionEraseRequest) -> None:
        """Erase all traces of some nodes from the file. Blocks. Raises Unavailable."""
        if self._path.exists():
            self._answer(lambda: self._erase_now(erasure))

    def take(self, changes: Sequence[ChangeSet]) -> None:
        """Apply commits in progress, if the file is open. For the writing thread."""
        with self._lock:
            if not 0 <= self.sequence < changes[-1].sequence:
                return
            try:
                if self.sequence < (before := changes[0].sequence - 1):
                    self._catch_up(before)
                self._apply(changes, changes[-1].sequence)
                self._move(changes[-1].sequence)
            except sqlite3.Error as error:
                self._note_damage(error)

    def check(self) -> bool:
        """Return whether the file matches the journal; if not, discard it. Blocks."""
        fault = self._find_fault()
        if fault is None:
            return True
        log.error("check_failed", view=self.name, reason=fault, **self._about)
        with self._lock:
            self._discard()
        return False

    def _find_fault(self) -> str | None:
        """Return how the file differs from the journal; None if it does not, or if it cannot be compared."""
        return None

    # Caller holds the lock

    def _ask(self, question: Callable[[File, RowsSnapshot], Found]) -> Found:
        with self._rows.reading_with_repair() as rows:
            return question(self._caught_up(rows), rows)

    def _caught_up(self, rows: RowsSnapshot) -> File:
        """Return the file after applying everything up to the commit of ``rows``, and nothing after it."""
        self._catch_up(rows.at)
        return self._opened

    def _catch_up(self, last: int) -> None:
        try:
            while self._step(last):
                pass
        except BaseException:
            if self.sequence < 0:
                self._release()
            raise

    @property
    def _opened(self) -> File:
        assert self._file is not None  # noqa: S101 - `_open` sets it
        return self._file

    @override
    def _rebuild(self) -> None:
        if self.sequence >= 0 or self.rebuild_wanted:
            self._discard()
            self._open()
        super()._rebuild()

    @abstractmethod
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        """Erase all traces of some nodes from the open file. Must be idempotent."""

    def _erase_now(self, erasure: ProjectionEraseRequest) -> None:
        with self._rows.reading() as rows:
            self._catch_up(rows.at)
        self._erase(erasure)

    @override
    def _release(self) -> None:
        self._move(-1)
        if self._file is not None:
            self._file.close()
            self._file = None
