"""Index of the stores in a data folder: their names, and what the list of stores shows of closed stores.

The index is derived. Its file saves reading every folder after a start and can be deleted at any time. An entry counts
only as long as the folder's clean-close marker is the one that it was read under. The marker is removed when a store
opens and written when it closes, so the fingerprint of one file vouches for the whole folder.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog
import xxhash

from kgserve.errors import InvalidInput, JournalDamaged
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import write_file_atomically
from kgserve.storage.journal.journal import list_journal_segments
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.store_folder_layout import (
    CLOSE_MARK_FILE,
    JOURNAL_FOLDER,
    STORE_FOLDER_SUFFIX,
    StoreDescription,
    StoreLayout,
    is_store_folder,
    read_closed_store_state,
)

log = structlog.get_logger()

STORE_INDEX_FILE = "stores.index"
SAVE_INTERVAL_SECONDS = 60.0
FILL_SECONDS = 0.02
"""Processor time per tick that is spent on reading folders which the index does not know yet."""
_FORMAT = 1
_CLOCK_TICK_NANOSECONDS = 20_000_000
"""Longest step of the clock that stamps files; two changes within one step leave the same time."""

FolderFingerprint: TypeAlias = tuple[int, int, int, int]
"""Inode, size, and times of content and status of closed.json. Inode 0: no marker, but the time of the journal."""


class ClosedStoreIndexEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Entry of a closed store. Times are in microseconds, sizes in bytes; ``links`` as in the clean-close mark.

    ``description`` is JSON, so that 10,000 entries take little memory.
    """

    fingerprint: FolderFingerprint
    created_at: int
    sequence: int
    time: int
    nodes: int
    edges: int
    journal_bytes: int
    engine_bytes: int
    links: int
    links_changed: int
    description: bytes
    is_damaged: bool = False

    @property
    def is_clean(self) -> bool:
        """True if the store was closed cleanly, so that the entry may outlive the process."""
        return self.fingerprint[0] != 0


class _StoreIndexFile(msgspec.Struct, array_like=True):
    format: int
    entries: dict[str, ClosedStoreIndexEntry]


_encode = msgspec.msgpack.Encoder().encode


def read_closed_store_fingerprint(root: str | Path) -> FolderFingerprint | None:
    """Return the fingerprint of a closed store's folder, or None if the folder has no journal."""
    try:
        found = os.stat(f"{root}/{CLOSE_MARK_FILE}")  # noqa: PTH116 - called for thousands of folders
    except OSError:
        try:
            return (0, 0, os.stat(f"{root}/{JOURNAL_FOLDER}").st_mtime_ns, 0)  # noqa: PTH116 - as above
        except OSError:
            return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class DataFolderStoreIndex:
    """Names and entries of the stores in one data folder. Thread-safe."""

    def __init__(self, data_dir: Path) -> None:
        """Initialize without reading anything."""
        self._data_dir = data_dir
        self._path = data_dir / STORE_INDEX_FILE
        self._lock = threading.RLock()
        self._entries: dict[str, ClosedStoreIndexEntry] | None = None
        self._names: list[str] = []
        self._known: set[str] = set()
        self._folders: set[str] = set()
        self._unfinished: set[str] = set()
        """Folders with a store's name that hold no store, or none yet."""
        self._scanned_at = -1
        self._is_dirty = False
        self._saved_at = time.monotonic()
        self._unread: list[str] | None = None

    def names(self) -> list[str]:
        """Return the names of all stores, sorted."""
        with self._lock:
            self._look()
            return [*self._names]

    def folder_names(self) -> Iterable[str]:
        """Return all names in use, including those of folders without a store."""
        with self._lock:
            self._look()
            return [each.removesuffix(STORE_FOLDER_SUFFIX) for each in self._folders]

    def find(self, name: str) -> ClosedStoreIndexEntry | None:
        """Return the entry of a store that is closed cleanly, without reading more of its folder than one status."""
        with self._lock:
            entry = self._loaded().get(name)
        if entry is None or entry.fingerprint != read_closed_store_fingerprint(self._root(name)):
            return None
        return entry

    def read(self, layout: StoreLayout) -> ClosedStoreIndexEntry:
        """Return the entry of a closed store, read from its folder if needed.

        Raises FileNotFoundError if the store does not exist.
        """
        if (entry := self.find(layout.name)) is not None:
            return entry
        if not layout.exists:
            self.forget(layout.name)
            with self._lock:
                self._scanned_at = -1
                self._remove([layout.name])
            raise FileNotFoundError(layout.root)
        before = read_closed_store_fingerprint(layout.root)
        entry = _read_entry(layout, before or (0, 0, 0, 0))
        if before is not None and not entry.is_damaged and before == read_closed_store_fingerprint(layout.root):
            with self._lock:
                self._loaded()[layout.name] = entry
                self._is_dirty = self._is_dirty or entry.is_clean
        return entry

    def forget(self, name: str) -> None:
        """Drop the entry of a store that is about to open."""
        with self._lock:
            if self._entries is not None and self._entries.pop(name, None) is not None:
                self._is_dirty = True

    def note_closed(self, name: str) -> None:
        """Drop the entry of a store that was closed, and read its folder soon."""
        with self._lock:
            self.forget(name)
            if self._unread is not None:
                self._unread.append(name)

    def tend(self) -> None:
        """Read a few folders that the index does not know yet, and save the index when it is due. May block."""
        with self._lock:
            if self._unread is None:
                self._unread = [name for name in self.names() if name not in self._loaded()]
        until = time.monotonic() + FILL_SECONDS
        while self._unread and time.monotonic() < until:
            name = self._unread.pop()
            # A store without the marker is open, or must be read from its journal: only when a caller asks for it.
            if (read_closed_store_fingerprint(self._root(name)) or (0,))[0]:
                with suppress(OSError):
                    self.read(StoreLayout(self._data_dir, name))
        if time.monotonic() - self._saved_at > SAVE_INTERVAL_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file if anything changed. A failure is logged; the next start reads the folders instead."""
        with self._lock:
            self._saved_at = time.monotonic()
            if not self._is_dirty or self._entries is None:
                return
            content = _encode(_StoreIndexFile(_FORMAT, {k: v for k, v in self._entries.items() if v.is_clean}))
            self._is_dirty = False
        try:
            write_file_atomically(self._path, xxhash.xxh3_128_digest(content) + content)
        except OSError as error:
            log.warning("store_index_not_saved", error=str(error))

    # Caller holds the lock

    def _loaded(self) -> dict[str, ClosedStoreIndexEntry]:
        if self._entries is None:
            self._entries = _load(self._path)
        return self._entries

    def _look(self) -> None:
        """Update the names if entries of the data folder were added, removed or renamed, by whomever."""
        changed_at = self._data_dir.stat().st_mtime_ns
        if changed_at != self._scanned_at:
            started_at = time.time_ns()
            folders = {each for each in os.listdir(self._data_dir) if each.endswith(STORE_FOLDER_SUFFIX)}  # noqa: PTH208 - names are enough
            added = folders - self._folders
            self._remove([each.removesuffix(STORE_FOLDER_SUFFIX) for each in self._folders - folders])
            self._folders = folders
            self._unfinished = (self._unfinished & folders) | {each for each in added if _is_store_folder_name(each)}
            self._scanned_at = changed_at if started_at - changed_at > _CLOCK_TICK_NANOSECONDS else -1
        if self._unfinished:
            found = {each for each in self._unfinished if self._holds_store(each)}
            self._unfinished -= found
            self._known.update(each.removesuffix(STORE_FOLDER_SUFFIX) for each in found)
            self._names = sorted(self._known)

    def _holds_store(self, folder: str) -> bool:
        name = folder.removesuffix(STORE_FOLDER_SUFFIX)
        entry = self._loaded().get(name)
        root = self._data_dir / folder
        if entry is not None and entry.fingerprint == read_closed_store_fingerprint(root):
            return not root.is_symlink()
        return is_store_folder(root)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.forget(name)
            self._unfinished.add(f"{name}{STORE_FOLDER_SUFFIX}")
            if name in self._known:
                self._known.remove(name)
                del self._names[bisect_left(self._names, name)]

    def _root(self, name: str) -> str:
        return f"{self._data_dir}/{name}{STORE_FOLDER_SUFFIX}"


def _load(path: Path) -> dict[str, ClosedStoreIndexEntry]:
    """Return the entries of the file; none if it is missing or damaged."""
    try:
        data = path.read_bytes()
        content = data[16:]
        if xxhash.xxh3_128_digest(content) != data[:16]:
            raise ValueError("its checksum does not match")
        found = msgpack_decoder(_StoreIndexFile).decode(content)
        return found.entries if found.format == _FORMAT else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("store_index_unreadable", reason=str(error), consequence="the folders are read again")
        return {}


def _is_store_folder_name(folder: str) -> bool:
    try:
        check_store_name(folder.removesuffix(STORE_FOLDER_SUFFIX))
    except InvalidInput:
        return False
    return True


def _read_entry(layout: StoreLayout, fingerprint: FolderFingerprint) -> ClosedStoreIndexEntry:
    is_damaged, mark = False, layout.close_mark()
    try:
        state = mark.state if mark is not None else read_closed_store_state(layout)
        journal_bytes = sum(segment.size for segment in list_journal_segments(layout.journal))
    except JournalDamaged:
        is_damaged, state, journal_bytes = True, StoreState(), 0
    description: StoreDescription = layout.read_description_or_default()
    return ClosedStoreIndexEntry(
        fingerprint=fingerprint if mark is not None else (0, *fingerprint[1:]),
        created_at=description.created_at,
        sequence=state.sequence,
        time=state.time,
        nodes=state.nodes,
        edges=state.edges,
        journal_bytes=journal_bytes,
        engine_bytes=sum(path.stat().st_size for path in layout.root.glob("graph*.kuzu*")),
        links=-1 if mark is None else mark.links,
        links_changed=-1 if mark is None else mark.links_changed,
        description=msgspec.json.encode(description),
        is_damaged=is_damaged,
    )
