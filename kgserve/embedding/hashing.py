"""Vectors from letters alone: a declared fall-back that needs no model.

Every word and every 3 and 4 letters of it pick a place and a sign in the vector by a fixed hash. Texts that share
words, or parts of words, come out close; synonyms do not.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import log, sqrt

import numpy as np
import xxhash
from numpy.typing import NDArray

DIMENSIONS = 384
GRAM_SIZES = (3, 4)
LONGEST_TEXT = 100_000
LONGEST_WORD = 64
"""Characters of a text, and of a word, that count: the rest is cut, so that no text takes more than milliseconds."""

_WORD = re.compile(r"\w+")


class HashingEmbedder:
    """Signed feature hashing of words and letter groups; the same vectors in every process and on every machine."""

    model_id = f"hashing-words-3-4-grams-{DIMENSIONS}-v1"
    dimensions = DIMENSIONS
    degraded = True

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, shape (len(texts), 384)."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(texts):
            vectors[row] = _vector(text)
        return vectors

    def close(self) -> None:
        """Nothing is held."""


def _vector(text: str) -> NDArray[np.float64]:
    plain = unicodedata.normalize("NFKC", text[:LONGEST_TEXT]).casefold()
    counts = Counter(word[:LONGEST_WORD] for word in _WORD.findall(plain))
    if not counts:
        counts[plain.strip()] = 1  # punctuation, or nothing: still one place of its own
    words = [(_features(word), 1 + log(count)) for word, count in counts.items()]
    places = np.concatenate([places for (places, _), _ in words])
    weights = np.concatenate([weights * times for (_, weights), times in words])
    vector = np.bincount(places, weights, minlength=DIMENSIONS)
    length = float(np.linalg.norm(vector))
    if length == 0:  # every feature met its opposite
        vector[0] = length = 1.0
    return vector / length


@lru_cache(maxsize=20_000)
def _features(word: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Places and signed weights of a word's features; the frequent words of a language come round again and again."""
    grams = list(_grams(word))
    each = 1 / sqrt(len(grams)) if grams else 0.0  # all groups of a word weigh together what the word does
    hashes = [xxhash.xxh3_64_intdigest(feature.encode("utf-8", "replace")) for feature in (f"={word}", *grams)]
    places = np.array([value % DIMENSIONS for value in hashes], dtype=np.int64)
    signs = np.array([1.0 if value >> 63 else -1.0 for value in hashes])
    return places, signs * np.array([1.0, *[each] * len(grams)])


def _grams(word: str) -> Iterator[str]:
    """Groups of letters, the word's ends marked, so that ``<cat>`` and ``concatenate`` differ."""
    marked = f"<{word}>"
    for size in GRAM_SIZES:
        for start in range(len(marked) - size + 1):
            yield marked[start : start + size]
