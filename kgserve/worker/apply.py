"""Applying a net change to the engine in one transaction.

Small sets go row by row through prepared statements (a point look-up in 0.1 ms each), large ones through one scan of an
Arrow table (a fixed cost that grows with the store, 2 to 100 ms at 130,000 nodes, then microseconds a row). The
thresholds are where the two lines cross at that size. Every statement counts the rows it met: an engine that loses one
is found at once, not when somebody misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, LiteralString, TypeVar

from kgserve.arrow import pa
from kgserve.errors import EngineFailed
from kgserve.model.change import NetChange, StoreState
from kgserve.model.digest import to_text
from kgserve.model.rows import EdgeExtras, EdgeKey, EdgeRow, NodeExtras, NodeRow
from kgserve.worker.columns import (
    edges_table,
    engine_time,
    ids_table,
    keys_table,
    nodes_table,
    whole_edges_table,
    whole_nodes_table,
)
from kgserve.worker.session import Session

_Item = TypeVar("_Item")
_Stored = TypeVar("_Stored", NodeRow, EdgeRow)

# One scan holds its rows in the page cache until commit: 364,000 edges at once overflow a cache of 256 MiB.
SCAN_ROWS = 50_000

CREATE_NODE = """
CREATE (e:Entity {id: $i, type: $t, content: $c, attributes: $a, version: $v, sequence: $s, created_at: $m,
                  updated_at: $n}) RETURN count(*)
"""
CREATE_NODES = """
LOAD FROM $rows
CREATE (e:Entity {id: i, type: t, content: c, attributes: a, version: v, sequence: s, created_at: m, updated_at: n})
RETURN count(*)
"""
UPDATE_NODE = """
MATCH (e:Entity {id: $i})
SET e.type = $t, e.content = $c, e.attributes = $a, e.version = $v, e.sequence = $s, e.created_at = $m,
    e.updated_at = $n RETURN count(*)
"""
UPDATE_NODES = """
LOAD FROM $rows MATCH (e:Entity {id: i})
SET e.type = t, e.content = c, e.attributes = a, e.version = v, e.sequence = s, e.created_at = m, e.updated_at = n
RETURN count(*)
"""
_SET_EXTRAS = """e.summary = $u, e.tags = $g, e.freshness_at = $h, e.created_by = $b, e.valid_from = $p,
    e.valid_to = $q, e.conflicts = $k"""
_NO_EXTRAS = """e.summary = NULL, e.tags = NULL, e.freshness_at = NULL, e.created_by = NULL, e.valid_from = NULL,
    e.valid_to = NULL, e.conflicts = NULL"""
CREATE_WHOLE_NODE = """
CREATE (e:Entity {id: $i, type: $t, content: $c, attributes: $a, version: $v, sequence: $s, created_at: $m,
                  updated_at: $n, summary: $u, tags: $g, freshness_at: $h, created_by: $b, valid_from: $p,
                  valid_to: $q, conflicts: $k}) RETURN count(*)
"""
CREATE_WHOLE_NODES = """
LOAD FROM $rows
CREATE (e:Entity {id: i, type: t, content: c, attributes: a, version: v, sequence: s, created_at: m, updated_at: n,
                  summary: u, tags: g, freshness_at: h, created_by: b, valid_from: p, valid_to: q, conflicts: k})
RETURN count(*)
"""
UPDATE_WHOLE_NODE: LiteralString = UPDATE_NODE.replace(" RETURN", f", {_SET_EXTRAS} RETURN")
UPDATE_WHOLE_NODES: LiteralString = UPDATE_NODES.replace("\nRETURN", f", {_SET_EXTRAS.replace('$', '')}\nRETURN")
UPDATE_PLAIN_NODE: LiteralString = UPDATE_NODE.replace(" RETURN", f", {_NO_EXTRAS} RETURN")
UPDATE_PLAIN_NODES: LiteralString = UPDATE_NODES.replace("\nRETURN", f", {_NO_EXTRAS}\nRETURN")
DELETE_NODE = "MATCH (e:Entity {id: $i}) DELETE e RETURN count(*)"
DELETE_NODES = "LOAD FROM $rows MATCH (e:Entity {id: i}) DELETE e RETURN count(*)"
CREATE_EDGE = """
MATCH (x:Entity {id: $f}), (y:Entity {id: $o})
CREATE (x)-[k:RELATES_TO {relation_type: $r, weight: $w, attributes: $a, version: $v, sequence: $s}]->(y)
RETURN count(*)
"""
CREATE_EDGES = """
LOAD FROM $rows MATCH (x:Entity {id: f}) WITH x, o, r, w, a, v, s MATCH (y:Entity {id: o})
CREATE (x)-[k:RELATES_TO {relation_type: r, weight: w, attributes: a, version: v, sequence: s}]->(y)
RETURN count(*)
"""
_EXTRAS = ", ordinal: $d, created_by: $b, valid_from: $p, valid_to: $q}]"
CREATE_WHOLE_EDGE: LiteralString = CREATE_EDGE.replace("}]", _EXTRAS)
CREATE_WHOLE_EDGES: LiteralString = CREATE_EDGES.replace("}]", _EXTRAS.replace("$", "")).replace(
    "WITH x, o, r, w, a, v, s", "WITH x, o, r, w, a, v, s, d, b, p, q"
)
DELETE_EDGE = """
MATCH (x:Entity {id: $f})-[k:RELATES_TO {relation_type: $r}]->(y:Entity {id: $o}) DELETE k RETURN count(*)
"""
DELETE_EDGES = """
LOAD FROM $rows MATCH (x:Entity {id: f})-[k:RELATES_TO {relation_type: r}]->(y:Entity {id: o}) DELETE k RETURN count(*)
"""
COMMITTED = """
CREATE (c:StoreCommit {sequence: $sequence, time: $time, digest: $digest, nodes: $nodes, edges: $edges})
RETURN count(*)
"""


def apply(session: Session, net: NetChange, state: StoreState | None) -> None:
    """Apply a net change and record the state that it leads to, unless it is None, in one transaction.

    Raises an error of `kgserve.errors`; the database must then be dropped, for no rollback is relied on.
    """
    session.run("BEGIN TRANSACTION")
    # An edge that changes is deleted and made again: SET keeps 60 kB of memory a column until the file is replaced. And
    # no edge is read after the first CREATE: in files built by COPY the engine then misreads what is not committed.
    _edges_deleted(session, [*net.edges_deleted, *net.edges_updated])
    _change(session, net.nodes_deleted, 20, DELETE_NODE, lambda i: {"i": i}, DELETE_NODES, ids_table)
    _nodes_created(session, net.nodes_created.values())
    _nodes_updated(session, net)
    _edges_created(session, (*net.edges_created.values(), *net.edges_updated.values()))
    if state is not None:
        record(session, state)
    session.run("COMMIT")


def _nodes_created(session: Session, rows: Iterable[NodeRow]) -> None:
    plain, whole = _parted(rows)
    _change(session, plain, 10, CREATE_NODE, _node, CREATE_NODES, nodes_table)
    _change(session, whole, 10, CREATE_WHOLE_NODE, _whole_node, CREATE_WHOLE_NODES, whole_nodes_table)


def _nodes_updated(session: Session, net: NetChange) -> None:
    # A node that had extras has some still, unless it was deleted and made again.
    cleared = net.remade if session.whole else set[str]()
    remade = [row for node_id, row in net.nodes_updated.items() if node_id in cleared and row.extras is None]
    plain, whole = _parted(row for row in net.nodes_updated.values() if row.extras or row.id not in cleared)
    _change(session, plain, 40, UPDATE_NODE, _node, UPDATE_NODES, nodes_table)
    _change(session, whole, 40, UPDATE_WHOLE_NODE, _whole_node, UPDATE_WHOLE_NODES, whole_nodes_table)
    _change(session, remade, 40, UPDATE_PLAIN_NODE, _node, UPDATE_PLAIN_NODES, nodes_table)


def _edges_created(session: Session, rows: Iterable[EdgeRow]) -> None:
    plain, whole = _parted(rows)
    _change(session, plain, 40, CREATE_EDGE, _edge, CREATE_EDGES, edges_table)
    _change(session, whole, 40, CREATE_WHOLE_EDGE, _whole_edge, CREATE_WHOLE_EDGES, whole_edges_table)


def _parted(rows: Iterable[_Stored]) -> tuple[list[_Stored], list[_Stored]]:
    """Rows without and with extras: most stores have none, and columns cost time."""
    plain: list[_Stored] = []
    whole: list[_Stored] = []
    for row in rows:
        (plain if row.extras is None else whole).append(row)
    return plain, whole


def record(session: Session, state: StoreState) -> None:
    """Store the sequence and what belongs to it, within the caller's transaction."""
    values = {"sequence": state.sequence, "time": state.time, "digest": to_text(state.digest)}
    _expect(1, session.rows(COMMITTED, {**values, "nodes": state.nodes, "edges": state.edges})[0][0])


def _edges_deleted(session: Session, keys: list[EdgeKey]) -> None:
    _change(session, keys, 200, DELETE_EDGE, lambda k: {"f": k[0], "o": k[1], "r": k[2]}, DELETE_EDGES, keys_table)


def _change(
    session: Session,
    items: Iterable[_Item],
    threshold: int,
    one: LiteralString,
    parameters: Callable[[_Item], dict[str, Any]],
    many: LiteralString,
    table: Callable[[list[_Item]], pa.Table],
) -> None:
    for part in _parts(items):
        if len(part) <= threshold:
            met = sum(session.rows(one, parameters(item))[0][0] for item in part)
        else:
            met = session.scan(many, table(part))
        _expect(len(part), met)


def _parts(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while part := list(islice(remaining, SCAN_ROWS)):
        yield part


def _expect(wanted: int, met: int) -> None:
    if met != wanted:
        raise EngineFailed(f"the engine changed {met} rows where {wanted} were due")


def _node(row: NodeRow) -> dict[str, Any]:
    return {
        "i": row.id,
        "t": row.type,
        "c": row.content,
        "a": row.attributes,
        "v": row.version,
        "s": row.sequence,
        "m": engine_time(row.created_at),
        "n": engine_time(row.updated_at),
    }


def _edge(row: EdgeRow) -> dict[str, Any]:
    return {
        "f": row.source,
        "o": row.target,
        "r": row.relation_type,
        "w": row.weight,
        "a": row.attributes,
        "v": row.version,
        "s": row.sequence,
    }


def _whole_node(row: NodeRow) -> dict[str, Any]:
    extras = row.extras or NodeExtras()
    return {
        **_node(row),
        "u": extras.summary or None,
        "g": list(extras.tags) or None,
        "h": _time(extras.freshness_at),
        "b": extras.created_by,
        "p": _time(extras.valid_from),
        "q": _time(extras.valid_to),
        "k": list(extras.conflicts) or None,
    }


def _whole_edge(row: EdgeRow) -> dict[str, Any]:
    extras = row.extras or EdgeExtras()
    return {
        **_edge(row),
        "d": extras.ordinal,
        "b": extras.created_by,
        "p": _time(extras.valid_from),
        "q": _time(extras.valid_to),
    }


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else engine_time(microseconds)
