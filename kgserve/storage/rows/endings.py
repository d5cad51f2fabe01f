"""What many rows of a base end with: kept once, and told by its number in a column of each row.

Nodes that were written together have version, sequence and times in common, many their attributes as well; edges all
that is behind their ends. A row is read as its own text and its ending, one behind the other, so it does not matter
where it was parted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from kgserve.storage.rows.format import Numbers

ENDING_MARKS = {"node": (b',"attributes":', b',"version":'), "edge": (b',"relation_type":', b',"attributes":')}
"""Where rows may be parted: the first place that many of them have in common counts."""
ENDING_SAMPLE_ROWS = 4096
MIN_ENDING_ROWS = 8
"""An ending is kept apart if so many of the rows that are looked at together have it."""
MAX_ENDING_BYTES = 1 << 10
MAX_ENDINGS = 1 << 13
"""Endings are in memory while a base is open: 8 MiB of them at most, and mostly some kilobytes."""


class SuffixDictionary:
    """Those of a base that is being made. Number 0 is of rows that are whole."""

    def __init__(self, old: Sequence[bytes], used: Iterable[int]) -> None:
        """``used`` are the numbers of the old ones that rows which stay have."""
        self._numbers = {b"": 0}
        self.renumbered: Numbers = np.zeros(len(old), np.uint32)
        for number in used:
            self.renumbered[number] = self._numbers.setdefault(old[number], len(self._numbers))

    @property
    def texts(self) -> list[bytes]:
        """All of them by number."""
        return [*self._numbers]

    def part(self, kind: str, texts: list[bytes]) -> list[int]:
        """Take endings off the texts of new rows, in place; their numbers."""
        numbers = [0] * len(texts)
        for start in range(0, len(texts), ENDING_SAMPLE_ROWS):
            left: Sequence[int] = range(start, min(start + ENDING_SAMPLE_ROWS, len(texts)))
            for mark in ENDING_MARKS[kind]:
                left = self._part_some(texts, numbers, left, mark)
        return numbers

    def _part_some(self, texts: list[bytes], numbers: list[int], some: Sequence[int], mark: bytes) -> list[int]:
        """Part some rows where they have a mark; those that stay whole."""
        found = [_from(texts[at], mark) for at in some]
        for ending, count in Counter(found).items():
            if count >= MIN_ENDING_ROWS and len(self._numbers) < MAX_ENDINGS:
                self._numbers.setdefault(ending, len(self._numbers))
        left: list[int] = []
        for at, ending in zip(some, found, strict=True):
            if number := self._numbers.get(ending, 0):
                numbers[at] = number
                texts[at] = texts[at][: -len(ending)]
            else:
                left.append(at)
        return left


def _from(text: bytes, mark: bytes) -> bytes:
    """What a text has from a mark on; nothing where that is long, or not there."""
    place = text.find(mark)
    return text[place:] if place > 0 and len(text) - place <= MAX_ENDING_BYTES else b""
