"""Engine files: opening one for service, and building a new one offline."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import LiteralString, TypeAlias, cast

import msgspec
import xxhash

from kgserve.errors import EngineFailed
from kgserve.platform.shipped_files import locate_shipped_file
from kgserve.projections.cypher_engine.driver.apply_changes import (
    apply_net_change_to_engine,
    record_engine_commit_state,
)
from kgserve.projections.cypher_engine.driver.bulk_copy import (
    estimate_edge_load_cache_bytes,
    load_engine_tables_from_parquet,
)
from kgserve.projections.cypher_engine.driver.error_translation import translate_engine_error
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.driver.selected_engine_classes import Database
from kgserve.projections.cypher_engine.engine.protocol import EngineFileOptions
from kgserve.storage.journal.snapshot import read_snapshot_column_set
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow

_RECORD = "CREATE NODE TABLE IF NOT EXISTS SchemaFile (number INT64, name STRING, xxh3 STRING, PRIMARY KEY (number))"


BASE_SCHEMA_FILES = 2
"""Number of schema files that every store has; each wider column set adds one."""


class EngineSchemaFile(msgspec.Struct, frozen=True):
    """Schema file of the engine: number, name, checksum of its text, and its statements."""

    number: int
    name: str
    xxh3: str
    statements: tuple[str, ...]


def list_engine_schema_files() -> list[EngineSchemaFile]:
    """Return the schema files of this version of kgserve, in order."""
    return sorted(
        (_read(f) for f in locate_shipped_file("schema").iterdir() if f.name.endswith(".cypher")),
        key=lambda f: f.number,
    )


def create_engine_tables(session: PreparedStatementSession) -> None:
    """Create the tables of a new engine file for the session's column set, and record the applied schema files."""
    session.run(_RECORD)
    for file in list_engine_schema_files():
        if file.number > BASE_SCHEMA_FILES + session.width:
            continue
        for statement in file.statements:
            session.run(cast("LiteralString", statement))
        session.rows(
            "CREATE (:SchemaFile {number: $number, name: $name, xxh3: $xxh3})",
            {"number": file.number, "name": file.name, "xxh3": file.xxh3},
        )


def is_engine_file_schema_current(session: PreparedStatementSession) -> bool:
    """Return whether an engine file has exactly this version's schema files; if not, rebuild it."""
    found = [tuple(row) for row in session.rows("MATCH (f:SchemaFile) RETURN f.number, f.xxh3 ORDER BY f.number")]
    known = [(file.number, file.xxh3) for file in list_engine_schema_files()]
    return found in [[file for file in known if file[0] <= BASE_SCHEMA_FILES + width] for width in NodeEdgeColumnSet]


def _width(session: PreparedStatementSession) -> NodeEdgeColumnSet:
    """Return the column set of an engine file; PLAIN if it has no tables yet."""
    if ["SchemaFile"] not in session.rows("CALL show_tables() RETURN name"):
        return NodeEdgeColumnSet.PLAIN
    last = session.rows("MATCH (f:SchemaFile) RETURN max(f.number)")[0][0]
    return NodeEdgeColumnSet(min(max(last - BASE_SCHEMA_FILES, NodeEdgeColumnSet.PLAIN), max(NodeEdgeColumnSet)))


def _read(file: Traversable) -> EngineSchemaFile:
    text = file.read_text(encoding="utf-8")
    statements = tuple(part.strip() for part in text.split(";") if part.strip())
    return EngineSchemaFile(int(file.name[:4]), file.name, xxhash.xxh3_64_hexdigest(text.encode()), statements)


# Address space reserved per file, a power of two. The default is 8 TiB, of which 15 fit into a process.
_MAX_DATABASE_FILE_BYTES = 1 << 36
# Page cache for building, and the limit of a node group's rows; a growing group needs three times as much.
_BUILDING_BYTES = 384 << 20
_GROUP_BYTES = 64 << 20


OpenDatabase: TypeAlias = tuple[Database, PreparedStatementSession]
"""Open database and its writing session."""


def open_engine_file_with_writer(path: Path, options: EngineFileOptions) -> OpenDatabase:
    """Open or create a file, and return it with a writing session. Raises EngineFailed if it cannot be opened.

    Automatic checkpoints, including the one at close, are disabled: every damaged file so far came from a checkpoint.
    """
    database = open_engine_database_file(path, options)
    try:
        writer = PreparedStatementSession(database)
        writer.run("CALL auto_checkpoint=false")
        writer.run(_NO_CHECKPOINT)
        writer.width = _width(writer)
    except BaseException:
        database.close()
        raise
    return database, writer


def build_cypher_engine_file_from_row_files(
    path: Path,
    rows: Path,
    state: StoreState,
    options: EngineFileOptions,
    width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN,
) -> None:
    """Build a new engine file from a folder of rows, verify its counts, and close it.

    The file must not be in use. It has the columns that the rows need, and at least those of ``width``. Nodes need 384
    MiB of page cache regardless of their number; edges need more because all of them are cached at once.
    """
    cache_bytes = _BUILDING_BYTES + estimate_edge_load_cache_bytes(rows)
    database = open_engine_database_file(path, msgspec.structs.replace(options, cache_bytes=cache_bytes))
    try:
        session = PreparedStatementSession(database, max(width, read_snapshot_column_set(rows)))
        if not state.nodes:
            session.run(_NO_CHECKPOINT)
        create_engine_tables(session)
        load_engine_tables_from_parquet(session, rows, state, _GROUP_BYTES)
        record_engine_commit_state(session, state)
        _check_counts(session, path, state)
        session.close()
    finally:
        database.close()


def build_engine_file_from_rows(
    path: Path,
    rows: NetChange,
    state: StoreState,
    options: EngineFileOptions,
    width: NodeEdgeColumnSet = NodeEdgeColumnSet.PLAIN,
) -> OpenDatabase:
    """Build a new engine file from a few rows in memory, verify its counts, and return it open."""
    database, session = open_engine_file_with_writer(path, options)
    try:
        session.width = max(width, rows.width)
        create_engine_tables(session)
        apply_net_change_to_engine(session, rows, state)
        _check_counts(session, path, state)
    except BaseException:
        database.close()
        raise
    return database, session


def warm_engine_caches_before_fork() -> None:
    """Run the statements of a new file once on an in-memory database, to warm the caches of forked processes."""
    database = Database(":memory:", buffer_pool_size=_WARM_BYTES, max_db_size=_WARM_BYTES, max_num_threads=1)
    session = PreparedStatementSession(database, NodeEdgeColumnSet.MEMORY)
    session.run("CALL auto_checkpoint=false")
    create_engine_tables(session)
    for sequence, size in enumerate(_WARM_SIZES):
        names = [f"{sequence}-{number}" for number in range(size)]
        apply_net_change_to_engine(session, _star(names), StoreState(sequence))
        for text in (*_COUNTS, _POINT, _AROUND):
            session.run("BEGIN TRANSACTION READ ONLY")
            session.rows(text)
            session.run("COMMIT")
    session.close()
    database.close()


def _star(names: list[str]) -> NetChange:
    net = NetChange()
    net.nodes_created = {name: NodeRow(name, "t", "", "{}", 1, 1, 1, 1) for name in names}
    edges = (EdgeRow(name, names[0], "r", 1.0, "{}", 1, 1) for name in names)
    net.edges_created = {edge.key: edge for edge in edges}
    return net


def _check_counts(session: PreparedStatementSession, path: Path, state: StoreState) -> None:
    counts = tuple(session.rows(query)[0][0] for query in _COUNTS)
    if counts != (state.nodes, state.edges, state.edges):
        raise EngineFailed(f"{path}: built with {counts} rows; expected {state.nodes} nodes and {state.edges} edges")


# A checkpoint allocates pages for every table: 2 MB even for an almost empty store.
_NO_CHECKPOINT = "CALL force_checkpoint_on_close=false"
_COUNTS = (
    "MATCH (e:Entity) RETURN count(*)",
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN count(k.sequence)",
    "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN count(k.sequence)",
)
_WARM_BYTES = 64 << 20
# One size for each way of applying rows: prepared statements and scans.
_WARM_SIZES = (5, 200)
_POINT = "MATCH (e:Entity {id: '0-0'}) RETURN e"
_AROUND = "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE y.id = '0-0' RETURN x.id, k.weight ORDER BY x.id LIMIT 5"


def open_engine_database_file(path: Path, options: EngineFileOptions) -> Database:
    """Open a database file. Raises errors from `kgserve.errors`."""
    try:
        return Database(
            str(path),
            buffer_pool_size=options.cache_bytes,
            max_num_threads=options.threads,
            max_db_size=_MAX_DATABASE_FILE_BYTES,
        )
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise translate_engine_error(RuntimeError(f"opening {path.name}: {error}")) from error
