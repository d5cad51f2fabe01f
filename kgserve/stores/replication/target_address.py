"""Addresses of replication targets: paths, and URLs of object storage."""

from __future__ import annotations

from pathlib import Path

from kgserve.errors import InvalidInput
from kgserve.stores.backup.folder_layout import BACKUP_STORES_FILE
from kgserve.stores.replication.target_storage import FolderTargetStorage, TargetStorage


def open_target_storage(target: str) -> TargetStorage:
    """Return the storage that a path or URL names. Raises InvalidInput."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        return FolderTargetStorage(Path(target))
    if scheme == "file":
        return FolderTargetStorage(Path(rest))
    try:
        from kgserve.stores.replication.object_storage import ObjectTargetStorage  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{target} is object storage, which needs an optional dependency: pip install 'kgserve[object-storage]'"
        ) from error
    return ObjectTargetStorage(target)


def require_target_outside(target: str, data_dir: Path) -> None:
    """Raise InvalidInput for a folder within the data folder, which would be lost with it, or for a backup folder."""
    storage = open_target_storage(target)
    if not isinstance(storage, FolderTargetStorage):
        return
    if storage.folder.resolve().is_relative_to(data_dir.resolve()):
        raise InvalidInput(f"{target} lies in the data folder {data_dir}; choose a target on another disk or machine")
    if (storage.folder / BACKUP_STORES_FILE).exists():
        raise InvalidInput(f"{target} is a folder of `kgserve backup`; choose another folder for replication")
