"""A folder with backups: one backup at a time, a folder for each store, and what an interrupted one has left."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog

from kgserve.backup import manifest as manifests
from kgserve.backup.manifest import FORMAT, MANIFEST, STORES, Manifest, StoreNames
from kgserve.errors import BackupDamaged, Conflict, InvalidInput, NotFound
from kgserve.journal.files import storage_error, sync_folder
from kgserve.model.requests import check_store_name
from kgserve.permissions import close_folder, private_folder

log = structlog.get_logger()

LOCK = "backup.lock"
FOLDER = "stores"
RUN = "run-"


class StoreBackup:
    """The backup of one store: a manifest, and a folder for each run."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.path = folder / MANIFEST

    @property
    def exists(self) -> bool:
        """Whether there is a manifest."""
        return self.path.is_file()

    def read(self) -> Manifest:
        """What it holds; nothing when it is new. Raises BackupDamaged."""
        try:
            found = manifests.read(self.path, Manifest)
        except FileNotFoundError:
            return Manifest(FORMAT, self.store)
        manifests.require_names(self.path, found, self.store)
        return found

    def run_folder(self, number: int) -> Path:
        """Where a run keeps its files."""
        return self.folder / f"{RUN}{number:06d}"

    def clear_leftovers(self, manifest: Manifest) -> None:
        """Remove what a backup that did not end has left, and runs that are no longer needed."""
        for path in leftovers(self.folder, manifest):
            shutil.rmtree(path, ignore_errors=True)

    def write(self, manifest: Manifest) -> None:
        """Replace the manifest: from here on the backup is the new one."""
        manifests.write(self.path, manifest)


def leftovers(folder: Path, manifest: Manifest) -> list[Path]:
    """Folders of runs that no manifest counts: a backup was interrupted before its manifest was written, or after."""
    if not folder.is_dir():
        return []
    runs = (path for path in folder.iterdir() if path.name.startswith(RUN) and path.name[len(RUN) :].isdecimal())
    return [path for path in runs if int(path.name[len(RUN) :]) not in manifest.runs]


class BackupFolder:
    """The folder that ``--to`` names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self) -> Generator[None]:
        """Make the folder, and keep others from writing to it. Raises Conflict when somebody does, InvalidInput."""
        try:
            self._require_ours()
            private_folder(self.path)
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise storage_error(error, f"making {self.path}") from error
        try:
            _lock(descriptor, fcntl.LOCK_EX, f"{self.path} is in use by another backup or restore; wait until it ends")
            self._make()
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Keep backups from changing the folder. Raises NotFound when it holds none, Conflict while one is made."""
        if not (self.path / STORES).is_file():
            raise NotFound(f"{self.path} holds no backup of kgserve: there is no {STORES} in it")
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY)
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
        path = self.path / STORES
        try:
            found = manifests.read(path, StoreNames)
        except FileNotFoundError:
            raise BackupDamaged(f"{path}: it is missing") from None
        try:
            return [check_store_name(name) for name in found.stores]
        except InvalidInput as error:
            raise BackupDamaged(f"{path}: {error.message}") from None

    def store(self, name: str) -> StoreBackup:
        """The backup of a store, whether it is there or not."""
        return StoreBackup(self.path / FOLDER / name, name)

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
        if name in names:
            return
        try:
            sync_folder(self.path / FOLDER)
            manifests.write(self.path / STORES, StoreNames(FORMAT, sorted([*names, name])))
        except OSError as error:
            raise storage_error(error, f"writing {self.path / STORES}") from error

    def _require_ours(self) -> None:
        if not self.path.is_dir() or (self.path / STORES).exists():
            return
        if any(each.name not in {LOCK, FOLDER, STORES, f"{STORES}.new"} for each in self.path.iterdir()):
            raise InvalidInput(f"{self.path} holds other files and no backup; choose an empty or a new folder")

    def _make(self) -> None:
        """Only under the lock: of two first backups the later one must not empty the list of the other."""
        try:
            private_folder(self.path / FOLDER)
            self._close_to_others()
            if not (self.path / STORES).exists():
                manifests.write(self.path / STORES, StoreNames(FORMAT))
                sync_folder(self.path.parent)
        except OSError as error:
            raise storage_error(error, f"making {self.path}") from error

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
