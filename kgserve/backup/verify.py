"""Looking whether a backup is as it was written: every file, every frame, and nothing else.

Nothing is taken from a file before its checksum was seen to fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kgserve.backup.folder import (
    FOLDER,
    LOCK,
    MANIFEST,
    RUN,
    STORES,
    BackupFolder,
    Base,
    FileEntry,
    Manifest,
    Piece,
    StoreBackup,
    leftovers,
)
from kgserve.backup.source import sum_of
from kgserve.decoding import msgpack_decoder
from kgserve.errors import BackupDamaged, JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.journal import Frame, FrameError, read_frames
from kgserve.model.stores import BaseAnswer, VerifiedStore
from kgserve.model.times import format_time


class Commit(msgspec.Struct, frozen=True):
    """Number and time of a commit; of a change set nothing else is decoded."""

    sequence: int
    time: int


_commits = msgpack_decoder(list[Commit]).decode


def fault_of(folder: Path, file: FileEntry) -> str | None:
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


def commits(folder: Path, base: Base) -> Iterator[Commit]:
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


def _base(base: Base, *, ok: bool) -> BaseAnswer:
    return BaseAnswer(
        ok=ok,
        first=base.first,
        last=base.last.sequence,
        since=format_time(base.since),
        until=format_time(base.last.taken),
        runs=len(base.runs),
        bytes=sum(file.bytes for file in base.files),
    )


def _faults(folder: Path, base: Base) -> Iterator[str]:
    pieces = {piece.file.path for piece in base.pieces}
    for file in base.files:
        if file.path not in pieces and (fault := fault_of(folder, file)) is not None:
            yield fault
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


def _extra(folder: Path, manifest: Manifest, left: list[Path]) -> Iterator[str]:
    """Files that no backup has written, or whose mention is gone."""
    known = {MANIFEST, f"{MANIFEST}.new", *(file.path for base in manifest.bases for file in base.files)}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if str(path.relative_to(folder)) not in known and not any(each in path.parents for each in left):
            yield f"{path}: it does not belong to this backup"


def _strays(folder: BackupFolder, names: list[str]) -> Iterator[str]:
    known = {LOCK, FOLDER, STORES, f"{STORES}.new"}
    stores = folder.path / FOLDER
    found = [path for path in folder.path.iterdir() if path.name not in known]
    there = stores.iterdir() if stores.is_dir() else ()  # tools that copy files alone leave an empty folder out
    inside = [path for path in there if path.name not in names and not _unfinished(path)]
    yield from (f"{path}: it does not belong to this backup" for path in sorted([*found, *inside]))


def _unfinished(path: Path) -> bool:
    """Whether the first backup of a store was interrupted here: there are runs at most, or the list came too late."""
    runs = [each for each in path.iterdir() if not each.name.startswith(RUN)] if path.is_dir() else [path]
    return all(each.name in {MANIFEST, f"{MANIFEST}.new"} for each in runs)
