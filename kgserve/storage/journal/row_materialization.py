"""Merge a snapshot with the change sets after it into a newer set of rows, without the engine."""

from __future__ import annotations

import heapq
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec
import xxhash
from msgspec.structs import astuple

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.lazy_pyarrow import pa
from kgserve.storage.journal.snapshot import (
    EDGES_FILE,
    MAX_SNAPSHOT_BATCH_BYTES,
    MAX_SNAPSHOT_BATCH_ROWS,
    NODES_FILE,
    build_snapshot_arrow_schema,
    open_snapshot_parquet_writer,
    read_snapshot_column_set,
    read_snapshot_row_batches,
    verify_snapshot,
)
from kgserve.storage.model.change_set import ChangeSet, NetChange, StoreState
from kgserve.storage.model.node_edge_fields import EDGE, NODE, NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import (
    EdgeKey,
    EdgeRow,
    NodeRow,
    RowTuple,
    edge_column_values,
    get_column_set_for_extras,
    node_column_values,
)
from kgserve.storage.model.store_rows_digest import rows_digest

MAX_IN_MEMORY_CHANGES_BYTES = 128 << 20
"""Bytes of rows in change sets that are merged in memory, which takes two to three times as much."""
_FOLDED_ROW_OVERHEAD_BYTES = 200
"""Bytes per row in addition to its texts."""
Row = TypeVar("Row", NodeRow, EdgeRow)
SPILL_PARTITIONS = 256
"""Partition files, all open while they are merged; 100 GB of rows make partitions of 400 MB."""
_LENGTH_BYTES = 4
_PARTITION_BUFFER_BYTES = 64 << 20
_PARTITION_READ_BYTES = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
# Dictionary encoding of columns of distinct texts takes longer than writing them plain.
_DICTIONARY_COLUMNS = ["type", "relation_type", "created_by"]


class RowMaterializationResult(msgspec.Struct, frozen=True):
    """State of the rows written, and the state that the journal ``expected``. They differ only if rows were wrong."""

    state: StoreState
    expected: StoreState

    @property
    def is_digest_replaced(self) -> bool:
        """True if the digest of the rows differs from that of the journal."""
        return self.state != self.expected


def materialize_rows_to_parquet(
    base: Path | None,
    changes: Iterable[ChangeSet],
    target: Path,
    *,
    drop_loose: bool = False,
    memory_bytes: int = MAX_IN_MEMORY_CHANGES_BYTES,
) -> RowMaterializationResult:
    """Write nodes.parquet and edges.parquet of the state after applying ``changes`` to snapshot ``base``.

    memory_bytes: size of change sets beyond which they are partitioned on disk, in ``target``.

    drop_loose: omit edges whose endpoints do not exist; this holds all node ids in memory.

    Rows take precedence over the digest, because every frame and every snapshot has a checksum. Rows that do not match
    the last digest come from a write that was planned on wrong engine rows. The returned state then has the digest of
    the rows.
    """
    pending = iter(changes)
    first, size = deque[ChangeSet](), 0
    for change in pending:
        first.append(change)
        size += _size(change)
        if size > memory_bytes:
            return _fold_on_disk(base, _drain(first, pending), target, drop_loose=drop_loose)
    return _fold_in_memory(base, NetChange(first), target, drop_loose=drop_loose)


def write_parquet_row_files(
    nodes: Iterable[list[RowTuple]],
    edges: Iterable[list[RowTuple]],
    expected: StoreState,
    target: Path,
    width: NodeEdgeColumnSet,
) -> RowMaterializationResult:
    """Write both files from batches of all rows of a store; ``width`` is that of the widest row."""
    written = _write(target / NODES_FILE, nodes, iter(()), width=width)
    return _fold_result(expected, written, _write(target / EDGES_FILE, edges, iter(()), width=width))


def _fold_in_memory(base: Path | None, net: NetChange, target: Path, *, drop_loose: bool) -> RowMaterializationResult:
    expected = net.state or (verify_snapshot(base).state if base is not None else StoreState())
    width = max(net.width, read_snapshot_column_set(base))
    nodes = _merge(base, NODES_FILE, net.nodes_created.keys() | net.nodes_updated.keys() | net.nodes_deleted, 1)
    fresh_nodes = (astuple(row) for row in (*net.nodes_created.values(), *net.nodes_updated.values()))
    written = _write(target / NODES_FILE, nodes, fresh_nodes, width=width)
    kept = _merge(base, EDGES_FILE, net.edges_created.keys() | net.edges_updated.keys() | net.edges_deleted, 3)
    fresh = (astuple(row) for row in (*net.edges_created.values(), *net.edges_updated.values()))
    return _fold_result(expected, written, _write_edges(kept, fresh, target, drop_loose=drop_loose, width=width))


def _fold_on_disk(
    base: Path | None, changes: Iterable[ChangeSet], target: Path, *, drop_loose: bool
) -> RowMaterializationResult:
    expected = StoreState()
    width = read_snapshot_column_set(base)
    with ExitStack() as stack:
        nodes = stack.enter_context(_RowSpill(target / "nodes.spill", NodeRow))
        edges = stack.enter_context(_RowSpill(target / "edges.spill", EdgeRow))
        if base is not None:
            for name, spill, key_fields in ((NODES_FILE, nodes, 1), (EDGES_FILE, edges, 3)):
                for rows in read_snapshot_row_batches(base / name):
                    spill.put_tuples(rows, key_fields)
        for change in changes:
            width = max(width, _spill_changes(change, nodes, edges))
            expected = change.state
        written = _write(target / NODES_FILE, (), map(astuple, nodes.rows()), width=width)
        left = map(astuple, edges.rows())
        return _fold_result(expected, written, _write_edges((), left, target, drop_loose=drop_loose, width=width))


def _spill_changes(change: ChangeSet, nodes: _RowSpill[NodeRow], edges: _RowSpill[EdgeRow]) -> NodeEdgeColumnSet:
    """Apply a change set, deletions first; return the width of its widest row."""
    for key in change.edges_deleted:
        edges.remove(key)
    for node_id in change.nodes_deleted:
        nodes.remove(node_id)
    width = NodeEdgeColumnSet.PLAIN
    for node in (*change.nodes_created, *change.nodes_updated):
        nodes.put(node)
        width = max(width, get_column_set_for_extras(node.extras))
    for edge in (*change.edges_created, *change.edges_updated, *change.edges_touched):
        edges.put(edge)
        width = max(width, get_column_set_for_extras(edge.extras))
    return width


def _drain(first: deque[ChangeSet], rest: Iterator[ChangeSet]) -> Generator[ChangeSet]:
    """Yield all change sets, releasing each."""
    while first:
        yield first.popleft()
    yield from rest


def _size(change: ChangeSet) -> int:
    nodes = sum(len(row.content) + len(row.attributes) for row in (*change.nodes_created, *change.nodes_updated))
    edges = (*change.edges_created, *change.edges_updated, *change.edges_touched)
    return nodes + sum(len(row.attributes) for row in edges) + _FOLDED_ROW_OVERHEAD_BYTES * change.size


def _fold_result(expected: StoreState, nodes: tuple[int, int], edges: tuple[int, int]) -> RowMaterializationResult:
    """Return the result for the digests and counts that were written."""
    digest = (nodes[0] + edges[0]) % (1 << 128)
    return RowMaterializationResult(StoreState(expected.sequence, expected.time, digest, nodes[1], edges[1]), expected)


def _write_edges(
    kept: Iterable[list[RowTuple]],
    fresh: Iterator[RowTuple],
    target: Path,
    *,
    drop_loose: bool,
    width: NodeEdgeColumnSet,
) -> tuple[int, int]:
    """Write the edges; with ``drop_loose``, only those whose endpoints are both among the written nodes."""
    if drop_loose:
        ids = {row[0] for rows in read_snapshot_row_batches(target / NODES_FILE) for row in rows}
        kept = ([row for row in rows if row[0] in ids and row[1] in ids] for rows in kept)
        fresh = (row for row in fresh if row[0] in ids and row[1] in ids)
    return _write(target / EDGES_FILE, kept, fresh, width=width)


def _merge(base: Path | None, name: str, replaced: AbstractSet[Any], width: int) -> Iterator[list[RowTuple]]:
    if base is None:
        return
    for rows in read_snapshot_row_batches(base / name):
        if not replaced:
            yield rows
        elif width == 1:
            yield [row for row in rows if row[0] not in replaced]
        else:
            yield [row for row in rows if row[:width] not in replaced]


def _write(
    path: Path, kept: Iterable[list[RowTuple]], fresh: Iterator[RowTuple], *, width: NodeEdgeColumnSet
) -> tuple[int, int]:
    """Write rows with the columns of a width; return their digest and count."""
    digest = count = 0
    schema = build_snapshot_arrow_schema(path.name, width)
    values = _value_getter(path.name, width)
    with open_snapshot_parquet_writer(path, schema, _DICTIONARY_COLUMNS) as writer:
        for rows in _row_batches(kept, fresh):
            columns = zip(*map(values, rows), strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            digest += rows_digest(rows)
            count += len(rows)
    return digest % (1 << 128), count


def _value_getter(name: str, width: NodeEdgeColumnSet) -> Callable[[RowTuple], RowTuple]:
    """Return the function that maps a row of the named file to its column values."""
    fields, values = (NODE, node_column_values) if name == NODES_FILE else (EDGE, edge_column_values)
    wanted = itemgetter(slice(len(fields.columns(width))))
    return wanted if width is NodeEdgeColumnSet.PLAIN else lambda row: wanted(values(row))


def _row_batches(kept: Iterable[list[RowTuple]], fresh: Iterable[RowTuple]) -> Iterator[list[RowTuple]]:
    for rows in kept:
        if rows:
            yield rows
    rows, size = list[RowTuple](), 0
    for row in fresh:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if len(rows) == MAX_SNAPSHOT_BATCH_ROWS or size >= MAX_SNAPSHOT_BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


class _RowSpill(Generic[Row]):
    """Hash-partitioned rows and deletions on disk, for more than fits in memory. Removes its folder on exit.

    Every key goes to one of many files, in the order of the journal. The final row of a key is therefore known from one
    file alone, and that fits into memory. Remaining rows are merged by sequence: the engine finds rows by sequence
    faster when they are stored in about that order.
    """

    def __init__(self, folder: Path, kind: type[Row]) -> None:
        folder.mkdir()
        self._folder = folder
        self._decode = msgpack_decoder(kind | bytes).decode
        self._decode_key = msgpack_decoder(str | EdgeKey).decode
        self._buffers = [bytearray() for _ in range(SPILL_PARTITIONS)]
        self._buffered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, row: Row) -> None:
        """Set the row of its key."""
        self._write(_key(row), _encode(row))

    def put_tuples(self, rows: Iterable[RowTuple], width: int) -> None:
        """Set rows given as tuples whose first ``width`` fields are the key."""
        for row in rows:
            self._write(row[0] if width == 1 else row[:width], _encode(row))

    def remove(self, key: str | EdgeKey) -> None:
        """Record that a key is deleted."""
        self._write(key, _encode(_encode(key)))

    def rows(self) -> Iterator[Row]:
        """Return the remaining rows by sequence. Call once; add nothing afterwards."""
        self._flush()
        for part in range(SPILL_PARTITIONS):
            self._compact_partition(self._path(part))
        return heapq.merge(*(self._read(self._path(part)) for part in range(SPILL_PARTITIONS)), key=_sequence)

    def _write(self, key: str | EdgeKey, record: bytes) -> None:
        buffer = self._buffers[xxhash.xxh3_64_intdigest(_encode(key)) % SPILL_PARTITIONS]
        buffer += len(record).to_bytes(_LENGTH_BYTES)
        buffer += record
        self._buffered += _LENGTH_BYTES + len(record)
        if self._buffered >= _PARTITION_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        for part, buffer in enumerate(self._buffers):
            with self._path(part).open("ab") as file:
                file.write(buffer)
            buffer.clear()
        self._buffered = 0

    def _compact_partition(self, path: Path) -> None:
        """Rewrite a partition with its remaining rows, ordered by sequence."""
        left: dict[Any, Row] = {}
        records = 0
        for record in self._read(path):
            records += 1
            if isinstance(record, bytes):
                left.pop(self._decode_key(record), None)
            else:
                left[_key(record)] = record
        rows = sorted(left.values(), key=_sequence)
        if len(rows) < records or any(one is not other for one, other in zip(rows, left.values(), strict=True)):
            with path.open("wb") as file:
                for row in rows:
                    encoded = _encode(row)
                    file.write(len(encoded).to_bytes(_LENGTH_BYTES) + encoded)

    def _read(self, path: Path) -> Iterator[Any]:
        with path.open("rb", buffering=_PARTITION_READ_BYTES) as file:
            while record := _read_record(file):
                yield self._decode(record)

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}"


def _read_record(file: BinaryIO) -> bytes:
    return file.read(int.from_bytes(file.read(_LENGTH_BYTES)))


def _key(row: NodeRow | EdgeRow) -> str | EdgeKey:
    return row.id if isinstance(row, NodeRow) else row.key


def _sequence(row: NodeRow | EdgeRow) -> int:
    return row.sequence
