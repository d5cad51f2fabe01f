"""Creation of backups: each store continues from its last backup or begins a new base.

A store's files are copied while it is being written to, without locking or opening it. Journals only grow at their end,
and nothing changes before the mark, an acknowledged sequence. Files removed by a compaction stay readable while open.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog

from kgserve.errors import (
    BackupDamaged,
    InvalidInput,
    JournalDamaged,
    KgserveError,
    NoStore,
    NotFound,
    Unavailable,
)
from kgserve.platform.durable_files import (
    fsync_file,
    fsync_folder,
    shorten_journal_path,
    sync_descriptor,
    translate_storage_errors,
    write_all_bytes,
)
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.sqlite_files import copy_sqlite_database
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.recovery import find_damage_in_history_rows
from kgserve.storage.data_folder_store_index import FolderFingerprint, read_closed_store_fingerprint
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import (
    JournalFrame,
    JournalFrameError,
    JournalSegment,
    list_journal_segments,
    read_journal_frames,
)
from kgserve.storage.journal.journal_reader import find_oldest_journal_sequence
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_rows_digest import format_store_rows_digest
from kgserve.storage.store_folder_layout import StoreDescription, StoreLayout
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS
from kgserve.stores.backup.api import BackupAnswer, FailedStoreBackup, StoreBackupAnswer
from kgserve.stores.backup.folder_layout import (
    BackedUpFile,
    BackedUpHistory,
    BackedUpJournalFrames,
    BackupChain,
    BackupEndState,
    BackupFolder,
    BackupManifest,
    BackupRunFiles,
    SnapshotCopy,
    StoreBackup,
    UnchangedStoreBackup,
)

log = structlog.get_logger()

BACKUP_BLOCK_BYTES = 1 << 20
BACKUP_SYNC_BYTES = 8 << 20
"""Bytes written between two syncs; a single large sync would stall journals on the same disk."""
MAX_FRAME_SCAN_SECONDS = 0.004
"""Time that frames are scanned before yielding to writers; below the interpreter's switch interval."""
JOURNAL_TRUNCATED_REASON = "the journal no longer reaches back to the previous backup"
_SELECT_BACKED_UP_EXTENT = "SELECT sequence, oldest FROM cursor"
_SELECT_LAST_MOMENT = "SELECT time FROM moment WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"


class BackupSourceFileRemoved(Exception):
    """A file was removed between being listed and being opened; list again."""


class JournalStartMissing(Exception):
    """The journal no longer reaches back far enough."""


class HistoryExtent(msgspec.Struct, frozen=True):
    """Extent of a history: last and oldest commit it can answer for, and the time of the last one."""

    sequence: int
    oldest: int
    time: int


class JournalFramesToCopy(msgspec.Struct, frozen=True):
    """Whole frames of an open segment file to be copied, and the store's state after them."""

    file: BinaryIO
    segment: int
    offset: int
    bytes: int
    first: int
    state: StoreState


def read_history_extent(path: Path) -> HistoryExtent | None:
    """Return the extent of a history, or None if no readable one exists."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            sequence, oldest = connection.execute(_SELECT_BACKED_UP_EXTENT).fetchone()
            made = connection.execute(_SELECT_LAST_MOMENT, (sequence,)).fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return HistoryExtent(sequence, oldest, made[0] if made else 0)


@contextmanager
def open_journal_segments_from(layout: StoreLayout, sequence: int) -> Generator[list[tuple[JournalSegment, BinaryIO]]]:
    """Open the segments from the one that holds a sequence. Raises JournalStartMissing and BackupSourceFileRemoved."""
    segments = list_journal_segments(layout.journal)
    if not segments or segments[0].first > sequence:
        raise JournalStartMissing
    at = max(index for index, segment in enumerate(segments) if segment.first <= sequence)
    with ExitStack() as stack:
        try:
            opened: list[tuple[JournalSegment, BinaryIO]] = [
                (segment, stack.enter_context(segment.path.open("rb"))) for segment in segments[at:]
            ]
        except FileNotFoundError as error:
            raise BackupSourceFileRemoved from error
        yield opened


def find_journal_frames_to_back_up(
    opened: list[tuple[JournalSegment, BinaryIO]], offset: int, due: int, mark: int
) -> list[JournalFramesToCopy]:
    """Return the journal frames to copy from these segments, from ``offset`` in the first up to ``mark``.

    Raises JournalDamaged if the journal is damaged or incomplete before the mark.
    """
    found: list[JournalFramesToCopy] = []
    for segment, file in opened:
        newest: JournalFrame | None = None
        for frame in _frames(file, offset, due, mark):
            newest = frame
        if newest is not None:
            state = newest.changes()[-1].state
            found.append(JournalFramesToCopy(file, segment.first, offset, newest.end - offset, due, state))
            due = state.sequence + 1
        offset = 0
    if due <= mark:
        raise JournalDamaged(
            f"{shorten_journal_path(opened[-1][0].path.parent)}: commits after sequence {due - 1} are missing"
        )
    return found


def _frames(file: BinaryIO, offset: int, due: int, mark: int) -> Iterator[JournalFrame]:
    """Yield the frames from sequence ``due`` at ``offset`` up to the one with ``mark``."""
    if due > mark:
        return
    pause_at = time.perf_counter() + MAX_FRAME_SCAN_SECONDS
    try:
        for frame in read_journal_frames(file, offset, file.seek(0, os.SEEK_END), due):
            yield frame
            if frame.last >= mark:
                return
            if time.perf_counter() > pause_at:
                time.sleep(MAX_FRAME_SCAN_SECONDS)
                pause_at = time.perf_counter() + MAX_FRAME_SCAN_SECONDS
    except JournalFrameError as error:
        raise JournalDamaged(
            f"{shorten_journal_path(Path(file.name))}: {error}; the journal is damaged and was not backed up."
            " Stop the server and run `kgserve doctor`"
        ) from error


def copy_journal_frames_to_backup(found: list[JournalFramesToCopy], folder: Path) -> list[BackedUpJournalFrames]:
    """Copy journal frames into a run's folder, one file per chunk. The folder is created only if there are any."""
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [_copy_chunk(chunk, folder) for chunk in found]
    fsync_folder(folder)
    return pieces


def _copy_chunk(chunk: JournalFramesToCopy, folder: Path) -> BackedUpJournalFrames:
    name = f"{chunk.segment:020d}.{chunk.offset}.log"
    entry = copy_file_range_durably(chunk.file, chunk.offset, chunk.bytes, folder / name, f"{folder.name}/{name}")
    return BackedUpJournalFrames(
        entry, chunk.segment, chunk.offset, chunk.first, chunk.state.sequence, chunk.state.time
    )


def copy_file_range_durably(file: BinaryIO, offset: int, size: int, target: Path, path: str) -> BackedUpFile:
    """Copy ``size`` bytes into a new file durably; ``path`` is its name in the manifest. Raises StorageFull."""
    hasher = hashlib.sha256()
    file.seek(offset)
    with translate_storage_errors(f"writing {target}"):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy(file, size, descriptor, hasher)
            sync_descriptor(descriptor)
        finally:
            os.close(descriptor)
    return BackedUpFile(path, size, hasher.hexdigest())


def _copy(file: BinaryIO, size: int, descriptor: int, hasher: hashlib._Hash) -> None:
    left, unsynced = size, 0
    while left:
        block = file.read(min(BACKUP_BLOCK_BYTES, left))
        if not block:
            raise JournalDamaged(f"{shorten_journal_path(Path(file.name))}: was truncated while it was copied")
        hasher.update(block)
        write_all_bytes(descriptor, block)
        left -= len(block)
        unsynced += len(block)
        if unsynced >= BACKUP_SYNC_BYTES:
            sync_descriptor(descriptor, data_only=True)
            unsynced = 0


def hash_file_range(file: BinaryIO, offset: int, size: int) -> str:
    """Return the SHA-256 checksum of a range in hexadecimal, up to the end of a shorter file."""
    hasher = hashlib.sha256()
    file.seek(offset)
    while size > 0 and (block := file.read(min(BACKUP_BLOCK_BYTES, size))):
        hasher.update(block)
        size -= len(block)
    return hasher.hexdigest()


BACKUP_HISTORY_FILE = "history.sqlite"
NEW_HISTORY_TIMEOUT_SECONDS = 5.0
"""Time to wait for a history that was just turned on."""
MAX_RUNS_PER_BASE = 1_000
"""Maximum number of runs per base, which keeps manifests small."""
MAX_COPY_ATTEMPTS = 5


MAX_PARALLEL_BACKUPS = 4
"""Stores that are copied at the same time; most of their time is spent in syncs."""


class StoreToBackUp(msgspec.Struct, frozen=True):
    """A store to back up: its files, and a function that returns its last acknowledged sequence.

    ``known_at`` is when that sequence was read, in microseconds; None if the function reads it.
    """

    layout: StoreLayout
    mark: Callable[[], int]
    known_at: int | None = None


class BackupOptions(msgspec.Struct, frozen=True):
    """Options of a backup.

    ``live`` says that a running server maintains the histories, ``full`` copies everything, ``keep`` is the number of
    bases to keep.
    """

    live: bool
    full: bool = False
    keep: int | None = None


def _silent(_name: str) -> None: ...


def back_up_all(
    folder: BackupFolder,
    stores: Iterable[StoreToBackUp],
    options: BackupOptions,
    begins: Callable[[str], None] = _silent,
) -> BackupAnswer:
    """Back up stores, up to `MAX_PARALLEL_BACKUPS` at a time. A failure of one does not prevent the others.

    Raises StorageFull, Conflict if another backup uses the folder, and InvalidInput if the folder holds other files or
    lies in the data folder.
    """
    stores = list(stores)
    for data_dir in {wanted.layout.root.parent for wanted in stores}:
        _require_outside(folder, data_dir)

    def back_up(wanted: StoreToBackUp) -> StoreBackupAnswer | FailedStoreBackup:
        name = wanted.layout.name
        begins(name)
        try:
            return _back_up_store(folder, wanted, options)
        except KgserveError as error:
            return FailedStoreBackup(store=name, error=error.message)

    with folder.writing(), ThreadPoolExecutor(MAX_PARALLEL_BACKUPS, thread_name_prefix="backup") as threads:
        found = [*threads.map(back_up, stores)]
    done = [each for each in found if isinstance(each, StoreBackupAnswer)]
    failed = [each for each in found if isinstance(each, FailedStoreBackup)]
    copied = sum(each.bytes_copied for each in done)
    return BackupAnswer(folder=str(folder.path), stores=done, failed=failed, bytes_copied=copied)


def back_up_store(folder: BackupFolder, wanted: StoreToBackUp, options: BackupOptions) -> StoreBackupAnswer:
    """Back up one store. Raises the errors of `back_up_all` and those of the store itself."""
    _require_outside(folder, wanted.layout.root.parent)
    with folder.writing():
        return _back_up_store(folder, wanted, options)


def _require_outside(folder: BackupFolder, data_dir: Path) -> None:
    """Reject a folder within the data folder: it would be lost with the stores, and could take a store's name."""
    data = data_dir.resolve()
    if folder.path.resolve().is_relative_to(data):
        raise InvalidInput(
            f"{folder.path} lies in the data folder {data}; choose a folder outside it, preferably on another disk"
        )


def _back_up_store(folder: BackupFolder, wanted: StoreToBackUp, options: BackupOptions) -> StoreBackupAnswer:
    started = time.perf_counter()
    name = wanted.layout.name
    backup, fingerprint = folder.store(name), read_closed_store_fingerprint(wanted.layout.root)
    copying = _BackupJob(wanted, backup, options)
    try:
        answer = copying.find_unchanged(fingerprint)
        is_copied = answer is None
        answer = answer or copying.run()
    except KgserveError as error:
        log.warning("backup_failed", store=name, error=error.message)
        raise
    folder.count(name)
    folder.note_unchanged(name, copying.unchanged_since(fingerprint, answer))
    wanted.layout.mark_backed_up(time.time_ns() // 1000, durably=is_copied)
    answer.took_ms = round((time.perf_counter() - started) * 1000, 1)
    note = log.info if is_copied else log.debug
    note("backup_done", store=name, sequence=answer.sequence, bytes=answer.bytes_copied, ms=answer.took_ms)
    return answer


class BaseNotContinuable(Exception):
    """A base cannot be continued; the message says why."""


def require_journal_continues_base(
    layout: StoreLayout, opened: tuple[JournalSegment, BinaryIO], base: BackupChain
) -> None:
    """Raise BaseNotContinuable unless a store's journal continues from a base's last piece, which ``opened`` holds."""
    segment, file = opened
    if not base.pieces:
        _require_same_snapshot(layout, segment, base)
        return
    newest = base.pieces[-1]
    if segment.first != newest.segment:
        raise BaseNotContinuable(JOURNAL_TRUNCATED_REASON)
    if hash_file_range(file, newest.offset, newest.file.bytes) != newest.file.sha256:
        raise BaseNotContinuable("the journal changed before the end of the previous backup, for example by a restore")


def _require_same_snapshot(layout: StoreLayout, segment: JournalSegment, base: BackupChain) -> None:
    """Check a base without journal pieces: the store's snapshot must be the one that was copied."""
    state = base.last.state
    taken = snapshot.find_newest_whole_snapshot(layout.journal, state.sequence) if state.sequence else None
    if state.sequence and (segment.first <= state.sequence or taken is None or taken.state != state):
        raise BaseNotContinuable("the store has no journal in common with the previous backup")


def find_end_of_base(base: BackupChain) -> tuple[int, int, int | None]:
    """Return where a base's journal is continued: a sequence of the segment, the offset in it, the sequence due there.

    The sequence due is None, for that of the segment's first frame, if the base has no journal.
    """
    newest = base.pieces[-1] if base.pieces else None
    return (newest.segment, newest.end, newest.last + 1) if newest else (base.needed, 0, None)


class _BackupJob:
    """One backup of one store. The caller holds the lock of the backup folder."""

    def __init__(self, wanted: StoreToBackUp, backup: StoreBackup, options: BackupOptions) -> None:
        self._layout = wanted.layout
        self._backup = backup
        self._options = options
        # Read before the mark, so that commits made during the copy are later than the time the backup covers.
        self._requested_at = wanted.known_at or time.time_ns() // 1000
        self._mark = wanted.mark()

    def find_unchanged(self, fingerprint: FolderFingerprint | None) -> StoreBackupAnswer | None:
        """Return the answer if the store is closed and equals its newest backup, which is then left as it is.

        Raises BackupDamaged.
        """
        known, keep = self._backup.unchanged, self._options.keep
        if self._options.full or known is None or fingerprint != known.fingerprint:
            return None
        found = self._backup.read()
        if self._backup.unchanged is None or (keep is not None and len(found.bases) > keep):
            return None
        base = found.bases[-1]
        if base.last.sequence != self._mark or not self._ends_as_closed():
            return None
        self._require_files(base)
        last = msgspec.structs.replace(base.last, taken=self._taken_at(base.last.time))
        return self._answer(found, msgspec.structs.replace(base, marks=[*base.marks[:-1], last]), "", 0)

    def _ends_as_closed(self) -> bool:
        """Return whether the journal ends where the clean-close mark says; a power loss can bring back an older one."""
        mark, segments = self._layout.close_mark(), list_journal_segments(self._layout.journal)
        if mark is None or not segments:
            return False
        return (segments[-1].first, segments[-1].size) == (mark.journal.segment, mark.journal.size)

    def unchanged_since(
        self, fingerprint: FolderFingerprint | None, answer: StoreBackupAnswer
    ) -> UnchangedStoreBackup | None:
        """Return the record by which the next backup recognizes the store, if it was closed all the time."""
        mark = self._layout.close_mark()
        if mark is None or not mark.sequence == answer.sequence == self._mark:
            return None
        if fingerprint is None or fingerprint != read_closed_store_fingerprint(self._layout.root):
            return None
        return UnchangedStoreBackup(fingerprint, self._backup.checksum, self._taken_at(mark.time))

    def _taken_at(self, last_write: int) -> int:
        """Return the time that the backup covers, for a store with this last commit."""
        # If the clock was ahead, the last commit may lie in the future.
        is_near = last_write - self._requested_at <= MAX_CLOCK_DRIFT_MICROSECONDS
        return max(self._requested_at, last_write) if is_near else self._requested_at

    def run(self) -> StoreBackupAnswer:
        """Copy new data; copy everything if requested or if the previous backup cannot be continued.

        Raises NotFound if the store was deleted, JournalDamaged, StorageFull, and BackupDamaged if the previous backup
        is damaged.
        """
        with translate_storage_errors(f"backing up store {self._layout.name!r}"):
            try:
                return self._run()
            except FileNotFoundError as error:
                raise NotFound(f"store {self._layout.name!r} was deleted") from error

    def _run(self) -> StoreBackupAnswer:
        before = self._backup.read()
        self._backup.clear_leftovers(before)
        create_private_folder(self._backup.folder)
        try:
            base, reason = self._next_base(before)
        except BaseException:
            self._backup.clear_leftovers(before)
            raise
        if base.last.sequence < self._mark:
            self._backup.clear_leftovers(before)
            raise Unavailable(
                f"the files of store {self._layout.name!r} here end with sequence {base.last.sequence}, but the store "
                f"is at sequence {self._mark}; nothing was backed up",
                retry_after=30,
            )
        kept = before.bases if reason else before.bases[:-1]
        if reason and not self._options.full and kept and base.last.sequence < kept[-1].last.sequence:
            reason += (
                f"; the store is at sequence {base.last.sequence}, behind the {kept[-1].last.sequence} of the previous "
                "backup, so older bases stay until a backup with --full"
            )
        after = msgspec.structs.replace(before, bases=self._bases_to_keep([*kept, base]))
        fsync_folder(self._backup.folder)
        self._backup.write(after)
        self._backup.clear_leftovers(after)
        old = {file.path for each in before.bases for file in each.files}
        copied = sum(file.bytes for file in base.files if file.path not in old)
        return self._answer(after, base, reason, copied)

    def _answer(self, manifest: BackupManifest, base: BackupChain, reason: str, copied: int) -> StoreBackupAnswer:
        mark = base.last
        return StoreBackupAnswer(
            store=self._layout.name,
            sequence=mark.sequence,
            first=base.first,
            since=format_rfc3339_timestamp(base.since),
            taken_at=format_rfc3339_timestamp(mark.taken),
            digest=mark.digest,
            nodes=mark.nodes,
            edges=mark.edges,
            new_base=reason,
            bytes_copied=copied,
            bytes_total=manifest.bytes,
            bases=len(manifest.bases),
            took_ms=0.0,
        )

    def _next_base(self, before: BackupManifest) -> tuple[BackupChain, str]:
        """Return the base including new data, and the reason if it is a new one, else ""."""
        for _ in range(MAX_COPY_ATTEMPTS):
            described = self._described()
            try:
                reason = "a full backup was requested" if self._options.full else self._why_new(before, described)
                if not reason:
                    try:
                        return self._continued(before, described), ""
                    except BaseNotContinuable as error:
                        reason = str(error)
                return self._new_base(self._backup.run_folder(before.runs.stop), described), reason
            except BackupSourceFileRemoved:
                self._backup.clear_leftovers(before)
        name = self._layout.name
        raise Unavailable(f"the files of store {name!r} keep being replaced; try again later", retry_after=30)

    def _described(self) -> StoreDescription:
        if not self._layout.exists:
            raise NoStore(self._layout.name)
        found = self._layout.description()
        if found is None:
            raise Unavailable(
                f"the settings of store {self._layout.name!r} cannot be read; start its server once to repair them"
            )
        return found

    def _marked(self, state: StoreState, described: StoreDescription) -> BackupEndState:
        cursor = read_history_extent(self._layout.history) if described.history != "none" else None
        return BackupEndState(
            sequence=state.sequence,
            time=state.time,
            taken=self._taken_at(state.time),
            digest=format_store_rows_digest(state.digest),
            nodes=state.nodes,
            edges=state.edges,
            settings=described,
            history_oldest=min(cursor.oldest, state.sequence) if cursor else 0,
            is_empty=state.sequence == self._mark == 0,
        )

    # Incremental backups

    def _why_new(self, before: BackupManifest, described: StoreDescription) -> str:
        if not before.bases:
            return "it is the first backup"
        base = before.bases[-1]
        if described.created_at != base.created_at:
            return "the store was created again"
        keeps = described.history != "none"
        if described.history_from != base.history_from or (keeps and not base.keeps_history):
            return "the history of the store was turned on"
        if len(base.runs) >= MAX_RUNS_PER_BASE:
            return f"the previous base has {MAX_RUNS_PER_BASE:,} runs"
        return ""

    def _continued(self, before: BackupManifest, described: StoreDescription) -> BackupChain:
        base = before.bases[-1]
        self._require_files(base)
        mark = max(self._mark, base.last.sequence)
        number = before.runs.stop
        begins, offset, due = find_end_of_base(base)
        try:
            with open_journal_segments_from(self._layout, begins) as opened:
                require_journal_continues_base(self._layout, opened[0], base)
                found = find_journal_frames_to_back_up(opened, offset, due or opened[0][0].first, mark)
                pieces = copy_journal_frames_to_backup(found, self._backup.run_folder(number))
        except JournalStartMissing:
            raise BaseNotContinuable(JOURNAL_TRUNCATED_REASON) from None
        marked = self._marked(found[-1].state if found else base.last.state, described)
        runs = [*base.runs, BackupRunFiles(number, pieces)] if pieces else base.runs
        # Replaces the last mark if only the time differs.
        same = msgspec.structs.replace(marked, taken=base.last.taken) == base.last
        return msgspec.structs.replace(base, runs=runs, marks=[*(base.marks[:-1] if same else base.marks), marked])

    def _bases_to_keep(self, bases: list[BackupChain]) -> list[BackupChain]:
        """Return the bases that the backup folder is to have.

        If an older base reaches further than the newest one, the store may have lost commits, so only a full backup
        removes bases.
        """
        is_behind = max(each.last.sequence for each in bases) > bases[-1].last.sequence
        if self._options.keep is None or (is_behind and not self._options.full):
            return bases
        return bases[-self._options.keep :]

    def _require_files(self, base: BackupChain) -> None:
        for file in base.files:
            path = self._backup.folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise BackupDamaged(
                    f"{path}: missing or of the wrong size; run `kgserve verify` for details, or back up with --full"
                )

    # New bases

    def _new_base(self, folder: Path, described: StoreDescription) -> BackupChain:
        """Copy the starting rows, the journal since then, and the history if the journal cannot replace it.

        Raises BackupSourceFileRemoved, JournalDamaged, StorageFull.
        """
        folder.mkdir(parents=True)
        history, made = self._history(described, folder)
        known = history.sequence if history else 0
        mark = max(self._mark, known)
        taken = snapshot.find_newest_whole_snapshot(self._layout.journal, mark)
        rows = _copy_snapshot(self._layout, taken, folder) if taken else None
        rows_from, copied, state = _journal(self._layout, taken, history, folder, mark)
        fsync_folder(folder)
        first = max(rows_from, known)
        since = max(made, taken.time if taken and first == taken.sequence else 0)
        return BackupChain(
            created_at=described.created_at,
            rows_from=rows_from,
            first=first,
            since=described.created_at if first == 0 else since,
            history_from=described.history_from,
            keeps_history=described.history != "none",
            snapshot=rows,
            history=history,
            runs=[copied],
            marks=[self._marked(state, described)],
        )

    def _history(self, described: StoreDescription, folder: Path) -> tuple[BackedUpHistory | None, int]:
        """Copy the history, and return it with the time of its last commit.

        Returns (None, 0) if no history exists or the journal covers it.
        """
        if described.history == "none":
            return None, 0
        deadline = time.monotonic() + (NEW_HISTORY_TIMEOUT_SECONDS if self._options.live else 0.0)
        while True:
            cursor = read_history_extent(self._layout.history)
            if self._is_covered_by_journal(described, cursor):
                return None, 0
            if cursor is not None and self._is_usable(described, cursor):
                return _copy_history(self._layout, folder)
            if time.monotonic() >= deadline:
                log.warning("backup_without_history", store=self._layout.name)
                return None, 0
            time.sleep(0.05)

    def _is_covered_by_journal(self, described: StoreDescription, cursor: HistoryExtent | None) -> bool:
        from_start = find_oldest_journal_sequence(self._layout.journal) == 1 and described.history_from == 0
        return from_start and (cursor is None or cursor.oldest == 0)

    def _is_usable(self, described: StoreDescription, cursor: HistoryExtent) -> bool:
        is_current = cursor.oldest >= min(described.history_from, self._mark)
        return is_current and cursor.sequence + 1 >= find_oldest_journal_sequence(self._layout.journal)


def _journal(
    layout: StoreLayout,
    taken: snapshot.SnapshotManifest | None,
    history: BackedUpHistory | None,
    folder: Path,
    mark: int,
) -> tuple[int, BackupRunFiles, StoreState]:
    """Copy the journal. Return the sequence to replay it from, the run, and the final state."""
    starts = [*([0] if find_oldest_journal_sequence(layout.journal) == 1 else []), *([taken.sequence] if taken else [])]
    failed: JournalDamaged | None = None
    for rows_from in starts:
        needed = 1 + min(rows_from, history.sequence if history else rows_from)
        try:
            with open_journal_segments_from(layout, needed) as opened:
                found = find_journal_frames_to_back_up(opened, 0, opened[0][0].first, mark)
                run = BackupRunFiles(int(folder.name.rpartition("-")[2]), copy_journal_frames_to_backup(found, folder))
                return rows_from, run, _state(taken, found)
        except JournalStartMissing:
            continue
        except JournalDamaged as error:
            # The damaged part may be covered by a snapshot.
            log.warning("backup_begins_later", store=layout.name, after=rows_from, reason=str(error))
            failed = failed or error
    raise failed or JournalDamaged(
        f"{shorten_journal_path(layout.journal)}: the journal begins after the newest intact snapshot"
    )


def _state(taken: snapshot.SnapshotManifest | None, found: list[JournalFramesToCopy]) -> StoreState:
    states = [StoreState(), *([taken.state] if taken else []), *(chunk.state for chunk in found[-1:])]
    return max(states, key=lambda state: state.sequence)


def _copy_snapshot(layout: StoreLayout, taken: snapshot.SnapshotManifest, folder: Path) -> SnapshotCopy:
    source = layout.journal / f"{snapshot.SNAPSHOT_PREFIX}{taken.sequence}"
    target = folder / source.name
    target.mkdir()
    names = (*taken.files, snapshot.SNAPSHOT_MANIFEST_FILE)
    with ExitStack() as stack:
        try:
            opened = {name: stack.enter_context((source / name).open("rb")) for name in names}
        except FileNotFoundError as error:
            raise BackupSourceFileRemoved from error
        files = [
            copy_file_range_durably(
                file, 0, file.seek(0, os.SEEK_END), target / name, f"{folder.name}/{source.name}/{name}"
            )
            for name, file in opened.items()
        ]
    fsync_folder(target)
    try:
        snapshot.verify_snapshot(target)
    except JournalDamaged as error:  # replaced by a compaction while it was copied
        raise BackupSourceFileRemoved from error
    return SnapshotCopy(taken.sequence, files)


def _copy_history(layout: StoreLayout, folder: Path) -> tuple[BackedUpHistory, int]:
    path = folder / BACKUP_HISTORY_FILE
    try:
        copy_sqlite_database(layout.history, path)
    except sqlite3.Error as error:
        raise BackupSourceFileRemoved from error
    cursor = read_history_extent(path)
    if cursor is None:
        raise BackupSourceFileRemoved
    if (fault := find_damage_in_history_rows(path)) is not None:
        raise BackupDamaged(
            f"{layout.history.name} of store {layout.name!r} is damaged ({fault}) and was not copied; run `kgserve "
            "doctor --salvage`, or restart the server, to keep its intact part"
        )
    fsync_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        entry = BackedUpFile(f"{folder.name}/{BACKUP_HISTORY_FILE}", size, hash_file_range(file, 0, size))
    return BackedUpHistory(cursor.sequence, cursor.oldest, entry), cursor.time
