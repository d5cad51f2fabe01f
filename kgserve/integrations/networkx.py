"""networkx: graphs as lines of an import."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from kgserve.client.import_rows import (
    TRAVERSAL_EDGE_FIELDS,
    TRAVERSAL_NODE_FIELDS,
    ImportRowConverter,
    ImportRowPlace,
)
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.graph.transfer.formats.graphml import DEFAULT_NODE_TYPE, DEFAULT_RELATION_TYPE

if TYPE_CHECKING:
    import networkx as nx

_TRAVERSAL_GRAPH_DATA = {"sequence", "truncated"}


def from_networkx(graph: nx.Graph[Any]) -> list[NodeNdjsonLine | EdgeNdjsonLine]:
    """Return a networkx graph of any class as lines for `Store.import_`, nodes first.

    Keys of nodes, text or whole numbers, are the ids. Data named as fields of the exchange format (`type`, `content`,
    `weight`, …) are these fields, and all others become attributes. A node without `type` is a `node`. The relation
    type is the edge's data `relation_type`, else its key in a multigraph if that is text, else `RELATED_TO`. Edges of
    undirected graphs get the attribute `directed`: false. What `to_networkx` returns can be written again.

    Raises InvalidInput, whose message and `errors` name nodes, edges and data.
    """
    converter = ImportRowConverter()
    is_traversal = graph.graph.keys() >= _TRAVERSAL_GRAPH_DATA
    for number, (node, data) in enumerate(graph.nodes(data=True)):
        place = ImportRowPlace(f"nodes[{number}]", f"node {node!r}", "data")
        fields = _read_data(data, TRAVERSAL_NODE_FIELDS if is_traversal else frozenset())
        converter.add_node(place, {"type": DEFAULT_NODE_TYPE} | fields | {"id": node})
    for number, (source, target, key, data) in enumerate(_edges_with_keys(graph)):
        place = ImportRowPlace(f"edges[{number}]", f"edge {source!r} to {target!r}", "data")
        fields = _read_data(data, TRAVERSAL_EDGE_FIELDS if is_traversal else frozenset())
        if not graph.is_directed():
            fields.setdefault("directed", False)
        kind = key if isinstance(key, str) else DEFAULT_RELATION_TYPE
        converter.add_edge(place, {"relation_type": kind} | fields | {"from": source, "to": target})
    return converter.finish()


def _edges_with_keys(graph: Any) -> Any:
    if graph.is_multigraph():
        return graph.edges(keys=True, data=True)
    return ((source, target, None, data) for source, target, data in graph.edges(data=True))


def _read_data(data: dict[Hashable, Any], dropped: frozenset[str]) -> dict[str, Any]:
    return {str(name): value for name, value in data.items() if name not in dropped}
