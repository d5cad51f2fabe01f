"""Application of a net change to the engine in one transaction.

Small sets use prepared statements, one row at a time. Large sets use one scan of an Arrow table. The thresholds are the
break-even points at about 130,000 nodes. Each statement counts the rows that it changed, so a row lost by the engine is
detected immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, LiteralString

import msgspec

from kgserve.errors import EngineFailed
from kgserve.platform.lazy_pyarrow import pa
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.driver.row_to_engine_conversion import microseconds_to_naive_utc, to_arrow_column
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    EDGE_ENDPOINTS,
    INTEGER_LIST_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    NodeEdgeColumnSet,
    RowField,
    RowFieldGroups,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_column_values,
    get_column_set_for_extras,
    node_column_values,
)
from kgserve.storage.model.store_rows_digest import format_store_rows_digest

# A scan keeps its rows in the page cache until commit: 364,000 edges overflow 256 MiB.
SCAN_BATCH_ROWS = 50_000


class _RowChange:
    """Single-row and table statements for one kind of row change.

    Sets larger than ``threshold`` use the table statement. Parameters and columns are the field names with ``_``
    appended, because they share the scope of the statement's variables.
    """

    def __init__(
        self,
        fields: tuple[RowField, ...],
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
        """Return the parameters of the single-row statement."""
        parameters = dict(zip(self._names, self._values(item), strict=True))
        for name in self._converted:
            value = parameters[name]
            if value is not None:
                parameters[name] = microseconds_to_naive_utc(value) if isinstance(value, int) else list(value)
        return parameters

    def table(self, items: list[Any]) -> pa.Table:
        """Return the Arrow table for the table statement."""
        columns = zip(self._names, self._fields, zip(*map(self._values, items), strict=True), strict=True)
        return pa.table({name: to_arrow_column(field, values) for name, field, values in columns})


def _properties(fields: tuple[RowField, ...], sign: LiteralString) -> LiteralString:
    return ", ".join(f"{field.name}: {sign}{field.name}_" for field in fields)


def _create_nodes_change(fields: tuple[RowField, ...], values: Callable[[NodeRow], Sequence[Any]]) -> _RowChange:
    def text(sign: LiteralString) -> LiteralString:
        return f"CREATE (e:Entity {{{_properties(fields, sign)}}}) RETURN count(*)"

    return _RowChange(fields, values, text("$"), f"LOAD FROM $rows {text('')}", 10)


def _update_nodes_change(fields: tuple[RowField, ...], values: Callable[[NodeRow], Sequence[Any]]) -> _RowChange:
    def text(sign: LiteralString) -> LiteralString:
        assigned: LiteralString = ", ".join(f"e.{field.name} = {sign}{field.name}_" for field in fields[1:])
        return f"MATCH (e:Entity {{id: {sign}id_}}) SET {assigned} RETURN count(*)"

    return _RowChange(fields, values, text("$"), f"LOAD FROM $rows {text('')}", 40)


def _create_edges_change(
    fields: tuple[RowField, ...],
    values: Callable[[EdgeRow], Sequence[Any]],
    kind: LiteralString = "RELATES_TO",
    far: LiteralString = "Entity {id: ",
) -> _RowChange:
    def text(sign: LiteralString) -> LiteralString:
        return f"CREATE (x)-[k:{kind} {{{_properties(fields[EDGE_ENDPOINTS:], sign)}}}]->(y) RETURN count(*)"

    one: LiteralString = f"MATCH (x:Entity {{id: $source_}}), (y:{far}$target_}}) {text('$')}"
    columns: LiteralString = ", ".join(f"{field.name}_" for field in fields[1:])
    begun: LiteralString = f"LOAD FROM $rows MATCH (x:Entity {{id: source_}}) WITH x, {columns}"
    return _RowChange(fields, values, one, f"{begun} MATCH (y:{far}target_}}) {text('')}", 40)


def _delete_edges_change(kind: LiteralString = "RELATES_TO", far: LiteralString = "Entity {id: ") -> _RowChange:
    def text(sign: LiteralString) -> LiteralString:
        near: LiteralString = f"(x:Entity {{id: {sign}source_}})-[k:{kind} {{relation_type: {sign}relation_type_}}]"
        return f"MATCH {near}->(y:{far}{sign}target_}}) DELETE k RETURN count(*)"

    return _RowChange(EDGE.plain[: EDGE_ENDPOINTS + 1], tuple, text("$"), f"LOAD FROM $rows {text('')}", 200)


def _value_getter(fields: RowFieldGroups, width: NodeEdgeColumnSet) -> Callable[[Any], Sequence[Any]]:
    """Return a function that extracts the values of a row for the columns of ``width``."""
    if width is NodeEdgeColumnSet.PLAIN:
        return attrgetter(*get_row_field_names(fields.plain))
    values, count = (node_column_values if fields is NODE else edge_column_values), len(fields.columns(width))
    return lambda row: values(msgspec.structs.astuple(row))[:count]


_CREATE_NODES = [_create_nodes_change(NODE.columns(width), _value_getter(NODE, width)) for width in NodeEdgeColumnSet]
_UPDATE_NODES = [_update_nodes_change(NODE.columns(width), _value_getter(NODE, width)) for width in NodeEdgeColumnSet]
_DELETE_NODES = _RowChange(
    NODE.plain[:1],
    lambda node_id: (node_id,),
    "MATCH (e:Entity {id: $id_}) DELETE e RETURN count(*)",
    "LOAD FROM $rows MATCH (e:Entity {id: id_}) DELETE e RETURN count(*)",
    20,
)
_CREATE_EDGES = [_create_edges_change(EDGE.columns(width), _value_getter(EDGE, width)) for width in NodeEdgeColumnSet]
_DELETE_EDGES = _delete_edges_change()
# A link is an edge whose target is the key of an `Elsewhere` node.
_LINK_PATTERN: tuple[LiteralString, LiteralString] = ("LINKS_TO", "Elsewhere {key: ")
_CREATE_LINKS = _create_edges_change(
    EDGE.columns(NodeEdgeColumnSet.LINKS), _value_getter(EDGE, NodeEdgeColumnSet.LINKS), *_LINK_PATTERN
)
_DELETE_LINKS = _delete_edges_change(*_LINK_PATTERN)
_LINK_TARGET_FIELDS = (
    RowField("key", STRING_TYPE, ""),
    RowField("store", STRING_TYPE, ""),
    RowField("id", STRING_TYPE, ""),
)
_MERGE_LINK_TARGETS = _RowChange(
    _LINK_TARGET_FIELDS,
    tuple,
    f"MERGE (y:Elsewhere {{{_properties(_LINK_TARGET_FIELDS, '$')}}}) RETURN count(*)",
    f"LOAD FROM $rows MERGE (y:Elsewhere {{{_properties(_LINK_TARGET_FIELDS, '')}}}) RETURN count(*)",
    40,
)
_DELETE_UNLINKED_TARGET = """
MATCH (y:Elsewhere {key: $key_}) WHERE NOT EXISTS { MATCH (:Entity)-[:LINKS_TO]->(y) } DELETE y
"""
CREATE_STORE_COMMIT = """
CREATE (c:StoreCommit {sequence: $sequence, time: $time, digest: $digest, nodes: $nodes, edges: $edges})
RETURN count(*)
"""


def apply_net_change_to_engine(session: PreparedStatementSession, net: NetChange, state: StoreState | None) -> None:
    """Apply a net change and record ``state``, unless it is None, in one transaction.

    Raises an error from `kgserve.errors`. The caller must then discard the database: rollback is not relied on.
    """
    session.run("BEGIN TRANSACTION")
    # Changed edges are deleted and recreated: SET keeps 60 kB per column until the file is replaced. No edge is read
    # after the first CREATE: in files built by COPY the engine misreads uncommitted rows.
    _change(session, (*net.edges_deleted, *net.edges_updated), _DELETE_EDGES)
    _delete_links(session, net)
    _change(session, net.nodes_deleted, _DELETE_NODES)
    _create_nodes(session, net.nodes_created.values())
    _update_nodes(session, net)
    _create_edges(session, (*net.edges_created.values(), *net.edges_updated.values()))
    _create_links(session, (*net.links_created.values(), *net.links_updated.values()))
    if state is not None:
        record_engine_commit_state(session, state)
    session.run("COMMIT")


def _create_nodes(session: PreparedStatementSession, rows: Iterable[NodeRow]) -> None:
    _by_width(session, ((get_column_set_for_extras(row.extras), row) for row in rows), _CREATE_NODES)


def _update_nodes(session: PreparedStatementSession, net: NetChange) -> None:
    # A node that lost some extras still has others, or is listed in `net.remade`.
    def width(row: NodeRow) -> NodeEdgeColumnSet:
        return NodeEdgeColumnSet.PLAIN if row.extras is None and row.id not in net.remade else session.width

    _by_width(session, ((width(row), row) for row in net.nodes_updated.values()), _UPDATE_NODES)


def _create_edges(session: PreparedStatementSession, rows: Iterable[EdgeRow]) -> None:
    _by_width(session, ((get_column_set_for_extras(row.extras), row) for row in rows), _CREATE_EDGES)


def _delete_links(session: PreparedStatementSession, net: NetChange) -> None:
    """Delete links, and `Elsewhere` nodes without any remaining link."""
    keys = (*net.links_deleted, *net.links_updated)
    _change(session, map(_as_edge, keys), _DELETE_LINKS)
    for key in {_link_target_key(key) for key in keys} - {
        _link_target_key(key) for key in (*net.links_created, *net.links_updated)
    }:
        session.rows(_DELETE_UNLINKED_TARGET, {"key_": key})


def _create_links(session: PreparedStatementSession, rows: Sequence[CrossStoreLinkRow]) -> None:
    ends = {_link_target_key(row.key): (row.store, row.edge.target) for row in rows}
    _change(session, ((key, *end) for key, end in ends.items()), _MERGE_LINK_TARGETS)
    edges = [msgspec.structs.replace(row.edge, target=_link_target_key(row.key)) for row in rows]
    _change(session, edges, _CREATE_LINKS)


def _link_target_key(key: CrossStoreLinkKey) -> str:
    """Return the key of a node in another store; store names contain no slash."""
    return f"{key.store}/{key.edge[1]}"


def _as_edge(key: CrossStoreLinkKey) -> EdgeKey:
    source, _, relation_type = key.edge
    return source, _link_target_key(key), relation_type


def _by_width(
    session: PreparedStatementSession,
    rows: Iterable[tuple[NodeEdgeColumnSet, NodeRow | EdgeRow]],
    changes: Sequence[_RowChange],
) -> None:
    """Apply a change to rows grouped by the columns they need; most rows have no extras and writing columns is slow."""
    parts: list[list[NodeRow | EdgeRow]] = [[] for _ in changes]
    for width, row in rows:
        parts[width].append(row)
    for part, change in zip(parts, changes, strict=True):
        _change(session, part, change)


def record_engine_commit_state(session: PreparedStatementSession, state: StoreState) -> None:
    """Record the state in the StoreCommit table, within the caller's transaction."""
    values = {"sequence": state.sequence, "time": state.time, "digest": format_store_rows_digest(state.digest)}
    _expect(1, session.rows(CREATE_STORE_COMMIT, {**values, "nodes": state.nodes, "edges": state.edges})[0][0])


def _change(session: PreparedStatementSession, items: Iterable[Any], change: _RowChange) -> None:
    for part in _parts(items):
        if len(part) <= change.threshold:
            changed_rows = sum(session.rows(change.one, change.parameters(item))[0][0] for item in part)
        else:
            changed_rows = session.scan(change.many, change.table(part))
        _expect(len(part), changed_rows)


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(items)
    while part := list(islice(remaining, SCAN_BATCH_ROWS)):
        yield part


def _expect(wanted: int, changed_rows: int) -> None:
    if changed_rows != wanted:
        raise EngineFailed(f"the engine changed {changed_rows} rows where {wanted} were expected")
