"""Temporary folder of tests: in memory if there is enough space, because syncs to disk are slow.

`TMPDIR` overrides it. A run removes its folder at the end, and those of killed runs at the start.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - entries have unique names
PREFIX = "kgserve-tests-"
MIN_FREE_BYTES = 4 << 30  # a whole run needs about 1 GiB


def move_to_memory() -> None:
    """Put temporary files of this process and its children into a folder in memory."""
    if "TMPDIR" in os.environ or not _has_room():  # noqa: TID251 - not a setting
        return
    _clear()
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix=PREFIX))
    assert _locked(folder) is not None
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # noqa: TID251 - also for programs that tests start
    atexit.register(_remove, folder, os.getpid())


def _has_room() -> bool:
    """Return True if there is enough space; containers usually have 64 MiB, and some systems no such folder."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(shutil.disk_usage(MEMORY).free, available) >= MIN_FREE_BYTES


def _clear() -> None:
    for left in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if (held := _locked(left)) is not None:
                shutil.rmtree(left)
                os.close(held)


def _locked(folder: Path) -> int | None:
    """Lock the folder for the lifetime of this process; return None if another process holds the lock."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder, unless called in a process forked from the owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
