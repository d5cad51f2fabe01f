"""Exporting a store as NDJSON from one snapshot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec

from kgserve.engine import dumping
from kgserve.errors import StorageFull
from kgserve.journal import snapshot
from kgserve.journal.files import storage_error
from kgserve.model.change import StoreState
from kgserve.model.columns import EDGE_FIELDS, NODE_FIELDS, RowTuple
from kgserve.model.rows import EdgeExtras, NodeExtras
from kgserve.model.times import format_time
from kgserve.ops.validity import Held, valid_moment
from kgserve.store.pool import StorePool
from kgserve.store.store import Store

_Text = str | None


class _NodeLine(msgspec.Struct, tag="node", tag_field="kind", omit_defaults=True):
    """Like `NodeLine`, with attributes that are JSON already."""

    id: str
    type: str
    content: str
    attributes: msgspec.Raw
    version: int
    created_at: str
    updated_at: str
    summary: str = ""
    tags: tuple[str, ...] = ()
    freshness_at: _Text = None
    created_by: str = ""
    valid_from: _Text = None
    valid_to: _Text = None


class _EdgeLine(msgspec.Struct, tag="edge", tag_field="kind", omit_defaults=True):
    """Like `EdgeLine`, with attributes that are JSON already."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    ordinal: int | None = None
    created_by: str = ""
    valid_from: _Text = None
    valid_to: _Text = None


_encode = msgspec.json.Encoder().encode_lines


class ExportStream:
    """All nodes, then all edges, of one state, as blocks of NDJSON lines; a context manager."""

    def __init__(self, folder: Path, state: StoreState, release: Callable[[], None], valid_at: int | None) -> None:
        self._folder = folder
        self._valid_at = valid_at
        self._release = release
        self.sequence = state.sequence

    def __iter__(self) -> Iterator[bytes]:
        held = None if self._valid_at is None else Held(self._valid_at)
        for rows in snapshot.read_rows(self._folder / snapshot.NODES):
            if block := encode_nodes(held.nodes(rows) if held else rows):
                yield block
        for rows in snapshot.read_rows(self._folder / snapshot.EDGES):
            if block := encode_edges(held.edges(rows) if held else rows):
                yield block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files that it reads from, and give the store back."""
        shutil.rmtree(self._folder, ignore_errors=True)
        release, self._release = self._release, lambda: None
        release()


def export(pool: StorePool, store: str, valid_at: str | None = None) -> ExportStream:
    """Take a snapshot of a store to stream; the store is leased until it is closed. Raises NotFound, StorageFull.

    With ``valid_at`` (RFC 3339) only what was true in the world then.
    """
    moment = valid_moment(valid_at)
    leased = pool.acquire(store)
    try:
        folder, state = _dump(leased)
    except OSError as error:
        pool.release(leased)
        raise storage_error(error, "writing a snapshot to export") from error
    except BaseException:
        pool.release(leased)
        raise
    return ExportStream(folder, state, lambda: pool.release(leased), moment)


def _dump(store: Store) -> tuple[Path, StoreState]:
    try:
        store.layout.scratch.mkdir(exist_ok=True)
        return _dump_into(store, store.layout.scratch)
    except (OSError, StorageFull):
        # What is on a full disk can be read on: the system's folder for such files may be on another.
        return _dump_into(store, Path(tempfile.gettempdir()))


def _dump_into(store: Store, place: Path) -> tuple[Path, StoreState]:
    folder = Path(tempfile.mkdtemp(prefix="export-", dir=place))
    try:
        with store.reading(timeout=0) as session:
            return folder, dumping.dump(session, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def encode_nodes(rows: Iterable[RowTuple]) -> bytes:
    """Nodes, as tuples in the order of `NodeRow`, as lines."""
    return _encode([_node_line(row) for row in rows])


def encode_edges(rows: Iterable[RowTuple]) -> bytes:
    """Edges, as tuples in the order of `EdgeRow`, as lines."""
    return _encode([_edge_line(row) for row in rows])


def _node_line(row: RowTuple) -> _NodeLine:
    node_id, node_type, content, attributes, version, _sequence, created, updated = row[:NODE_FIELDS]
    line = _NodeLine(
        node_id, node_type, content, msgspec.Raw(attributes), version, format_time(created), format_time(updated)
    )
    extras: NodeExtras | None = row[NODE_FIELDS] if len(row) > NODE_FIELDS else None
    if extras is not None:
        line.summary, line.tags, line.created_by = extras.summary, extras.tags, extras.created_by
        line.freshness_at = _time(extras.freshness_at)
        line.valid_from, line.valid_to = _time(extras.valid_from), _time(extras.valid_to)
    return line


def _edge_line(row: RowTuple) -> _EdgeLine:
    source, target, relation_type, weight, attributes, version, _sequence = row[:EDGE_FIELDS]
    line = _EdgeLine(source, target, relation_type, weight, msgspec.Raw(attributes), version)
    extras: EdgeExtras | None = row[EDGE_FIELDS] if len(row) > EDGE_FIELDS else None
    if extras is not None:
        line.ordinal, line.created_by = extras.ordinal, extras.created_by
        line.valid_from, line.valid_to = _time(extras.valid_from), _time(extras.valid_to)
    return line


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_time(microseconds)
