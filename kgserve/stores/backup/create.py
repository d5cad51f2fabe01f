"""Making backups: of several stores into one folder, each going on from its last one or beginning a new base.

The files of a store are read and copied beside whoever writes to them. Nothing of the store is locked or opened. A
journal only grows at its end, and up to the mark, a sequence that was acknowledged, nothing in it changes any more;
what a compaction removes stays readable for who has it open.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
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
from kgserve.platform.durable_files import named, storing, sync_file, sync_folder, write_all
from kgserve.platform.permissions import private_folder
from kgserve.platform.sqlite_files import copy_database
from kgserve.platform.times import format_time
from kgserve.projections.history.recovery import fault_of_rows
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Frame, FrameError, Segment, list_segments, read_frames
from kgserve.storage.journal.tail import oldest_sequence
from kgserve.storage.layout import Layout, StoreFile
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.digest import to_text
from kgserve.storage.plan import MAX_CLOCK_DRIFT_MICROSECONDS
from kgserve.stores.backup.api import BackupAnswer, BackupFailure, StoreBackupAnswer
from kgserve.stores.backup.folder import (
    BackedUpFile,
    BackupBase,
    BackupFolder,
    BackupManifest,
    BackupMark,
    BackupRun,
    HistoryCopy,
    Piece,
    SnapshotCopy,
    StoreBackup,
)

log = structlog.get_logger()

BACKUP_BLOCK_BYTES = 1 << 20
BACKUP_SYNC_BYTES = 8 << 20
"""How much is written between two syncs: one large one would hold up the journals on the same disk."""
FRAME_SCAN_TURN_SECONDS = 0.004
"""How long frames are looked at before writers get a turn; shorter than the interpreter's own turns."""
_SELECT_BACKED_UP_EXTENT = "SELECT sequence, oldest FROM cursor"
_SELECT_LAST_MOMENT = "SELECT time FROM moment WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1"


class FileMoved(Exception):
    """A file was removed between being listed and being opened: look again."""


class JournalTooShort(Exception):
    """The journal no longer reaches back as far as is needed."""


class HistoryCursor(msgspec.Struct, frozen=True):
    """What a history has seen, since when it knows, and when the last commit that it has seen was made."""

    sequence: int
    oldest: int
    time: int


class Chunk(msgspec.Struct, frozen=True):
    """Whole frames of a segment's open ``file`` that are to be copied, and the store's state after them."""

    file: BinaryIO
    segment: int
    offset: int
    bytes: int
    first: int
    state: StoreState


def cursor_of(path: Path) -> HistoryCursor | None:
    """Where a history stands; None when there is none that can be read."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            sequence, oldest = connection.execute(_SELECT_BACKED_UP_EXTENT).fetchone()
            made = connection.execute(_SELECT_LAST_MOMENT, (sequence,)).fetchone()
    except (sqlite3.Error, TypeError):
        return None
    return HistoryCursor(sequence, oldest, made[0] if made else 0)


@contextmanager
def opened_from(layout: Layout, sequence: int) -> Generator[list[tuple[Segment, BinaryIO]]]:
    """The segments from the one on that holds a sequence, open. Raises JournalTooShort and FileMoved."""
    segments = list_segments(layout.journal)
    if not segments or segments[0].first > sequence:
        raise JournalTooShort
    at = max(index for index, segment in enumerate(segments) if segment.first <= sequence)
    with ExitStack() as stack:
        try:
            opened: list[tuple[Segment, BinaryIO]] = [
                (segment, stack.enter_context(segment.path.open("rb"))) for segment in segments[at:]
            ]
        except FileNotFoundError as error:
            raise FileMoved from error
        yield opened


def chunks(opened: list[tuple[Segment, BinaryIO]], offset: int, due: int, mark: int) -> list[Chunk]:
    """What is to be copied from these segments, from an offset in the first on, up to the frame with the mark.

    Raises JournalDamaged when something before the mark is damaged or missing.
    """
    found: list[Chunk] = []
    for segment, file in opened:
        newest: Frame | None = None
        for frame in _frames(file, offset, due, mark):
            newest = frame
        if newest is not None:
            state = newest.changes()[-1].state
            found.append(Chunk(file, segment.first, offset, newest.end - offset, due, state))
            due = state.sequence + 1
        offset = 0
    if due <= mark:
        raise JournalDamaged(f"{named(opened[-1][0].path.parent)}: what comes after sequence {due - 1} is missing")
    return found


def _frames(file: BinaryIO, offset: int, due: int, mark: int) -> Iterator[Frame]:
    """The frames from an offset on, which begin with sequence ``due``, up to the one with ``mark``."""
    if due > mark:
        return
    turn = time.perf_counter() + FRAME_SCAN_TURN_SECONDS
    try:
        for frame in read_frames(file, offset, file.seek(0, os.SEEK_END), due):
            yield frame
            if frame.last >= mark:
                return
            if time.perf_counter() > turn:
                time.sleep(FRAME_SCAN_TURN_SECONDS)
                turn = time.perf_counter() + FRAME_SCAN_TURN_SECONDS
    except FrameError as error:
        raise JournalDamaged(
            f"{named(Path(file.name))}: {error}; a damaged journal is not backed up: run `kgserve doctor` on the"
            " stopped server"
        ) from error


def copy_chunks(found: list[Chunk], folder: Path) -> list[Piece]:
    """Copy chunks into the folder of a run, which is made if there is anything to copy: one file each, once written."""
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [_copy_chunk(chunk, folder) for chunk in found]
    sync_folder(folder)
    return pieces


def _copy_chunk(chunk: Chunk, folder: Path) -> Piece:
    name = f"{chunk.segment:020d}.{chunk.offset}.log"
    entry = copy_range(chunk.file, chunk.offset, chunk.bytes, folder / name, f"{folder.name}/{name}")
    return Piece(entry, chunk.segment, chunk.offset, chunk.first, chunk.state.sequence, chunk.state.time)


def copy_range(file: BinaryIO, offset: int, size: int, target: Path, path: str) -> BackedUpFile:
    """Copy so many bytes into a new file, durably; ``path`` is its name in the manifest. Raises StorageFull."""
    hasher = hashlib.sha256()
    file.seek(offset)
    with storing(f"writing {target}"):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy(file, size, descriptor, hasher)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return BackedUpFile(path, size, hasher.hexdigest())


def _copy(file: BinaryIO, size: int, descriptor: int, hasher: hashlib._Hash) -> None:
    left, unsynced = size, 0
    while left:
        block = file.read(min(BACKUP_BLOCK_BYTES, left))
        if not block:
            raise JournalDamaged(f"{named(Path(file.name))}: it has become shorter while it was copied")
        hasher.update(block)
        write_all(descriptor, block)
        left -= len(block)
        unsynced += len(block)
        if unsynced >= BACKUP_SYNC_BYTES:
            os.fdatasync(descriptor)
            unsynced = 0


def sum_of(file: BinaryIO, offset: int, size: int) -> str:
    """SHA-256 of a range, in hexadecimal; of what there is, if the file is shorter."""
    hasher = hashlib.sha256()
    file.seek(offset)
    while size > 0 and (block := file.read(min(BACKUP_BLOCK_BYTES, size))):
        hasher.update(block)
        size -= len(block)
    return hasher.hexdigest()


BACKUP_HISTORY_FILE = "history.sqlite"
NEW_HISTORY_TIMEOUT_SECONDS = 5.0
"""How long a history that was just turned on is waited for."""
MAX_RUNS_PER_BASE = 1_000
"""So many runs stand on one base; after that another one is made, so that a manifest stays small."""
MAX_COPY_ATTEMPTS = 5


class BackupSource(msgspec.Struct, frozen=True):
    """A store to back up: where its files are, and how far it had come, asked for when its turn has come."""

    layout: Layout
    mark: Callable[[], int]


class BackupOptions(msgspec.Struct, frozen=True):
    """How to back up: everything or what is new, how many bases to keep, and whether a server keeps histories going."""

    live: bool
    full: bool = False
    keep: int | None = None


def _silent(_name: str) -> None:
    """Nobody watches."""


def back_up(
    folder: BackupFolder,
    stores: Iterable[BackupSource],
    options: BackupOptions,
    begins: Callable[[str], None] = _silent,
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
                done.append(_one(folder, wanted, options))
            except KgserveError as error:
                failed.append(BackupFailure(store=name, error=error.message))
    copied = sum(each.bytes_copied for each in done)
    return BackupAnswer(folder=str(folder.path), stores=done, failed=failed, bytes_copied=copied)


def back_up_one(folder: BackupFolder, wanted: BackupSource, options: BackupOptions) -> StoreBackupAnswer:
    """Back one store up. Raises what `back_up` raises, and what stands in the store's way."""
    _require_outside(folder, wanted.layout)
    with folder.writing():
        return _one(folder, wanted, options)


def _require_outside(folder: BackupFolder, layout: Layout) -> None:
    """A backup among the stores is gone with them, and with a store's name it would be in that store's way."""
    data = layout.root.parent.resolve()
    if folder.path.resolve().is_relative_to(data):
        raise InvalidInput(
            f"{folder.path} lies in the data folder {data}; choose a folder outside, best on another disk"
        )


def _one(folder: BackupFolder, wanted: BackupSource, options: BackupOptions) -> StoreBackupAnswer:
    started = time.perf_counter()
    name = wanted.layout.name
    copying = _Copying(wanted, folder.store(name), options)
    try:
        answer = copying.run()
    except KgserveError as error:
        log.warning("backup_failed", store=name, error=error.message)
        raise
    folder.count(name)
    wanted.layout.mark_backed_up(time.time_ns() // 1000)
    answer.took_ms = round((time.perf_counter() - started) * 1000, 1)
    log.info("backup_done", store=name, sequence=answer.sequence, bytes=answer.bytes_copied, ms=answer.took_ms)
    return answer


class _Discontinued(Exception):
    """A base cannot be gone on with; the reason is for people."""


class _Copying:
    """One backup of one store. Who makes it holds the lock of the backup's folder."""

    def __init__(self, wanted: BackupSource, backup: StoreBackup, options: BackupOptions) -> None:
        self._layout = wanted.layout
        self._backup = backup
        self._options = options
        # Before the mark: what is committed while files are copied is after the moment that this backup covers.
        self._asked = time.time_ns() // 1000
        self._mark = wanted.mark()

    def run(self) -> StoreBackupAnswer:
        """Copy what is new; everything, if that is asked for or when the former backup cannot be gone on with.

        Raises NotFound when the store is gone, JournalDamaged for a damaged journal, BackupDamaged when the former
        backup is not as it was written, StorageFull.
        """
        with storing(f"backing up store {self._layout.name!r}"):
            try:
                return self._run()
            except FileNotFoundError as error:
                raise NotFound(f"there is no store {self._layout.name!r} any more") from error

    def _run(self) -> StoreBackupAnswer:
        before = self._backup.read()
        self._backup.clear_leftovers(before)
        private_folder(self._backup.folder)
        try:
            base, reason = self._next_base(before)
        except BaseException:
            self._backup.clear_leftovers(before)
            raise
        if base.last.sequence < self._mark:
            self._backup.clear_leftovers(before)
            raise Unavailable(
                f"the files of store {self._layout.name!r} here end with sequence {base.last.sequence}, but the store "
                f"has come to {self._mark}; nothing was backed up",
                retry_after=30,
            )
        kept = before.bases if reason else before.bases[:-1]
        bases = [*kept, base]
        after = msgspec.structs.replace(before, bases=bases[-self._options.keep :] if self._options.keep else bases)
        sync_folder(self._backup.folder)
        self._backup.write(after)
        self._backup.clear_leftovers(after)
        old = {file.path for each in before.bases for file in each.files}
        mark = base.last
        return StoreBackupAnswer(
            store=self._layout.name,
            sequence=mark.sequence,
            first=base.first,
            since=format_time(base.since),
            taken_at=format_time(mark.taken),
            digest=mark.digest,
            nodes=mark.nodes,
            edges=mark.edges,
            new_base=reason,
            bytes_copied=sum(file.bytes for file in base.files if file.path not in old),
            bytes_total=after.bytes,
            bases=len(after.bases),
            took_ms=0.0,
        )

    def _next_base(self, before: BackupManifest) -> tuple[BackupBase, str]:
        """The base with what is new, and why it is another one; empty when the last one goes on."""
        for _ in range(MAX_COPY_ATTEMPTS):
            described = self._described()
            try:
                reason = "it was asked for" if self._options.full else self._why_new(before, described)
                if not reason:
                    try:
                        return self._continued(before, described), ""
                    except _Discontinued as error:
                        reason = str(error)
                return self._new_base(self._backup.run_folder(before.runs.stop), described), reason
            except FileMoved:
                self._backup.clear_leftovers(before)
        name = self._layout.name
        raise Unavailable(f"the files of store {name!r} are replaced all the time; try again", retry_after=30)

    def _described(self) -> StoreFile:
        if not self._layout.exists:
            raise NoStore(self._layout.name)
        found = self._layout.description()
        if found is None:
            raise Unavailable(f"the settings of store {self._layout.name!r} cannot be read; start its server once")
        return found

    def _marked(self, state: StoreState, described: StoreFile) -> BackupMark:
        cursor = cursor_of(self._layout.history) if described.history != "none" else None
        return BackupMark(
            sequence=state.sequence,
            time=state.time,
            # Of a clock that was ahead the last commit may have a time that is yet to come.
            taken=max(self._asked, state.time)
            if state.time - self._asked <= MAX_CLOCK_DRIFT_MICROSECONDS
            else self._asked,
            digest=to_text(state.digest),
            nodes=state.nodes,
            edges=state.edges,
            settings=described,
            history_oldest=min(cursor.oldest, state.sequence) if cursor else 0,
            is_empty=state.sequence == self._mark == 0,
        )

    # Going on with the last base

    def _why_new(self, before: BackupManifest, described: StoreFile) -> str:
        if not before.bases:
            return "it is the first"
        base = before.bases[-1]
        if described.created_at != base.created_at:
            return "the store was made anew"
        keeps = described.history != "none"
        if described.history_from != base.history_from or (keeps and not base.keeps_history):
            return "the history of the store was turned on"
        if len(base.runs) >= MAX_RUNS_PER_BASE:
            return f"the former one has {MAX_RUNS_PER_BASE:,} runs"
        return ""

    def _continued(self, before: BackupManifest, described: StoreFile) -> BackupBase:
        base = before.bases[-1]
        self._require_files(base)
        mark = max(self._mark, base.last.sequence)
        newest = base.pieces[-1] if base.pieces else None
        number = before.runs.stop
        try:
            with opened_from(self._layout, newest.segment if newest else base.needed) as opened:
                self._require_same(opened[0], base)
                offset, due = (newest.end, newest.last + 1) if newest else (0, opened[0][0].first)
                found = chunks(opened, offset, due, mark)
                pieces = copy_chunks(found, self._backup.run_folder(number))
        except JournalTooShort:
            raise _Discontinued("the journal no longer reaches back to the former backup") from None
        marked = self._marked(found[-1].state if found else base.last.state, described)
        runs = [*base.runs, BackupRun(number, pieces)] if pieces else base.runs
        # It takes the place of the last mark when only the time differs.
        same = msgspec.structs.replace(marked, taken=base.last.taken) == base.last
        return msgspec.structs.replace(base, runs=runs, marks=[*(base.marks[:-1] if same else base.marks), marked])

    def _require_files(self, base: BackupBase) -> None:
        for file in base.files:
            path = self._backup.folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise BackupDamaged(
                    f"{path}: it is missing or has another size; `kgserve verify` says more, and --full begins anew"
                )

    def _require_same(self, opened: tuple[Segment, BinaryIO], base: BackupBase) -> None:
        """Whether the store's journal goes on from the last piece, or has become another one since."""
        segment, file = opened
        if not base.pieces:
            self._require_same_snapshot(segment, base)
            return
        newest = base.pieces[-1]
        if segment.first != newest.segment:
            raise _Discontinued("the journal no longer reaches back to the former backup")
        if sum_of(file, newest.offset, newest.file.bytes) != newest.file.sha256:
            raise _Discontinued("the journal was changed before the end of the former backup, as by a restore")

    def _require_same_snapshot(self, segment: Segment, base: BackupBase) -> None:
        """The same for a base without any journal: the store's snapshot must be the one that was copied."""
        state = base.last.state
        taken = snapshot.newest_whole(self._layout.journal, state.sequence) if state.sequence else None
        if state.sequence and (segment.first <= state.sequence or taken is None or taken.state != state):
            raise _Discontinued("the store has no journal in common with the former backup")

    # Beginning a new base

    def _new_base(self, folder: Path, described: StoreFile) -> BackupBase:
        """Copy rows to start from, the journal since, and the history if the journal does not tell it, into a folder.

        Raises FileMoved, JournalDamaged, StorageFull.
        """
        folder.mkdir(parents=True)
        history, made = self._history(described, folder)
        known = history.sequence if history else 0
        mark = max(self._mark, known)
        taken = snapshot.newest_whole(self._layout.journal, mark)
        rows = _copy_snapshot(self._layout, taken, folder) if taken else None
        rows_from, copied, state = _journal(self._layout, taken, history, folder, mark)
        sync_folder(folder)
        first = max(rows_from, known)
        since = max(made, taken.time if taken and first == taken.sequence else 0)
        return BackupBase(
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

    def _history(self, described: StoreFile, folder: Path) -> tuple[HistoryCopy | None, int]:
        """A copy of the history and the time of its last commit; None when there is none, or the journal has all."""
        if described.history == "none":
            return None, 0
        deadline = time.monotonic() + (NEW_HISTORY_TIMEOUT_SECONDS if self._options.live else 0.0)
        while True:
            cursor = cursor_of(self._layout.history)
            if self._is_told_by_journal(described, cursor):
                return None, 0
            if cursor is not None and self._is_usable(described, cursor):
                return _copy_history(self._layout, folder)
            if time.monotonic() >= deadline:
                log.warning("backup_without_history", store=self._layout.name)
                return None, 0
            time.sleep(0.05)

    def _is_told_by_journal(self, described: StoreFile, cursor: HistoryCursor | None) -> bool:
        from_start = oldest_sequence(self._layout.journal) == 1 and described.history_from == 0
        return from_start and (cursor is None or cursor.oldest == 0)

    def _is_usable(self, described: StoreFile, cursor: HistoryCursor) -> bool:
        is_current = cursor.oldest >= min(described.history_from, self._mark)
        return is_current and cursor.sequence + 1 >= oldest_sequence(self._layout.journal)


def _journal(
    layout: Layout, taken: snapshot.Manifest | None, history: HistoryCopy | None, folder: Path, mark: int
) -> tuple[int, BackupRun, StoreState]:
    """From where rows are made, the journal from there on, and the state at its end."""
    starts = [*([0] if oldest_sequence(layout.journal) == 1 else []), *([taken.sequence] if taken else [])]
    failed: JournalDamaged | None = None
    for rows_from in starts:
        needed = 1 + min(rows_from, history.sequence if history else rows_from)
        try:
            with opened_from(layout, needed) as opened:
                found = chunks(opened, 0, opened[0][0].first, mark)
                run = BackupRun(int(folder.name.rpartition("-")[2]), copy_chunks(found, folder))
                return rows_from, run, _state(taken, found)
        except JournalTooShort:
            continue
        except JournalDamaged as error:
            # What a snapshot holds is not needed from the journal.
            log.warning("backup_begins_later", store=layout.name, after=rows_from, reason=str(error))
            failed = failed or error
    raise failed or JournalDamaged(f"{named(layout.journal)}: no whole snapshot reaches back as far as it begins")


def _state(taken: snapshot.Manifest | None, found: list[Chunk]) -> StoreState:
    states = [StoreState(), *([taken.state] if taken else []), *(chunk.state for chunk in found[-1:])]
    return max(states, key=lambda state: state.sequence)


def _copy_snapshot(layout: Layout, taken: snapshot.Manifest, folder: Path) -> SnapshotCopy:
    source = layout.journal / f"{snapshot.SNAPSHOT_PREFIX}{taken.sequence}"
    target = folder / source.name
    target.mkdir()
    names = (*taken.files, snapshot.SNAPSHOT_MANIFEST_FILE)
    with ExitStack() as stack:
        try:
            opened = {name: stack.enter_context((source / name).open("rb")) for name in names}
        except FileNotFoundError as error:
            raise FileMoved from error
        files = [
            copy_range(file, 0, file.seek(0, os.SEEK_END), target / name, f"{folder.name}/{source.name}/{name}")
            for name, file in opened.items()
        ]
    sync_folder(target)
    try:
        snapshot.verify(target)
    except JournalDamaged as error:  # replaced by a compaction while it was copied
        raise FileMoved from error
    return SnapshotCopy(taken.sequence, files)


def _copy_history(layout: Layout, folder: Path) -> tuple[HistoryCopy, int]:
    path = folder / BACKUP_HISTORY_FILE
    try:
        copy_database(layout.history, path)
    except sqlite3.Error as error:
        raise FileMoved from error
    cursor = cursor_of(path)
    if cursor is None:
        raise FileMoved
    if (fault := fault_of_rows(path)) is not None:
        raise BackupDamaged(
            f"{layout.history.name} of store {layout.name!r} is damaged ({fault}), and was not copied; `kgserve doctor "
            "--salvage`, or the next start of the server, keeps what is whole of it"
        )
    sync_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        entry = BackedUpFile(f"{folder.name}/{BACKUP_HISTORY_FILE}", size, sum_of(file, 0, size))
    return HistoryCopy(cursor.sequence, cursor.oldest, entry), cursor.time
