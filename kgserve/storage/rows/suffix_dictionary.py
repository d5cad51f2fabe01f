"""Dictionary of common row suffixes: stored once per base, referenced by number in a column.

Nodes written together share version, sequence and times, and often their attributes. Edges share all that follows their
endpoints. A row is read as its own text followed by its suffix, so the split position does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np

from kgserve.storage.rows.base_segment_file_format import NumberArray

SUFFIX_MARKERS = {"node": (b',"attributes":', b',"version":'), "edge": (b',"relation_type":', b',"attributes":')}
"""Texts before which rows may be split; the first one at which many rows agree is used."""
SUFFIX_SAMPLE_ROWS = 4096
MIN_SUFFIX_ROWS = 8
"""Number of sampled rows that must share a suffix before it is added."""
MAX_SUFFIX_BYTES = 1 << 10
MAX_SUFFIXES = 1 << 13
"""Maximum suffixes of a base. They are in memory while it is open: at most 8 MiB, usually some kilobytes."""


class RemovedRowTextSuffixes(NamedTuple):
    """Suffixes that were removed from texts, and the index of each text's suffix among them."""

    suffixes: list[bytes]
    indexes: NumberArray

    def reordered(self, order: NumberArray) -> Self:
        """Return the suffixes of the texts in another order."""
        return self._replace(indexes=self.indexes[order])


class RowSuffixDictionary:
    """Dictionary of common row suffixes of a base segment being built. Number 0 is the empty suffix."""

    def __init__(self, old: Sequence[bytes], used: Iterable[int]) -> None:
        """Keep the ``old`` suffixes whose numbers are in ``used``."""
        self._numbers = {b"": 0}
        self.renumbered: NumberArray = np.zeros(len(old), np.uint32)
        for number in used:
            self.renumbered[number] = self._numbers.setdefault(old[number], len(self._numbers))

    @property
    def texts(self) -> list[bytes]:
        """All suffixes by number."""
        return [*self._numbers]

    def split_suffixes(self, kind: str, texts: list[bytes]) -> list[int]:
        """Remove common suffixes from the texts of new rows, in place; return the number of each row's suffix."""
        numbers = [0] * len(texts)
        for start in range(0, len(texts), SUFFIX_SAMPLE_ROWS):
            left: Sequence[int] = range(start, min(start + SUFFIX_SAMPLE_ROWS, len(texts)))
            for mark in SUFFIX_MARKERS[kind]:
                left = self._split_at(texts, numbers, left, mark)
        return numbers

    def add_removed(self, texts: list[bytes], removed: RemovedRowTextSuffixes) -> NumberArray:
        """Add suffixes that the texts no longer have, and return the number of each text's suffix.

        Suffixes for which there is no room are put back.
        """
        for suffix in removed.suffixes:
            if len(self._numbers) < MAX_SUFFIXES:
                self._numbers.setdefault(suffix, len(self._numbers))
        numbers = np.array([self._numbers.get(suffix, 0) for suffix in removed.suffixes], np.int64)[removed.indexes]
        for at in np.flatnonzero(numbers == 0).tolist():
            texts[at] += removed.suffixes[removed.indexes[at]]
        return numbers

    def _split_at(self, texts: list[bytes], numbers: list[int], some: Sequence[int], mark: bytes) -> list[int]:
        """Split rows at a mark; return the indexes of rows that remain whole."""
        found = [_suffix_from(texts[at], mark) for at in some]
        for ending, count in Counter(found).items():
            if count >= MIN_SUFFIX_ROWS and len(self._numbers) < MAX_SUFFIXES:
                self._numbers.setdefault(ending, len(self._numbers))
        left: list[int] = []
        for at, ending in zip(some, found, strict=True):
            if number := self._numbers.get(ending, 0):
                numbers[at] = number
                texts[at] = texts[at][: -len(ending)]
            else:
                left.append(at)
        return left


def _suffix_from(text: bytes, mark: bytes) -> bytes:
    """Return a text from a mark on; empty if that is too long or the mark is missing."""
    place = text.find(mark)
    return text[place:] if place > 0 and len(text) - place <= MAX_SUFFIX_BYTES else b""
