"""A file that appears under its name when it is complete."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SEQUENCE = "kgserve-sequence"
"""Header of an export: the commit that it shows."""


@contextmanager
def complete(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A file beside ``path`` that takes its place in the end; whatever goes wrong inside leaves what was there."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
