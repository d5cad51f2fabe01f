"""The files of a store, read and copied beside whoever writes to them.

Nothing of the store is locked or opened. A journal only grows at its end, and up to the mark, a sequence that was
acknowledged, nothing in it changes any more; what a compaction removes stays readable for who has it open.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from kgserve.backup.folder import FileEntry, Piece
from kgserve.errors import JournalDamaged
from kgserve.journal.files import named, storing, sync_folder, write_all
from kgserve.journal.journal import Frame, FrameError, Segment, list_segments, read_frames
from kgserve.model.change import StoreState
from kgserve.store.layout import Layout

BLOCK = 1 << 20
SYNC_BYTES = 8 << 20
"""How much is written between two syncs: one large one would hold up the journals on the same disk."""
TURN_SECONDS = 0.004
"""How long frames are looked at before writers get a turn; shorter than the interpreter's own turns."""
_CURSOR = "SELECT sequence, oldest FROM cursor"
_TIME = "SELECT time FROM moment WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"


class FileMoved(Exception):
    """A file was removed between being listed and being opened: look again."""


class JournalTooShort(Exception):
    """The journal no longer reaches back as far as is needed."""


class Cursor(msgspec.Struct, frozen=True):
    """What a history has seen, since when it knows, and when the last commit that it has seen was made."""

    sequence: int
    oldest: int
    time: int


class Chunk(msgspec.Struct, frozen=True):
    """Whole frames of a segment's open ``file`` that are to be copied, and the store's state after them."""

    file: BinaryIO
    segment: int
    offset: int
    bytes: int
    first: int
    state: StoreState


def cursor_of(path: Path) -> Cursor | None:
    """Where a history stands; None when there is none that can be read."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            sequence, oldest = connection.execute(_CURSOR).fetchone()
            made = connection.execute(_TIME, (sequence,)).fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return Cursor(sequence, oldest, made[0] if made else 0)


@contextmanager
def opened_from(layout: Layout, sequence: int) -> Generator[list[tuple[Segment, BinaryIO]]]:
    """The segments from the one on that holds a sequence, open. Raises JournalTooShort and FileMoved."""
    segments = list_segments(layout.journal)
    if not segments or segments[0].first > sequence:
        raise JournalTooShort
    at = max(index for index, segment in enumerate(segments) if segment.first <= sequence)
    with ExitStack() as stack:
        try:
            opened: list[tuple[Segment, BinaryIO]] = [
                (segment, stack.enter_context(segment.path.open("rb"))) for segment in segments[at:]
            ]
        except FileNotFoundError as error:
            raise FileMoved from error
        yield opened


def chunks(opened: list[tuple[Segment, BinaryIO]], offset: int, due: int, mark: int) -> list[Chunk]:
    """What is to be copied from these segments, from an offset in the first on, up to the frame with the mark.

    Raises JournalDamaged when something before the mark is damaged or missing.
    """
    found: list[Chunk] = []
    for segment, file in opened:
        newest: Frame | None = None
        for frame in _frames(file, offset, due, mark):
            newest = frame
        if newest is not None:
            state = newest.changes()[-1].state
            found.append(Chunk(file, segment.first, offset, newest.end - offset, due, state))
            due = state.sequence + 1
        offset = 0
    if due <= mark:
        raise JournalDamaged(f"{named(opened[-1][0].path.parent)}: what comes after sequence {due - 1} is missing")
    return found


def _frames(file: BinaryIO, offset: int, due: int, mark: int) -> Iterator[Frame]:
    """The frames from an offset on, which begin with sequence ``due``, up to the one with ``mark``."""
    if due > mark:
        return
    turn = time.perf_counter() + TURN_SECONDS
    try:
        for frame in read_frames(file, offset, file.seek(0, os.SEEK_END), due):
            yield frame
            if frame.last >= mark:
                return
            if time.perf_counter() > turn:
                time.sleep(TURN_SECONDS)
                turn = time.perf_counter() + TURN_SECONDS
    except FrameError as error:
        raise JournalDamaged(
            f"{named(Path(file.name))}: {error}; a damaged journal is not backed up: run `kgserve doctor` on the"
            " stopped server"
        ) from error


def copy_chunks(found: list[Chunk], folder: Path) -> list[Piece]:
    """Copy chunks into the folder of a run, which is made if there is anything to copy: one file each, once written."""
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [_copy_chunk(chunk, folder) for chunk in found]
    sync_folder(folder)
    return pieces


def _copy_chunk(chunk: Chunk, folder: Path) -> Piece:
    name = f"{chunk.segment:020d}.{chunk.offset}.log"
    entry = copy_range(chunk.file, chunk.offset, chunk.bytes, folder / name, f"{folder.name}/{name}")
    return Piece(entry, chunk.segment, chunk.offset, chunk.first, chunk.state.sequence, chunk.state.time)


def copy_range(file: BinaryIO, offset: int, size: int, target: Path, path: str) -> FileEntry:
    """Copy so many bytes into a new file, durably; ``path`` is its name in the manifest. Raises StorageFull."""
    hasher = hashlib.sha256()
    file.seek(offset)
    with storing(f"writing {target}"):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy(file, size, descriptor, hasher)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
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
