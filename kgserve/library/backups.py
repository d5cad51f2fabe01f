"""Backups of the stores that are open in this process; their folders lie anywhere."""

# ruff: noqa: D103 - the descriptions have the words
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kgserve.backup.stores import Ways
from kgserve.errors import InvalidInput
from kgserve.model.stores import BackupAnswer, RestoreBackupAnswer, StoreBackupAnswer, StoreBackupRequest
from kgserve.ops import backup as ops
from kgserve.views.companions import Opened


def backup(opened: Opened, store: str, request: StoreBackupRequest) -> StoreBackupAnswer:
    ways = Ways(live=True, full=request.full, keep=request.keep)
    return ops.backup_one(opened.pool, _folder(request.to), store, ways)


def backup_stores(
    opened: Opened,
    to: str = "",
    *,
    stores: Iterable[str] | None = None,
    full: bool = False,
    keep: int | None = None,
) -> BackupAnswer:
    names = opened.pool.names() if stores is None else list(stores)
    return ops.backup(opened.pool, _folder(to), names, Ways(live=True, full=full, keep=keep))


def restore_backup(
    opened: Opened,
    source: str = "",
    *,
    store: str | None = None,
    into: str | None = None,
    until: str | int | None = None,
) -> RestoreBackupAnswer:
    folder = _folder(source)
    wanted = ops.sources(folder, store, into, None if until is None else str(until))
    return ops.restore(opened.pool, folder, wanted)


def _folder(named: str) -> Path:
    if not named:
        raise InvalidInput("say which folder the backup is in: within this process there is none by itself")
    return Path(named)
