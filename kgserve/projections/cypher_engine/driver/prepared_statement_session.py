"""Connection to the engine with cached prepared statements. Not thread-safe."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any, LiteralString

from kgserve.cypher.guard import MAX_CACHED_STATEMENT_CHARS, GuardedCypherStatement
from kgserve.errors import InvalidInput
from kgserve.platform.lazy_pyarrow import pa
from kgserve.projections.cypher_engine.driver.error_translation import (
    STATEMENT_ERRORS,
    translate_engine_error,
    translate_statement_error,
)
from kgserve.projections.cypher_engine.driver.selected_engine_classes import (
    Connection,
    Database,
    PreparedStatement,
    QueryResult,
)
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet

EngineRow = list[Any]
MAX_PREPARED_STATEMENTS = 64
"""Maximum number of callers' statements cached per connection."""

# Kùzu uses importlib.util to bind Arrow tables without importing it; some processes fail there otherwise.
_ = importlib.util


class EngineFileFacts:
    """Counts of rows of an engine file, kept until `forget` says that rows have changed. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def forget(self) -> None:
        """Forget all counts, also those that are being computed."""
        self._counts = {}

    def count(self, session: PreparedStatementSession, query: LiteralString, text: str = "") -> int:
        """Return the count that a query with the parameter ``text`` finds. Raises errors from `kgserve.errors`."""
        counts = self._counts
        if (query, text) not in counts:
            counts[query, text] = session.rows(query, {"text": text} if text else None)[0][0]
        return counts[query, text]


class PreparedStatementSession:
    """Engine connection that runs literal statements with parameters and caches their prepared form.

    ``width``: column set of the file. ``slice_bytes``: bytes that a statement may collect in the page cache. ``facts``:
    what all sessions of the file know about its rows, if it learns of changes.
    """

    def __init__(
        self,
        database: Database,
        width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN,
        facts: EngineFileFacts | None = None,
    ) -> None:
        self._connection = Connection(database)
        self.facts = facts
        self._prepared: dict[str, PreparedStatement] = {}
        # Read statements of callers, least recently used first; a statement is prepared at its second use.
        self._known_statements: dict[str, PreparedStatement | None] = {}
        self.width = width
        self.slice_bytes = 64 << 20

    def limit(self, seconds: float) -> None:
        """Set the time limit of the following statements in seconds; 0 removes it."""
        self._connection.set_query_timeout(int(seconds * 1000))

    def interrupt(self) -> None:
        """Stop the running statement. Safe to call from another thread."""
        self._connection.interrupt()

    def rows(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> list[EngineRow]:
        """Return all rows of a statement, which is prepared once. Raises errors from `kgserve.errors`."""
        try:
            with self._execute(self._prepare(query), parameters) as result:
                return result.get_all()  # pyright: ignore[reportReturnType]  # rows are lists, not dicts, by default
        except RuntimeError as error:
            raise translate_engine_error(error) from error

    def arrow(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the result of a statement as an Arrow table. Parameters may be Arrow tables, for LOAD FROM."""
        try:
            with self._execute(query, parameters) as result:
                return result.get_as_arrow()
        except RuntimeError as error:
            raise translate_engine_error(error) from error

    def scan(self, query: LiteralString, table: pa.Table) -> int:
        """Run a ``LOAD FROM $rows …`` statement that ends with ``RETURN count(*)``, and return the count."""
        return self.arrow(query, {"rows": table}).column(0)[0].as_py() if table.num_rows else 0

    def run(self, statement: LiteralString) -> None:
        """Run a statement without parameters, and discard its result."""
        try:
            self._execute(statement, None).close()
        except RuntimeError as error:
            raise translate_engine_error(error) from error

    def run_guarded(self, statement: GuardedCypherStatement) -> QueryResult:
        """Run a caller's statement that the guard accepted, and return its open result.

        Raises errors in the caller's terms, with the position in the text if the engine reports it.
        """
        try:
            return self._execute(statement.text, statement.parameters)
        except STATEMENT_ERRORS as error:
            raise translate_statement_error(error, statement) from error

    def rerun_cached_statement(self, statement: GuardedCypherStatement) -> QueryResult | None:
        """Return the result of a statement cached by `cache_statement`; None for any other."""
        text = statement.text
        if text not in self._known_statements:
            return None
        # Parsing takes longer than running a small statement; planning is repeated each time.
        prepared = self._known_statements.pop(text) or _prepared(self._connection, text)
        if not prepared.is_success():
            return None
        self._known_statements[text] = prepared
        try:
            return self._execute(prepared, statement.parameters)
        except STATEMENT_ERRORS as error:
            raise translate_statement_error(error, statement) from error

    def cache_statement(self, statement: GuardedCypherStatement) -> None:
        """Cache a statement that has run in a read-only transaction."""
        if len(statement.text) <= MAX_CACHED_STATEMENT_CHARS:
            self._known_statements[statement.text] = None
        if len(self._known_statements) > MAX_PREPARED_STATEMENTS:
            del self._known_statements[next(iter(self._known_statements))]

    def close(self) -> None:
        """Release the connection."""
        self._prepared.clear()
        self._known_statements.clear()
        self._connection.close()

    def _prepare(self, query: LiteralString) -> PreparedStatement:
        prepared = self._prepared.get(query)
        if prepared is None:
            prepared = self._prepared[query] = _prepared(self._connection, query)
        return prepared

    def _execute(self, statement: str | PreparedStatement, parameters: Mapping[str, Any] | None) -> QueryResult:
        result = self._connection.execute(statement, dict(parameters or {}))
        if isinstance(result, list):
            raise InvalidInput("query contains several statements; send one at a time")
        return result


def _prepared(connection: Connection, query: str) -> PreparedStatement:
    with warnings.catch_warnings():
        # Deprecated, but halves the time of a point lookup.
        warnings.simplefilter("ignore", DeprecationWarning)
        return connection.prepare(query)
