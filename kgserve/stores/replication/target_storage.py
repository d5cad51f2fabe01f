"""Storage of a replication target: named objects that are written once, in a folder or in object storage."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from kgserve.platform.durable_files import fsync_file, fsync_folder, translate_storage_errors, write_all_bytes
from kgserve.platform.file_permissions import create_private_folder

_STAGING_FOLDER = "staging"


class TargetObjectExists(Exception):
    """The object to create exists already."""


class TargetStorage(Protocol):
    """Named objects. Creating one is atomic: of several writers, exactly one succeeds. All raise Unavailable."""

    url: str

    def create(self, key: str, content: bytes) -> None:
        """Create an object durably. Raises TargetObjectExists and StorageFull."""
        ...

    def upload(self, key: str, path: Path) -> None:
        """Create an object from a file durably, replacing one that exists. Raises StorageFull."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        ...

    def download(self, key: str, path: Path) -> bool:
        """Write an object to a new file. Return False if it does not exist. Raises StorageFull."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Return the keys of all objects directly or indirectly below ``prefix``, which ends with a slash, sorted."""
        ...

    def delete_unfinished(self) -> None:
        """Delete what killed processes left of objects that they had not finished."""


def create_or_confirm_object(storage: TargetStorage, key: str, content: bytes) -> bool:
    """Create an object, or confirm that an attempt did so whose answer was lost. Return False for other content.

    Raises StorageFull and Unavailable.
    """
    try:
        storage.create(key, content)
    except TargetObjectExists:
        return storage.read(key) == content
    return True


class FolderTargetStorage(TargetStorage):
    """Target in a folder. Objects are synced before they get their name, by a link that fails if the name is taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)
        self._numbers = count()

    @override
    def create(self, key: str, content: bytes) -> None:
        with translate_storage_errors(f"writing {self.folder / key}"):
            staged = self._stage()
            try:
                descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    write_all_bytes(descriptor, content)
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
                self._name(staged, key, replace=False)
            finally:
                staged.unlink(missing_ok=True)

    @override
    def upload(self, key: str, path: Path) -> None:
        with translate_storage_errors(f"writing {self.folder / key}"):
            staged = self._stage()
            try:
                shutil.copyfile(path, staged)
                fsync_file(staged)
                self._name(staged, key, replace=True)
            finally:
                staged.unlink(missing_ok=True)

    def _stage(self) -> Path:
        """Return a path for an object that has no name yet."""
        folder = self.folder / _STAGING_FOLDER
        if not folder.is_dir():
            create_private_folder(folder)
        return folder / f"{os.getpid()}-{time.time_ns()}-{next(self._numbers)}"

    def _name(self, staged: Path, key: str, *, replace: bool) -> None:
        path = self.folder / key
        if not path.parent.is_dir():
            create_private_folder(path.parent)
            for parent in path.parent.parents:
                fsync_folder(parent)
                if parent == self.folder:
                    break
        if replace:
            staged.replace(path)
        else:
            try:
                path.hardlink_to(staged)
            except FileExistsError as error:
                raise TargetObjectExists(key) from error
        fsync_folder(path.parent)

    @override
    def read(self, key: str) -> bytes | None:
        with translate_storage_errors(f"reading {self.folder / key}"):
            try:
                return (self.folder / key).read_bytes()
            except FileNotFoundError:
                return None

    @override
    def download(self, key: str, path: Path) -> bool:
        with translate_storage_errors(f"copying {self.folder / key}"):
            try:
                shutil.copyfile(self.folder / key, path)
            except FileNotFoundError:
                if not path.parent.is_dir():
                    raise
                return False
        return True

    @override
    def delete(self, keys: Iterable[str]) -> None:
        with translate_storage_errors(f"deleting from {self.folder}"):
            for key in keys:
                path = self.folder / key
                path.unlink(missing_ok=True)
                if path.parent.parent != self.folder:
                    with suppress(OSError):  # not empty
                        path.parent.rmdir()

    @override
    def names(self, prefix: str) -> list[str]:
        root = self.folder / prefix
        with translate_storage_errors(f"listing {root}"):
            return sorted(
                str((Path(folder) / name).relative_to(self.folder))
                for folder, _, names in os.walk(root)
                for name in names
            )

    @override
    def delete_unfinished(self) -> None:
        with translate_storage_errors(f"deleting from {self.folder}"):
            for path in (self.folder / _STAGING_FOLDER).glob("*"):
                path.unlink(missing_ok=True)
