"""Copying with checksums: byte ranges of files that may only grow, and SQLite files that others write to."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import msgspec

from kgserve.backup.manifest import FileEntry
from kgserve.errors import JournalDamaged
from kgserve.journal.files import named, storage_error, write_all
from kgserve.journal.frame import Frame, FrameError, read_frame
from kgserve.model.change import StoreState

BLOCK = 1 << 20
SYNC_BYTES = 8 << 20
"""How much is written between two syncs: one large one would hold up the journals on the same disk."""
TURN_SECONDS = 0.004
"""How long frames are looked at before writers get a turn; shorter than the interpreter's own turns."""


class Extent(msgspec.Struct, frozen=True):
    """Whole frames of a segment that are to be copied, and the store's state after them."""

    segment: int
    offset: int
    bytes: int
    first: int
    state: StoreState


def whole_frames(file: BinaryIO, segment: int, offset: int, due: int, mark: int) -> Extent | None:
    """The frames from an offset on, which begin with sequence ``due``, up to the one with ``mark``; None for none.

    Raises JournalDamaged at the first that is not whole or does not follow on.
    """
    size = file.seek(0, os.SEEK_END)
    newest: Frame | None = None
    for frame in _frames(file, offset, size, due, mark):
        newest = frame
    if newest is None:
        return None
    return Extent(segment, offset, newest.end - offset, due, newest.changes()[-1].state)


def _frames(file: BinaryIO, offset: int, size: int, due: int, mark: int) -> Iterator[Frame]:
    turn = time.perf_counter() + TURN_SECONDS
    while offset < size and due <= mark:
        try:
            frame = read_frame(file, offset, size)
        except FrameError as error:
            raise _damaged(file, error.offset, error.reason) from error
        if frame.first != due:
            raise _damaged(file, offset, f"sequence {frame.first} where {due} was due")
        yield frame
        due, offset = frame.last + 1, frame.end
        if time.perf_counter() > turn:
            time.sleep(TURN_SECONDS)
            turn = time.perf_counter() + TURN_SECONDS


def copy_range(file: BinaryIO, offset: int, size: int, target: Path, path: str) -> FileEntry:
    """Copy so many bytes into a new file, durably; ``path`` is its name in the manifest. Raises StorageFull."""
    hasher = hashlib.sha256()
    file.seek(offset)
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy(file, size, descriptor, hasher)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(error, f"writing {target}") from error
    return FileEntry(path, size, hasher.hexdigest())


def _copy(file: BinaryIO, size: int, descriptor: int, hasher: hashlib._Hash) -> None:
    left, unsynced = size, 0
    while left:
        block = file.read(min(BLOCK, left))
        if not block:
            raise JournalDamaged(f"{named(Path(file.name))}: it has become shorter while it was copied")
        hasher.update(block)
        write_all(descriptor, block)
        left -= len(block)
        unsynced += len(block)
        if unsynced >= SYNC_BYTES:
            os.fdatasync(descriptor)
            unsynced = 0


def sum_of(file: BinaryIO, offset: int, size: int) -> str:
    """SHA-256 of a range, in hexadecimal; of what there is, if the file is shorter."""
    hasher = hashlib.sha256()
    file.seek(offset)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        hasher.update(block)
        size -= len(block)
    return hasher.hexdigest()


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite file as of one moment, while others write to it. Raises sqlite3.Error."""
    with closing(sqlite3.connect(source, timeout=30)) as connection, closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)
        # One file, without a log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")


def _damaged(file: BinaryIO, offset: int, reason: str) -> JournalDamaged:
    where = f"{named(Path(file.name))}: {reason} at offset {offset}"
    return JournalDamaged(f"{where}; a damaged journal is not backed up: run `kgserve doctor` on the stopped server")
