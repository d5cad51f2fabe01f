"""Layout of a store's folder: paths, marker files and settings records.

Settings are records of the journal, one file per change; the newest counts, and the one before is kept. A file
``settings.<number>`` holds a checksum (XXH3, 128 bits, hexadecimal), a line break and the content. It is written under
another name, synced and renamed, so only disk damage makes it incomplete.

The end of the module reads the state of a closed store, and its witnesses: projections that were notified of commits
after the journal had them on disk. None of them can legitimately be ahead of the journal. After a power loss an
unsynced projection may be behind or damaged, but the commits it reports were durable. A witness that is ahead proves
that the journal lost its end; one that cannot be read proves nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import xxhash

from kgserve.errors import Conflict, InvalidInput, JournalDamaged
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, shorten_journal_path, write_file_atomically
from kgserve.platform.settings import MEBIBYTE
from kgserve.platform.sqlite_files import remove_path
from kgserve.platform.text.languages import LanguageSetting
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import (
    SEGMENT_SUFFIX,
    Journal,
    JournalEnd,
    ProjectionWatermark,
    find_last_whole_journal_frame,
    list_journal_segments,
)
from kgserve.storage.journal.snapshot import SNAPSHOT_PREFIX
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.store_incarnations import StoreIncarnation
from kgserve.storage.model.store_rows_digest import SerializedStoreState, parse_store_rows_digest
from kgserve.storage.model.store_settings import (
    ConflictPolicy,
    HistoryRetention,
    IndexChoice,
    LateInteraction,
    MemorySettings,
    StoreSettings,
)
from kgserve.storage.rows.current_rows import read_newest_base_segment_sequence

log = structlog.get_logger()

_Mark = TypeVar("_Mark", "CleanCloseMarker", "EngineCleanCloseMarker")

STORE_FOLDER_SUFFIX = "_memory"
JOURNAL_FOLDER = "journal"
HISTORY_FILE = "history.sqlite"
CATALOG_FILE = "views/catalog.sqlite"
CLOSE_MARK_FILE = "closed.json"
IDEMPOTENT_ANSWERS_FILE = "idempotent-answers.log"
STORE_FILE = "store.json"
STORE_FORMAT = 2
"""Newest known format of a store. Older programs refuse a newer one, which they could not read. 2: packed frames."""
PLAIN_STORE_FORMAT = 1
"""Format of a store without newer features."""
SETTINGS_RECORD_PREFIX = "settings."
MAX_SETTINGS_RECORDS = 2
_UNUSABLE_PATH_CHARACTERS = "'\"\\*?[]"


class StoreDescription(msgspec.Struct, frozen=True):
    """Description of a store and its settings, as in a settings record of the journal and its copy store.json.

    ``history_from`` is the sequence at which the history was last turned on again; nothing older is kept.
    ``incarnations`` are those after the first.
    """

    format: int
    created_at: int
    name: str = ""
    conflict_policy: ConflictPolicy = "lww"
    kind_whitelist: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    indexed_attributes: tuple[str, ...] = ()
    indexes: IndexChoice = "default"
    language: LanguageSetting = "auto"
    late_interaction: LateInteraction = "turns"
    history: HistoryRetention = "all"
    memory: MemorySettings = MemorySettings()
    history_from: int = 0
    incarnations: tuple[StoreIncarnation, ...] = ()

    @property
    def settings(self) -> StoreSettings:
        """Settings chosen by the store's owner."""
        return StoreSettings(**{field: getattr(self, field) for field in StoreSettings.__struct_fields__})

    def with_settings(self, settings: StoreSettings, sequence: int) -> StoreDescription:
        """Return the description with other settings, chosen at a sequence."""
        turned_on = self.history == "none" != settings.history
        since = sequence if turned_on else self.history_from
        return msgspec.structs.replace(self, **msgspec.structs.asdict(settings), history_from=since)


class FileFingerprint(msgspec.Struct, frozen=True):
    """Fingerprint of a file: size in bytes and modification time in nanoseconds; -1 for a missing file."""

    size: int
    changed: int


class CleanCloseMarker(SerializedStoreState, frozen=True, kw_only=True):
    """Contents of closed.json, the mark of a clean close, removed at open. If it matches, the journal is unchanged.

    ``links`` is the number of links, and ``links_changed`` the last commit that changed any, 0 for none. Both are -1 if
    they were not recorded.
    """

    journal: JournalEnd
    links: int = -1
    links_changed: int = -1


class EngineCleanCloseMarker(SerializedStoreState, frozen=True, kw_only=True):
    """Contents of engine.json, the marker that the engine's file was closed cleanly. Removed before it is opened.

    If all of it matches, the files are unchanged and hold the store at this state. Only the ``engine`` version that
    wrote them may open them.
    """

    file: FileFingerprint
    log: FileFingerprint
    engine: str = "kuzu 0.11.3"  # the only engine before marks named it


def is_store_folder(root: Path) -> bool:
    """Return True if a folder has a journal or files derived from one. A symbolic link is never a store.

    Called for each folder when listing stores; glob patterns would take half as long again.
    """
    if root.is_symlink():
        return False
    with suppress(OSError):
        names = os.listdir(root / JOURNAL_FOLDER)  # noqa: PTH208 - as above
        if any(name.endswith(SEGMENT_SUFFIX) or name.startswith(SNAPSHOT_PREFIX) for name in names):
            return True
    return (root / HISTORY_FILE).is_file() or (root / CATALOG_FILE).is_file()


class _LayoutPath:
    """Descriptor of a path within a store's folder, computed on access: most callers need one or two paths."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, layout: StoreLayout, owner: type[StoreLayout]) -> Path:
        return layout.root / self._path


class StoreLayout:
    """Paths of the files and folders of one store."""

    journal = _LayoutPath(JOURNAL_FOLDER)
    engine = _LayoutPath("graph.kuzu")
    history = _LayoutPath(HISTORY_FILE)
    extraction = _LayoutPath("extraction.sqlite")
    idempotent_answers = _LayoutPath(IDEMPOTENT_ANSWERS_FILE)
    views = _LayoutPath("views")
    catalog = _LayoutPath(CATALOG_FILE)
    memories = _LayoutPath("views/memories.sqlite")
    links = _LayoutPath("views/links.sqlite")
    ended = _LayoutPath("views/ended.sqlite")
    rows = _LayoutPath("views/rows")
    embeddings = _LayoutPath("views/embeddings.sqlite")
    scratch = _LayoutPath("scratch")
    _store_file = _LayoutPath(STORE_FILE)
    _close_mark = _LayoutPath(CLOSE_MARK_FILE)
    _engine_mark = _LayoutPath("engine.json")
    _backup_mark = _LayoutPath("backed-up.json")

    def __init__(self, data_dir: Path, name: str) -> None:
        self.name = name
        self.root = data_dir / f"{name}{STORE_FOLDER_SUFFIX}"

    def syncer_progress_file(self, syncer: str) -> Path:
        """Return the file that records how far a syncer has been sent the store's contents."""
        return self.root / f"syncing-{syncer}.json"

    @property
    def exists(self) -> bool:
        """True if the store exists."""
        return is_store_folder(self.root)

    def describe(self, description: StoreDescription) -> StoreDescription:
        """Write the store's description durably. Raises OSError with the previous description still in effect."""
        write_store_description(self.root, description)
        return description

    def description(self) -> StoreDescription | None:
        """Return the description from the newest valid settings record, or from store.json; None if both fail."""
        records = (_decode_description(content) for content in read_store_settings_records(self.journal))
        # store.json is at most as new as a damaged newest record, and newer than the record before it.
        return next(
            (found for found in (next(records, None), self._file_description(), *records) if found is not None), None
        )

    def load_description(self) -> StoreDescription:
        """Return the description, with defaults if none is readable, and repair copies that differ from it.

        Raises Conflict for a store of a newer format, which is left unchanged.
        """
        fault, found = self.settings_fault(), self.description()
        if found is not None and found.format > STORE_FORMAT:
            raise Conflict(
                f"store {self.name!r} was written by a newer version of kgserve (format {found.format}; this version "
                f"supports up to {STORE_FORMAT}); it was not changed. Upgrade kgserve to open it."
            )
        if fault:
            log.error("settings_mended" if found else "settings_lost", store=self.name, reason=fault)
        description = found or StoreDescription(PLAIN_STORE_FORMAT, self.created_at())
        if self._file_description() != description or self._journal_description() != description:
            log.info("settings_rewritten", store=self.name)
            try:
                self.describe(description)
            except OSError as error:
                log.warning("settings_not_mended", store=self.name, error=str(error))
        return description

    def read_description_or_default(self) -> StoreDescription:
        """Return the description, with defaults if none is readable. Repairs nothing."""
        return self.description() or StoreDescription(PLAIN_STORE_FORMAT, self.created_at())

    def settings_fault(self) -> str | None:
        """Return a description of the damaged copy of the settings, if any; either copy repairs the other."""
        if next(read_store_settings_records(self.journal), b"") is None:
            return "the newest settings record in the journal is damaged"
        if self._file_description() is None:
            return "store.json is damaged" if self._store_file.exists() else "store.json is missing"
        return None

    def _journal_description(self) -> StoreDescription | None:
        return _decode_description(next(read_store_settings_records(self.journal), None))

    def _file_description(self) -> StoreDescription | None:
        try:
            return _decode_description(self._store_file.read_bytes())
        except OSError:
            return None

    def created_at(self) -> int:
        """Return when the store was created, in microseconds; by default, when its folder was last changed."""
        description = self.description()
        return description.created_at if description else self.root.stat().st_mtime_ns // 1000

    def sync_names(self) -> None:
        """Sync the store's folder entries: the store may be new, or its creator was killed before syncing."""
        fsync_folder(self.root)
        fsync_folder(self.root.parent)

    def invalidate_projections(self) -> None:
        """Delete the current rows and invalidate the engine's file, so that both are rebuilt when next needed."""
        self.remove_engine_marker()
        remove_path(self.rows)

    def remove_indexes(self) -> None:
        """Remove the search indexes, to be rebuilt; computed embeddings are kept."""
        for name in ("keyword", "vector", "past-keyword", "past-vector", "token-vectors"):
            remove_path(self.views / name)

    def remove_embeddings(self) -> None:
        """Remove the computed embeddings."""
        for path in self.views.glob(f"{self.embeddings.name}*"):
            remove_path(path)

    def close_mark(self) -> CleanCloseMarker | None:
        """Return the mark of the last clean close, or None."""
        return _read_mark(self._close_mark, CleanCloseMarker)

    def mark_closed(self, state: StoreState, end: JournalEnd, links: int = -1, links_changed: int = -1) -> None:
        """Write closed.json."""
        mark = CleanCloseMarker.of(state, journal=end, links=links, links_changed=links_changed)
        _write_mark(self._close_mark, mark)

    def mark_open(self) -> None:
        """Remove closed.json; from then on the journal is verified when the store opens."""
        remove_path(self._close_mark)

    def engine_mark(self) -> EngineCleanCloseMarker | None:
        """Return the state in which the engine's file was closed, or None after an unclean close."""
        return _read_mark(self._engine_mark, EngineCleanCloseMarker)

    def backed_up_at(self) -> int | None:
        """Return when the last backup was made, in microseconds; None before the first."""
        try:
            return decode_json(self._backup_mark.read_bytes(), int)
        except (OSError, msgspec.MsgspecError):
            return None

    def mark_backed_up(self, time: int, *, durably: bool = True) -> None:
        """Record the time of a backup, in microseconds. A read-only folder is no error."""
        content, path = msgspec.json.encode(time), self._backup_mark
        try:
            if durably:
                write_file_atomically(path, content)
            else:
                # Not truncated first: ext4 then flushes the file when it is closed. All times have 16 digits.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
                    file.write(content)
        except OSError as error:
            log.warning("backup_not_marked", store=self.name, error=str(error))

    def engine_fault(self, mark: EngineCleanCloseMarker, oldest: int, last: int) -> str | None:
        """Return why the engine's file cannot be used with a journal of commits ``oldest`` to ``last``, or None."""
        if self._engine_files() != (mark.file, mark.log):
            return "the engine's files changed since they were closed"
        if not oldest - 1 <= mark.state.sequence <= last:
            return "the journal does not continue from the end of the engine's file"
        return None

    def mark_engine(self, state: StoreState, engine: str) -> None:
        """Write engine.json: the engine's file, as it is now, holds a state and was written by ``engine``."""
        file, log_ = self._engine_files()
        mark = EngineCleanCloseMarker.of(state, file=file, log=log_, engine=engine)
        _write_mark(self._engine_mark, mark)

    def _engine_files(self) -> tuple[FileFingerprint, FileFingerprint]:
        return _file_mark(self.engine), _file_mark(engine_wal_path(self.engine))

    def remove_engine_marker(self) -> None:
        """Durably remove engine.json; from then on the engine's file is not trusted."""
        if self._engine_mark.exists() or self._engine_mark.is_symlink():
            remove_path(self._engine_mark)
            fsync_folder(self.root)


def write_store_description(root: Path, description: StoreDescription) -> None:
    """Write the description of the store in a folder: to its journal, then to store.json.

    Raises OSError only if the first fails. A failure of the second is repaired when the store opens.
    """
    content = msgspec.json.encode(description)
    (root / JOURNAL_FOLDER).mkdir(exist_ok=True)
    _write_record(root / JOURNAL_FOLDER, content)
    try:
        write_file_atomically(root / STORE_FILE, content)
    except OSError as error:
        log.warning("store_file_not_written", path=str(root / STORE_FILE), error=str(error))


def _write_record(folder: Path, content: bytes) -> None:
    """Add a settings record durably. Raises OSError with the previous record still the newest."""
    numbers = _record_numbers(folder)
    number = max(numbers, default=0) + 1
    write_file_atomically(folder / f"{SETTINGS_RECORD_PREFIX}{number}", f"{_checksum(content)}\n".encode() + content)
    for old in sorted(numbers)[: 1 - MAX_SETTINGS_RECORDS]:
        (folder / f"{SETTINGS_RECORD_PREFIX}{old}").unlink(missing_ok=True)


def read_store_settings_records(folder: Path) -> Iterator[bytes | None]:
    """Yield the contents of the settings records in a journal's folder, newest first; None for damaged ones."""
    for number in sorted(_record_numbers(folder), reverse=True):
        try:
            checksum, _, content = (folder / f"{SETTINGS_RECORD_PREFIX}{number}").read_bytes().partition(b"\n")
        except OSError:
            yield None
        else:
            yield content if checksum == _checksum(content).encode() else None


def _record_numbers(folder: Path) -> list[int]:
    names = (path.name[len(SETTINGS_RECORD_PREFIX) :] for path in folder.glob(f"{SETTINGS_RECORD_PREFIX}*"))
    return [int(name) for name in names if name.isdecimal()]


def _checksum(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def _decode_description(content: bytes | None) -> StoreDescription | None:
    try:
        return None if content is None else decode_json(content, StoreDescription)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("settings_unreadable", error=str(error))
        return None


def _write_mark(path: Path, mark: SerializedStoreState) -> None:
    """Write a mark as a line of JSON, and its checksum as a second line."""
    content = msgspec.json.encode(mark)
    write_file_atomically(path, content + b"\n" + _checksum(content).encode())


def _read_mark(path: Path, kind: type[_Mark]) -> _Mark | None:
    """Return a mark; None if it is missing or damaged. Marks of older versions have no checksum."""
    try:
        content, separator, checksum = path.read_bytes().partition(b"\n")
        if separator and checksum != _checksum(content).encode():
            return None
        found = decode_json(content, kind)
        parse_store_rows_digest(found.digest)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return found


def _file_mark(path: Path) -> FileFingerprint:
    """Return the fingerprint of a file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return FileFingerprint(-1, -1)
    return FileFingerprint(found.st_size, found.st_mtime_ns)


def validate_data_folder_path(data_dir: Path) -> Path:
    """Return the data folder if its path is safe to pass to the engine, as text and as a pattern.

    Raises InvalidInput otherwise.
    """
    text = str(data_dir)
    if not text.isprintable() or any(sign in text for sign in _UNUSABLE_PATH_CHARACTERS):
        raise InvalidInput(f"{text}: the path of the data folder must not contain quotes, backslashes, *, ?, [ or ]")
    return data_dir


# The moment is written with the cursor: a number counts as undamaged only if both agree.
_SELECT_VERIFIED_HISTORY_SEQUENCE = "SELECT sequence FROM cursor WHERE sequence IN (SELECT sequence FROM moment)"
_SELECT_CURSOR_SEQUENCE = "SELECT sequence FROM cursor"
_WITNESS_LOCK_TIMEOUT_SECONDS = 1.0  # normally no lock is held


def read_projection_sequences(layout: StoreLayout) -> Iterator[ProjectionWatermark]:
    """Yield the last sequence that each projection of a closed store has applied; read-only, takes a millisecond."""
    yield ProjectionWatermark("the history", read_last_history_sequence(layout))
    yield ProjectionWatermark("the catalog", _cursor_sequence(layout.catalog, _SELECT_CURSOR_SEQUENCE))
    yield ProjectionWatermark("the memory index", _cursor_sequence(layout.memories, _SELECT_CURSOR_SEQUENCE))
    yield ProjectionWatermark("the keyword index", _manifest_sequence(layout.views / "keyword"))
    yield ProjectionWatermark("the vector index", _manifest_sequence(layout.views / "vector"))
    yield ProjectionWatermark("the current rows", read_newest_base_segment_sequence(layout.rows))


def read_last_history_sequence(layout: StoreLayout) -> int:
    """Return the sequence of the last commit that the history has applied; 0 if unknown. The store may be open."""
    return _cursor_sequence(layout.history, _SELECT_VERIFIED_HISTORY_SEQUENCE)


class _Manifest(msgspec.Struct, frozen=True):
    """Part of an index folder's manifest."""

    sequence: int


def _manifest_sequence(folder: Path) -> int:
    try:
        return decode_json((folder / "manifest.json").read_bytes(), _Manifest).sequence
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _cursor_sequence(path: Path, query: str) -> int:
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


def open_journal(layout: StoreLayout, segment_mb: int) -> Journal:
    """Open the journal of a closed store, verifying only as much as needed. Raises JournalDamaged."""
    if (mark := layout.close_mark()) is None:
        layout.sync_names()
        snapshot.complete_snapshot_replacements(layout.journal)
    after = snapshot.newest_snapshot_sequence(layout.journal) if layout.journal.is_dir() else 0
    trusted = mark and mark.journal
    return Journal.open(layout.journal, segment_mb * MEBIBYTE, after, trusted, read_projection_sequences(layout))


def read_closed_store_state(layout: StoreLayout) -> StoreState:
    """Return the state recorded at the clean close, or else that of the last whole frame in the journal.

    Raises JournalDamaged when no segment is left, FileNotFoundError when the store does not exist.
    """
    mark = layout.close_mark()
    if mark is not None:
        return mark.state
    segments = list_journal_segments(layout.journal)
    if not segments:
        raise JournalDamaged(
            f"{shorten_journal_path(layout.journal)}: no segment is left; run `kgserve doctor --salvage`"
        )
    for segment in reversed(segments):
        # A torn tail is cut when the store opens, so the state before it counts.
        last, _ = find_last_whole_journal_frame(segment, None)
        if last is not None:
            return last.changes()[-1].state
    snapshots = snapshot.list_journal_snapshots(layout.journal)
    return snapshot.verify_snapshot(snapshots[0]).state if snapshots else StoreState()


WAL_SUFFIX = ".wal"


def engine_wal_path(path: Path) -> Path:
    """Return the path of the engine's write-ahead log for a database file."""
    return path.with_name(path.name + WAL_SUFFIX)
