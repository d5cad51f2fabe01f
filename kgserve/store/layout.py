"""Where a store's files are, and the two small files that describe them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import structlog

from kgserve.decoding import decode_json
from kgserve.journal.files import write_whole
from kgserve.journal.journal import JournalEnd
from kgserve.journal.snapshot import PREFIX as SNAPSHOT_PREFIX
from kgserve.model.change import StoreState
from kgserve.model.store_settings import ConflictPolicy, Keeping, StoreSettings

log = structlog.get_logger()

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
    """closed.json: written at a clean close, removed at open. If all of it fits, the files are as they were left."""

    state: StoreState
    journal: JournalEnd
    engine: FileMark
    engine_log: FileMark


class Layout:
    """The paths of one store."""

    def __init__(self, data_dir: Path, name: str) -> None:
        self.name = name
        self.root = data_dir / f"{name}{SUFFIX}"
        self.journal = self.root / "journal"
        self.engine = self.root / "graph.kuzu"
        self.history = self.root / "history.sqlite"
        self.views = self.root / "views"
        self.catalog = self.views / "catalog.sqlite"
        self.scratch = self.root / "scratch"
        self._store_file = self.root / "store.json"
        self._close_mark = self.root / "closed.json"

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

    def forget_indexes(self) -> None:
        """Remove the indexes, to be filled anew; embeddings that were computed are kept."""
        for name in ("keyword", "vector", "past-keyword", "past-vector"):
            shutil.rmtree(self.views / name, ignore_errors=True)

    def close_mark(self) -> CloseMark | None:
        """The mark of the last clean close, if there is one."""
        try:
            return decode_json(self._close_mark.read_bytes(), _StoredMark).mark()
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def mark_closed(self, mark: CloseMark) -> None:
        """Write closed.json."""
        write_whole(self._close_mark, msgspec.json.encode(_StoredMark.of(mark)))

    def mark_open(self) -> None:
        """Remove closed.json: from here on only the journal is believed."""
        self._close_mark.unlink(missing_ok=True)


class _StoredMark(msgspec.Struct, frozen=True):
    """`CloseMark` as JSON, where a 128-bit digest does not fit a number."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int
    journal: JournalEnd
    engine: FileMark
    engine_log: FileMark

    @classmethod
    def of(cls, mark: CloseMark) -> _StoredMark:
        state = mark.state
        digest = f"{state.digest:032x}"
        return cls(
            state.sequence, state.time, digest, state.nodes, state.edges, mark.journal, mark.engine, mark.engine_log
        )

    def mark(self) -> CloseMark:
        state = StoreState(self.sequence, self.time, int(self.digest, 16), self.nodes, self.edges)
        return CloseMark(state, self.journal, self.engine, self.engine_log)


def file_mark(path: Path) -> FileMark:
    """How a file is now."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return FileMark(-1, -1)
    return FileMark(found.st_size, found.st_mtime_ns)
