"""File permissions: only the user that kgserve runs as may read what it writes. Standard library only.

Folders are always created for this user only, files only in kgserve's own processes. A library must not change the
umask of its host process; there the closed folder protects the files in it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

GROUP_AND_OTHERS_MODE = 0o077
"""Permission bits of group and others."""

_DATA_FOLDER_ENTRY_PATTERN = re.compile(
    r".+_memory|models|stores\.index(\.new)?|dropped-stores|event-positions|idempotent-answers\.log|\.(dropped|creating)-.+|\.ready|(server|launch|keys)\.(lock|json)(\.new)?|(server|audit)\.log(\.\d+)?|\.keys-.+"
)
_IGNORED_ENTRIES = {"lost+found"}


class PermissionRepairResult(NamedTuple):
    """Number of files and folders whose permissions were restricted, and those where that failed."""

    closed: int
    still_open: list[Path]

    @property
    def none(self) -> bool:
        """True if all permissions were correct."""
        return not self.closed and not self.still_open


@contextmanager
def private_umask() -> Generator[None]:
    """Create files for this user only within the block, whatever the process's umask is. Also a decorator."""
    before = os.umask(GROUP_AND_OTHERS_MODE)
    try:
        yield
    finally:
        os.umask(before)


def rename_path_obstacle(path: Path) -> Path | None:
    """Rename a folder or broken link that occupies the path of a file, and return its new path, if any.

    Raises OSError.
    """
    if not (path.is_dir() or (path.is_symlink() and not path.exists())):
        return None
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
    aside = next(name for name in names if not name.exists() and not name.is_symlink())
    path.rename(aside)
    return aside


def create_private_folder(path: Path) -> None:
    """Create a folder and its missing parents for this user only. An existing folder is unchanged."""
    if not path.parent.exists():
        create_private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def restrict_folder_permissions(path: Path, *, whole: bool = False) -> PermissionRepairResult:
    """Remove other users' access to a folder and its contents. Without ``whole``, closed subfolders are skipped."""
    return _mended(_closing(path, whole=whole))


def restrict_data_folder_permissions(path: Path, *, whole: bool = False) -> PermissionRepairResult:
    """Remove other users' access to a data folder.

    If it holds foreign files, only kgserve's own entries are changed.
    """
    if not whole and not _is_open(path):
        return PermissionRepairResult(0, [])
    with os.scandir(path) as entries:
        names = {entry.name for entry in entries} - _IGNORED_ENTRIES
    ours = sorted(name for name in names if _DATA_FOLDER_ENTRY_PATTERN.fullmatch(name))
    top = [(path, _close(path))] if len(ours) == len(names) and _is_open(path) else []
    return _mended([*top, *(each for name in ours for each in _closing(path / name, whole=whole))])


def _mended(outcomes: Iterable[tuple[Path, bool]]) -> PermissionRepairResult:
    closed, still_open = 0, list[Path]()
    for path, done in outcomes:
        if done:
            closed += 1
        else:
            still_open.append(path)
    return PermissionRepairResult(closed, still_open)


def _closing(path: Path, *, whole: bool) -> Iterator[tuple[Path, bool]]:
    """Yield everything at and below ``path`` that was accessible, and whether that was corrected.

    Links are not followed.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return
        if mode & GROUP_AND_OTHERS_MODE:
            yield path, _close(path)
        if stat.S_ISDIR(mode) and (whole or mode & GROUP_AND_OTHERS_MODE):
            for below in sorted(path.iterdir()):
                yield from _closing(below, whole=whole)
    except FileNotFoundError:
        return
    except PermissionError:
        yield path, False


def _close(path: Path) -> bool:
    try:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~GROUP_AND_OTHERS_MODE)
    except OSError:
        return False
    return True


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & GROUP_AND_OTHERS_MODE)
