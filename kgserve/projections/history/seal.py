"""Checksums of the pages of a history's file, in a file next to it: any damage shows, wherever in the file it is.

The history is the only copy of the past once the journal is trimmed, and SQLite has no checksums of its own. Its pages
change only when its log is moved into it, which `History.settle` alone does: it seals the pages that changed before the
log may be written over. So after a crash each page either fits its checksum or is still in the log, whose frames have
checksums.

A seal is made of blocks of a page each. The first says what the file was when it was sealed; each of the others has
the checksums of 511 pages. All end with a checksum of their own, which tells a damaged seal from a
damaged history.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, groupby
from pathlib import Path

import msgspec
import xxhash

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import sync_folder, write_all
from kgserve.platform.gil import cooperative
from kgserve.projections.history.statements import HISTORY_PAGE_BYTES

PAGE_HASHES_SUFFIX = "-pages"
DAMAGED_HISTORY_SUFFIX = ".damaged"
_HASHES_PER_BLOCK = 511
_HASH_BYTES = 8
_READ_BATCH_PAGES = 1024
_WAL_HEADER, _FRAME_HEADER = 32, 24


class Sealed(msgspec.Struct, frozen=True):
    """A file as it was sealed: the last commit it had seen, the first it knew, its pages and the roots of its trees."""

    sequence: int
    oldest: int
    pages: int
    roots: dict[str, int]


class PageSeal:
    """The seal of one file, which stays open: closing it while SQLite has it open would end SQLite's locks on it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be read."""
        self.path = seal_path(path)
        self._of = path
        self._log = path.with_name(f"{path.name}-wal")
        self._file = os.open(path, os.O_RDONLY)
        self._moved: list[bytes] = []

    def close(self) -> None:
        """Release the file. No connection to it is open."""
        os.close(self._file)

    @property
    def is_in_place(self) -> bool:
        """Whether what is open is the file at its path."""
        try:
            return os.path.samestat(self._of.lstat(), os.fstat(self._file))
        except OSError:
            return False

    def put_back(self) -> None:
        """Write the file once more at its path, unsealed; what is there instead is set aside. Raises OSError."""
        new = self._of.with_name(f"{self._of.name}.new")
        with new.open("wb") as copy, open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            shutil.copyfileobj(file, copy, _READ_BATCH_PAGES * HISTORY_PAGE_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        self.forget()
        if self._of.is_symlink() or self._of.exists():
            self._of.rename(free_name(self._of))
        new.replace(self._of)
        sync_folder(self._of.parent)

    @property
    def pages(self) -> int:
        """Pages of the file now, a part of one counted as one."""
        return -(-os.fstat(self._file).st_size // HISTORY_PAGE_BYTES)

    def sealed(self) -> Sealed | None:
        """What was sealed; None for a file that never was, or whose seal is damaged."""
        return sealed_of(self._of)

    def forget(self) -> None:
        """Have no page sealed any more."""
        self.path.unlink(missing_ok=True)

    def seal(self, sealed: Sealed, changed: Iterable[int] | None) -> None:
        """Note the checksums of the pages that changed, of all for None. Durable when it returns. Raises OSError."""
        known = range(1, sealed.pages + 1)
        pages = known if changed is None else sorted(page for page in changed if page in known)
        seal = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for block, numbers in groupby(pages, lambda page: (page - 1) // _HASHES_PER_BLOCK):
                self._seal_block(seal, block, [*numbers])
            _write_block(seal, 0, msgspec.json.encode(sealed))
            os.fsync(seal)
        finally:
            os.close(seal)

    def faults(self, sealed: Sealed, first: int, last: int) -> list[int]:
        """The pages from one to another that are not as they were sealed, but for those that the log has."""
        found = list(self._unlike(first, min(last, sealed.pages)))
        return found and sorted({*found} - self.logged())

    def unknown(self, sealed: Sealed) -> list[int]:
        """The pages whose checksums are damaged themselves."""
        with _opened(self.path) as seal:
            blocks = range(-(-sealed.pages // _HASHES_PER_BLOCK))
            lost = [block for block in blocks if seal is None or _content(seal, block + 1) is None]
        return [page for block in lost for page in _pages_of(block) if page <= sealed.pages]

    def logged(self) -> set[int]:
        """The pages that SQLite's log has, by the headers of its frames: what the file has of them is of no account.

        None of a log that was moved into the file as it is.
        """
        found = [*frames(self._log)]
        return set() if [header for *_, header in found] == self._moved else {page for page, _, _ in found}

    def note_moved(self) -> None:
        """Note that all of the log as it is now is in the file."""
        self._moved = [header for *_, header in frames(self._log)]

    def drop_cached(self, first: int, last: int) -> None:
        """Have pages read from the disk the next time, not from memory."""
        if hasattr(os, "posix_fadvise"):
            start, size = (first - 1) * HISTORY_PAGE_BYTES, (last - first + 1) * HISTORY_PAGE_BYTES
            os.posix_fadvise(self._file, start, size, os.POSIX_FADV_DONTNEED)

    def _unlike(self, first: int, last: int) -> Iterator[int]:
        with _opened(self.path) as seal:
            if seal is None:
                return
            for block, numbers in groupby(
                cooperative(range(first, last + 1)), lambda page: (page - 1) // _HASHES_PER_BLOCK
            ):
                pages, known = [*numbers], _content(seal, block + 1)
                if known is not None:
                    start = block * _HASHES_PER_BLOCK + 1
                    hashes = zip(pages, self._hashes(pages), strict=True)
                    yield from (page for page, found in hashes if found != _hash_at(known, page - start))

    def _seal_block(self, seal: int, block: int, pages: list[int]) -> None:
        known = bytearray(_content(seal, block + 1) or bytes(_HASHES_PER_BLOCK * _HASH_BYTES))
        start = block * _HASHES_PER_BLOCK + 1
        for page, found in zip(pages, self._hashes(pages), strict=True):
            known[(page - start) * _HASH_BYTES : (page - start + 1) * _HASH_BYTES] = found
        _write_block(seal, block + 1, bytes(known))

    def _hashes(self, pages: list[int]) -> Iterator[bytes]:
        """The checksums of some pages in order, read together where they lie together."""
        at = 0
        while at < len(pages):
            end = at + 1
            while end < len(pages) and end - at < _READ_BATCH_PAGES and pages[end] == pages[end - 1] + 1:
                end += 1
            data = memoryview(
                os.pread(self._file, (end - at) * HISTORY_PAGE_BYTES, (pages[at] - 1) * HISTORY_PAGE_BYTES)
            )
            for number in range(end - at):
                yield xxhash.xxh3_64_digest(data[number * HISTORY_PAGE_BYTES : (number + 1) * HISTORY_PAGE_BYTES])
            at = end


def seal_path(path: Path) -> Path:
    """Where the seal of a file is."""
    return path.with_name(path.name + PAGE_HASHES_SUFFIX)


def sealed_of(path: Path) -> Sealed | None:
    """What the seal of a file says, which may itself be gone; None where there is no seal, or a damaged one."""
    try:
        with _opened(seal_path(path)) as seal:
            content = None if seal is None else _content(seal, 0)
        return None if content is None else decode_json(content.rstrip(b"\0"), Sealed)
    except (IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


@contextmanager
def _opened(path: Path) -> Generator[int | None]:
    try:
        seal = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield seal
    finally:
        os.close(seal)


def free_name(path: Path) -> Path:
    """Where a damaged file can be set aside: `NAME.damaged`, `NAME.damaged-1` and so on."""
    names = (
        path.with_name(path.name + DAMAGED_HISTORY_SUFFIX + (f"-{number}" if number else "")) for number in count()
    )
    return next(name for name in names if not name.exists() and not name.is_symlink())


def frames(log: Path) -> Iterator[tuple[int, int, bytes]]:
    """The frames of a log that are of its present round: page, pages of the file if it ends a commit, the header."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        header = file.read(_WAL_HEADER)
        while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == header[16:24]:
            yield int.from_bytes(frame[:4]), int.from_bytes(frame[4:8]), frame
            file.seek(HISTORY_PAGE_BYTES, os.SEEK_CUR)


def _pages_of(block: int) -> range:
    return range(block * _HASHES_PER_BLOCK + 1, (block + 1) * _HASHES_PER_BLOCK + 1)


def _hash_at(content: bytes, number: int) -> bytes:
    return content[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]


def _content(seal: int, number: int) -> bytes | None:
    """A block without its checksum; None where that does not fit."""
    block = os.pread(seal, HISTORY_PAGE_BYTES, number * HISTORY_PAGE_BYTES)
    content = block[:-_HASH_BYTES]
    return content if len(block) == HISTORY_PAGE_BYTES and block[-_HASH_BYTES:] == _own_hash(number, content) else None


def _write_block(seal: int, number: int, content: bytes) -> None:
    content = content.ljust(HISTORY_PAGE_BYTES - _HASH_BYTES, b"\0")
    os.lseek(seal, number * HISTORY_PAGE_BYTES, os.SEEK_SET)
    write_all(seal, content + _own_hash(number, content))


def _own_hash(number: int, content: bytes) -> bytes:
    """A block that was written over another one does not fit either."""
    return xxhash.xxh3_64_digest(content, seed=number)
