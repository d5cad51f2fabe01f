"""What a client can ask about backups."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.client.wire import Call, Route
from kgserve.model.stores import (
    BackupAnswer,
    BackupRequest,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    StoreBackupAnswer,
    StoreBackupRequest,
)

BACKUP = Route("POST", "/api/memory/{store}/backup", StoreBackupAnswer)
BACKUP_STORES = Route("POST", "/api/backup", BackupAnswer)
RESTORE = Route("POST", "/api/restore", RestoreBackupAnswer)


def backup(store: str, to: str = "", *, full: bool = False, keep: int | None = None) -> Call[StoreBackupAnswer]:
    """Copy what has come since the last backup into a folder: one below the server's own, or any one in a library.

    ``full`` copies everything; of the bases that restoring can begin at, the newest ``keep`` stay. Raises Forbidden for
    a folder that lies elsewhere, Conflict while another backup is made there.
    """
    body = StoreBackupRequest(to=to, full=full, keep=keep)
    return BACKUP.call({"store": store}, body=body, wait=None)


def backup_stores(
    to: str = "", *, stores: Iterable[str] | None = None, full: bool = False, keep: int | None = None
) -> Call[BackupAnswer]:
    """The same for several stores, or for all; ``failed`` of the answer names those that could not be backed up."""
    names = None if stores is None else list(stores)
    return BACKUP_STORES.call({}, body=BackupRequest(stores=names, to=to, full=full, keep=keep), wait=None)


def restore_backup(
    source: str = "", *, store: str | None = None, into: str | None = None, until: str | int | None = None
) -> Call[RestoreBackupAnswer]:
    """Make a store, or all stores of a backup, out of a folder, as of a sequence or an RFC 3339 time, ``until``.

    ``into`` is another name for it. Raises Conflict for a store that exists, and for a backup that is damaged.
    """
    moment = None if until is None else str(until)
    body = RestoreBackupRequest(source=source, store=store, into=into, until=moment)
    return RESTORE.call({}, body=body, wait=None, idempotent=False)
