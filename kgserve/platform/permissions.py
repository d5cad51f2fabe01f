"""Who may read what kgserve writes: the user that it runs as, and nobody else. Standard library only, for the bridge.

Folders are made for this user alone wherever they are made, and files in the processes that are kgserve's own. A
library may not change the umask of its host; there the closed folder keeps others from the files in it.
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
"""The bits of a mode that let in others than the owner."""

_DATA_FOLDER_ENTRY_PATTERN = re.compile(
    r".+_memory|models|\.dropped-.+|\.ready|(server|launch|keys)\.(lock|json)(\.new)?|(server|audit)\.log(\.\d+)?|\.keys-.+"
)
_IGNORED_ENTRIES = {"lost+found"}


class Mended(NamedTuple):
    """How many files and folders were open to others and are so no longer, and which ones could not be closed."""

    closed: int
    still_open: list[Path]

    @property
    def none(self) -> bool:
        """Whether nothing was open."""
        return not self.closed and not self.still_open


@contextmanager
def private_files() -> Generator[None]:
    """Make files for this user alone inside the block, whatever the process's umask is. Also a decorator."""
    before = os.umask(GROUP_AND_OTHERS_MODE)
    try:
        yield
    finally:
        os.umask(before)


def make_way(path: Path) -> Path | None:
    """Rename a folder, or a link that leads nowhere, that is in the place of a file; return its new path, if any.

    Raises OSError.
    """
    if not (path.is_dir() or (path.is_symlink() and not path.exists())):
        return None
    names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
    aside = next(name for name in names if not name.exists() and not name.is_symlink())
    path.rename(aside)
    return aside


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone; one that is there stays as it is."""
    if not path.parent.exists():
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def close_folder(path: Path, *, whole: bool = False) -> Mended:
    """Close a folder and what is in it to others. What a closed folder holds is looked at only when ``whole``."""
    return _mended(_closing(path, whole=whole))


def close_data_folder(path: Path, *, whole: bool = False) -> Mended:
    """The same for a data folder. If it holds more than kgserve's, only what is kgserve's is closed, each by itself."""
    if not whole and not _is_open(path):
        return Mended(0, [])
    with os.scandir(path) as entries:
        names = {entry.name for entry in entries} - _IGNORED_ENTRIES
    ours = sorted(name for name in names if _DATA_FOLDER_ENTRY_PATTERN.fullmatch(name))
    top = [(path, _close(path))] if len(ours) == len(names) and _is_open(path) else []
    return _mended([*top, *(each for name in ours for each in _closing(path / name, whole=whole))])


def _mended(outcomes: Iterable[tuple[Path, bool]]) -> Mended:
    closed, still_open = 0, list[Path]()
    for path, done in outcomes:
        if done:
            closed += 1
        else:
            still_open.append(path)
    return Mended(closed, still_open)


def _closing(path: Path, *, whole: bool) -> Iterator[tuple[Path, bool]]:
    """Everything at and below ``path`` that was open, and whether it could be closed. Links are not followed."""
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
