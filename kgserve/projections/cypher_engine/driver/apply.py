"""Applying a net change to the engine in one transaction.

Small sets go row by row through prepared statements (a point look-up in 0.1 ms each), large ones through one scan of an
Arrow table (a fixed cost that grows with the store, 2 to 100 ms at 130,000 nodes, then microseconds a row). The
thresholds are where the two lines cross at that size. Every statement counts the rows it met: an engine that loses one
is found at once, not when somebody misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, LiteralString

import msgspec

from kgserve.errors import EngineFailed
from kgserve.platform.lazy_pyarrow import pa
from kgserve.projections.cypher_engine.driver.columns import arrow_array, engine_time
from kgserve.projections.cypher_engine.driver.session import DriverSession
from kgserve.storage.model.change import NetChange, StoreState
from kgserve.storage.model.digest import to_text
from kgserve.storage.model.fields import (
    EDGE,
    EDGE_ENDPOINTS,
    INTEGER_LIST_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    ColumnSet,
    Field,
    Fields,
    names,
)
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow, edge_values, node_values, width_of

# One scan holds its rows in the page cache until commit: 364,000 edges at once overflow a cache of 256 MiB.
SCAN_ROWS = 50_000


class _Change:
    """A change of rows: a statement for one, one for a table of more than ``threshold``, and what they take of a row.

    Their parameters and columns are called as the fields with ``_`` behind: they enter the scope of the statement.
    """

    def __init__(
        self,
        fields: tuple[Field, ...],
        values: Callable[[Any], Sequence[Any]],
        one: LiteralString,
        many: LiteralString,
        threshold: int,
    ) -> None:
        self.one: LiteralString = one
        self.many: LiteralString = many
        self.threshold = threshold
        self._fields, self._values = fields, values
        self._names = [f"{field.name}_" for field in fields]
        self._converted = [
            f"{field.name}_" for field in fields if field.type in {TIMESTAMP_TYPE, STRING_LIST_TYPE, INTEGER_LIST_TYPE}
        ]

    def parameters(self, item: Any) -> dict[str, Any]:
        """The parameters of the statement for one."""
        parameters = dict(zip(self._names, self._values(item), strict=True))
        for name in self._converted:
            value = parameters[name]
            if value is not None:
                parameters[name] = engine_time(value) if isinstance(value, int) else list(value)
        return parameters

    def table(self, items: list[Any]) -> pa.Table:
        """The table of the statement for many."""
        columns = zip(self._names, self._fields, zip(*map(self._values, items), strict=True), strict=True)
        return pa.table({name: arrow_array(field, values) for name, field, values in columns})


def _properties(fields: tuple[Field, ...], sign: LiteralString) -> LiteralString:
    return ", ".join(f"{field.name}: {sign}{field.name}_" for field in fields)


def _creating_nodes(fields: tuple[Field, ...], values: Callable[[NodeRow], Sequence[Any]]) -> _Change:
    def text(sign: LiteralString) -> LiteralString:
        return f"CREATE (e:Entity {{{_properties(fields, sign)}}}) RETURN count(*)"

    return _Change(fields, values, text("$"), f"LOAD FROM $rows {text('')}", 10)


def _updating_nodes(fields: tuple[Field, ...], values: Callable[[NodeRow], Sequence[Any]]) -> _Change:
    def text(sign: LiteralString) -> LiteralString:
        assigned: LiteralString = ", ".join(f"e.{field.name} = {sign}{field.name}_" for field in fields[1:])
        return f"MATCH (e:Entity {{id: {sign}id_}}) SET {assigned} RETURN count(*)"

    return _Change(fields, values, text("$"), f"LOAD FROM $rows {text('')}", 40)


def _creating_edges(
    fields: tuple[Field, ...],
    values: Callable[[EdgeRow], Sequence[Any]],
    kind: LiteralString = "RELATES_TO",
    far: LiteralString = "Entity {id: ",
) -> _Change:
    def text(sign: LiteralString) -> LiteralString:
        return f"CREATE (x)-[k:{kind} {{{_properties(fields[EDGE_ENDPOINTS:], sign)}}}]->(y) RETURN count(*)"

    one: LiteralString = f"MATCH (x:Entity {{id: $source_}}), (y:{far}$target_}}) {text('$')}"
    columns: LiteralString = ", ".join(f"{field.name}_" for field in fields[1:])
    begun: LiteralString = f"LOAD FROM $rows MATCH (x:Entity {{id: source_}}) WITH x, {columns}"
    return _Change(fields, values, one, f"{begun} MATCH (y:{far}target_}}) {text('')}", 40)


def _deleting_edges(kind: LiteralString = "RELATES_TO", far: LiteralString = "Entity {id: ") -> _Change:
    def text(sign: LiteralString) -> LiteralString:
        near: LiteralString = f"(x:Entity {{id: {sign}source_}})-[k:{kind} {{relation_type: {sign}relation_type_}}]"
        return f"MATCH {near}->(y:{far}{sign}target_}}) DELETE k RETURN count(*)"

    return _Change(EDGE.plain[: EDGE_ENDPOINTS + 1], tuple, text("$"), f"LOAD FROM $rows {text('')}", 200)


def _values(fields: Fields, width: ColumnSet) -> Callable[[Any], Sequence[Any]]:
    """What gives the values of a row's columns of a width."""
    if width is ColumnSet.PLAIN:
        return attrgetter(*names(fields.plain))
    values, count = (node_values if fields is NODE else edge_values), len(fields.columns(width))
    return lambda row: values(msgspec.structs.astuple(row))[:count]


_CREATE_NODES = [_creating_nodes(NODE.columns(width), _values(NODE, width)) for width in ColumnSet]
_UPDATE_NODES = [_updating_nodes(NODE.columns(width), _values(NODE, width)) for width in ColumnSet]
_DELETE_NODES = _Change(
    NODE.plain[:1],
    lambda node_id: (node_id,),
    "MATCH (e:Entity {id: $id_}) DELETE e RETURN count(*)",
    "LOAD FROM $rows MATCH (e:Entity {id: id_}) DELETE e RETURN count(*)",
    20,
)
_CREATE_EDGES = [_creating_edges(EDGE.columns(width), _values(EDGE, width)) for width in ColumnSet]
_DELETE_EDGES = _deleting_edges()
# A link is made as an edge whose target is the key of what it leads to.
_LINK_PATTERN: tuple[LiteralString, LiteralString] = ("LINKS_TO", "Elsewhere {key: ")
_CREATE_LINKS = _creating_edges(EDGE.columns(ColumnSet.LINKS), _values(EDGE, ColumnSet.LINKS), *_LINK_PATTERN)
_DELETE_LINKS = _deleting_edges(*_LINK_PATTERN)
_LINK_TARGET_FIELDS = (Field("key", STRING_TYPE, ""), Field("store", STRING_TYPE, ""), Field("id", STRING_TYPE, ""))
_MERGE_LINK_TARGETS = _Change(
    _LINK_TARGET_FIELDS,
    tuple,
    f"MERGE (y:Elsewhere {{{_properties(_LINK_TARGET_FIELDS, '$')}}}) RETURN count(*)",
    f"LOAD FROM $rows MERGE (y:Elsewhere {{{_properties(_LINK_TARGET_FIELDS, '')}}}) RETURN count(*)",
    40,
)
_DELETE_UNLINKED_TARGET = """
MATCH (y:Elsewhere {key: $key_}) WHERE NOT EXISTS { MATCH (:Entity)-[:LINKS_TO]->(y) } DELETE y
"""
COMMITTED = """
CREATE (c:StoreCommit {sequence: $sequence, time: $time, digest: $digest, nodes: $nodes, edges: $edges})
RETURN count(*)
"""


def apply(session: DriverSession, net: NetChange, state: StoreState | None) -> None:
    """Apply a net change and record the state that it leads to, unless it is None, in one transaction.

    Raises an error of `kgserve.errors`; the database must then be dropped, for no rollback is relied on.
    """
    session.run("BEGIN TRANSACTION")
    # An edge that changes is deleted and made again: SET keeps 60 kB of memory a column until the file is replaced. And
    # no edge is read after the first CREATE: in files built by COPY the engine then misreads what is not committed.
    _change(session, (*net.edges_deleted, *net.edges_updated), _DELETE_EDGES)
    _links_deleted(session, net)
    _change(session, net.nodes_deleted, _DELETE_NODES)
    _nodes_created(session, net.nodes_created.values())
    _nodes_updated(session, net)
    _edges_created(session, (*net.edges_created.values(), *net.edges_updated.values()))
    _links_created(session, (*net.links_created.values(), *net.links_updated.values()))
    if state is not None:
        record(session, state)
    session.run("COMMIT")


def _nodes_created(session: DriverSession, rows: Iterable[NodeRow]) -> None:
    _by_width(session, ((width_of(row.extras), row) for row in rows), _CREATE_NODES)


def _nodes_updated(session: DriverSession, net: NetChange) -> None:
    # A node that had extras has some still, but perhaps fewer; or it was deleted and made again.
    def width(row: NodeRow) -> ColumnSet:
        return ColumnSet.PLAIN if row.extras is None and row.id not in net.remade else session.width

    _by_width(session, ((width(row), row) for row in net.nodes_updated.values()), _UPDATE_NODES)


def _edges_created(session: DriverSession, rows: Iterable[EdgeRow]) -> None:
    _by_width(session, ((width_of(row.extras), row) for row in rows), _CREATE_EDGES)


def _links_deleted(session: DriverSession, net: NetChange) -> None:
    """Take links away, and what no link leads to any more."""
    keys = (*net.links_deleted, *net.links_updated)
    _change(session, map(_as_edge, keys), _DELETE_LINKS)
    for key in {_far_key(key) for key in keys} - {_far_key(key) for key in (*net.links_created, *net.links_updated)}:
        session.rows(_DELETE_UNLINKED_TARGET, {"key_": key})


def _links_created(session: DriverSession, rows: Sequence[LinkRow]) -> None:
    ends = {_far_key(row.key): (row.store, row.edge.target) for row in rows}
    _change(session, ((key, *end) for key, end in ends.items()), _MERGE_LINK_TARGETS)
    edges = [msgspec.structs.replace(row.edge, target=_far_key(row.key)) for row in rows]
    _change(session, edges, _CREATE_LINKS)


def _far_key(key: LinkKey) -> str:
    """What one node in another store is known by: no name of a store has a slash."""
    return f"{key.store}/{key.edge[1]}"


def _as_edge(key: LinkKey) -> EdgeKey:
    source, _, relation_type = key.edge
    return source, _far_key(key), relation_type


def _by_width(
    session: DriverSession, rows: Iterable[tuple[ColumnSet, NodeRow | EdgeRow]], changes: Sequence[_Change]
) -> None:
    """Make a change of rows, each with the columns that it needs: most rows have no extras, and columns cost time."""
    parts: list[list[NodeRow | EdgeRow]] = [[] for _ in changes]
    for width, row in rows:
        parts[width].append(row)
    for part, change in zip(parts, changes, strict=True):
        _change(session, part, change)


def record(session: DriverSession, state: StoreState) -> None:
    """Store the sequence and what belongs to it, within the caller's transaction."""
    values = {"sequence": state.sequence, "time": state.time, "digest": to_text(state.digest)}
    _expect(1, session.rows(COMMITTED, {**values, "nodes": state.nodes, "edges": state.edges})[0][0])


def _change(session: DriverSession, items: Iterable[Any], change: _Change) -> None:
    for part in _parts(items):
        if len(part) <= change.threshold:
            met = sum(session.rows(change.one, change.parameters(item))[0][0] for item in part)
        else:
            met = session.scan(change.many, change.table(part))
        _expect(len(part), met)


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while part := list(islice(remaining, SCAN_ROWS)):
        yield part


def _expect(wanted: int, met: int) -> None:
    if met != wanted:
        raise EngineFailed(f"the engine changed {met} rows where {wanted} were due")
