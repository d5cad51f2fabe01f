"""Files of a vector graph: hnswlib's own, and the links and vectors that are kept of it.

Embedded vectors are rounded to half precision before they are indexed, so float16 keeps them exactly. Those that an
older version embedded are rounded when their index is saved.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.cache import round_to_half_precision
from kgserve.projections.vector.vector_rows import FloatMatrix

GRAPH_FILE = "vectors.hnsw"
"""A whole graph as hnswlib saves it: of older versions, and where its vectors do not fit half precision."""
LINKS_FILE = "links.hnsw"
"""The same file without the vectors of its elements."""
HALF_PRECISION_FILE = "vectors.f16.npy"
"""The vectors of the elements, by label."""

IntArray: TypeAlias = NDArray[np.int64]
ByteMatrix: TypeAlias = NDArray[np.uint8]

# File header of hnswlib 0.8: number of elements, element size, and offsets within an element.
_HNSW_HEADER = struct.Struct("<6Qi")
_HNSW_HEADER_BYTES = 96
_LABEL_BYTES = 8
_BATCH_VECTORS = 4_096


class GraphFileLayout(NamedTuple):
    """Header of an hnswlib file, with the bytes of its vectors."""

    header: bytes
    elements: int
    element_bytes: int
    label_at: int
    vector_at: int
    vector_bytes: int

    @property
    def vector_end(self) -> int:
        """Offset of the first byte after the vector of an element."""
        return self.vector_at + self.vector_bytes


def split_graph_file(folder: Path, count: int, dimensions: int) -> None:
    """Replace the graph file of a folder by its links and vectors in half precision.

    Leaves it as it is if a vector does not fit half precision. Raises ValueError for a file of another layout.
    """
    path = folder / GRAPH_FILE
    layout = _read_layout(path, count, dimensions)
    elements = _map_elements(path, layout, layout.element_bytes)
    _order_by_label(elements, layout)  # validates the labels
    halves = np.lib.format.open_memmap(folder / HALF_PRECISION_FILE, "w+", np.dtype("<f2"), (count, dimensions))
    with (folder / LINKS_FILE).open("wb") as links:
        links.write(layout.header)
        for some in _batches(count):
            part = elements[some]
            vectors = _vectors_of_elements(part, layout)
            rounded = round_to_half_precision(vectors)
            with np.errstate(over="ignore"):
                half = rounded.astype("<f2")
            if (half != rounded).any():
                break
            halves[_labels_of_elements(part, layout.label_at)] = half
            links.write(np.hstack([part[:, : layout.vector_at], part[:, layout.vector_end :]]).tobytes())
        else:
            halves.flush()
            _copy_tail(path, _HNSW_HEADER_BYTES + count * layout.element_bytes, links)
            path.unlink()
            return
    (folder / LINKS_FILE).unlink()
    (folder / HALF_PRECISION_FILE).unlink()


def join_graph_file(folder: Path, path: Path, count: int, dimensions: int) -> None:
    """Write the graph file at ``path`` that `split_graph_file` has split. Raises ValueError for another layout."""
    links_path, halves = folder / LINKS_FILE, _map_halves(folder, count, dimensions)
    layout = _read_layout(links_path, count, dimensions)
    slim_bytes = layout.element_bytes - layout.vector_bytes
    slim = _map_elements(links_path, layout, slim_bytes)
    label_at = layout.label_at - (layout.vector_bytes if layout.label_at > layout.vector_at else 0)
    with path.open("wb") as file:
        file.write(layout.header)
        for some in _batches(count):
            part = slim[some]
            vectors = halves[_labels_of_elements(part, label_at)].astype("<f4").view(np.uint8)
            file.write(np.hstack([part[:, : layout.vector_at], vectors, part[:, layout.vector_at :]]).tobytes())
        _copy_tail(links_path, _HNSW_HEADER_BYTES + count * slim_bytes, file)


def read_graph_vectors(folder: Path, count: int, dimensions: int) -> Iterator[FloatMatrix]:
    """Yield the vectors of a folder's graph in batches, in label order.

    hnswlib's own reader takes at least 25 µs per vector and blocks all other threads. Raises ValueError for a graph
    file of another layout.
    """
    if (folder / HALF_PRECISION_FILE).exists():
        halves = _map_halves(folder, count, dimensions)
        for some in _batches(count):
            yield halves[some].astype(np.float32)
        return
    layout = _read_layout(folder / GRAPH_FILE, count, dimensions)
    elements = _map_elements(folder / GRAPH_FILE, layout, layout.element_bytes)
    order = _order_by_label(elements, layout)
    for some in _batches(count):
        yield _vectors_of_elements(elements[order[some]], layout)


def blank_deleted_vectors(folder: Path, unused: IntArray, count: int, dimensions: int) -> None:
    """Zero the vectors of deleted labels in a graph file; their elements are still needed for navigation.

    Raises ValueError for a file of another layout.
    """
    path = folder / GRAPH_FILE
    layout = _read_layout(path, count, dimensions)
    elements = _map_elements(path, layout, layout.element_bytes, "r+")
    places = _order_by_label(elements, layout)[unused]
    elements[places, layout.vector_at : layout.vector_end] = 0


def _read_layout(path: Path, count: int, dimensions: int) -> GraphFileLayout:
    with path.open("rb") as file:
        header = file.read(_HNSW_HEADER_BYTES)
    _, _, found, size, label_at, vector_at, _ = _HNSW_HEADER.unpack_from(header)
    if found != count or label_at + _LABEL_BYTES > size or vector_at + 4 * dimensions > size:
        raise ValueError(f"{path} has an unexpected layout")
    return GraphFileLayout(header, count, size, label_at, vector_at, 4 * dimensions)


def _map_elements(path: Path, layout: GraphFileLayout, size: int, mode: Literal["r", "r+"] = "r") -> ByteMatrix:
    content = np.memmap(path, np.uint8, mode)
    return np.ndarray((layout.elements, size), np.uint8, content, _HNSW_HEADER_BYTES)


def _map_halves(folder: Path, count: int, dimensions: int) -> NDArray[np.float16]:
    halves = np.load(folder / HALF_PRECISION_FILE, mmap_mode="r")
    if halves.shape != (count, dimensions) or halves.dtype != np.dtype("<f2"):
        raise ValueError(f"{folder / HALF_PRECISION_FILE} has an unexpected layout")
    return np.asarray(halves)


def _labels_of_elements(elements: ByteMatrix, label_at: int) -> IntArray:
    labels = np.ascontiguousarray(elements[:, label_at : label_at + _LABEL_BYTES]).view("<i8")
    return labels[:, 0]


def _vectors_of_elements(elements: ByteMatrix, layout: GraphFileLayout) -> FloatMatrix:
    return np.ascontiguousarray(elements[:, layout.vector_at : layout.vector_end]).view("<f4")


def _order_by_label(elements: ByteMatrix, layout: GraphFileLayout) -> IntArray:
    """Return the position of each label. Raises ValueError unless labels are numbered from 0."""
    labels = _labels_of_elements(elements, layout.label_at)
    order = np.argsort(labels, kind="stable")
    if not np.array_equal(labels[order], np.arange(layout.elements)):
        raise ValueError("the graph file has unexpected labels")
    return order


def _batches(count: int) -> Iterator[slice]:
    for first in range(0, count, _BATCH_VECTORS):
        yield slice(first, min(first + _BATCH_VECTORS, count))


def _copy_tail(path: Path, start: int, target: IO[bytes]) -> None:
    """Append the bytes of a file after ``start``: the links of the upper levels."""
    with path.open("rb") as file:
        file.seek(start)
        shutil.copyfileobj(file, target)
