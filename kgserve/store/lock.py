"""One server per data folder: the lock, and the file that tells local clients where it is."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

import msgspec

from kgserve.errors import Conflict
from kgserve.journal.files import write_whole

LOCK_FILE = "server.lock"
SERVER_FILE = "server.json"


class ServerFile(msgspec.Struct, frozen=True):
    """server.json: the process that serves the folder, its address, and a token for clients of the same user."""

    pid: int
    url: str
    token: str


class DataFolderLock:
    """Held for as long as a process uses a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock. Raises Conflict naming the process that has it."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(descriptor):
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Conflict(self._held_by(holder))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def publish(self, url: str, token: str) -> None:
        """Write server.json, readable by this user alone."""
        content = msgspec.json.encode(ServerFile(os.getpid(), url, token))
        write_whole(self._data_dir / SERVER_FILE, content, mode=0o600)

    def release(self) -> None:
        """Give the lock back and remove server.json."""
        if self._descriptor < 0:
            return
        (self._data_dir / SERVER_FILE).unlink(missing_ok=True)
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _held_by(self, holder: str) -> str:
        found = _read(self._data_dir)
        where = f" at {found.url}" if found is not None and str(found.pid) == holder else ""
        return f"{self._data_dir} is in use by process {holder}{where}; stop it or choose another --data folder"


def read_server_file(data_dir: Path) -> ServerFile | None:
    """What the server of a data folder says of itself; None when no server has the folder."""
    found = _read(data_dir)
    return found if found is not None and _holder(data_dir) == found.pid else None


def _lock(descriptor: int, tries: int = 10) -> bool:
    """Take the lock. Clients that look whether it is held hold it for a moment themselves."""
    for _ in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _read(data_dir: Path) -> ServerFile | None:
    try:
        return msgspec.json.decode((data_dir / SERVER_FILE).read_bytes(), type=ServerFile)
    except (OSError, msgspec.MsgspecError):
        return None


def _holder(data_dir: Path) -> int | None:
    """The process that holds the lock, if one does."""
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None
