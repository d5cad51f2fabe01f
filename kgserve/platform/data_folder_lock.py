"""Lock of a data folder, held by one server at a time, and the file through which local clients find it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

import structlog

from kgserve.errors import Conflict
from kgserve.platform.durable_files import write_file_atomically
from kgserve.platform.file_permissions import (
    PermissionRepairResult,
    create_private_folder,
    rename_path_obstacle,
    restrict_data_folder_permissions,
)
from kgserve.platform.server_discovery import (
    SERVER_FILE,
    SERVER_LOCK_FILE,
    DiscoveredServer,
    encode_server_discovery_file,
    read_lock_holder_pid,
    read_server_discovery_file,
)
from kgserve.platform.version import __version__

log = structlog.get_logger()


class DataFolderLock:
    """Exclusive lock of a data folder. Acquiring it also removes other users' access to the folder.

    ``mended`` lists the files whose permissions were corrected.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor = -1
        self._published: DiscoveredServer | None = None
        self.mended = PermissionRepairResult(0, [])

    def acquire(self) -> None:
        """Acquire the lock. Raises Conflict naming the process that holds it."""
        create_private_folder(self._data_dir)
        rename_path_obstacle(self._data_dir / SERVER_LOCK_FILE)
        descriptor = os.open(self._data_dir / SERVER_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(descriptor):
            holder = read_lock_holder_pid(descriptor)
            os.close(descriptor)
            raise Conflict(self._held_by(holder))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        self._restrict_permissions()

    def publish(self, url: str, token: str, certificate: str | None = None) -> None:
        """Write server.json, readable by this user only."""
        self._published = DiscoveredServer(url, token, certificate, os.getpid(), __version__)
        self._write()

    def tend(self, *, in_use: bool) -> None:
        """Restore server.json if it was lost, and update its time while the server is in use. Blocks."""
        if self._published is None:
            return
        found = read_server_discovery_file(self._data_dir)
        if found is None or found.pid != self._published.pid:
            log.warning("server_file_lost", path=str(self._data_dir / SERVER_FILE), consequence="it is written again")
            self._write()
        elif in_use:
            os.utime(self._data_dir / SERVER_FILE)

    def _write(self) -> None:
        if self._published is not None:
            write_file_atomically(
                self._data_dir / SERVER_FILE, encode_server_discovery_file(self._published), mode=0o600
            )

    def release(self) -> None:
        """Release the lock and remove server.json."""
        if self._descriptor < 0:
            return
        self._published = None
        (self._data_dir / SERVER_FILE).unlink(missing_ok=True)
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _restrict_permissions(self) -> None:
        """Restrict permissions: folders of older versions, or created by hand, may be readable by every user."""
        self.mended = restrict_data_folder_permissions(self._data_dir)
        if self.mended.closed:
            log.warning("data_folder_closed_to_others", path=str(self._data_dir), were_open=self.mended.closed)
        for path in self.mended.still_open:
            log.warning("open_to_others", path=str(path), reason="its mode cannot be changed")

    def _held_by(self, holder: int | None) -> str:
        found = read_server_discovery_file(self._data_dir)
        where = f" at {found.url}" if found is not None and found.pid == holder else ""
        process = holder or "unknown"
        return f"{self._data_dir} is in use by process {process}{where}; stop it or choose another --data folder"


def _lock(descriptor: int, tries: int = 10) -> bool:
    """Try to take the lock, with retries, since clients hold it briefly to test whether it is held."""
    for _ in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False
