"""File systems that lose unsynced data, as a machine does on a power failure."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

UNMOUNT_TIMEOUT_SECONDS = 30.0
_MAKER = "mkfs.ext4"
_LOOPS = Path("/dev/loop-control")
# From Linux's include/uapi/linux/ext4.h: EXT4_IOC_SHUTDOWN, with EXT4_GOING_FLAGS_NOLOGFLUSH.
_SHUT_DOWN, _WITHOUT_FLUSHING = 0x8004587D, struct.pack("=I", 2)


def missing_disk_prerequisite() -> str | None:
    """Return the reason why such a disk cannot be created here, as a sentence; None if it can."""
    if shutil.which(_MAKER) is None:
        return f"program {_MAKER!r} was not found (package e2fsprogs)."
    return None if _LOOPS.exists() else "this kernel has no loop devices."


class LossyDisk:
    """A folder that is the root of its own ext4 file system, in a file next to the folder.

    It can be shut down without writing further pages or its log, as Linux's file system tests simulate power failures.
    """

    def __init__(self, folder: Path, mebibytes: int) -> None:
        """Create and mount the file system. Requires root, and should run in a private mount namespace."""
        self._folder = folder
        self._image = folder.with_suffix(".ext4")
        with self._image.open("wb") as image:
            image.truncate(mebibytes << 20)
        subprocess.run([_MAKER, "-q", "-F", self._image], check=True)
        folder.mkdir(parents=True)
        self._mount()
        (folder / "lost+found").rmdir()
        folder.chmod(0o700)

    def lose_unsynced(self) -> None:
        """Discard unsynced data and mount the file system again. No process may use it any more."""
        root = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _SHUT_DOWN, _WITHOUT_FLUSHING)
        finally:
            os.close(root)
        self.unmount()
        self._mount()

    def unmount(self) -> None:
        """Unmount the file system once no process uses it. Raises TimeoutError."""
        until = time.monotonic() + UNMOUNT_TIMEOUT_SECONDS
        while subprocess.run(["umount", self._folder], capture_output=True, check=False).returncode:
            if time.monotonic() > until:
                raise TimeoutError(f"{self._folder} is still in use after {UNMOUNT_TIMEOUT_SECONDS:.0f} s")
            time.sleep(0.02)

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self._folder], check=True)
