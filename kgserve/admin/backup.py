"""Back up stores, and restore stores from backups."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from kgserve.errors import BackupDamaged, Conflict, Forbidden, InvalidInput, KgserveError, NoStore, NotFound
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.platform.settings import Settings
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_incarnations import begin_store_incarnation
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_rows_digest import format_store_rows_digest, parse_store_rows_digest
from kgserve.storage.store_folder_layout import STORE_FOLDER_SUFFIX, read_closed_store_state
from kgserve.stores.backup.api import (
    BackupAnswer,
    BackupRequest,
    PreparedStoreFolder,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    RestoredStore,
    StoreBackupAnswer,
    StoreBackupRequest,
)
from kgserve.stores.backup.create import BackupOptions, StoreToBackUp, back_up_all, back_up_store
from kgserve.stores.backup.folder_layout import (
    BACKUP_STORES_FILE,
    BACKUP_STORES_FOLDER,
    BackupFolder,
    BackupManifest,
    StoreBackup,
)
from kgserve.stores.backup.restore import find_restore_point, restore_store
from kgserve.stores.scoped_stores import StoreRegistry, replica_of_any_age

log = structlog.get_logger()

MAX_PATH_PART_BYTES = 255
_STAGING_FOLDER_NAME = re.compile(r"\.dropped-[A-Za-z0-9._-]{1,64}-[0-9]+")


class StoreRestoreSpec(msgspec.Struct, frozen=True):
    """Which store of a backup to restore, under which name, and optionally up to which sequence or time."""

    store: str
    into: str
    until: str | None = None


def backup_store(graph: StoreHandle, request: StoreBackupRequest) -> StoreBackupAnswer:
    """Back up a store into a folder below the server's `backup_dir`.

    Copies the changes since the last backup there, or everything. Writes continue during the backup. Every commit from
    `first` to `sequence`, and every time from `since` to `taken_at`, can be restored. An interrupted backup leaves the
    previous one unchanged. When kgserve is used as a library, any folder is allowed.

    Raises NotFound, Forbidden for a folder outside of `backup_dir`, Conflict while another backup uses the folder.
    """
    name = check_store_name(graph.name)
    with _folder(graph.graphs, request.to) as folder:
        return back_up_single_store(
            graph.pool, folder, name, BackupOptions(live=True, full=request.full, keep=request.keep)
        )


def backup_stores(graphs: CallerStoreHandles, request: BackupRequest) -> BackupAnswer:
    """Back up several stores, or all that the caller may read, one after the other.

    Stores that could not be backed up are listed in `failed` with the reason; their previous backups are unchanged.
    """
    pool = graphs.pool
    for name in request.stores or ():
        graphs.caller.require_store(name)
    with _folder(graphs, request.to) as folder:
        names = filter(graphs.caller.can_access, pool.names()) if request.stores is None else request.stores
        done = back_up_stores_to_folder(
            pool, folder, names, BackupOptions(live=True, full=request.full, keep=request.keep)
        )
    if not graphs.confined:
        return done
    failed = [
        msgspec.structs.replace(each, error=make_server_paths_in_text_relative(pool.settings, each.error))
        for each in done.failed
    ]
    return msgspec.structs.replace(done, folder=request.to or ".", failed=failed)


def restore_backup(graphs: CallerStoreHandles, request: RestoreBackupRequest) -> RestoreBackupAnswer:
    """Create stores from a backup below the server's `backup_dir`; when kgserve is used as a library, from any folder.

    The stores must not exist. Rows, versions, times, sequence, settings and history are as they were at `until`.
    Listeners of all stores get `store_created`. If the restore of a store fails, that store is removed; stores restored
    before it are kept.

    Raises NotFound, and Conflict for a store that exists, and for a backup that is damaged.
    """
    caller = graphs.caller
    if request.prepared is not None:
        caller.require_every_store("restoring a prepared folder")
        return adopt_prepared_store_folder(graphs.pool, request.prepared)
    with _folder(graphs, request.source) as folder:
        if request.store is not None:
            caller.require_store(request.store)
        found = select_backup_stores_to_restore(folder, request.store, request.into, request.until, caller.can_access)
        for source in found:
            caller.require_store(source.into)
        return restore_stores(graphs.pool, folder, found)


@contextmanager
def _folder(graphs: CallerStoreHandles, named: str) -> Generator[Path]:
    """Yield the folder that a request names; errors do not reveal where the server's own folders are."""
    if graphs.confined:
        folder = resolve_backup_folder(graphs.settings, named)
        with hide_server_paths_in_errors(graphs.settings):
            yield folder
    elif named:
        yield Path(named)
    else:
        raise InvalidInput("Name the folder of the backup: without a server no default folder is set.")


def resolve_backup_folder(settings: Settings, named: str) -> Path:
    """Return the folder below ``backup_dir`` that a caller names.

    Paths from callers are read and written with the server's rights, and are therefore restricted to that folder.

    Raises Forbidden if the path lies outside of it or no backup folder is set, InvalidInput.
    """
    if settings.backup_dir is None:
        raise Forbidden(
            "This server does not make or restore backups for callers. Start it with --backup-dir, or run `kgserve "
            "backup` and `kgserve restore` on its machine."
        )
    root = settings.backup_dir.resolve()
    if any(len(part.encode()) > MAX_PATH_PART_BYTES for part in named.split("/")):
        raise InvalidInput(
            f"A part of this path is longer than {MAX_PATH_PART_BYTES} bytes, the limit of file systems."
        )
    try:
        path = (root / named).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{named!r} is not a valid path: {error}") from None
    if not path.is_relative_to(root):
        raise Forbidden(f"{named!r} is outside of the server's backup folder; name a folder below it")
    if any(_is_backup_content(each) for each in (path, *path.parents) if each != root and each.is_relative_to(root)):
        raise InvalidInput(f"{named!r} is within a backup; name the folder of that backup, or a separate folder")
    return path


@contextmanager
def hide_server_paths_in_errors(settings: Settings) -> Generator[None]:
    """Make paths in errors relative to the server's own folders, whose location is not revealed to callers."""
    try:
        yield
    except KgserveError as error:
        error.reword(make_server_paths_in_text_relative(settings, error.message))
        raise


def make_server_paths_in_text_relative(settings: Settings, text: str) -> str:
    """Return a text with paths below the backup and data folders made relative."""
    for root, name in ((settings.backup_dir, "the backup folder"), (settings.data_dir, "the data folder")):
        if root is not None:
            text = text.replace(f"{root.resolve()}/", "").replace(str(root.resolve()), name)
    return text


def _is_backup_content(folder: Path) -> bool:
    """Return True for the subfolder in which a backup keeps its stores."""
    return folder.name == BACKUP_STORES_FOLDER and (folder.parent / BACKUP_STORES_FILE).is_file()


def back_up_stores_to_folder(
    pool: StoreRegistry, folder: Path, names: Iterable[str], ways: BackupOptions
) -> BackupAnswer:
    """Back up stores into a folder. Blocks; neither opens stores nor delays writes."""
    return back_up_all(BackupFolder(folder), [_backup_source(pool, name) for name in names], ways)


def back_up_single_store(pool: StoreRegistry, folder: Path, name: str, ways: BackupOptions) -> StoreBackupAnswer:
    """Back up one store. Raises NotFound, JournalDamaged, StorageFull, Conflict, BackupDamaged."""
    pool.require_files(name)
    return back_up_store(BackupFolder(folder), _backup_source(pool, name), ways)


def _backup_source(pool: StoreRegistry, name: str) -> StoreToBackUp:
    return StoreToBackUp(pool.layout(name), lambda: _sequence_to_back_up(pool, name))


def _sequence_to_back_up(pool: StoreRegistry, name: str) -> int:
    if pool.placement.is_shared:
        return _shared_sequence(pool, name)
    store = pool.open_stores().get(name)
    if store is not None:
        store.accesses.flush_and_wait()
        return store.state.sequence
    layout = pool.layout(name)
    if not layout.exists:
        raise NoStore(name)
    return read_closed_store_state(layout).sequence


def _shared_sequence(pool: StoreRegistry, name: str) -> int:
    """Catch up the local files of a cluster's store; return the sequence that they reach."""
    found = pool.acquire(name, replica=replica_of_any_age())
    try:
        if found.commits.is_copy:
            # To the end of the log, which includes every commit that the owner has acknowledged.
            found.commits.catch_up(found)
        else:
            found.accesses.flush_and_wait()
        return found.state.sequence
    finally:
        pool.release(found)


def restore_stores(pool: StoreRegistry, folder: Path, sources: Iterable[StoreRestoreSpec]) -> RestoreBackupAnswer:
    """Create stores from a backup, one after the other; if one fails, those before it are kept.

    Raises Conflict, before any store is created, if one exists already, BackupDamaged, InvalidInput, NotFound.
    """
    kept, sources = BackupFolder(folder), list(sources)
    require_absent_stores(pool.data_dir, sources)
    with kept.reading():
        done = [_restore(pool, kept.there(source.store), source) for source in sources]
    return RestoreBackupAnswer(stores=done)


def require_absent_stores(data_dir: Path, sources: Iterable[StoreRestoreSpec]) -> None:
    """Raise Conflict if one of the stores to create exists already."""
    for source in sources:
        if (data_dir / f"{check_store_name(source.into)}{STORE_FOLDER_SUFFIX}").exists():
            raise _already_exists(source.into)


def _everything(_name: str) -> bool:
    return True


def select_backup_stores_to_restore(
    folder: Path, store: str | None, into: str | None, until: str | None, sees: Callable[[str], bool] = _everything
) -> list[StoreRestoreSpec]:
    """Return the requested store of a backup, or all that ``sees`` accepts. Raises NotFound, InvalidInput."""
    kept = BackupFolder(folder)
    with kept.reading():
        names = list(filter(sees, kept.names()))
        if store is not None:
            if store not in names:
                held = ", ".join(names) or "nothing"
                raise NotFound(f"{folder} holds no backup of store {store!r}; it holds {held}")
            names = [kept.there(store).store]
    if into is not None and len(names) != 1:
        raise InvalidInput(
            f"`as` requires a single store, but the backup holds {len(names)} stores; name one with `store`."
        )
    return [StoreRestoreSpec(name, into or name, until) for name in names]


def choose_store_staging_path(data_dir: Path, name: str) -> Path:
    """Return the path where a local command builds a store's folder before a running server adopts it.

    `StorePool.staging` chooses the same kind of path.
    """
    return data_dir / f".dropped-{check_store_name(name)}-{time.time_ns()}"


def restore_store_to_staging(
    data_dir: Path, aside: Path, backed_up: StoreBackup, source: StoreRestoreSpec
) -> StoreState:
    """Restore a store from a backup into a staging folder; return the state that it must open with.

    Removes the folder if that fails.
    """
    require_absent_stores(data_dir, [source])
    manifest: BackupManifest = backed_up.read()
    point = find_restore_point(backed_up, manifest, source.until)
    try:
        return restore_store(backed_up, point, aside, begin_store_incarnation(point.sequence))
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _restore(pool: StoreRegistry, backed_up: StoreBackup, source: StoreRestoreSpec) -> RestoredStore:
    started = time.perf_counter()
    aside = pool.staging(source.into)
    state = restore_store_to_staging(pool.data_dir, aside, backed_up, source)
    _place(pool, source.into, aside, state)
    return build_restored_store_answer(source, state, started)


def build_restored_store_answer(source: StoreRestoreSpec, state: StoreState, started: float) -> RestoredStore:
    """Return the answer for a restored store; ``started`` is a value of `time.perf_counter`."""
    return RestoredStore(
        store=source.into,
        source=source.store,
        sequence=state.sequence,
        digest=format_store_rows_digest(state.digest),
        nodes=state.nodes,
        edges=state.edges,
        took_ms=round((time.perf_counter() - started) * 1000, 1),
    )


def adopt_prepared_store_folder(pool: StoreRegistry, prepared: PreparedStoreFolder) -> RestoreBackupAnswer:
    """Create a store from a folder that a local command prepared in the data folder. Raises NotFound, Conflict."""
    started = time.perf_counter()
    folder = pool.data_dir / prepared.folder
    if not _STAGING_FOLDER_NAME.fullmatch(prepared.folder) or folder.is_symlink() or not (folder / "journal").is_dir():
        raise NotFound(f"the data folder has no prepared store {prepared.folder!r}")
    state = StoreState(sequence=prepared.sequence, digest=parse_store_rows_digest(prepared.digest))
    found = _place(pool, prepared.store, folder, state)
    return RestoreBackupAnswer(
        stores=[build_restored_store_answer(StoreRestoreSpec(prepared.store, prepared.store), found, started)]
    )


def _place(pool: StoreRegistry, name: str, folder: Path, expected: StoreState) -> StoreState:
    try:
        pool.adopt(name, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        with pool.lease(name) as store:
            found = store.state
        # Other callers may have written to it already.
        if found.sequence < expected.sequence:
            raise BackupDamaged(f"{name!r} was restored to sequence {found.sequence}, which is not the backup's")
    except BaseException:
        pool.drop(name)
        raise
    if found.sequence > expected.sequence:
        found = msgspec.structs.replace(found, sequence=expected.sequence, digest=expected.digest)
    if found.digest != expected.digest:
        # All checksums match: a commit was planned on wrong engine rows, and the journal's rows count.
        log.error("restored_digest_differs", store=name, sequence=found.sequence)
    log.info("store_restored", store=name, sequence=found.sequence)
    return found


def _already_exists(name: str) -> Conflict:
    return Conflict(f"store {name!r} exists already and restore never replaces a store; drop it or choose another name")
