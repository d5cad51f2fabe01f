"""Running a statement that writes on a copy of the store, to learn what it would change.

Rolling back is not safe in this engine, and a statement that fails half way must change nothing: so it runs in an
engine file made for such statements alone, from a snapshot of the rows. What it changed is found by looking at the rows
before and after, and then written like anything else: planned, journaled, applied.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec

from kgserve.cypher.reach import Reach
from kgserve.engine.engine import Engine, EngineOptions, Session, build
from kgserve.engine.files import remove
from kgserve.engine.protocol import NOTHING, Changed, Compare, Compared, Difference, Tried, Try
from kgserve.errors import StorageFull
from kgserve.journal.files import storage_error
from kgserve.model.change import StoreState
from kgserve.model.rows import EDGE_EXTRAS, EdgeKey, EdgeRow
from kgserve.rows.snapshot import Rows
from kgserve.settings import MEBIBYTE
from kgserve.store.rebuild import Few, fresh_folder

# With a full disk the engine hangs while it closes a file, or ends the process: it must not come to that. What a
# statement has changed is in the page cache until it is committed, so that bounds what it may add.
COPY_FACTOR = 4
EVERYTHING = Reach()
_OF_EDGES = (*EdgeRow.__struct_fields__[2:-1], *EDGE_EXTRAS)


class Copy:
    """An engine file with the rows of a store, for statements to write to, one at a time.

    ``state`` is that of the store which it holds, but for what a statement has done: ``left`` says which rows that are,
    and None that it is to be used no more. ``has_its_edges``: none has changed, and no node gone, since it was built.
    """

    def __init__(self, folder: Path, state: StoreState, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.state = state
        self.left: Difference | None = NOTHING
        self.is_new = True
        self.has_its_edges = True

    @contextmanager
    def trying(self, rows: Rows) -> Generator[Trial]:
        """Have a statement run; these are the rows that it has, or some that were there a moment before."""
        channel = self.engine.writer.channel
        channel.ask(Try())
        self.left = None
        yield Trial(self, rows)
        channel.ask(Tried())
        self.is_new = False

    def close(self) -> None:
        """Close the file, and leave nothing of it."""
        try:
            self.engine.retire()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Trial:
    """A statement that may change a copy, through ``session``."""

    def __init__(self, copy: Copy, rows: Rows) -> None:
        self.session = copy.engine.writer
        self._copy = copy
        self._rows = rows

    def difference(self, reach: Reach = EVERYTHING) -> Difference:
        """What is not as it was when the trial began; only what a statement can ``reach`` is looked at.

        Raises Doubtful when the copy cannot be relied on, a new one never.
        """
        copy, state = self._copy, self._copy.state
        asked = Compare(reach, state.nodes, state.edges, str(copy.folder), copy.is_new)
        compared = self.session.channel.ask(asked, Compared)
        found = compared.difference
        found = msgspec.structs.replace(found, doubled=[*found.doubled, *self._there_before(found.edges)])
        if compared.sound and not is_rough(reach):
            copy.left = found
        return found

    def _there_before(self, edges: list[Changed]) -> Iterator[EdgeKey]:
        """The keys of new edges that another has, which is as it was."""
        for key in {row.edge_key for row in edges if row.before is None and row.now["relation_type"] is not None}:
            if self._rows.edge(key) is not None:
                yield key


def is_rough(reach: Reach) -> bool:
    """Whether a statement may take rows away, or change edges.

    In a file whose edges have changed since it was built this engine has been seen to miss some that it was to delete
    and to leave others behind; after deletions by a caller's statement, to miss nodes. Reading edges has stayed right.
    """
    sets_edges = any(reach.may_set(name) for name in _OF_EDGES)
    return reach.deletes or (reach.relations and (reach.creates or sets_edges))


def copied(source: Few | AbstractContextManager[Session], folder: Path, options: EngineOptions, size: int) -> Copy:
    """A copy of few rows, or of all that a session sees, in a folder of its own; it costs more the more there are.

    The session is given back before the copy is used. ``size`` is about what the engine's files of the store have, in
    bytes. Raises StorageFull when the disk has no room for the copy and for whatever a statement may add to it.
    """
    try:
        rows = fresh_folder(fresh_folder(folder) / "rows")
        require_room_to_try(folder, COPY_FACTOR * size + options.file.cache_bytes)
        if isinstance(source, tuple):
            found, state = source
        else:
            with source as session:
                found, state = rows, session.dump(rows)
        engine = build(_file(folder), found, state, options, whole=True)
        shutil.rmtree(rows)
        return Copy(folder, state, engine)
    except BaseException as error:
        remove(_file(folder))
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise storage_error(error, "copying a store for a statement") from error
        raise


def require_room_to_try(folder: Path, needed: int) -> None:
    """Raise StorageFull unless so many bytes are left for a copy and for what a statement may add to it."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"a statement that writes works on a copy of the store and needs {needed // MEBIBYTE} MiB on the disk;"
            f" {free // MEBIBYTE} MiB are left"
        )


def _file(folder: Path) -> Path:
    return folder / "graph.kuzu"
