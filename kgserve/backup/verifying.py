"""Looking whether a backup is as it was written: every file, every frame, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec

from kgserve.backup.folder import FOLDER, LOCK, RUN, BackupFolder, StoreBackup, leftovers
from kgserve.backup.manifest import MANIFEST, STORES, Base, Manifest, Piece
from kgserve.backup.reading import checked_frames, fault_of, fault_of_piece
from kgserve.errors import BackupDamaged, JournalDamaged
from kgserve.journal import snapshot


class Verified(msgspec.Struct, frozen=True):
    """The backup of one store: what it holds, what is wrong with it, and which bases that is not about, in order."""

    store: str
    manifest: Manifest
    faults: list[str]
    leftovers: int
    whole: list[bool] = []


def verify(folder: BackupFolder, store: str | None = None) -> Iterator[Verified]:
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


def _verified(backup: StoreBackup) -> Verified:
    if not backup.exists:
        return Verified(backup.store, Manifest(0, backup.store), [f"{backup.path}: it is missing"], 0)
    try:
        manifest = backup.read()
    except BackupDamaged as error:
        return Verified(backup.store, Manifest(0, backup.store), [error.message], 0)
    left = leftovers(backup.folder, manifest)
    found = [list(_faults(backup.folder, base)) for base in manifest.bases]
    faults = [*chain.from_iterable(found), *_extra(backup.folder, manifest, left)]
    return Verified(backup.store, manifest, faults, len(left), [not each for each in found])


def _faults(folder: Path, base: Base) -> Iterator[str]:
    pieces = {piece.file.path for piece in base.pieces}
    for file in base.files:
        if file.path not in pieces and (fault := fault_of(folder, file)) is not None:
            yield fault
    due: int | None = None
    for piece in base.pieces:
        fault = fault_of_piece(folder, piece) or _frames_fault(folder, piece, due)
        if fault is not None:
            yield fault
        due = piece.last + 1
    if base.snapshot is not None:
        yield from _snapshot_fault(folder, base)


def _frames_fault(folder: Path, piece: Piece, due: int | None) -> str | None:
    """What is wrong within a piece whose checksum fits: nothing, unless it was damaged before it was copied."""
    if due is not None and piece.first != due:
        return f"{folder / piece.file.path}: sequence {piece.first} where {due} was due"
    try:
        for _ in checked_frames(folder, piece):
            pass
    except BackupDamaged as error:
        return error.message
    return None


def _snapshot_fault(folder: Path, base: Base) -> Iterator[str]:
    if base.snapshot is None or any(fault_of(folder, file) for file in base.snapshot.files):
        return
    try:
        snapshot.verify((folder / base.snapshot.files[0].path).parent)
    except JournalDamaged as error:
        yield error.message


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
