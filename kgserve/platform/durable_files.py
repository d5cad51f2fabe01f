"""Crash-safe file writes: after a crash, a file is complete or absent."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from kgserve.errors import DiskFull, KgserveError, Unavailable

_DESCRIPTORS_USED_UP_ERRORS = {errno.EMFILE, errno.ENFILE}
_UNSUPPORTED_ERRORS = {errno.EINVAL, errno.ENOTSUP, errno.ENOTTY}
"""Errors of file systems, such as those of networks, that know no F_FULLFSYNC."""
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DESCRIPTORS_USED_UP_MESSAGE = (
    "the server has no file descriptors left; try again shortly, or raise its limit (ulimit -n, LimitNOFILE)"
)

_JOURNAL_FOLDER_NAME = "journal"
_MAX_PATH_PARTS_BELOW_JOURNAL = 3


def shorten_journal_path(path: Path) -> str:
    """Return a journal file's path for error messages, starting at the journal folder."""
    last = path.parts[-_MAX_PATH_PARTS_BELOW_JOURNAL:]
    return "/".join(last[last.index(_JOURNAL_FOLDER_NAME) :]) if _JOURNAL_FOLDER_NAME in last else str(path)


def fsync_folder(folder: Path) -> None:
    """Make renames, creations and removals in a folder durable."""
    fsync_file(folder, os.O_DIRECTORY)


def sync_descriptor(descriptor: int, *, data_only: bool = False) -> None:
    """Make the content of an open file durable; ``data_only`` leaves out metadata that reading it does not need.

    On macOS, fsync leaves the content in the drive's cache, where power loss destroys it, and F_FULLFSYNC does not.
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        (os.fdatasync if data_only else os.fsync)(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full_sync)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise
        os.fsync(descriptor)


def fsync_file(path: Path, flags: int = 0) -> None:
    """Make the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def write_file_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically: write a temporary file, sync it and rename it."""
    aside = path.with_name(path.name + ".new")
    _set_aside_folder(aside)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        write_all_bytes(descriptor, data)
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
    _set_aside_folder(path)
    aside.rename(path)
    fsync_folder(path.parent)


def _set_aside_folder(path: Path) -> None:
    """Set aside a folder that occupies the path of a file; files and links are replaced."""
    if path.is_dir() and not path.is_symlink():
        names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in count())
        path.rename(next(name for name in names if not name.exists()))


def write_all_bytes(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes; `os.write` may write fewer."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def translate_storage_errors(doing: str) -> Generator[None]:
    """Convert OSError in the block to StorageFull or Unavailable. ``doing`` completes the message."""
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, doing) from error


def translate_os_error(error: OSError, doing: str) -> KgserveError:
    """Return the error that a file-system error means for the caller."""
    if error.errno in _DISK_FULL_ERRORS:
        return DiskFull(f"the disk is full (while {doing}); free some space and try again")
    if error.errno in _DESCRIPTORS_USED_UP_ERRORS:
        return Unavailable(f"{DESCRIPTORS_USED_UP_MESSAGE} (while {doing})", retry_after=5)
    return Unavailable(f"a file operation failed while {doing}: {error.strerror or error}", retry_after=5)
