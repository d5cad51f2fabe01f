"""The files of a store, read beside whoever writes to them.

Nothing of the store is locked or opened. A journal only grows at its end, and up to the mark, a sequence that was
acknowledged, nothing in it changes any more; what a compaction removes stays readable for who has it open.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from kgserve.backup.copying import Extent, whole_frames
from kgserve.errors import JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import named
from kgserve.journal.journal import Segment, list_segments
from kgserve.store.layout import Layout

_CURSOR = "SELECT sequence, oldest FROM cursor"
_TIME = "SELECT time FROM moment WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"


class Moved(Exception):
    """A file was removed between being listed and being opened: look again."""


class Hole(Exception):
    """The journal no longer reaches back as far as is needed."""


class Cursor(msgspec.Struct, frozen=True):
    """What a history has seen, since when it knows, and when the last commit that it has seen was made."""

    sequence: int
    oldest: int
    time: int


class Chunk(msgspec.Struct, frozen=True):
    """An extent of an open file."""

    file: BinaryIO
    extent: Extent


def history_path(layout: Layout) -> Path:
    """The file with the history of a store."""
    return layout.root / "history.sqlite"


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
    """The segments from the one on that holds a sequence, open. Raises Hole when there is none, Moved."""
    segments = list_segments(layout.journal)
    if not segments or segments[0].first > sequence:
        raise Hole
    at = max(index for index, segment in enumerate(segments) if segment.first <= sequence)
    with ExitStack() as stack:
        try:
            opened: list[tuple[Segment, BinaryIO]] = [
                (segment, stack.enter_context(segment.path.open("rb"))) for segment in segments[at:]
            ]
        except FileNotFoundError as error:
            raise Moved from error
        yield opened


def chunks(opened: list[tuple[Segment, BinaryIO]], offset: int, due: int, mark: int) -> list[Chunk]:
    """What is to be copied from these segments, from an offset in the first on, up to the mark.

    Raises JournalDamaged when something before the mark is damaged or missing.
    """
    found: list[Chunk] = []
    for segment, file in opened:
        if due > mark:
            break
        extent = whole_frames(file, segment.first, offset, due, mark)
        if extent is not None:
            found.append(Chunk(file, extent))
            due = extent.state.sequence + 1
        offset = 0
    if due <= mark:
        raise JournalDamaged(f"{named(opened[-1][0].path.parent)}: what comes after sequence {due - 1} is missing")
    return found


def newest_snapshot(layout: Layout, mark: int) -> snapshot.Manifest | None:
    """The newest whole snapshot up to a sequence."""
    for path in snapshot.list_snapshots(layout.journal):
        if snapshot.sequence_of(path) > mark:
            continue
        try:
            return snapshot.verify(path)
        except JournalDamaged:
            continue
    return None


def oldest_sequence(layout: Layout) -> int:
    """The first sequence that the journal may still hold. Raises FileNotFoundError when there is no journal."""
    segments = list_segments(layout.journal)
    if not segments:
        raise FileNotFoundError(layout.journal)
    return segments[0].first
