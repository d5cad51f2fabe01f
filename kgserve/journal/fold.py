"""Folding: a snapshot and the change sets after it make a newer set of rows, with no engine involved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kgserve.journal.snapshot import (
    BATCH_ROWS,
    EDGES,
    NODES,
    are_whole,
    read_rows,
    schema_of,
    verify,
)
from kgserve.model.change import ChangeSet, NetChange, StoreState
from kgserve.model.columns import EDGE_FIELDS, NODE_FIELDS, RowTuple, edge_values, node_values
from kgserve.model.digest import rows_digest
from kgserve.model.rows import EdgeRow, NodeRow


class Folded(msgspec.Struct, frozen=True):
    """The state of the rows written; ``expected`` is what the journal says: the same, unless rows were wrong."""

    state: StoreState
    expected: StoreState

    @property
    def rebased(self) -> bool:
        """Whether rows and journal do not come to the same digest."""
        return self.state != self.expected


def fold(base: Path | None, changes: Iterable[ChangeSet], target: Path, *, drop_loose: bool = False) -> Folded:
    """Write nodes.parquet and edges.parquet of the state that ``changes`` lead to from snapshot ``base``.

    Memory grows with the change sets, not with the snapshot. The rows are the truth: every frame and every snapshot has
    its checksum. That they do not come to the digest in the last change set means that a write was planned on a row
    that the engine had wrong; the state then has the digest of the rows. ``drop_loose`` leaves edges out whose nodes
    are gone, at the price of holding all ids.
    """
    net = NetChange(changes)
    expected = net.state or (verify(base).state if base is not None else StoreState())
    whole = (base is not None and are_whole(base)) or net.has_extras
    nodes = _merge(base, NODES, net.nodes_created.keys() | net.nodes_updated.keys() | net.nodes_deleted, 1)
    fresh_nodes = (_node_tuple(row) for row in (*net.nodes_created.values(), *net.nodes_updated.values()))
    node_digest, node_count = _write(target / NODES, nodes, fresh_nodes, whole=whole)
    ids = {row[0] for rows in read_rows(target / NODES) for row in rows} if drop_loose else None
    edge_digest, edge_count = _write_edges(base, net, target, ids, whole=whole)
    digest = (node_digest + edge_digest) % (1 << 128)
    return Folded(StoreState(expected.sequence, expected.time, digest, node_count, edge_count), expected)


def _write_edges(
    base: Path | None, net: NetChange, target: Path, ids: AbstractSet[str] | None, *, whole: bool
) -> tuple[int, int]:
    """The edges; with ``ids`` only those whose both ends are among them."""
    kept = _merge(base, EDGES, net.edges_created.keys() | net.edges_updated.keys() | net.edges_deleted, 3)
    fresh = (_edge_tuple(row) for row in (*net.edges_created.values(), *net.edges_updated.values()))
    if ids is not None:
        kept = ([row for row in rows if row[0] in ids and row[1] in ids] for rows in kept)
        fresh = (row for row in fresh if row[0] in ids and row[1] in ids)
    return _write(target / EDGES, kept, fresh, whole=whole)


def _merge(base: Path | None, name: str, replaced: AbstractSet[Any], width: int) -> Iterator[list[RowTuple]]:
    if base is None:
        return
    for rows in read_rows(base / name):
        if not replaced:
            yield rows
        elif width == 1:
            yield [row for row in rows if row[0] not in replaced]
        else:
            yield [row for row in rows if row[:width] not in replaced]


def _write(path: Path, kept: Iterable[list[RowTuple]], fresh: Iterator[RowTuple], *, whole: bool) -> tuple[int, int]:
    """Rows to a file, with columns for extras if it is to be ``whole``; their digest and count."""
    digest = count = 0
    schema = schema_of(path.name, whole=whole)
    values = _Values(path.name, whole=whole)
    with pq.ParquetWriter(path, schema) as writer:
        for rows in _batches(kept, fresh):
            columns = zip(*values(rows), strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            digest += rows_digest(rows)
            count += len(rows)
    return digest % (1 << 128), count


class _Values:
    """The values of rows for the columns of one of the two files."""

    def __init__(self, name: str, *, whole: bool) -> None:
        self._fields = NODE_FIELDS if name == NODES else EDGE_FIELDS
        self._one = node_values if name == NODES else edge_values
        self._whole = whole

    def __call__(self, rows: list[RowTuple]) -> Iterable[RowTuple]:
        if self._whole:
            return map(self._one, rows)
        return (row[: self._fields] for row in rows)


def _batches(kept: Iterable[list[RowTuple]], fresh: Iterator[RowTuple]) -> Iterator[list[RowTuple]]:
    for rows in kept:
        if rows:
            yield rows
    while rows := list(islice(fresh, BATCH_ROWS)):
        yield rows


def _node_tuple(row: NodeRow) -> RowTuple:
    return (
        row.id,
        row.type,
        row.content,
        row.attributes,
        row.version,
        row.sequence,
        row.created_at,
        row.updated_at,
        row.extras,
    )


def _edge_tuple(row: EdgeRow) -> RowTuple:
    return (
        row.source,
        row.target,
        row.relation_type,
        row.weight,
        row.attributes,
        row.version,
        row.sequence,
        row.extras,
    )
