"""Replicas of stores that other nodes serve: open ones for reads, and closed files for the next takeover.

One thread updates both from the stores' logs, about a second after each commit. Whatever a node needs besides the log
is uploaded after a snapshot and downloaded before opening: the snapshot, the history, which a trimmed log cannot
restore, and the embeddings, which would take hours to compute again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from kgserve.cluster.backend import BlobStorage, BootstrapSnapshot, ReplicatedLog, StoreOwnerEntry
from kgserve.cluster.bootstrap_snapshots import (
    delete_unreferenced_snapshot_blobs,
    download_snapshot,
    is_bootstrap_snapshot_intact,
    list_snapshot_blob_names,
    upload_snapshot_files,
)
from kgserve.cluster.journal_replicated_log_sync import (
    CopiedLogPosition,
    append_replicated_records,
    require_journal_not_ahead_of_log,
    verify_replicated_log_copy_position,
    write_replicated_log_copy_position,
)
from kgserve.cluster.ownership import StoreOwnership
from kgserve.cluster.replica_commit_log import LogShardFreshness, ReplicaCommitLog, read_new_log_records
from kgserve.cluster.replicated_log_records import LogPosition, PositionedReplicatedLogRecord
from kgserve.errors import (
    JournalDamaged,
    KgserveError,
    NoStore,
    NotFound,
    ReplicatedLogCorrupt,
    Unavailable,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.platform.sqlite_files import copy_sqlite_database
from kgserve.storage.current_rows_rebuild import recreate_empty_folder
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.store_folder_layout import (
    JOURNAL_FOLDER,
    StoreDescription,
    StoreLayout,
    read_last_history_sequence,
    write_store_description,
)
from kgserve.stores.local_placement import OpenStoreLookup

log = structlog.get_logger()

REPLICA_POLL_SECONDS = 1.0
REPLICA_IDLE_SECONDS = 10.0
"""Idle time after which a replica's files are synced and closed."""
_REFETCH_GROWTH_FACTOR = 2
"""Journal growth, as a multiple of the compaction threshold, after which a replica is fetched again."""


class _ReplicaFiles(NamedTuple):
    """Journal of a closed replica, its position, and the time of its last record."""

    journal: Journal
    reached: CopiedLogPosition
    used: float


class ReplicaFileStorage(Protocol):
    """Storage of the local files of replicas."""

    def open_replica_files(self, name: str) -> tuple[Journal, CopiedLogPosition]:
        """Return the journal of a closed replica, created if missing, and its position. Raises NoStore."""
        ...

    def remove(self, name: str) -> None:
        """Delete a store's files."""
        ...


class ReadReplicaUpdater:
    """Keeps all replicas of a node up to date, in a thread of its own from `begin` to `close`.

    ``copies`` is the number of nodes that keep the files of each store they do not serve.
    """

    def __init__(
        self, logs: ReplicatedLog, ownership: StoreOwnership, files: ReplicaFileStorage, copies: int, compact_mb: int
    ) -> None:
        self._log = logs
        self._ownership = ownership
        self._storage = files
        self._copies = copies
        self._max_journal_bytes = _REFETCH_GROWTH_FACTOR * compact_mb * MEBIBYTE
        self._seen: list[LogPosition] = []
        self._freshness = LogShardFreshness(ownership, logs.shards)
        self._opened: WeakValueDictionary[str, ReplicaCommitLog] = WeakValueDictionary()
        self._files: dict[str, _ReplicaFiles] = {}
        self._lock = threading.Lock()
        self._first = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, held: OpenStoreLookup) -> None:
        """Start following the logs, for the ``held`` stores and for stores whose files this node keeps."""
        self._thread = threading.Thread(target=self._run, args=(held,), name="copies", daemon=True)
        self._thread.start()

    def opened(self, journal: Journal, name: str, owner: StoreOwnerEntry) -> ReplicaCommitLog:
        """Return the commit log of a replica that is being opened, after applying all records of the log.

        Raises ReplicaBehindLogStart, ReplicatedLogCorrupt and Unavailable.
        """
        self._record_log_ends()
        date = self._freshness.date_of_now()
        reached = verify_replicated_log_copy_position(journal, name, owner)
        reached = append_replicated_records(
            journal, self._log.read(name, reached.position, self._log.end(name)), name, None, reached
        )
        require_journal_not_ahead_of_log(journal, name, reached)
        opened = ReplicaCommitLog(journal, self._log, self._ownership, name, reached, self._freshness, date)
        with self._lock:
            self._opened[name] = opened
        return opened

    def count_silent_shards(self, seconds: float) -> int:
        """Return the number of shards of the log whose leaders have not answered for ``seconds``."""
        return self._freshness.count_silent_shards(seconds)

    def close(self) -> None:
        """Stop following, and sync all files."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        for name in list(self._files):
            self.close_files(name)

    def close_files(self, name: str) -> None:
        """Close the files of a replica before it is opened or removed. The caller prevents concurrent opening."""
        with self._lock:
            files = self._files.pop(name, None)
        if files is None:
            return
        try:
            files.journal.sync()
            write_replicated_log_copy_position(files.journal.folder.parent, files.reached)
        except (KgserveError, OSError) as error:
            # The recorded position is older than the files, which are compared when opened.
            log.warning("copy_not_noted", store=name, reason=str(error))
        files.journal.close()

    def _run(self, held: OpenStoreLookup) -> None:
        while not self._closing.wait(REPLICA_POLL_SECONDS):
            try:
                self._record_log_ends()
                self.follow_logs(held)
                self._close_idle(held)
            except KgserveError as error:
                log.warning("copies_not_followed", reason=str(error))
            except Exception:
                # The thread must survive any error.
                log.exception("copies_not_followed")

    def _record_log_ends(self) -> None:
        """Record the ends of the logs before any replica is opened.

        Earlier records are read when a replica is opened, or when a later record arrives.
        """
        with self._first:
            if not self._seen:
                ends = self._log.latest()
                if any(end is None for end in ends):
                    raise Unavailable("the cluster's log does not answer", retry_after=1)
                self._seen = [end or 0 for end in ends]

    def follow_logs(self, held: OpenStoreLookup) -> None:
        """Apply the new records of all logs to the ``held`` replicas and to the files that this node keeps.

        Raises Unavailable.
        """
        date, ends = self._freshness.date_of_now(), self._log.latest()
        for shard, end in enumerate(ends):
            self._freshness.record_contact(shard, answers=end is not None)
        for shard, end in enumerate(ends):
            if end is None:
                continue
            if self._seen[shard] < end:
                self._follow(shard, held)
            if self._seen[shard] < end:
                # A server lags, or all stopped answering, so that every further shard could wait for a timeout.
                return
            self._freshness.confirm(shard, date)
        self._catch_up_unfollowed(held)

    def _catch_up_unfollowed(self, held: OpenStoreLookup) -> None:
        """Bring replicas to the end of the log that may have missed records, because they were just opened or failed.

        From then on every record of their shard is handed to them.
        """
        with self._lock:
            opened = [*self._opened.items()]
        for name, commits in opened:
            if commits.is_followed:
                continue
            with held.peek_open(name) as store:
                if store is None or store.commits is not commits or not commits.is_current:
                    continue
                try:
                    commits.catch_up(store)
                    commits.is_followed = True
                except (KgserveError, OSError) as error:
                    log.warning("copy_not_followed", store=name, reason=str(error))

    def _follow(self, shard: int, held: OpenStoreLookup) -> None:
        while not self._closing.is_set() and (found := self._log.recent(shard, self._seen[shard])):
            news: defaultdict[str, list[PositionedReplicatedLogRecord]] = defaultdict(list)
            for store, logged in found:
                news[store].append(logged)
            for store, each in news.items():
                self._take(store, each, held)
            self._seen[shard] = found[-1][1].position

    def _take(self, name: str, found: list[PositionedReplicatedLogRecord], held: OpenStoreLookup) -> None:
        try:
            with held.peek_open(name) as store:
                if store is not None:
                    if isinstance(commits := store.commits, ReplicaCommitLog):
                        if commits.is_current:
                            commits.catch_up(store, found)
                        else:
                            commits.is_followed = False
                    return
            if self._ownership.keeps_copy(name, self._copies):
                with held.reserve_if_closed(name) as is_unopened, suppress(NoStore):
                    if is_unopened:
                        self._update_closed_replica(name, found)
        except (KgserveError, OSError) as error:
            log.warning("copy_not_followed", store=name, reason=str(error))

    def _update_closed_replica(self, name: str, found: list[PositionedReplicatedLogRecord]) -> None:
        """Apply new records to the files of a closed replica. The store's gate must be held."""
        files = self._files.get(name)
        journal, reached = (files.journal, files.reached) if files else self._storage.open_replica_files(name)
        # Registered first, so that it is closed after any error.
        self._files[name] = _ReplicaFiles(journal, reached, time.monotonic())
        try:
            news = read_new_log_records(self._log, name, reached.position, found)
            reached = append_replicated_records(journal, news, name, None, reached, durable=False)
            require_journal_not_ahead_of_log(journal, name, reached)
        except BaseException:
            self.close_files(name)
            raise
        self._files[name] = _ReplicaFiles(journal, reached, time.monotonic())
        if journal.bytes > self._max_journal_bytes and self._has_newer_base(name, journal):
            self._storage.remove(name)

    def _has_newer_base(self, name: str, journal: Journal) -> bool:
        owner = self._ownership.find_cached_owner(name)
        return owner is not None and bool(owner.bases) and owner.bases[-1].sequence >= journal.oldest

    def _close_idle(self, held: OpenStoreLookup) -> None:
        before = time.monotonic() - REPLICA_IDLE_SECONDS
        for name in [name for name, each in self._files.items() if each.used < before]:
            with held.reserve_if_closed(name) as is_unopened:
                if is_unopened:
                    self.close_files(name)


EMBEDDINGS_UPLOAD_GROWTH_FACTOR = 1.25
"""Growth after which embeddings are uploaded again; the new owner computes missing ones."""
REPLICA_HISTORY_TIMEOUT_SECONDS = 5.0
"""Time to wait for a history that is behind."""
_REPLICA_HISTORY_POLL_SECONDS = 0.05


class BootstrapSnapshotUploader:
    """Bootstrap snapshots of one store that this node serves."""

    def __init__(
        self,
        layout: StoreLayout,
        settings: Settings,
        blobs: BlobStorage,
        logs: ReplicatedLog,
        ownership: StoreOwnership,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._blobs = blobs
        self._log = logs
        self._ownership = ownership
        self._turn = threading.Lock()

    @contextmanager
    def upload_snapshot(self, reached: Callable[[], CopiedLogPosition], *, alone: bool) -> Generator[None]:
        """Upload the snapshot taken within the block, and trim the log before the previous one.

        With ``alone``, nothing older than the new snapshot is kept. Raises Fenced, OutcomeUnknown, StorageFull and
        Unavailable.
        """
        since = reached()
        yield
        with self._turn:
            self._keep(since, alone=alone)

    def arrival(self, owner: StoreOwnerEntry, journal: Journal) -> Callable[[StoreOwnerEntry], StoreOwnerEntry]:
        """Return the change of the registry entry once the log of an imported store is complete.

        Uploads a snapshot if its journal begins with one. Raises JournalDamaged, StorageFull and Unavailable.
        """
        bases = owner.bases
        if journal.oldest > 1 and not bases:
            since = CopiedLogPosition(owner.begins, journal.oldest - 1, owner.begins)
            history = self._history() if self._sees(owner, since.sequence) else None
            bases = (self._put(owner, since, history, None),)
        return partial(replace, coming=False, bases=bases)

    def _keep(self, since: CopiedLogPosition, *, alone: bool) -> None:
        name, scratch = self._layout.name, self._layout.scratch / "kept"
        owner = self._ownership.require_owned(name).owner
        before = owner.bases[-1] if owner.bases else None
        if not alone and before is not None and _snapshot_of(self._layout).keys() <= before.files.keys():
            return
        base = self._put(owner, since, self._awaited_history(owner, since.sequence), None if alone else before)
        if alone and not is_bootstrap_snapshot_intact(self._blobs, name, base, scratch):
            raise ReplicatedLogCorrupt(f"the uploaded snapshot of store {name!r} is damaged in the cluster")
        first = base if alone else before
        if not alone and before is not None and not is_bootstrap_snapshot_intact(self._blobs, name, before, scratch):
            first = None
        kept = (base,) if first is None or first is base else (first, base)
        erasures = owner.erasures + 1 if alone else owner.erasures
        owner = self._ownership.update_registry_entry(name, partial(replace, bases=kept, erasures=erasures))
        if first is not None:
            self._log.trim(name, first.position, erase=alone)
        delete_unreferenced_snapshot_blobs(self._blobs, name, owner, list_snapshot_blob_names(kept), erase=alone)
        log.info("base_kept", store=name, sequence=base.sequence, trimmed=first is not None)

    def _put(
        self, owner: StoreOwnerEntry, since: CopiedLogPosition, history: Path | None, before: BootstrapSnapshot | None
    ) -> BootstrapSnapshot:
        """Upload the newest snapshot, reusing the previous embeddings if they are nearly complete."""
        paths = _snapshot_of(self._layout)
        if history is not None:
            paths[self._key(self._layout.history)] = history
        key, reused, size = self._key(self._layout.embeddings), None, 0
        if self._layout.embeddings.exists():
            size = self._layout.embeddings.stat().st_size
            if before is not None and key in before.files and size <= EMBEDDINGS_UPLOAD_GROWTH_FACTOR * before.vectors:
                reused, size = before.files[key], before.vectors
            else:
                paths[key] = self._copy_of(self._layout.embeddings)
        try:
            names = upload_snapshot_files(self._blobs, self._layout.name, owner.epoch, paths)
        finally:
            shutil.rmtree(self._layout.scratch / "base", ignore_errors=True)
        return BootstrapSnapshot(since.sequence, since.position, names | ({key: reused} if reused else {}), size)

    def _awaited_history(self, owner: StoreOwnerEntry, sequence: int) -> Path | None:
        """Return a copy of the history once it has applied a commit; None if the store keeps none.

        Raises Unavailable.
        """
        if not self._keeps_history(owner):
            return None
        until = time.monotonic() + REPLICA_HISTORY_TIMEOUT_SECONDS
        while not self._sees(owner, sequence):
            if time.monotonic() > until:
                raise Unavailable(f"the history of store {self._layout.name!r} has not caught up yet", retry_after=5)
            time.sleep(_REPLICA_HISTORY_POLL_SECONDS)
        return self._history()

    def _keeps_history(self, owner: StoreOwnerEntry) -> bool:
        return self._settings.history and decode_json(owner.description, StoreDescription).history != "none"

    def _sees(self, owner: StoreOwnerEntry, sequence: int) -> bool:
        exists = self._keeps_history(owner) and self._layout.history.exists()
        return exists and read_last_history_sequence(self._layout) >= sequence

    def _history(self) -> Path:
        return self._copy_of(self._layout.history)

    def _copy_of(self, database: Path) -> Path:
        copy = self._layout.scratch / "base" / database.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        copy_sqlite_database(database, copy)
        return copy

    def _key(self, path: Path) -> str:
        return str(path.relative_to(self._layout.root))


def _snapshot_of(layout: StoreLayout) -> dict[str, Path]:
    """Return the files of a store's newest snapshot, by path relative to the store's folder. Raises JournalDamaged."""
    snapshots = snapshot.list_journal_snapshots(layout.journal)
    if not snapshots:
        raise JournalDamaged(f"store {layout.name!r} has no snapshot")
    names = [*snapshot.verify_snapshot(snapshots[0]).files, snapshot.SNAPSHOT_MANIFEST_FILE]
    return {f"{JOURNAL_FOLDER}/{snapshots[0].name}/{name}": snapshots[0] / name for name in names}


def build_store_files_from_snapshot(
    folder: Path,
    layout: StoreLayout,
    owner: StoreOwnerEntry,
    blobs: BlobStorage,
    logs: ReplicatedLog,
    segment_mb: int,
    *,
    to_own: bool,
) -> None:
    """Build a store's files in an empty folder from the newest intact bootstrap snapshot and the log after it.

    With ``to_own``, this node must be the last owner. Raises Fenced, StorageFull, Unavailable, and ReplicatedLogCorrupt
    if no snapshot is intact.
    """
    failed = ReplicatedLogCorrupt(f"store {layout.name!r} has no snapshot in the cluster")
    for base in reversed(owner.bases):
        try:
            download_snapshot(blobs, base, recreate_empty_folder(folder))
            for each in snapshot.list_journal_snapshots(folder / JOURNAL_FOLDER):
                snapshot.verify_snapshot(each)
            write_store_description(folder, decode_json(owner.description, StoreDescription))
            journal = Journal.create(folder / JOURNAL_FOLDER, segment_mb * MEBIBYTE, base.sequence + 1)
            try:
                begun = CopiedLogPosition(base.position, base.sequence, owner.begins, owner.erasures)
                found = logs.read(layout.name, base.position, logs.end(layout.name))
                write_replicated_log_copy_position(
                    folder,
                    append_replicated_records(
                        journal, found, layout.name, owner.epoch if to_own else None, begun, durable=False
                    ),
                )
                journal.sync()
            finally:
                journal.close()
        except (NotFound, ReplicatedLogCorrupt, JournalDamaged) as error:
            log.error("base_unusable", store=layout.name, sequence=base.sequence, reason=str(error))
            failed = ReplicatedLogCorrupt(f"no snapshot of store {layout.name!r} in the cluster is intact: {error}")
        else:
            log.info("base_fetched", store=layout.name, sequence=base.sequence)
            return
    raise failed
