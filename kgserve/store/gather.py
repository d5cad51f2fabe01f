"""The rows that a group of batches meets."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Workspace
from kgserve.rows.snapshot import Rows


def gather(rows: Rows, batches: Iterable[WriteBatch]) -> Workspace:
    """A workspace with everything that planning these batches asks for. Raises RowsDamaged."""
    workspace = Workspace()
    batches = list(batches)
    deleted = {node_id for batch in batches for node_id in batch.delete_nodes}
    named = deleted.union(*({put.id for put in batch.nodes} for batch in batches))
    keys = {put.key for batch in batches for put in batch.edges}.union(*(batch.delete_edges for batch in batches))
    ends = ({key[0] for key in keys} | {key[1] for key in keys}) - named
    rows.base.look_up(named | ends)
    workspace.nodes = rows.nodes(named)
    workspace.present = workspace.nodes.keys() | {node_id for node_id in ends if rows.has(node_id)}
    workspace.edges = {**rows.edges([*keys])}
    # A node that is deleted may be given edges by an earlier batch of the same group.
    for node_id in deleted:
        incident = {row.key: row for row in (*rows.outgoing(node_id), *rows.incoming(node_id))}
        workspace.edges.update(incident)
        workspace.incident[node_id] = set(incident)
    return workspace
