"""Where a store's files are, and the two small files that describe them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from kgserve.journal.files import write_whole
from kgserve.journal.journal import JournalEnd
from kgserve.model.change import StoreState

SUFFIX = "_memory"
FORMAT = 1


class StoreFile(msgspec.Struct, frozen=True):
    """store.json: what the store is. Written once."""

    format: int
    created_at: int


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
        self.views = self.root / "views"
        self.catalog = self.views / "catalog.sqlite"
        self.scratch = self.root / "scratch"
        self._store_file = self.root / "store.json"
        self._close_mark = self.root / "closed.json"

    @property
    def exists(self) -> bool:
        """Whether the store is there: whether it has a journal. A link is none of ours."""
        return not self.root.is_symlink() and any(self.journal.glob("*.log"))

    def describe(self, created_at: int) -> StoreFile:
        """Write store.json."""
        description = StoreFile(FORMAT, created_at)
        write_whole(self._store_file, msgspec.json.encode(description))
        return description

    def description(self) -> StoreFile | None:
        """What store.json says, if it can be read."""
        try:
            return msgspec.json.decode(self._store_file.read_bytes(), type=StoreFile)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def created_at(self) -> int:
        """When the store was made, in microseconds; as old as its folder if nothing else is known."""
        description = self.description()
        return description.created_at if description else self.root.stat().st_mtime_ns // 1000

    def forget_indexes(self) -> None:
        """Remove the indexes, to be filled anew; embeddings that were computed are kept."""
        for name in ("keyword", "vector"):
            shutil.rmtree(self.views / name, ignore_errors=True)

    def close_mark(self) -> CloseMark | None:
        """The mark of the last clean close, if there is one."""
        try:
            return msgspec.json.decode(self._close_mark.read_bytes(), type=_StoredMark).mark()
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
