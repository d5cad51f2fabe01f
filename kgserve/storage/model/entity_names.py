"""Names of entities: normalization for comparison, and aliases."""

from __future__ import annotations

import unicodedata
from typing import Any

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES
from kgserve.storage.model.node_edge_rows import NodeRow

IS_ABOUT_RELATION = "is_about"
"""Relation from a memory to its subject; the weight is the degree of relevance."""
UNKNOWN_TYPE = "unknown"
"""Type of an entity that was only mentioned."""
ALIASES_ATTRIBUTE = "aliases"
"""Attribute with the other names of a named node."""
MAX_ALIASES = 100

_decode = json_decoder(dict[str, Any]).decode


def normalize_entity_name(name: str) -> str:
    """Return the form in which names are compared: compatibility characters, case and whitespace are normalized."""
    if name.isascii():
        return " ".join(name.casefold().split())
    once = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", once).split())


def parse_entity_aliases(attributes: str) -> list[str]:
    """Return the aliases in a node's attributes, as JSON: at most 100 non-empty strings of a list."""
    if f'"{ALIASES_ATTRIBUTE}"' not in attributes:
        return []
    found = _decode(attributes).get(ALIASES_ATTRIBUTE)
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return [each for each in texts if each.strip() and len(each.encode(errors="replace")) <= MAX_ID_BYTES][:MAX_ALIASES]


def list_entity_names_and_aliases(row: NodeRow) -> list[str]:
    """Return all names of a named node, its own first."""
    name = "" if row.extras is None else row.extras.name
    return [name, *parse_entity_aliases(row.attributes)] if name else []


DEFAULT_MEMORY_TYPE = "observation"
