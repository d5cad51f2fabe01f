"""Whether the disk has room for a new engine file."""

from __future__ import annotations

import shutil
from pathlib import Path

from kgserve.errors import StorageFull
from kgserve.settings import MEBIBYTE

ROOM_BYTES = 4 * MEBIBYTE
"""With less than that on the disk a server is not ready for writes."""
ROOM_FACTOR = 2
FACTOR = 3
LEAST_BYTES = 16 * MEBIBYTE


def require_room_to_write(folder: Path, size: int) -> None:
    """Raise StorageFull unless there is room for a write of ``size`` bytes in the journal, and for what follows it."""
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES + ROOM_FACTOR * size:
        raise StorageFull(f"only {free // MEBIBYTE} MiB are left on the disk; free some space and try again")


def require_room(folder: Path, size: int) -> None:
    """Raise StorageFull unless there is room to build an engine file beside files of ``size`` bytes.

    On a disk that fills up while it closes a file, the engine has been seen to wait for ever.
    """
    free = shutil.disk_usage(folder).free
    needed = FACTOR * size + LEAST_BYTES
    if free < needed:
        raise StorageFull(f"a new engine file wants {needed // MEBIBYTE} MiB of room; {free // MEBIBYTE} are left")
