"""The files of bases in a store's folder: their names, and which of them counts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kgserve.rows.base import Base
from kgserve.rows.encoding import RowsDamaged
from kgserve.rows.format import read_directory

SUFFIX = ".rows"
UNSYNCED = ".unsynced"
"""Part of the name of a base that a power loss might tear: it is looked through before it is used again."""
FORESEEN = ".foreseen"
"""Part of the name of a base that was made ahead of commits which it lacks: it is never used again."""


def newest_base(folder: Path) -> int:
    """The commit that the newest whole base in a folder was made at; 0 when there is none. Nothing is changed."""
    for path in newest_first(folder):
        with suppress(RowsDamaged, OSError):
            return read_directory(path).sequence
    return 0


def newest_first(folder: Path) -> list[Path]:
    """The bases that a store may be opened from."""
    whole = (path for path in folder.glob(f"*{SUFFIX}") if FORESEEN not in path.suffixes)
    found = [path for path in whole if path.stem.partition("-")[0].isdecimal()]
    return sorted(found, key=lambda path: tuple(map(int, path.name.partition(".")[0].split("-"))), reverse=True)


def remove(base: Base, *others: Base) -> None:
    """Remove the files of a base that the others do not need."""
    base.path.unlink(missing_ok=True)
    if base.texts not in {"", *(other.texts for other in others)}:
        base.path.with_name(base.texts).unlink(missing_ok=True)
