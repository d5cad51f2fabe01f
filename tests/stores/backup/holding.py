"""Helpers for backups with all kinds of content: a snapshot, a history, several runs and segments."""

from __future__ import annotations

from pathlib import Path

from kgserve.admin import backup as ops
from kgserve.errors import KgserveError
from kgserve.projections.history_follower import HistoryWorker
from kgserve.stores.backup.api import StoreBackupAnswer
from kgserve.stores.backup.create import BackupOptions
from kgserve.stores.backup.folder_layout import BackupFolder, BackupManifest
from kgserve.stores.backup.restore import verify_backup
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import NAME, PATIENCE, batch, settings, write

LONG = "a long text " * 400


def back_up(
    pool: StorePool, folder: Path, *, live: bool = True, full: bool = False, keep: int | None = None
) -> StoreBackupAnswer:
    """Make a backup; unless ``live``, it does not wait for a history."""
    return ops.back_up_single_store(pool, folder, NAME, BackupOptions(live=live, full=full, keep=keep))


def manifest(folder: Path, name: str = NAME) -> BackupManifest:
    return BackupFolder(folder).store(name).read()


def faults(folder: Path) -> list[str]:
    """Return all faults of a backup, including those that prevent verification."""
    try:
        return [fault for each in verify_backup(BackupFolder(folder)) for fault in each.faults]
    except KgserveError as error:
        return [error.message]


def files(folder: Path) -> list[Path]:
    """Return the non-empty files of a backup."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def restored(pool: StorePool, folder: Path, until: str | None = None, into: str = "again") -> OpenStore:
    """Restore a store from a backup, and return it open; the pool closes it."""
    ops.restore_stores(pool, folder, [ops.StoreRestoreSpec(NAME, into, until)])
    return pool.acquire(into)


def make(root: Path) -> Path:
    """Create a backup with all kinds of files in two runs. The store is closed."""
    folder = root / "backup"
    historian = HistoryWorker()
    with StorePool(settings(root / "data", journal_segment_mb=1, journal_retention_mb=0)) as pool:
        pool.companions.append(historian)
        with pool.lease(NAME, create=True) as store:
            for turn in range(3):
                write(store, *(batch(*(f"n{n}" for n in range(80)), content=f"{turn} {k} {LONG}") for k in range(2)))
                write(store, batch("a", "b", edges=[("a", "b", "knows")], content=f"{turn}"))
                assert historian.of(store).wait(store.state.sequence, PATIENCE)
                store.compactor.run()
            follower = historian.of(store)
            follower.prune(2)
            back_up(pool, folder)
            write(store, *(batch(*(f"m{n}" for n in range(80)), content=f"{turn} {LONG}") for turn in range(4)))
            back_up(pool, folder)
            write(store, batch("last"))
            back_up(pool, folder)
    historian.close()
    return folder
