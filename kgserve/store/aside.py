"""Running a statement that writes on a copy of the store, to learn what it would change.

Rolling back is not safe in this engine, and a statement that fails half way must change nothing: so it runs in an
engine file made for it alone, from a snapshot of the rows. What it changed is found by comparing rows before and after,
and then written like anything else: planned, journaled, applied.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kgserve.arrow import pa
from kgserve.arrow import pc as compute
from kgserve.engine import dumping
from kgserve.engine.database import Engine, EngineOptions, build, remove
from kgserve.engine.session import Session
from kgserve.errors import StorageFull
from kgserve.journal import snapshot
from kgserve.journal.files import storage_error
from kgserve.model.columns import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.settings import MEBIBYTE
from kgserve.store.rebuild import fresh_folder

# With a full disk the engine hangs while it closes a file, or ends the process: it must not come to that. What a
# statement has changed is in the page cache until it is committed, so that bounds what it may add.
COPY_FACTOR = 4
_NODE_KEY = ("id",)
_EDGE_KEY = ("source", "target", "relation_type")
_BEFORE = "_before"
pc: Any = compute  # its functions are made at run time, where no type checker sees them


class Changed(msgspec.Struct, frozen=True):
    """A row as it is now and as it was, each by field; a value may be None, for a statement may leave it out.

    Extras are fields like others; times are microseconds, lists JSON.
    """

    now: dict[str, Any]
    before: dict[str, Any] | None


class Difference(msgspec.Struct, frozen=True):
    """Rows that are new or other than before, and the keys of those that are gone.

    ``doubled`` are keys that more than one edge has now.
    """

    nodes: list[Changed]
    edges: list[Changed]
    nodes_gone: list[str]
    edges_gone: list[EdgeKey]
    doubled: list[EdgeKey]


class Copy:
    """An engine file with the rows of a store, for one statement; ``session`` may write."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self._folder = folder

    def difference(self) -> Difference:
        """What is not as it was when the copy was made."""
        after = fresh_folder(self._folder / "after")
        dumping.dump(self.session, after)
        nodes, nodes_gone = _compare(*self._tables(after, snapshot.NODES, NodeRow), _NODE_KEY)
        before, now = self._tables(after, snapshot.EDGES, EdgeRow)
        edges, edges_gone = _compare(before, now, _EDGE_KEY)
        return Difference(
            nodes=nodes,
            edges=edges,
            nodes_gone=[key[0] for key in nodes_gone],
            edges_gone=[(key[0], key[1], key[2]) for key in edges_gone],
            doubled=_doubled(now),
        )

    def _tables(self, after: Path, name: str, kind: type[NodeRow | EdgeRow]) -> tuple[pa.Table, pa.Table]:
        extras = NODE_EXTRAS if kind is NodeRow else EDGE_EXTRAS
        fields = [*kind.__struct_fields__[:-1], *extras]
        return _table(_rows(self._folder) / name, fields), _table(after / name, fields)


@contextmanager
def copied(
    reading: AbstractContextManager[Session], scratch: Path, options: EngineOptions, size: int
) -> Generator[Copy]:
    """A copy of all rows that a session sees; it costs more the more there are, and is gone at the end in any case.

    The session is given back before the copy is used. ``size`` is about what the engine's files of the store have, in
    bytes. Raises StorageFull when the disk has no room for the copy and for whatever a statement may add to it.
    """
    folder = scratch / "statement"
    path = folder / "graph.kuzu"
    try:
        rows = fresh_folder(_rows(fresh_folder(folder)))
        _require_room(folder, COPY_FACTOR * size + options.cache_bytes)
        with reading as session:
            state = dumping.dump(session, rows)
        build(path, rows, state, options, whole=True)
        engine = Engine(path, options)
        try:
            yield Copy(engine.writer, folder)
        finally:
            engine.retire()
            remove(path)
    except OSError as error:
        raise storage_error(error, "copying a store for a statement") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(
            f"a statement that writes works on a copy of the store and needs {needed // MEBIBYTE} MiB on the disk;"
            f" {free // MEBIBYTE} MiB are left"
        )


def _rows(folder: Path) -> Path:
    return folder / "before"


def _table(file: Path, fields: list[str]) -> pa.Table:
    """Times as numbers: a statement can set some that Python has no value for. Lists as JSON, for a join takes none."""
    table = snapshot.table(file, fields)
    for place, column in enumerate(table.columns):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(place, fields[place], column.cast(pa.int64()))
        elif pa.types.is_list(column.type):
            table = table.set_column(place, fields[place], pa.chunked_array([_as_json(column)]))
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
            other = pc.or_(other, _differs(joined[name], joined[name + _BEFORE]))
    changed = joined.filter(pc.and_(other, pc.invert(gone))).to_pylist()
    lost = joined.filter(gone).select([name + _BEFORE for name in key]).to_pylist()
    return [_changed(row, now.column_names, key) for row in changed], [list(row.values()) for row in lost]


def _differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    one_missing = pc.xor(pc.is_null(one), pc.is_null(other))
    return pc.or_(one_missing, pc.fill_null(pc.not_equal(one, other), fill_value=False))


def _changed(row: dict[str, Any], fields: list[str], key: tuple[str, ...]) -> Changed:
    now = {name: row[name] for name in fields}
    was_there = row[key[0] + _BEFORE] is not None
    return Changed(now, {name: row[name + _BEFORE] for name in fields} if was_there else None)


def _doubled(edges: pa.Table) -> list[EdgeKey]:
    counted = edges.group_by(list(_EDGE_KEY)).aggregate([([], "count_all")])
    many = counted.filter(pc.greater(counted["count_all"], 1))
    return [(row["source"], row["target"], row["relation_type"]) for row in many.to_pylist()]
