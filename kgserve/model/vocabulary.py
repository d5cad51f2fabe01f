"""Lists of English words, read from the files beside this module."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from pathlib import Path

ENGLISH = Path(__file__).with_name("english.txt")
OPPOSITES = Path(__file__).with_name("opposites.txt")


def listed(name: str) -> list[str]:
    """All words of a list, in order."""
    return list(chain.from_iterable(lines(name)))


def pairs(name: str) -> list[tuple[str, str]]:
    """A list of two words a line; a dash stands for no letters."""
    return [(one.strip("-"), other.strip("-")) for one, other in lines(name)]


def lines(name: str) -> list[list[str]]:
    """The words of each line of a list."""
    return _lists()[name]


@lru_cache(maxsize=1)
def _lists() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in _read(ENGLISH):
        if line.startswith("["):
            name = line.strip("[]")
        else:
            found.setdefault(name, []).append(line.split())
    return found


@lru_cache(maxsize=1)
def opposites() -> dict[str, frozenset[str]]:
    """The opposites of each word that has some."""
    found: dict[str, set[str]] = {}
    for line in _read(OPPOSITES):
        one, other = line.split()
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return {word: frozenset(against) for word, against in found.items()}


def _read(path: Path) -> list[str]:
    """The lines of a file that are neither empty nor remarks."""
    read = path.read_text(encoding="utf-8").splitlines()
    return [line for line in read if line and not line.startswith("#")]
