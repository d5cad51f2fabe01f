"""Backups: making them below the server's folder for backups, and making stores out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, post

from kgserve.access.caller import Caller
from kgserve.backup.stores import Ways
from kgserve.http import examples_backup as examples
from kgserve.http.body import read_json, read_json_if_any
from kgserve.http.operation import WRITE, Body, Operation, described
from kgserve.http.parameters import path_text
from kgserve.http.service import answer, caller_of, service_of
from kgserve.model.requests import check_store_name
from kgserve.model.stores import (
    BackupAnswer,
    BackupRequest,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    StoreBackupAnswer,
    StoreBackupRequest,
)
from kgserve.ops import backup as ops
from kgserve.store.pool import StorePool

_BACKUP_STORE = Operation(
    id="backupStore",
    role="admin",
    tag="backup",
    summary="Back one store up",
    request=Body(StoreBackupRequest, examples.BACKUP, optional=True),
    answer=Body(StoreBackupAnswer, examples.STORE_BACKED_UP),
    errors=(*WRITE, "not_found"),
)
_BACKUP = Operation(
    id="backup",
    role="admin",
    tag="backup",
    summary="Back stores up",
    request=Body(BackupRequest, examples.BACKUP_SOME, optional=True),
    answer=Body(BackupAnswer, examples.BACKED_UP),
    errors=(*WRITE, "not_found"),
)
_RESTORE = Operation(
    id="restoreBackup",
    role="admin",
    tag="backup",
    summary="Make stores out of a backup",
    request=Body(RestoreBackupRequest, examples.RESTORE),
    answer=Body(RestoreBackupAnswer, examples.RESTORED),
    errors=(*WRITE, "not_found"),
)


@post("/api/memory/{store:str}/backup", status_code=200, opt=described(_BACKUP_STORE))
async def backup_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Copies into a folder below the server's `backup_dir` what has come since the last backup there, or everything.

    Writes go on meanwhile. Every commit from `first` to `sequence`, and every moment from `since` to `taken_at`, can be
    restored. A backup that is interrupted leaves the former one as it was.
    """
    service, store = service_of(request), check_store_name(path_text(request, "store"))
    wanted = await read_json_if_any(request, StoreBackupRequest) or StoreBackupRequest()
    folder = ops.permitted(service.settings, wanted.to)
    ways = Ways(live=True, full=wanted.full, keep=wanted.keep)
    with ops.in_words_for(service.settings):
        done = await service.transfer(ops.backup_one, service.pool, folder, store, ways)
    return answer(msgspec.json.encode(done))


@post("/api/backup", status_code=200, opt=described(_BACKUP))
async def backup(request: Request[Any, Any, Any]) -> Response[bytes]:
    """As the backup of one store, for several, or for all that the caller sees, one after the other.

    What could not be backed up is listed as `failed` with the reason; its former backup is as it was.
    """
    service, caller = service_of(request), caller_of(request)
    wanted = await read_json_if_any(request, BackupRequest) or BackupRequest()
    folder = ops.permitted(service.settings, wanted.to)
    for name in wanted.stores or ():
        caller.require_store(name)
    ways = Ways(live=True, full=wanted.full, keep=wanted.keep)
    with ops.in_words_for(service.settings):
        done = await service.transfer(_backup, service.pool, caller, wanted, ops.BackupTo(folder, ways))
    return answer(msgspec.json.encode(done))


@post("/api/restore", status_code=200, opt=described(_RESTORE))
async def restore(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Makes stores that must not be there yet out of a backup below the server's `backup_dir`.

    Rows, versions, times, sequence, settings and history are as they were at `until`. Listeners of all stores get
    `store_created`. Nothing is left of a store whose restore fails; those made before it stay.
    """
    service, caller = service_of(request), caller_of(request)
    wanted = await read_json(request, RestoreBackupRequest)
    if wanted.prepared is not None:
        caller.require_every_store("taking a prepared folder in")
        done = await service.transfer(ops.place, service.pool, wanted.prepared)
    else:
        folder = ops.permitted(service.settings, wanted.source)
        with ops.in_words_for(service.settings):
            done = await service.transfer(_restore, service.pool, caller, wanted, folder)
    return answer(msgspec.json.encode(done))


def _backup(pool: StorePool, caller: Caller, wanted: BackupRequest, to: ops.BackupTo) -> BackupAnswer:
    names = wanted.stores if wanted.stores is not None else [name for name in pool.names() if caller.sees(name)]
    done = ops.backup(pool, to.folder, names, to.ways)
    failed = [msgspec.structs.replace(each, error=ops.without_roots(pool.settings, each.error)) for each in done.failed]
    return msgspec.structs.replace(done, folder=wanted.to or ".", failed=failed)


def _restore(pool: StorePool, caller: Caller, wanted: RestoreBackupRequest, folder: Path) -> RestoreBackupAnswer:
    if wanted.store is not None:
        caller.require_store(wanted.store)
    found = ops.sources(folder, wanted.store, wanted.into, wanted.until, caller.sees)
    for source in found:
        caller.require_store(source.into)
    return ops.restore(pool, folder, found)
