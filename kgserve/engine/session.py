"""One connection to the engine, with its prepared statements. Not for two threads at once."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Mapping
from typing import Any, LiteralString

import kuzu

from kgserve.arrow import pa
from kgserve.cypher.guard import Statement
from kgserve.engine.failures import STATEMENT_ERRORS, translate, translate_statement
from kgserve.errors import InvalidInput
from kgserve.metrics.origin import add_part
from kgserve.metrics.slow import SlowLog

Row = list[Any]

_SHOWN = 500

# kuzu uses importlib.util while it binds an Arrow table, without importing it: some processes fail there otherwise.
_ = importlib.util


class Session:
    """Runs statements whose text is a literal and whose values are parameters.

    ``whole``: the file has columns for extras. ``slice_bytes``: what a statement may gather in the page cache.
    """

    def __init__(
        self, database: kuzu.Database, store: str = "", slow: SlowLog | None = None, *, whole: bool = False
    ) -> None:
        """Statements that take long are noted in ``slow``, as those of ``store``."""
        self._connection = kuzu.Connection(database)
        self._store = store
        self._slow = slow
        self._prepared: dict[str, kuzu.PreparedStatement] = {}
        self.whole = whole
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
            with self._execute(self._prepare(query), parameters, query) as result:
                return result.get_all()  # pyright: ignore[reportReturnType]  # rows are lists, not dicts, by default
        except RuntimeError as error:
            raise translate(error) from error

    def arrow(self, query: LiteralString, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result of a statement as one Arrow table. Parameters may be Arrow tables, for LOAD FROM."""
        try:
            with self._execute(query, parameters, query) as result:
                return result.get_as_arrow()
        except RuntimeError as error:
            raise translate(error) from error

    def scan(self, query: LiteralString, table: pa.Table) -> int:
        """Run a ``LOAD FROM $rows …`` statement that ends in ``RETURN count(*)``; that count."""
        return self.arrow(query, {"rows": table}).column(0)[0].as_py() if table.num_rows else 0

    def run(self, statement: LiteralString) -> None:
        """Run a statement without result or parameters."""
        try:
            self._execute(statement, None, statement).close()
        except RuntimeError as error:
            raise translate(error) from error

    def foreign(self, statement: Statement) -> kuzu.QueryResult:
        """The open result of a statement that a caller wrote and the guard let through.

        Raises errors made for who wrote it, with the place in the text where the engine tells it.
        """
        try:
            return self._execute(statement.text, statement.parameters, statement)
        except STATEMENT_ERRORS as error:
            raise translate_statement(error, statement) from error

    def close(self) -> None:
        """Release the connection."""
        self._prepared.clear()
        self._connection.close()

    def _prepare(self, query: LiteralString) -> kuzu.PreparedStatement:
        prepared = self._prepared.get(query)
        if prepared is None:
            with warnings.catch_warnings():
                # Marked deprecated, but it halves the time of a point look-up.
                warnings.simplefilter("ignore", DeprecationWarning)
                prepared = self._prepared[query] = self._connection.prepare(query)
        return prepared

    def _execute(
        self, statement: str | kuzu.PreparedStatement, parameters: Mapping[str, Any] | None, told: str | Statement
    ) -> kuzu.QueryResult:
        """Run a statement; ``told`` is what a log may hold of it: our own text, or the clauses alone of a caller's."""
        started = time.perf_counter()
        try:
            result = self._connection.execute(statement, dict(parameters or {}))
        finally:
            self._account(time.perf_counter() - started, told)
        if isinstance(result, list):
            raise InvalidInput("a text with several statements")
        return result

    def _account(self, seconds: float, told: str | Statement) -> None:
        add_part("engine", seconds)
        if self._slow is not None and seconds >= self._slow.seconds:
            shape = told.shape if isinstance(told, Statement) else told
            self._slow.note("query", seconds, {"engine": seconds}, store=self._store, query=shape[:_SHOWN])
