"""Layout of a backup folder: a list of stores, and per store a folder with a manifest of the copied files.

One backup runs at a time. The manifests and the list are replaced atomically and carry a checksum of their own text. A
file is part of the backup only if a manifest names it and its size and SHA-256 checksum match.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import BackupDamaged, Conflict, InvalidInput, KgserveError, NotFound
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, translate_storage_errors, write_file_atomically
from kgserve.platform.file_permissions import create_private_folder, restrict_folder_permissions
from kgserve.platform.timestamps import is_representable_time
from kgserve.storage.data_folder_store_index import FolderFingerprint
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.store_folder_layout import StoreDescription

log = structlog.get_logger()

BACKUP_FORMAT = 1
BACKUP_LOCK_FILE = "backup.lock"
BACKUP_STORES_FOLDER = "stores"
RUN_FOLDER_PREFIX = "run-"
BACKUP_MANIFEST_FILE = "manifest.json"
BACKUP_STORES_FILE = "stores.json"
BACKUP_UNCHANGED_FILE = "unchanged.json"
BACKUP_FOLDER_ENTRIES = frozenset(
    {
        BACKUP_LOCK_FILE,
        BACKUP_STORES_FOLDER,
        *(f"{name}{new}" for name in (BACKUP_STORES_FILE, BACKUP_UNCHANGED_FILE) for new in ("", ".new")),
    }
)
COUNTED_STORES_PER_WRITE = 100
"""New stores after which the list is written; a killed backup leaves fewer that the next one has to add."""

_BACKED_UP_FILE_PATTERN = re.compile(
    r"run-[0-9]{6,}/(?:snapshot\.[0-9]+/[a-z]+\.(?:parquet|json)|history\.sqlite|[0-9]+\.[0-9]+\.log)"
)


class BackedUpFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copied file: path relative to the store's folder, size in bytes, SHA-256 checksum in hexadecimal."""

    path: str
    bytes: int
    sha256: str


class BackedUpJournalFrames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Journal frames in a backup: the file, their offset in the segment, and the range of sequences they contain.

    ``time`` is that of the last commit, in microseconds.
    """

    file: BackedUpFile
    segment: int
    offset: int
    first: int
    last: int
    time: int

    @property
    def end(self) -> int:
        """Offset in the segment where the next piece begins."""
        return self.offset + self.file.bytes


class SnapshotCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy of a snapshot of all rows in a backup: its last commit and its files."""

    sequence: int
    files: list[BackedUpFile]


class BackedUpHistory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy of the history: the last commit it has applied, and the oldest commit it can answer for."""

    sequence: int
    oldest: int
    file: BackedUpFile


class BackupEndState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """State and settings of a store at the end of one backup, and the reach of its history.

    ``time`` is that of the last commit, ``taken`` that of the backup, both in microseconds. ``is_empty`` states that
    the store had no commits. Older versions could write sequence 0 for a store that another node served.
    """

    sequence: int
    time: int
    taken: int
    digest: str
    nodes: int
    edges: int
    settings: StoreDescription
    history_oldest: int
    is_empty: bool = False

    @property
    def state(self) -> StoreState:
        """State of the store."""
        return StoreState(self.sequence, self.time, int(self.digest, 16), self.nodes, self.edges)


class BackupRunFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files that one backup run added: its journal frames, in a folder of their own."""

    number: int
    pieces: list[BackedUpJournalFrames]


class BackupChain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chain of backups: a starting point of restores, and everything that later runs added to it.

    Any sequence from ``first`` to that of the last mark can be restored, and any time from ``since`` to that mark's
    time. The journal is replayed from ``rows_from``: 0, or the sequence of the snapshot.
    """

    created_at: int
    rows_from: int
    first: int
    since: int
    history_from: int
    keeps_history: bool
    snapshot: SnapshotCopy | None
    history: BackedUpHistory | None
    runs: list[BackupRunFiles]
    marks: list[BackupEndState]

    @property
    def last(self) -> BackupEndState:
        """Newest mark."""
        return self.marks[-1]

    @property
    def pieces(self) -> list[BackedUpJournalFrames]:
        """Journal pieces of all runs, in order."""
        return [piece for run in self.runs for piece in run.pieces]

    @property
    def files(self) -> list[BackedUpFile]:
        """All files that the base needs."""
        history = [self.history.file] if self.history else []
        return [*(self.snapshot.files if self.snapshot else ()), *history, *(piece.file for piece in self.pieces)]

    @property
    def needed(self) -> int:
        """First sequence needed from the journal."""
        return 1 + min(self.rows_from, self.history.sequence if self.history else self.rows_from)


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Manifest of one store's backup: its chains of backup runs, oldest first."""

    format: int
    store: str
    bases: list[BackupChain] = []

    @property
    def runs(self) -> range:
        """Numbers of the runs. A run folder with another number is left over from an interrupted backup."""
        if not self.bases:
            return range(1, 1)
        return range(self.bases[0].runs[0].number, self.bases[-1].runs[-1].number + 1)

    @property
    def bytes(self) -> int:
        """Total size of all files named in the manifest."""
        return sum(file.bytes for base in self.bases for file in base.files)


class BackupStoreList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """List of the stores in a backup folder."""

    format: int
    stores: list[str] = []


class UnchangedStoreBackup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A closed store that equals its newest backup.

    ``fingerprint`` is that of the store's folder, ``manifest`` the checksum of the backup's manifest, and ``taken`` the
    time of the last backup in microseconds, which no longer has to be written into each manifest.
    """

    fingerprint: FolderFingerprint
    manifest: str
    taken: int


class StoresUnchangedSinceBackup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stores that equal their newest backups."""

    format: int
    stores: dict[str, UnchangedStoreBackup] = {}


class _ChecksummedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON document with its checksum."""

    sha256: str
    content: msgspec.Raw


BackupDocument = TypeVar("BackupDocument", BackupManifest, BackupStoreList, StoresUnchangedSinceBackup)


def _write(path: Path, content: BackupManifest | BackupStoreList | StoresUnchangedSinceBackup) -> str:
    """Replace a manifest atomically and durably. Return its checksum."""
    text = msgspec.json.encode(content)
    checksum = hashlib.sha256(text).hexdigest()
    write_file_atomically(path, msgspec.json.encode(_ChecksummedDocument(checksum, msgspec.Raw(text))))
    return checksum


def _read(path: Path, kind: type[BackupDocument]) -> tuple[BackupDocument, str]:
    """Return a manifest and its checksum.

    Raises BackupDamaged if its checksum does not match, and FileNotFoundError if it is missing.
    """
    data = path.read_bytes()
    try:
        sealed = decode_json(data, _ChecksummedDocument)
        text = bytes(sealed.content)
        if msgspec.json.encode(sealed) != data or hashlib.sha256(text).hexdigest() != sealed.sha256:
            raise BackupDamaged(f"{path}: checksum mismatch")
        found = decode_json(text, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupDamaged(f"{path}: cannot be read: {error}") from error
    if found.format != BACKUP_FORMAT:
        raise BackupDamaged(f"{path}: format {found.format} is not supported by this version of kgserve")
    return found, sealed.sha256


def _require_names(path: Path, manifest: BackupManifest, store: str) -> None:
    """Raise BackupDamaged for another store's manifest, and for invalid file names and times."""
    if manifest.store != store:
        raise BackupDamaged(f"{path}: belongs to store {manifest.store!r}, not to {store!r}")
    for base in manifest.bases:
        if (
            not base.runs
            or not base.marks
            or any(not _BACKED_UP_FILE_PATTERN.fullmatch(file.path) for file in base.files)
        ):
            raise BackupDamaged(f"{path}: contains file names that no backup writes")
        if not all(map(is_representable_time, (base.since, *(mark.taken for mark in base.marks)))):
            raise BackupDamaged(f"{path}: contains times outside the years 1 to 9999")


class StoreBackup:
    """Backup of one store: a manifest, and a folder for each run."""

    def __init__(self, folder: Path, store: str, unchanged: UnchangedStoreBackup | None = None) -> None:
        """``unchanged`` says that a later backup found the store unchanged."""
        self.folder = folder
        self.store = store
        self.path = folder / BACKUP_MANIFEST_FILE
        self.unchanged = unchanged
        self.checksum = ""
        """Checksum of the manifest that was last read or written."""

    @property
    def exists(self) -> bool:
        """True if the backup has a manifest."""
        return self.path.is_file()

    def read(self) -> BackupManifest:
        """Return the manifest, an empty one for a new backup. Raises BackupDamaged."""
        try:
            found, self.checksum = _read(self.path, BackupManifest)
        except FileNotFoundError:
            return BackupManifest(BACKUP_FORMAT, self.store)
        _require_names(self.path, found, self.store)
        if (known := self.unchanged) is None or known.manifest != self.checksum:
            self.unchanged = None
            return found
        base = found.bases[-1]
        taken = max(base.last.taken, known.taken)
        marks = [*base.marks[:-1], msgspec.structs.replace(base.last, taken=taken)]
        return msgspec.structs.replace(found, bases=[*found.bases[:-1], msgspec.structs.replace(base, marks=marks)])

    def run_folder(self, number: int) -> Path:
        """Return the folder for the files of a run."""
        return self.folder / f"{RUN_FOLDER_PREFIX}{number:06d}"

    def clear_leftovers(self, manifest: BackupManifest) -> None:
        """Remove files of interrupted backups, and runs that are no longer needed."""
        for path in list_leftover_backup_run_folders(self.folder, manifest):
            shutil.rmtree(path, ignore_errors=True)

    def write(self, manifest: BackupManifest) -> None:
        """Replace the manifest, which completes the backup."""
        self.checksum = _write(self.path, manifest)


def list_leftover_backup_run_folders(folder: Path, manifest: BackupManifest) -> list[Path]:
    """Return run folders that the manifest does not include, left over from interrupted backups."""
    if not folder.is_dir():
        return []
    runs = (
        path
        for path in folder.iterdir()
        if path.name.startswith(RUN_FOLDER_PREFIX) and path.name[len(RUN_FOLDER_PREFIX) :].isdecimal()
    )
    return [path for path in runs if int(path.name[len(RUN_FOLDER_PREFIX) :]) not in manifest.runs]


class BackupFolder:
    """Backup folder, as named by ``--to``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._names: list[str] | None = None
        self._uncounted: list[str] = []
        self._unchanged: dict[str, UnchangedStoreBackup] | None = None
        self._is_changed = False

    @contextmanager
    def writing(self) -> Generator[None]:
        """Create the folder if needed, and lock it exclusively. Raises Conflict if it is in use, and InvalidInput."""
        with translate_storage_errors(f"making {self.path}"):
            self._require_backup_or_empty()
            create_private_folder(self.path)
            descriptor = os.open(self.path / BACKUP_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(
                descriptor,
                fcntl.LOCK_EX,
                f"{self.path} is in use by another backup or restore; try again when it has finished",
            )
            self._make()
            self._forget_contents()
            self._unchanged_stores()  # read before several threads use it
            try:
                yield
            finally:
                self._write_lists()
        finally:
            self._forget_contents()
            os.close(descriptor)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Lock the folder against backups. Raises NotFound if it holds no backup, and Conflict while one is running."""
        if not (self.path / BACKUP_STORES_FILE).is_file():
            raise NotFound(f"{self.path} is not a kgserve backup: {BACKUP_STORES_FILE} is missing")
        try:
            descriptor = os.open(self.path / BACKUP_LOCK_FILE, os.O_RDONLY)
        except OSError:  # a copy without a readable lock file, which no backup writes to
            yield
            return
        try:
            _lock(
                descriptor, fcntl.LOCK_SH, f"{self.path} is in use by a running backup; try again when it has finished"
            )
            self._forget_contents()
            yield
        finally:
            self._forget_contents()
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names of the stores it holds. Raises BackupDamaged."""
        if self._names is None:
            self._names = self._read_names()
        return self._names

    def _read_names(self) -> list[str]:
        path = self.path / BACKUP_STORES_FILE
        try:
            found, _ = _read(path, BackupStoreList)
        except FileNotFoundError:
            raise BackupDamaged(f"{path}: missing") from None
        try:
            return [check_store_name(name) for name in found.stores]
        except InvalidInput as error:
            raise BackupDamaged(f"{path}: {error.message}") from None

    def store(self, name: str) -> StoreBackup:
        """Return the backup of a store, whether it exists or not."""
        return StoreBackup(self.path / BACKUP_STORES_FOLDER / name, name, self._unchanged_stores().get(name))

    def there(self, name: str) -> StoreBackup:
        """Return the existing backup of a store. Raises NotFound, and BackupDamaged if its manifest is missing."""
        names = self.names()
        if name not in names:
            held = ", ".join(names) or "none"
            raise NotFound(f"{self.path} holds no backup of store {name!r}; stores in it: {held}")
        found = self.store(name)
        if not found.exists:
            raise BackupDamaged(f"{found.path}: missing")
        return found

    def count(self, name: str) -> None:
        """Add a store with a complete backup to the list, which `writing` completes. Thread-safe."""
        with self._lock:
            names = self.names()
            at = bisect_left(names, name)
            if names[at : at + 1] != [name]:
                self._uncounted.append(name)
                if len(self._uncounted) >= COUNTED_STORES_PER_WRITE:
                    self._write_names()

    def note_unchanged(self, name: str, found: UnchangedStoreBackup | None) -> None:
        """Record that a closed store equals its newest backup; with None, that it may differ. Thread-safe."""
        with self._lock:
            stores = self._unchanged_stores()
            if found is not None:
                stores[name] = found
                self._is_changed = True
            elif stores.pop(name, None) is not None:
                self._is_changed = True

    def _write_lists(self) -> None:
        """Write what `count` and `note_unchanged` recorded."""
        with self._lock:
            self._write_names()
            if self._is_changed:
                with translate_storage_errors(f"writing {self.path / BACKUP_UNCHANGED_FILE}"):
                    found = StoresUnchangedSinceBackup(BACKUP_FORMAT, self._unchanged_stores())
                    _write(self.path / BACKUP_UNCHANGED_FILE, found)

    def _write_names(self) -> None:
        if not self._uncounted:
            return
        names = sorted({*self.names(), *self._uncounted})
        with translate_storage_errors(f"writing {self.path / BACKUP_STORES_FILE}"):
            fsync_folder(self.path / BACKUP_STORES_FOLDER)
            _write(self.path / BACKUP_STORES_FILE, BackupStoreList(BACKUP_FORMAT, names))
        self._names, self._uncounted = names, []

    def _unchanged_stores(self) -> dict[str, UnchangedStoreBackup]:
        if self._unchanged is None:
            try:
                self._unchanged = _read(self.path / BACKUP_UNCHANGED_FILE, StoresUnchangedSinceBackup)[0].stores
            except FileNotFoundError:
                self._unchanged = {}
            except BackupDamaged as error:
                # Without the list, stores are compared with their backups again, which end at their manifests' times.
                log.warning("unchanged_list_damaged", reason=error.message)
                self._unchanged = {}
        return self._unchanged

    def _forget_contents(self) -> None:
        self._names, self._unchanged, self._is_changed = None, None, False
        self._uncounted = []

    def _require_backup_or_empty(self) -> None:
        if not self.path.is_dir() or (self.path / BACKUP_STORES_FILE).exists():
            return
        if any(each.name not in BACKUP_FOLDER_ENTRIES for each in self.path.iterdir()):
            raise InvalidInput(f"{self.path} holds other files and no backup; choose an empty or a new folder")

    def _make(self) -> None:
        """Create the folder's files. Requires the lock, so that concurrent first backups do not reset the list."""
        with translate_storage_errors(f"making {self.path}"):
            create_private_folder(self.path / BACKUP_STORES_FOLDER)
            self._restrict_permissions()
            if not (self.path / BACKUP_STORES_FILE).exists():
                _write(self.path / BACKUP_STORES_FILE, BackupStoreList(BACKUP_FORMAT))
                fsync_folder(self.path.parent)

    def _restrict_permissions(self) -> None:
        """Restrict permissions: older versions wrote files that every user of the machine could read."""
        mended = restrict_folder_permissions(self.path)
        if mended.closed:
            log.warning("backups_closed_to_others", path=str(self.path), were_open=mended.closed)
        for path in mended.still_open:
            log.warning("open_to_others", path=str(path), reason="its mode cannot be changed")


def _lock(descriptor: int, how: int, refusal: str) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(refusal) from None


_MAX_SCANNED_FOLDERS = 10_000


def find_backups_with_commits_since(root: Path, store: str, first: int) -> Iterator[tuple[str, str]]:
    """Yield the backups below a folder with anything that a store's commits from ``first`` on wrote.

    Each is its name and a description.

    Unreadable backups are included.
    """
    for folder in _backups(root):
        name = str(folder.relative_to(root))
        try:
            if reason := _held(BackupFolder(folder), store, first):
                yield name, reason
        except (KgserveError, OSError) as error:
            yield name, f"it cannot be read now: {str(error).replace(f'{root}/', '')}"


def _held(folder: BackupFolder, store: str, first: int) -> str:
    with folder.reading():
        if store not in folder.names():
            return ""
        bases = folder.there(store).read().bases
    # A base that lacks the first commits in its journal has what they wrote in its snapshot and history.
    ends = [str(base.last.sequence) for base in bases if first <= base.last.sequence]
    return f"it holds the store as of commit {', '.join(ends)}" if ends else ""


def _backups(root: Path) -> Iterator[Path]:
    for number, (folder, below, files) in enumerate(os.walk(root)):
        if number > _MAX_SCANNED_FOLDERS:
            return
        if BACKUP_STORES_FILE in files:
            below[:] = [each for each in below if each != BACKUP_STORES_FOLDER]
            yield Path(folder)
