"""Nodes, relationships and paths among the values of Cypher rows, for display."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kgserve.client.graph_svg import DrawnEdge, DrawnNode

_NODE_LABEL, _EDGE_LABEL = "Entity", "RELATES_TO"


def format_cypher_value(value: Any) -> Any:
    """Return nodes, relationships and paths as in a pattern, such as ``(ada:Person)``, and other values unchanged."""
    match value:
        case {"_label": label, "id": str(node_id), "type": str(kind)} if label == _NODE_LABEL:
            return f"({node_id}:{kind})"
        case {"_label": label, "_from": source, "_to": target, "relation_type": kind} if label == _EDGE_LABEL:
            return f"({source})-[:{kind}]->({target})"
        case {"nodes": list(nodes), "relations": list(relations)} if nodes and _is_path(value):
            return _format_path(nodes, relations)
        case list():
            found = [format_cypher_value(each) for each in value]
            return value if found == value else f"[{', '.join(map(str, found))}]"
        case _:
            return value


def collect_drawn_graph(rows: Iterable[Any]) -> tuple[list[DrawnNode], list[DrawnEdge]]:
    """Return the nodes and relationships of Cypher rows, also those within paths and lists, each once.

    Ends that are not among the values are nodes without type and content.
    """
    nodes: dict[str, DrawnNode] = {}
    edges: dict[DrawnEdge, None] = {}
    waiting = list(rows)[::-1]
    while waiting:
        match waiting.pop():
            case {"_label": label, "id": str(node_id), "type": str(kind), **others} if label == _NODE_LABEL:
                nodes[node_id] = DrawnNode(node_id, node_id, kind, str(others.get("content") or ""))
            case {"_label": label, "_from": str(source), "_to": str(target), "relation_type": str(kind)} if (
                label == _EDGE_LABEL
            ):
                edges[DrawnEdge(source, target, kind)] = None
            case dict() as found:
                waiting += reversed(found.values())
            case list() as found:
                waiting += reversed(found)
            case _:
                pass
    for edge in edges:
        for end in (edge.source, edge.target):
            nodes.setdefault(str(end), DrawnNode(end, str(end), "", ""))
    return list(nodes.values()), list(edges)


def _is_path(value: dict[str, Any]) -> bool:
    return all(isinstance(each, dict) and "_label" in each for each in (*value["nodes"], *value["relations"]))


def _format_path(nodes: list[dict[str, Any]], relations: list[dict[str, Any]]) -> str:
    text = format_cypher_value(nodes[0])
    for relation, before, node in zip(relations, nodes, nodes[1:], strict=False):
        step = f"-[:{relation['relation_type']}]-"
        is_forward = relation["_from"] == before["id"]
        text += f"{step}>{format_cypher_value(node)}" if is_forward else f"<{step}{format_cypher_value(node)}"
    return text
