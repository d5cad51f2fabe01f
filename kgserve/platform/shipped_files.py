"""Data files shipped with the package: inside a wheel, or at the top of the repository in a checkout."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def locate_shipped_file(path: str) -> Traversable:
    """Return a shipped file or folder by its relative path, such as ``schema``."""
    packaged = files("kgserve") / path
    return packaged if packaged.is_file() or packaged.is_dir() else Path(__file__).parents[2] / path
