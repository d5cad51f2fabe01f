"""Deleting one node with its edges, or one edge."""

from __future__ import annotations

from concurrent.futures import Future

from kgserve.model.answers import DeleteEdgeAnswer, DeleteNodeAnswer
from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Report
from kgserve.model.requests import EdgeKeyRequest
from kgserve.ops.submit import submit
from kgserve.ops.validate import Faults, check_label
from kgserve.store.pool import StorePool


def delete_node(pool: StorePool, store: str, node_id: str) -> Future[DeleteNodeAnswer]:
    """Queue the removal of a node and all its edges; one that is not there is fine. Raises NotFound for the store."""
    faults = Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()

    def answer(report: Report) -> DeleteNodeAnswer:
        return DeleteNodeAnswer(
            deleted_id=node_id,
            existed=report.nodes_deleted > 0,
            edges_deleted=report.edges_deleted,
            sequence=report.sequence,
        )

    return submit(pool, store, WriteBatch(delete_nodes=[node_id], cost=len(node_id)), answer, create=False)


def delete_edge(pool: StorePool, store: str, request: EdgeKeyRequest) -> Future[DeleteEdgeAnswer]:
    """Queue the removal of one edge; one that is not there is fine. Raises NotFound for the store."""
    faults = Faults()
    key = (request.source, request.target, request.relation_type)
    for text, path in zip(key, ("from", "to", "relation_type"), strict=True):
        check_label(text, path, faults)
    faults.raise_any()

    def answer(report: Report) -> DeleteEdgeAnswer:
        return DeleteEdgeAnswer(existed=report.edges_deleted > 0, sequence=report.sequence)

    return submit(pool, store, WriteBatch(delete_edges=[key], cost=sum(map(len, key))), answer, create=False)
