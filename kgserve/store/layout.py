"""Where a store's files are, and the two small files that describe them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from kgserve.decoding import decode_json
from kgserve.journal.files import sync_folder, write_whole
from kgserve.journal.journal import JournalEnd
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text, to_text
from kgserve.model.store_settings import ConflictPolicy, Keeping, StoreSettings

log = structlog.get_logger()

_Mark = TypeVar("_Mark")

SUFFIX = "_memory"
FORMAT = 1


class StoreFile(msgspec.Struct, frozen=True):
    """store.json: what the store is, and its settings. Replaced as a whole.

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

    If all of it fits, the files are as they were left, and hold the store at this state.
    """

    state: StoreState
    file: FileMark
    log: FileMark


class Layout:
    """The paths of one store."""

    def __init__(self, data_dir: Path, name: str) -> None:
        self.name = name
        self.root = data_dir / f"{name}{SUFFIX}"
        self.journal = self.root / "journal"
        self.engine = self.root / "graph.kuzu"
        self.views = self.root / "views"
        self.catalog = self.views / "catalog.sqlite"
        self.rows = self.views / "rows"
        self.scratch = self.root / "scratch"
        self._store_file = self.root / "store.json"
        self._close_mark = self.root / "closed.json"
        self._engine_mark = self.root / "engine.json"

    @property
    def exists(self) -> bool:
        """Whether the store is there: whether it has a journal. A link is none of ours."""
        return not self.root.is_symlink() and any(self.journal.glob("*.log"))

    def describe(self, description: StoreFile) -> StoreFile:
        """Write store.json; it is durable afterwards."""
        write_whole(self._store_file, msgspec.json.encode(description))
        return description

    def description(self) -> StoreFile | None:
        """What store.json says, if it can be read."""
        try:
            return decode_json(self._store_file.read_bytes(), StoreFile)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, IsADirectoryError, PermissionError) as error:
            log.warning("store_file_damaged", path=str(self._store_file), error=str(error))
            return None

    def described(self) -> StoreFile:
        """What store.json says; a new one with the usual settings if it cannot be read."""
        return self.description() or self.describe(StoreFile(FORMAT, self.created_at()))

    def created_at(self) -> int:
        """When the store was made, in microseconds; as old as its folder if nothing else is known."""
        description = self.description()
        return description.created_at if description else self.root.stat().st_mtime_ns // 1000

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
        return found and EngineMark(found.state, found.file, found.log)

    def mark_engine(self, mark: EngineMark) -> None:
        """Write engine.json."""
        stored = _StoredEngineMark(*_stored(mark.state), file=mark.file, log=mark.log)
        write_whole(self._engine_mark, msgspec.json.encode(stored))

    def forget_engine_mark(self) -> None:
        """Remove engine.json: from here on the engine's file is not to be believed; that is durable when it returns."""
        if self._engine_mark.exists():
            self._engine_mark.unlink()
            sync_folder(self.root)


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


def _stored(state: StoreState) -> tuple[int, int, str, int, int]:
    return state.sequence, state.time, to_text(state.digest), state.nodes, state.edges


def file_mark(path: Path) -> FileMark:
    """How a file is now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return FileMark(-1, -1)
    return FileMark(found.st_size, found.st_mtime_ns)
