"""Making a store's folder out of a backup, as of a sequence or a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path

import msgspec

from kgserve.backup.folder import Base, FileEntry, Manifest, Mark, Piece, StoreBackup
from kgserve.backup.source import BLOCK
from kgserve.backup.verify import checked_frames, commits, fault_of
from kgserve.errors import BackupDamaged, InvalidInput
from kgserve.history.history import History
from kgserve.journal import snapshot
from kgserve.journal.files import storing, sync_file, sync_folder, write_all
from kgserve.journal.journal import Frame, encode_frame, segment_path
from kgserve.journal.tail import Tail
from kgserve.model.change import ChangeSet, StoreState
from kgserve.model.times import format_time, parse_time
from kgserve.permissions import private_folder
from kgserve.store.layout import write_description

MAX_DIGITS = 18
CHANGES_AT_ONCE = 500


class Point(msgspec.Struct, frozen=True):
    """What is to be restored: a sequence that a base covers."""

    base: Base
    sequence: int

    @property
    def mark(self) -> Mark:
        """The newest backup up to it, or else the first one: its settings are restored."""
        before = [mark for mark in self.base.marks if mark.sequence <= self.sequence]
        return before[-1] if before else self.base.marks[0]


def find_point(backup: StoreBackup, manifest: Manifest, until: str | None) -> Point:
    """The point that a sequence or an RFC 3339 time names; without one the end of the newest backup.

    Raises InvalidInput, with what is covered, for a point that is not, BackupDamaged.
    """
    if not manifest.bases:
        raise BackupDamaged(f"{backup.path}: it names no backup")
    if until is None:
        return Point(manifest.bases[-1], manifest.bases[-1].last.sequence)
    if until.isascii() and until.isdecimal() and len(until) <= MAX_DIGITS:
        return _at_sequence(manifest, int(until))
    try:
        time = parse_time(until)
    except ValueError as error:
        raise InvalidInput(f"until: {until!r} is neither a sequence nor a time: {error}") from None
    return _at_time(backup, manifest, time, until)


def covered(manifest: Manifest) -> str:
    """What can be restored, in words."""
    ranges = [
        f"sequences {base.first} to {base.last.sequence} (times {format_time(base.since)} to "
        f"{format_time(base.last.taken)})"
        for base in manifest.bases
    ]
    return "; ".join(ranges)


def _at_sequence(manifest: Manifest, sequence: int) -> Point:
    for base in reversed(manifest.bases):
        if base.first <= sequence <= base.last.sequence:
            return Point(base, sequence)
    raise InvalidInput(f"until: sequence {sequence} is not covered; this backup covers {covered(manifest)}")


def _at_time(backup: StoreBackup, manifest: Manifest, time: int, said: str) -> Point:
    for base in reversed(manifest.bases):
        if base.since <= time <= base.last.taken:
            before = (commit.sequence for commit in commits(backup.folder, base) if commit.time <= time)
            return Point(base, max(base.first, max(before, default=0)))
    raise InvalidInput(f"until: {said} is not covered; this backup covers {covered(manifest)}")


def build(backup: StoreBackup, point: Point, target: Path) -> StoreState:
    """Write a store's folder as of a point; the state that it must open with. Everything is durable afterwards.

    Raises BackupDamaged naming the file and the place, StorageFull.
    """
    with storing(f"writing {target}"):
        return _build(backup, point, target)


def _build(backup: StoreBackup, point: Point, target: Path) -> StoreState:
    journal = target / "journal"
    private_folder(journal)
    states = [StoreState(), *_snapshot(backup.folder, point, journal), *_segments(backup.folder, point, journal)]
    if not any(journal.glob("*.log")):
        segment_path(journal, point.sequence + 1).touch()
    state = max(states, key=attrgetter("sequence"))
    if state.sequence != point.sequence:
        raise BackupDamaged(f"{backup.path}: it does not lead to sequence {point.sequence}, but to {state.sequence}")
    mark = point.mark
    settings = mark.settings
    kept = msgspec.structs.replace(settings, history_from=min(settings.history_from, point.sequence))
    write_description(target, kept)
    if settings.history != "none":
        _history(backup.folder, point, target)
    sync_folder(journal)
    sync_folder(target)
    return state


def _snapshot(folder: Path, point: Point, journal: Path) -> Iterator[StoreState]:
    """A snapshot that does not come after the point, and the state in it."""
    copy = point.base.snapshot
    if copy is None or copy.sequence > point.sequence:
        return
    target = journal / f"{snapshot.PREFIX}{copy.sequence}"
    target.mkdir()
    for file in copy.files:
        _copy(folder, file, target / Path(file.path).name)
    sync_folder(target)
    yield snapshot.verify(target).state


def _segments(folder: Path, point: Point, journal: Path) -> Iterator[StoreState]:
    """The segments up to the point, and the state at their end."""
    pieces = (piece for piece in point.base.pieces if piece.first <= point.sequence)
    for segment, parts in groupby(pieces, key=attrgetter("segment")):
        newest: Frame | None = None
        path = segment_path(journal, segment)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for piece in parts:
                newest = _append(folder, piece, descriptor, point.sequence) or newest
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if newest is not None:
            until = [change for change in newest.changes() if change.sequence <= point.sequence]
            yield until[-1].state


def _append(folder: Path, piece: Piece, descriptor: int, last: int) -> Frame | None:
    """Write the commits of a piece up to one; the last frame that has some of them."""
    newest: Frame | None = None
    whole = 0
    for frame in checked_frames(folder, piece):
        if frame.first > last:
            break
        newest = frame
        whole = frame.end if frame.last <= last else whole
    with (folder / piece.file.path).open("rb") as file:
        while whole > 0:
            block = file.read(min(BLOCK, whole))
            write_all(descriptor, block)
            whole -= len(block)
    if newest is not None and newest.last > last:
        write_all(descriptor, encode_frame([change for change in newest.changes() if change.sequence <= last]))
    return newest


def _history(folder: Path, point: Point, target: Path) -> None:
    copy = point.base.history
    path = target / "history.sqlite"
    if copy is not None:
        _copy(folder, copy.file, path)
    oldest = min(point.mark.history_oldest, point.sequence)
    if oldest > (copy.oldest if copy else 0):
        _forget(path, target / "journal", copy.sequence if copy else 0, point.sequence, oldest)


def _forget(path: Path, journal: Path, after: int, last: int, oldest: int) -> None:
    """Have a history forget what the store's own had let go of; before that it must have seen all."""
    history = History(path)
    try:
        changes: Iterator[ChangeSet] = Tail(journal).read(after + 1, last)
        while some := list(islice(changes, CHANGES_AT_ONCE)):
            history.take(some)
        history.prune(oldest)
    finally:
        history.close()
    sync_file(path)


def _copy(folder: Path, file: FileEntry, target: Path) -> None:
    if (fault := fault_of(folder, file)) is not None:
        raise BackupDamaged(fault)
    shutil.copyfile(folder / file.path, target)
    sync_file(target)
