"""Room on the disk: what writes, rebuilds and copies need, and a reserve for deletions.

Deletions must work on a full disk, even if another program filled it. Once less than `RESERVE_BELOW_BYTES` are free,
the server keeps a file in the data folder. A deletion that finds the disk full removes this file, and uses its room.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import structlog

from kgserve.errors import DiskFull, StorageFull
from kgserve.platform.settings import MEBIBYTE

log = structlog.get_logger()

MIN_FREE_BYTES = 4 * MEBIBYTE
"""Free disk bytes below which a server is not ready for writes."""
MIN_PROJECTION_FREE_BYTES = MIN_FREE_BYTES // 2
"""Free disk bytes below which background projections pause, so that they do not fill the disk themselves."""
WRITE_ROOM_FACTOR = 2
REBUILD_ROOM_FACTOR = 3
MIN_REBUILD_ROOM_BYTES = 16 * MEBIBYTE
RESERVE_FILE = "reserve"
RESERVE_BYTES = MIN_FREE_BYTES
"""Size of the reserve; not more than `MIN_FREE_BYTES`, so that only deletions and projections use a released one."""
RESERVE_BELOW_BYTES = 512 * MEBIBYTE
"""Free disk bytes below which the reserve is kept."""


def maintain_disk_reserve(data_dir: Path) -> None:
    """Create or remove the reserve as the free disk space requires. Takes some microseconds if nothing changes."""
    free, reserve = shutil.disk_usage(data_dir).free, data_dir / RESERVE_FILE
    if free >= 2 * RESERVE_BELOW_BYTES:
        reserve.unlink(missing_ok=True)
    elif MIN_FREE_BYTES + 2 * RESERVE_BYTES <= free < RESERVE_BELOW_BYTES and not _is_complete(reserve):
        try:
            reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError:
            reserve.unlink(missing_ok=True)  # the disk filled up meanwhile


def _is_complete(reserve: Path) -> bool:
    # A server that was killed while it wrote the reserve leaves a part of it.
    with suppress(FileNotFoundError):
        return reserve.stat().st_size == RESERVE_BYTES
    return False


def measure_free_space_for_deletion(data_dir: Path) -> int:
    """Return the free disk bytes, after removing the reserve if the disk is full."""
    free, reserve = shutil.disk_usage(data_dir).free, data_dir / RESERVE_FILE
    if free >= MIN_FREE_BYTES or not reserve.exists():
        return free
    reserve.unlink(missing_ok=True)
    log.warning("disk_reserve_released", bytes=RESERVE_BYTES)
    return shutil.disk_usage(data_dir).free


def require_disk_space_for_write(folder: Path, size: int, *, frees_space: bool = False) -> None:
    """Raise StorageFull unless the disk has room for a journal write of ``size`` bytes and its consequences.

    folder: the folder of the store
    frees_space: the write deletes, and may use the room that is kept free of other writes, and the reserve.
    """
    free = measure_free_space_for_deletion(folder.parent) if frees_space else shutil.disk_usage(folder).free
    if free < WRITE_ROOM_FACTOR * size + (0 if frees_space else MIN_FREE_BYTES):
        raise StorageFull(f"Only {free // MEBIBYTE} MiB of disk space are left. Free some space and try again.")


def require_disk_space_for_projections(folder: Path) -> None:
    """Raise DiskFull if background projections have to pause."""
    free = shutil.disk_usage(folder).free
    if free < MIN_PROJECTION_FREE_BYTES:
        raise DiskFull(f"Only {free // MEBIBYTE} MiB of disk space are left; free some space.")


def require_disk_space_for_rebuild(folder: Path, size: int) -> None:
    """Raise DiskFull unless the disk has room for an engine file built next to files of ``size`` bytes.

    The engine can hang if the disk fills up while it closes a file.
    """
    free = shutil.disk_usage(folder).free
    needed = REBUILD_ROOM_FACTOR * size + MIN_REBUILD_ROOM_BYTES
    if free < needed:
        raise DiskFull(f"A new engine file needs {needed // MEBIBYTE} MiB of disk space; {free // MEBIBYTE} are left.")


def require_disk_space_for_dry_run(folder: Path, needed: int) -> None:
    """Raise StorageFull unless ``needed`` bytes are free for a copy of the store and a statement's changes to it."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"A writing statement runs on a copy of the store and needs {needed // MEBIBYTE} MiB of disk space;"
            f" {free // MEBIBYTE} MiB are left."
        )
