"""What things are called: names that count as one, and the other names that something has."""

from __future__ import annotations

import unicodedata
from typing import Any

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.fields import MAX_ID_BYTES
from kgserve.storage.model.rows import NodeRow

IS_ABOUT = "is_about"
"""The relation from a memory to what it is about; its weight says how much."""
UNKNOWN_TYPE = "unknown"
"""The type of what was only ever named."""
ALIASES = "aliases"
"""The attribute that lists the other names of a node that has a name."""
MAX_ALIASES = 100

_decode = json_decoder(dict[str, Any]).decode


def folded(name: str) -> str:
    """The form in which names are compared: compatible letters, case and blanks make no difference."""
    if name.isascii():
        return " ".join(name.casefold().split())
    once = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", once).split())


def aliases_in(attributes: str) -> list[str]:
    """The other names in a node's attributes, as JSON: the texts of a list, at most 100, none of them empty."""
    if f'"{ALIASES}"' not in attributes:
        return []
    found = _decode(attributes).get(ALIASES)
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return [each for each in texts if each.strip() and len(each.encode(errors="replace")) <= MAX_ID_BYTES][:MAX_ALIASES]


def names_of(row: NodeRow) -> list[str]:
    """All names of a node that has one, its own first."""
    name = "" if row.extras is None else row.extras.name
    return [name, *aliases_in(row.attributes)] if name else []


DEFAULT_MEMORY_TYPE = "observation"
