"""Page checksums of a history file, in a separate file, so that damage anywhere in the history is detected.

The history is the only copy of the past once the journal is truncated, and SQLite has no page checksums. Pages change
only at checkpoints, which `HistoryFile.checkpoint_and_seal` alone performs. It seals the changed pages before the log
may be overwritten. So after a crash each page either matches its checksum or is still in the log, whose frames have
checksums.

A seal consists of blocks of one page each. The first describes the file as it was sealed; each of the others has the
checksums of 511 pages. Each block ends with a checksum of its own, which distinguishes a damaged seal from a damaged
history.
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
from kgserve.platform.durable_files import fsync_folder, sync_descriptor, write_all_bytes
from kgserve.platform.gil_yield import iterate_yielding_gil
from kgserve.projections.history.history_sql import HISTORY_PAGE_BYTES

PAGE_HASHES_SUFFIX = "-pages"
DAMAGED_HISTORY_SUFFIX = ".damaged"
_HASHES_PER_BLOCK = 511
_HASH_BYTES = 8
_READ_BATCH_PAGES = 1024
_WAL_HEADER, _FRAME_HEADER = 32, 24


class PageChecksumFileHeader(msgspec.Struct, frozen=True):
    """Header of a page checksum file: last applied and oldest commit, number of pages, and root pages."""

    sequence: int
    oldest: int
    pages: int
    roots: dict[str, int]


class PageChecksumFile:
    """Page checksums that seal one history file; that file is kept open to preserve SQLite's locks."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError if it cannot be read."""
        self.path = page_checksum_path(path)
        self._target = path
        self._log = path.with_name(f"{path.name}-wal")
        self._file = os.open(path, os.O_RDONLY)
        self._checkpointed: list[bytes] = []

    def close(self) -> None:
        """Release the file. SQLite must have closed it before."""
        os.close(self._file)

    @property
    def is_in_place(self) -> bool:
        """True if the open file is the one at its path."""
        try:
            return os.path.samestat(self._target.lstat(), os.fstat(self._file))
        except OSError:
            return False

    def restore_file(self) -> None:
        """Write the file to its path again, unsealed; another file there is set aside. Raises OSError."""
        new = self._target.with_name(f"{self._target.name}.new")
        with new.open("wb") as copy, open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            shutil.copyfileobj(file, copy, _READ_BATCH_PAGES * HISTORY_PAGE_BYTES)
            copy.flush()
            sync_descriptor(copy.fileno())
        self.forget()
        if self._target.is_symlink() or self._target.exists():
            self._target.rename(find_unused_damaged_file_path(self._target))
        new.replace(self._target)
        fsync_folder(self._target.parent)

    @property
    def pages(self) -> int:
        """Current number of pages in the file, rounded up."""
        return -(-os.fstat(self._file).st_size // HISTORY_PAGE_BYTES)

    def sealed(self) -> PageChecksumFileHeader | None:
        """Return the description in the seal; None if the seal is missing or damaged."""
        return read_page_checksum_file_header(self._target)

    def forget(self) -> None:
        """Delete the seal."""
        self.path.unlink(missing_ok=True)

    def seal(self, sealed: PageChecksumFileHeader, changed: Iterable[int] | None) -> None:
        """Record the checksums of the changed pages, of all if None. Durable when it returns. Raises OSError."""
        known = range(1, sealed.pages + 1)
        pages = known if changed is None else sorted(page for page in changed if page in known)
        seal = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for block, numbers in groupby(pages, lambda page: (page - 1) // _HASHES_PER_BLOCK):
                self._seal_block(seal, block, [*numbers])
            _write_block(seal, 0, msgspec.json.encode(sealed))
            sync_descriptor(seal)
        finally:
            os.close(seal)

    def faults(self, sealed: PageChecksumFileHeader, first: int, last: int) -> list[int]:
        """Return the pages in a range that do not match their checksums, without those in the log."""
        found = list(self._mismatches(first, min(last, sealed.pages)))
        return found and sorted({*found} - self.pages_in_log())

    def pages_with_damaged_checksum(self, sealed: PageChecksumFileHeader) -> list[int]:
        """Return the pages whose checksums are damaged."""
        with _open_seal(self.path) as seal:
            blocks = range(-(-sealed.pages // _HASHES_PER_BLOCK))
            lost = [block for block in blocks if seal is None or _content(seal, block + 1) is None]
        return [page for block in lost for page in _pages_of(block) if page <= sealed.pages]

    def pages_in_log(self) -> set[int]:
        """Return the pages in SQLite's log, whose content in the main file is obsolete.

        Returns an empty set for a log that has been checkpointed unchanged.
        """
        found = [*read_wal_frames(self._log)]
        return set() if [header for *_, header in found] == self._checkpointed else {page for page, _, _ in found}

    def record_checkpoint(self) -> None:
        """Record that the log's current content is checkpointed."""
        self._checkpointed = [header for *_, header in read_wal_frames(self._log)]

    def drop_cached(self, first: int, last: int) -> None:
        """Evict pages from the page cache, so that the next read is from disk."""
        if hasattr(os, "posix_fadvise"):
            start, size = (first - 1) * HISTORY_PAGE_BYTES, (last - first + 1) * HISTORY_PAGE_BYTES
            os.posix_fadvise(self._file, start, size, os.POSIX_FADV_DONTNEED)

    def _mismatches(self, first: int, last: int) -> Iterator[int]:
        with _open_seal(self.path) as seal:
            if seal is None:
                return
            for block, numbers in groupby(
                iterate_yielding_gil(range(first, last + 1)), lambda page: (page - 1) // _HASHES_PER_BLOCK
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
        """Yield the checksums of pages in order; adjacent pages are read together."""
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


def page_checksum_path(path: Path) -> Path:
    """Return the path of a history file's page checksum file."""
    return path.with_name(path.name + PAGE_HASHES_SUFFIX)


def read_page_checksum_file_header(path: Path) -> PageChecksumFileHeader | None:
    """Return the header of a history file's page checksums; None if they are missing or damaged."""
    try:
        with _open_seal(page_checksum_path(path)) as seal:
            content = None if seal is None else _content(seal, 0)
        return None if content is None else decode_json(content.rstrip(b"\0"), PageChecksumFileHeader)
    except (IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


@contextmanager
def _open_seal(path: Path) -> Generator[int | None]:
    try:
        seal = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield seal
    finally:
        os.close(seal)


def find_unused_damaged_file_path(path: Path) -> Path:
    """Return an unused name for a damaged file: `NAME.damaged`, `NAME.damaged-1` and so on."""
    names = (
        path.with_name(path.name + DAMAGED_HISTORY_SUFFIX + (f"-{number}" if number else "")) for number in count()
    )
    return next(name for name in names if not name.exists() and not name.is_symlink())


def read_wal_frames(log: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the valid frames of a SQLite WAL: page number, file size in pages if a commit ends (else 0), header."""
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
    """Return a block without its checksum; None on a mismatch."""
    block = os.pread(seal, HISTORY_PAGE_BYTES, number * HISTORY_PAGE_BYTES)
    content = block[:-_HASH_BYTES]
    return (
        content if len(block) == HISTORY_PAGE_BYTES and block[-_HASH_BYTES:] == _block_hash(number, content) else None
    )


def _write_block(seal: int, number: int, content: bytes) -> None:
    content = content.ljust(HISTORY_PAGE_BYTES - _HASH_BYTES, b"\0")
    os.lseek(seal, number * HISTORY_PAGE_BYTES, os.SEEK_SET)
    write_all_bytes(seal, content + _block_hash(number, content))


def _block_hash(number: int, content: bytes) -> bytes:
    """Return the checksum of a block, which depends on its position."""
    return xxhash.xxh3_64_digest(content, seed=number)
