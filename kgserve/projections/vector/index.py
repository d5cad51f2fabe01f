"""The vector index of one store: exact while it is small, hnswlib beyond; nobody else sees which.

Up to 10,000 vectors one matrix product takes 0.3 ms, finds exactly, filters exactly and deletes for nothing. Above that
an approximate index takes over. All that can crash hnswlib (a call before it has room, more results than elements, a
damaged file, a vector of the wrong width or with NaN) is kept away from it here, under one lock.
"""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import hnswlib
import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from kgserve.platform.codecs import msgpack_decoder
from kgserve.projections import manifest
from kgserve.projections.filter_columns import FilterColumns, Mask, only_at
from kgserve.projections.text import NO_TEXT_FILTER, Facets, Filter
from kgserve.projections.vector.matrix import SCATTERED_READ_COST, VectorRows, Vectors, products

log = structlog.get_logger()

VECTOR_INDEX_KIND = "vector 2"
MAX_EXACT_VECTORS = 10_000
# With a graph, too, as long as no more than so many times as many are multiplied for a filter.
_FILTERED_EXACT_FACTOR = 2
_HNSW_M = 16
_EF_BUILD = 200
_EF_SEARCH = 100
_ENTITIES_FILE = "entities.msgpack"
_MATRIX_FILE = "vectors.npy"
_GRAPH_FILE = "vectors.hnsw"
# So many vectors at a time, 6 ms in the graph: whoever searches waits for no more.
_PUT_BATCH_VECTORS = 16
_BUILD_BATCH_VECTORS = 500
_GRAPH_INSERT_BATCH_VECTORS = 128
# So many stored vectors are asked with at a time, 1 ms in the graph: whoever searches waits for no more.
_QUERY_BATCH_VECTORS = 2
_READ_BATCH_VECTORS = 4_096
# With a filter the graph is asked for so many times as many as would be enough, and again for more if they were not.
_VECTOR_OVERFETCH = 1.5
_OVERFETCH_GROWTH = 4
# To come by one more vector in the graph costs about as much as so many of those that are simply multiplied.
_GRAPH_STEP_COST = 10
# What hnswlib 0.8 writes before its elements, and of it what is needed: their number, size, and places inside.
_HNSW_HEADER = struct.Struct("<6Qi")
_HNSW_HEADER_BYTES = 96

Numbers = NDArray[np.int64]


class VectorHit(msgspec.Struct, frozen=True):
    """An entity near the query, with its cosine similarity."""

    id: str
    similarity: float


class _Entities(msgspec.Struct):
    """What each label stands for, and since which commit; an empty id is a label that is no longer used."""

    ids: list[str]
    types: list[str]
    since: list[int]
    facets: dict[int, Facets] = msgspec.field(name="marks")


class FairLock:
    """Who lets go of a `threading.Lock` and asks again gets it first, for others must be woken: here they come first.

    So a long piece of work that lets go between its parts holds others up for one part.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


class VectorIndex:
    """Vectors by entity id. Any thread may search; one thread writes."""

    def __init__(
        self,
        folder: Path,
        dimensions: int,
        model: str,
        exact_up_to: int = MAX_EXACT_VECTORS,
        between: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Load what `save` left for the same model, or start empty with ``sequence`` 0.

        ``between`` is called between the parts of a graph that is built, which takes minutes for 100,000 vectors, with
        the seconds that the last part took. It may raise: the index stays as it was, and is built at a later `put` or
        `remove`.
        """
        self._folder = folder
        self._dimensions = dimensions
        self._model = model
        self._exact_up_to = exact_up_to
        self._between = between
        self._lock = FairLock()
        self._ids: list[str] = []
        self._labels: dict[str, int] = {}
        self._columns = FilterColumns()
        self._rows = VectorRows(folder.parent, dimensions)
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
        facets: Sequence[Facets | None] = (),
    ) -> None:
        """Add entities or replace their vectors; rows are of length 1. Raises ValueError for a wrong shape or NaN.

        ``since`` are the commits since which each has had its text, 0 if nothing is said. Whoever searches meanwhile
        may find some of them. Raises OSError when there is no room on the disk.
        """
        if vectors.shape != (len(ids), self._dimensions) or not np.isfinite(vectors).all():
            raise ValueError(
                f"vectors of shape {vectors.shape} for {len(ids)} entities of {self._dimensions} dimensions"
            )
        since = since or [0] * len(ids)
        for first in range(0, len(ids), _PUT_BATCH_VECTORS):
            some = slice(first, first + _PUT_BATCH_VECTORS)
            with self._lock:
                self._put(ids[some], types[some], vectors[some], since[some], facets[some])
        self._settle()

    def remove(self, ids: Sequence[str]) -> None:
        """Remove entities; those that are not there are passed over."""
        with self._lock:
            for node_id in ids:
                self._forget(node_id)
        self._settle()

    def clear(self, model: str | None = None) -> None:
        """Forget everything, on disk too; what comes is of another ``model``, perhaps."""
        self._model = self._model if model is None else model
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock:
            self._ids, self._labels, self._columns = [], {}, FilterColumns()
            self._rows = VectorRows(self._folder.parent, self._dimensions)
            self._graph = None
        self.sequence, self.fresh = 0, True

    def search(self, query: NDArray[np.float32], limit: int, only: Filter = NO_TEXT_FILTER) -> list[VectorHit]:
        """The nearest entities, nearest first."""
        with self._lock:
            limit = min(limit, len(self._labels))
            if limit <= 0:
                return []
            if only.is_empty:
                return self._exact(query, limit) if self._graph is None else self._approximate(query, limit)
            return self._filtered(query, limit, only)

    def save(self, sequence: int) -> None:
        """Write everything to the folder, whole or not at all. Only the thread that writes may call it."""
        aside = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        # Without the lock: nobody else changes anything, and the graph of a large store takes half a second.
        columns = self._columns
        entities = _Entities(self._ids, columns.types, columns.since.tolist(), columns.facets())
        (aside / _ENTITIES_FILE).write_bytes(msgspec.msgpack.encode(entities))
        # A meaning can be guessed from its vector: of what is gone none is kept.
        unused = np.array([label for label, node_id in enumerate(self._ids) if not node_id], np.int64)
        if self._graph is None:
            np.save(aside / _MATRIX_FILE, self._rows.values)
            if len(unused):
                np.load(aside / _MATRIX_FILE, mmap_mode="r+")[unused] = 0
        else:
            self._graph.save_index(str(aside / _GRAPH_FILE))
            if len(unused):
                _blank_in_graph(aside / _GRAPH_FILE, unused, len(self._ids), self._dimensions)
        manifest.seal(aside, VECTOR_INDEX_KIND, sequence, self._model)
        shutil.rmtree(self._folder, ignore_errors=True)
        aside.rename(self._folder)
        self.sequence = sequence

    def vectors_of(self, ids: Sequence[str], as_of: int | None = None) -> dict[str, NDArray[np.float32]]:
        """The vectors of those entities that are there, and had the same text as of a commit, if one is given."""
        with self._lock:
            known = self._labels
            labels = [known[node_id] for node_id in ids if node_id in known]
            if as_of is not None:
                labels = [label for label in labels if self._columns.since[label] <= as_of]
            rows = self._rows.values[np.asarray(labels, np.intp)]
            return dict(zip([self._ids[label] for label in labels], rows, strict=True))

    def passing(self, only: Filter, most: int) -> list[str] | None:
        """The ids of the entities that pass; None where more than so many do."""
        with self._lock:
            labels = np.flatnonzero(self._passing(only))
            return None if len(labels) > most else [self._ids[label] for label in labels]

    def near(self, ids: Sequence[str], above: float, most: int) -> dict[str, list[VectorHit]]:
        """Of each of those entities that are there, the others that are more similar than ``above``, nearest first.

        At most so many each. Nothing is embedded; who searches meanwhile waits for a few milliseconds.
        """
        found: dict[str, list[VectorHit]] = {}
        for first in range(0, len(ids), _QUERY_BATCH_VECTORS):
            with self._lock:
                known = [
                    (each, self._labels[each])
                    for each in ids[first : first + _QUERY_BATCH_VECTORS]
                    if each in self._labels
                ]
                for (node_id, label), hits in zip(known, self._around([at for _, at in known], most + 1), strict=True):
                    others = (hit for hit in hits if hit.id != self._ids[label] and hit.similarity > above)
                    found[node_id] = list(others)[:most]
        return found

    # All below with the lock held

    def _around(self, labels: Sequence[int], count: int) -> Iterator[list[VectorHit]]:
        """The nearest of each of some labels, which are among them."""
        count = min(count, len(self._labels))
        for query in self._rows.values[np.asarray(labels, np.intp)]:
            yield self._exact(query, count) if self._graph is None else self._approximate(query, count)

    def _put(
        self,
        ids: Sequence[str],
        types: Sequence[str],
        vectors: Vectors,
        since: Sequence[int],
        facets: Sequence[Facets | None],
    ) -> None:
        first = len(self._ids)
        self._rows.append(vectors)
        if self._graph is not None:
            _make_room(self._graph, first + len(ids))
            self._graph.add_items(vectors, np.arange(first, first + len(ids)), num_threads=1)
        for node_id in ids:
            self._forget(node_id)
        self._ids += ids
        self._columns.add(
            types, since, {label: found for label, found in enumerate(facets, first) if found is not None}
        )
        for label, node_id in enumerate(ids, first):
            if node_id in self._labels:
                self._forget(node_id)
            self._labels[node_id] = label

    def _forget(self, node_id: str) -> None:
        label = self._labels.pop(node_id, None)
        if label is not None:
            self._ids[label] = ""
            self._columns.drop(label)
            if self._graph is not None:
                self._graph.mark_deleted(label)

    def _exact(self, query: NDArray[np.float32], limit: int, passing: Mask | None = None) -> list[VectorHit]:
        """The nearest of those that pass, which are at least ``limit``; of all if nothing is said."""
        mask = self._columns.live if passing is None else passing
        if np.count_nonzero(mask) * SCATTERED_READ_COST >= len(mask):
            labels = np.arange(len(mask))
            scores = self._rows.values @ query
            scores[~mask] = -np.inf
        else:
            labels = np.flatnonzero(mask)
            scores = products(self._rows.values, labels, query)
        # All that are as near as the last one, so that among equals the oldest are taken whatever the limit.
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        best = np.flatnonzero(scores >= least)
        order = best[np.lexsort((labels[best], -scores[best]))][:limit]
        return [VectorHit(self._ids[labels[place]], float(scores[place])) for place in order]

    def _filtered(self, query: NDArray[np.float32], limit: int, only: Filter) -> list[VectorHit]:
        """Exactly where that costs about what it does without a graph; else from the graph while that costs less.

        Those near the query may be just those that do not pass, so that hardly any of many is found in the graph.
        """
        passing = self._passing(only)
        count = int(np.count_nonzero(passing))
        limit = min(limit, count)
        if limit == 0:
            return []
        wanted = int(_VECTOR_OVERFETCH * limit * len(self._labels) / count) + 1
        few = min(len(passing), SCATTERED_READ_COST * count) <= _FILTERED_EXACT_FACTOR * self._exact_up_to
        while self._graph is not None and not few and wanted * _GRAPH_STEP_COST < count:
            labels, similarities = self._walk(query, wanted, wanted)
            found = np.flatnonzero(passing[labels])[:limit]
            if len(found) == limit:
                return self._hits(labels[found], similarities[found])
            wanted *= _OVERFETCH_GROWTH
        return self._exact(query, limit, passing)

    def _passing(self, only: Filter) -> Mask:
        passing = self._columns.passing(only, self._ids)
        if only.ids is not None:
            known = self._labels
            passing &= only_at([known[node_id] for node_id in only.ids if node_id in known], len(passing))
        return passing

    def _approximate(self, query: NDArray[np.float32], limit: int) -> list[VectorHit]:
        labels, similarities = self._walk(query, limit, 2 * limit)
        return self._hits(labels, similarities) if len(labels) == limit else self._exact(query, limit)

    def _walk(self, query: NDArray[np.float32], count: int, width: int) -> tuple[Numbers, Vectors]:
        """The labels of the nearest in the graph with their similarities; none if it cannot find so many."""
        self._graph.set_ef(max(_EF_SEARCH, width))
        try:
            labels, distances = self._graph.knn_query(query[np.newaxis], k=count, num_threads=1)
        except RuntimeError:
            # Too many deleted elements around the query for that many results.
            return np.empty(0, np.int64), np.empty(0, np.float32)
        return labels[0].astype(np.int64), 1 - distances[0]

    def _hits(self, labels: Numbers, similarities: Vectors) -> list[VectorHit]:
        found = zip(labels.tolist(), similarities.tolist(), strict=True)
        return [VectorHit(self._ids[label], similarity) for label, similarity in found]

    # Without the lock, by the writing thread

    def _settle(self) -> None:
        """Change over to what fits the number of vectors, and drop labels when most are unused."""
        live, used = len(self._labels), len(self._ids)
        wants_graph = live > self._exact_up_to
        if wants_graph == self.approximate and used <= max(2 * live, live + 1000):
            return
        labels = np.array(sorted(self._labels.values()), np.intp)
        ids, types = [self._ids[label] for label in labels], self._columns.types
        columns, facets = FilterColumns(), self._columns.facets()
        columns.add(
            [types[label] for label in labels],
            self._columns.since[labels],
            {place: facets[label] for place, label in enumerate(labels.tolist()) if label in facets},
        )
        rows = VectorRows(self._folder.parent, self._dimensions)
        for first in range(0, live, _BUILD_BATCH_VECTORS):
            rows.append(self._rows.values[labels[first : first + _BUILD_BATCH_VECTORS]])
        graph = self._built(rows.values) if wants_graph else None
        with self._lock:
            self._ids, self._columns, self._rows, self._graph = ids, columns, rows, graph
            self._labels = dict(zip(ids, range(live), strict=True))

    def _built(self, rows: Vectors) -> Any:  # hnswlib has no types
        graph = hnswlib.Index("ip", self._dimensions)
        graph.init_index(max_elements=max(len(rows), 1024), ef_construction=_EF_BUILD, M=_HNSW_M)
        worked = 0.0
        for first in range(0, len(rows), _GRAPH_INSERT_BATCH_VECTORS):
            self._between(worked)
            started = time.perf_counter()
            some = rows[first : first + _GRAPH_INSERT_BATCH_VECTORS]
            graph.add_items(some, np.arange(first, first + len(some)), num_threads=1)
            worked = time.perf_counter() - started
        return graph

    def _load(self) -> bool:
        found = manifest.read(self._folder, VECTOR_INDEX_KIND, self._model) if self._folder.is_dir() else None
        if found is None:
            return False
        entities = msgpack_decoder(_Entities).decode((self._folder / _ENTITIES_FILE).read_bytes())
        self._ids = entities.ids
        self._columns.add(entities.types, entities.since, entities.facets)
        self._labels = {node_id: label for label, node_id in enumerate(self._ids) if node_id}
        for label, node_id in enumerate(self._ids):
            if not node_id:
                self._columns.drop(label)
        if _GRAPH_FILE in found.files:
            self._load_graph()
        else:
            self._rows.adopt(np.asarray(np.load(self._folder / _MATRIX_FILE, mmap_mode="r")))
        self.sequence = found.sequence
        return True

    def _load_graph(self) -> None:
        path, count = self._folder / _GRAPH_FILE, len(self._ids)
        self._graph = hnswlib.Index("ip", self._dimensions)
        self._graph.load_index(str(path), max_elements=max(count, 1))
        try:
            for vectors in _rows_of_graph(path, count, self._dimensions):
                self._rows.append(vectors)
        except ValueError as reason:
            # Slower, but sure.
            log.warning("vector_file_unknown", reason=str(reason))
            for first in range(len(self._rows), count, _BUILD_BATCH_VECTORS):
                labels = np.arange(first, min(first + _BUILD_BATCH_VECTORS, count))
                self._rows.append(np.asarray(self._graph.get_items(labels), np.float32))


def _make_room(graph: Any, count: int) -> None:
    """Have room for so many in a graph, and for a quarter more if it had none: what is unused takes memory, too."""
    if count > graph.get_max_elements():
        graph.resize_index(count + count // 4)


def _rows_of_graph(path: Path, labels: int, dimensions: int) -> Iterator[Vectors]:
    """The vectors in a file of hnswlib in the order of their labels, which are 0, 1, …; some thousands at a time.

    Asked of hnswlib itself, a vector takes 25 µs and more, and all other threads wait. Raises ValueError when the
    file does not look as those of hnswlib 0.8 do.
    """
    elements, order = _elements_of_graph(path, labels, dimensions, "r")
    for first in range(0, labels, _READ_BATCH_VECTORS):
        yield elements["vector"][order[first : first + _READ_BATCH_VECTORS]]


def _blank_in_graph(path: Path, unused: Numbers, labels: int, dimensions: int) -> None:
    """Leave nothing of the vectors of labels that are marked as deleted: ways still lead through their elements."""
    try:
        elements, order = _elements_of_graph(path, labels, dimensions, "r+")
    except ValueError as reason:
        log.warning("vector_file_unknown", reason=str(reason))
    else:
        elements["vector"][order[unused]] = 0


def _elements_of_graph(path: Path, labels: int, dimensions: int, mode: Literal["r", "r+"]) -> tuple[Any, Numbers]:
    """The elements in a file of hnswlib, mapped, and the place of each label among them. Raises ValueError."""
    with path.open("rb") as file:
        header = file.read(_HNSW_HEADER_BYTES)
    _, _, count, size, label_at, vector_at, _ = _HNSW_HEADER.unpack_from(header)
    if count != labels or label_at + 8 > size or vector_at + 4 * dimensions > size:
        raise ValueError(f"{path} is not laid out as expected")
    content = np.memmap(path, np.uint8, mode)
    element = np.dtype(
        {
            "names": ["label", "vector"],
            "formats": ["<u8", ("<f4", (dimensions,))],
            "offsets": [label_at, vector_at],
            "itemsize": size,
        }
    )
    elements = np.ndarray(count, element, content, _HNSW_HEADER_BYTES)
    order = np.argsort(elements["label"], kind="stable")
    if not np.array_equal(elements["label"][order], np.arange(count)):
        raise ValueError(f"{path} holds other labels than expected")
    return elements, order
