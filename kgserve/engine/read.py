"""Reading rows: by key for the writer and for callers, and all of them for snapshots and checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from kgserve.engine import projection
from kgserve.engine.columns import edge_row, edge_rows, ids_table, keys_table, node_row, node_rows
from kgserve.engine.session import Session
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow

# Above these numbers one scan is cheaper than a look-up (0.12 ms) for each key, measured at 130,000 nodes.
LOOKUP_NODES = 250
LOOKUP_EDGES = 300

NODE = projection.nodes("MATCH (e:Entity {id: $i}) RETURN")
NODES = projection.nodes("LOAD FROM $rows MATCH (e:Entity {id: i}) RETURN")
PRESENT = "MATCH (e:Entity {id: $i}) RETURN e.id"
ALL_PRESENT = "LOAD FROM $rows MATCH (e:Entity {id: i}) RETURN e.id"
EDGE = projection.edges(
    "MATCH (x:Entity {id: $f})-[k:RELATES_TO {relation_type: $r}]->(y:Entity {id: $o}) RETURN x.id, y.id,"
)
EDGES = projection.edges(
    "LOAD FROM $rows MATCH (x:Entity {id: f})-[k:RELATES_TO {relation_type: r}]->(y:Entity {id: o}) RETURN x.id, y.id,"
)
OUTGOING = projection.edges("MATCH (x:Entity {id: $i})-[k:RELATES_TO]->(y:Entity) RETURN x.id, y.id,")
INCOMING = projection.edges("MATCH (y:Entity {id: $i})<-[k:RELATES_TO]-(x:Entity) RETURN x.id, y.id,")
# A limit must be a literal; one more than is shown tells whether there are more.
MAX_SHOWN = 1000
OUTGOING_SHOWN, INCOMING_SHOWN = OUTGOING.limited(" LIMIT 1001"), INCOMING.limited(" LIMIT 1001")
STATE = """
MATCH (c:StoreCommit) RETURN c.sequence, c.time, c.digest, c.nodes, c.edges ORDER BY c.sequence DESC LIMIT 1
"""


def state(session: Session) -> StoreState:
    """The state of the last commit in the engine. Looks at every commit since the file was made."""
    rows = session.rows(STATE)
    if not rows:
        return StoreState()
    sequence, time, digest, nodes, edges = rows[0]
    return StoreState(sequence, time, from_text(digest), nodes, edges)


def find_nodes(session: Session, ids: Collection[str]) -> Iterator[NodeRow]:
    """The nodes among ``ids`` that exist, in no order."""
    if len(ids) > LOOKUP_NODES:
        return node_rows(projection.arrow(session, NODES, {"rows": ids_table(ids)}))
    return (node_row(values) for node_id in ids for values in projection.rows(session, NODE, {"i": node_id}))


def find_present(session: Session, ids: Collection[str]) -> list[str]:
    """The ids among ``ids`` that exist, in no order."""
    if len(ids) > LOOKUP_NODES:
        return session.arrow(ALL_PRESENT, {"rows": ids_table(ids)}).column(0).to_pylist()
    return [node_id for node_id in ids if session.rows(PRESENT, {"i": node_id})]


def find_edges(session: Session, keys: Collection[EdgeKey]) -> Iterator[EdgeRow]:
    """The edges among ``keys`` that exist, in no order."""
    if len(keys) > LOOKUP_EDGES:
        return edge_rows(projection.arrow(session, EDGES, {"rows": keys_table(keys)}))
    return (
        edge_row(values)
        for source, target, relation_type in keys
        for values in projection.rows(session, EDGE, {"f": source, "o": target, "r": relation_type})
    )


def outgoing(session: Session, node_id: str) -> list[EdgeRow]:
    """All edges that start at a node."""
    return [edge_row(values) for values in projection.rows(session, OUTGOING, {"i": node_id})]


def incoming(session: Session, node_id: str) -> list[EdgeRow]:
    """All edges that end at a node."""
    return [edge_row(values) for values in projection.rows(session, INCOMING, {"i": node_id})]


def relation_type_counts(session: Session) -> list[tuple[str, int]]:
    """Every relation type with the number of its edges."""
    rows = session.rows("MATCH (:Entity)-[k:RELATES_TO]->(:Entity) RETURN k.relation_type, count(*)")
    return [(name, count) for name, count in rows]


_DATED = (
    "MATCH (e:Entity) WHERE e.valid_from IS NOT NULL OR e.valid_to IS NOT NULL RETURN 1 LIMIT 1",
    "MATCH ()-[k:RELATES_TO]->() WHERE k.valid_from IS NOT NULL OR k.valid_to IS NOT NULL RETURN 1 LIMIT 1",
)


def are_dated(session: Session) -> bool:
    """Whether a row says from when or until when it is true, in a file with columns for that. Reads all of them."""
    return any(session.rows(query) for query in _DATED)


# One query for both directions takes hardly longer than one for one of them.
NEIGHBOURS = "MATCH (x:Entity {id: $i})-[k:RELATES_TO]-(y:Entity) RETURN y.id, k.weight LIMIT 33"


def neighbours(session: Session, ids: Collection[str]) -> dict[str, list[tuple[str, float]]]:
    """The other ends of each entity's edges, in either direction, with their weights; at most 33 each."""
    return {node_id: [(end, weight) for end, weight in session.rows(NEIGHBOURS, {"i": node_id})] for node_id in ids}


def some_outgoing(session: Session, node_id: str) -> list[EdgeRow]:
    """Edges that start at a node, at most 1,001."""
    return [edge_row(values) for values in projection.rows(session, OUTGOING_SHOWN, {"i": node_id})]


def some_incoming(session: Session, node_id: str) -> list[EdgeRow]:
    """Edges that end at a node, at most 1,001."""
    return [edge_row(values) for values in projection.rows(session, INCOMING_SHOWN, {"i": node_id})]


class NodeView(msgspec.Struct, frozen=True):
    """A node with up to 1,000 edges in each direction; ``truncated`` when there are more."""

    node: NodeRow
    outgoing: list[EdgeRow]
    incoming: list[EdgeRow]
    truncated: bool


def view(session: Session, node_id: str) -> NodeView | None:
    """A node and its edges from one snapshot."""
    session.run("BEGIN TRANSACTION READ ONLY")
    found = projection.rows(session, NODE, {"i": node_id})
    starting = projection.rows(session, OUTGOING_SHOWN, {"i": node_id})
    ending = projection.rows(session, INCOMING_SHOWN, {"i": node_id})
    session.run("COMMIT")
    if not found:
        return None
    out, into = ([edge_row(values) for values in rows[:MAX_SHOWN]] for rows in (starting, ending))
    return NodeView(node_row(found[0]), out, into, max(len(starting), len(ending)) > MAX_SHOWN)


def whole_view(session: Session, node_id: str) -> NodeView | None:
    """A node and all its edges, however many."""
    session.run("BEGIN TRANSACTION READ ONLY")
    found = projection.rows(session, NODE, {"i": node_id})
    starting, ending = outgoing(session, node_id), incoming(session, node_id)
    session.run("COMMIT")
    return NodeView(node_row(found[0]), starting, ending, truncated=False) if found else None
