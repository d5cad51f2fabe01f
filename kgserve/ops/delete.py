"""Deleting one node with its edges, or one edge."""

from __future__ import annotations

from concurrent.futures import Future

from kgserve.model.answers import DeleteEdgeAnswer, DeleteNodeAnswer
from kgserve.model.batch import WriteBatch
from kgserve.model.plan import Report
from kgserve.model.queries import EdgeId, NodeId
from kgserve.model.requests import EdgeKeyRequest
from kgserve.model.rows import edge_key
from kgserve.ops.graph import Graph
from kgserve.ops.validate import Faults, check_label


def delete_node(graph: Graph, request: NodeId) -> Future[DeleteNodeAnswer]:
    """Deletes the node and every edge that touches it. Deleting a node that does not exist is not an error."""
    node_id, faults = request.node_id, Faults()
    check_label(node_id, "id", faults)
    faults.raise_any()

    def answer(report: Report) -> DeleteNodeAnswer:
        return DeleteNodeAnswer(
            deleted_id=node_id,
            existed=report.nodes_deleted > 0,
            edges_deleted=report.edges_deleted,
            sequence=report.sequence,
        )

    return graph.submit(WriteBatch(delete_nodes=[node_id], cost=len(node_id)), answer)


def delete_edge(graph: Graph, request: EdgeKeyRequest) -> Future[DeleteEdgeAnswer]:
    """Deletes the edge of this source, target and relation type; other edges between the two nodes stay.

    Deleting an edge that does not exist is not an error.
    """
    faults = Faults()
    key = (request.source, request.target, request.relation_type)
    for text, path in zip(key, ("from", "to", "relation_type"), strict=True):
        check_label(text, path, faults)
    faults.raise_any()

    def answer(report: Report) -> DeleteEdgeAnswer:
        return DeleteEdgeAnswer(existed=report.edges_deleted > 0, sequence=report.sequence)

    return graph.submit(WriteBatch(delete_edges=[key], cost=sum(map(len, key))), answer)


def delete_edge_by_id(graph: Graph, request: EdgeId) -> Future[DeleteEdgeAnswer]:
    """Deletes one edge by its id. Deleting an edge that does not exist is not an error."""
    source, target, relation_type = edge_key(request.edge_id)
    return delete_edge(graph, EdgeKeyRequest(source=source, target=target, relation_type=relation_type))
