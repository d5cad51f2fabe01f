"""Folding: a snapshot and the change sets after it make a newer set of rows, with no engine involved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgserve.errors import JournalDamaged
from kgserve.journal.snapshot import (
    BATCH_ROWS,
    EDGE_SCHEMA,
    EDGES,
    NODE_SCHEMA,
    NODES,
    RowTuple,
    read_rows,
    verify,
)
from kgserve.model.change import ChangeSet, NetChange, StoreState
from kgserve.model.digest import rows_digest
from kgserve.model.rows import EdgeRow, NodeRow


def fold(base: Path | None, changes: Iterable[ChangeSet], target: Path) -> StoreState:
    """Write nodes.parquet and edges.parquet of the state that ``changes`` lead to from snapshot ``base``.

    Memory grows with the change sets, not with the snapshot. Raises JournalDamaged when the rows do not come to the
    digest that the last change set (or the snapshot) names.
    """
    net = NetChange(changes)
    state = net.state or (verify(base).state if base is not None else StoreState())
    nodes = _merge(base, NODES, net.nodes_updated.keys() | net.nodes_deleted, 1)
    edges = _merge(base, EDGES, net.edges_updated.keys() | net.edges_deleted, 3)
    fresh_nodes = (_node_tuple(row) for row in (*net.nodes_created.values(), *net.nodes_updated.values()))
    fresh_edges = (_edge_tuple(row) for row in (*net.edges_created.values(), *net.edges_updated.values()))
    node_digest, node_count = _write(target / NODES, NODE_SCHEMA, nodes, fresh_nodes)
    edge_digest, edge_count = _write(target / EDGES, EDGE_SCHEMA, edges, fresh_edges)
    found = ((node_digest + edge_digest) % (1 << 128), node_count, edge_count)
    if found != (state.digest, state.nodes, state.edges):
        raise JournalDamaged(
            f"{base or target}: its rows and the journal do not come to the digest of {state.sequence}"
        )
    return state


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


def _write(path: Path, schema: pa.Schema, kept: Iterable[list[RowTuple]], fresh: Iterator[RowTuple]) -> tuple[int, int]:
    digest = count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for rows in _batches(kept, fresh):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            digest += rows_digest(rows)
            count += len(rows)
    return digest % (1 << 128), count


def _batches(kept: Iterable[list[RowTuple]], fresh: Iterator[RowTuple]) -> Iterator[list[RowTuple]]:
    for rows in kept:
        if rows:
            yield rows
    while rows := list(islice(fresh, BATCH_ROWS)):
        yield rows


def _node_tuple(row: NodeRow) -> RowTuple:
    return (row.id, row.type, row.content, row.attributes, row.version, row.sequence, row.created_at, row.updated_at)


def _edge_tuple(row: EdgeRow) -> RowTuple:
    return (row.source, row.target, row.relation_type, row.weight, row.attributes, row.version, row.sequence)
