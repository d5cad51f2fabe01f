"""Whether two texts say the same: equal letters, equal wording, and what keeps two near texts apart.

Nearness in meaning does not tell it: "prefers dark mode" and "does not prefer dark mode" are nearer to each other than
most pairs that say the same. So two texts are one when their wording is, and what is only near is told to people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from kgserve.model import contrast as weak
from kgserve.model.contrast import Difference
from kgserve.model.wording import LONGEST, normalised, words

HASH_BYTES = 16
SHORT = 1_000
"""Characters of a text of which many are remembered."""


def text_hash(text: str) -> bytes:
    """16 bytes, equal for texts that differ in case, blanks and final punctuation alone."""
    return _short_hash(text) if len(text) <= SHORT else _hash(text)


def fingerprint(text: str) -> bytes:
    """16 bytes, equal for texts of the same wording; of a long text, and of one without words, its hash."""
    if len(text) > LONGEST:
        return text_hash(text)
    return _short_print(text) if len(text) <= SHORT else _long_print(text)


def _hash(text: str) -> bytes:
    return _digest("text", normalised(text))


def _print(text: str) -> bytes:
    found = words(text)
    return _digest("words", "\x1f".join(found)) if found else text_hash(text)


# Kept for a while: they are asked for five times while a memory is stored, and once more by the memory view, which may
# be some thousand memories behind.
_short_hash, _short_print = lru_cache(maxsize=1 << 13)(_hash), lru_cache(maxsize=1 << 13)(_print)
_long_print = lru_cache(maxsize=512)(_print)


def same(first: str, second: str) -> bool:
    """Whether two texts say the same, word for word."""
    return fingerprint(first) == fingerprint(second) or text_hash(first) == text_hash(second)


def differs(first: str, second: str) -> Difference:
    """What keeps two texts from being one: the first that there is of negation, numbers, names, and other words."""
    if same(first, second):
        return ""
    one, other = words(first[:LONGEST]), words(second[:LONGEST])
    if weak.negations(one) != weak.negations(other):
        return "not"
    if weak.numbers(one) != weak.numbers(other):
        return "numbers"
    return "names" if _named_otherwise(first, second, one, other) else "words"


def conflicts(first: str, second: str) -> Difference:
    """What keeps two near texts from being consolidated; less than ``differs``: other words may say the same."""
    return "" if same(first, second) else weak.contrast(first[:LONGEST], second[:LONGEST])


def _named_otherwise(first: str, second: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the words that differ are names, as far as capitals tell; a text's first word may be one."""
    named = {*weak.names(first), *weak.names(second), *one[:1], *other[:1]}
    if sorted(one) == sorted(other):
        return True
    differing = {*one} ^ {*other}
    return bool(differing) and differing <= {word for name in named for word in words(name)}


def _digest(kind: str, text: str) -> bytes:
    return hashlib.sha256(f"{kind}\0{text}".encode(errors="surrogatepass")).digest()[:HASH_BYTES]
