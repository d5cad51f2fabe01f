"""Bases of replicated stores: backups of one store, of which the files are uploaded to a target or fetched from it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from kgserve.errors import BackupDamaged, InvalidInput, KgserveError, NotFound, Unavailable
from kgserve.platform.durable_files import fsync_file, translate_storage_errors
from kgserve.platform.timestamps import parse_rfc3339_timestamp
from kgserve.storage.journal.journal import list_journal_segments
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_rows_digest import format_store_rows_digest
from kgserve.storage.store_folder_layout import StoreDescription, StoreLayout, read_closed_store_state
from kgserve.stores.backup.create import BackupOptions, StoreToBackUp, back_up_store, read_history_extent
from kgserve.stores.backup.folder_layout import (
    RUN_FOLDER_PREFIX,
    BackedUpFile,
    BackupChain,
    BackupEndState,
    BackupFolder,
    BackupManifest,
    StoreBackup,
)
from kgserve.stores.replication.target_address import open_target_storage
from kgserve.stores.replication.target_log import TargetLog, make_object_key, open_target_log
from kgserve.stores.replication.target_storage import TargetStorage

PARALLEL_DOWNLOADS = 16


def read_oldest_history_sequence(layout: StoreLayout, described: StoreDescription) -> int:
    """Return the oldest commit that the history of a store can answer for; 0 without a history."""
    extent = read_history_extent(layout.history) if described.history != "none" else None
    return extent.oldest if extent else 0


def make_end_state(state: StoreState, described: StoreDescription, taken: int, history_oldest: int) -> BackupEndState:
    """Return the mark of a state that was shipped. ``taken`` is in microseconds."""
    return BackupEndState(
        sequence=state.sequence,
        time=state.time,
        taken=taken,
        digest=format_store_rows_digest(state.digest),
        nodes=state.nodes,
        edges=state.edges,
        settings=described,
        history_oldest=min(history_oldest, state.sequence),
        is_empty=state.sequence == 0,
    )


def _read_durable_sequence(layout: StoreLayout) -> int:
    """Return the last sequence in a store's files, once it is durable. The store may be open in another process."""
    for segment in list_journal_segments(layout.journal)[-1:]:
        fsync_file(segment.path)
    return read_closed_store_state(layout).sequence


def build_store_base(storage: TargetStorage, layout: StoreLayout, run: int, closing: threading.Event) -> BackupChain:
    """Back up a store as it is, upload the files, and return the base that they are.

    Raises Unavailable, also once ``closing`` is set, and the errors of `back_up_store`.
    """
    with TemporaryDirectory(prefix="kgserve-base-") as scratch:
        folder = BackupFolder(Path(scratch))
        wanted = StoreToBackUp(layout, partial(_read_durable_sequence, layout))
        back_up_store(folder, wanted, BackupOptions(live=True, full=True))
        backup = folder.store(layout.name)
        made = backup.read().bases[-1]
        base = _rename_run(made, run)
        for source, target in zip(made.files, base.files, strict=True):
            if closing.is_set():
                raise Unavailable("replication is stopping")
            storage.upload(make_object_key(layout.name, target), backup.folder / source.path)
    return base


def _rename_run(base: BackupChain, run: int) -> BackupChain:
    """Return a base of one run with another number for that run, and in the paths of its files."""
    replace = msgspec.structs.replace

    def rename(file: BackedUpFile) -> BackedUpFile:
        return replace(file, path=f"{RUN_FOLDER_PREFIX}{run:06d}/{file.path.partition('/')[2]}")

    runs = [replace(base.runs[0], number=run, pieces=[replace(p, file=rename(p.file)) for p in base.pieces])]
    rows = base.snapshot and replace(base.snapshot, files=[rename(file) for file in base.snapshot.files])
    history = base.history and replace(base.history, file=rename(base.history.file))
    return replace(base, runs=runs, snapshot=rows, history=history)


def keep_newest_base(manifest: BackupManifest) -> BackupManifest:
    """Return a manifest with its newest base only."""
    return msgspec.structs.replace(manifest, bases=manifest.bases[-1:])


def _keep_base_for_time(manifest: BackupManifest, time: int, *, is_dropped: bool) -> BackupManifest | None:
    """Return a manifest with the base that covers a time in microseconds; None if the store did not exist then."""
    bases = manifest.bases
    covering = [base for base in bases if base.since <= time <= base.last.taken]
    if not covering and (time < bases[0].created_at or (is_dropped and bases[-1].last.taken < time)):
        return None
    return msgspec.structs.replace(manifest, bases=covering[-1:] or bases)


def download_target(named: str, folder: BackupFolder, store: str | None, until: str | None, *, every: bool) -> None:
    """Download a target, or one store of it, into an empty backup folder, as far as a restore to ``until`` needs it.

    With ``every``, download all bases and dropped stores, and check that no entry of the log is missing or damaged.

    Raises NotFound, BackupDamaged, InvalidInput, StorageFull and Unavailable.
    """
    target = open_target_log(open_target_storage(named))
    if every:
        target.verify_entries()
    manifests: list[BackupManifest] = []
    for name in sorted(target.catalog.stores) if store is None else [store]:
        manifest = target.catalog.covered_manifest(name)
        if every or (until is not None and until.isdecimal()):
            manifests.append(manifest)
        elif until is not None:
            is_dropped = target.catalog.stores[name].is_dropped
            chosen = _keep_base_for_time(manifest, _parse_until(until), is_dropped=is_dropped)
            if chosen is not None or store is not None:
                manifests.append(chosen or manifest)
        elif store is not None or not target.catalog.stores[name].is_dropped:
            manifests.append(keep_newest_base(manifest))
    if not manifests:
        raise NotFound(f"{named} had no stores at that time")
    download_stores(target, folder, manifests)


def _parse_until(until: str) -> int:
    try:
        return parse_rfc3339_timestamp(until)
    except ValueError as error:
        raise InvalidInput(f"`until` must be a sequence or an RFC 3339 time, not {until!r}: {error}") from None


def download_stores(target: TargetLog, folder: BackupFolder, manifests: Iterable[BackupManifest]) -> None:
    """Download stores of a target into a backup folder. A restore or verification checks sizes and checksums.

    Raises BackupDamaged for a missing object, StorageFull and Unavailable.
    """
    with folder.writing(), ThreadPoolExecutor(PARALLEL_DOWNLOADS, thread_name_prefix="download") as threads:
        for manifest in manifests:
            backup = folder.store(manifest.store)
            with translate_storage_errors(f"writing {backup.folder}"):
                for parent in {(backup.folder / file.path).parent for base in manifest.bases for file in base.files}:
                    parent.mkdir(parents=True, exist_ok=True)
                backup.folder.mkdir(parents=True, exist_ok=True)
            files = [file for base in manifest.bases for file in base.files]
            for fault in threads.map(partial(_download, target, backup), files):
                if fault is not None:
                    raise fault
            backup.write(manifest)
            folder.count(manifest.store)


def _download(target: TargetLog, backup: StoreBackup, file: BackedUpFile) -> KgserveError | None:
    key = make_object_key(backup.store, file)
    if target.storage.download(key, backup.folder / file.path):
        return None
    return BackupDamaged(f"{target.storage.url}/{key}: missing")
