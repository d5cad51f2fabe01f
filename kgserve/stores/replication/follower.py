"""Follower: a data folder that is kept as a warm, read-only copy of the stores in a replication target.

One thread reads the target's log and brings each store that an entry names up to the catalog: a store of an unknown
lineage is restored, any other applies the frames that it lacks to its open store, as the leader's commits.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import msgspec
import structlog
from typing_extensions import override

from kgserve.errors import BackupDamaged, Conflict, KgserveError, Unavailable
from kgserve.platform.settings import Settings
from kgserve.storage.data_folder_store_index import DataFolderStoreIndex
from kgserve.storage.journal.journal import Journal, JournalFrame, JournalFrameError, read_journal_frames
from kgserve.storage.model.store_incarnations import begin_store_incarnation
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import StoreDescription, StoreLayout, read_closed_store_state
from kgserve.stores.backup.folder_layout import BackedUpJournalFrames, BackupFolder
from kgserve.stores.backup.restore import find_restore_point, restore_store
from kgserve.stores.local_placement import CommitLog, CopyCommitLog, ReplicaStore, StorePlacement
from kgserve.stores.pool import StorePool
from kgserve.stores.replication.leader_files import (
    FollowedTarget,
    delete_followed_target,
    read_followed_target,
    read_or_create_identity,
    write_followed_target,
)
from kgserve.stores.replication.store_base import download_stores, keep_newest_base
from kgserve.stores.replication.target_address import open_target_storage
from kgserve.stores.replication.target_log import (
    TARGET_FORMAT,
    ReplicatedStore,
    TargetLog,
    TargetLogEntry,
    make_object_key,
    open_target_log,
)

log = structlog.get_logger()

FOLLOW_POLL_SECONDS = 0.25
RETRY_SECONDS = 5.0
GAP_CHECK_SECONDS = 30.0
"""Time without a new entry after which the follower checks that no entry is missing."""
STALE_SECONDS = 15.0
"""Age of the newest entry from which on a follower logs that nothing arrives; a leader sends one every five seconds."""
_MICROSECONDS = 1_000_000


class FollowerCommitLog(CopyCommitLog):
    """Commit log of a follower's store."""

    def __init__(self, journal: Journal, placement: FollowerPlacement) -> None:
        super().__init__(journal)
        self._placement = placement

    @override
    def confirm(self) -> bool:
        raise self._placement.read_only_error()

    @override
    def catch_up(self, store: ReplicaStore) -> None:
        self._placement.follow_now()

    @override
    def build_write_refusal(self) -> KgserveError:
        return self._placement.read_only_error()


class FollowerPlacement(StorePlacement):
    """Placement of the stores of a follower: all of them are copies, which only the following thread changes."""

    def __init__(self, data_dir: Path, settings: Settings, target: str) -> None:
        """Open the data folder. Raises Conflict if it holds stores of its own or follows another target."""
        self.target = target
        self._followed = FollowedTarget(target)
        super().__init__(data_dir, settings)
        self._log: TargetLog | None = None
        self._pool: StorePool | None = None
        self._turn = threading.Lock()
        self._updating: int | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._stuck: set[str] = set()
        self._covered_until = 0

    @property
    @override
    def age(self) -> float | None:
        if not self._covered_until:
            return None
        return max(0.0, time.time() - self._covered_until / _MICROSECONDS)

    def read_only_error(self) -> Conflict:
        """Build the error for writes."""
        return Conflict(
            "this server is a read-only copy that follows another server; send writes to that one. To make this one "
            "writable, stop it, run `kgserve promote`, and start `kgserve serve`"
        )

    def start_following(self, pool: StorePool) -> None:
        """Read the target, bring all stores up to it, and follow it in a thread until `close`.

        Raises NotFound for an empty target, BackupDamaged and Unavailable.
        """
        self.attach(pool)
        try:
            self.catch_up()
        except KgserveError as error:
            if not self._followed.lineages:
                raise
            log.warning("target_not_followed", target=self.target, reason=error.message)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def attach(self, pool: StorePool) -> None:
        """Set the pool in which the stores are open."""
        self._pool = pool

    def catch_up(self) -> None:
        """Read the target again, and bring all stores up to it. Raises the errors of `start_following`."""
        with self._working():
            self._catch_up()

    def _catch_up(self) -> None:
        self._log = open_target_log(open_target_storage(self.target))
        for name in dict.fromkeys([*self._log.catalog.stores, *self.local_store_names()]):
            self._follow_store(name)
        self._record_coverage(self._log)
        log.info("following", target=self.target, entry=self._log.catalog.number, stores=len(self._log.catalog.stores))

    def follow_now(self) -> None:
        """Apply the entries that the target has by now. Raises BackupDamaged and Unavailable."""
        with self._working():
            self._follow_entries()

    def take_over(self) -> None:
        """Apply everything that the leader shipped, and fence it: its next entry is refused. Blocks.

        Raises NotFound, BackupDamaged, and Unavailable if the target or a store in it cannot be read.
        """
        self.catch_up()
        leader, session = read_or_create_identity(self.data_dir), token_hex(8)
        while (target := self._log) is not None:
            self.follow_now()
            if self._stuck:
                raise Unavailable(
                    f"these stores are incomplete: {', '.join(sorted(self._stuck))}; nothing was promoted"
                )
            at = target.catalog
            if target.append(TargetLogEntry(TARGET_FORMAT, at.number + 1, at.epoch + 1, leader, session, at.time)):
                return

    @override
    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    # Only the following thread changes stores

    @override
    def place(self, name: str, chosen: StoreSettings | None) -> bool:
        if chosen is not None and not self.exists(name):
            raise self.read_only_error()
        return super().place(name, None)

    @override
    def describe(self, layout: StoreLayout, description: StoreDescription) -> StoreDescription:
        self._require_following()
        return super().describe(layout, description)

    @override
    def adopt(self, name: str, folder: Path) -> None:
        self._require_following()
        super().adopt(name, folder)

    @override
    def drop(self, name: str) -> None:
        self._require_following()
        super().drop(name)

    @override
    def open_commit_log(self, name: str, journal: Journal) -> CommitLog:
        return FollowerCommitLog(journal, self)

    def _require_following(self) -> None:
        if self._updating != threading.get_ident():
            raise self.read_only_error()

    @override
    def _check_folder(self) -> None:
        known = read_followed_target(self.data_dir)
        if known is not None and known.target != self.target:
            raise Conflict(f"{self.data_dir} follows {known.target}, not {self.target}; use another data folder")
        if known is None:
            super()._check_folder()
            if self.index.names():
                raise Conflict(f"{self.data_dir} has stores of its own; follow a target with an empty data folder")
            write_followed_target(self.data_dir, self._followed)
        self._followed = known or self._followed

    # Following

    def _run(self) -> None:
        seen = retried = time.monotonic()
        while not self._closing.wait(FOLLOW_POLL_SECONDS):
            try:
                with self._working():
                    if self._log is None:
                        self._catch_up()
                    seen = time.monotonic() if self._follow_entries() else seen
                    if self._stuck and time.monotonic() - retried > RETRY_SECONDS:
                        retried = time.monotonic()
                        for name in list(self._stuck):
                            self._follow_store(name)
                if time.monotonic() - seen > GAP_CHECK_SECONDS:
                    self._require_no_gap()
                    seen = time.monotonic()
            except KgserveError as error:
                log.warning("target_not_followed", target=self.target, age=self.age, reason=error.message)
                self._closing.wait(RETRY_SECONDS)
            except Exception:
                # The thread must survive any error.
                log.exception("target_not_followed", target=self.target)
                self._closing.wait(RETRY_SECONDS)

    @contextmanager
    def _working(self) -> Generator[None]:
        with self._turn:
            self._updating = threading.get_ident()
            try:
                yield
            finally:
                self._updating = None

    def _follow_entries(self) -> bool:
        """Apply new entries. Return whether there were any."""
        found = False
        if self._log is not None:
            for entry in self._log.follow():
                found = True
                for name in dict.fromkeys(record.store for record in entry.records):
                    self._follow_store(name)
                self._record_coverage(self._log)
        return found

    def _record_coverage(self, target: TargetLog) -> None:
        """Record up to when the stores have every commit, once they were brought up to the catalog."""
        if not self._stuck:
            self._covered_until = target.catalog.limit_coverage(target.catalog.time)

    def _require_no_gap(self) -> None:
        """Read the target again if it was compacted beyond this follower. Raises BackupDamaged for a gap."""
        if self._log is None:
            return
        try:
            self._log.require_no_gap()
        except BackupDamaged:
            self.catch_up()
        if (age := self.age) is not None and age > STALE_SECONDS:
            log.warning("leader_silent", target=self.target, age=round(age, 1))

    def _follow_store(self, name: str) -> None:
        """Bring one store up to the catalog; one that fails is tried again and does not stop the others."""
        try:
            self._update(name)
            self._stuck.discard(name)
        except (KgserveError, OSError) as error:
            self._stuck.add(name)
            log.error("store_not_followed", store=name, target=self.target, reason=str(error))

    def _update(self, name: str) -> None:
        if self._log is None or self._pool is None:
            return
        store = self._log.catalog.stores.get(name)
        if store is None or store.is_dropped:
            self._drop(self._pool, name)
        elif (
            self._followed.lineages.get(name) != store.lineage
            or not self.exists(name)
            or not self._extend(self._pool, name, store)
        ):
            self._fetch(self._pool, name, store)

    def _drop(self, pool: StorePool, name: str) -> None:
        if self.exists(name):
            pool.drop(name)
        if self._followed.lineages.pop(name, None) is not None:
            write_followed_target(self.data_dir, self._followed)

    def _fetch(self, pool: StorePool, name: str, store: ReplicatedStore) -> None:
        """Replace the local store, if there is one, by the target's."""
        target = self._log
        if target is None:
            return
        staging = pool.staging(name)
        with TemporaryDirectory(prefix="kgserve-follow-") as scratch:
            folder = BackupFolder(Path(scratch))
            download_stores(target, folder, [keep_newest_base(store.manifest)])
            backup = folder.store(name)
            restore_store(backup, find_restore_point(backup, backup.read(), None), staging)
        self._drop(pool, name)
        pool.adopt(name, staging)
        self._followed.lineages[name] = store.lineage
        write_followed_target(self.data_dir, self._followed)
        log.info("store_fetched", store=name, target=self.target, sequence=store.base.last.sequence)

    def _extend(self, pool: StorePool, name: str, store: ReplicatedStore) -> bool:
        """Apply the frames and settings that the local store lacks. Return False if the target no longer has them."""
        last = store.base.last
        if self._is_closed_at(pool, name, last.sequence, last.settings):
            return True
        with pool.lease(name) as opened:
            if not isinstance(opened.commits, FollowerCommitLog):
                raise Conflict(f"store {name!r} is not a copy")
            missing = list_missing_pieces(store, opened.state.sequence)
            if (missing[0].first - 1 if missing else last.sequence) > opened.state.sequence:
                return False
            opened.follow_description(last.settings)
            for piece in missing:
                for data, frame in self._read_frames(name, piece):
                    if frame.last <= opened.state.sequence:
                        continue
                    opened.commits.apply_frame(opened, frame, data)
        return True

    def _is_closed_at(self, pool: StorePool, name: str, sequence: int, described: StoreDescription) -> bool:
        """Return whether a closed store has everything, which spares opening it."""
        with pool.reserve_if_closed(name) as is_closed:
            if not is_closed:
                return False
            layout = self.layout(name)
            return read_closed_store_state(layout).sequence == sequence and layout.description() == described

    def _read_frames(self, name: str, piece: BackedUpJournalFrames) -> Iterator[tuple[bytes, JournalFrame]]:
        """Yield the frames of a piece, encoded and decoded. Raises BackupDamaged."""
        if self._log is None:
            return
        storage, key = self._log.storage, make_object_key(name, piece.file)
        data = storage.read(key)
        where = f"{storage.url}/{key}"
        if data is None:
            raise BackupDamaged(f"{where}: missing")
        if hashlib.sha256(data).hexdigest() != piece.file.sha256:
            raise BackupDamaged(f"{where}: checksum mismatch; the object is cut or damaged")
        try:
            for frame in read_journal_frames(BytesIO(data), 0, len(data), piece.first):
                yield data[frame.offset : frame.end], frame
        except JournalFrameError as error:
            raise BackupDamaged(f"{where}: {error}") from error


def list_missing_pieces(store: ReplicatedStore, sequence: int) -> list[BackedUpJournalFrames]:
    """Return the journal pieces of a store with commits after a sequence, in order."""
    missing: list[BackedUpJournalFrames] = []
    for base in reversed(store.manifest.bases[-store.lineage_bases :]):
        pieces = base.pieces
        at = len(pieces)
        while at and pieces[at - 1].last > sequence and (not missing or pieces[at - 1].first < missing[0].first):
            at -= 1
        missing = [*pieces[at:], *missing]
        if missing and missing[0].first <= sequence + 1:
            break
    return missing


def promote_follower(settings: Settings, *, offline: bool) -> str:
    """Make a follower's data folder writable, and return the target that it followed.

    Unless ``offline``, everything in the target is applied first, and the leader is fenced: what it ships from then on
    is refused. The caller holds the folder's lock.

    Raises Conflict if the folder is no follower, BackupDamaged and Unavailable if the target cannot be read.
    """
    followed = read_followed_target(settings.data_dir)
    if followed is None:
        raise Conflict(f"{settings.data_dir} follows no replication target; there is nothing to promote")
    if not offline:
        with StorePool(settings, lambda data_dir, chosen: FollowerPlacement(data_dir, chosen, followed.target)) as pool:
            placement = pool.placement
            if isinstance(placement, FollowerPlacement):
                placement.attach(pool)
                placement.take_over()
    for name in DataFolderStoreIndex(settings.data_dir).names():
        _begin_incarnation(StoreLayout(settings.data_dir, name))
    delete_followed_target(settings.data_dir)
    log.info("follower_promoted", target=followed.target, offline=offline)
    return followed.target


def _begin_incarnation(layout: StoreLayout) -> None:
    """Begin an incarnation of a closed store, since the leader may have commits that were never shipped."""
    found = layout.read_description_or_default()
    incarnation = begin_store_incarnation(read_closed_store_state(layout).sequence)
    layout.describe(msgspec.structs.replace(found, incarnations=(*found.incarnations, incarnation)))
