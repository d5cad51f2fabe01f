"""Exporting a store as NDJSON from one snapshot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from kgserve.engine import read
from kgserve.journal import snapshot
from kgserve.journal.files import storage_error
from kgserve.model.change import StoreState
from kgserve.model.times import format_time
from kgserve.store.pool import StorePool
from kgserve.store.store import Store


class _NodeLine(msgspec.Struct, tag="node", tag_field="kind"):
    """Like `NodeLine`, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    created_at: str
    updated_at: str


class _EdgeLine(msgspec.Struct, tag="edge", tag_field="kind"):
    """Like `EdgeLine`, with attributes that are JSON already."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int


_encode = msgspec.json.Encoder().encode_lines


class ExportStream:
    """All nodes, then all edges, of one state, as blocks of NDJSON lines; a context manager."""

    def __init__(self, folder: Path, state: StoreState, release: Callable[[], None]) -> None:
        self._folder = folder
        self._release = release
        self.sequence = state.sequence

    def __iter__(self) -> Iterator[bytes]:
        for rows in snapshot.read_rows(self._folder / snapshot.NODES):
            yield encode_nodes(rows)
        for rows in snapshot.read_rows(self._folder / snapshot.EDGES):
            yield encode_edges(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files that it reads from, and give the store back."""
        shutil.rmtree(self._folder, ignore_errors=True)
        release, self._release = self._release, lambda: None
        release()


def export(pool: StorePool, store: str) -> ExportStream:
    """Take a snapshot of a store to stream; the store is leased until it is closed. Raises NotFound, StorageFull."""
    leased = pool.acquire(store)
    try:
        folder, state = _dump(leased)
    except OSError as error:
        pool.release(leased)
        raise storage_error(error, "writing a snapshot to export") from error
    except BaseException:
        pool.release(leased)
        raise
    return ExportStream(folder, state, lambda: pool.release(leased))


def _dump(store: Store) -> tuple[Path, StoreState]:
    store.layout.scratch.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="export-", dir=store.layout.scratch))
    try:
        with store.reading(timeout=0) as session:
            return folder, read.dump(session, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def encode_nodes(rows: Iterable[snapshot.RowTuple]) -> bytes:
    """Nodes, as tuples in the order of `NodeRow`, as lines."""
    return _encode([_node_line(row) for row in rows])


def encode_edges(rows: Iterable[snapshot.RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([_edge_line(row) for row in rows])


def _node_line(row: snapshot.RowTuple) -> _NodeLine:
    node_id, node_type, content, attributes, version, _sequence, created, updated = row
    return _NodeLine(
        node_id, node_type, content, msgspec.Raw(attributes), version, format_time(created), format_time(updated)
    )


def _edge_line(row: snapshot.RowTuple) -> _EdgeLine:
    source, target, relation_type, weight, attributes, version, _sequence = row
    return _EdgeLine(source, target, relation_type, weight, msgspec.Raw(attributes), version)
