"""A folder with backups: a list of the stores, and for each a folder with a manifest of what was copied.

One backup is made at a time. Manifests and the list are replaced in one step, and hold a checksum of their own text. A
file that a manifest does not name is no part of the backup; a name in it counts only with the size and the SHA-256
checksum that stand beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import BackupDamaged, Conflict, InvalidInput, KgserveError, NotFound
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import storing, sync_folder, write_whole
from kgserve.platform.permissions import close_folder, private_folder
from kgserve.platform.times import is_within
from kgserve.storage.layout import StoreFile
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.store_names import check_store_name

log = structlog.get_logger()

BACKUP_FORMAT = 1
BACKUP_LOCK_FILE = "backup.lock"
STORES_FOLDER = "stores"
RUN_FOLDER_PREFIX = "run-"
BACKUP_MANIFEST_FILE = "manifest.json"
STORES_FILE = "stores.json"

_BACKED_UP_FILE_PATTERN = re.compile(
    r"run-[0-9]{6,}/(?:snapshot\.[0-9]+/[a-z]+\.(?:parquet|json)|history\.sqlite|[0-9]+\.[0-9]+\.log)"
)


class BackedUpFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its path below the store's folder: size in bytes and SHA-256 checksum in hexadecimal."""

    path: str
    bytes: int
    sha256: str


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whole frames of a journal segment: where they stand in it, and the sequences in them.

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
        """Where in the segment the next piece begins."""
        return self.offset + self.file.bytes


class SnapshotCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of all rows."""

    sequence: int
    files: list[BackedUpFile]


class HistoryCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The states that were over: the last commit that the copy has seen, and the first as of which it answers."""

    sequence: int
    oldest: int
    file: BackedUpFile


class BackupMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The end of one backup: the store's state and settings then, and how far back its history went.

    ``time`` is that of the last commit, ``taken`` that of the backup; both in microseconds. ``is_empty`` says that the
    store had no commits. Versions before it could end at sequence 0 because a node asked did not serve the store.
    """

    sequence: int
    time: int
    taken: int
    digest: str
    nodes: int
    edges: int
    settings: StoreFile
    history_oldest: int
    is_empty: bool = False

    @property
    def state(self) -> StoreState:
        """The store's state."""
        return StoreState(self.sequence, self.time, int(self.digest, 16), self.nodes, self.edges)


class BackupRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one backup brought: a folder of pieces."""

    number: int
    pieces: list[Piece]


class BackupBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where restoring can begin, and all that was added since.

    Every sequence from ``first`` to that of the last mark can be restored, every time from ``since`` to when that was
    taken. ``rows_from`` is the sequence that the journal is played on to: 0, or that of the snapshot.
    """

    created_at: int
    rows_from: int
    first: int
    since: int
    history_from: int
    keeps_history: bool
    snapshot: SnapshotCopy | None
    history: HistoryCopy | None
    runs: list[BackupRun]
    marks: list[BackupMark]

    @property
    def last(self) -> BackupMark:
        """The newest mark."""
        return self.marks[-1]

    @property
    def pieces(self) -> list[Piece]:
        """Of all runs, in order."""
        return [piece for run in self.runs for piece in run.pieces]

    @property
    def files(self) -> list[BackedUpFile]:
        """All that it needs."""
        history = [self.history.file] if self.history else []
        return [*(self.snapshot.files if self.snapshot else ()), *history, *(piece.file for piece in self.pieces)]

    @property
    def needed(self) -> int:
        """The first sequence that is needed from the journal."""
        return 1 + min(self.rows_from, self.history.sequence if self.history else self.rows_from)


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The backup of one store: its bases, oldest first."""

    format: int
    store: str
    bases: list[BackupBase] = []

    @property
    def runs(self) -> range:
        """The numbers of the runs; a folder of another number was left by a backup that did not end."""
        if not self.bases:
            return range(1, 1)
        return range(self.bases[0].runs[0].number, self.bases[-1].runs[-1].number + 1)

    @property
    def bytes(self) -> int:
        """Size of all files that it names."""
        return sum(file.bytes for base in self.bases for file in base.files)


class StoreNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which stores a folder holds."""

    format: int
    stores: list[str] = []


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text and the checksum of it."""

    sha256: str
    content: msgspec.Raw


Content = TypeVar("Content", BackupManifest, StoreNames)


def _write(path: Path, content: BackupManifest | StoreNames) -> None:
    """Replace a manifest in one step; it is durable afterwards."""
    text = msgspec.json.encode(content)
    write_whole(path, msgspec.json.encode(_Sealed(hashlib.sha256(text).hexdigest(), msgspec.Raw(text))))


def _read(path: Path, kind: type[Content]) -> Content:
    """A manifest. Raises BackupDamaged when it is not as it was written, FileNotFoundError when it is not there."""
    data = path.read_bytes()
    try:
        sealed = decode_json(data, _Sealed)
        text = bytes(sealed.content)
        if msgspec.json.encode(sealed) != data or hashlib.sha256(text).hexdigest() != sealed.sha256:
            raise BackupDamaged(f"{path}: its text does not fit its checksum")
        found = decode_json(text, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupDamaged(f"{path}: it cannot be read: {error}") from error
    if found.format != BACKUP_FORMAT:
        raise BackupDamaged(f"{path}: format {found.format} is not known to this version of kgserve")
    return found


def _require_names(path: Path, manifest: BackupManifest, store: str) -> None:
    """Raises BackupDamaged for the manifest of another store, and for names and times that no backup writes."""
    if manifest.store != store:
        raise BackupDamaged(f"{path}: it belongs to store {manifest.store!r}, not to {store!r}")
    for base in manifest.bases:
        if (
            not base.runs
            or not base.marks
            or any(not _BACKED_UP_FILE_PATTERN.fullmatch(file.path) for file in base.files)
        ):
            raise BackupDamaged(f"{path}: it names files that no backup has")
        if not all(map(is_within, (base.since, *(mark.taken for mark in base.marks)))):
            raise BackupDamaged(f"{path}: it names times outside the years 1 to 9999")


class StoreBackup:
    """The backup of one store: a manifest, and a folder for each run."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.path = folder / BACKUP_MANIFEST_FILE

    @property
    def exists(self) -> bool:
        """Whether there is a manifest."""
        return self.path.is_file()

    def read(self) -> BackupManifest:
        """What it holds; nothing when it is new. Raises BackupDamaged."""
        try:
            found = _read(self.path, BackupManifest)
        except FileNotFoundError:
            return BackupManifest(BACKUP_FORMAT, self.store)
        _require_names(self.path, found, self.store)
        return found

    def run_folder(self, number: int) -> Path:
        """Where a run keeps its files."""
        return self.folder / f"{RUN_FOLDER_PREFIX}{number:06d}"

    def clear_leftovers(self, manifest: BackupManifest) -> None:
        """Remove what a backup that did not end has left, and runs that are no longer needed."""
        for path in leftovers(self.folder, manifest):
            shutil.rmtree(path, ignore_errors=True)

    def write(self, manifest: BackupManifest) -> None:
        """Replace the manifest: from here on the backup is the new one."""
        _write(self.path, manifest)


def leftovers(folder: Path, manifest: BackupManifest) -> list[Path]:
    """Folders of runs that no manifest counts: a backup was interrupted before its manifest was written, or after."""
    if not folder.is_dir():
        return []
    runs = (
        path
        for path in folder.iterdir()
        if path.name.startswith(RUN_FOLDER_PREFIX) and path.name[len(RUN_FOLDER_PREFIX) :].isdecimal()
    )
    return [path for path in runs if int(path.name[len(RUN_FOLDER_PREFIX) :]) not in manifest.runs]


class BackupFolder:
    """The folder that ``--to`` names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self) -> Generator[None]:
        """Make the folder, and keep others from writing to it. Raises Conflict when somebody does, InvalidInput."""
        with storing(f"making {self.path}"):
            self._require_ours()
            private_folder(self.path)
            descriptor = os.open(self.path / BACKUP_LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, fcntl.LOCK_EX, f"{self.path} is in use by another backup or restore; wait until it ends")
            self._make()
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Keep backups from changing the folder. Raises NotFound when it holds none, Conflict while one is made."""
        if not (self.path / STORES_FILE).is_file():
            raise NotFound(f"{self.path} holds no backup of kgserve: there is no {STORES_FILE} in it")
        try:
            descriptor = os.open(self.path / BACKUP_LOCK_FILE, os.O_RDONLY)
        except OSError:  # a copy without the lock file, or one that may not be read: nobody writes to it either
            yield
            return
        try:
            _lock(descriptor, fcntl.LOCK_SH, f"{self.path} is just being written to by a backup; wait until it ends")
            yield
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """The stores that it holds. Raises BackupDamaged."""
        path = self.path / STORES_FILE
        try:
            found = _read(path, StoreNames)
        except FileNotFoundError:
            raise BackupDamaged(f"{path}: it is missing") from None
        try:
            return [check_store_name(name) for name in found.stores]
        except InvalidInput as error:
            raise BackupDamaged(f"{path}: {error.message}") from None

    def store(self, name: str) -> StoreBackup:
        """The backup of a store, whether it is there or not."""
        return StoreBackup(self.path / STORES_FOLDER / name, name)

    def there(self, name: str) -> StoreBackup:
        """The backup of a store that must be there. Raises NotFound, BackupDamaged when its manifest is missing."""
        names = self.names()
        if name not in names:
            held = ", ".join(names) or "nothing"
            raise NotFound(f"{self.path} holds no backup of store {name!r}; it holds {held}")
        found = self.store(name)
        if not found.exists:
            raise BackupDamaged(f"{found.path}: it is missing")
        return found

    def count(self, name: str) -> None:
        """Enter a store whose backup is whole."""
        names = self.names()
        if name not in names:
            with storing(f"writing {self.path / STORES_FILE}"):
                sync_folder(self.path / STORES_FOLDER)
                _write(self.path / STORES_FILE, StoreNames(BACKUP_FORMAT, sorted([*names, name])))

    def _require_ours(self) -> None:
        if not self.path.is_dir() or (self.path / STORES_FILE).exists():
            return
        if any(
            each.name not in {BACKUP_LOCK_FILE, STORES_FOLDER, STORES_FILE, f"{STORES_FILE}.new"}
            for each in self.path.iterdir()
        ):
            raise InvalidInput(f"{self.path} holds other files and no backup; choose an empty or a new folder")

    def _make(self) -> None:
        """Only under the lock: of two first backups the later one must not empty the list of the other."""
        with storing(f"making {self.path}"):
            private_folder(self.path / STORES_FOLDER)
            self._close_to_others()
            if not (self.path / STORES_FILE).exists():
                _write(self.path / STORES_FILE, StoreNames(BACKUP_FORMAT))
                sync_folder(self.path.parent)

    def _close_to_others(self) -> None:
        """What was written here before was open to every user of the machine."""
        mended = close_folder(self.path)
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


def holding(root: Path, store: str, first: int, through: int) -> Iterator[tuple[str, str]]:
    """The backups below a folder that hold a store as of any commit from one to another: name, and what is in them.

    One that cannot be read is named as well.
    """
    for folder in _backups(root):
        name = str(folder.relative_to(root))
        try:
            if reason := _held(BackupFolder(folder), store, first, through):
                yield name, reason
        except (KgserveError, OSError) as error:
            yield name, f"it cannot be looked into now: {str(error).replace(f'{root}/', '')}"


def _held(folder: BackupFolder, store: str, first: int, through: int) -> str:
    with folder.reading():
        if store not in folder.names():
            return ""
        bases = folder.there(store).read().bases
    ranges = [(base.needed, base.last.sequence) for base in bases]
    held = [f"{start} to {end}" for start, end in ranges if start <= through and first <= end]
    return f"it holds the store's commits {', '.join(held)}" if held else ""


def _backups(root: Path) -> Iterator[Path]:
    for number, (folder, below, files) in enumerate(os.walk(root)):
        if number > _MAX_SCANNED_FOLDERS:
            return
        if STORES_FILE in files:
            below[:] = [each for each in below if each != STORES_FOLDER]
            yield Path(folder)
