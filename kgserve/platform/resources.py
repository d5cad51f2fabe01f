"""Files beside the modules: in the package of a wheel, at the top of the repository in a checkout."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def shipped(path: str) -> Traversable:
    """A file or folder by its path, the same in both, such as ``schema``."""
    packaged = files("kgserve") / path
    return packaged if packaged.is_file() or packaged.is_dir() else Path(__file__).parents[2] / path
