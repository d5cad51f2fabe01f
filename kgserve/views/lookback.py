"""Searching a store as it was: what it holds now and held then, and what it held then and holds no longer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.errors import Unavailable
from kgserve.views.follower import IndexFollower, View
from kgserve.views.historian import HistoryFollower
from kgserve.views.indexes import Indexes
from kgserve.views.past import PastFollower
from kgserve.views.text import Filter

WAIT_SECONDS = 10.0


class Lookback:
    """The indexes of a store as of a commit, in the shape of `Indexes`.

    A text leaves the present index when it ends, and comes to that of the past later. So the present is searched first,
    and then the past once it has seen all that the present may have: a text may be met twice, and is never missed.
    """

    def __init__(self, indexes: Indexes, history: HistoryFollower, at: int) -> None:
        self._indexes = indexes
        self._history = history
        self._at = at

    def words(self, query: str, limit: int, only: Filter, *, syntax: bool) -> dict[str, float]:
        """The best entities for the words of a query, with BM25 scores, best first.

        Raises InvalidInput for a query that is none, Unavailable while an index is behind.
        """
        only = msgspec.structs.replace(only, as_of=self._at)
        now, then = self._indexes.keyword, self._indexes.past_keyword
        # Beforehand, too: the same words must weigh the same on the next page.
        self._await(then, now.shown)
        hits = now.search(query, limit, only, syntax=syntax, beside=then.frequencies(query))
        with self._complete(now, then):
            hits += then.search(query, limit, only, syntax=syntax, beside=now.frequencies(query))
        return _best([(hit.id, hit.score) for hit in hits], limit)

    def meaning(self, vector: NDArray[np.float32], limit: int, only: Filter) -> dict[str, float]:
        """The nearest entities, with cosine similarities. Raises Unavailable while an index is behind."""
        only = msgspec.structs.replace(only, as_of=self._at)
        now, then = self._indexes.vector, self._indexes.past_vector
        hits = now.search(vector, limit, only)
        with self._complete(now, then):
            hits += then.search(vector, limit, only)
        return _best([(hit.id, hit.similarity) for hit in hits], limit)

    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors that those entities had. Raises Unavailable while an index is behind."""
        now, then = self._indexes.vector, self._indexes.past_vector
        found = now.vectors_of(ids, self._at)
        with self._complete(now, then):
            return found | then.vectors_of([node_id for node_id in ids if node_id not in found], self._at)

    @contextmanager
    def _complete(self, now: IndexFollower, then: PastFollower) -> Generator[None]:
        """Search the past inside, after the present. Raises Unavailable unless both had everything."""
        _check(now, now.reached, self._at)
        seen = now.shown
        self._await(then, seen)
        yield
        _check(then, then.sequence, seen)

    def _await(self, then: PastFollower, sequence: int) -> None:
        for view in (self._history, then):
            view.wait(sequence, WAIT_SECONDS)
            _check(view, view.sequence, sequence)


def _check(view: View, sequence: int, wanted: int) -> None:
    if sequence < wanted:
        seen = max(sequence, 0)
        raise Unavailable(f"the {view.name} index has not seen sequence {wanted} yet, only {seen}", retry_after=2)


def _best(scored: list[tuple[str, float]], limit: int) -> dict[str, float]:
    # Equals stay as they came: a page further down, of longer lists, then goes on where the one before has ended.
    found: dict[str, float] = {}
    for node_id, score in sorted(scored, key=lambda hit: -hit[1]):
        if len(found) == limit:
            break
        found.setdefault(node_id, score)
    return found
