"""Running a statement that writes on a copy of the store, to learn what it would change.

Rolling back is not safe in this engine, and a statement that fails half way must change nothing: so it runs in an
engine file made for such statements alone, from a snapshot of the rows. What it changed is found by looking at the rows
before and after, and then written like anything else: planned, journaled, applied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kgserve.arrow import pa, pc
from kgserve.cypher.reach import Reach
from kgserve.engine import database, dumping
from kgserve.engine.database import Engine, EngineOptions, build
from kgserve.engine.prints import (
    EDGES,
    NODES,
    Kind,
    Prints,
    Touched,
    agree,
    differs,
    node_count,
    prints,
    rows_at,
    rows_without_version,
    touched,
)
from kgserve.engine.session import Session
from kgserve.errors import StorageFull
from kgserve.journal import snapshot
from kgserve.journal.files import storage_error
from kgserve.model.change import StoreState
from kgserve.model.columns import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.settings import MEBIBYTE
from kgserve.store.rebuild import fresh_folder

# With a full disk the engine hangs while it closes a file, or ends the process: it must not come to that. What a
# statement has changed is in the page cache until it is committed, so that bounds what it may add.
COPY_FACTOR = 4
MOST_FETCHED = 10_000
MOST_COMPARED = 100_000_000
"""So many rows are fetched by their places, and so many rows times places looked through; beyond that all are read."""
EVERYTHING = Reach()
_NODE_KEY = ("id",)
_EDGE_KEY = ("source", "target", "relation_type")
_BEFORE = "_before"
_NODE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRAS)
_EDGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRAS)

HasEdge = Callable[[EdgeKey], bool]


class Changed(msgspec.Struct, frozen=True):
    """A row as it is now and as it was, each by field; a value may be None, for a statement may leave it out.

    Extras are fields like others; times are microseconds, lists JSON.
    """

    now: dict[str, Any]
    before: dict[str, Any] | None

    @property
    def edge_key(self) -> EdgeKey:
        """The key of an edge."""
        return (self.now["source"], self.now["target"], self.now["relation_type"])


class Difference(msgspec.Struct, frozen=True):
    """Rows that are new or other than before, and the keys of those that are gone.

    ``doubled`` are keys that more than one edge has now.
    """

    nodes: list[Changed]
    edges: list[Changed]
    nodes_gone: list[str]
    edges_gone: list[EdgeKey]
    doubled: list[EdgeKey]


NOTHING = Difference(nodes=[], edges=[], nodes_gone=[], edges_gone=[], doubled=[])


class Doubtful(Exception):
    """A copy that has been written to before does not hold what it should: try the statement on a new one."""


class Copy:
    """An engine file with the rows of a store, for statements to write to, one at a time.

    ``state`` is that of the store which it holds, but for what a statement has done: ``left`` says which rows that are,
    and None that it is to be used no more. ``has_its_edges``: none has changed, and no node gone, since it was built.
    """

    def __init__(self, folder: Path, state: StoreState, options: EngineOptions) -> None:
        """Open the file in a folder that holds these rows."""
        self.folder = folder
        self.engine = Engine(_file(folder), options)
        self.state = state
        self.left: Difference | None = NOTHING
        self.is_new = True
        self.has_its_edges = True

    @contextmanager
    def trying(self, has_edge: HasEdge) -> Generator[Trial]:
        """Have a statement run; ``has_edge`` tells which edges there were before."""
        with self.engine.reader(timeout=0) as before:
            before.run("BEGIN TRANSACTION READ ONLY")
            self.left = None
            yield Trial(self, before, has_edge)
            before.run("COMMIT")
        self.is_new = False

    def close(self) -> None:
        """Close the file, and leave nothing of it."""
        try:
            self.engine.retire()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Trial:
    """A statement that may change a copy, through ``session``."""

    def __init__(self, copy: Copy, before: Session, has_edge: HasEdge) -> None:
        self.session = copy.engine.writer
        self._copy = copy
        self._before = before
        self._has_edge = has_edge
        self._is_sound = True

    def difference(self, reach: Reach = EVERYTHING) -> Difference:
        """What is not as it was when the trial began; only what a statement can ``reach`` is looked at.

        Raises Doubtful when the copy cannot be relied on, a new one never.
        """
        nodes, nodes_gone = _compare(*self._tables(NODES, reach, self._copy.state.nodes), _NODE_KEY)
        before, now = self._tables(EDGES, reach, self._copy.state.edges)
        edges, edges_gone = _compare(before, now, _EDGE_KEY)
        found = Difference(
            nodes=nodes,
            edges=edges,
            nodes_gone=[key[0] for key in nodes_gone],
            edges_gone=[(key[0], key[1], key[2]) for key in edges_gone],
            doubled=[*_doubled(now), *self._there_before(edges)],
        )
        if self._is_sound and not is_rough(reach):
            self._copy.left = found
        return found

    def _tables(self, kind: Kind, reach: Reach, count: int) -> _Tables:
        """Rows before and after, at least those that differ."""
        names_version = reach.may_name("version")
        if kind is EDGES and not reach.relations:
            return _nothing(kind)
        if reach.creates and names_version:
            if not self._agrees(kind, reach, prints(self.session, kind, ())):
                self._doubt()
            return self._all(kind)
        columns = {name for name in kind.columns if reach.may_set(name)}
        if columns or (reach.sets and names_version):
            return self._some(kind, columns, reach, count)
        if reach.deletes:
            # Where none is new the number of nodes tells whether any is gone; that of edges may count one left behind.
            is_same = kind is NODES and not reach.creates and node_count(self.session) == count
            return _nothing(kind) if is_same else self._some(kind, columns, reach, count)
        if reach.creates:
            new = _plain(rows_without_version(self.session, kind), kind)
            return new.slice(0, 0), new
        return _nothing(kind)

    def _some(self, kind: Kind, columns: set[str], reach: Reach, count: int) -> _Tables:
        before, now = prints(self._before, kind, columns), prints(self.session, kind, columns)
        if not (before.is_sound and now.is_sound and len(before.places) == count and self._agrees(kind, reach, now)):
            self._doubt()
            return self._all(kind)
        found = touched(before, now)
        most = max(len(found.before), len(found.now))
        if most > MOST_FETCHED or most * count > MOST_COMPARED:
            return self._all(kind)
        return self._fetched(kind, found) if most else _nothing(kind)

    def _agrees(self, kind: Kind, reach: Reach, now: Prints) -> bool:
        return kind is NODES or not reach.deletes or agree(self.session, now)

    def _doubt(self) -> None:
        if not self._copy.is_new:
            raise Doubtful
        self._is_sound = False

    def _fetched(self, kind: Kind, found: Touched) -> _Tables:
        if not found.before:
            new = _plain(rows_at(self.session, kind, found.now), kind)
            return new.slice(0, 0), new
        before = _plain(rows_at(self._before, kind, found.before), kind)
        now = _plain(rows_at(self.session, kind, found.now), kind) if found.now else before.slice(0, 0)
        return before, now

    def _all(self, kind: Kind) -> _Tables:
        write = dumping.write_nodes if kind is NODES else dumping.write_edges
        name = snapshot.NODES if kind is NODES else snapshot.EDGES
        tables: list[pa.Table] = []
        for session in (self._before, self.session):
            folder = fresh_folder(self._copy.folder / "rows")
            write(session, folder)
            tables.append(_plain(snapshot.table(folder / name, list(_fields(kind))), kind))
            shutil.rmtree(folder)
        return tables[0], tables[1]

    def _there_before(self, edges: list[Changed]) -> Iterator[EdgeKey]:
        """The keys of new edges that another has, which is as it was."""
        for key in {row.edge_key for row in edges if row.before is None and row.now["relation_type"] is not None}:
            if self._has_edge(key):
                yield key


def is_rough(reach: Reach) -> bool:
    """Whether a statement may take rows away, or change edges.

    In a file whose edges have changed since it was built this engine has been seen to miss some that it was to delete
    and to leave others behind; after deletions by a caller's statement, to miss nodes. Reading edges has stayed right.
    """
    sets_edges = any(reach.may_set(name) for name in (*EDGES.columns, "version"))
    return reach.deletes or (reach.relations and (reach.creates or sets_edges))


_Tables: TypeAlias = "tuple[pa.Table, pa.Table]"


def copied(reading: AbstractContextManager[Session], folder: Path, options: EngineOptions, size: int) -> Copy:
    """A copy of all rows that a session sees, in a folder of its own; it costs more the more there are.

    The session is given back before the copy is used. ``size`` is about what the engine's files of the store have, in
    bytes. Raises StorageFull when the disk has no room for the copy and for whatever a statement may add to it.
    """
    try:
        rows = fresh_folder(fresh_folder(folder) / "rows")
        require_room_to_try(folder, COPY_FACTOR * size + options.cache_bytes)
        with reading as session:
            state = dumping.dump(session, rows)
        build(_file(folder), rows, state, options, whole=True)
        shutil.rmtree(rows)
        return Copy(folder, state, options)
    except BaseException as error:
        database.remove(_file(folder))
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise storage_error(error, "copying a store for a statement") from error
        raise


def require_room_to_try(folder: Path, needed: int) -> None:
    """Raise StorageFull unless so many bytes are left for a copy and for what a statement may add to it."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"a statement that writes works on a copy of the store and needs {needed // MEBIBYTE} MiB on the disk;"
            f" {free // MEBIBYTE} MiB are left"
        )


def _file(folder: Path) -> Path:
    return folder / "graph.kuzu"


def _fields(kind: Kind) -> tuple[str, ...]:
    return _NODE_FIELDS if kind is NODES else _EDGE_FIELDS


def _plain(rows: pa.Table, kind: Kind) -> pa.Table:
    """Times as numbers: a statement can set some that Python has no value for. Lists as JSON, for a join takes none."""
    table = rows.rename_columns(_fields(kind))
    for place, column in enumerate(table.columns):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(place, table.field(place).name, column.cast(pa.int64()))
        elif pa.types.is_list(column.type):
            table = table.set_column(place, table.field(place).name, pa.chunked_array([_as_json(column)]))
    return table


def _as_json(column: pa.ChunkedArray) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    texts = (None if value is None else msgspec.json.encode(value).decode() for value in column.to_pylist())
    return pa.array(texts, pa.string())


def _compare(before: pa.Table, now: pa.Table, key: tuple[str, ...]) -> tuple[list[Changed], list[list[str]]]:
    """Rows of ``now`` that are not in ``before`` as they are, and the keys of ``before`` that ``now`` has not."""
    joined = now.join(
        before, keys=list(key), join_type="full outer", right_suffix=_BEFORE, right_keys=list(key), coalesce_keys=False
    )
    new = pc.is_null(joined[key[0] + _BEFORE])
    gone = pc.is_null(joined[key[0]])
    other = new
    for name in now.column_names:
        if name not in key:
            other = pc.or_(other, differs(joined[name], joined[name + _BEFORE]))
    changed = joined.filter(pc.and_(other, pc.invert(gone))).to_pylist()
    lost = joined.filter(gone).select([name + _BEFORE for name in key]).to_pylist()
    return [_changed(row, now.column_names, key) for row in changed], [list(row.values()) for row in lost]


def _changed(row: dict[str, Any], fields: list[str], key: tuple[str, ...]) -> Changed:
    now = {name: row[name] for name in fields}
    was_there = row[key[0] + _BEFORE] is not None
    return Changed(now, {name: row[name + _BEFORE] for name in fields} if was_there else None)


def _nothing(kind: Kind) -> _Tables:
    none = pa.table({name: pa.array([], pa.string()) for name in _fields(kind)})
    return none, none


def _doubled(edges: pa.Table) -> list[EdgeKey]:
    counted = edges.group_by(list(_EDGE_KEY)).aggregate([([], "count_all")])
    many = counted.filter(pc.greater(counted["count_all"], 1))
    return [(row["source"], row["target"], row["relation_type"]) for row in many.to_pylist()]
