"""Which of the backups below a folder may hold something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kgserve.backup.folder import FOLDER, STORES, BackupFolder
from kgserve.errors import KgserveError

_MOST_FOLDERS = 10_000


def holding(root: Path, store: str, first: int, through: int) -> Iterator[tuple[str, str]]:
    """The backups below a folder that hold a store as of any commit from one to another: name, and what is in them.

    One that cannot be read is named as well.
    """
    for folder in _backups(root):
        name = str(folder.relative_to(root))
        try:
            if reason := _held(BackupFolder(folder), store, first, through):
                yield name, reason
        except (KgserveError, OSError) as error:
            yield name, f"it cannot be looked into now: {str(error).replace(f'{root}/', '')}"


def _held(folder: BackupFolder, store: str, first: int, through: int) -> str:
    with folder.reading():
        if store not in folder.names():
            return ""
        bases = folder.there(store).read().bases
    ranges = [(base.needed, base.last.sequence) for base in bases]
    held = [f"{start} to {end}" for start, end in ranges if start <= through and first <= end]
    return f"it holds the store's commits {', '.join(held)}" if held else ""


def _backups(root: Path) -> Iterator[Path]:
    for number, (folder, below, files) in enumerate(os.walk(root)):
        if number > _MOST_FOLDERS:
            return
        if STORES in files:
            below[:] = [each for each in below if each != FOLDER]
            yield Path(folder)
