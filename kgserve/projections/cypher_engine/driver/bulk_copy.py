"""Bulk load and dump of engine files through COPY and Parquet, with a bounded page cache.

Load: the engine keeps a node group of 131,072 rows in its page cache, and twice that while it grows. If the rows of a
group would exceed the limit, the group is padded with rows without a key. The engine counts these as errors and marks
them deleted, so no query sees them.

Dump: the engine collects 131,072 rows before it writes any. Nodes are therefore written in slices by sequence, each
about an eighth of the cache, and then concatenated. The engine skips row groups outside a slice, and files are filled
roughly in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import LiteralString, cast

from kgserve.errors import InvalidInput
from kgserve.platform.lazy_pyarrow import pa, pq
from kgserve.platform.malloc_control import release_free_memory
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.driver.row_to_engine_conversion import (
    build_edge_queries_by_column_set,
    build_node_queries_by_column_set,
)
from kgserve.storage.journal.snapshot import PARQUET_READ_BUFFER_BYTES, read_snapshot_column_set
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.node_edge_fields import EDGE, EDGE_ENDPOINTS, NODE, NodeEdgeColumnSet, get_row_field_names
from kgserve.storage.model.store_rows_digest import SerializedStoreState


def build_copy_statement(statement: str, file: Path, direction: str = "TO", options: str = "") -> LiteralString:
    """Return a COPY statement with the path inlined, because COPY takes no parameter for it. Raises InvalidInput."""
    path = str(file)
    if not path.isprintable() or "'" in path or "\\" in path:
        raise InvalidInput(
            f"{path}: the engine cannot read or write a path with quotes, backslashes or control characters"
        )
    return cast("LiteralString", f"{statement} {direction} '{path}'{options}")


NODE_GROUP_ROWS = 1 << 17
"""Rows in one node group of the engine."""
_PADDED_FILE = "padded.parquet"
# Limits of a row group; the engine reads up to 2,048 rows of one at a time.
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 10_000
# Page cache per edge: a multiple of its Parquet size plus a constant (measured, rounded up).
_EDGE_FACTOR = 8
_EDGE_BYTES = 600


def load_engine_tables_from_parquet(
    session: PreparedStatementSession, folder: Path, state: StoreState, group_bytes: int
) -> None:
    """Fill the tables of a new engine file from nodes.parquet and edges.parquet. Not for a file in service.

    Each node group holds at most about ``group_bytes`` of rows.
    """
    width = read_snapshot_column_set(folder)
    # An empty COPY still adds 2 MB to the file.
    if state.nodes:
        fields = f"({', '.join(get_row_field_names(NODE.columns(width)))})" if width < session.width else ""
        _load_nodes(session, folder, f"COPY Entity{fields}", group_bytes)
    if state.edges:
        fields = (
            f"({', '.join(get_row_field_names(EDGE.columns(width)[EDGE_ENDPOINTS:]))})" if width < session.width else ""
        )
        session.run(build_copy_statement(f"COPY RELATES_TO{fields}", folder / "edges.parquet", "FROM"))


def estimate_edge_load_cache_bytes(folder: Path) -> int:
    """Estimate the page cache in bytes needed to load the edges of a folder, which are all cached at once."""
    with pq.ParquetFile(folder / "edges.parquet") as parquet:
        return (
            _EDGE_FACTOR * sum(size for _rows, size in _groups(parquet.metadata))
            + _EDGE_BYTES * parquet.metadata.num_rows
        )


def _load_nodes(session: PreparedStatementSession, folder: Path, statement: str, group_bytes: int) -> None:
    rows, spread = folder / "nodes.parquet", folder / _PADDED_FILE
    try:
        if _pad_groups(rows, spread, group_bytes):
            # With two threads, groups would be filled in parallel and not start at group boundaries.
            session.run("CALL threads=1")
            session.run(build_copy_statement(statement, spread, "FROM", " (ignore_errors=true)"))
        else:
            session.run(build_copy_statement(statement, rows, "FROM"))
    finally:
        spread.unlink(missing_ok=True)


def _pad_groups(rows: Path, target: Path, group_bytes: int) -> bool:
    """Write a padded copy to ``target`` if a node group would exceed ``group_bytes``; return whether it did."""
    spread = False
    with pq.ParquetFile(rows, pre_buffer=False, buffer_size=PARQUET_READ_BUFFER_BYTES) as parquet:
        if sum(size for _rows, size in _groups(parquet.metadata)) <= group_bytes // 2:
            return False
        with pq.ParquetWriter(target, parquet.schema_arrow, compression="none", use_dictionary=False) as writer:
            for block, filler in _group_blocks(parquet, group_bytes):
                if filler:
                    spread = True
                    writer.write_batch(_null_rows(parquet.schema_arrow, filler))
                writer.write_batch(block)
    return spread


def _group_blocks(parquet: pq.ParquetFile, group_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield blocks of rows that each fit one group, with the number of filler rows needed before each."""
    count = size = 0
    for block in _small_blocks(parquet):
        filler = 0
        if size and size + block.nbytes > group_bytes:
            filler = NODE_GROUP_ROWS - count
            count = size = 0
        fits = block.slice(0, NODE_GROUP_ROWS - count)
        yield fits, filler
        count, size = count + fits.num_rows, size + fits.nbytes
        if count == NODE_GROUP_ROWS:
            rest = block.slice(fits.num_rows)
            count, size = rest.num_rows, rest.nbytes
            if rest.num_rows:
                yield rest, 0


def _small_blocks(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for batch in parquet.iter_batches(_rows_per_batch(parquet.metadata)):
        # Row sizes vary: a block of average size may contain the largest rows.
        parts = -(-batch.nbytes // _BLOCK_BYTES)
        step = max(1, -(-batch.num_rows // max(parts, 1)))
        yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _rows_per_batch(metadata: pq.FileMetaData) -> int:
    return min([_BLOCK_ROWS, *(max(1, _BLOCK_BYTES * rows // max(size, 1)) for rows, size in _groups(metadata))])


def _groups(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield rows and uncompressed bytes of each row group; the engine's own totals for row groups are wrong."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        yield group.num_rows, sum(group.column(at).total_uncompressed_size for at in range(group.num_columns))


def _null_rows(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


_JOINED_ROWS = 2_000
_SORTED_ROW_OVERHEAD_BYTES = 128
_SEQUENCE_HISTOGRAM_PARTS = 4096
_MATCH_COPIED_NODES = build_node_queries_by_column_set("MATCH (e:Entity) RETURN")
_MATCH_COPIED_EDGES = build_edge_queries_by_column_set("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id,")
_MATCH_COPIED_LINKS = build_edge_queries_by_column_set(
    "MATCH (x:Entity)-[k:LINKS_TO]->(y:Elsewhere) RETURN y.store, x.id, y.id,"
)
_MATCH_NODE_WITHOUT_SEQUENCE = "MATCH (e:Entity) WHERE e.sequence IS NULL RETURN 1 LIMIT 1"
_MATCH_LAST_NODE_SEQUENCE = "MATCH (e:Entity) RETURN max(e.sequence)"
_MATCH_STORE_COMMIT = """
MATCH (c:StoreCommit) RETURN c.sequence, c.time, c.digest, c.nodes, c.edges ORDER BY c.sequence DESC LIMIT 1
"""
_MATCH_SEQUENCE_HISTOGRAM = """
MATCH (e:Entity) WHERE e.sequence IS NOT NULL
WITH e.sequence / $step AS part, count(*) AS many, sum(size(e.content) + size(e.attributes)) AS bytes
RETURN part, many, bytes ORDER BY part
"""


def read_engine_commit_state(session: PreparedStatementSession) -> StoreState:
    """Return the state of the last commit recorded in the engine. Scans all StoreCommit rows."""
    rows = session.rows(_MATCH_STORE_COMMIT)
    return SerializedStoreState(*rows[0]).state if rows else StoreState()


def dump_engine_tables_to_parquet(session: PreparedStatementSession, folder: Path) -> StoreState:
    """Write all rows to nodes.parquet and edges.parquet from one snapshot, and return its state.

    Links go to links.parquet if the file has tables for them.
    """
    session.run("BEGIN TRANSACTION READ ONLY")
    found = read_engine_commit_state(session)
    export_nodes_to_parquet(session, folder)
    export_engine_edges_to_parquet(session, folder)
    if session.width is NodeEdgeColumnSet.LINKS:
        session.run(build_copy_statement(f"COPY ({_MATCH_COPIED_LINKS.text(session)})", folder / "links.parquet"))
    session.run("COMMIT")
    return found


def export_engine_edges_to_parquet(session: PreparedStatementSession, folder: Path) -> None:
    """Write all edges to edges.parquet, within the caller's transaction if one is open."""
    session.run(build_copy_statement(f"COPY ({_MATCH_COPIED_EDGES.text(session)})", folder / "edges.parquet"))


def export_nodes_to_parquet(session: PreparedStatementSession, folder: Path) -> None:
    """Write all nodes to nodes.parquet, within the caller's transaction if one is open."""
    target = folder / "nodes.parquet"
    bounds = _bounds(session)
    if not bounds:
        session.run(build_copy_statement(f"COPY ({_MATCH_COPIED_NODES.text(session)})", target))
        return
    conditions = list(_slices(session, bounds))
    parts = [folder / f"nodes.{number}.parquet" for number in range(len(conditions))]
    for condition, part in zip(conditions, parts, strict=True):
        some = _MATCH_COPIED_NODES.text(session).replace("RETURN", f"WHERE {condition} RETURN", 1)
        session.run(build_copy_statement(f"COPY ({some})", part))
    _join(parts, target)


def _slices(session: PreparedStatementSession, bounds: Iterable[int]) -> Iterator[LiteralString]:
    """Yield the conditions of the slices; together they cover every node, including nodes without a sequence.

    COPY takes no parameters, so the numbers are inlined.
    """
    above = "TRUE"
    for bound in bounds:
        yield cast("LiteralString", f"{above} AND e.sequence < {bound:d}")
        above = f"e.sequence >= {bound:d}"
    yield cast("LiteralString", above)
    if session.rows(_MATCH_NODE_WITHOUT_SEQUENCE):
        yield "e.sequence IS NULL"


def _bounds(session: PreparedStatementSession) -> list[int]:
    """Return the sequences at which the slices end."""
    step = max(session.rows(_MATCH_LAST_NODE_SEQUENCE)[0][0] or 0, 0) // _SEQUENCE_HISTOGRAM_PARTS + 1
    bounds: list[int] = []
    size = 0
    for part, many, texts in session.rows(_MATCH_SEQUENCE_HISTOGRAM, {"step": step}):
        more = int(texts or 0) + _SORTED_ROW_OVERHEAD_BYTES * many
        if size and size + more > session.slice_bytes:
            bounds.append(part * step)
            size = 0
        size += more
    return bounds


def _join(parts: list[Path], target: Path) -> None:
    """Concatenate Parquet files into ``target``, and delete them."""
    with pq.ParquetWriter(target, pq.read_schema(parts[0])) as writer:
        for part in parts:
            with pq.ParquetFile(part, pre_buffer=False, buffer_size=PARQUET_READ_BUFFER_BYTES) as parquet:
                for batch in parquet.iter_batches(_JOINED_ROWS):
                    writer.write_batch(batch)
            part.unlink()
    release_free_memory()
