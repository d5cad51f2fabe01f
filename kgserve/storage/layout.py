"""A store's folder: where its files are, the small ones that describe it, and whether the disk has room for more.

Its settings are records of its journal, one for each change, in a file of its own; the newest counts, and the one
before is kept beside it. A file ``settings.<number>`` holds a checksum (XXH3, 128 bits, hexadecimal), a line break and
the content. It is written aside, synced and renamed, so one that is not whole was damaged by the disk.

At the end what the files of a store that is not open tell: its state, and who else knows how far it had come. The
latter are views that were told of commits once the journal had them on the disk. So none of them can rightly be ahead
of the journal, whatever became of the machine: a view that is not synced may be behind or damaged after a power loss,
but what it says it has seen was durable before. One that is ahead is proof that the journal has lost its end. One that
cannot be read says nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import xxhash

from kgserve.errors import Conflict, InvalidInput, JournalDamaged, StorageFull
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import named, sync_folder, write_whole
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.sqlite_files import remove_path
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import SEGMENT_SUFFIX, Journal, JournalEnd, Witness, list_segments, whole_part
from kgserve.storage.journal.snapshot import SNAPSHOT_PREFIX
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.digest import Stated, from_text
from kgserve.storage.model.store_settings import ConflictPolicy, IndexesKept, Keeping, MemorySettings, StoreSettings
from kgserve.storage.rows.view import newest_base

log = structlog.get_logger()

_Mark = TypeVar("_Mark", "CloseMark", "EngineMark")

STORE_FOLDER_SUFFIX = "_memory"
JOURNAL_FOLDER = "journal"
HISTORY_FILE = "history.sqlite"
CATALOG_FILE = "views/catalog.sqlite"
STORE_FILE = "store.json"
STORE_FORMAT = 2
"""The newest that is known. It goes up when a store comes to hold what an older program would lose or not read, which
then refuses it. 2: there are packed frames in its journal."""
PLAIN_STORE_FORMAT = 1
"""What a store is while it holds nothing of the kind."""
SETTINGS_RECORD_PREFIX = "settings."
MAX_SETTINGS_RECORDS = 2
MIN_FREE_BYTES = 4 * MEBIBYTE
"""With less than that on the disk a server is not ready for writes."""
ROOM_FACTOR = 2
REBUILD_ROOM_FACTOR = 3
MIN_REBUILD_ROOM_BYTES = 16 * MEBIBYTE
_UNUSABLE_PATH_CHARACTERS = "'\"\\*?[]"


class StoreFile(msgspec.Struct, frozen=True):
    """What a store is, and its settings: a record of its journal, and store.json, which is a view of the newest one.

    ``history_from`` is the sequence at which its history was last turned on again; nothing from before is kept.
    """

    format: int
    created_at: int
    name: str = ""
    conflict_policy: ConflictPolicy = "lww"
    kind_whitelist: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    indexed_attributes: tuple[str, ...] = ()
    indexes: IndexesKept = "default"
    history: Keeping = "all"
    memory: MemorySettings = MemorySettings()
    history_from: int = 0

    @property
    def settings(self) -> StoreSettings:
        """What its owner has chosen."""
        return StoreSettings(**{field: getattr(self, field) for field in StoreSettings.__struct_fields__})

    def with_settings(self, settings: StoreSettings, sequence: int) -> StoreFile:
        """The same store with other settings, chosen when it was at a sequence."""
        turned_on = self.history == "none" != settings.history
        since = sequence if turned_on else self.history_from
        return StoreFile(self.format, self.created_at, **msgspec.structs.asdict(settings), history_from=since)


class FileMark(msgspec.Struct, frozen=True):
    """A file as it was: size in bytes and time of change in nanoseconds; -1 when it was not there."""

    size: int
    changed: int


class CloseMark(Stated, frozen=True, kw_only=True):
    """closed.json: written at a clean close, removed at open. If it fits, the journal is as it was left.

    ``links`` are how many there were, and ``links_changed`` is the last commit that changed any, 0 for none: -1 for
    both where that was not put down.
    """

    journal: JournalEnd
    links: int = -1
    links_changed: int = -1


class EngineMark(Stated, frozen=True, kw_only=True):
    """engine.json: written when the engine's file is closed cleanly, removed before it is opened.

    If all of it fits, the files are as they were left, and hold the store at this state. Only the ``engine`` that wrote
    them, in its version, is to open them.
    """

    file: FileMark
    log: FileMark
    engine: str = "kuzu 0.11.3"  # the only one there was when marks did not name it


def holds_store(root: Path) -> bool:
    """Whether a folder has a journal, or something that only a journal can have led to. A link is none of ours.

    Who lists stores asks this of each: patterns would take half as long again.
    """
    if root.is_symlink():
        return False
    with suppress(OSError):
        names = os.listdir(root / JOURNAL_FOLDER)  # noqa: PTH208 - as above
        if any(name.endswith(SEGMENT_SUFFIX) or name.startswith(SNAPSHOT_PREFIX) for name in names):
            return True
    return (root / HISTORY_FILE).is_file() or (root / CATALOG_FILE).is_file()


class _Place:
    """A path within a store's folder, made when it is asked for: most who look at a store need one or two of them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, layout: Layout, owner: type[Layout]) -> Path:
        return layout.root / self._path


class Layout:
    """The paths of one store."""

    journal = _Place(JOURNAL_FOLDER)
    engine = _Place("graph.kuzu")
    history = _Place(HISTORY_FILE)
    extraction = _Place("extraction.sqlite")
    views = _Place("views")
    catalog = _Place(CATALOG_FILE)
    memories = _Place("views/memories.sqlite")
    links = _Place("views/links.sqlite")
    ended = _Place("views/ended.sqlite")
    rows = _Place("views/rows")
    embeddings = _Place("views/embeddings.sqlite")
    scratch = _Place("scratch")
    _store_file = _Place(STORE_FILE)
    _close_mark = _Place("closed.json")
    _engine_mark = _Place("engine.json")
    _backup_mark = _Place("backed-up.json")

    def __init__(self, data_dir: Path, name: str) -> None:
        self.name = name
        self.root = data_dir / f"{name}{STORE_FOLDER_SUFFIX}"

    def syncing(self, syncer: str) -> Path:
        """Where it is put down how far one was told of the store's contents."""
        return self.root / f"syncing-{syncer}.json"

    @property
    def exists(self) -> bool:
        """Whether the store is there."""
        return holds_store(self.root)

    def describe(self, description: StoreFile) -> StoreFile:
        """Put down what the store is; durable afterwards. Raises OSError, and then the store is what it was."""
        write_description(self.root, description)
        return description

    def description(self) -> StoreFile | None:
        """What the store is, if that can be read: what the newest record in its journal says, or else store.json."""
        records = (_decoded(content) for content in read_records(self.journal))
        # A record that is damaged is as new as store.json, or newer; the one before it is older.
        return next((found for found in (next(records, None), self._in_file(), *records) if found is not None), None)

    def described(self) -> StoreFile:
        """As `description`; with the usual settings when nothing can be read. What does not say the same is mended.

        Raises Conflict for a store of a newer version, which is left as it is.
        """
        fault, found = self.settings_fault(), self.description()
        if found is not None and found.format > STORE_FORMAT:
            raise Conflict(
                f"store {self.name!r} was written by a newer version of kgserve (format {found.format}; this one knows "
                f"{STORE_FORMAT}): it is left as it is"
            )
        if fault:
            log.error("settings_mended" if found else "settings_lost", store=self.name, reason=fault)
        description = found or StoreFile(PLAIN_STORE_FORMAT, self.created_at())
        if self._in_file() != description or self._in_journal() != description:
            log.info("settings_written_anew", store=self.name)
            try:
                self.describe(description)
            except OSError as error:
                log.warning("settings_not_mended", store=self.name, error=str(error))
        return description

    def as_described(self) -> StoreFile:
        """As `described`, for who only looks: nothing is mended."""
        return self.description() or StoreFile(PLAIN_STORE_FORMAT, self.created_at())

    def settings_fault(self) -> str | None:
        """What is damaged of the two places where the settings are, in words; one place is enough to mend the other."""
        if next(read_records(self.journal), b"") is None:
            return "the newest record of the settings in the journal is damaged"
        if self._in_file() is None:
            return "store.json is damaged" if self._store_file.exists() else "store.json is missing"
        return None

    def _in_journal(self) -> StoreFile | None:
        return _decoded(next(read_records(self.journal), None))

    def _in_file(self) -> StoreFile | None:
        try:
            return _decoded(self._store_file.read_bytes())
        except OSError:
            return None

    def created_at(self) -> int:
        """When the store was made, in microseconds; as old as its folder if nothing else is known."""
        description = self.description()
        return description.created_at if description else self.root.stat().st_mtime_ns // 1000

    def sync_names(self) -> None:
        """Make durable that the store is there: it may be new, or a process that was killed not have come to it."""
        sync_folder(self.root)
        sync_folder(self.root.parent)

    def forget_views(self) -> None:
        """Have the engine's file and the present rows made anew from the journal when they are next needed."""
        self.forget_engine_mark()
        remove_path(self.rows)

    def forget_indexes(self) -> None:
        """Remove the indexes, to be filled anew; embeddings that were computed are kept."""
        for name in ("keyword", "vector", "past-keyword", "past-vector"):
            remove_path(self.views / name)

    def forget_embeddings(self) -> None:
        """Remove the vectors that were computed."""
        for path in self.views.glob(f"{self.embeddings.name}*"):
            remove_path(path)

    def close_mark(self) -> CloseMark | None:
        """The mark of the last clean close, if there is one."""
        return _read_mark(self._close_mark, CloseMark)

    def mark_closed(self, state: StoreState, end: JournalEnd, links: int = -1, links_changed: int = -1) -> None:
        """Write closed.json."""
        mark = CloseMark.of(state, journal=end, links=links, links_changed=links_changed)
        write_whole(self._close_mark, msgspec.json.encode(mark))

    def mark_open(self) -> None:
        """Remove closed.json: from here on the journal is looked through before it is believed."""
        remove_path(self._close_mark)

    def engine_mark(self) -> EngineMark | None:
        """How the engine's file was left, if it was closed cleanly."""
        return _read_mark(self._engine_mark, EngineMark)

    def backed_up_at(self) -> int | None:
        """When the last backup of it was made, in microseconds; None before the first."""
        try:
            return decode_json(self._backup_mark.read_bytes(), int)
        except (OSError, msgspec.MsgspecError):
            return None

    def mark_backed_up(self, time: int) -> None:
        """Put that down; who may read the store, and not write there, makes backups all the same."""
        try:
            write_whole(self._backup_mark, msgspec.json.encode(time))
        except OSError as error:
            log.warning("backup_not_marked", store=self.name, error=str(error))

    def engine_fault(self, mark: EngineMark, oldest: int, last: int) -> str | None:
        """Why the engine's file cannot be taken as it is, with a journal that goes from one commit to another."""
        if self._engine_files() != (mark.file, mark.log):
            return "the engine's files are not as they were left"
        if not oldest - 1 <= mark.state.sequence <= last:
            return "the journal does not go on where the engine's file ends"
        return None

    def mark_engine(self, state: StoreState, engine: str) -> None:
        """Write engine.json: the file, as it is now, holds the store at a state, and was written by an ``engine``."""
        file, log_ = self._engine_files()
        mark = EngineMark.of(state, file=file, log=log_, engine=engine)
        write_whole(self._engine_mark, msgspec.json.encode(mark))

    def _engine_files(self) -> tuple[FileMark, FileMark]:
        return _file_mark(self.engine), _file_mark(wal_path(self.engine))

    def forget_engine_mark(self) -> None:
        """Remove engine.json: from here on the engine's file is not to be believed; that is durable when it returns."""
        if self._engine_mark.exists() or self._engine_mark.is_symlink():
            remove_path(self._engine_mark)
            sync_folder(self.root)


def write_description(root: Path, description: StoreFile) -> None:
    """Put down what the store in a folder is: in its journal, then in store.json.

    Raises OSError only for the first, after which it holds: what has become of store.json is seen when the store opens.
    """
    content = msgspec.json.encode(description)
    (root / JOURNAL_FOLDER).mkdir(exist_ok=True)
    _write_record(root / JOURNAL_FOLDER, content)
    try:
        write_whole(root / STORE_FILE, content)
    except OSError as error:
        log.warning("store_file_not_written", path=str(root / STORE_FILE), error=str(error))


def _write_record(folder: Path, content: bytes) -> None:
    """Add a record; it is durable afterwards. Raises OSError with the former one still the newest."""
    numbers = _numbers(folder)
    number = max(numbers, default=0) + 1
    write_whole(folder / f"{SETTINGS_RECORD_PREFIX}{number}", f"{_checksum(content)}\n".encode() + content)
    for old in sorted(numbers)[: 1 - MAX_SETTINGS_RECORDS]:
        (folder / f"{SETTINGS_RECORD_PREFIX}{old}").unlink(missing_ok=True)


def read_records(folder: Path) -> Iterator[bytes | None]:
    """The contents of the records in a journal's folder, newest first; None for one that is damaged."""
    for number in sorted(_numbers(folder), reverse=True):
        try:
            checksum, _, content = (folder / f"{SETTINGS_RECORD_PREFIX}{number}").read_bytes().partition(b"\n")
        except OSError:
            yield None
        else:
            yield content if checksum == _checksum(content).encode() else None


def _numbers(folder: Path) -> list[int]:
    names = (path.name[len(SETTINGS_RECORD_PREFIX) :] for path in folder.glob(f"{SETTINGS_RECORD_PREFIX}*"))
    return [int(name) for name in names if name.isdecimal()]


def _checksum(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def _decoded(content: bytes | None) -> StoreFile | None:
    try:
        return None if content is None else decode_json(content, StoreFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("settings_unreadable", error=str(error))
        return None


def _read_mark(path: Path, kind: type[_Mark]) -> _Mark | None:
    try:
        found = decode_json(path.read_bytes(), kind)
        from_text(found.digest)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return found


def _file_mark(path: Path) -> FileMark:
    """How a file is now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return FileMark(-1, -1)
    return FileMark(found.st_size, found.st_mtime_ns)


def require_room_to_write(folder: Path, size: int) -> None:
    """Raise StorageFull unless there is room for a write of ``size`` bytes in the journal, and for what follows it."""
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES + ROOM_FACTOR * size:
        raise StorageFull(f"only {free // MEBIBYTE} MiB are left on the disk; free some space and try again")


def require_room(folder: Path, size: int) -> None:
    """Raise StorageFull unless there is room to build an engine file beside files of ``size`` bytes.

    On a disk that fills up while it closes a file, the engine has been seen to wait for ever.
    """
    free = shutil.disk_usage(folder).free
    needed = REBUILD_ROOM_FACTOR * size + MIN_REBUILD_ROOM_BYTES
    if free < needed:
        raise StorageFull(f"a new engine file wants {needed // MEBIBYTE} MiB of room; {free // MEBIBYTE} are left")


def require_room_to_try(folder: Path, needed: int) -> None:
    """Raise StorageFull unless so many bytes are left for a copy and for what a statement may add to it."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"a statement that writes works on a copy of the store and needs {needed // MEBIBYTE} MiB on the disk;"
            f" {free // MEBIBYTE} MiB are left"
        )


def usable_folder(data_dir: Path) -> Path:
    """The data folder, if the engine can be told its path, which it takes as text, and as a pattern.

    Raises InvalidInput if not.
    """
    text = str(data_dir)
    if not text.isprintable() or any(sign in text for sign in _UNUSABLE_PATH_CHARACTERS):
        raise InvalidInput(f"{text}: the data folder's path may not hold quotes, backslashes, *, ?, [ or ]")
    return data_dir


# The moment is written with the cursor: a damaged number is believed only where it stands twice.
_SELECT_VERIFIED_HISTORY_SEQUENCE = "SELECT sequence FROM cursor WHERE sequence IN (SELECT sequence FROM moment)"
_SELECT_CURSOR_SEQUENCE = "SELECT sequence FROM cursor"
_WITNESS_LOCK_TIMEOUT_SECONDS = 1.0  # seconds to wait for a lock; nobody should hold one


def witnesses(layout: Layout) -> Iterator[Witness]:
    """What each view of a store that is not open says it has seen; none is changed, and it takes a millisecond."""
    yield Witness("the history", seen_by_history(layout))
    yield Witness("the catalog", _of_database(layout.catalog, _SELECT_CURSOR_SEQUENCE))
    yield Witness("what is known of memories", _of_database(layout.memories, _SELECT_CURSOR_SEQUENCE))
    yield Witness("the keyword index", _of_manifest(layout.views / "keyword"))
    yield Witness("the vector index", _of_manifest(layout.views / "vector"))
    yield Witness("the present rows", newest_base(layout.rows))


def seen_by_history(layout: Layout) -> int:
    """The last commit that the history says it has seen; 0 where it says nothing. It may be open."""
    return _of_database(layout.history, _SELECT_VERIFIED_HISTORY_SEQUENCE)


class _Manifest(msgspec.Struct, frozen=True):
    """The part of a sealed folder's manifest that matters here."""

    sequence: int


def _of_manifest(folder: Path) -> int:
    try:
        return decode_json((folder / "manifest.json").read_bytes(), _Manifest).sequence
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _of_database(path: Path, query: str) -> int:
    if not path.is_file():
        return 0
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WITNESS_LOCK_TIMEOUT_SECONDS)
        ) as connection:
            found = connection.execute(query).fetchone()
    except sqlite3.Error:
        return 0
    return found[0] if found and isinstance(found[0], int) else 0


def open_journal(layout: Layout, segment_mb: int) -> Journal:
    """The journal of a store that is not open, as far as it has to be looked through. Raises JournalDamaged."""
    after = snapshot.newest_sequence(layout.journal) if layout.journal.is_dir() else 0
    if (mark := layout.close_mark()) is None:
        layout.sync_names()
    trusted = mark and mark.journal
    return Journal.open(layout.journal, segment_mb * MEBIBYTE, after, trusted, witnesses(layout))


def closed_state(layout: Layout) -> StoreState:
    """The state in the mark of its clean close, or else the one in the last whole frame of its journal.

    Raises JournalDamaged when no segment is left, FileNotFoundError when there is no store.
    """
    mark = layout.close_mark()
    if mark is not None:
        return mark.state
    segments = list_segments(layout.journal)
    if not segments:
        raise JournalDamaged(f"{named(layout.journal)}: no segment of it is left; run `kgserve doctor --salvage`")
    for segment in reversed(segments):
        # What comes before a torn tail is what the store will open with.
        last, _ = whole_part(segment, None)
        if last is not None:
            return last.changes()[-1].state
    snapshots = snapshot.list_snapshots(layout.journal)
    return snapshot.verify(snapshots[0]).state if snapshots else StoreState()


WAL_SUFFIX = ".wal"


def wal_path(path: Path) -> Path:
    """The engine's log beside its file."""
    return path.with_name(path.name + WAL_SUFFIX)
