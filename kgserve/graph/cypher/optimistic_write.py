"""Optimistic execution of writing statements concurrently with other writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from kgserve.errors import Gone
from kgserve.graph.answers import CypherAnswer, CypherChanges
from kgserve.graph.cypher.engine_read_statements import (
    StatementCancellation,
)
from kgserve.graph.cypher.matched_row_changes import StaleRowsError
from kgserve.graph.cypher.row_changes import convert_row_changes_to_write_batch
from kgserve.projections.cypher_engine.engine.protocol import StatementRowChanges
from kgserve.storage.journal.journal_reader import JournalReader
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.bulk_delete import BulkDelete, is_bulk_delete
from kgserve.stores.open_store import OpenStore
from kgserve.stores.writer_thread import PlannedWrite

MAX_CONCURRENT_ATTEMPTS = 3
"""Attempts to run a statement concurrently with other writes before it runs exclusively."""
WRITE_INTERRUPT_POLL_SECONDS = 0.05
MAX_RERUN_SECONDS = 0.2
"""Faster statements are run again in the writer's thread after a conflict."""
MAX_REQUERY_SECONDS = 0.5
"""Faster deletions are queried again to check that the same rows would be deleted."""
MAX_COMMITS_CHECKED = 20_000
"""Concurrent commits checked for conflicts."""


class WriteConflict(Exception):
    """Another write has changed rows that the statement may have read."""


class _StatementOutcome(msgspec.Struct, frozen=True):
    """Changes and answer of a statement as of a commit, and the seconds it took.

    ``batch`` is None for the deletion of a large number of rows.
    """

    batch: WriteBatch | None
    difference: StatementRowChanges
    answer: CypherAnswer
    sequence: int
    seconds: float

    def deletes_same_rows(self, other: _StatementOutcome) -> bool:
        """Return whether the same rows are deleted."""
        return set(self.difference.nodes_gone) == set(other.difference.nodes_gone) and set(
            self.difference.edges_gone
        ) == set(other.difference.edges_gone)


_Prepared = tuple[_StatementOutcome, WriteBatch | PlannedWrite]


class OptimisticWrite(ABC):
    """A writing statement, executed with optimistic concurrency on a leased store.

    It runs against the current rows while other writes proceed. In the writer's thread its outcome is revalidated: it
    is committed unless another write has changed rows that the statement may have read. After several conflicts it runs
    with the writer stopped.
    """

    is_detaching = False
    """True if the statement deletes nodes with all their edges."""
    can_requery = False
    """True if the statement can be run again quickly, to check that it would delete the same rows."""

    def __init__(self, store: OpenStore, max_rows: int, seconds: float, control: StatementCancellation) -> None:
        """Answer with at most `max_rows` rows, and take at most `seconds`."""
        self._store = store
        self._max_rows = max_rows
        self._seconds = seconds
        self._control = control

    @abstractmethod
    def compute(self, rows: RowsSnapshot) -> tuple[StatementRowChanges, CypherAnswer]:
        """Return the changes and the answer of the statement as of rows at least as new as ``rows``."""

    @abstractmethod
    def may_have_read(self, since: list[ChangeSet], rows: RowsSnapshot) -> bool:
        """Return whether the statement could have read rows that other commits changed."""

    def run(self) -> CypherAnswer:
        """Execute the statement and wait for its commit. Blocks."""
        for _ in range(MAX_CONCURRENT_ATTEMPTS):
            with suppress(WriteConflict):
                return self.try_commit()
        return self.commit_exclusively()

    def try_commit(self) -> CypherAnswer:
        """Run the statement concurrently with other writes, and commit it. Raises WriteConflict."""
        with self._store.reading() as rows, ExitStack() as held:
            outcome = self._execute(rows)
            if outcome.batch is not None:
                return self._submit(partial(self.revalidate, outcome, outcome.batch, rows))
            removal = self._plan_removal(outcome, rows, held)
            return self._submit(partial(self._revalidate_removal, outcome, removal, rows))

    def commit_exclusively(self) -> CypherAnswer:
        """Run and commit the statement in the writer's thread, so that no other write intervenes."""
        # `reading` rebuilds rows that are found to be damaged.
        with self._store.reading(), self._store.folding.stage_deletion(self._control.check) as staged:

            def execute() -> _Prepared:
                staged.restart()
                outcome = self._execute(staged.rows)
                if outcome.batch is not None:
                    return outcome, outcome.batch
                return outcome, BulkDelete(staged, outcome.difference.nodes_gone, outcome.difference.edges_gone)

            return self._submit(execute)

    def _submit(self, prepare: Callable[[], _Prepared]) -> CypherAnswer:
        """Commit what `prepare` returns in the writer's thread."""
        answers: list[CypherAnswer] = []

        def prepared() -> WriteBatch | PlannedWrite:
            self._control.check()
            outcome, write = prepare()
            answers.append(outcome.answer)
            return write

        writing = self._store.submit_prepared(prepared)
        try:
            report = writing.result()
        except KeyboardInterrupt:
            # The statement would continue in the writer's thread, and the engine ignores interrupts while it plans.
            while not wait([writing], WRITE_INTERRUPT_POLL_SECONDS).done:
                self._control.interrupt()
            raise
        return msgspec.structs.replace(answers[0], changes=_changes(report))

    def revalidate(self, outcome: _StatementOutcome, batch: WriteBatch, rows: RowsSnapshot) -> _Prepared:
        """Return the outcome if it still holds, else a new one if the statement is fast. Raises WriteConflict."""
        since = self._commits_after(outcome.sequence)
        if not since or not (has_write_overlap(batch, since) or self.may_have_read(since, rows)):
            return outcome, batch
        again = self._execute_again() if outcome.seconds < MAX_RERUN_SECONDS else None
        if again is None or again.batch is None:
            raise WriteConflict
        return again, again.batch

    def _plan_removal(self, outcome: _StatementOutcome, rows: RowsSnapshot, held: ExitStack) -> BulkDelete:
        """Plan a large deletion concurrently with other writes. Raises WriteConflict."""
        staged = held.enter_context(self._store.folding.stage_deletion(self._control.check))
        gone = outcome.difference
        since = self._commits_after(outcome.sequence, staged.rows.at)
        if since and (self.may_have_read(since, rows) or self._blocks_deletion(since, gone)):
            self._require_same_rows(outcome)
        removal = BulkDelete(staged, gone.nodes_gone, gone.edges_gone)
        # Checks most concurrent commits here, to keep the writer's thread free.
        self._revalidate_removal(outcome, removal, rows)
        return removal

    def _revalidate_removal(self, outcome: _StatementOutcome, removal: BulkDelete, rows: RowsSnapshot) -> _Prepared:
        """Return the outcome with its removal if it still holds. Raises WriteConflict."""
        since = removal.unconflicting_changes()
        if since is None:
            raise WriteConflict
        if self.may_have_read(since, rows):
            self._require_same_rows(outcome)
        return outcome, removal

    def _require_same_rows(self, outcome: _StatementOutcome) -> None:
        """Raise WriteConflict unless a quick query finds that the same rows would be deleted now."""
        if not self.can_requery or outcome.seconds > MAX_REQUERY_SECONDS:
            raise WriteConflict
        if not self._execute_again().deletes_same_rows(outcome):
            raise WriteConflict

    def _commits_after(self, sequence: int, last: int | None = None) -> list[ChangeSet]:
        """Return the commits of other writers after a commit. Raises WriteConflict for too many."""
        return read_commits_after(self._store, sequence, last)

    def _blocks_deletion(self, since: list[ChangeSet], gone: StatementRowChanges) -> bool:
        """Return whether another commit added an edge to a node that can be deleted only without edges."""
        if self.is_detaching:
            return False
        nodes = set(gone.nodes_gone)
        return any(key[0] in nodes or key[1] in nodes for change in since for key in change.edge_keys())

    def _execute_again(self) -> _StatementOutcome:
        with self._store.reading() as rows:
            return self._execute(rows)

    def _execute(self, rows: RowsSnapshot) -> _StatementOutcome:
        """Return the changes and the answer of the statement; `rows` are not newer than what it reads."""
        started = time.perf_counter()
        while True:
            self._control.check()
            with suppress(StaleRowsError):
                found, answer = self.compute(rows)
                only_deletes = not (found.nodes or found.edges or found.doubled)
                large = only_deletes and is_bulk_delete(rows, found.nodes_gone, found.edges_gone)
                batch = None if large else convert_row_changes_to_write_batch(found)
                return _StatementOutcome(batch, found, answer, rows.at, time.perf_counter() - started)


def read_commits_after(store: OpenStore, sequence: int, last: int | None = None) -> list[ChangeSet]:
    """Return the commits after one, up to ``last`` or the newest. Raises WriteConflict for too many."""
    last = store.state.sequence if last is None else last
    if last == sequence:
        return []
    if last - sequence > MAX_COMMITS_CHECKED:
        raise WriteConflict
    try:
        return [*JournalReader(store.layout.journal).read(sequence + 1, last)]
    except Gone:
        # The journal was truncated while the statement ran.
        raise WriteConflict from None


def has_write_overlap(batch: WriteBatch, since: Iterable[ChangeSet]) -> bool:
    """Return whether other commits wrote rows that a batch writes, or deleted rows that it depends on."""
    gone = set(batch.delete_nodes)
    nodes = gone.union(put.id for put in batch.nodes)
    edges = {*batch.delete_edges, *(put.key for put in batch.edges)}
    ends = {end for key in edges for end in key[:2]}
    return any(each.touches(nodes, edges, gone) or not ends.isdisjoint(each.nodes_deleted) for each in since)


def _changes(report: WriteReport) -> CypherChanges:
    return CypherChanges(
        nodes_created=report.nodes_created,
        nodes_updated=report.nodes_updated,
        nodes_deleted=report.nodes_deleted,
        edges_created=report.edges_created,
        edges_updated=report.edges_updated,
        edges_deleted=report.edges_deleted,
        sequence=report.sequence,
    )
