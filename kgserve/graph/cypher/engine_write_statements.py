"""Writing statements that the engine runs."""

from __future__ import annotations

from functools import cached_property

from typing_extensions import override

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.cypher.write_analysis import (
    FinalWriteClause,
    ReadFootprint,
    analyze_statement_write_bounds,
    can_statement_match_changes,
    extract_final_write_clause,
)
from kgserve.errors import InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import (
    StatementCancellation,
    collect_cypher_rows_up_to_size_limit,
    find_statement_column_set,
    retry_after_engine_process_crash,
)
from kgserve.graph.cypher.matched_row_changes import (
    ConnectedEdgesError,
    UnsupportedFinalWriteError,
    compute_row_changes_from_query_result,
)
from kgserve.graph.cypher.optimistic_write import OptimisticWrite
from kgserve.projections.cypher_engine.engine.protocol import StatementRowChanges
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.scratch_database import ScratchStatement


class EngineRefusedStatement(Exception):
    """Raised when the engine cannot run a writing statement; the interpreter may."""

    def __init__(self, refusal: InvalidInput) -> None:
        """Keep the engine's ``refusal``, in the caller's terms."""
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineWriteStatement(OptimisticWrite):
    """A writing statement that the engine runs: as a query for what its ending changes, or on a copy of the store."""

    def __init__(
        self,
        store: OpenStore,
        statement: GuardedCypherStatement,
        max_rows: int,
        seconds: float,
        control: StatementCancellation,
    ) -> None:
        """Answer with at most `max_rows` rows, and take at most `seconds`."""
        super().__init__(store, max_rows, seconds, control)
        self._statement = statement
        self._use_ending(extract_final_write_clause(statement))

    @cached_property
    def _footprint(self) -> ReadFootprint:
        """The rows that the statement may read; computed only after concurrent writes."""
        return ReadFootprint(self._statement)

    @override
    def run(self) -> CypherAnswer:
        if self._ending is not None:
            try:
                return super().run()
            except ConnectedEdgesError as error:
                raise InvalidInput(error.message, error.errors) from None
            except (UnsupportedFinalWriteError, InvalidInput):
                pass  # errors are reported by the engine when it runs the statement on a copy
            self._use_ending(None)
        with self._store.copy.exclusive_use(self._control.check):
            return super().run()

    @override
    def compute(self, rows: RowsSnapshot) -> tuple[StatementRowChanges, CypherAnswer]:
        return self._run_on_copy() if self._ending is None else self._query(self._ending)

    @override
    def may_have_read(self, since: list[ChangeSet], rows: RowsSnapshot) -> bool:
        new = [row for change in since for row in change.nodes_created]
        changed = [row for change in since for row in (*change.nodes_updated, *change.nodes_deleted)]
        edges = [key for change in since for key in change.edge_keys()]
        return can_statement_match_changes(self._footprint, rows.node, new, changed, edges)

    def _use_ending(self, ending: FinalWriteClause | None) -> None:
        self._ending = ending
        self.can_requery = ending is not None
        self.is_detaching = ending is not None and ending.detach

    def _query(self, end: FinalWriteClause) -> tuple[StatementRowChanges, CypherAnswer]:
        """Return the changes, computed by the query that precedes the statement's ending."""
        question, width = end.question, find_statement_column_set(self._statement)

        def query() -> tuple[StatementRowChanges, CypherAnswer]:
            with (
                self._store.reading() as rows,
                self._store.engine.reading(self._seconds, width=width) as session,
                self._control.over(session),
                session.reading(question) as cursor,
            ):
                return compute_row_changes_from_query_result(end, cursor, rows, self._max_rows)

        return retry_after_engine_process_crash(query)

    def _run_on_copy(self) -> tuple[StatementRowChanges, CypherAnswer]:
        """Return the changes, computed by running the statement on a copy of the store."""
        within = analyze_statement_write_bounds(self._statement)

        def attempt(trial: ScratchStatement) -> tuple[StatementRowChanges, CypherAnswer]:
            self._control.check()
            session = trial.session
            session.seconds = self._seconds
            try:
                with (
                    self._control.over(session),
                    session.reading(self._statement, self._max_rows, writes=True) as cursor,
                ):
                    answer = collect_cypher_rows_up_to_size_limit(cursor)
            except InvalidInput as refusal:
                raise EngineRefusedStatement(refusal) from refusal
            return trial.difference(within), answer

        return self._store.copy.run(attempt, within)
