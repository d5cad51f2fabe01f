"""The files of an engine by their names, and which edition of an engine is installed. Nothing of one is imported."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kgserve.errors import InvalidInput
from kgserve.platform.settings import EngineName
from kgserve.platform.sqlite_files import remove_path


def remove(path: Path) -> None:
    """Remove an engine file and all that the engine keeps beside it."""
    for file in path.parent.glob(path.name + "*"):
        remove_path(file)


def size(path: Path) -> int:
    """Bytes of a file; 0 when it is not there."""
    return path.stat().st_size if path.exists() else 0


@cache
def edition(engine: EngineName) -> str:
    """An engine with its version, such as ``kuzu 0.11.3``; nothing of it is imported.

    Raises InvalidInput, with what to do, for one that is not installed.
    """
    try:
        return f"{engine} {version(engine)}"
    except PackageNotFoundError:
        raise InvalidInput(
            f"the engine {engine} is not installed; run: pip install 'kgserve[{engine}]', or take kuzu (KGSERVE_ENGINE)"
        ) from None
