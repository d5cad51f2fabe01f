"""What a statement has changed in a file, found by looking at the rows before and after.

Before is a reading transaction that began first; it sees the file as it was.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kgserve.arrow import pa, pc
from kgserve.cypher.reach import Reach
from kgserve.engine.protocol import Changed, Compare, Compared, Difference, Doubtful
from kgserve.journal import snapshot
from kgserve.model.fields import EDGE, NODE, names
from kgserve.model.rows import EdgeKey
from kgserve.worker import dumping
from kgserve.worker.prints import (
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
from kgserve.worker.session import Session

MOST_FETCHED = 10_000
MOST_COMPARED = 100_000_000
"""So many rows are fetched by their places, and so many rows times places looked through; beyond that all are read."""
_NODE_KEY = ("id",)
_EDGE_KEY = ("source", "target", "relation_type")
_BEFORE = "_before"
_NODE_FIELDS = names(NODE.whole)
_EDGE_FIELDS = names(EDGE.whole)


class Comparison:
    """One look at what a session has changed since another one began."""

    def __init__(self, session: Session, before: Session, asked: Compare) -> None:
        self._session = session
        self._before = before
        self._asked = asked
        self._is_sound = True

    def difference(self) -> Compared:
        """What is other. Raises Doubtful when the file cannot be relied on, a new one never."""
        reach = self._asked.reach
        nodes, nodes_gone = _compare(*self._tables(NODES, reach, self._asked.nodes), _NODE_KEY)
        before, now = self._tables(EDGES, reach, self._asked.edges)
        edges, edges_gone = _compare(before, now, _EDGE_KEY)
        found = Difference(
            nodes=nodes,
            edges=edges,
            nodes_gone=[key[0] for key in nodes_gone],
            edges_gone=[(key[0], key[1], key[2]) for key in edges_gone],
            doubled=_doubled(now),
        )
        return Compared(found, self._is_sound)

    def _tables(self, kind: Kind, reach: Reach, count: int) -> _Tables:
        """Rows before and after, at least those that differ."""
        names_version = reach.may_name("version")
        if kind is EDGES and not reach.relations:
            return _nothing(kind)
        if reach.creates and names_version:
            if not self._agrees(kind, reach, prints(self._session, kind, ())):
                self._doubt()
            return self._all(kind)
        columns = {name for name in kind.columns if reach.may_set(name)}
        if columns or (reach.sets and names_version):
            return self._some(kind, columns, reach, count)
        if reach.deletes:
            # Where none is new the number of nodes tells whether any is gone; that of edges may count one left behind.
            is_same = kind is NODES and not reach.creates and node_count(self._session) == count
            return _nothing(kind) if is_same else self._some(kind, columns, reach, count)
        if reach.creates:
            new = _plain(rows_without_version(self._session, kind), kind)
            return new.slice(0, 0), new
        return _nothing(kind)

    def _some(self, kind: Kind, columns: set[str], reach: Reach, count: int) -> _Tables:
        before, now = prints(self._before, kind, columns), prints(self._session, kind, columns)
        if not (before.is_sound and now.is_sound and len(before.places) == count and self._agrees(kind, reach, now)):
            self._doubt()
            return self._all(kind)
        found = touched(before, now)
        most = max(len(found.before), len(found.now))
        if most > MOST_FETCHED or most * count > MOST_COMPARED:
            return self._all(kind)
        return self._fetched(kind, found) if most else _nothing(kind)

    def _agrees(self, kind: Kind, reach: Reach, now: Prints) -> bool:
        return kind is NODES or not reach.deletes or agree(self._session, now)

    def _doubt(self) -> None:
        if not self._asked.new:
            raise Doubtful
        self._is_sound = False

    def _fetched(self, kind: Kind, found: Touched) -> _Tables:
        if not found.before:
            new = _plain(rows_at(self._session, kind, found.now), kind)
            return new.slice(0, 0), new
        before = _plain(rows_at(self._before, kind, found.before), kind)
        now = _plain(rows_at(self._session, kind, found.now), kind) if found.now else before.slice(0, 0)
        return before, now

    def _all(self, kind: Kind) -> _Tables:
        write = dumping.write_nodes if kind is NODES else dumping.write_edges
        name = snapshot.NODES if kind is NODES else snapshot.EDGES
        tables: list[pa.Table] = []
        for session in (self._before, self._session):
            folder = _fresh(Path(self._asked.folder) / "rows")
            write(session, folder)
            tables.append(_plain(snapshot.table(folder / name), kind))
            shutil.rmtree(folder)
        return tables[0], tables[1]


_Tables: TypeAlias = "tuple[pa.Table, pa.Table]"


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


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
