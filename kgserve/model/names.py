"""What nodes are called: their name, and the other ones that they go by, compared without case and blanks."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from kgserve.decoding import decode_json
from kgserve.model.rows import NodeRow

IS_ABOUT = "is_about"
"""The relation from a memory to an entity; its weight is how much the memory is about it."""
ALIASES = "aliases"
"""The attribute that lists other names of a node."""
_BLANKS = re.compile(r"\s+")
_MOST = 100


def fold(name: str) -> str:
    """A name as it is compared with others: compatible characters are one, case and blanks do not count."""
    return _BLANKS.sub(" ", unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())).strip()


def aliases_of(attributes: str) -> list[str]:
    """The other names among attributes, a JSON object; at most 100, none where they are no list of texts."""
    if f'"{ALIASES}"' not in attributes:
        return []
    found: Any = decode_json(attributes, dict[str, Any]).get(ALIASES)
    return [each for each in found if isinstance(each, str) and each][:_MOST] if isinstance(found, list) else []


def names_of(row: NodeRow) -> list[str]:
    """All names of a node that has one: its own first."""
    name = "" if row.extras is None else row.extras.name
    return [name, *aliases_of(row.attributes)] if name else []
