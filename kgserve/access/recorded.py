"""The record of refusals and acts of administration as it is read: the files of a data folder, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import xxhash

from kgserve.access.authentication import AUDIT_FILE, KEPT
from kgserve.decoding import json_decoder
from kgserve.model.audit import AuditRecord

_decode = json_decoder(AuditRecord).decode
_BLOCK = 256 << 10
_LONGEST_FIRST = 8192


class Place(NamedTuple):
    """Where a file of the record was read up to. It is known by its first line, for its name changes."""

    file: int
    to: int


def newest_records(data_dir: Path, limit: int) -> list[AuditRecord]:
    """The newest records of a data folder, oldest first."""
    found: list[AuditRecord] = []
    for path in _paths(data_dir):
        with suppress(FileNotFoundError):
            found = decode_records(path.read_bytes(), limit - len(found)) + found
        if len(found) >= limit:
            break
    return found


def decode_records(lines: bytes, limit: int) -> list[AuditRecord]:
    """The last of some lines. One that is no record is left out: it was being written when the machine stopped."""
    found: list[AuditRecord] = []
    for line in reversed(lines.splitlines()):
        if len(found) == limit:
            break
        with suppress(msgspec.MsgspecError):
            found.append(_decode(line))
    return found[::-1]


def lines_after(data_dir: Path, place: Place | None) -> tuple[Place, bytes] | None:
    """Some whole lines after a place, and the place behind them; None for no more. From the oldest for no place."""
    with ExitStack() as stack:
        files = dict(reversed([*_opened(data_dir, stack)]))
        left = [*files.items()]
        if place is not None and place.file in files:
            left = left[[*files].index(place.file) :]
            left[0][1].seek(place.to)
        for name, file in left:
            at, block = file.tell(), file.read(_BLOCK)
            if lines := block[: block.rfind(b"\n") + 1]:
                return Place(name, at + len(lines)), lines
    return None


def _opened(data_dir: Path, stack: ExitStack) -> Iterator[tuple[int, BinaryIO]]:
    """The files that are there and not empty, newest first, at their beginnings.

    One that is turned over meanwhile is met twice, as the same, and none is missed.
    """
    for path in _paths(data_dir):
        with suppress(FileNotFoundError):
            file = stack.enter_context(path.open("rb"))
            if first := file.readline(_LONGEST_FIRST):
                file.seek(0)
                yield xxhash.xxh3_64_intdigest(first), file


def _paths(data_dir: Path) -> list[Path]:
    """Newest first."""
    return [data_dir / AUDIT_FILE, *(data_dir / f"{AUDIT_FILE}.{number}" for number in range(1, KEPT + 1))]
