"""Copy on write: statements that write run on a copy of the store, to learn what they would change.

Rolling back is not safe in this engine, and a statement that fails half way must change nothing: so it runs in an
engine file made for such statements alone, from the rows of a store. What it changed is found by looking at the rows
before and after, and then written like anything else: planned, journaled, applied.

The copy is kept while statements keep coming. One leaves its changes in it; what the store made of them is in the
journal. So before the next one, the rows that a statement has left are put right from the present rows, with what
other writes have changed since, in one transaction. A copy that anything is unclear about is given back, and the next
statement gets a new one; so is one in which a statement may have changed edges or taken rows away, for there this
engine cannot be relied on.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kgserve.cypher.writes import WriteScope
from kgserve.errors import EngineFailed, StorageFull, Unavailable
from kgserve.platform.durable_files import storing
from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine.engine.engine import Engine, EngineOptions, Session, build, kept_versions
from kgserve.projections.cypher_engine.engine.files import remove
from kgserve.projections.cypher_engine.engine.protocol import (
    NO_DIFFERENCE,
    Changed,
    Compare,
    Compared,
    Difference,
    Doubtful,
    Tried,
    Try,
)
from kgserve.projections.cypher_engine.projection import FOLLOW_AFTER_STATEMENT_SECONDS, EngineProjection
from kgserve.projections.cypher_engine.rebuild import Few, few_rows
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.tail import Tail, next_change
from kgserve.storage.layout import Layout, require_room, require_room_to_try
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.rows import EDGE_EXTRAS, EdgeKey, EdgeRow, NodeRow
from kgserve.storage.rebuild import fresh_folder
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.view import RowsView

log = structlog.get_logger()

MAX_WARM_COPIES = 2
"""Copies that all stores together keep."""
MAX_SCRATCH_RETAINED_BYTES = 64 * MEBIBYTE
"""Memory that the engine may keep for rows that were updated in a copy."""
MAX_SCRATCH_LOG_BYTES = 64 * MEBIBYTE
"""What the log of a copy may take, or as much as its file."""
SCRATCH_LOCK_POLL_SECONDS = 0.5
_SCRATCH_ROOM_BYTES = 4 * MEBIBYTE
_Found = TypeVar("_Found")
_Key = TypeVar("_Key", str, EdgeKey)
_Row = TypeVar("_Row", NodeRow, EdgeRow)
# With a full disk the engine hangs while it closes a file, or ends the process: it must not come to that. What a
# statement has changed is in the page cache until it is committed, so that bounds what it may add.
SCRATCH_COPY_FACTOR = 4
FULL_WRITE_SCOPE = WriteScope()
_EDGE_PROPERTY_FIELDS = (*EdgeRow.__struct_fields__[2:-1], *EDGE_EXTRAS)


class Copy:
    """An engine file with the rows of a store, for statements to write to, one at a time.

    ``state`` is that of the store which it holds, but for what a statement has done: ``left`` says which rows that are,
    and None that it is to be used no more. ``has_its_edges``: none has changed, and no node gone, since it was built.
    """

    def __init__(self, folder: Path, state: StoreState, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.state = state
        self.left: Difference | None = NO_DIFFERENCE
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

    def difference(self, reach: WriteScope = FULL_WRITE_SCOPE) -> Difference:
        """What is not as it was when the trial began; only what a statement can ``reach`` is looked at.

        Raises Doubtful when the copy cannot be relied on, a new one never.
        """
        copy, state = self._copy, self._copy.state
        asked = Compare(reach, state.nodes, state.edges, str(copy.folder), copy.is_new)
        compared = self.session.channel.ask(asked, Compared)
        found = compared.difference
        found = msgspec.structs.replace(found, doubled=[*found.doubled, *self._there_before(found.edges)])
        if compared.sound and not deletes_or_changes_edges(reach):
            copy.left = found
        return found

    def _there_before(self, edges: list[Changed]) -> Iterator[EdgeKey]:
        """The keys of new edges that another has, which is as it was."""
        for key in {row.edge_key for row in edges if row.before is None and row.now["relation_type"] is not None}:
            if self._rows.edge(key) is not None:
                yield key


def deletes_or_changes_edges(reach: WriteScope) -> bool:
    """Whether a statement may take rows away, or change edges.

    In a file whose edges have changed since it was built this engine has been seen to miss some that it was to delete
    and to leave others behind; after deletions by a caller's statement, to miss nodes. Reading edges has stayed right.
    """
    sets_edges = any(reach.may_set(name) for name in _EDGE_PROPERTY_FIELDS)
    return reach.deletes or (reach.relations and (reach.creates or sets_edges))


def copied(source: Few | AbstractContextManager[Session], folder: Path, options: EngineOptions, size: int) -> Copy:
    """A copy of few rows, or of all that a session sees, in a folder of its own; it costs more the more there are.

    The session is given back before the copy is used. ``size`` is about what the engine's files of the store have, in
    bytes. Raises StorageFull when the disk has no room for the copy and for whatever a statement may add to it.
    """
    file = folder / "graph.kuzu"
    try:
        with storing("copying a store for a statement"):
            rows = fresh_folder(fresh_folder(folder) / "rows")
            require_room_to_try(folder, SCRATCH_COPY_FACTOR * size + options.file.cache_bytes)
            if isinstance(source, tuple):
                found, state = source
            else:
                with source as session:
                    found, state = rows, session.dump(rows)
            engine = build(file, found, state, options, ColumnSet.MEMORY)
            shutil.rmtree(rows)
            return Copy(folder, state, engine)
    except BaseException:
        remove(file)
        shutil.rmtree(folder, ignore_errors=True)
        raise


class WarmCopies:
    """The copies that are kept in all stores: those that were used last."""

    def __init__(self, most: int = MAX_WARM_COPIES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._copies: OrderedDict[ScratchDatabase, None] = OrderedDict()

    def used(self, copy: ScratchDatabase) -> None:
        """A copy is being used; others are given back if they are too many, unless they are in use as well."""
        with self._lock:
            self._copies[copy] = None
            self._copies.move_to_end(copy)
            surplus = list(self._copies)[: -self._most]
        for other in surplus:
            other.give_back_if_free()

    def given_back(self, copy: ScratchDatabase) -> None:
        """A copy is there no longer."""
        with self._lock:
            self._copies.pop(copy, None)


class ScratchDatabase:
    """The copy of one store, if there is one now. Statements run in it one at a time."""

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        engine: EngineProjection,
        rows: RowsView,
        copies: WarmCopies,
        seconds: float = FOLLOW_AFTER_STATEMENT_SECONDS,
    ) -> None:
        """Make none yet. It is given back once no statement has come for so many ``seconds``."""
        self.seconds = seconds
        self.made = 0
        self._folder = layout.scratch / "statement"
        self._engine = engine
        self._rows = rows
        self._copies = copies
        self._journal = journal
        self._tail = Tail(layout.journal)
        self._copy: Copy | None = None
        self._used_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_warm(self) -> bool:
        """Whether there is one."""
        return self._copy is not None

    @property
    def is_behind(self) -> bool:
        """Whether a statement has left something in it that is to be put right."""
        copy = self._copy
        return copy is not None and copy.left is not NO_DIFFERENCE

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Generator[None]:
        """The right to `run` statements, in any thread, while the block runs; ``check`` is called while waiting."""
        while not self._lock.acquire(timeout=SCRATCH_LOCK_POLL_SECONDS):
            check()
        try:
            yield
        finally:
            self._lock.release()

    def run(self, work: Callable[[Trial], _Found], reach: WriteScope = FULL_WRITE_SCOPE) -> _Found:
        """What ``work`` makes of a copy of the present rows; it is called again where the first try leads nowhere.

        ``reach`` is what it may change. For who has the `turn`. Raises what ``work`` does, and StorageFull when there
        is no room for a copy.
        """
        try:
            with self._rows.reading() as rows:
                return self._run(work, reach, rows)
        finally:
            self._used_at = time.monotonic()
            if self._copy is not None and (self._copy.left is None or _is_worn(self._copy)):
                self._give_back()

    def tend(self) -> None:
        """Put right what a statement has left, follow, and give back what nobody wants. Blocks."""
        if self._copy is None or not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._used_at >= self.seconds:
                self._give_back()
                return
            with self._rows.reading() as rows:
                self._is_in_step(rows)
        finally:
            self._lock.release()

    def give_back_if_free(self) -> None:
        """Let the copy go, unless a statement is at it."""
        if self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Let the copy go."""
        with self._lock:
            self._give_back()

    def _run(self, work: Callable[[Trial], _Found], reach: WriteScope, rows: Rows) -> _Found:
        if self._is_in_step(rows) and self._suits(reach):
            # What has been written to for long may be worn out where a new one is not: its cache may be full.
            with contextlib.suppress(Doubtful, StorageFull, EngineFailed, Unavailable):
                return self._tried(work, rows)
            log.info("copy_doubtful", store=self._engine.layout.name)
        self._give_back()
        engine = self._engine
        source = few_rows(self._rows) or engine.reading(timeout=0)
        self._copy = copied(source, self._folder, engine.options, sum(engine.bytes()))
        self.made += 1
        return self._tried(work, rows)

    def _suits(self, reach: WriteScope) -> bool:
        copy = self._copy
        return copy is not None and (copy.has_its_edges or not deletes_or_changes_edges(reach))

    def _tried(self, work: Callable[[Trial], _Found], rows: Rows) -> _Found:
        copy = self._copy
        assert copy is not None  # noqa: S101
        self._copies.used(self)
        with copy.trying(rows) as trial:
            return work(trial)

    def _is_in_step(self, rows: Rows) -> bool:
        """Whether there is a copy of these rows and room for a statement in it; if not, there is none any more."""
        copy = self._copy
        if copy is None:
            return False
        try:
            require_room_to_try(self._folder, self._engine.options.file.cache_bytes)
            if self._follow(copy, rows):
                return True
        except StorageFull:
            pass
        except Exception:
            # Whatever it was, nobody knows what this copy holds now.
            log.exception("copy_not_followed", store=self._engine.layout.name)
        self._give_back()
        return False

    def _follow(self, copy: Copy, rows: Rows) -> bool:
        """Make a copy one of these rows, unless that is too much for one transaction."""
        behind = copy.state.sequence < rows.at
        if not behind and copy.left is NO_DIFFERENCE:
            return True
        net = next_change(self._tail, copy.state.sequence, rows.at) if behind else NetChange()
        if copy.left is None or (behind and net.state != rows.state):
            return False
        settle(net, copy.left, rows)
        if copy.engine.kept_bytes + kept_versions(net, rows.state) > MAX_SCRATCH_RETAINED_BYTES:
            return False
        if len(net):
            require_room(self._folder, _SCRATCH_ROOM_BYTES)
            copy.engine.apply(net, rows.state, recorded=False)
            # What a statement has set before it is put right is kept as well.
            copy.engine.kept_bytes += kept_versions(net, rows.state)
            copy.is_new = False
            copy.has_its_edges &= not (net.edges_created or net.edges_updated or net.edges_deleted or net.nodes_deleted)
        copy.state, copy.left = rows.state, NO_DIFFERENCE
        return True

    def _give_back(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()
            self._copies.given_back(self)


def settle(net: NetChange, left: Difference, rows: Rows) -> None:
    """Have a net change lead to these rows from a copy in which a statement has ``left`` something, too."""
    nodes = {row.now["id"]: True for row in left.nodes} | dict.fromkeys(left.nodes_gone, False)
    for node_id, is_there in nodes.items():
        node = rows.node(node_id)
        _settle(node_id, node, net.nodes_created, net.nodes_updated, net.nodes_deleted, is_there=is_there)
        # What a statement has set beyond the fields that every node has goes, too.
        net.remade.add(node_id)
    edges = {row.edge_key: True for row in left.edges} | dict.fromkeys(left.edges_gone, False)
    for key, is_there in edges.items():
        edge = rows.edge(key)
        _settle(key, edge, net.edges_created, net.edges_updated, net.edges_deleted, is_there=is_there)


def _settle(
    key: _Key,
    row: _Row | None,
    created: dict[_Key, _Row],
    updated: dict[_Key, _Row],
    deleted: set[_Key],
    *,
    is_there: bool,
) -> None:
    created.pop(key, None)
    updated.pop(key, None)
    deleted.discard(key)
    if row is not None:
        (updated if is_there else created)[key] = row
    elif is_there:
        deleted.add(key)


def _is_worn(copy: Copy) -> bool:
    file_bytes, log_bytes = copy.engine.bytes()
    return log_bytes > max(MAX_SCRATCH_LOG_BYTES, file_bytes)
