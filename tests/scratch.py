"""Where tests keep their data: in memory where there is room for it, since each sync waits for a disk.

`TMPDIR` overrides it, and a run's folder goes with it. One that a killed run has left goes when the next begins.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - what is made there has a name of its own
PREFIX = "kgserve-tests-"
ROOM = 4 << 30  # a whole run leaves about 1 GiB


def move_to_memory() -> None:
    """Let this process, and those that it begins, take a folder in memory for what is temporary."""
    if "TMPDIR" in os.environ or not _has_room():  # noqa: TID251 - it is no setting
        return
    _clear()
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix=PREFIX))
    assert _locked(folder) is not None
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # noqa: TID251 - programs that tests begin see it as well
    atexit.register(_remove, folder, os.getpid())


def _has_room() -> bool:
    """A container usually has 64 MiB there, and some systems have no such folder."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(shutil.disk_usage(MEMORY).free, available) >= ROOM


def _clear() -> None:
    for left in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if (held := _locked(left)) is not None:
                shutil.rmtree(left)
                os.close(held)


def _locked(folder: Path) -> int | None:
    """Hold the folder for as long as this process lives; None if another does."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _remove(folder: Path, owner: int) -> None:
    """What was forked from this process ends without taking the folder along."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
