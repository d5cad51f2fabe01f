"""The files of an engine, by their names."""

from __future__ import annotations

from pathlib import Path

WAL_SUFFIX = ".wal"


def wal_path(path: Path) -> Path:
    """The engine's log beside its file."""
    return path.with_name(path.name + WAL_SUFFIX)


def remove(path: Path) -> None:
    """Remove an engine file and all that the engine keeps beside it."""
    for file in path.parent.glob(path.name + "*"):
        file.unlink(missing_ok=True)


def size(path: Path) -> int:
    """Bytes of a file; 0 when it is not there."""
    return path.stat().st_size if path.exists() else 0
