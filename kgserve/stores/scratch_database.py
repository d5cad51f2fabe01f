"""Scratch databases for dry runs: statements write to a copy of the store to learn what they would change.

The engine's rollback is not safe, and a statement that fails half way must change nothing. So each statement runs in a
separate engine file built from the store's rows. Its changes are found by comparing rows before and after, and are then
planned, journaled and applied like any other write.

The copy is kept while statements keep arriving. Before the next statement, rows changed by the previous one are reset
to the current rows, and other commits are applied, in one transaction. A copy is discarded if its state is uncertain,
or if a statement may have changed edges or deleted rows, where the engine is unreliable. The next statement then gets a
new copy.
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

from kgserve.cypher.write_analysis import StatementWriteBounds
from kgserve.errors import EngineFailed, StorageFull, Unavailable
from kgserve.platform.durable_files import translate_storage_errors
from kgserve.platform.settings import MEBIBYTE
from kgserve.projections.cypher_engine.engine.engine_handle import (
    EngineHandle,
    EngineOptions,
    EngineProcessSession,
    build_engine_file,
    estimate_change_bytes_kept_by_engine,
)
from kgserve.projections.cypher_engine.engine.files import delete_engine_file
from kgserve.projections.cypher_engine.engine.protocol import (
    NO_ROW_CHANGES,
    BeginDryRun,
    ChangedRow,
    CompareDryRunRowsRequest,
    DryRunChangesReply,
    EndDryRunRequest,
    ScratchCopyUnreliable,
    StatementRowChanges,
)
from kgserve.projections.cypher_engine.projection import FOLLOW_AFTER_STATEMENT_SECONDS, EngineFileProjection
from kgserve.projections.cypher_engine.rebuild import InlineRows, read_current_rows_if_few
from kgserve.storage.current_rows_rebuild import recreate_empty_folder
from kgserve.storage.disk_space import require_disk_space_for_dry_run, require_disk_space_for_rebuild
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.journal_reader import JournalReader, read_net_change
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import EDGE_EXTRA_NAMES, EdgeKey, EdgeRow, NodeRow
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

MAX_CACHED_SCRATCH_COPIES = 2
"""Maximum number of copies kept by all stores together."""
MAX_SCRATCH_RETAINED_BYTES = 64 * MEBIBYTE
"""Maximum memory that the engine may retain for rows updated in a copy."""
MAX_SCRATCH_LOG_BYTES = 64 * MEBIBYTE
"""Maximum size of a copy's log; a larger file allows a log of its own size."""
SCRATCH_LOCK_POLL_SECONDS = 0.5
_SCRATCH_ROOM_BYTES = 4 * MEBIBYTE
_Result = TypeVar("_Result")
_Key = TypeVar("_Key", str, EdgeKey)
_Row = TypeVar("_Row", NodeRow, EdgeRow)
# On a full disk the engine hangs or exits while closing a file, so free space is required up front. The page cache
# holds a statement's changes until commit, which bounds their size.
SCRATCH_FREE_SPACE_FACTOR = 4
FULL_WRITE_SCOPE = StatementWriteBounds()
_EDGE_PROPERTY_FIELDS = (*EdgeRow.__struct_fields__[2:-1], *EDGE_EXTRA_NAMES)


class ScratchEngineFile:
    """Engine file for dry runs, with the rows of a store, to which one statement at a time writes.

    ``state`` is the store's state that it holds. ``left`` lists the rows changed by the last statement; None marks the
    copy as unusable. ``has_its_edges`` is True while no edge has changed and no node was deleted since it was built.
    """

    def __init__(self, folder: Path, state: StoreState, engine: EngineHandle) -> None:
        self.folder = folder
        self.engine = engine
        self.state = state
        self.left: StatementRowChanges | None = NO_ROW_CHANGES
        self.is_new = True
        self.has_its_edges = True

    @contextmanager
    def run_statement(self, rows: RowsSnapshot) -> Generator[ScratchStatement]:
        """Run a statement in the block. ``rows`` are the copy's rows, or rows from shortly before."""
        channel = self.engine.writer.channel
        channel.ask(BeginDryRun())
        self.left = None
        yield ScratchStatement(self, rows)
        channel.ask(EndDryRunRequest())
        self.is_new = False

    def close(self) -> None:
        """Close and delete the file."""
        try:
            self.engine.retire()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class ScratchStatement:
    """Statement that runs on a scratch database through ``session``."""

    def __init__(self, copy: ScratchEngineFile, rows: RowsSnapshot) -> None:
        self.session = copy.engine.writer
        self._copy = copy
        self._rows = rows

    def difference(self, reach: StatementWriteBounds = FULL_WRITE_SCOPE) -> StatementRowChanges:
        """Return what the statement changed. Only rows that it can ``reach`` are compared.

        Raises ScratchCopyUnreliable if the copy is unreliable; a new copy never is.
        """
        copy, state = self._copy, self._copy.state
        asked = CompareDryRunRowsRequest(reach, state.nodes, state.edges, str(copy.folder), copy.is_new)
        compared = self.session.channel.ask(asked, DryRunChangesReply)
        found = compared.difference
        found = msgspec.structs.replace(found, doubled=[*found.doubled, *self._existing_keys(found.edges)])
        if compared.sound and not can_delete_rows_or_change_edges(reach):
            copy.left = found
        return found

    def _existing_keys(self, edges: list[ChangedRow]) -> Iterator[EdgeKey]:
        """Yield the keys of new edges that already existed and are unchanged."""
        for key in {row.edge_key for row in edges if row.before is None and row.now["relation_type"] is not None}:
            if self._rows.edge(key) is not None:
                yield key


def can_delete_rows_or_change_edges(reach: StatementWriteBounds) -> bool:
    """Return whether a statement can delete rows or change edges.

    In a file whose edges have changed since it was built, the engine sometimes fails to delete edges. After a
    statement's deletions, it sometimes misses nodes. Reading edges is always correct.
    """
    sets_edges = any(reach.may_set(name) for name in _EDGE_PROPERTY_FIELDS)
    return reach.deletes or (reach.relations and (reach.creates or sets_edges))


def build_scratch_engine_file(
    source: InlineRows | AbstractContextManager[EngineProcessSession], folder: Path, options: EngineOptions, size: int
) -> ScratchEngineFile:
    """Build a scratch engine file with few rows, or all rows that a session sees, in a folder of its own.

    The session is released before the copy is used. ``size`` is the approximate size of the store's engine files in
    bytes. Raises StorageFull if the disk has no room for the copy and for what a statement may add.
    """
    file = folder / "graph.kuzu"
    try:
        with translate_storage_errors("copying a store for a statement"):
            rows = recreate_empty_folder(recreate_empty_folder(folder) / "rows")
            require_disk_space_for_dry_run(folder, SCRATCH_FREE_SPACE_FACTOR * size + options.file.cache_bytes)
            if isinstance(source, tuple):
                found, state = source
            else:
                with source as session:
                    found, state = rows, session.dump(rows)
            engine = build_engine_file(file, found, state, options, NodeEdgeColumnSet.MEMORY)
            shutil.rmtree(rows)
            return ScratchEngineFile(folder, state, engine)
    except BaseException:
        delete_engine_file(file)
        shutil.rmtree(folder, ignore_errors=True)
        raise


class ScratchEngineFileLruCache:
    """LRU cache of the scratch engine files of all stores."""

    def __init__(self, limit: int = MAX_CACHED_SCRATCH_COPIES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._copies: OrderedDict[ScratchDatabase, None] = OrderedDict()

    def used(self, copy: ScratchDatabase) -> None:
        """Mark a copy as used, and discard the oldest ones above the limit unless they are in use."""
        with self._lock:
            self._copies[copy] = None
            self._copies.move_to_end(copy)
            surplus = list(self._copies)[: -self._limit]
        for other in surplus:
            other.discard_if_idle()

    def given_back(self, copy: ScratchDatabase) -> None:
        """Remove a discarded copy from the list."""
        with self._lock:
            self._copies.pop(copy, None)


class ScratchDatabase:
    """Scratch database of one store, for dry runs of statements, one at a time."""

    def __init__(
        self,
        layout: StoreLayout,
        journal: Journal,
        engine: EngineFileProjection,
        rows: CurrentRowsProjection,
        copies: ScratchEngineFileLruCache,
        seconds: float = FOLLOW_AFTER_STATEMENT_SECONDS,
    ) -> None:
        """Create without a copy. A copy is discarded after ``seconds`` without statements."""
        self.seconds = seconds
        self.made = 0
        self._folder = layout.scratch / "statement"
        self._engine = engine
        self._rows = rows
        self._copies = copies
        self._journal = journal
        self._tail = JournalReader(layout.journal)
        self._copy: ScratchEngineFile | None = None
        self._used_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_warm(self) -> bool:
        """True if a copy exists."""
        return self._copy is not None

    @property
    def is_behind(self) -> bool:
        """True if rows changed by a statement have to be reset."""
        copy = self._copy
        return copy is not None and copy.left is not NO_ROW_CHANGES

    @contextmanager
    def exclusive_use(self, check: Callable[[], None]) -> Generator[None]:
        """Acquire the exclusive right to `run` statements, from any thread; ``check`` is called while waiting."""
        while not self._lock.acquire(timeout=SCRATCH_LOCK_POLL_SECONDS):
            check()
        try:
            yield
        finally:
            self._lock.release()

    def run(
        self, work: Callable[[ScratchStatement], _Result], reach: StatementWriteBounds = FULL_WRITE_SCOPE
    ) -> _Result:
        """Return the result of ``work`` on a copy of the current rows.

        ``work`` may be called a second time, on a new copy. ``reach`` is what the statement may change. The caller must
        hold `exclusive_use`. Raises the errors of ``work``, and StorageFull if there is no room for a copy.
        """
        try:
            with self._rows.reading() as rows:
                return self._run(work, reach, rows)
        finally:
            self._used_at = time.monotonic()
            if self._copy is not None and (self._copy.left is None or _needs_replacement(self._copy)):
                self._discard()

    def tend(self) -> None:
        """Reset changed rows, apply new commits, and discard an unused copy. Blocks."""
        if self._copy is None or not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() - self._used_at >= self.seconds:
                self._discard()
                return
            with self._rows.reading() as rows:
                self._bring_up_to_date(rows)
        finally:
            self._lock.release()

    def discard_if_idle(self) -> None:
        """Discard the copy unless a statement is running."""
        if self._lock.acquire(blocking=False):
            try:
                self._discard()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Discard the copy."""
        with self._lock:
            self._discard()

    def _run(
        self, work: Callable[[ScratchStatement], _Result], reach: StatementWriteBounds, rows: RowsSnapshot
    ) -> _Result:
        if self._bring_up_to_date(rows) and self._is_safe_for(reach):
            # A copy with many writes can fail, for example with a full cache, where a new one succeeds.
            with contextlib.suppress(ScratchCopyUnreliable, StorageFull, EngineFailed, Unavailable):
                return self._run_on_copy(work, rows)
            log.info("copy_doubtful", store=self._engine.layout.name)
        self._discard()
        engine = self._engine
        source = read_current_rows_if_few(self._rows) or engine.reading(timeout=0)
        self._copy = build_scratch_engine_file(source, self._folder, engine.options, sum(engine.bytes()))
        self.made += 1
        return self._run_on_copy(work, rows)

    def _is_safe_for(self, reach: StatementWriteBounds) -> bool:
        copy = self._copy
        return copy is not None and (copy.has_its_edges or not can_delete_rows_or_change_edges(reach))

    def _run_on_copy(self, work: Callable[[ScratchStatement], _Result], rows: RowsSnapshot) -> _Result:
        copy = self._copy
        assert copy is not None  # noqa: S101
        self._copies.used(self)
        with copy.run_statement(rows) as trial:
            return work(trial)

    def _bring_up_to_date(self, rows: RowsSnapshot) -> bool:
        """Bring the copy up to date, and return whether it is usable. Discard it otherwise."""
        copy = self._copy
        if copy is None:
            return False
        try:
            require_disk_space_for_dry_run(self._folder, self._engine.options.file.cache_bytes)
            if self._follow(copy, rows):
                return True
        except StorageFull:
            pass
        except Exception:
            # After any failure the contents of this copy are unknown.
            log.exception("copy_not_followed", store=self._engine.layout.name)
        self._discard()
        return False

    def _follow(self, copy: ScratchEngineFile, rows: RowsSnapshot) -> bool:
        """Update a copy to these rows. Return False if that needs more than one transaction."""
        behind = copy.state.sequence < rows.at
        if not behind and copy.left is NO_ROW_CHANGES:
            return True
        net = read_net_change(self._tail, copy.state.sequence, rows.at) if behind else NetChange()
        if copy.left is None or (behind and net.state != rows.state):
            return False
        add_scratch_row_resets_to_net_change(net, copy.left, rows)
        if copy.engine.kept_bytes + estimate_change_bytes_kept_by_engine(net, rows.state) > MAX_SCRATCH_RETAINED_BYTES:
            return False
        if len(net):
            require_disk_space_for_rebuild(self._folder, _SCRATCH_ROOM_BYTES)
            copy.engine.apply(net, rows.state, recorded=False)
            # The engine also retains the versions that the statement itself wrote.
            copy.engine.kept_bytes += estimate_change_bytes_kept_by_engine(net, rows.state)
            copy.is_new = False
            copy.has_its_edges &= not (net.edges_created or net.edges_updated or net.edges_deleted or net.nodes_deleted)
        copy.state, copy.left = rows.state, NO_ROW_CHANGES
        return True

    def _discard(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()
            self._copies.given_back(self)


def add_scratch_row_resets_to_net_change(net: NetChange, left: StatementRowChanges, rows: RowsSnapshot) -> None:
    """Add resets of the scratch rows that a statement has ``left`` changed to a net change."""
    nodes = {row.now["id"]: True for row in left.nodes} | dict.fromkeys(left.nodes_gone, False)
    for node_id, is_there in nodes.items():
        node = rows.node(node_id)
        _reset_row(node_id, node, net.nodes_created, net.nodes_updated, net.nodes_deleted, is_there=is_there)
        # Also drops the attributes that the statement added.
        net.remade.add(node_id)
    edges = {row.edge_key: True for row in left.edges} | dict.fromkeys(left.edges_gone, False)
    for key, is_there in edges.items():
        edge = rows.edge(key)
        _reset_row(key, edge, net.edges_created, net.edges_updated, net.edges_deleted, is_there=is_there)


def _reset_row(
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


def _needs_replacement(copy: ScratchEngineFile) -> bool:
    file_bytes, log_bytes = copy.engine.bytes()
    return log_bytes > max(MAX_SCRATCH_LOG_BYTES, file_bytes)
