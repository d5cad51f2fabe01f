"""Reading the rows that a group of batches meets."""

from __future__ import annotations

from collections.abc import Iterable

from kgserve.engine import read
from kgserve.engine.session import Session
from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Workspace
from kgserve.model.rows import EdgeKey


def gather(session: Session, batches: Iterable[WriteBatch], *, has_edges: bool) -> Workspace:
    """A workspace with everything that planning these batches asks for."""
    workspace = Workspace()
    batches = list(batches)
    deleted = {node_id for batch in batches for node_id in batch.delete_nodes}
    named = deleted.union(*({put.id for put in batch.nodes} for batch in batches))
    keys = _edge_keys(batches)
    ends = ({key[0] for key in keys} | {key[1] for key in keys}) - named
    workspace.nodes = {row.id: row for row in read.find_nodes(session, named)}
    workspace.present = workspace.nodes.keys() | read.find_present(session, ends)
    # A node that is deleted may be given edges by an earlier batch of the same group.
    workspace.incident = {node_id: set[EdgeKey]() for node_id in deleted}
    if has_edges:
        _gather_edges(session, workspace, keys, deleted)
    return workspace


def _gather_edges(session: Session, workspace: Workspace, keys: set[EdgeKey], deleted: set[str]) -> None:
    # An edge can only be there if both its ends are: new nodes cost no look-up.
    present = workspace.present
    possible = [key for key in keys if key[0] in present and key[1] in present] if present else []
    workspace.edges = {row.key: row for row in read.find_edges(session, possible)}
    for node_id in deleted:
        incident = {row.key: row for row in (*read.outgoing(session, node_id), *read.incoming(session, node_id))}
        workspace.edges.update(incident)
        workspace.incident[node_id] = set(incident)


def _edge_keys(batches: list[WriteBatch]) -> set[EdgeKey]:
    keys = {put.key for batch in batches for put in batch.edges}
    return keys.union(*(batch.delete_edges for batch in batches))
