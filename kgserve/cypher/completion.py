"""Words for statement completion in the shell and the explorer; a subset of the engine's keywords.

Labels come with their properties and the engine's type names.
"""

from __future__ import annotations

from kgserve.cypher.lexer import ALLOWED_FUNCTIONS, ALLOWED_PROCEDURES
from kgserve.storage.model.fields import EDGE, EDGE_ENDPOINTS, NODE

COMPLETION_KEYWORDS = (
    "ALL", "AND", "AS", "ASC", "BY", "CALL", "CASE", "CONTAINS", "COUNT", "CREATE", "DELETE", "DESC", "DETACH",
    "DISTINCT", "ELSE", "END", "ENDS", "EXISTS", "FALSE", "IN", "IS", "LIMIT", "MATCH", "MERGE", "NOT", "NULL",
    "ON", "OPTIONAL", "OR", "ORDER", "RETURN", "SET", "SHORTEST", "SKIP", "STARTS", "THEN", "TRUE", "UNION",
    "UNWIND", "WHEN", "WHERE", "WITH", "XOR", "YIELD",
)  # fmt: skip
COMPLETION_FUNCTIONS = tuple(sorted(ALLOWED_FUNCTIONS))
COMPLETION_PROCEDURES = tuple(sorted(ALLOWED_PROCEDURES))
_RELATION_PROPERTIES = {field.name: field.type.engine for field in EDGE.whole[EDGE_ENDPOINTS:]}
NODE_LABELS: dict[str, dict[str, str]] = {
    "Entity": {field.name: field.type.engine for field in NODE.whole},
    "Elsewhere": {"store": "STRING", "id": "STRING"},
}
RELATION_LABELS = {"RELATES_TO": _RELATION_PROPERTIES, "LINKS_TO": _RELATION_PROPERTIES}
PROPERTIES_BY_LABEL: dict[str, dict[str, str]] = NODE_LABELS | RELATION_LABELS
