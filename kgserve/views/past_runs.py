"""When past texts held, and what filters ask of them: a few numbers for each, in memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.views.filters import NO_MARKS, Filter, Marks

_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_LEAST_ROOM = 64

Numbers = NDArray[np.int64]
Word = TypeVar("Word", bound=Hashable)


class Run(msgspec.Struct, frozen=True):
    """A text that an entity had from commit ``first`` to before ``last``; ``vector`` is the row of its vector."""

    number: int
    id: str
    first: int
    last: int
    type: str
    vector: int
    marks: Marks | None


class _Words(Generic[Word]):
    """Numbers for values of which there are few."""

    def __init__(self) -> None:
        self._numbers: dict[Word, int] = {}

    def number(self, word: Word) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def chosen(self, words: Iterable[Word]) -> Numbers:
        """The numbers of those of some words that there are."""
        return np.array([self._numbers[word] for word in words if word in self._numbers], np.int64)

    def all(self) -> list[Word]:
        return list(self._numbers)


class Columns(msgspec.Struct, frozen=True):
    """The runs that there were at one time, by their place: each column of shape (runs,).

    What says nothing of its validity or freshness has the earliest and the latest moment there is.
    """

    number: Numbers
    first: Numbers
    last: Numbers
    vector: Numbers
    type: Numbers
    tags: Numbers
    valid_from: Numbers
    valid_to: Numbers
    freshness_at: Numbers


_WIDTH = len(Columns.__struct_fields__)


class Runs:
    """Runs in the order of their numbers. One thread puts them; whoever has asked for `columns` may keep them.

    A place that is not taken yet holds zeros, which stand for a text that never held.
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._types = _Words[str]()
        self._tags = _Words[tuple[str, ...]]()
        rows = [self._row(run) for run in runs]
        self._count = len(rows)
        self._table = np.array(rows, np.int64).reshape(-1, _WIDTH).T.copy()

    def __len__(self) -> int:
        return self._count

    @property
    def columns(self) -> Columns:
        """All runs."""
        # The count first: a table that is newer than it holds that many, too.
        count = self._count
        return Columns(*self._table[:, :count])

    def put(self, run: Run) -> None:
        """Add a run, or say anew until when one with the same number held."""
        place = int(np.searchsorted(self._table[0, : self._count], run.number))
        if place == self._table.shape[1]:
            self._grow()
        self._table[:, place] = self._row(run)
        self._count = max(self._count, place + 1)

    def passing(self, only: Filter) -> tuple[Columns, Numbers]:
        """The runs, and the places of those that held as of ``only.as_of`` and pass, but for what their ids are."""
        runs, at = self.columns, only.as_of or 0
        passes = (runs.first <= at) & (runs.last > at)
        if only.types is not None:
            passes &= np.isin(runs.type, self._types.chosen(only.types))
        if only.tags:
            tagged = self._tags.chosen(tags for tags in self._tags.all() if only.tags.issubset(tags))
            passes &= np.isin(runs.tags, tagged)
        if only.valid_at is not None:
            passes &= (runs.valid_from <= only.valid_at) & (only.valid_at < runs.valid_to)
        if only.fresh_at is not None:
            passes &= only.fresh_at < runs.freshness_at
        return runs, np.flatnonzero(passes)

    def _grow(self) -> None:
        # Copied, not moved: whoever reads the old one goes on with it.
        room = np.zeros((_WIDTH, max(_LEAST_ROOM, 2 * self._count)), np.int64)
        room[:, : self._count] = self._table[:, : self._count]
        self._table = room

    def _row(self, run: Run) -> tuple[int, ...]:
        marks = run.marks or NO_MARKS
        return (
            run.number,
            run.first,
            run.last,
            run.vector,
            self._types.number(run.type),
            self._tags.number(marks.tags),
            _EARLIEST if marks.valid_from is None else marks.valid_from,
            _LATEST if marks.valid_to is None else marks.valid_to,
            _LATEST if marks.freshness_at is None else marks.freshness_at,
        )
