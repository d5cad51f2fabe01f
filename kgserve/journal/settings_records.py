"""The settings of a store as its journal keeps them: a record for each change, in a file of its own; the newest counts.

A file ``settings.<number>`` holds a checksum (XXH3, 128 bits, hexadecimal), a line break and the content. It is written
aside, synced and renamed, so one that is not whole was damaged by the disk. The one before is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import xxhash

from kgserve.journal.files import write_whole

PREFIX = "settings."
KEPT = 2


def write_record(folder: Path, content: bytes) -> None:
    """Add a record; it is durable afterwards. Raises OSError with the former one still the newest."""
    numbers = _numbers(folder)
    number = max(numbers, default=0) + 1
    write_whole(_path(folder, number), f"{_checksum(content)}\n".encode() + content)
    for old in sorted(numbers)[: 1 - KEPT]:
        _path(folder, old).unlink(missing_ok=True)


def read_records(folder: Path) -> Iterator[bytes | None]:
    """The contents of the records, newest first; None for one that is damaged."""
    for number in sorted(_numbers(folder), reverse=True):
        yield _content(_path(folder, number))


def _numbers(folder: Path) -> list[int]:
    names = (path.name[len(PREFIX) :] for path in folder.glob(f"{PREFIX}*"))
    return [int(name) for name in names if name.isdecimal()]


def _path(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number}"


def _content(path: Path) -> bytes | None:
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if checksum == _checksum(content).encode() else None


def _checksum(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)
