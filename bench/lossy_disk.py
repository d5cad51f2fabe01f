"""File systems that forget what was not synced, as a machine does that loses its power."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

PATIENCE = 30.0
_MAKER = "mkfs.ext4"
_LOOPS = Path("/dev/loop-control")
# From Linux's include/uapi/linux/ext4.h: EXT4_IOC_SHUTDOWN, with EXT4_GOING_FLAGS_NOLOGFLUSH.
_SHUT_DOWN, _WITHOUT_FLUSHING = 0x8004587D, struct.pack("=I", 2)


def lacking() -> str | None:
    """Why there can be no such disk here, if so, in a sentence."""
    if shutil.which(_MAKER) is None:
        return f"there is no program {_MAKER!r} (package e2fsprogs)."
    return None if _LOOPS.exists() else "this kernel has no loop devices."


class LossyDisk:
    """A folder that is the root of a file system of its own: ext4, in a file beside the folder.

    It can be shut down without that a page or its own log is written any more: the way in which Linux's tests of file
    systems take the power away.
    """

    def __init__(self, folder: Path, mebibytes: int) -> None:
        """Make it and mount it; as root, who should be in a mount namespace of the bench's own."""
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
        """Take its power, and give it back: what was synced is there again. Nobody may use it any more."""
        root = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _SHUT_DOWN, _WITHOUT_FLUSHING)
        finally:
            os.close(root)
        self.unmount()
        self._mount()

    def unmount(self) -> None:
        """Unmount it, once those have ended that still had files open. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE
        while subprocess.run(["umount", self._folder], capture_output=True, check=False).returncode:
            if time.monotonic() > until:
                raise TimeoutError(f"{self._folder} is in use, or not to be unmounted, for {PATIENCE:.0f} s")
            time.sleep(0.02)

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self._image, self._folder], check=True)
