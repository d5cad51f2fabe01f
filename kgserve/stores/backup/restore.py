"""Verification and restore of backups, as of a sequence or a time.

Verification checks every file and every journal frame. Data is only read from a file after its checksum has matched.
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
from kgserve.platform.durable_files import (
    fsync_file,
    fsync_folder,
    sync_descriptor,
    translate_storage_errors,
    write_all_bytes,
)
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.history.recovery import find_damage_in_history_rows
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import (
    JournalFrame,
    JournalFrameError,
    encode_journal_frame,
    journal_segment_path,
    read_journal_frames,
)
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.store_incarnations import StoreIncarnation
from kgserve.storage.store_folder_layout import write_store_description
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS
from kgserve.stores.backup.api import BackupChainVerification, BackupVerification
from kgserve.stores.backup.create import BACKUP_BLOCK_BYTES, hash_file_range
from kgserve.stores.backup.folder_layout import (
    BACKUP_FOLDER_ENTRIES,
    BACKUP_MANIFEST_FILE,
    BACKUP_STORES_FOLDER,
    RUN_FOLDER_PREFIX,
    BackedUpFile,
    BackedUpJournalFrames,
    BackupChain,
    BackupEndState,
    BackupFolder,
    BackupManifest,
    StoreBackup,
    list_leftover_backup_run_folders,
)


class CommitHeader(msgspec.Struct, frozen=True):
    """Header of a commit: sequence and time; the rest of the change set is not decoded."""

    sequence: int
    time: int


_commits = msgpack_decoder(list[CommitHeader]).decode


def find_backed_up_file_fault(folder: Path, file: BackedUpFile) -> str | None:
    """Return a description of what is wrong with a file other than a journal piece, or None."""
    path = folder / file.path
    if not path.is_file() or path.is_symlink():
        return f"{path}: missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{path}: has {size:,} bytes instead of {file.bytes:,}"
    with path.open("rb") as opened:
        if hash_file_range(opened, 0, size) != file.sha256:
            return f"{path}: checksum mismatch"
    return None


def find_backed_up_journal_fault(folder: Path, piece: BackedUpJournalFrames) -> str | None:
    """Return a description of what is wrong with a journal piece, including the first damaged frame, or None."""
    fault = find_backed_up_file_fault(folder, piece.file)
    path = folder / piece.file.path
    if fault is None or not path.is_file():
        return fault
    try:
        for _ in _frames(path, piece):
            pass
    except JournalFrameError as error:
        where = f"offset {piece.offset + error.offset} of journal segment {piece.segment:020d}.log"
        return f"{fault}; {error} ({where})"
    return fault


def read_verified_journal_frames(folder: Path, piece: BackedUpJournalFrames) -> Iterator[JournalFrame]:
    """Yield the frames of a piece whose checksum matches. Raises BackupDamaged naming file and offset."""
    if (fault := find_backed_up_journal_fault(folder, piece)) is not None:
        raise BackupDamaged(fault)
    path = folder / piece.file.path
    try:
        yield from _frames(path, piece)
    except JournalFrameError as error:
        raise BackupDamaged(f"{path}: {error}") from error


def _frames(path: Path, piece: BackedUpJournalFrames) -> Iterator[JournalFrame]:
    """Yield the frames of a piece. Raises JournalFrameError at the first that is damaged or out of sequence."""
    due, offset = piece.first, 0
    with path.open("rb") as file:
        for frame in read_journal_frames(file, 0, path.stat().st_size, due):
            yield frame
            due, offset = frame.last + 1, frame.end
    if due != piece.last + 1:
        raise JournalFrameError(offset, f"unexpected end of file, expected sequence {due}")


def read_backup_commit_headers(folder: Path, base: BackupChain) -> Iterator[CommitHeader]:
    """Yield sequence and time of all commits in a chain of a backup, in order. Raises BackupDamaged."""
    for piece in base.pieces:
        for frame in read_verified_journal_frames(folder, piece):
            yield from _commits(frame.payload)


def verify_backup(folder: BackupFolder, store: str | None = None) -> Iterator[BackupVerification]:
    """Verify the backup of one store, or of all.

    Raises NotFound, BackupDamaged, and Conflict while a backup is running. Damage that concerns no single store, such
    as a damaged list or foreign files, is raised instead of reported.
    """
    with folder.reading():
        names = folder.names()
        if store is not None:
            folder.there(store)
        elif strays := list(_strays(folder, names)):
            raise BackupDamaged("; ".join(strays))
        for name in names if store is None else [store]:
            yield _verified(folder.store(name))


def _verified(backup: StoreBackup) -> BackupVerification:
    faults = [f"{backup.path}: missing"]
    bases, left = list[BackupChainVerification](), list[Path]()
    if backup.exists:
        try:
            manifest = backup.read()
        except BackupDamaged as error:
            faults = [error.message]
        else:
            left = list_leftover_backup_run_folders(backup.folder, manifest)
            found = [[*_faults(backup.folder, base)] for base in manifest.bases]
            bases = [_base(base, ok=not each) for base, each in zip(manifest.bases, found, strict=True)]
            faults = [*(fault for each in found for fault in each), *_extra(backup.folder, manifest, left)]
    return BackupVerification(store=backup.store, ok=not faults, bases=bases, faults=faults, leftovers=len(left))


def _may_lack_commits(base: BackupChain) -> bool:
    """Return whether a base holds no commit and does not state that the store had none."""
    return base.last.sequence == 0 and not base.last.is_empty


def _lacking(folder: Path) -> str:
    return (
        f"{folder / BACKUP_MANIFEST_FILE}: ends with sequence 0 without stating that the store was empty. "
        "Older versions wrote such backups for stores served by another cluster node. "
        "Back up the store again"
    )


def _base(base: BackupChain, *, ok: bool) -> BackupChainVerification:
    return BackupChainVerification(
        ok=ok,
        first=base.first,
        last=base.last.sequence,
        since=format_rfc3339_timestamp(base.since),
        until=format_rfc3339_timestamp(base.last.taken),
        runs=len(base.runs),
        bytes=sum(file.bytes for file in base.files),
    )


def _faults(folder: Path, base: BackupChain) -> Iterator[str]:
    pieces = {piece.file.path for piece in base.pieces}
    if _may_lack_commits(base):
        yield _lacking(folder)
    for file in base.files:
        if file.path not in pieces and (fault := find_backed_up_file_fault(folder, file)) is not None:
            yield fault
    # The checksum also matches data that was damaged before it was copied.
    if base.history is not None and find_backed_up_file_fault(folder, base.history.file) is None:
        path = folder / base.history.file.path
        if (fault := find_damage_in_history_rows(path)) is not None:
            yield f"{path}: {fault}"
    due: int | None = None
    for piece in base.pieces:
        if (fault := _piece_fault(folder, piece, due)) is not None:
            yield fault
        due = piece.last + 1
    if base.snapshot is not None and not any(find_backed_up_file_fault(folder, file) for file in base.snapshot.files):
        try:
            snapshot.verify_snapshot((folder / base.snapshot.files[0].path).parent)
        except JournalDamaged as error:
            yield error.message


def _piece_fault(folder: Path, piece: BackedUpJournalFrames, due: int | None) -> str | None:
    """Return what is wrong with a journal piece, including damage that is older than the copy, and gaps before it."""
    if (fault := find_backed_up_journal_fault(folder, piece)) is not None:
        return fault
    if due is not None and piece.first != due:
        return f"{folder / piece.file.path}: begins with sequence {piece.first}, expected {due}"
    path = folder / piece.file.path
    try:
        for _ in _frames(path, piece):
            pass
    except JournalFrameError as error:
        return f"{path}: {error}"
    return None


def _extra(folder: Path, manifest: BackupManifest, left: list[Path]) -> Iterator[str]:
    """Yield faults for files that do not belong to the backup."""
    known = {
        BACKUP_MANIFEST_FILE,
        f"{BACKUP_MANIFEST_FILE}.new",
        *(file.path for base in manifest.bases for file in base.files),
    }
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if str(path.relative_to(folder)) not in known and not any(each in path.parents for each in left):
            yield f"{path}: does not belong to this backup"


def _strays(folder: BackupFolder, names: list[str]) -> Iterator[str]:
    stores = folder.path / BACKUP_STORES_FOLDER
    found = [path for path in folder.path.iterdir() if path.name not in BACKUP_FOLDER_ENTRIES]
    entries = stores.iterdir() if stores.is_dir() else ()  # copying tools may omit an empty folder
    inside = [path for path in entries if path.name not in names and not _unfinished(path)]
    yield from (f"{path}: does not belong to this backup" for path in sorted([*found, *inside]))


def _unfinished(path: Path) -> bool:
    """Return whether a folder was left by an interrupted first backup of a store."""
    runs = [each for each in path.iterdir() if not each.name.startswith(RUN_FOLDER_PREFIX)] if path.is_dir() else [path]
    return all(each.name in {BACKUP_MANIFEST_FILE, f"{BACKUP_MANIFEST_FILE}.new"} for each in runs)


MAX_SEQUENCE_DIGITS = 18
REPLAY_BATCH_CHANGES = 500


class RestorePoint(msgspec.Struct, frozen=True):
    """Point that a backup can be restored to: a chain, and a sequence that it covers, or its state at a time."""

    base: BackupChain
    sequence: int
    time: int | None = None

    @property
    def mark(self) -> BackupEndState:
        """Newest mark up to the sequence and time, or else the first one. Its settings are restored."""
        before = [
            mark
            for mark in self.base.marks
            if mark.sequence <= self.sequence and (self.time is None or mark.taken <= self.time)
        ]
        return before[-1] if before else self.base.marks[0]


def find_restore_point(backup: StoreBackup, manifest: BackupManifest, until: str | None) -> RestorePoint:
    """Return the restore point for a sequence or an RFC 3339 time; without one, the end of the newest backup.

    Raises BackupDamaged, and InvalidInput for a point that is not covered; the error lists what is.
    """
    if not manifest.bases:
        raise BackupDamaged(f"{backup.path}: contains no backup")
    if _may_lack_commits(manifest.bases[-1]):
        raise BackupDamaged(_lacking(backup.folder))
    if until is None:
        return RestorePoint(manifest.bases[-1], manifest.bases[-1].last.sequence)
    if until.isascii() and until.isdecimal() and len(until) <= MAX_SEQUENCE_DIGITS:
        return _at_sequence(manifest, int(until))
    try:
        time = parse_rfc3339_timestamp(until)
    except ValueError as error:
        raise InvalidInput(f"`until` must be a sequence or an RFC 3339 time, not {until!r}: {error}") from None
    return _at_time(backup, manifest, time, until)


def describe_restorable_range(manifest: BackupManifest) -> str:
    """Describe the sequences and times to which a backup can be restored."""
    ranges = [
        f"sequences {base.first} to {base.last.sequence} (times {format_rfc3339_timestamp(base.since)} to "
        f"{format_rfc3339_timestamp(base.last.taken)})"
        for base in manifest.bases
    ]
    return "; ".join(ranges)


def _at_sequence(manifest: BackupManifest, sequence: int) -> RestorePoint:
    for base in reversed(manifest.bases):
        if base.first <= sequence <= base.last.sequence:
            return RestorePoint(base, sequence)
    raise InvalidInput(
        f"`until`: sequence {sequence} is not covered; this backup covers {describe_restorable_range(manifest)}"
    )


def _at_time(backup: StoreBackup, manifest: BackupManifest, time: int, text: str) -> RestorePoint:
    for base in reversed(manifest.bases):
        if base.since <= time <= base.last.taken:
            last = _last_by(read_backup_commit_headers(backup.folder, base), time, text)
            return RestorePoint(base, max(base.first, last), time)
    raise InvalidInput(f"`until`: {text} is not covered; this backup covers {describe_restorable_range(manifest)}")


def _last_by(found: Iterable[CommitHeader], time: int, text: str) -> int:
    """Return the last sequence committed by a time, or 0.

    Raises InvalidInput if the clock was ahead for the next commit, which may then have been made earlier.
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
            f"`until`: the state at {text} is ambiguous: commit {following.sequence} was stamped "
            f"{format_rfc3339_timestamp(following.time)} by a clock that was ahead. "
            f"Use a sequence instead: {last} is the last one "
            f"certainly committed by then, and {following.sequence} the next"
        )
    return last


def restore_store(
    backup: StoreBackup, point: RestorePoint, target: Path, incarnation: StoreIncarnation | None = None
) -> StoreState:
    """Restore a store's folder from a backup as of a point, durably. Return the state that it must open with.

    incarnation: the incarnation that begins with the restore; none for a copy that follows the store.

    Raises StorageFull, and BackupDamaged naming file and offset.
    """
    with translate_storage_errors(f"writing {target}"):
        return _build(backup, point, target, incarnation)


def _build(backup: StoreBackup, point: RestorePoint, target: Path, incarnation: StoreIncarnation | None) -> StoreState:
    journal = target / "journal"
    create_private_folder(journal)
    states = [StoreState(), *_snapshot(backup.folder, point, journal), *_segments(backup.folder, point, journal)]
    if not any(journal.glob("*.log")):
        journal_segment_path(journal, point.sequence + 1).touch()
    state = max(states, key=attrgetter("sequence"))
    if state.sequence != point.sequence:
        raise BackupDamaged(f"{backup.path}: restores to sequence {state.sequence} instead of {point.sequence}")
    mark = point.mark
    settings = mark.settings
    incarnations = settings.incarnations if incarnation is None else (*settings.incarnations, incarnation)
    kept = msgspec.structs.replace(
        settings, history_from=min(settings.history_from, point.sequence), incarnations=incarnations
    )
    write_store_description(target, kept)
    if settings.history != "none":
        _history(backup.folder, point, target)
    fsync_folder(journal)
    fsync_folder(target)
    return state


def _snapshot(folder: Path, point: RestorePoint, journal: Path) -> Iterator[StoreState]:
    """Copy the snapshot, unless it is newer than the point. Yield its state."""
    copy = point.base.snapshot
    if copy is None or copy.sequence > point.sequence:
        return
    target = journal / f"{snapshot.SNAPSHOT_PREFIX}{copy.sequence}"
    target.mkdir()
    for file in copy.files:
        _copy(folder, file, target / Path(file.path).name)
    fsync_folder(target)
    yield snapshot.verify_snapshot(target).state


def _segments(folder: Path, point: RestorePoint, journal: Path) -> Iterator[StoreState]:
    """Write the journal segments up to the point. Yield the state at the end of each."""
    pieces = (piece for piece in point.base.pieces if piece.first <= point.sequence)
    for segment, parts in groupby(pieces, key=attrgetter("segment")):
        newest: JournalFrame | None = None
        path = journal_segment_path(journal, segment)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for piece in parts:
                newest = _append(folder, piece, descriptor, point.sequence) or newest
            sync_descriptor(descriptor)
        finally:
            os.close(descriptor)
        if newest is not None:
            until = [change for change in newest.changes() if change.sequence <= point.sequence]
            yield until[-1].state


def _append(folder: Path, piece: BackedUpJournalFrames, descriptor: int, last: int) -> JournalFrame | None:
    """Append a piece's commits up to ``last``. Return the last frame that contained any."""
    newest: JournalFrame | None = None
    whole = 0
    for frame in read_verified_journal_frames(folder, piece):
        if frame.first > last:
            break
        newest = frame
        whole = frame.end if frame.last <= last else whole
    with (folder / piece.file.path).open("rb") as file:
        while whole > 0:
            block = file.read(min(BACKUP_BLOCK_BYTES, whole))
            write_all_bytes(descriptor, block)
            whole -= len(block)
    if newest is not None and newest.last > last:
        write_all_bytes(
            descriptor, encode_journal_frame([change for change in newest.changes() if change.sequence <= last])
        )
    return newest


def _history(folder: Path, point: RestorePoint, target: Path) -> None:
    copy = point.base.history
    path = target / "history.sqlite"
    if copy is not None:
        _copy(folder, copy.file, path)
    oldest = min(point.mark.history_oldest, point.sequence)
    if oldest > (copy.oldest if copy else 0):
        _forget(path, target / "journal", copy.sequence if copy else 0, point.sequence, oldest)


def _forget(path: Path, journal: Path, after: int, last: int, oldest: int) -> None:
    """Prune a history to the reach it had in the store. It must first apply all commits."""
    history = HistoryFile(path)
    try:
        changes: Iterator[ChangeSet] = JournalReader(journal).read(after + 1, last)
        while some := list(islice(changes, REPLAY_BATCH_CHANGES)):
            history.take(some)
        history.prune(oldest)
    finally:
        history.close()
    fsync_file(path)


def _copy(folder: Path, file: BackedUpFile, target: Path) -> None:
    if (fault := find_backed_up_file_fault(folder, file)) is not None:
        raise BackupDamaged(fault)
    shutil.copyfile(folder / file.path, target)
    fsync_file(target)
