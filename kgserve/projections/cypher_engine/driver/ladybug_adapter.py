"""Adaptation of Ladybug's Python package to Kùzu's behavior: no query rewriting, no statement caching."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ladybug
from typing_extensions import override

from kgserve.cypher.lexer import scan_cypher_tokens


class LadybugConnection(ladybug.Connection):
    """Connection to a Ladybug database that neither rewrites queries nor caches statements and tables.

    Ladybug's own connection inlines parameter values, even where `to_json($p)` is inside quotes, which would bypass the
    guard. It also keeps every parameterized statement, with its Arrow tables, until the connection is closed.
    """

    @override
    def _rewrite_local_scan_object(self, query: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return query, parameters

    @override
    def _execute_with_pybind(self, query: str, parameters: dict[str, Any]) -> Any:
        if any(value is None for value in parameters.values()):
            query, parameters = _inline_null_parameters(query, parameters)
        if not parameters:
            return self._connection.query(query)
        return self._connection.execute(self._connection.prepare(query, parameters), parameters)


class LadybugDatabase(ladybug.Database):
    """Database that always uses the pybind extension module; the other backend rewrites queries as well."""

    @classmethod
    @override
    def _resolve_backend_preference(cls, backend: str) -> str:
        return "pybind"


def _inline_null_parameters(query: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Replace null parameters that occur more than once with NULL literals.

    Ladybug infers one type for all occurrences: `$p IS NULL OR n.type = $p` would compare n.type with a boolean.
    """
    tokens = list(scan_cypher_tokens(query))
    occurrences = Counter(token.text[1:] for token in tokens if token.kind == "parameter")
    null_names = {name for name, value in parameters.items() if value is None and occurrences[name] > 1}
    written = (
        "NULL".ljust(len(token.text)) if token.kind == "parameter" and token.text[1:] in null_names else token.text
        for token in tokens
    )
    return "".join(written), {name: value for name, value in parameters.items() if name not in null_names}
