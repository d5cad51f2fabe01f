"""Files of bootstrap snapshots in the cluster's blob storage: upload, download and deletion."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import structlog

from kgserve.cluster.backend import BlobStorage, BootstrapSnapshot, StoreOwnerEntry
from kgserve.errors import KgserveError, NotFound, ReplicatedLogCorrupt
from kgserve.platform.file_permissions import create_private_folder

log = structlog.get_logger()


def upload_snapshot_files(blobs: BlobStorage, store: str, epoch: int, paths: Mapping[str, Path]) -> dict[str, str]:
    """Upload files under unique names, and return the names by the same keys. Raises Unavailable and then keeps none.

    The names contain the owner's ``epoch``, which `delete_unreferenced_snapshot_blobs` uses.
    """
    folder = f"{_of_epoch(store, epoch)}{token_hex(8)}"
    names: dict[str, str] = {}
    try:
        for key, path in paths.items():
            names[key] = f"{folder}/{key}"
            blobs.put(names[key], path)
    except BaseException:
        with suppress(KgserveError):
            delete_files_from_blob_storage(blobs, names.values())
        raise
    return names


def download_snapshot(blobs: BlobStorage, base: BootstrapSnapshot, folder: Path) -> None:
    """Download a snapshot's files into a folder that does not exist yet.

    Raises NotFound, ReplicatedLogCorrupt, StorageFull, Unavailable.
    """
    create_private_folder(folder)
    for key, name in base.files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        blobs.get(name, path)


def is_bootstrap_snapshot_intact(blobs: BlobStorage, store: str, base: BootstrapSnapshot, scratch: Path) -> bool:
    """Return whether a snapshot's files are stored intact, by downloading them to ``scratch``. Raises Unavailable."""
    try:
        download_snapshot(blobs, base, scratch)
    except (NotFound, ReplicatedLogCorrupt) as error:
        log.error("base_damaged", store=store, sequence=base.sequence, reason=str(error))
        return False
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def delete_files_from_blob_storage(blobs: BlobStorage, names: Iterable[str]) -> None:
    """Delete files from the blob storage. Raises Unavailable."""
    for name in names:
        blobs.drop(name)


def list_snapshot_blob_names(bases: Iterable[BootstrapSnapshot]) -> set[str]:
    """Return the blob names of the files of some snapshots."""
    return {name for base in bases for name in base.files.values()}


def delete_unreferenced_snapshot_blobs(
    blobs: BlobStorage, store: str, owner: StoreOwnerEntry, kept: Collection[str], *, erase: bool = False
) -> None:
    """Delete all files of a store that owners up to this one have uploaded, except ``kept``. Raises Unavailable."""
    for name in blobs.names(_of(store)):
        if name not in kept and name < _of_epoch(store, owner.epoch + 1):
            blobs.drop(name, erase=erase)


def _of(store: str) -> str:
    return f"base/{store}/"


def _of_epoch(store: str, epoch: int) -> str:
    return f"{_of(store)}{epoch:016d}/"
