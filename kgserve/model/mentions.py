"""Names in texts: what in a text may be a name, and whether a text has one."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.model.names import folded
from kgserve.model.recall import MOST_WORDS, possible_names

MOST_WORDS_OF_TEXT = 2_000
"""So far into a text names are looked for."""
_OVERLAP = 5
"""A name has six words at most, so none is lost between two parts of a text."""


def possible_names_of(text: str) -> list[str]:
    """What in a text may be a name, as names are compared, the longest first."""
    words = text.split(None, MOST_WORDS_OF_TEXT)[:MOST_WORDS_OF_TEXT]
    step = MOST_WORDS - _OVERLAP
    parts = (" ".join(words[first : first + MOST_WORDS]) for first in range(0, max(len(words), 1), step))
    found = dict.fromkeys(name for part in parts for name in possible_names(part))
    return sorted(found, key=lambda name: -name.count(" "))


def names_any(text: str, names: Iterable[str]) -> bool:
    """Whether a text has any of some names, as whole words."""
    possible = frozenset(possible_names_of(text))
    return any(folded(name) in possible for name in names)
