"""Filling a new engine file, in a page cache of any size.

The engine holds a whole node group, 131,072 rows, in its page cache until it is full, twice over while it grows. There
is no smaller group; so a group whose rows would take too much is filled up with rows that have no key. The engine
counts them as errors and marks them as deleted: they are in no index, no query meets them, and they take hardly room.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kgserve.arrow import pa, pq
from kgserve.journal.snapshot import are_whole
from kgserve.model.change import StoreState
from kgserve.model.fields import EDGE, ENDS, NODE, names
from kgserve.worker.copying import copy
from kgserve.worker.session import Session

GROUP_ROWS = 1 << 17
"""Rows of a node group of the engine."""
# Otherwise whole columns of a row group are read at once.
_READ_BYTES = 1 << 20
_SPREAD = "spread.parquet"
# What a row group may have: the engine reads up to 2,048 rows of one at a time.
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 10_000
# Memory of the engine for an edge, by what its columns take in the file and beside that: measured, and rounded up.
_EDGE_FACTOR = 8
_EDGE_BYTES = 600


def load(session: Session, folder: Path, state: StoreState, group_bytes: int) -> None:
    """Fill the tables of a new engine file from nodes.parquet and edges.parquet. Never for a file in service.

    No node group gets much more than ``group_bytes`` of rows.
    """
    only_fields = session.whole and not are_whole(folder)
    # Copying nothing still costs 2 MB of file.
    if state.nodes:
        fields = f"({', '.join(names(NODE.plain))})" if only_fields else ""
        _load_nodes(session, folder, f"COPY Entity{fields}", group_bytes)
    if state.edges:
        fields = f"({', '.join(names(EDGE.plain[ENDS:]))})" if only_fields else ""
        session.run(copy(f"COPY RELATES_TO{fields}", folder / "edges.parquet", "FROM"))


def edge_memory(folder: Path) -> int:
    """About the bytes of page cache that loading the edges of a folder takes: all of them are in it at once."""
    with pq.ParquetFile(folder / "edges.parquet") as parquet:
        return (
            _EDGE_FACTOR * sum(size for _rows, size in _groups(parquet.metadata))
            + _EDGE_BYTES * parquet.metadata.num_rows
        )


def _load_nodes(session: Session, folder: Path, statement: str, group_bytes: int) -> None:
    rows, spread = folder / "nodes.parquet", folder / _SPREAD
    try:
        if _spread(rows, spread, group_bytes):
            # Two threads would fill two groups at a time, and neither begin where a group of the file begins.
            session.run("CALL threads=1")
            session.run(copy(statement, spread, "FROM", " (ignore_errors=true)"))
        else:
            session.run(copy(statement, rows, "FROM"))
    finally:
        spread.unlink(missing_ok=True)


def _spread(rows: Path, target: Path, group_bytes: int) -> bool:
    """Write rows with rows without a key between them where a group would get too much; False where none would."""
    spread = False
    with pq.ParquetFile(rows, pre_buffer=False, buffer_size=_READ_BYTES) as parquet:
        if sum(size for _rows, size in _groups(parquet.metadata)) <= group_bytes // 2:
            return False
        with pq.ParquetWriter(target, parquet.schema_arrow, compression="none", use_dictionary=False) as writer:
            for block, filler in _blocks(parquet, group_bytes):
                if filler:
                    spread = True
                    writer.write_batch(_nothing(parquet.schema_arrow, filler))
                writer.write_batch(block)
    return spread


def _blocks(parquet: pq.ParquetFile, group_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows in blocks that each belong to one group, with the rows that are missing to the end of the one before."""
    count = size = 0
    for block in _small_blocks(parquet):
        filler = 0
        if size and size + block.nbytes > group_bytes:
            filler = GROUP_ROWS - count
            count = size = 0
        fits = block.slice(0, GROUP_ROWS - count)
        yield fits, filler
        count, size = count + fits.num_rows, size + fits.nbytes
        if count == GROUP_ROWS:
            rest = block.slice(fits.num_rows)
            count, size = rest.num_rows, rest.nbytes
            if rest.num_rows:
                yield rest, 0


def _small_blocks(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for batch in parquet.iter_batches(_rows_at_a_time(parquet.metadata)):
        # Rows differ: a block of the average size may have the largest.
        parts = -(-batch.nbytes // _BLOCK_BYTES)
        step = max(1, -(-batch.num_rows // max(parts, 1)))
        yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _rows_at_a_time(metadata: pq.FileMetaData) -> int:
    return min([_BLOCK_ROWS, *(max(1, _BLOCK_BYTES * rows // max(size, 1)) for rows, size in _groups(metadata))])


def _groups(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Rows of each row group, and the bytes of its columns; what the engine says of whole row groups is wrong."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        yield group.num_rows, sum(group.column(at).total_uncompressed_size for at in range(group.num_columns))


def _nothing(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
