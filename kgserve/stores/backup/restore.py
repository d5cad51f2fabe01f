"""Reading backups: whether one is as it was written, and a store's folder made out of it, as of a sequence or a time.

Looked at are every file, every frame, and nothing else. Nothing is taken from a file before its checksum was seen to
fit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from time import time_ns

import msgspec

from kgserve.errors import BackupDamaged, InvalidInput, JournalDamaged
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import storing, sync_file, sync_folder, write_all
from kgserve.platform.permissions import private_folder
from kgserve.platform.times import format_time, parse_time
from kgserve.projections.history.history import History
from kgserve.projections.history.recovery import fault_of_rows
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Frame, FrameError, encode_frame, read_frames, segment_path
from kgserve.storage.journal.tail import Tail
from kgserve.storage.layout import write_description
from kgserve.storage.model.change import ChangeSet, StoreState
from kgserve.storage.plan import MAX_CLOCK_DRIFT_MICROSECONDS
from kgserve.stores.backup.api import BaseAnswer, VerifiedStore
from kgserve.stores.backup.create import BACKUP_BLOCK_BYTES, sum_of
from kgserve.stores.backup.folder import (
    BACKUP_LOCK_FILE,
    BACKUP_MANIFEST_FILE,
    RUN_FOLDER_PREFIX,
    STORES_FILE,
    STORES_FOLDER,
    BackedUpFile,
    BackupBase,
    BackupFolder,
    BackupManifest,
    BackupMark,
    Piece,
    StoreBackup,
    leftovers,
)


class CommitMark(msgspec.Struct, frozen=True):
    """Number and time of a commit; of a change set nothing else is decoded."""

    sequence: int
    time: int


_commits = msgpack_decoder(list[CommitMark]).decode


def fault_of(folder: Path, file: BackedUpFile) -> str | None:
    """What is wrong with a file that is no piece of a journal, in words; None when nothing is."""
    path = folder / file.path
    if not path.is_file() or path.is_symlink():
        return f"{path}: it is missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path}: it has {size:,} bytes where there were {file.bytes:,}"
    with path.open("rb") as opened:
        if sum_of(opened, 0, size) != file.sha256:
            return f"{path}: it does not fit its checksum"
    return None


def fault_of_piece(folder: Path, piece: Piece) -> str | None:
    """The same for a piece of a journal, with the place of the first frame that is not whole."""
    fault = fault_of(folder, piece.file)
    path = folder / piece.file.path
    if fault is None or not path.is_file():
        return fault
    try:
        for _ in _frames(path, piece):
            pass
    except FrameError as error:
        where = f"offset {piece.offset + error.offset} of journal segment {piece.segment:020d}.log"
        return f"{fault}; {error} ({where})"
    return fault


def checked_frames(folder: Path, piece: Piece) -> Iterator[Frame]:
    """The frames of a piece whose checksum fits. Raises BackupDamaged naming file and place."""
    if (fault := fault_of_piece(folder, piece)) is not None:
        raise BackupDamaged(fault)
    path = folder / piece.file.path
    try:
        yield from _frames(path, piece)
    except FrameError as error:
        raise BackupDamaged(f"{path}: {error}") from error


def _frames(path: Path, piece: Piece) -> Iterator[Frame]:
    """The frames of a piece. Raises FrameError at the first that is not whole or does not follow on."""
    due, offset = piece.first, 0
    with path.open("rb") as file:
        for frame in read_frames(file, 0, path.stat().st_size, due):
            yield frame
            due, offset = frame.last + 1, frame.end
    if due != piece.last + 1:
        raise FrameError(offset, f"the end where sequence {due} was due")


def commits(folder: Path, base: BackupBase) -> Iterator[CommitMark]:
    """All commits that a base has in its journal, in order. Raises BackupDamaged."""
    for piece in base.pieces:
        for frame in checked_frames(folder, piece):
            yield from _commits(frame.payload)


def verify(folder: BackupFolder, store: str | None = None) -> Iterator[VerifiedStore]:
    """Check the backup of one store, or of all. Raises NotFound, Conflict while a backup is made, BackupDamaged.

    What cannot be told of one store is raised: that the list of stores is damaged, or that there are foreign files.
    """
    with folder.reading():
        names = folder.names()
        if store is not None:
            folder.there(store)
        elif strays := list(_strays(folder, names)):
            raise BackupDamaged("; ".join(strays))
        for name in names if store is None else [store]:
            yield _verified(folder.store(name))


def _verified(backup: StoreBackup) -> VerifiedStore:
    faults = [f"{backup.path}: it is missing"]
    bases, left = list[BaseAnswer](), list[Path]()
    if backup.exists:
        try:
            manifest = backup.read()
        except BackupDamaged as error:
            faults = [error.message]
        else:
            left = leftovers(backup.folder, manifest)
            found = [[*_faults(backup.folder, base)] for base in manifest.bases]
            bases = [_base(base, ok=not each) for base, each in zip(manifest.bases, found, strict=True)]
            faults = [*(fault for each in found for fault in each), *_extra(backup.folder, manifest, left)]
    return VerifiedStore(store=backup.store, ok=not faults, bases=bases, faults=faults, leftovers=len(left))


def _may_lack_commits(base: BackupBase) -> bool:
    """Whether a base holds no commit, and does not say that the store had none."""
    return base.last.sequence == 0 and not base.last.is_empty


def _lacking(folder: Path) -> str:
    return (
        f"{folder / BACKUP_MANIFEST_FILE}: it ends with sequence 0, and nothing says that the store had no commits "
        "then: older versions wrote such backups of stores that another node of a cluster served. "
        "Back the store up again"
    )


def _base(base: BackupBase, *, ok: bool) -> BaseAnswer:
    return BaseAnswer(
        ok=ok,
        first=base.first,
        last=base.last.sequence,
        since=format_time(base.since),
        until=format_time(base.last.taken),
        runs=len(base.runs),
        bytes=sum(file.bytes for file in base.files),
    )


def _faults(folder: Path, base: BackupBase) -> Iterator[str]:
    pieces = {piece.file.path for piece in base.pieces}
    if _may_lack_commits(base):
        yield _lacking(folder)
    for file in base.files:
        if file.path not in pieces and (fault := fault_of(folder, file)) is not None:
            yield fault
    # The checksum fits what was damaged before it was copied, too.
    if base.history is not None and fault_of(folder, base.history.file) is None:
        path = folder / base.history.file.path
        if (fault := fault_of_rows(path)) is not None:
            yield f"{path}: {fault}"
    due: int | None = None
    for piece in base.pieces:
        if (fault := _piece_fault(folder, piece, due)) is not None:
            yield fault
        due = piece.last + 1
    if base.snapshot is not None and not any(fault_of(folder, file) for file in base.snapshot.files):
        try:
            snapshot.verify((folder / base.snapshot.files[0].path).parent)
        except JournalDamaged as error:
            yield error.message


def _piece_fault(folder: Path, piece: Piece, due: int | None) -> str | None:
    """As `fault_of_piece`; where the checksum fits also what was damaged before it was copied, or does not follow."""
    if (fault := fault_of_piece(folder, piece)) is not None:
        return fault
    if due is not None and piece.first != due:
        return f"{folder / piece.file.path}: sequence {piece.first} where {due} was due"
    path = folder / piece.file.path
    try:
        for _ in _frames(path, piece):
            pass
    except FrameError as error:
        return f"{path}: {error}"
    return None


def _extra(folder: Path, manifest: BackupManifest, left: list[Path]) -> Iterator[str]:
    """Files that no backup has written, or whose mention is gone."""
    known = {
        BACKUP_MANIFEST_FILE,
        f"{BACKUP_MANIFEST_FILE}.new",
        *(file.path for base in manifest.bases for file in base.files),
    }
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if str(path.relative_to(folder)) not in known and not any(each in path.parents for each in left):
            yield f"{path}: it does not belong to this backup"


def _strays(folder: BackupFolder, names: list[str]) -> Iterator[str]:
    known = {BACKUP_LOCK_FILE, STORES_FOLDER, STORES_FILE, f"{STORES_FILE}.new"}
    stores = folder.path / STORES_FOLDER
    found = [path for path in folder.path.iterdir() if path.name not in known]
    there = stores.iterdir() if stores.is_dir() else ()  # tools that copy files alone leave an empty folder out
    inside = [path for path in there if path.name not in names and not _unfinished(path)]
    yield from (f"{path}: it does not belong to this backup" for path in sorted([*found, *inside]))


def _unfinished(path: Path) -> bool:
    """Whether the first backup of a store was interrupted here: there are runs at most, or the list came too late."""
    runs = [each for each in path.iterdir() if not each.name.startswith(RUN_FOLDER_PREFIX)] if path.is_dir() else [path]
    return all(each.name in {BACKUP_MANIFEST_FILE, f"{BACKUP_MANIFEST_FILE}.new"} for each in runs)


MAX_SEQUENCE_DIGITS = 18
REPLAY_BATCH_CHANGES = 500


class Point(msgspec.Struct, frozen=True):
    """What is to be restored: a sequence that a base covers."""

    base: BackupBase
    sequence: int

    @property
    def mark(self) -> BackupMark:
        """The newest backup up to it, or else the first one: its settings are restored."""
        before = [mark for mark in self.base.marks if mark.sequence <= self.sequence]
        return before[-1] if before else self.base.marks[0]


def find_point(backup: StoreBackup, manifest: BackupManifest, until: str | None) -> Point:
    """The point that a sequence or an RFC 3339 time names; without one the end of the newest backup.

    Raises InvalidInput, with what is covered, for a point that is not, BackupDamaged.
    """
    if not manifest.bases:
        raise BackupDamaged(f"{backup.path}: it names no backup")
    if _may_lack_commits(manifest.bases[-1]):
        raise BackupDamaged(_lacking(backup.folder))
    if until is None:
        return Point(manifest.bases[-1], manifest.bases[-1].last.sequence)
    if until.isascii() and until.isdecimal() and len(until) <= MAX_SEQUENCE_DIGITS:
        return _at_sequence(manifest, int(until))
    try:
        time = parse_time(until)
    except ValueError as error:
        raise InvalidInput(f"until: {until!r} is neither a sequence nor a time: {error}") from None
    return _at_time(backup, manifest, time, until)


def covered(manifest: BackupManifest) -> str:
    """What can be restored, in words."""
    ranges = [
        f"sequences {base.first} to {base.last.sequence} (times {format_time(base.since)} to "
        f"{format_time(base.last.taken)})"
        for base in manifest.bases
    ]
    return "; ".join(ranges)


def _at_sequence(manifest: BackupManifest, sequence: int) -> Point:
    for base in reversed(manifest.bases):
        if base.first <= sequence <= base.last.sequence:
            return Point(base, sequence)
    raise InvalidInput(f"until: sequence {sequence} is not covered; this backup covers {covered(manifest)}")


def _at_time(backup: StoreBackup, manifest: BackupManifest, time: int, said: str) -> Point:
    for base in reversed(manifest.bases):
        if base.since <= time <= base.last.taken:
            return Point(base, max(base.first, _last_by(commits(backup.folder, base), time, said)))
    raise InvalidInput(f"until: {said} is not covered; this backup covers {covered(manifest)}")


def _last_by(found: Iterable[CommitMark], time: int, said: str) -> int:
    """Return the last sequence stamped by a time; 0 if there is none.

    Raises InvalidInput if the commit after it was stamped by a clock that was ahead: it may have been made before.
    """
    last, least, following = 0, 0, None
    for commit in found:
        if commit.time <= time:
            last, following = commit.sequence, None
        elif following is None:
            following, least = commit, commit.time
        else:
            least = min(least, commit.time)
    if following is not None and following.time - min(least, time_ns() // 1000) > MAX_CLOCK_DRIFT_MICROSECONDS:
        raise InvalidInput(
            f"until: times do not say what was there at {said}: commit {following.sequence} was stamped "
            f"{format_time(following.time)} by a clock that was ahead. Name a sequence instead: {last} is the last one "
            f"that was surely made by then, and {following.sequence} the next"
        )
    return last


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
    target = journal / f"{snapshot.SNAPSHOT_PREFIX}{copy.sequence}"
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
            block = file.read(min(BACKUP_BLOCK_BYTES, whole))
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
        while some := list(islice(changes, REPLAY_BATCH_CHANGES)):
            history.take(some)
        history.prune(oldest)
    finally:
        history.close()
    sync_file(path)


def _copy(folder: Path, file: BackedUpFile, target: Path) -> None:
    if (fault := fault_of(folder, file)) is not None:
        raise BackupDamaged(fault)
    shutil.copyfile(folder / file.path, target)
    sync_file(target)
