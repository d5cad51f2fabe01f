"""Ladybug's package, held to what Kùzu's does: a text goes to the engine as it is, and nothing is kept of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ladybug
from typing_extensions import override

from kgserve.cypher.lexer import scan


class Connection(ladybug.Connection):
    """A connection that neither rewrites a text nor keeps the statements and tables that it was given.

    The package's own puts the values of parameters into the text, also where `to_json($p)` stands within quotes: what
    the guard has let through would be another text by then. And it keeps every statement that had parameters until the
    connection is closed, with the Arrow tables among them.
    """

    @override
    def _rewrite_local_scan_object(self, query: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return query, parameters

    @override
    def _execute_with_pybind(self, query: str, parameters: dict[str, Any]) -> Any:
        if any(value is None for value in parameters.values()):
            query, parameters = _without_nothing(query, parameters)
        if not parameters:
            return self._connection.query(query)
        return self._connection.execute(self._connection.prepare(query, parameters), parameters)


class Database(ladybug.Database):
    """A file, by way of the extension module, whatever the environment says: the other way rewrites texts as well."""

    @classmethod
    @override
    def _resolve_backend_preference(cls, backend: str) -> str:
        return "pybind"


def _without_nothing(query: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same with NULL in place of parameters that are null and stand in several places.

    Those get one type for all places: `$p IS NULL OR n.type = $p` makes a boolean of the type of n.
    """
    tokens = list(scan(query))
    places = Counter(token.text[1:] for token in tokens if token.kind == "parameter")
    nothing = {name for name, value in parameters.items() if value is None and places[name] > 1}
    written = (
        "NULL".ljust(len(token.text)) if token.kind == "parameter" and token.text[1:] in nothing else token.text
        for token in tokens
    )
    return "".join(written), {name: value for name, value in parameters.items() if name not in nothing}
