"""Traversals as graphs of networkx, which is imported here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import networkx as nx

if TYPE_CHECKING:
    from kgserve.model.answers import TraverseAnswer


def graph_of(walk: TraverseAnswer) -> nx.MultiDiGraph[str | tuple[str, str]]:
    """Nodes by id, edges by source, target and relation type; their fields are their data.

    Where edges into other stores were followed, a node is a store and an id.
    """
    graph: nx.MultiDiGraph[str | tuple[str, str]] = nx.MultiDiGraph(sequence=walk.sequence, truncated=walk.truncated)
    for node in walk.nodes:
        data = msgspec.structs.asdict(node)
        graph.add_node(_place(node.store, data.pop("id")), **data)
    for edge in walk.edges:
        data = msgspec.structs.asdict(edge)
        ends = _place(edge.store, data.pop("source")), _place(edge.to_graph or edge.store, data.pop("target"))
        graph.add_edge(*ends, key=edge.relation_type, **data)
    return graph


def _place(store: str | msgspec.UnsetType, node_id: str) -> str | tuple[str, str]:
    return (store, node_id) if store else node_id
