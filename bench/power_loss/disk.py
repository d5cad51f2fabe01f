"""A folder as processes see it and as the disk may hold it, reconstructed from a record of file operations.

Synced data is certain: a file's content by a sync of the file, a name by a sync of its folder. All other data may or
may not have reached the disk: writes page by page, and names one by one, in any order. This is weaker than the
guarantees of any common file system.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

OPENED, WRITTEN, CUT, SYNCED, RENAMED, UNLINKED, MADE = range(1, 8)
NAMES = (OPENED, RENAMED, UNLINKED, MADE)
PAGE = 4096

_HEADER = struct.Struct("<IIQQqqIIQ")
_MAGIC = 0x314C5750


class Record(NamedTuple):
    """One call: its kind, the offsets of its record, and its arguments."""

    kind: int
    at: int
    end: int
    inode: int
    place: int
    begin: int
    path: str
    second: str
    data: bytes


def records(file: BinaryIO, start: int = 0) -> Iterator[Record]:
    """Yield the complete records of a file from an offset on."""
    file.seek(start)
    at = start
    while len(head := file.read(_HEADER.size)) == _HEADER.size:
        magic, kind, length, inode, place, begin, path, second, size = _HEADER.unpack(head)
        body = file.read(length - _HEADER.size)
        if magic != _MAGIC or len(body) != path + second + size:
            return
        first, other = body[:path].decode(), body[path : path + second].decode()
        yield Record(kind, at, at + length, inode, place, begin, first, other, body[path + second :])
        at += length


def record(kind: int, path: str = "", *, second: str = "", inode: int = 0, place: int = 0, data: bytes = b"") -> bytes:
    """Encode a record as the recorder does."""
    first, other = path.encode(), second.encode()
    size = _HEADER.size + len(first) + len(other) + len(data)
    head = _HEADER.pack(_MAGIC, kind, size, inode, place, 0, len(first), len(other), len(data))
    return head + first + other + data


class Write(NamedTuple):
    """A write of bytes at an offset of a file; without bytes, a truncation or extension."""

    at: int
    place: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        """Apply the write."""
        end = self.place + len(self.data or b"")
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        if self.data is None:
            del content[self.place :]
        else:
            content[self.place : end] = self.data


class File:
    """Content of a file: certainly on the disk, and as processes see it."""

    def __init__(self) -> None:
        self.certain = bytearray()
        self.seen = bytearray()
        self.pending: list[Write] = []

    def write(self, write: Write) -> None:
        """Write or truncate."""
        write.apply(self.seen)
        self.pending.append(write)

    def sync(self, begin: int) -> None:
        """Mark earlier writes as certain."""
        for write in self.pending:
            if write.at < begin:
                write.apply(self.certain)
        self.pending = [write for write in self.pending if write.at >= begin]


class NameChange(NamedTuple):
    """Names that change in one atomic step."""

    at: int
    effects: list[tuple[Folder, str, File | Folder | None]]

    def apply(self, entries: Callable[[Folder], dict[str, File | Folder]]) -> None:
        """Apply the change to one of the two views."""
        for folder, name, given in self.effects:
            if given is None:
                entries(folder).pop(name, None)
            else:
                entries(folder)[name] = given


class Folder:
    """Names in a folder."""

    def __init__(self) -> None:
        self.certain: dict[str, File | Folder] = {}
        self.seen: dict[str, File | Folder] = {}


class RecordedDisk:
    """The folder as of the last applied record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = Folder()
        self.pending: list[NameChange] = []
        self._inodes: dict[int, File | Folder] = {path.stat().st_ino: self.root}

    def take(self, each: Record) -> None:
        """Apply a record."""
        match each.kind:
            case 1:  # OPENED
                self._open(each)
            case 7:  # MADE
                self._give(each, Folder())
            case 2 | 3:  # WRITTEN, CUT
                if isinstance(file := self._inodes.get(each.inode), File):
                    file.write(Write(each.at, each.place, each.data if each.kind == WRITTEN else None))
            case 4:  # SYNCED
                self._sync(each)
            case 5:  # RENAMED
                old, new = self._place(each.path), self._place(each.second)
                self._change(NameChange(each.at, [(*old, None), (*new, old[0].seen[old[1]])]))
            case _:  # UNLINKED
                self._change(NameChange(each.at, [(*self._place(each.path), None)]))

    def find(self, path: str) -> File | Folder | None:
        """Return the file or folder with a name, or None."""
        folder, name = self._place(path)
        return folder.seen.get(name)

    def _open(self, each: Record) -> None:
        there = self.find(each.path)
        if there is None or there is not self._inodes.get(each.inode):
            there = self._give(each, File())
        if each.place == 0 and isinstance(there, File) and there.seen:
            there.write(Write(each.at, 0, None))

    def _give(self, each: Record, made: File | Folder) -> File | Folder:
        self._inodes[each.inode] = made
        self._change(NameChange(each.at, [(*self._place(each.path), made)]))
        return made

    def _change(self, change: NameChange) -> None:
        change.apply(lambda folder: folder.seen)
        self.pending.append(change)

    def _sync(self, each: Record) -> None:
        synced = self._inodes.get(each.inode)
        if isinstance(synced, File):
            synced.sync(each.begin)
            return
        left: list[NameChange] = []
        for change in self.pending:
            if change.at < each.begin and any(folder is synced for folder, _, _ in change.effects):
                change.apply(lambda folder: folder.certain)
            else:
                left.append(change)
        self.pending = left

    def _place(self, path: str) -> tuple[Folder, str]:
        *above, name = Path(path).relative_to(self.path).parts
        folder = self.root
        for each in above:
            inner = folder.seen[each]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name


LOSS_MODES = ("nothing more", "zeros", "torn", "pages", "anything")
"""Amounts of unsynced data that have reached the disk."""


def write_surviving_state(disk: RecordedDisk, target: Path, manner: str, choice: random.Random) -> int:
    """Write the state after a power loss into a new folder. Return the number of files and names that differ."""
    names: dict[int, dict[str, File | Folder]] = {}

    def entries(folder: Folder) -> dict[str, File | Folder]:
        return names.setdefault(id(folder), dict(folder.certain))

    kept = [change for change in disk.pending if _is_kept(manner, choice)]
    if manner == "torn":
        kept = disk.pending[: choice.randint(0, len(disk.pending))]
    for change in kept:
        change.apply(entries)
    return len(disk.pending) - len(kept) + _write_folder(disk.root, target, entries, manner, choice)


def _write_folder(
    folder: Folder,
    target: Path,
    entries: Callable[[Folder], dict[str, File | Folder]],
    manner: str,
    choice: random.Random,
) -> int:
    target.mkdir(mode=0o700)
    other = 0
    for name, each in entries(folder).items():
        if isinstance(each, Folder):
            other += _write_folder(each, target / name, entries, manner, choice)
        else:
            content = content_after(each, manner, choice)
            other += content != each.seen
            (target / name).write_bytes(content)
            (target / name).chmod(0o600)
    return other


def _is_kept(manner: str, choice: random.Random) -> bool:
    return manner != "nothing more" and (manner == "zeros" or choice.random() < 0.5)


def content_after(file: File, manner: str, choice: random.Random) -> bytearray:
    """Return a file's content after a power loss."""
    if not file.pending:
        return file.certain
    if manner == "anything":
        manner = choice.choice(("seen", *LOSS_MODES[:-1]))
    match manner:
        case "seen":
            return file.seen
        case "nothing more":
            return file.certain
        case "zeros":  # original length, but without the written data
            content = file.certain[: len(file.seen)]
            return content + bytes(len(file.seen) - len(content))
        case "torn":
            return _torn_content(file, choice)
        case _:
            return _mixed_pages(file, choice)


def _torn_content(file: File, choice: random.Random) -> bytearray:
    """Return the content after some of the writes in order, and a part of the next one."""
    content = bytearray(file.certain)
    whole = choice.randrange(len(file.pending))
    for write in file.pending[:whole]:
        write.apply(content)
    last = file.pending[whole]
    if last.data:
        Write(0, last.place, last.data[: choice.randint(1, len(last.data))]).apply(content)
    return content


def _mixed_pages(file: File, choice: random.Random) -> bytearray:
    """Return a random mixture of certain and seen pages; the length is either, or between them."""
    old, new = file.certain, file.seen
    low, high = sorted((len(old), len(new)))
    length = choice.choice((len(old), len(new), choice.randint(low, high)))
    content = bytearray(length)
    for at in range(0, length, PAGE):
        end = min(at + PAGE, length)
        page = choice.choice((old, new))[at:end]
        content[at : at + len(page)] = page
    return content
