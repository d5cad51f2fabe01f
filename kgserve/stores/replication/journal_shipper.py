"""Shipping of journals to a target, from the files of the stores and in a process of its own.

Writers are neither asked nor delayed. A commit is shipped once this process has synced the file it is in, so that a
target never has a commit that the leader could lose. One pass looks at every store: three calls of stat if nothing has
changed. It uploads new frames, then appends one entry to the target's log, which makes them part of the target.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

import msgspec
import structlog

from kgserve.errors import Conflict, Fenced, JournalDamaged, KgserveError, NotFound, StorageFull, Unavailable
from kgserve.platform.durable_files import shorten_journal_path, translate_storage_errors
from kgserve.storage.journal.journal import (
    JournalFrame,
    JournalFrameError,
    JournalSegment,
    find_next_whole_journal_frame,
    list_journal_segments,
    read_journal_frames,
)
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.store_folder_layout import (
    CLOSE_MARK_FILE,
    STORE_FOLDER_SUFFIX,
    StoreDescription,
    StoreLayout,
)
from kgserve.stores.backup.create import (
    BackupSourceFileRemoved,
    BaseNotContinuable,
    JournalStartMissing,
    find_end_of_base,
    open_journal_segments_from,
    require_journal_continues_base,
)
from kgserve.stores.backup.folder_layout import (
    BACKUP_STORES_FOLDER,
    RUN_FOLDER_PREFIX,
    BackedUpFile,
    BackedUpJournalFrames,
    BackupChain,
    BackupEndState,
)
from kgserve.stores.purge_record import PURGE_COUNT_FILE, count_completed_purges
from kgserve.stores.replication.leader_files import IDENTITY_FILE, ReplicationStatus, write_replication_status
from kgserve.stores.replication.store_base import build_store_base, make_end_state, read_oldest_history_sequence
from kgserve.stores.replication.target_log import (
    TARGET_FORMAT,
    ReplicatedStore,
    ShippedBase,
    ShippedJournalFrames,
    ShippedRecord,
    ShippedStoreDrop,
    ShippedStoreGap,
    TargetLog,
    TargetLogEntry,
    list_object_keys,
    make_object_key,
)
from kgserve.stores.replication.target_storage import TargetStorage, create_or_confirm_object

log = structlog.get_logger()

HEARTBEAT_SECONDS = 5.0
"""Time without commits after which an empty entry shows that nothing is missing."""
CHECKPOINT_ENTRIES = 250
MAX_PIECE_BYTES = 16 << 20
MAX_PIECES_PER_BASE = 20_000
MIN_BASE_GROWTH_BYTES = 64 << 20
"""A new base is due once the journal since the last one exceeds this and the size of the base."""
PARALLEL_UPLOADS = 8
PARALLEL_BASES = 2
SETTLED_NANOSECONDS = 2_000_000_000
_RUNS_PER_EPOCH = 1_000_000
_MICROSECONDS = 1_000_000


class ShipperOptions(msgspec.Struct, frozen=True):
    """Options of a shipper. ``stores`` is None for all. ``keep_hours`` is how far back restores must reach."""

    stores: frozenset[str] | None = None
    interval: float = 0.5
    keep_hours: float = 168.0
    take_over: bool = False


class _FileSignature(msgspec.Struct, frozen=True):
    """File attributes that change with a store's journal, settings or purges.

    A folder's time of change has the resolution of a clock tick, so it is only relied on once it is two seconds ago.
    """

    root: int
    folder: int
    segment: str
    size: int
    purges: int
    is_closed: bool
    is_settled: bool


class _StoreProgress:
    """Progress with one store: its files as of the last pass, and a base that is being made."""

    def __init__(self, layout: StoreLayout) -> None:
        self.layout = layout
        self._root = str(layout.root)
        self._journal = str(layout.journal)
        self.signature: _FileSignature | None = None
        self.next_base: Future[ShippedBase] | None = None
        self.retry_at = 0.0

    def read_signature(self) -> _FileSignature:
        """Return the current signature. Takes one call of stat for a closed store. Raises FileNotFoundError."""
        root, known = os.stat(self._root).st_mtime_ns, self.signature  # noqa: PTH116 - called for each store
        if known is not None and known.is_settled and known.is_closed and known.root == root:
            return known
        folder = os.stat(self._journal).st_mtime_ns  # noqa: PTH116 - as above
        if known is not None and known.is_settled and known.folder == folder:
            segment = known.segment
        else:
            segments = list_journal_segments(self.layout.journal)
            if not segments:
                raise FileNotFoundError(self._journal)
            segment = str(segments[-1].path)
        return _FileSignature(
            root,
            folder,
            segment,
            os.stat(segment).st_size,  # noqa: PTH116 - as above
            _time_of_change(f"{self._root}/{PURGE_COUNT_FILE}"),
            _time_of_change(f"{self._root}/{CLOSE_MARK_FILE}") > 0,
            max(root, folder) < time.time_ns() - SETTLED_NANOSECONDS,
        )


def _is_unchanged(known: _FileSignature, signature: _FileSignature) -> bool:
    """Return whether nothing that is shipped has changed; whether the store is open does not matter."""
    replace = msgspec.structs.replace
    return replace(known, root=0, is_closed=True, is_settled=True) == replace(
        signature, root=0, is_closed=True, is_settled=True
    )


def _time_of_change(path: str) -> int:
    """Return when a file was changed, in nanoseconds; 0 for a missing one."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - called for each store
    except FileNotFoundError:
        return 0


class JournalShipper:
    """Ships the stores of a data folder to a target. Used by one thread."""

    def __init__(self, storage: TargetStorage, data_dir: Path, leader: str, options: ShipperOptions) -> None:
        """``leader`` identifies the data folder."""
        self._log = TargetLog(storage)
        self._data_dir = data_dir
        self._leader = leader
        self._session = token_hex(8)
        self._options = options
        self._stores: dict[str, _StoreProgress] = {}
        self._uploads = ThreadPoolExecutor(PARALLEL_UPLOADS, thread_name_prefix="ship")
        self._bases = ThreadPoolExecutor(PARALLEL_BASES, thread_name_prefix="base")
        self._runs = threading.Lock()
        self._next_run = 0
        self._run = 0
        self._appended_at = 0.0
        self._checkpoint = 0
        self._is_incomplete = False
        # Stores with objects that an erasure has to delete.
        self._erased: set[str] = set()
        self._closing = threading.Event()
        self.status = ReplicationStatus(storage.url, os.getpid())

    def claim(self) -> None:
        """Become the writer of the target, which fences earlier ones.

        Raises Conflict if the target belongs to another data folder, NotFound for a chosen store that neither has,
        BackupDamaged and Unavailable.
        """
        catalog = self._log.load()
        if catalog.leader not in ("", self._leader) and not self._options.take_over:
            raise Conflict(
                f"{self._log.storage.url} holds the stores of another data folder, which may have been promoted since. "
                "Replicate to another target; or pass --take-over if this data folder is to replace it"
            )
        for name in sorted((self._options.stores or frozenset()) - catalog.stores.keys() - {*self._names()}):
            raise NotFound(f"there is no store {name!r} in {self._data_dir}")
        epoch = catalog.epoch + 1
        self._next_run = epoch * _RUNS_PER_EPOCH
        self._run = self._new_run()
        self._append([], catalog.time, epoch)
        # Nothing was looked at yet: the first pass tells what the target covers.
        self._appended_at = -math.inf
        self._delete_orphans(f"{BACKUP_STORES_FOLDER}/", catalog.stores)
        self._log.storage.delete_unfinished()
        self._write_checkpoint()
        log.info("replication_begun", target=self._log.storage.url, epoch=epoch, stores=len(catalog.stores))

    def ship(self) -> int:
        """Ship what is new, and return the number of records.

        Raises Fenced if another process ships to the target, and Unavailable, after which it can be called again.
        """
        covered = time.time_ns() // 1000
        self._is_incomplete = False
        try:
            records = self._collect(covered)
            covered = self._log.catalog.time if self._is_incomplete else covered
            is_due = time.monotonic() - self._appended_at >= HEARTBEAT_SECONDS
            if records or is_due:
                self._append(records, covered, self._log.catalog.epoch)
        except BaseException:
            # Keys of this pass may be taken; nothing refers to them.
            self._run = self._new_run()
            for progress in self._stores.values():
                progress.signature = None
            raise
        bases = [record for record in records if isinstance(record, ShippedBase)]
        if bases:
            # Pieces of the base before may have the names of those that continue the new one.
            self._run = self._new_run()
        self._erased.update(base.store for base in bases if base.erases)
        if self._erased or self._log.catalog.number - self._checkpoint >= CHECKPOINT_ENTRIES:
            self._write_checkpoint()
            self._delete_orphans_of_erased()
        self.status.covered = self._log.catalog.limit_coverage(covered)
        self.status.bytes += sum(
            each.frames.file.bytes for each in records if isinstance(each, ShippedJournalFrames) and each.frames
        )
        self.status.pending = sum(each.next_base is not None for each in self._stores.values())
        return len(records)

    def run(self, stopping: threading.Event) -> None:
        """Ship until ``stopping`` is set, then once more. Raises Fenced and BackupDamaged."""
        while True:
            is_last = stopping.wait(self._options.interval)
            try:
                self.ship()
                self.status.error = ""
            except Fenced:
                raise
            except (Unavailable, StorageFull) as error:
                self.status.error = error.message
                log.warning("replication_failed", target=self._log.storage.url, reason=error.message)
            write_replication_status(self._data_dir, self.status)
            if is_last:
                return

    def wait_for_bases(self) -> None:
        """Wait until the bases that are being made have been uploaded; the next `ship` announces them."""
        for progress in self._stores.values():
            if progress.next_base is not None:
                progress.next_base.exception()

    def close(self) -> None:
        """Stop. Blocks until running uploads have ended."""
        self._closing.set()
        self._bases.shutdown(cancel_futures=True)
        self._uploads.shutdown()

    # One pass

    def _collect(self, covered: int) -> list[ShippedRecord]:
        names = self._names()
        catalog = self._log.catalog
        gone = [
            ShippedStoreDrop(name)
            for name, store in catalog.stores.items()
            if not store.is_dropped and name not in names and self._is_chosen(name)
        ]
        for record in gone:
            self._stores.pop(record.store, None)
        changed = [progress for name in names if (progress := self._changed(name)) is not None]
        found = [self._uploads.submit(self._collect_store, progress, covered) for progress in changed]
        wait(found)  # also after a failure, so that nothing is uploaded under the names of this pass later
        return [*gone, *(record for records in found for record in records.result())]

    def _is_chosen(self, name: str) -> bool:
        return self._options.stores is None or name in self._options.stores

    def _names(self) -> Collection[str]:
        with translate_storage_errors(f"listing {self._data_dir}"), os.scandir(self._data_dir) as entries:
            found = [each.name for each in entries]
        if IDENTITY_FILE not in found:
            # Without this, every store of a folder that was unmounted would count as dropped.
            raise Unavailable(f"{self._data_dir / IDENTITY_FILE} is missing; the data folder may not be mounted")
        names = {name.removesuffix(STORE_FOLDER_SUFFIX) for name in found if name.endswith(STORE_FOLDER_SUFFIX)}
        names = {name for name in names if self._is_chosen(name)}
        for name in names - self._stores.keys():
            layout = StoreLayout(self._data_dir, name)
            if layout.exists:
                self._stores[name] = _StoreProgress(layout)
        return names & self._stores.keys()

    def _changed(self, name: str) -> _StoreProgress | None:
        """Return the progress of a store if its files have changed or its new base is complete."""
        progress = self._stores[name]
        if progress.next_base is not None and progress.next_base.done():
            return progress
        try:
            signature = progress.read_signature()
        except FileNotFoundError:
            return None  # being dropped or replaced; the next pass sees which
        known = progress.signature
        progress.signature = signature
        return None if known is not None and _is_unchanged(known, signature) else progress

    def _collect_store(self, progress: _StoreProgress, covered: int) -> list[ShippedRecord]:
        """Upload what is new of a store. Return the records that announce it."""
        name = progress.layout.name
        if (base := progress.next_base) is not None and base.done():
            progress.next_base, progress.signature = None, None
            try:
                return [base.result()]
            except (KgserveError, OSError) as error:
                progress.retry_at = time.monotonic() + HEARTBEAT_SECONDS
                log.warning("replication_base_failed", store=name, reason=str(error))
        known = self._log.catalog.stores.get(name)
        if known is not None and known.is_current:
            return self._continue_or_renew(progress, known, covered)
        self._begin_base(progress, known, continues=False)
        return []

    def _continue_or_renew(self, progress: _StoreProgress, known: ReplicatedStore, covered: int) -> list[ShippedRecord]:
        """Continue the base of a store, or begin a new one. Return the records that announce it."""
        name = progress.layout.name
        try:
            return self._continue(progress, known, covered)
        except (BackupSourceFileRemoved, OSError) as error:
            # Most likely being dropped or replaced; the next pass sees which.
            log.info("replication_of_store_postponed", store=name, reason=str(error))
            progress.signature, self._is_incomplete = None, True
            return []
        except (BaseNotContinuable, JournalStartMissing) as error:
            reason = str(error) or "the journal no longer reaches back to what was shipped"
        except JournalDamaged as error:
            log.error("replication_of_damaged_store", store=name, reason=error.message)
            progress.signature, progress.retry_at = None, time.monotonic() + HEARTBEAT_SECONDS
            return [ShippedStoreGap(name)]
        log.info("replication_base_due", store=name, reason=reason)
        self._begin_base(progress, known, continues=False)
        return [ShippedStoreGap(name)]

    def _continue(self, progress: _StoreProgress, known: ReplicatedStore, covered: int) -> list[ShippedRecord]:
        layout, base = progress.layout, known.base
        described = layout.description()
        if described is None:
            raise BackupSourceFileRemoved
        _require_same_store(described, base)
        if count_completed_purges(layout) != known.purges:
            raise BaseNotContinuable("nodes were erased")
        oldest = read_oldest_history_sequence(layout, described)
        frames: list[tuple[BackedUpJournalFrames, BackupEndState]] = []
        state = base.last.state
        for piece, state in self._upload_frames(progress, base):
            frames.append((piece, make_end_state(state, described, covered, oldest)))
        mark = make_end_state(state, described, covered, oldest)
        if is_base_outgrown(known):
            self._begin_base(progress, known, continues=True)
        if not frames and msgspec.structs.replace(mark, taken=base.last.taken) == base.last:
            return []
        run = self._run_of(base)
        if not frames:
            return [ShippedJournalFrames(layout.name, run, None, mark)]
        return [ShippedJournalFrames(layout.name, run, piece, each) for piece, each in frames]

    def _run_of(self, base: BackupChain) -> int:
        """Return the number of the run for new pieces of a base; numbers of runs rise within a base."""
        return max(self._run, base.runs[-1].number)

    def _upload_frames(
        self, progress: _StoreProgress, base: BackupChain
    ) -> Iterator[tuple[BackedUpJournalFrames, StoreState]]:
        """Upload the frames after a base. Yield each piece and the state after it."""
        name, folder = progress.layout.name, f"{RUN_FOLDER_PREFIX}{self._run_of(base):06d}"
        begins, offset, due = find_end_of_base(base)
        with open_journal_segments_from(progress.layout, begins) as opened:
            require_journal_continues_base(progress.layout, opened[0], base)
            due = due or opened[0][0].first
            for segment, file in opened:
                is_last = segment.first == opened[-1][0].first
                while (piece := read_journal_piece(segment, file, offset, due, is_last=is_last)) is not None:
                    data, newest = piece
                    state = newest.changes()[-1].state
                    path = f"{folder}/{segment.first:020d}.{offset}.log"
                    entry = BackedUpFile(path, len(data), hashlib.sha256(data).hexdigest())
                    self._create_piece(make_object_key(name, entry), data)
                    yield (
                        BackedUpJournalFrames(entry, segment.first, offset, due, state.sequence, state.time),
                        state,
                    )
                    offset, due = newest.end, newest.last + 1
                offset = 0

    def _create_piece(self, key: str, data: bytes) -> None:
        if not create_or_confirm_object(self._log.storage, key, data):
            raise Unavailable(f"{self._log.storage.url}/{key} holds other data; the pass is repeated under new names")

    # Bases

    def _begin_base(self, progress: _StoreProgress, known: ReplicatedStore | None, *, continues: bool) -> None:
        if time.monotonic() < progress.retry_at:
            progress.signature = None  # the next pass looks again
        elif progress.next_base is None:
            progress.next_base = self._bases.submit(self._make_base, progress.layout, known, continues)

    def _make_base(self, layout: StoreLayout, known: ReplicatedStore | None, continues: bool) -> ShippedBase:
        purges = count_completed_purges(layout)
        base = build_store_base(self._log.storage, layout, self._new_run(), self._closing)
        # A store that was restored or created again counts its purges from 0.
        erases = known is not None and bool(purges) and (purges != known.purges or not _is_same_store(base, known.base))
        return ShippedBase(layout.name, base, purges, erases=erases, continues=continues and not erases)

    # The log

    def _append(self, records: list[ShippedRecord], covered: int, epoch: int) -> None:
        entry = TargetLogEntry(
            TARGET_FORMAT, self._log.catalog.number + 1, epoch, self._leader, self._session, covered, records
        )
        if not self._log.append(entry):
            found = self._log.read_entry(entry.number)
            if found is not None and found.session == self._session:
                # The answer to an earlier attempt was lost: the entry is this process's own.
                self._log.catalog.apply(found)
                raise Unavailable(f"entry {entry.number} of the log had been written; the pass is repeated")
            raise Fenced(
                f"another process has begun to ship to {self._log.storage.url}, or a follower was promoted; "
                "this one ships no more"
            )
        self._appended_at = time.monotonic()

    def _write_checkpoint(self) -> None:
        self._log.catalog.retire(time.time_ns() // 1000 - int(self._options.keep_hours * 3600 * _MICROSECONDS))
        self._log.write_checkpoint()
        self._checkpoint = self._log.catalog.number

    def _delete_orphans_of_erased(self) -> None:
        """Delete the objects of erased stores that failed passes and bases have left unannounced."""
        for name in [*self._erased]:
            progress = self._stores.get(name)
            # A base that is being uploaded is not announced yet either.
            if progress is None or progress.next_base is None:
                self._delete_orphans(f"{BACKUP_STORES_FOLDER}/{name}/", [name])
                self._erased.remove(name)

    def _delete_orphans(self, prefix: str, names: Iterable[str]) -> None:
        """Delete objects below a prefix that were uploaded for these stores without being announced."""
        stores = self._log.catalog.stores
        known = {key for name in names for key in list_object_keys(name, stores[name].manifest.bases)}
        self._log.storage.delete(key for key in self._log.storage.names(prefix) if key not in known)

    def _new_run(self) -> int:
        with self._runs:
            self._next_run += 1
            return self._next_run


def read_journal_piece(
    segment: JournalSegment, file: BinaryIO, offset: int, due: int, *, is_last: bool
) -> tuple[bytes, JournalFrame] | None:
    """Return the whole frames from an offset on, at most about 16 MiB, and the last of them; or None.

    Syncs the file first, so that the frames are durable. An incomplete frame at the end of the ``is_last`` segment is
    being written. Raises JournalDamaged, and BaseNotContinuable if the segment ends before ``offset``.
    """
    end = file.seek(0, os.SEEK_END)
    if end < offset:
        raise BaseNotContinuable("the journal was cut before the end of what was shipped")
    if end == offset:
        return None
    os.fdatasync(file.fileno())
    newest: JournalFrame | None = None
    try:
        for frame in read_journal_frames(file, offset, end, due):
            newest = frame
            if frame.end - offset >= MAX_PIECE_BYTES:
                break
    except JournalFrameError as error:
        if not is_last or find_next_whole_journal_frame(file, error.offset, end) is not None:
            raise JournalDamaged(f"{shorten_journal_path(segment.path)}: {error}; run `kgserve doctor`") from error
    if newest is None:
        return None
    file.seek(offset)
    return file.read(newest.end - offset), newest


def is_base_outgrown(store: ReplicatedStore) -> bool:
    """Return whether restores would be quicker from a new base."""
    if store.added_bytes <= MIN_BASE_GROWTH_BYTES and store.added <= MAX_PIECES_PER_BASE:
        return False
    own = sum(file.bytes for file in store.base.files) - store.added_bytes
    return store.added > MAX_PIECES_PER_BASE or store.added_bytes > own


def _is_same_store(one: BackupChain, other: BackupChain) -> bool:
    """Return whether two bases are of one store, not of its restored, promoted or recreated successor."""
    return (one.created_at, one.last.settings.incarnations) == (other.created_at, other.last.settings.incarnations)


def _require_same_store(described: StoreDescription, base: BackupChain) -> None:
    if described.created_at != base.created_at:
        raise BaseNotContinuable("the store was created again")
    if described.history_from != base.history_from or (described.history != "none" and not base.keeps_history):
        raise BaseNotContinuable("the history of the store was turned on")
