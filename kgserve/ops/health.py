"""Whether stores can be opened and written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from kgserve.errors import StorageFull
from kgserve.journal.files import storage_error, write_all
from kgserve.model.answers import Health, Ready
from kgserve.ops.graph import Encoded, Graphs
from kgserve.settings import MEBIBYTE
from kgserve.store.layout import ROOM_BYTES
from kgserve.version import __version__

PROBE_FILE = ".ready"
_ALIVE = Encoded[Health](msgspec.json.encode(Health(version=__version__)))


def health(_graphs: Graphs) -> Encoded[Health]:
    """Touches neither disk nor stores: it says that the process is alive, and which version it is."""
    return _ALIVE


def ready(graphs: Graphs) -> Ready:
    """Answers 503 or 507 with the reason when a write would not be taken now.

    Raises Unavailable or StorageFull.
    """
    pool = graphs.pool
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
