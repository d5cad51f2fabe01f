"""All rows of an engine, relations read from both of their ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from kgserve.projections.cypher_engine.engine.engine import Session
from kgserve.storage.journal import snapshot
from kgserve.storage.model.change import StoreState
from kgserve.storage.model.rows import EdgeRow, NodeRow

_INCOMING = """
MATCH (y:Entity)<-[k:RELATES_TO]-(x:Entity)
RETURN x.id, y.id, k.relation_type, k.weight, k.attributes, k.version, k.sequence
"""


class Contents(msgspec.Struct):
    """``incoming`` are edges as they are met at their targets, without extras."""

    state: StoreState
    nodes: list[NodeRow]
    outgoing: list[EdgeRow]
    incoming: list[EdgeRow]

    def node(self, node_id: str) -> NodeRow:
        """The node of an id."""
        return next(row for row in self.nodes if row.id == node_id)


def contents(session: Session) -> Contents:
    """What the engine holds; nobody may write meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = session.dump(folder)
        nodes, edges = list(snapshot.read_nodes(folder)), list(snapshot.read_edges(folder))
    return Contents(state, nodes, edges, [EdgeRow(*values) for values in session.rows(_INCOMING)])
