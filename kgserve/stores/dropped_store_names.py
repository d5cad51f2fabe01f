"""Names of the stores that were dropped from a data folder; a new store of such a name begins another incarnation."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from kgserve.platform.durable_files import sync_descriptor, write_all_bytes

DROPPED_STORES_FILE = "dropped-stores"
MAX_DROPPED_NAMES = 10_000
_ALL_NAMES = "*"


class DroppedStoreNames:
    """Set of names in a file, one a line. Beyond `MAX_DROPPED_NAMES`, it contains every name. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DROPPED_STORES_FILE
        self._lock = threading.Lock()
        self._names: set[str] | None = None

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return not self._load().isdisjoint((name, _ALL_NAMES))

    def add(self, name: str) -> None:
        """Add a name durably. Raises OSError."""
        with self._lock:
            names = self._load()
            if not names.isdisjoint((name, _ALL_NAMES)):
                return
            added = name if len(names) < MAX_DROPPED_NAMES else _ALL_NAMES
            # Begun with a line break, so that a line which a crash cut off stays apart.
            self._append(f"\n{added}\n".encode())
            names.add(added)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            write_all_bytes(descriptor, line)
            sync_descriptor(descriptor)
        finally:
            os.close(descriptor)

    def _load(self) -> set[str]:
        if self._names is None:
            try:
                self._names = set(self._path.read_text("utf-8", "replace").split())
            except FileNotFoundError:
                self._names = set()
        return self._names
