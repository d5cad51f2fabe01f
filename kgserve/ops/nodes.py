"""The nodes of a cluster, and moving stores between them."""

from __future__ import annotations

from kgserve.model.cluster import ClusterStatus, MoveAnswer, MoveRequest
from kgserve.ops.graph import Graph, Graphs


def cluster(graphs: Graphs) -> ClusterStatus:
    """The nodes, whether they are alive, and how many stores each claims. Raises Conflict where there is no cluster."""
    return graphs.pool.placement.status()


def move(graph: Graph, request: MoveRequest) -> MoveAnswer:
    """Has another node serve a store. What is asked meanwhile waits, and goes there.

    Any node may be asked. Raises Conflict for a node that is not alive, and where there is no cluster.
    """
    return graph.pool.move(graph.name, request.to)
