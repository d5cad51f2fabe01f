"""Engine files on disk, and the installed engine's edition. Does not import the engine."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kgserve.errors import InvalidInput
from kgserve.platform.settings import EngineName
from kgserve.platform.sqlite_files import remove_path


def delete_engine_file(path: Path) -> None:
    """Delete an engine file and the files that the engine keeps next to it."""
    for file in path.parent.glob(path.name + "*"):
        remove_path(file)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


@cache
def format_cypher_engine_name_and_version(engine: EngineName) -> str:
    """Return an engine's name and version, such as ``kuzu 0.11.3``, without importing it.

    Raises InvalidInput, with installation instructions, if it is not installed.
    """
    try:
        return f"{engine} {version(engine)}"
    except PackageNotFoundError:
        raise InvalidInput(
            f"the engine {engine} is not installed; run: pip install 'kgserve[{engine}]', or set KGSERVE_ENGINE=kuzu"
        ) from None
