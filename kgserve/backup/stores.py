"""Backing up several stores into one folder, and telling what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import structlog

from kgserve.backup.folder import BackupFolder
from kgserve.backup.manifest import Base
from kgserve.backup.taking import Taken, Taker
from kgserve.backup.verifying import Verified
from kgserve.errors import InvalidInput, KgserveError
from kgserve.model.stores import BackupAnswer, BackupFailure, BaseAnswer, StoreBackupAnswer, VerifiedStore
from kgserve.model.times import format_time
from kgserve.store.layout import Layout

log = structlog.get_logger()


class Wanted(msgspec.Struct, frozen=True):
    """A store to back up: where its files are, and how far it had come, asked for when its turn has come."""

    layout: Layout
    mark: Callable[[], int]


class Ways(msgspec.Struct, frozen=True):
    """How to back up: everything or what is new, how many bases to keep, and whether a server is there."""

    live: bool
    full: bool = False
    keep: int | None = None


def _silent(_name: str) -> None:
    """Nobody watches."""


def back_up(
    folder: BackupFolder, stores: Iterable[Wanted], ways: Ways, begins: Callable[[str], None] = _silent
) -> BackupAnswer:
    """Back stores up, one after the other; a failure of one does not keep the others from it.

    Raises Conflict when another backup is made in the folder, InvalidInput when it holds something else or lies in
    the data folder, StorageFull.
    """
    done: list[StoreBackupAnswer] = []
    failed: list[BackupFailure] = []
    stores = list(stores)
    for wanted in stores:
        _require_outside(folder, wanted.layout)
    with folder.writing():
        for wanted in stores:
            name = wanted.layout.name
            begins(name)
            try:
                done.append(_one(folder, wanted, ways))
            except KgserveError as error:
                failed.append(BackupFailure(store=name, error=error.message))
    copied = sum(each.bytes_copied for each in done)
    return BackupAnswer(folder=str(folder.path), stores=done, failed=failed, bytes_copied=copied)


def back_up_one(folder: BackupFolder, wanted: Wanted, ways: Ways) -> StoreBackupAnswer:
    """Back one store up. Raises what `back_up` raises, and what stands in the store's way."""
    _require_outside(folder, wanted.layout)
    with folder.writing():
        return _one(folder, wanted, ways)


def _require_outside(folder: BackupFolder, layout: Layout) -> None:
    """A backup among the stores is gone with them, and with a store's name it would be in that store's way."""
    data = layout.root.parent.resolve()
    if folder.path.resolve().is_relative_to(data):
        raise InvalidInput(
            f"{folder.path} lies in the data folder {data}; choose a folder outside, best on another disk"
        )


def _one(folder: BackupFolder, wanted: Wanted, ways: Ways) -> StoreBackupAnswer:
    started = time.perf_counter()
    name = wanted.layout.name
    taker = Taker(wanted.layout, folder.store(name), wanted.mark, live=ways.live)
    try:
        taken = taker.take(full=ways.full, keep=ways.keep)
    except KgserveError as error:
        log.warning("backup_failed", store=name, error=error.message)
        raise
    folder.count(name)
    answer = _answer(name, taken, (time.perf_counter() - started) * 1000)
    log.info("backup_done", store=name, sequence=answer.sequence, bytes=answer.bytes_copied, ms=answer.took_ms)
    return answer


def _answer(name: str, taken: Taken, milliseconds: float) -> StoreBackupAnswer:
    base, mark = taken.base, taken.base.last
    return StoreBackupAnswer(
        store=name,
        sequence=mark.sequence,
        first=base.first,
        since=format_time(base.since),
        taken_at=format_time(mark.taken),
        digest=mark.digest,
        nodes=mark.nodes,
        edges=mark.edges,
        new_base=taken.new_base,
        bytes_copied=taken.bytes_copied,
        bytes_total=taken.bytes_total,
        bases=taken.bases,
        took_ms=round(milliseconds, 1),
    )


def told(found: Verified) -> VerifiedStore:
    """What was found in a backup, for people and programs."""
    return VerifiedStore(
        store=found.store,
        ok=not found.faults,
        bases=[_base(base, ok=ok) for base, ok in zip(found.manifest.bases, found.whole, strict=True)],
        faults=found.faults,
        leftovers=found.leftovers,
    )


def _base(base: Base, *, ok: bool) -> BaseAnswer:
    return BaseAnswer(
        ok=ok,
        first=base.first,
        last=base.last.sequence,
        since=format_time(base.since),
        until=format_time(base.last.taken),
        runs=len(base.runs),
        bytes=sum(file.bytes for file in base.files),
    )
