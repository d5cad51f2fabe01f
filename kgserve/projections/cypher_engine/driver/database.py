"""An engine's file: opening it for service, and building a new one aside."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import LiteralString, TypeAlias, cast

import msgspec
import xxhash

from kgserve.errors import EngineFailed
from kgserve.platform.resources import shipped
from kgserve.projections.cypher_engine.driver.apply import apply, record
from kgserve.projections.cypher_engine.driver.binding import Database
from kgserve.projections.cypher_engine.driver.copying import edge_memory, load
from kgserve.projections.cypher_engine.driver.failures import translate
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.projections.cypher_engine.engine.protocol import FileOptions
from kgserve.storage.journal.snapshot import width_of_rows
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.rows import EdgeRow, NodeRow

_RECORD = "CREATE NODE TABLE IF NOT EXISTS SchemaFile (number INT64, name STRING, xxh3 STRING, PRIMARY KEY (number))"


NARROW = 2
"""Every store has the files up to this number, and one more for each width of its rows."""


class SchemaFile(msgspec.Struct, frozen=True):
    """One schema file: its number, its name, a checksum of its text, and the statements in it."""

    number: int
    name: str
    xxh3: str
    statements: tuple[str, ...]


def schema_files() -> list[SchemaFile]:
    """The files that this version of kgserve brings, in order."""
    return sorted((_read(f) for f in shipped("schema").iterdir() if f.name.endswith(".cypher")), key=lambda f: f.number)


def create_tables(session: DriverSession) -> None:
    """Give a new engine file its tables and record the files; with the columns of the session's width."""
    session.run(_RECORD)
    for file in schema_files():
        if file.number > NARROW + session.width:
            continue
        for statement in file.statements:
            session.run(cast("LiteralString", statement))
        session.rows(
            "CREATE (:SchemaFile {number: $number, name: $name, xxh3: $xxh3})",
            {"number": file.number, "name": file.name, "xxh3": file.xxh3},
        )


def is_current(session: DriverSession) -> bool:
    """Whether an engine file has had exactly the files of this version; if not, it is to be built anew."""
    found = [tuple(row) for row in session.rows("MATCH (f:SchemaFile) RETURN f.number, f.xxh3 ORDER BY f.number")]
    known = [(file.number, file.xxh3) for file in schema_files()]
    return found in [[file for file in known if file[0] <= NARROW + width] for width in ColumnSet]


def _width(session: DriverSession) -> ColumnSet:
    """The columns that an engine file has. One that is being made may have no tables yet."""
    if ["SchemaFile"] not in session.rows("CALL show_tables() RETURN name"):
        return ColumnSet.PLAIN
    last = session.rows("MATCH (f:SchemaFile) RETURN max(f.number)")[0][0]
    return ColumnSet(min(max(last - NARROW, ColumnSet.PLAIN), max(ColumnSet)))


def _read(file: Traversable) -> SchemaFile:
    text = file.read_text(encoding="utf-8")
    statements = tuple(part.strip() for part in text.split(";") if part.strip())
    return SchemaFile(int(file.name[:4]), file.name, xxhash.xxh3_64_hexdigest(text.encode()), statements)


# Address space reserved per file; the engine wants a power of two and defaults to 8 TiB, of which 15 fit a process.
_MAX_DATABASE_FILE_BYTES = 1 << 36
# Page cache for building, and what the rows of a node group may take: growing needs it three times over.
_BUILDING_BYTES = 384 << 20
_GROUP_BYTES = 64 << 20


OpenFile: TypeAlias = tuple[Database, DriverSession]
"""A file in service, and the session that writes."""


def open_for_service(path: Path, options: FileOptions) -> OpenFile:
    """Open an existing file or make a new one, and a session that writes. Raises EngineFailed when it will not open.

    Automatic checkpoints and the one at close are off: each damaged file that was ever seen came from a checkpoint.
    """
    database = open_file(path, options)
    try:
        writer = DriverSession(database)
        writer.run("CALL auto_checkpoint=false")
        writer.run(_NO_CHECKPOINT)
        writer.width = _width(writer)
    except BaseException:
        database.close()
        raise
    return database, writer


def build(path: Path, rows: Path, state: StoreState, options: FileOptions, width: ColumnSet = ColumnSet.PLAIN) -> None:
    """Make a new engine file from a folder of rows, check its counts, close it. Nobody else may know the file yet.

    It has the columns that the rows have, and those of a ``width`` in any case. However many nodes there are, they take
    384 MiB of page cache; edges have to be in it all at once, so it is larger by what they need.
    """
    cache_bytes = _BUILDING_BYTES + edge_memory(rows)
    database = open_file(path, msgspec.structs.replace(options, cache_bytes=cache_bytes))
    try:
        session = DriverSession(database, max(width, width_of_rows(rows)))
        if not state.nodes:
            session.run(_NO_CHECKPOINT)
        create_tables(session)
        load(session, rows, state, _GROUP_BYTES)
        record(session, state)
        _check_counts(session, path, state)
        session.close()
    finally:
        database.close()


def make(
    path: Path, rows: NetChange, state: StoreState, options: FileOptions, width: ColumnSet = ColumnSet.PLAIN
) -> OpenFile:
    """As `build`, from few rows, in milliseconds; the file stays open."""
    database, session = open_for_service(path, options)
    try:
        session.width = max(width, rows.width)
        create_tables(session)
        apply(session, rows, state)
        _check_counts(session, path, state)
    except BaseException:
        database.close()
        raise
    return database, session


def warm() -> None:
    """Do in memory, once, what every file begins with: the engine learns by it, and forks have what it learnt.

    The first file of a process is made in a third of the time.
    """
    database = Database(":memory:", buffer_pool_size=_WARM_BYTES, max_db_size=_WARM_BYTES, max_num_threads=1)
    session = DriverSession(database, ColumnSet.MEMORY)
    session.run("CALL auto_checkpoint=false")
    create_tables(session)
    for sequence, size in enumerate(_WARM_SIZES):
        names = [f"{sequence}-{number}" for number in range(size)]
        apply(session, _star(names), StoreState(sequence))
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


def _check_counts(session: DriverSession, path: Path, state: StoreState) -> None:
    counts = tuple(session.rows(query)[0][0] for query in _COUNTS)
    if counts != (state.nodes, state.edges, state.edges):
        raise EngineFailed(f"{path}: built with {counts} rows where {state.nodes} and {state.edges} were due")


# A checkpoint gives every table its pages: 2 MB for a store that holds hardly anything yet.
_NO_CHECKPOINT = "CALL force_checkpoint_on_close=false"
_COUNTS = (
    "MATCH (e:Entity) RETURN count(*)",
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN count(k.sequence)",
    "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN count(k.sequence)",
)
_WARM_BYTES = 64 << 20
# Each of the two ways to apply rows.
_WARM_SIZES = (5, 200)
_POINT = "MATCH (e:Entity {id: '0-0'}) RETURN e"
_AROUND = "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE y.id = '0-0' RETURN x.id, k.weight ORDER BY x.id LIMIT 5"


def open_file(path: Path, options: FileOptions) -> Database:
    """Open a file. Raises errors of `kgserve.errors`."""
    try:
        return Database(
            str(path),
            buffer_pool_size=options.cache_bytes,
            max_num_threads=options.threads,
            max_db_size=_MAX_DATABASE_FILE_BYTES,
        )
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise translate(RuntimeError(f"opening {path.name}: {error}")) from error
