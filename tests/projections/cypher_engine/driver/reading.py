"""All rows of an engine; relations are read from both ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from kgserve.projections.cypher_engine.engine.engine_handle import EngineProcessSession
from kgserve.storage.journal import snapshot
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow

_INCOMING = """
MATCH (y:Entity)<-[k:RELATES_TO]-(x:Entity)
RETURN x.id, y.id, k.relation_type, k.weight, k.attributes, k.version, k.sequence
"""


class Contents(msgspec.Struct):
    """Rows of an engine; ``incoming`` are edges as read at their targets, without extras."""

    state: StoreState
    nodes: list[NodeRow]
    outgoing: list[EdgeRow]
    incoming: list[EdgeRow]

    def node(self, node_id: str) -> NodeRow:
        """Return the node with an id."""
        return next(row for row in self.nodes if row.id == node_id)


def contents(session: EngineProcessSession) -> Contents:
    """Return all rows of the engine; no write may be in progress."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = session.dump(folder)
        nodes, edges = list(snapshot.read_snapshot_nodes(folder)), list(snapshot.read_snapshot_edges(folder))
    return Contents(state, nodes, edges, [EdgeRow(*values) for values in session.rows(_INCOMING)])
