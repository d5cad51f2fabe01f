"""One connection to the engine, with its prepared statements. Not for two threads at once."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any, LiteralString

from kgserve.cypher.guard import MAX_CACHED_STATEMENT_CHARS, Statement
from kgserve.errors import InvalidInput
from kgserve.platform.lazy_pyarrow import pa
from kgserve.projections.cypher_engine.driver.binding import Connection, Database, PreparedStatement, QueryResult
from kgserve.projections.cypher_engine.driver.failures import STATEMENT_ERRORS, translate, translate_statement
from kgserve.storage.model.fields import ColumnSet

Row = list[Any]
MAX_PREPARED_STATEMENTS = 64
"""Statements of callers that a connection remembers."""

# Kùzu uses importlib.util while it binds an Arrow table, without importing it: some processes fail there otherwise.
_ = importlib.util


class DriverSession:
    """Runs statements whose text is a literal and whose values are parameters.

    ``width``: the columns that the file has. ``slice_bytes``: what a statement may gather in the page cache.
    """

    def __init__(self, database: Database, width: ColumnSet = ColumnSet.PLAIN) -> None:
        self._connection = Connection(database)
        self._prepared: dict[str, PreparedStatement] = {}
        # Callers' statements that read, by when they came last; those that came again are prepared.
        self._met: dict[str, PreparedStatement | None] = {}
        self.width = width
        self.slice_bytes = 64 << 20

    def limit(self, seconds: float) -> None:
        """Give every following statement a time limit; 0 takes it away."""
        self._connection.set_query_timeout(int(seconds * 1000))

    def interrupt(self) -> None:
        """Stop the statement that runs now; for another thread to call."""
        self._connection.interrupt()

    def rows(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """All rows of a statement, which is prepared once. Raises errors of `kgserve.errors`."""
        try:
            with self._execute(self._prepare(query), parameters) as result:
                return result.get_all()  # pyright: ignore[reportReturnType]  # rows are lists, not dicts, by default
        except RuntimeError as error:
            raise translate(error) from error

    def arrow(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of a statement as one Arrow table. Parameters may be Arrow tables, for LOAD FROM."""
        try:
            with self._execute(query, parameters) as result:
                return result.get_as_arrow()
        except RuntimeError as error:
            raise translate(error) from error

    def scan(self, query: LiteralString, table: pa.Table) -> int:
        """Run a ``LOAD FROM $rows …`` statement that ends in ``RETURN count(*)``; that count."""
        return self.arrow(query, {"rows": table}).column(0)[0].as_py() if table.num_rows else 0

    def run(self, statement: LiteralString) -> None:
        """Run a statement without result or parameters."""
        try:
            self._execute(statement, None).close()
        except RuntimeError as error:
            raise translate(error) from error

    def foreign(self, statement: Statement) -> QueryResult:
        """The open result of a statement that a caller wrote and the guard let through.

        Raises errors made for who wrote it, with the place in the text where the engine tells it.
        """
        try:
            return self._execute(statement.text, statement.parameters)
        except STATEMENT_ERRORS as error:
            raise translate_statement(error, statement) from error

    def again(self, statement: Statement) -> QueryResult | None:
        """As `foreign`, for a text that was `remember`ed; None for any other."""
        text = statement.text
        if text not in self._met:
            return None
        # Parsing takes longer than running a small statement; it is planned each time.
        prepared = self._met.pop(text) or _prepared(self._connection, text)
        if not prepared.is_success():
            return None
        self._met[text] = prepared
        try:
            return self._execute(prepared, statement.parameters)
        except STATEMENT_ERRORS as error:
            raise translate_statement(error, statement) from error

    def remember(self, statement: Statement) -> None:
        """Know a text again that has run in a transaction that only reads."""
        if len(statement.text) <= MAX_CACHED_STATEMENT_CHARS:
            self._met[statement.text] = None
        if len(self._met) > MAX_PREPARED_STATEMENTS:
            del self._met[next(iter(self._met))]

    def close(self) -> None:
        """Release the connection."""
        self._prepared.clear()
        self._met.clear()
        self._connection.close()

    def _prepare(self, query: LiteralString) -> PreparedStatement:
        prepared = self._prepared.get(query)
        if prepared is None:
            prepared = self._prepared[query] = _prepared(self._connection, query)
        return prepared

    def _execute(self, statement: str | PreparedStatement, parameters: Mapping[str, Any] | None) -> QueryResult:
        result = self._connection.execute(statement, dict(parameters or {}))
        if isinstance(result, list):
            raise InvalidInput("a text with several statements")
        return result


def _prepared(connection: Connection, query: str) -> PreparedStatement:
    with warnings.catch_warnings():
        # Marked deprecated, but it halves the time of a point look-up.
        warnings.simplefilter("ignore", DeprecationWarning)
        return connection.prepare(query)
