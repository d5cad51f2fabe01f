"""Where a store's files are, and the two small files that describe them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from kgserve.decoding import decode_json
from kgserve.engine.files import wal_path
from kgserve.errors import InvalidInput
from kgserve.journal.files import sync_folder, write_whole
from kgserve.journal.journal import JournalEnd
from kgserve.journal.settings_records import read_records, write_record
from kgserve.journal.snapshot import PREFIX as SNAPSHOT_PREFIX
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text, to_text
from kgserve.model.stores import ConflictPolicy, Keeping, StoreSettings

log = structlog.get_logger()

_Mark = TypeVar("_Mark")

SUFFIX = "_memory"
JOURNAL = "journal"
STORE_FILE = "store.json"
FORMAT = 1
_UNUSABLE = "'\"\\*?[]"


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
    history: Keeping = "all"
    history_from: int = 0

    @property
    def settings(self) -> StoreSettings:
        """What its owner has chosen."""
        return StoreSettings(
            name=self.name,
            conflict_policy=self.conflict_policy,
            kind_whitelist=self.kind_whitelist,
            metadata=self.metadata,
            history=self.history,
        )

    def with_settings(self, settings: StoreSettings, sequence: int) -> StoreFile:
        """The same store with other settings, chosen when it was at a sequence."""
        turned_on = self.history == "none" != settings.history
        since = sequence if turned_on else self.history_from
        return StoreFile(self.format, self.created_at, **msgspec.structs.asdict(settings), history_from=since)


class FileMark(msgspec.Struct, frozen=True):
    """A file as it was: size in bytes and time of change in nanoseconds; -1 when it was not there."""

    size: int
    changed: int


class CloseMark(msgspec.Struct, frozen=True):
    """closed.json: written at a clean close, removed at open. If it fits, the journal is as it was left."""

    state: StoreState
    journal: JournalEnd


class EngineMark(msgspec.Struct, frozen=True):
    """engine.json: written when the engine's file is closed cleanly, removed before it is opened.

    If all of it fits, the files are as they were left, and hold the store at this state. Only the ``engine`` that wrote
    them, in its version, is to open them.
    """

    state: StoreState
    file: FileMark
    log: FileMark
    engine: str


class Layout:
    """The paths of one store."""

    def __init__(self, data_dir: Path, name: str) -> None:
        self.name = name
        self.root = data_dir / f"{name}{SUFFIX}"
        self.journal = self.root / JOURNAL
        self.engine = self.root / "graph.kuzu"
        self.history = self.root / "history.sqlite"
        self.views = self.root / "views"
        self.catalog = self.views / "catalog.sqlite"
        self.rows = self.views / "rows"
        self.scratch = self.root / "scratch"
        self._store_file = self.root / STORE_FILE
        self._close_mark = self.root / "closed.json"
        self._engine_mark = self.root / "engine.json"

    @property
    def exists(self) -> bool:
        """Whether the store is there: whether it has a journal, or something that only a journal can have led to.

        A link is none of ours.
        """
        return not self.root.is_symlink() and (any(self.journal.glob("*.log")) or self._has_outlived_its_journal)

    @property
    def _has_outlived_its_journal(self) -> bool:
        snapshots = any(self.journal.glob(f"{SNAPSHOT_PREFIX}*"))
        return snapshots or self.history.is_file() or self.catalog.is_file()

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
        """As `description`; with the usual settings when nothing can be read. What does not say the same is mended."""
        fault, found = self.settings_fault(), self.description()
        if fault:
            log.error("settings_mended" if found else "settings_lost", store=self.name, reason=fault)
        description = found or StoreFile(FORMAT, self.created_at())
        if self._in_file() != description or self._in_journal() != description:
            log.info("settings_written_anew", store=self.name)
            try:
                self.describe(description)
            except OSError as error:
                log.warning("settings_not_mended", store=self.name, error=str(error))
        return description

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
        shutil.rmtree(self.rows, ignore_errors=True)

    def forget_indexes(self) -> None:
        """Remove the indexes, to be filled anew; embeddings that were computed are kept."""
        for name in ("keyword", "vector", "past-keyword", "past-vector"):
            shutil.rmtree(self.views / name, ignore_errors=True)

    def close_mark(self) -> CloseMark | None:
        """The mark of the last clean close, if there is one."""
        found = _read_mark(self._close_mark, _StoredMark)
        return found and CloseMark(found.state, found.journal)

    def mark_closed(self, mark: CloseMark) -> None:
        """Write closed.json."""
        write_whole(self._close_mark, msgspec.json.encode(_StoredMark(*_stored(mark.state), journal=mark.journal)))

    def mark_open(self) -> None:
        """Remove closed.json: from here on the journal is looked through before it is believed."""
        self._close_mark.unlink(missing_ok=True)

    def engine_mark(self) -> EngineMark | None:
        """How the engine's file was left, if it was closed cleanly."""
        found = _read_mark(self._engine_mark, _StoredEngineMark)
        return found and EngineMark(found.state, found.file, found.log, found.engine)

    def engine_fault(self, mark: EngineMark, oldest: int, last: int) -> str | None:
        """Why the engine's file cannot be taken as it is, with a journal that goes from one commit to another."""
        if (file_mark(self.engine), file_mark(wal_path(self.engine))) != (mark.file, mark.log):
            return "the engine's files are not as they were left"
        if not oldest - 1 <= mark.state.sequence <= last:
            return "the journal does not go on where the engine's file ends"
        return None

    def mark_engine(self, mark: EngineMark) -> None:
        """Write engine.json."""
        stored = _StoredEngineMark(*_stored(mark.state), file=mark.file, log=mark.log, engine=mark.engine)
        write_whole(self._engine_mark, msgspec.json.encode(stored))

    def forget_engine_mark(self) -> None:
        """Remove engine.json: from here on the engine's file is not to be believed; that is durable when it returns."""
        if self._engine_mark.exists():
            self._engine_mark.unlink()
            sync_folder(self.root)


def write_description(root: Path, description: StoreFile) -> None:
    """Put down what the store in a folder is: in its journal, then in store.json.

    Raises OSError only for the first, after which it holds: what has become of store.json is seen when the store opens.
    """
    content = msgspec.json.encode(description)
    (root / JOURNAL).mkdir(exist_ok=True)
    write_record(root / JOURNAL, content)
    try:
        write_whole(root / STORE_FILE, content)
    except OSError as error:
        log.warning("store_file_not_written", path=str(root / STORE_FILE), error=str(error))


def _decoded(content: bytes | None) -> StoreFile | None:
    try:
        return None if content is None else decode_json(content, StoreFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("settings_unreadable", error=str(error))
        return None


def _read_mark(path: Path, kind: type[_Mark]) -> _Mark | None:
    try:
        return decode_json(path.read_bytes(), kind)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


class _StoredState(msgspec.Struct, frozen=True):
    """`StoreState` as JSON, where a 128-bit digest does not fit a number."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int

    @property
    def state(self) -> StoreState:
        return StoreState(self.sequence, self.time, from_text(self.digest), self.nodes, self.edges)


class _StoredMark(_StoredState, frozen=True, kw_only=True):
    journal: JournalEnd


class _StoredEngineMark(_StoredState, frozen=True, kw_only=True):
    file: FileMark
    log: FileMark
    engine: str = "kuzu 0.11.3"  # the only one there was when marks did not name it


def _stored(state: StoreState) -> tuple[int, int, str, int, int]:
    return state.sequence, state.time, to_text(state.digest), state.nodes, state.edges


def file_mark(path: Path) -> FileMark:
    """How a file is now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return FileMark(-1, -1)
    return FileMark(found.st_size, found.st_mtime_ns)


def usable_folder(data_dir: Path) -> Path:
    """The data folder, if the engine can be told its path, which it takes as text, and as a pattern.

    Raises InvalidInput if not.
    """
    text = str(data_dir)
    if not text.isprintable() or any(sign in text for sign in _UNUSABLE):
        raise InvalidInput(f"{text}: the data folder's path may not hold quotes, backslashes, *, ?, [ or ]")
    return data_dir
