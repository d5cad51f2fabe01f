"""Names of edges: what identifies one, as one text that fits into the path of a URL.

``source~relation_type~target``, each part percent-encoded, the tilde too. It holds the key itself, so that looking an
edge up by its id needs no index, and an edge that is deleted and made again has the id that it had.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from kgserve.errors import FieldError, InvalidInput
from kgserve.model.rows import EdgeKey

_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")


def edge_id(key: EdgeKey) -> str:
    """The id of an edge."""
    source, target, relation_type = key
    if _PLAIN.fullmatch(source + relation_type + target):
        return f"{source}~{relation_type}~{target}"
    return f"{_quoted(source)}~{_quoted(relation_type)}~{_quoted(target)}"


def edge_key(text: str) -> EdgeKey:
    """What an id stands for. Raises InvalidInput for a text that no edge has as its id."""
    parts = text.split("~")
    try:
        source, relation_type, target = (unquote(part, errors="strict") for part in parts)
    except ValueError:
        source = relation_type = target = ""
    if not (source and target and relation_type) or edge_id((source, target, relation_type)) != text:
        message = "is not the id of an edge: source~relation_type~target, each percent-encoded"
        raise InvalidInput(f"id: {message}", (FieldError("id", message),))
    return source, target, relation_type


def _quoted(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")
