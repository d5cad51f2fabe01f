"""Keywords, functions and procedures for the completion of Cypher statements in the shell and the explorer.

The engine's labels come with their properties and the engine's type names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.aggregates import SHOWN_AGGREGATE_NAMES
from kgserve.cypher.interpreter.procedures import PROCEDURES
from kgserve.cypher.interpreter.scalar_function_table import FUNCTIONS
from kgserve.cypher.lexer import ALLOWED_FUNCTIONS, ALLOWED_PROCEDURES
from kgserve.storage.model.node_edge_fields import EDGE, EDGE_ENDPOINTS, NODE

COMPLETION_KEYWORDS = (
    "ALL", "AND", "ANY", "AS", "ASC", "BY", "CALL", "CASE", "CONTAINS", "COUNT", "CREATE", "DELETE", "DESC", "DETACH",
    "DISTINCT", "ELSE", "END", "ENDS", "EXISTS", "FALSE", "FOREACH", "IN", "IS", "LIMIT", "MATCH", "MERGE", "NONE",
    "NOT", "NULL", "ON", "OPTIONAL", "OR", "ORDER", "REDUCE", "REMOVE", "RETURN", "SET", "SHORTEST", "SINGLE", "SKIP",
    "STARTS", "THEN", "TRUE", "UNION", "UNWIND", "WHEN", "WHERE", "WITH", "XOR", "YIELD",
)  # fmt: skip
_SHOWN_TEMPORAL_NAMES = {
    "duration.indays": "duration.inDays",
    "duration.inmonths": "duration.inMonths",
    "duration.inseconds": "duration.inSeconds",
}
_PLAIN_NAME_PATTERN = re.compile(r"[^\W\d]\w*")


def _list_functions() -> Iterator[str]:
    """Yield the functions of the engine, and then those of the interpreter as openCypher writes them."""
    yield from ALLOWED_FUNCTIONS
    yield from (_SHOWN_TEMPORAL_NAMES.get(name, name) for name in temporal_functions.FUNCTIONS)
    yield from (function.name for function in FUNCTIONS.values())
    yield from SHOWN_AGGREGATE_NAMES
    yield from ("allShortestPaths", "coalesce", "shortestPath", "timestamp")


COMPLETION_FUNCTIONS = tuple(sorted({name.lower(): name for name in _list_functions()}.values(), key=str.lower))
COMPLETION_PROCEDURES = tuple(
    sorted((*ALLOWED_PROCEDURES, *(procedure.name for procedure in PROCEDURES.values())), key=str.lower)
)
_RELATION_PROPERTIES = {field.name: field.type.engine for field in EDGE.whole[EDGE_ENDPOINTS:]}
NODE_LABELS: dict[str, dict[str, str]] = {
    "Entity": {field.name: field.type.engine for field in NODE.whole},
    "Elsewhere": {"store": "STRING", "id": "STRING"},
}
RELATION_LABELS = {"RELATES_TO": _RELATION_PROPERTIES, "LINKS_TO": _RELATION_PROPERTIES}
PROPERTIES_BY_LABEL: dict[str, dict[str, str]] = NODE_LABELS | RELATION_LABELS


def quote_cypher_identifier(name: str) -> str:
    """Quote a label, relation type or property with backticks unless it is a plain word."""
    return name if _PLAIN_NAME_PATTERN.fullmatch(name) else f"`{name.replace('`', '``')}`"
