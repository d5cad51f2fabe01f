"""Ladybug's package, held to what Kùzu's does: a text goes to the engine as it is, and nothing is kept of it."""

from __future__ import annotations

from typing import Any

import ladybug


class Connection(ladybug.Connection):
    """A connection that neither rewrites a text nor keeps the statements and tables that it was given.

    The package's own puts the values of parameters into the text, also where `to_json($p)` stands within quotes: what
    the guard has let through would be another text by then. And it keeps every statement that had parameters until the
    connection is closed, with the Arrow tables among them.
    """

    def _rewrite_local_scan_object(self, query: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return query, parameters

    def _execute_with_pybind(self, query: str, parameters: dict[str, Any]) -> Any:
        if not parameters:
            return self._connection.query(query)
        return self._connection.execute(self._connection.prepare(query, parameters), parameters)


class Database(ladybug.Database):
    """A file, by way of the extension module, whatever the environment says: the other way rewrites texts as well."""

    @classmethod
    def _resolve_backend_preference(cls, backend: str) -> str:  # noqa: ARG003 - its name is the package's
        return "pybind"
