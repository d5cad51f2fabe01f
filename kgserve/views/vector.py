"""The vector index of one store: exact while it is small, hnswlib beyond; nobody else sees which.

Up to 10,000 vectors one matrix product takes 0.3 ms, finds exactly, filters exactly and deletes for nothing. Above that
an approximate index takes over. All that can crash hnswlib (a call before it has room, more results than elements, a
damaged file, a vector of the wrong width or with NaN) is kept away from it here, under one lock.
"""

from __future__ import annotations

import shutil
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hnswlib
import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.decoding import msgpack_decoder
from kgserve.views import manifest
from kgserve.views.filters import ANYTHING, Filter, Marks

KIND = "vector 2"
EXACT_UP_TO = 10_000
_LINKS = 16
_EF_BUILD = 200
_EF_SEARCH = 100
_ENTITIES = "entities.msgpack"
_MATRIX = "vectors.npy"
_GRAPH = "vectors.hnsw"
_ALWAYS = (-(1 << 63), (1 << 63) - 1)
# At a moment, the graph is asked if at least this part of the vectors passes, for so many times as many as needed.
_MOST_PASS = 0.2
_SPARE = 1.5

Vectors = NDArray[np.float32]


class VectorHit(msgspec.Struct, frozen=True):
    """An entity near the query, with its cosine similarity."""

    id: str
    similarity: float


class _Entities(msgspec.Struct):
    """What each label stands for, and since which commit; an empty id is a label that is no longer used."""

    ids: list[str]
    types: list[str]
    since: list[int]
    marks: dict[int, Marks]


class VectorIndex:
    """Vectors by entity id. Any thread may search; one thread writes."""

    def __init__(self, folder: Path, dimensions: int, model: str, exact_up_to: int = EXACT_UP_TO) -> None:
        """Load what `save` left for the same model, or start empty with ``sequence`` 0."""
        self._folder = folder
        self._dimensions = dimensions
        self._model = model
        self._exact_up_to = exact_up_to
        self._lock = threading.Lock()
        self._ids: list[str] = []
        self._types: list[str] = []
        self._since = array("q")
        self._marks: dict[int, Marks] = {}
        # When each is true in the world, in microseconds: the marks' times for whole columns at once.
        self._valid_from, self._valid_to = array("q"), array("q")
        self._labels: dict[str, int] = {}
        self._unused: list[int] = []
        self._matrix: Vectors = np.empty((0, dimensions), np.float32)
        self._graph: Any = None
        self.sequence = 0
        self.fresh = not self._load()

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def approximate(self) -> bool:
        """Whether hnswlib answers."""
        return self._graph is not None

    @property
    def ids(self) -> set[str]:
        """The ids of all entities in it."""
        with self._lock:
            return set(self._labels)

    def put(
        self,
        ids: Sequence[str],
        types: Sequence[str],
        vectors: Vectors,
        since: Sequence[int] | None = None,
        marks: Sequence[Marks | None] = (),
    ) -> None:
        """Add entities or replace their vectors; rows are of length 1. Raises ValueError for a wrong shape or NaN.

        ``since`` are the commits since which each has had its text, 0 if nothing is said.
        """
        if vectors.shape != (len(ids), self._dimensions) or not np.isfinite(vectors).all():
            raise ValueError(
                f"vectors of shape {vectors.shape} for {len(ids)} entities of {self._dimensions} dimensions"
            )
        with self._lock:
            for node_id in ids:
                self._forget(node_id)
            first = len(self._ids)
            self._ids += ids
            self._types += types
            self._since.extend(since or [0] * len(ids))
            self._mark(len(ids), {label: found for label, found in enumerate(marks, first) if found is not None})
            self._labels.update(zip(ids, range(first, first + len(ids)), strict=True))
            self._insert(first, vectors)
        self._settle()

    def remove(self, ids: Sequence[str]) -> None:
        """Remove entities; those that are not there are passed over."""
        with self._lock:
            for node_id in ids:
                self._forget(node_id)
        self._settle()

    def clear(self) -> None:
        """Forget everything, on disk too."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock:
            self._ids, self._types, self._labels = [], [], {}
            self._since, self._marks, self._unused = array("q"), {}, []
            self._valid_from, self._valid_to = array("q"), array("q")
            self._matrix = np.empty((0, self._dimensions), np.float32)
            self._graph = None
        self.sequence, self.fresh = 0, True

    def search(self, query: NDArray[np.float32], limit: int, only: Filter = ANYTHING) -> list[VectorHit]:
        """The nearest entities, nearest first."""
        with self._lock:
            limit = min(limit, len(self._labels))
            if limit <= 0:
                return []
            if self._graph is None or not only.only_times:
                return self._exact(query, limit, only)
            return self._approximate(query, limit) if only.is_empty else self._approximate_then(query, limit, only)

    def save(self, sequence: int) -> None:
        """Write everything to the folder, whole or not at all."""
        aside = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        with self._lock:
            entities = _Entities(self._ids, self._types, self._since.tolist(), self._marks)
            (aside / _ENTITIES).write_bytes(msgspec.msgpack.encode(entities))
            if self._graph is None:
                np.save(aside / _MATRIX, self._matrix[: len(self._ids)])
            else:
                self._graph.save_index(str(aside / _GRAPH))
        manifest.seal(aside, KIND, sequence, self._model)
        shutil.rmtree(self._folder, ignore_errors=True)
        aside.rename(self._folder)
        self.sequence = sequence

    def vectors_of(self, ids: Sequence[str], as_of: int | None = None) -> dict[str, NDArray[np.float32]]:
        """The vectors of those entities that are there, and had the same text as of a commit, if one is given."""
        with self._lock:
            labels = [self._labels[node_id] for node_id in ids if node_id in self._labels]
            if as_of is not None:
                labels = [label for label in labels if self._since[label] <= as_of]
            return dict(zip([self._ids[label] for label in labels], self._rows(labels), strict=True))

    # All below with the lock held

    def _insert(self, first: int, vectors: Vectors) -> None:
        end = first + len(vectors)
        if self._graph is not None:
            if end > self._graph.get_max_elements():
                self._graph.resize_index(max(end, 2 * self._graph.get_max_elements()))
            self._graph.add_items(vectors, np.arange(first, end))
            return
        if end > len(self._matrix):
            room = np.empty((max(end, 2 * len(self._matrix), 64), self._dimensions), np.float32)
            room[:first] = self._matrix[:first]
            self._matrix = room
        self._matrix[first:end] = vectors

    def _mark(self, count: int, marks: dict[int, Marks]) -> None:
        """Note what is said of the next labels."""
        self._marks |= marks
        self._valid_from.extend([_ALWAYS[0]] * count)
        self._valid_to.extend([_ALWAYS[1]] * count)
        for label, found in marks.items():
            self._valid_from[label] = _ALWAYS[0] if found.valid_from is None else found.valid_from
            self._valid_to[label] = _ALWAYS[1] if found.valid_to is None else found.valid_to

    def _forget(self, node_id: str) -> None:
        label = self._labels.pop(node_id, None)
        if label is not None:
            self._ids[label] = ""
            self._marks.pop(label, None)
            self._unused.append(label)
            if self._graph is not None:
                self._graph.mark_deleted(label)

    def _rows(self, labels: Sequence[int]) -> Vectors:
        if self._graph is None:
            return self._matrix[np.asarray(labels, np.intp)]
        return np.asarray(self._graph.get_items(labels), np.float32).reshape(-1, self._dimensions)

    def _exact(self, query: NDArray[np.float32], limit: int, only: Filter) -> list[VectorHit]:
        if self._graph is None and only.is_empty:
            # One product over all rows costs less than picking out the rows that are still in use.
            labels = np.arange(len(self._ids))
            scores = self._matrix[: len(self._ids)] @ query
            scores[self._unused] = -np.inf
            limit = min(limit, len(self._labels))
        else:
            labels = self._passing(only)
            scores = self._rows(labels.tolist()) @ query if len(labels) else np.empty(0, np.float32)
        limit = min(limit, len(labels))
        if limit == 0:
            return []
        # All that are as near as the last one, so that among equals the oldest are taken whatever the limit.
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        best = np.flatnonzero(scores >= least)
        order = best[np.lexsort((labels[best], -scores[best]))][:limit]
        return [VectorHit(self._ids[labels[place]], float(scores[place])) for place in order]

    def _passing(self, only: Filter) -> NDArray[np.intp]:
        passing = np.ones(len(self._ids), np.bool_)
        passing[self._unused] = False
        if only.as_of is not None:
            passing &= np.array(self._since, np.int64) <= only.as_of
        if only.valid_at is not None:
            passing &= np.array(self._valid_from, np.int64) <= only.valid_at
            passing &= np.array(self._valid_to, np.int64) > only.valid_at
        labels = np.flatnonzero(passing)
        if only.only_times:
            return labels
        ids, types, marks = self._ids, self._types, self._marks
        found = (label for label in labels.tolist() if only.passes(ids[label], types[label], marks.get(label)))
        return np.fromiter(found, np.intp)

    def _approximate_then(self, query: NDArray[np.float32], limit: int, only: Filter) -> list[VectorHit]:
        """From the graph while most were so then; else, or if that gives too few, from those that were."""
        labels = self._passing(only)
        passes = np.zeros(len(self._ids), np.bool_)
        passes[labels] = True
        limit, share = min(limit, len(labels)), len(labels) / len(self._labels)
        if share >= _MOST_PASS:
            found = self._approximate(query, min(int(_SPARE * limit / share) + 1, len(self._labels)))
            kept = [hit for hit in found if passes[self._labels[hit.id]]][:limit]
            if len(kept) == limit:
                return kept
        return self._exact(query, limit, only)

    def _approximate(self, query: NDArray[np.float32], limit: int) -> list[VectorHit]:
        self._graph.set_ef(max(_EF_SEARCH, 2 * limit))
        try:
            labels, distances = self._graph.knn_query(query[np.newaxis], k=limit)
        except RuntimeError:
            # Too many deleted elements around the query for that many results.
            return self._exact(query, limit, ANYTHING)
        return [
            VectorHit(self._ids[label], 1.0 - float(distance))
            for label, distance in zip(labels[0], distances[0], strict=True)
        ]

    # Without the lock, by the writing thread

    def _settle(self) -> None:
        """Change over to what fits the number of vectors, and drop labels when most are unused."""
        live, used = len(self._labels), len(self._ids)
        wants_graph = live > self._exact_up_to
        if wants_graph == self.approximate and used <= max(2 * live, live + 1000):
            return
        labels = sorted(self._labels.values())
        ids, types = [self._ids[label] for label in labels], [self._types[label] for label in labels]
        since = array("q", (self._since[label] for label in labels))
        marks = {place: self._marks[label] for place, label in enumerate(labels) if label in self._marks}
        with self._lock:
            matrix = self._rows(labels).copy()
        graph = _built(matrix, self._dimensions) if wants_graph else None
        with self._lock:
            self._ids, self._types, self._since, self._marks = ids, types, since, {}
            self._valid_from, self._valid_to = array("q"), array("q")
            self._mark(live, marks)
            self._labels = dict(zip(ids, range(live), strict=True))
            self._unused = []
            self._graph = graph
            self._matrix = matrix if graph is None else np.empty((0, self._dimensions), np.float32)

    def _load(self) -> bool:
        found = manifest.read(self._folder, KIND) if self._folder.is_dir() else None
        if found is None or found.model != self._model:
            return False
        entities = msgpack_decoder(_Entities).decode((self._folder / _ENTITIES).read_bytes())
        self._ids, self._types = entities.ids, entities.types
        self._since = array("q", entities.since)
        self._mark(len(self._ids), entities.marks)
        self._labels = {node_id: label for label, node_id in enumerate(self._ids) if node_id}
        self._unused = [label for label, node_id in enumerate(self._ids) if not node_id]
        if _GRAPH in found.files:
            self._graph = hnswlib.Index("ip", self._dimensions)
            self._graph.load_index(str(self._folder / _GRAPH), max_elements=max(len(self._ids), 1))
            self._graph.set_ef(_EF_SEARCH)
        else:
            self._matrix = np.load(self._folder / _MATRIX)
        self.sequence = found.sequence
        return True


def _built(matrix: Vectors, dimensions: int) -> Any:  # hnswlib has no types
    graph = hnswlib.Index("ip", dimensions)
    graph.init_index(max_elements=max(2 * len(matrix), 1024), ef_construction=_EF_BUILD, M=_LINKS)
    graph.set_ef(_EF_SEARCH)
    graph.add_items(matrix, np.arange(len(matrix)))
    return graph
