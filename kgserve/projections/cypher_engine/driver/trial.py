"""What a statement has changed in a file, found by looking at the rows before and after.

Before is a reading transaction that began first; it sees the file as it was. A look is some numbers for each row, not
the row: its place in the table, which it keeps for life, its version, and of the columns that may differ a hash of 64
bits for texts and lists, the value itself for all others.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

import msgspec
import numpy as np

from kgserve.cypher.writes import WriteScope
from kgserve.platform.lazy_pyarrow import pa, pc
from kgserve.projections.cypher_engine.driver import copying
from kgserve.projections.cypher_engine.driver.columns import ColumnQueries, edge_query, node_query
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.projections.cypher_engine.engine.protocol import Changed, Compare, Compared, Difference, Doubtful
from kgserve.storage.journal import snapshot
from kgserve.storage.model.fields import (
    EDGE,
    EDGE_ENDPOINTS,
    INTEGER_LIST_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    Field,
    names,
)
from kgserve.storage.model.rows import EdgeKey


class RowLookup(msgspec.Struct, frozen=True):
    """How rows of a table are looked at: prints of all, rows by their places, rows that have no version yet."""

    look: LiteralString
    columns: Mapping[str, LiteralString]
    at: ColumnQueries
    new: ColumnQueries


def _columns(row: LiteralString, fields: tuple[Field, ...]) -> dict[str, LiteralString]:
    return {field.name: _look(f"{row}.{field.name}", field) for field in fields if field.name != "version"}


def _look(value: LiteralString, field: Field) -> LiteralString:
    if field.type in {STRING_LIST_TYPE, INTEGER_LIST_TYPE}:
        # The hash of an empty list is that of null.
        return f"hash({value}), size({value})"
    return f"hash({value})" if field.type is STRING_TYPE else value


NODE_LOOKUP = RowLookup(
    "MATCH (e:Entity) RETURN offset(id(e)), e.version",
    _columns("e", NODE.whole[1:]),
    node_query("MATCH (e:Entity) WHERE offset(id(e)) IN $offsets RETURN"),
    node_query("MATCH (e:Entity) WHERE e.version IS NULL RETURN"),
)
EDGE_LOOKUP = RowLookup(
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN offset(id(k)), k.version",
    _columns("k", EDGE.whole[EDGE_ENDPOINTS:]),
    edge_query("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE offset(id(k)) IN $offsets RETURN x.id, y.id,"),
    edge_query("MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE k.version IS NULL RETURN x.id, y.id,"),
)
_MATCH_TRIAL_NODE_COUNT = "MATCH (e:Entity) RETURN count(*)"
_MATCH_EDGES_BACKWARDS = "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN offset(id(k))"


class Prints(msgspec.Struct, frozen=True):
    """The prints of all rows in the order of their places."""

    places: np.ndarray[Any, Any]
    table: pa.Table

    @property
    def is_sound(self) -> bool:
        """Whether the engine has met no row twice."""
        return bool((self.places[1:] > self.places[:-1]).all())


class ChangedPlaces(msgspec.Struct, frozen=True):
    """The places of rows that are other than before or gone, and of those that are other or new."""

    before: list[int]
    now: list[int]


def prints(session: DriverSession, kind: RowLookup, columns: Collection[str]) -> Prints:
    """A look at the version and at some more columns of all rows."""
    wanted: list[LiteralString] = [kind.look, *(text for name, text in kind.columns.items() if name in columns)]
    query: LiteralString = ", ".join(wanted)
    table = session.arrow(query)
    places = table.column(0).to_numpy()
    order = np.argsort(places, kind="stable")
    return Prints(places[order], table.take(pa.array(order)).remove_column(0))


def touched(before: Prints, now: Prints) -> ChangedPlaces:
    """Where two looks at the same columns differ."""
    stays, stayed = np.isin(before.places, now.places), np.isin(now.places, before.places)
    was, is_now = before.table.filter(pa.array(stays)), now.table.filter(pa.array(stayed))
    other = np.zeros(was.num_rows, np.bool_)
    for one, two in zip(was.columns, is_now.columns, strict=True):
        other |= differs(one, two).to_numpy().astype(np.bool_)
    changed = before.places[stays][other]
    return ChangedPlaces(
        np.concatenate((before.places[~stays], changed)).tolist(),
        np.concatenate((now.places[~stayed], changed)).tolist(),
    )


def differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where two columns differ; null is a value like others, and a number that is none differs from itself."""
    one_missing = pc.xor(pc.is_null(one), pc.is_null(other))
    return pc.or_(one_missing, pc.fill_null(pc.not_equal(one, other), fill_value=False))


def node_count(session: DriverSession) -> int:
    """How many nodes there are."""
    return session.rows(_MATCH_TRIAL_NODE_COUNT)[0][0]


def rows_at(session: DriverSession, kind: RowLookup, places: Sequence[int]) -> pa.Table:
    """The rows at some places, at least one, with all their columns. Takes longer the more they are."""
    return session.arrow(kind.at.text(session), {"offsets": places})


def rows_without_version(session: DriverSession, kind: RowLookup) -> pa.Table:
    """The rows that a statement has made and given no version."""
    return session.arrow(kind.new.text(session))


def agree(session: DriverSession, edges: Prints) -> bool:
    """Whether the engine meets the same edges from their targets as from their sources: a DETACH may leave some."""
    backwards = np.sort(session.arrow(_MATCH_EDGES_BACKWARDS).column(0).to_numpy())
    return np.array_equal(backwards, edges.places)


MAX_FETCHED_ROWS = 10_000
MAX_COMPARED_PAIRS = 100_000_000
"""So many rows are fetched by their places, and so many rows times places looked through; beyond that all are read."""
_NODE_KEY = ("id",)
_EDGE_KEY = ("source", "target", "relation_type")
_BEFORE = "_before"
_NODE_COLUMN_NAMES = names(NODE.whole)
_EDGE_COLUMN_NAMES = names(EDGE.whole)


class Comparison:
    """One look at what a session has changed since another one began."""

    def __init__(self, session: DriverSession, before: DriverSession, asked: Compare) -> None:
        self._session = session
        self._before = before
        self._asked = asked
        self._is_sound = True

    def difference(self) -> Compared:
        """What is other. Raises Doubtful when the file cannot be relied on, a new one never."""
        reach = self._asked.reach
        nodes, nodes_gone = _compare(*self._tables(NODE_LOOKUP, reach, self._asked.nodes), _NODE_KEY)
        before, now = self._tables(EDGE_LOOKUP, reach, self._asked.edges)
        edges, edges_gone = _compare(before, now, _EDGE_KEY)
        found = Difference(
            nodes=nodes,
            edges=edges,
            nodes_gone=[key[0] for key in nodes_gone],
            edges_gone=[(key[0], key[1], key[2]) for key in edges_gone],
            doubled=_doubled(now),
        )
        return Compared(found, self._is_sound)

    def _tables(self, kind: RowLookup, reach: WriteScope, count: int) -> _Tables:
        """Rows before and after, at least those that differ."""
        names_version = reach.may_name("version")
        if kind is EDGE_LOOKUP and not reach.relations:
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
            is_same = kind is NODE_LOOKUP and not reach.creates and node_count(self._session) == count
            return _nothing(kind) if is_same else self._some(kind, columns, reach, count)
        if reach.creates:
            new = _plain(rows_without_version(self._session, kind), kind)
            return new.slice(0, 0), new
        return _nothing(kind)

    def _some(self, kind: RowLookup, columns: set[str], reach: WriteScope, count: int) -> _Tables:
        before, now = prints(self._before, kind, columns), prints(self._session, kind, columns)
        if not (before.is_sound and now.is_sound and len(before.places) == count and self._agrees(kind, reach, now)):
            self._doubt()
            return self._all(kind)
        found = touched(before, now)
        most = max(len(found.before), len(found.now))
        if most > MAX_FETCHED_ROWS or most * count > MAX_COMPARED_PAIRS:
            return self._all(kind)
        return self._fetched(kind, found) if most else _nothing(kind)

    def _agrees(self, kind: RowLookup, reach: WriteScope, now: Prints) -> bool:
        return kind is NODE_LOOKUP or not reach.deletes or agree(self._session, now)

    def _doubt(self) -> None:
        if not self._asked.new:
            raise Doubtful
        self._is_sound = False

    def _fetched(self, kind: RowLookup, found: ChangedPlaces) -> _Tables:
        if not found.before:
            new = _plain(rows_at(self._session, kind, found.now), kind)
            return new.slice(0, 0), new
        before = _plain(rows_at(self._before, kind, found.before), kind)
        now = _plain(rows_at(self._session, kind, found.now), kind) if found.now else before.slice(0, 0)
        return before, now

    def _all(self, kind: RowLookup) -> _Tables:
        write = copying.write_nodes if kind is NODE_LOOKUP else copying.write_edges
        name = snapshot.NODES_FILE if kind is NODE_LOOKUP else snapshot.EDGES_FILE
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


def _fields(kind: RowLookup) -> tuple[str, ...]:
    return _NODE_COLUMN_NAMES if kind is NODE_LOOKUP else _EDGE_COLUMN_NAMES


def _plain(rows: pa.Table, kind: RowLookup) -> pa.Table:
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


def _nothing(kind: RowLookup) -> _Tables:
    none = pa.table({name: pa.array([], pa.string()) for name in _fields(kind)})
    return none, none


def _doubled(edges: pa.Table) -> list[EdgeKey]:
    counted = edges.group_by(list(_EDGE_KEY)).aggregate([([], "count_all")])
    many = counted.filter(pc.greater(counted["count_all"], 1))
    return [(row["source"], row["target"], row["relation_type"]) for row in many.to_pylist()]
