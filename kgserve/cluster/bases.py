"""Files of all nodes, from which a store's log is read on: put, fetched, and let go of."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import structlog

from kgserve.cluster.protocols import Blobs, BootstrapSnapshot, Owner
from kgserve.errors import KgserveError, NotFound, ReplicatedLogCorrupt
from kgserve.platform.permissions import private_folder

log = structlog.get_logger()


def put_files(blobs: Blobs, store: str, epoch: int, paths: Mapping[str, Path]) -> dict[str, str]:
    """Put files under names that nobody else uses, by the same keys. Raises Unavailable, and then none is kept.

    The names say whose they are, an owner's of an ``epoch``: see `sweep`.
    """
    turn = f"{_of_epoch(store, epoch)}{token_hex(8)}"
    names: dict[str, str] = {}
    try:
        for key, path in paths.items():
            names[key] = f"{turn}/{key}"
            blobs.put(names[key], path)
    except BaseException:
        with suppress(KgserveError):
            drop_files(blobs, names.values())
        raise
    return names


def fetch(blobs: Blobs, base: BootstrapSnapshot, folder: Path) -> None:
    """Write a base's files into a folder that is not there yet. Raises NotFound, LogTorn, StorageFull, Unavailable."""
    private_folder(folder)
    for key, name in base.files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        blobs.get(name, path)


def is_whole(blobs: Blobs, store: str, base: BootstrapSnapshot, scratch: Path) -> bool:
    """Whether a base's files are there as they were put; they are read into ``scratch``. Raises Unavailable."""
    try:
        fetch(blobs, base, scratch)
    except (NotFound, ReplicatedLogCorrupt) as error:
        log.error("base_damaged", store=store, sequence=base.sequence, reason=str(error))
        return False
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def drop_files(blobs: Blobs, names: Iterable[str]) -> None:
    """Let go of files. Raises Unavailable."""
    for name in names:
        blobs.drop(name)


def names_of(bases: Iterable[BootstrapSnapshot]) -> set[str]:
    """What the files of some bases are kept as."""
    return {name for base in bases for name in base.files.values()}


def sweep(blobs: Blobs, store: str, owner: Owner, kept: Collection[str], *, erase: bool = False) -> None:
    """Let go of all files of a store but some, as far as owners up to this one have put them. Raises Unavailable."""
    for name in blobs.names(_of(store)):
        if name not in kept and name < _of_epoch(store, owner.epoch + 1):
            blobs.drop(name, erase=erase)


def _of(store: str) -> str:
    return f"base/{store}/"


def _of_epoch(store: str, epoch: int) -> str:
    return f"{_of(store)}{epoch:016d}/"
