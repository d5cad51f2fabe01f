"""Word lists, mostly English, read from the text files in this folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path

ENGLISH_WORDS_FILE = Path(__file__).with_name("english.txt")
OPPOSITES_FILE = Path(__file__).with_name("opposites.txt")
SYNONYMS_FILE = Path(__file__).with_name("synonyms.txt")
HAN_FILE = Path(__file__).with_name("han.txt")
STOP_WORDS_FILE = Path(__file__).with_name("stopwords.txt")


def read_word_list(name: str) -> list[str]:
    """Return all words of a list, in order."""
    return list(chain.from_iterable(read_word_groups(name)))


def read_word_pairs(name: str) -> list[tuple[str, str]]:
    """Return the pairs of a word list with two words or affixes per line; hyphens at their ends are removed."""
    return [(one.strip("-"), other.strip("-")) for one, other in read_word_groups(name)]


def read_word_groups(name: str) -> list[list[str]]:
    """Return the words of each line of a list."""
    return _lists(ENGLISH_WORDS_FILE)[name]


@lru_cache(maxsize=1)
def load_stop_words() -> dict[str, frozenset[str]]:
    """Return the stop words (function words) of each language except English, by ISO 639-1 code.

    The entry ``en ambiguous`` lists those that are also English words.
    """
    return {name: frozenset(chain.from_iterable(lines)) for name, lines in _lists(STOP_WORDS_FILE).items()}


@lru_cache(maxsize=1)
def load_han_simplification_table() -> dict[int, str]:
    """Return the simplified form of traditional and Japanese Han characters, as a table for `str.translate`."""
    return {ord(pair[0]): pair[1] for line in _read(HAN_FILE) for pair in line.split()}


@lru_cache(maxsize=2)
def _lists(file: Path) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    name = ""
    for line in _read(file):
        if line.startswith("["):
            name = line.strip("[]")
        else:
            found.setdefault(name, []).append(line.split())
    return found


@lru_cache(maxsize=1)
def load_opposites() -> dict[str, frozenset[str]]:
    """Return the opposites of each word that has any."""
    return _joined(_pairs_of(OPPOSITES_FILE))


@lru_cache(maxsize=1)
def load_synonyms() -> dict[str, frozenset[str]]:
    """Return the synonyms of each word that has any."""
    by_hand = chain.from_iterable(combinations(line, 2) for line in read_word_groups("synonyms"))
    return _joined(chain(_pairs_of(SYNONYMS_FILE), by_hand))


@lru_cache(maxsize=1)
def load_irregular_forms() -> dict[str, frozenset[str]]:
    """Return the irregular forms of each word that has any, such as went for go."""
    return _joined(
        chain.from_iterable(
            combinations(line, 2) for line in (*read_word_groups("past"), *read_word_groups("irregular"))
        )
    )


def _pairs_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a file, one per line."""
    for line in _read(path):
        one, other = line.split()
        yield one, other


def _joined(found: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    joined: dict[str, set[str]] = {}
    for one, other in found:
        joined.setdefault(one, set()).add(other)
        joined.setdefault(other, set()).add(one)
    return {word: frozenset(others) for word, others in joined.items()}


def _read(path: Path) -> list[str]:
    """Return the lines of a file except empty lines and comments."""
    read = path.read_text(encoding="utf-8").splitlines()
    return [line for line in read if line and not line.startswith("#")]
