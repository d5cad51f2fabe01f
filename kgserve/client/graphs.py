"""Traversals as graphs of networkx, which is imported here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import networkx as nx

if TYPE_CHECKING:
    from kgserve.model.answers import TraverseAnswer


def graph_of(walk: TraverseAnswer) -> nx.MultiDiGraph[str]:
    """Nodes by id, edges by source, target and relation type; their fields are their data."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(sequence=walk.sequence, truncated=walk.truncated)
    for node in walk.nodes:
        data = msgspec.structs.asdict(node)
        graph.add_node(data.pop("id"), **data)
    for edge in walk.edges:
        data = msgspec.structs.asdict(edge)
        graph.add_edge(data.pop("source"), data.pop("target"), key=edge.relation_type, **data)
    return graph
