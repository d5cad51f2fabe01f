"""Backing up the stores of a pool, and making stores out of backups."""

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
from kgserve.graph.handle import Graph, Graphs
from kgserve.platform.settings import Settings
from kgserve.storage.layout import STORE_FOLDER_SUFFIX, closed_state
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.digest import from_text, to_text
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.access import Stores
from kgserve.stores.backup.api import (
    BackupAnswer,
    BackupRequest,
    PreparedStore,
    RestoreBackupAnswer,
    RestoreBackupRequest,
    RestoredStore,
    StoreBackupAnswer,
    StoreBackupRequest,
)
from kgserve.stores.backup.create import BackupOptions, BackupSource, back_up, back_up_one
from kgserve.stores.backup.folder import STORES_FILE, STORES_FOLDER, BackupFolder, BackupManifest, StoreBackup
from kgserve.stores.backup.restore import build, find_point

log = structlog.get_logger()

MAX_PATH_PART_BYTES = 255
_STAGING_FOLDER_NAME = re.compile(r"\.dropped-[A-Za-z0-9._-]{1,64}-[0-9]+")


class Source(msgspec.Struct, frozen=True):
    """What to restore: a store of a backup, under another name if that is given, as of a sequence or a time."""

    store: str
    into: str
    until: str | None = None


def backup_store(graph: Graph, request: StoreBackupRequest) -> StoreBackupAnswer:
    """Copies into a folder below the server's `backup_dir` what has come since the last backup there, or everything.

    Writes go on meanwhile. Every commit from `first` to `sequence`, and every moment from `since` to `taken_at`, can be
    restored. A backup that is interrupted leaves the former one as it was. In a library it is any folder.

    Raises NotFound, Forbidden for a folder that lies elsewhere, Conflict while another backup is made there.
    """
    name = check_store_name(graph.name)
    with _folder(graph.graphs, request.to) as folder:
        return backup_one(graph.pool, folder, name, BackupOptions(live=True, full=request.full, keep=request.keep))


def backup_stores(graphs: Graphs, request: BackupRequest) -> BackupAnswer:
    """As the backup of one store, for several, or for all that the caller sees, one after the other.

    What could not be backed up is listed as `failed` with the reason; its former backup is as it was.
    """
    pool = graphs.pool
    for name in request.stores or ():
        graphs.caller.require_store(name)
    with _folder(graphs, request.to) as folder:
        names = filter(graphs.caller.sees, pool.names()) if request.stores is None else request.stores
        done = backup(pool, folder, names, BackupOptions(live=True, full=request.full, keep=request.keep))
    if not graphs.confined:
        return done
    failed = [msgspec.structs.replace(each, error=without_roots(pool.settings, each.error)) for each in done.failed]
    return msgspec.structs.replace(done, folder=request.to or ".", failed=failed)


def restore_backup(graphs: Graphs, request: RestoreBackupRequest) -> RestoreBackupAnswer:
    """Makes stores that must not be there yet out of a backup below the server's `backup_dir`; in a library, anywhere.

    Rows, versions, times, sequence, settings and history are as they were at `until`. Listeners of all stores get
    `store_created`. Nothing is left of a store whose restore fails; those made before it stay.

    Raises NotFound, and Conflict for a store that exists, and for a backup that is damaged.
    """
    caller = graphs.caller
    if request.prepared is not None:
        caller.require_every_store("taking a prepared folder in")
        return place(graphs.pool, request.prepared)
    with _folder(graphs, request.source) as folder:
        if request.store is not None:
            caller.require_store(request.store)
        found = sources(folder, request.store, request.into, request.until, caller.sees)
        for source in found:
            caller.require_store(source.into)
        return restore(graphs.pool, folder, found)


@contextmanager
def _folder(graphs: Graphs, named: str) -> Generator[Path]:
    """The folder that a request names; what is raised says nothing of where the server's own lie."""
    if graphs.confined:
        folder = permitted(graphs.settings, named)
        with in_words_for(graphs.settings):
            yield folder
    elif named:
        yield Path(named)
    else:
        raise InvalidInput("say which folder the backup is in: within this process there is none by itself")


def permitted(settings: Settings, named: str) -> Path:
    """The folder below ``backup_dir`` that a caller names. Raises Forbidden when it lies elsewhere, InvalidInput.

    A path that somebody sends is written to and read from with the rights of the server, hence only below a folder
    that whoever runs it has set aside.
    """
    if settings.backup_dir is None:
        raise Forbidden(
            "this server makes and reads no backups for its callers: start it with --backup-dir, or use `kgserve "
            "backup` and `kgserve restore` on its machine"
        )
    root = settings.backup_dir.resolve()
    if any(len(part.encode()) > MAX_PATH_PART_BYTES for part in named.split("/")):
        raise InvalidInput(
            f"a part of this path is longer than {MAX_PATH_PART_BYTES} bytes, which no file system takes"
        )
    try:
        path = (root / named).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{named!r} is no path: {error}") from None
    if not path.is_relative_to(root):
        raise Forbidden(f"{named!r} lies outside of the server's folder for backups; name a folder below it")
    if any(_is_inside(each) for each in (path, *path.parents) if each != root and each.is_relative_to(root)):
        raise InvalidInput(f"{named!r} lies within a backup; name the folder of that backup, or one beside it")
    return path


@contextmanager
def in_words_for(settings: Settings) -> Generator[None]:
    """Paths in what is raised are told from the server's own folders on: where those lie is no caller's business."""
    try:
        yield
    except KgserveError as error:
        error.reword(without_roots(settings, error.message))
        raise


def without_roots(settings: Settings, text: str) -> str:
    """A text with paths below the server's folders for backups and data named from there."""
    for root, name in ((settings.backup_dir, "the folder for backups"), (settings.data_dir, "the data folder")):
        if root is not None:
            text = text.replace(f"{root.resolve()}/", "").replace(str(root.resolve()), name)
    return text


def _is_inside(folder: Path) -> bool:
    """Whether a folder is where a backup keeps its stores, and nobody else anything."""
    return folder.name == STORES_FOLDER and (folder.parent / STORES_FILE).is_file()


def backup(pool: Stores, folder: Path, names: Iterable[str], ways: BackupOptions) -> BackupAnswer:
    """Back stores up into a folder. Blocks; neither opens a store nor holds a write up."""
    return back_up(BackupFolder(folder), [_wanted(pool, name) for name in names], ways)


def backup_one(pool: Stores, folder: Path, name: str, ways: BackupOptions) -> StoreBackupAnswer:
    """Back one store up. Raises what prevents it: NotFound, JournalDamaged, StorageFull, Conflict, BackupDamaged."""
    pool.require_files(name)
    return back_up_one(BackupFolder(folder), _wanted(pool, name), ways)


def _wanted(pool: Stores, name: str) -> BackupSource:
    return BackupSource(pool.layout(name), lambda: _mark(pool, name))


def _mark(pool: Stores, name: str) -> int:
    if pool.placement.is_shared:
        return _shared_mark(pool, name)
    store = pool.open_stores().get(name)
    if store is not None:
        store.accesses.settle()
        return store.state.sequence
    layout = pool.layout(name)
    if not layout.exists:
        raise NoStore(name)
    return closed_state(layout).sequence


def _shared_mark(pool: Stores, name: str) -> int:
    """Bring the files of a cluster's store on this node up to date; return the sequence that they reach."""
    found = pool.acquire(name, at_least=0)
    try:
        if found.commits.is_copy:
            # To the end of the log, which has every commit that the owner has acknowledged.
            found.commits.catch_up(found)
        else:
            found.accesses.settle()
        return found.state.sequence
    finally:
        pool.release(found)


def restore(pool: Stores, folder: Path, sources: Iterable[Source]) -> RestoreBackupAnswer:
    """Make stores out of a backup, one after the other; those before one that fails stay.

    Raises Conflict, before any is made, when one exists already, BackupDamaged, InvalidInput, NotFound.
    """
    kept, sources = BackupFolder(folder), list(sources)
    require_free(pool.data_dir, sources)
    with kept.reading():
        done = [_restore(pool, kept.there(source.store), source) for source in sources]
    return RestoreBackupAnswer(stores=done)


def require_free(data_dir: Path, sources: Iterable[Source]) -> None:
    """Raises Conflict when one of the stores that are to be made exists already."""
    for source in sources:
        if (data_dir / f"{check_store_name(source.into)}{STORE_FOLDER_SUFFIX}").exists():
            raise _exists(source.into)


def _everything(_name: str) -> bool:
    return True


def sources(
    folder: Path, store: str | None, into: str | None, until: str | None, sees: Callable[[str], bool] = _everything
) -> list[Source]:
    """What is meant: one store of a backup, or all of them that somebody sees. Raises NotFound, InvalidInput."""
    kept = BackupFolder(folder)
    with kept.reading():
        names = list(filter(sees, kept.names()))
        if store is not None:
            if store not in names:
                held = ", ".join(names) or "nothing"
                raise NotFound(f"{folder} holds no backup of store {store!r}; it holds {held}")
            names = [kept.there(store).store]
    if into is not None and len(names) != 1:
        raise InvalidInput(f"as: the backup holds {len(names)} stores; say with `store` which one is to be {into!r}")
    return [Source(name, into or name, until) for name in names]


def staging(data_dir: Path, name: str) -> Path:
    """Where a local command makes a store's folder before a running server takes it; see `StorePool.staging`."""
    return data_dir / f".dropped-{check_store_name(name)}-{time.time_ns()}"


def prepare(data_dir: Path, aside: Path, backed_up: StoreBackup, source: Source) -> StoreState:
    """Make the folder of a store aside; the state that it must open with. Nothing is left of it when that fails."""
    require_free(data_dir, [source])
    manifest: BackupManifest = backed_up.read()
    point = find_point(backed_up, manifest, source.until)
    try:
        return build(backed_up, point, aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _restore(pool: Stores, backed_up: StoreBackup, source: Source) -> RestoredStore:
    started = time.perf_counter()
    aside = pool.staging(source.into)
    state = prepare(pool.data_dir, aside, backed_up, source)
    _place(pool, source.into, aside, state)
    return restored(source, state, started)


def restored(source: Source, state: StoreState, started: float) -> RestoredStore:
    """The answer for a store that is there; ``started`` is a reading of `time.perf_counter`."""
    return RestoredStore(
        store=source.into,
        source=source.store,
        sequence=state.sequence,
        digest=to_text(state.digest),
        nodes=state.nodes,
        edges=state.edges,
        took_ms=round((time.perf_counter() - started) * 1000, 1),
    )


def place(pool: Stores, prepared: PreparedStore) -> RestoreBackupAnswer:
    """Make a store of a folder that a local command has prepared beside the stores. Raises NotFound, Conflict."""
    started = time.perf_counter()
    folder = pool.data_dir / prepared.folder
    if not _STAGING_FOLDER_NAME.fullmatch(prepared.folder) or folder.is_symlink() or not (folder / "journal").is_dir():
        raise NotFound(f"there is no prepared store {prepared.folder!r} in the data folder")
    state = StoreState(sequence=prepared.sequence, digest=from_text(prepared.digest))
    found = _place(pool, prepared.store, folder, state)
    return RestoreBackupAnswer(stores=[restored(Source(prepared.store, prepared.store), found, started)])


def _place(pool: Stores, name: str, folder: Path, expected: StoreState) -> StoreState:
    try:
        pool.adopt(name, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        with pool.lease(name) as store:
            found = store.state
        if found.sequence != expected.sequence:
            raise BackupDamaged(f"what was restored as {name!r} comes to sequence {found.sequence}, not the backup's")
    except BaseException:
        pool.drop(name)
        raise
    if found.digest != expected.digest:
        # Every checksum fits: it was written on rows that the engine had wrong, and the rows of the journal count.
        log.error("restored_digest_differs", store=name, sequence=found.sequence)
    log.info("store_restored", store=name, sequence=found.sequence)
    return found


def _exists(name: str) -> Conflict:
    return Conflict(f"store {name!r} exists already; restore never replaces one: drop it first, or choose another name")
