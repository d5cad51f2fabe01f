"""Vector index of one store: an exact matrix scan while it is small, hnswlib beyond where it is installed.

Up to 10,000 vectors one matrix product takes 0.3 ms, is exact also under filters, and makes deletion free. Larger
indexes use an approximate graph. A lock, shared by searches, protects hnswlib from everything that crashes it: queries
on an empty index, more results than elements, damaged files, vectors of the wrong width or with NaN.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.readers_writer_lock import ReadersWriterLock
from kgserve.projections import folder_manifest
from kgserve.projections.filter_columns import EntityFilterColumns, Mask, build_mask_from_index_labels
from kgserve.projections.indexed_text import NO_TEXT_FILTER, EntityFilterableFields, EntitySearchFilter
from kgserve.projections.vector.binary_vector_codes import BinaryVectorCodes
from kgserve.projections.vector.graph_files import (
    GRAPH_FILE,
    LINKS_FILE,
    IntArray,
    blank_deleted_vectors,
    join_graph_file,
    read_graph_vectors,
    split_graph_file,
)
from kgserve.projections.vector.vector_rows import SCATTERED_READ_COST, FloatMatrix, VectorRows, dot_products

log = structlog.get_logger()

VECTOR_INDEX_KIND = "vector 3"
_READABLE_KINDS = (VECTOR_INDEX_KIND, "vector 2")  # 2 has graphs with whole vectors only
MAX_EXACT_VECTORS = 10_000
# An exact search among this number takes 8 ms on one core, ten times as long as in the graph.
MIN_SLOW_EXACT_VECTORS = 50_000
SLOW_EXACT_NOTE = "every vector is compared; for an index, install hnswlib: pip install 'kgserve[hnswlib]'"
# Filtered searches of a graph are exact if the vectors that pass have at most this many components: 5,000 vectors of
# 384 dimensions.
_MAX_EXACT_COMPONENTS = 1_920_000
_HNSW_M = 16
_EF_BUILD = 200
_EF_SEARCH = 100
# A graph search for some results visits this multiple of them.
_GRAPH_WIDTH = 1.5
_ENTITIES_FILE = "entities.msgpack"
_MATRIX_FILE = "vectors.npy"
# Batch sizes bound how long a search waits for the lock: 16 insertions into the graph take about 6 ms.
_PUT_BATCH_VECTORS = 16
_BUILD_BATCH_VECTORS = 500
_GRAPH_INSERT_BATCH_VECTORS = 128
# Stored vectors queried per lock acquisition; about 1 ms in the graph.
_QUERY_BATCH_VECTORS = 2
# Filtered graph queries ask for this multiple of the expected need, and for more if too few match.
_VECTOR_OVERFETCH = 1.5
_OVERFETCH_GROWTH = 4
# Candidates by binary codes whose cosines are computed: a multiple of the hits wanted, and the least number.
_CODE_OVERFETCH = 15
_MIN_CODE_CANDIDATES = 1_000
# Microseconds to visit one more vector in the graph, and to compare a scattered code, or one of all codes.
_GRAPH_STEP_MICROSECONDS = 10.0
_SCATTERED_CODE_MICROSECONDS = 0.08
_CODE_MICROSECONDS = 0.025

try:
    import hnswlib
except ImportError:  # the extra of this name, which needs a compiler
    hnswlib = None


class VectorHit(msgspec.Struct, frozen=True):
    """Entity similar to the query, with its cosine similarity."""

    id: str
    similarity: float


class _EntityTable(msgspec.Struct):
    """Entity, type and first commit of each label; an empty id marks an unused label."""

    ids: list[str]
    types: list[str]
    since: list[int]
    facets: dict[int, EntityFilterableFields] = msgspec.field(name="marks")


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
        """Load the index saved for the same model, or start empty with ``sequence`` 0.

        ``between`` is called between the steps of building a graph, which takes minutes for 100,000 vectors. Its
        argument is the duration of the last step in seconds. If it raises, the index is unchanged, and a later `put` or
        `remove` builds the graph.
        """
        self._folder = folder
        self._dimensions = dimensions
        self._model = model
        self._exact_up_to = exact_up_to
        self._between = between
        self._lock = ReadersWriterLock()
        self._ids: list[str] = []
        self._labels: dict[str, int] = {}
        self._columns = EntityFilterColumns()
        self._rows = VectorRows(folder.parent, dimensions)
        self._graph: Any = None
        # Codes of all rows while there is a graph.
        self._codes = BinaryVectorCodes(dimensions)
        self.sequence = 0
        self.fresh = not self._load()

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def is_approximate(self) -> bool:
        """True if hnswlib answers queries."""
        return self._graph is not None

    @property
    def note(self) -> str | None:
        """Why searches are slow, if they are for want of hnswlib."""
        is_slow = hnswlib is None and len(self._labels) >= MIN_SLOW_EXACT_VECTORS
        return SLOW_EXACT_NOTE if is_slow else None

    @property
    def ids(self) -> set[str]:
        """Ids of all entities in the index."""
        with self._lock.read():
            return set(self._labels)

    def put(
        self,
        ids: Sequence[str],
        types: Sequence[str],
        vectors: FloatMatrix,
        since: Sequence[int] | None = None,
        facets: Sequence[EntityFilterableFields | None] = (),
    ) -> None:
        """Add entities or replace their vectors, which are rows of unit length.

        ``since`` are the commits at which the texts were set, 0 by default. Concurrent searches may see a part of them.
        Raises ValueError for a wrong shape or NaN, and OSError if the disk is full.
        """
        if vectors.shape != (len(ids), self._dimensions) or not np.isfinite(vectors).all():
            raise ValueError(
                f"expected finite vectors of shape ({len(ids)}, {self._dimensions}), got shape {vectors.shape}"
            )
        since = since or [0] * len(ids)
        for first in range(0, len(ids), _PUT_BATCH_VECTORS):
            some = slice(first, first + _PUT_BATCH_VECTORS)
            with self._lock.write():
                self._put(ids[some], types[some], vectors[some], since[some], facets[some])
        self._rebalance()

    def remove(self, ids: Sequence[str]) -> None:
        """Remove entities; unknown ids are ignored."""
        with self._lock.write():
            for node_id in ids:
                self._drop(node_id)
        self._rebalance()

    def clear(self, model: str | None = None) -> None:
        """Delete all vectors, on disk too; ``model`` is the model of future vectors."""
        self._model = self._model if model is None else model
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._lock.write():
            self._ids, self._labels, self._columns = [], {}, EntityFilterColumns()
            self._rows = VectorRows(self._folder.parent, self._dimensions)
            self._graph, self._codes = None, BinaryVectorCodes(self._dimensions)
        self.sequence, self.fresh = 0, True

    def search(
        self, query: NDArray[np.float32], limit: int, only: EntitySearchFilter = NO_TEXT_FILTER
    ) -> list[VectorHit]:
        """Return the nearest entities, nearest first."""
        with self._lock.read():
            limit = min(limit, len(self._labels))
            if limit <= 0:
                return []
            if only.is_empty:
                return self._exact(query, limit) if self._graph is None else self._approximate(query, limit)
            return self._filtered(query, limit, only)

    def save(self, sequence: int) -> None:
        """Write the index to its folder atomically. Only the writing thread may call it."""
        aside = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        # No lock: only this thread changes the index, and saving a large graph takes half a second.
        columns = self._columns
        entities = _EntityTable(self._ids, columns.types, columns.changed_since.tolist(), columns.facets())
        (aside / _ENTITIES_FILE).write_bytes(msgspec.msgpack.encode(entities))
        # A text can be inferred from its vector, so deleted vectors are blanked.
        unused = np.array([label for label, node_id in enumerate(self._ids) if not node_id], np.int64)
        if self._graph is None:
            np.save(aside / _MATRIX_FILE, self._rows.values)
            if len(unused):
                np.load(aside / _MATRIX_FILE, mmap_mode="r+")[unused] = 0
        else:
            self._save_graph(aside, unused)
        folder_manifest.write_index_folder_manifest(aside, VECTOR_INDEX_KIND, sequence, self._model)
        shutil.rmtree(self._folder, ignore_errors=True)
        aside.rename(self._folder)
        self.sequence = sequence

    def release_idle_pages(self) -> None:
        """Return memory of vectors that no search has read for ten seconds; they remain in the system's cache."""
        self._rows.release_idle_pages()

    def vectors_of(self, ids: Sequence[str], as_of: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of known entities.

        With ``as_of``, only of those whose text is unchanged since that commit.
        """
        with self._lock.read():
            known = self._labels
            labels = [known[node_id] for node_id in ids if node_id in known]
            if as_of is not None:
                labels = [label for label in labels if self._columns.changed_since[label] <= as_of]
            rows = self._rows.values[np.asarray(labels, np.intp)]
            return dict(zip([self._ids[label] for label in labels], rows, strict=True))

    def passing(self, only: EntitySearchFilter, most: int) -> list[str] | None:
        """Return the ids of the entities that match a filter; None if more than ``most`` do."""
        with self._lock.read():
            labels = np.flatnonzero(self._passing(only))
            return None if len(labels) > most else [self._ids[label] for label in labels]

    def find_similar(self, ids: Sequence[str], above: float, most: int) -> dict[str, list[VectorHit]]:
        """Return for each known entity the others more similar than ``above``, nearest first and at most ``most``.

        Uses stored vectors only. Concurrent searches wait a few milliseconds.
        """
        found: dict[str, list[VectorHit]] = {}
        for first in range(0, len(ids), _QUERY_BATCH_VECTORS):
            with self._lock.read():
                known = [
                    (each, self._labels[each])
                    for each in ids[first : first + _QUERY_BATCH_VECTORS]
                    if each in self._labels
                ]
                for (node_id, label), hits in zip(
                    known, self._neighbors([at for _, at in known], most + 1), strict=True
                ):
                    others = (hit for hit in hits if hit.id != self._ids[label] and hit.similarity > above)
                    found[node_id] = list(others)[:most]
        return found

    # Methods below require the lock

    def _neighbors(self, labels: Sequence[int], count: int) -> Iterator[list[VectorHit]]:
        """Yield the nearest entities of each label, including itself."""
        count = min(count, len(self._labels))
        for query in self._rows.values[np.asarray(labels, np.intp)]:
            yield self._exact(query, count) if self._graph is None else self._approximate(query, count)

    def _put(
        self,
        ids: Sequence[str],
        types: Sequence[str],
        vectors: FloatMatrix,
        since: Sequence[int],
        facets: Sequence[EntityFilterableFields | None],
    ) -> None:
        first = len(self._ids)
        self._rows.append(vectors)
        if self._graph is not None:
            self._add_to_graph(vectors, first)
        for node_id in ids:
            self._drop(node_id)
        self._ids += ids
        self._columns.add(
            types, since, {label: found for label, found in enumerate(facets, first) if found is not None}
        )
        for label, node_id in enumerate(ids, first):
            if node_id in self._labels:
                self._drop(node_id)
            self._labels[node_id] = label

    def _add_to_graph(self, vectors: FloatMatrix, first: int) -> None:
        """Add the vectors of the labels from ``first`` on, or leave an index without a graph."""
        try:
            self._codes.append(vectors)
            _ensure_capacity(self._graph, first + len(vectors))
            self._graph.add_items(vectors, np.arange(first, first + len(vectors)), num_threads=1)
        except BaseException:
            # The next change puts other vectors at these labels, and builds another graph.
            self._rows.truncate(first)
            self._graph, self._codes = None, BinaryVectorCodes(self._dimensions)
            raise

    def _drop(self, node_id: str) -> None:
        label = self._labels.pop(node_id, None)
        if label is not None:
            self._ids[label] = ""
            self._columns.drop(label)
            if self._graph is not None:
                self._graph.mark_deleted(label)

    def _exact(self, query: NDArray[np.float32], limit: int, passing: Mask | None = None) -> list[VectorHit]:
        """Return the nearest entities by exact scan; ``passing`` selects at least ``limit`` of them, None means all."""
        mask = self._columns.live if passing is None else passing
        if np.count_nonzero(mask) * SCATTERED_READ_COST >= len(mask):
            labels = np.arange(len(mask))
            scores = self._rows.values @ query
            scores[~mask] = -np.inf
        else:
            labels = np.flatnonzero(mask)
            scores = dot_products(self._rows.values, labels, query)
        # Include ties with the last one, so that among equals the oldest win regardless of the limit.
        threshold = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        best = np.flatnonzero(scores >= threshold)
        order = best[np.lexsort((labels[best], -scores[best]))][:limit]
        return [VectorHit(self._ids[labels[place]], float(scores[place])) for place in order]

    def _filtered(self, query: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> list[VectorHit]:
        """Search exactly if few vectors pass, else in the graph while that is cheaper than comparing codes.

        Entities near the query may fail the filter, so the graph may find only a few.
        """
        passing = self._passing(only)
        count = int(np.count_nonzero(passing))
        limit = min(limit, count)
        if limit == 0:
            return []
        if self._graph is None or count * self._dimensions <= _MAX_EXACT_COMPONENTS:
            return self._exact(query, limit, passing)
        wanted = int(_VECTOR_OVERFETCH * limit * len(self._labels) / count) + 1
        scan = min(count * _SCATTERED_CODE_MICROSECONDS, len(passing) * _CODE_MICROSECONDS)
        while wanted * _GRAPH_STEP_MICROSECONDS < scan:
            labels, similarities = self._search_graph(query, wanted, wanted)
            found = np.flatnonzero(passing[labels])[:limit]
            if len(found) == limit:
                return self._hits(labels[found], similarities[found])
            wanted *= _OVERFETCH_GROWTH
        candidates = self._codes.nearest(query, max(_CODE_OVERFETCH * limit, _MIN_CODE_CANDIDATES), passing)
        return self._exact(query, limit, build_mask_from_index_labels(candidates, len(passing)))

    def _passing(self, only: EntitySearchFilter) -> Mask:
        passing = self._columns.passing(only, self._ids)
        if only.ids is not None:
            known = self._labels
            passing &= build_mask_from_index_labels(
                [known[node_id] for node_id in only.ids if node_id in known], len(passing)
            )
        return passing

    def _approximate(self, query: NDArray[np.float32], limit: int) -> list[VectorHit]:
        labels, similarities = self._search_graph(query, limit, int(_GRAPH_WIDTH * limit))
        return self._hits(labels, similarities) if len(labels) == limit else self._exact(query, limit)

    def _search_graph(self, query: NDArray[np.float32], count: int, width: int) -> tuple[IntArray, FloatMatrix]:
        """Return the labels of the nearest entities in the graph with similarities; empty if it finds too few."""
        # The number of results sets the width of the search: `set_ef` would change it for concurrent searches, too.
        width = min(max(_EF_SEARCH, width, count), len(self._labels))
        for results in dict.fromkeys((width, count)):
            # An error means too many deleted elements around the query.
            with contextlib.suppress(RuntimeError):
                labels, distances = self._graph.knn_query(query[np.newaxis], k=results, num_threads=1)
                return labels[0, :count].astype(np.int64), 1 - distances[0, :count]
        return np.empty(0, np.int64), np.empty(0, np.float32)

    def _hits(self, labels: IntArray, similarities: FloatMatrix) -> list[VectorHit]:
        found = zip(labels.tolist(), similarities.tolist(), strict=True)
        return [VectorHit(self._ids[label], similarity) for label, similarity in found]

    # Methods for the writing thread, without the lock

    def _rebalance(self) -> None:
        """Switch between matrix and graph as the size requires, and compact labels when most are unused."""
        live, used = len(self._labels), len(self._ids)
        wants_graph = hnswlib is not None and live > self._exact_up_to
        if wants_graph == self.is_approximate and used <= max(2 * live, live + 1000):
            return
        labels = np.array(sorted(self._labels.values()), np.intp)
        ids, types = [self._ids[label] for label in labels], self._columns.types
        columns, facets = EntityFilterColumns(), self._columns.facets()
        columns.add(
            [types[label] for label in labels],
            self._columns.changed_since[labels],
            {place: facets[label] for place, label in enumerate(labels.tolist()) if label in facets},
        )
        rows = VectorRows(self._folder.parent, self._dimensions)
        for first in range(0, live, _BUILD_BATCH_VECTORS):
            rows.append(self._rows.values[labels[first : first + _BUILD_BATCH_VECTORS]])
        graph = self._build_graph(rows.values) if wants_graph else None
        codes = self._encode(rows.values) if wants_graph else BinaryVectorCodes(self._dimensions)
        with self._lock.write():
            self._ids, self._columns, self._rows, self._graph, self._codes = ids, columns, rows, graph, codes
            self._labels = dict(zip(ids, range(live), strict=True))

    def _build_graph(self, rows: FloatMatrix) -> Any:  # hnswlib has no types
        graph = hnswlib.Index("ip", self._dimensions)  # pyright: ignore[reportOptionalMemberAccess]
        graph.init_index(max_elements=max(len(rows), 1024), ef_construction=_EF_BUILD, M=_HNSW_M)
        last_step_seconds = 0.0
        for first in range(0, len(rows), _GRAPH_INSERT_BATCH_VECTORS):
            self._between(last_step_seconds)
            started = time.perf_counter()
            some = rows[first : first + _GRAPH_INSERT_BATCH_VECTORS]
            graph.add_items(some, np.arange(first, first + len(some)), num_threads=1)
            last_step_seconds = time.perf_counter() - started
        return graph

    def _load(self) -> bool:
        found = (
            folder_manifest.verify_index_folder_manifest(self._folder, self._model, *_READABLE_KINDS)
            if self._folder.is_dir()
            else None
        )
        if found is None:
            return False
        entities = msgpack_decoder(_EntityTable).decode((self._folder / _ENTITIES_FILE).read_bytes())
        self._ids = entities.ids
        self._columns.add(entities.types, entities.since, entities.facets)
        self._labels = {node_id: label for label, node_id in enumerate(self._ids) if node_id}
        for label, node_id in enumerate(self._ids):
            if not node_id:
                self._columns.drop(label)
        if GRAPH_FILE in found.files or LINKS_FILE in found.files:
            if not self._load_graph():
                self._ids, self._labels, self._columns = [], {}, EntityFilterColumns()
                return False
        else:
            self._rows.adopt(np.asarray(np.load(self._folder / _MATRIX_FILE, mmap_mode="r")))
        self.sequence = found.sequence
        return True

    def _save_graph(self, folder: Path, unused: IntArray) -> None:
        count = len(self._ids)
        self._graph.save_index(str(folder / GRAPH_FILE))
        try:
            if len(unused):
                blank_deleted_vectors(folder, unused, count, self._dimensions)
            split_graph_file(folder, count, self._dimensions)
        except ValueError as reason:
            log.warning("vector_file_unknown", reason=str(reason))

    def _load_graph(self) -> bool:
        """Load the graph, or without hnswlib its vectors alone. Return whether the files could be read."""
        count = len(self._ids)
        try:
            if hnswlib is not None:
                self._graph = self._read_graph(count)
            for vectors in read_graph_vectors(self._folder, count, self._dimensions):
                self._append_loaded(vectors)
        except ValueError as reason:
            # Fallback: slower, but independent of the file layout.
            log.warning("vector_file_unknown", reason=str(reason))
            if self._graph is None:
                self._rows = VectorRows(self._folder.parent, self._dimensions)
                return False
            for first in range(len(self._rows), count, _BUILD_BATCH_VECTORS):
                labels = np.arange(first, min(first + _BUILD_BATCH_VECTORS, count))
                self._append_loaded(np.asarray(self._graph.get_items(labels), np.float32))
        return True

    def _read_graph(self, count: int) -> Any:  # hnswlib has no types
        graph = hnswlib.Index("ip", self._dimensions)  # pyright: ignore[reportOptionalMemberAccess]
        whole = self._folder / GRAPH_FILE
        if whole.exists():
            graph.load_index(str(whole), max_elements=max(count, 1))
            return graph
        joined = self._folder.with_name(self._folder.name + ".joined")
        try:
            join_graph_file(self._folder, joined, count, self._dimensions)
            graph.load_index(str(joined), max_elements=max(count, 1))
        finally:
            joined.unlink(missing_ok=True)
        return graph

    def _append_loaded(self, vectors: FloatMatrix) -> None:
        self._rows.append(vectors)
        if self._graph is not None:
            self._codes.append(vectors)

    def _encode(self, rows: FloatMatrix) -> BinaryVectorCodes:
        codes = BinaryVectorCodes(self._dimensions)
        for first in range(0, len(rows), _BUILD_BATCH_VECTORS):
            codes.append(rows[first : first + _BUILD_BATCH_VECTORS])
        return codes


def _ensure_capacity(graph: Any, count: int) -> None:
    """Grow a graph to hold ``count`` elements, plus a quarter in reserve; unused capacity takes memory."""
    if count > graph.get_max_elements():
        graph.resize_index(count + count // 4)
