"""Whether stores can be opened and written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kgserve.errors import StorageFull
from kgserve.journal.files import storage_error, write_all
from kgserve.model.answers import Ready
from kgserve.settings import MEBIBYTE
from kgserve.store.pool import StorePool
from kgserve.store.room import ROOM_BYTES

PROBE_FILE = ".ready"


def ready(pool: StorePool) -> Ready:
    """Write to the data folder and look at its room. Raises StorageFull or Unavailable."""
    free = shutil.disk_usage(pool.data_dir).free
    if free < ROOM_BYTES:
        raise StorageFull(f"only {free // MEBIBYTE} MiB are left on the disk of {pool.data_dir.name}")
    try:
        _write_probe(pool.data_dir / PROBE_FILE)
    except OSError as error:
        raise storage_error(error, "writing to the data folder") from error
    return Ready(open_stores=len(pool.open_stores()), free_bytes=free)


def _write_probe(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, b"kgserve\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)
