"""A value of an answer as the text of one cell: nodes as ``(id :type)``, relations and paths drawn as in Cypher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def cell(value: Any) -> str:
    """The text of a value that has a cell to itself; a string stands as it is."""
    return value if isinstance(value, str) else _inner(value)


def is_node(value: Any) -> bool:
    """Whether a value is a node, by the keys that the server gives one."""
    return isinstance(value, dict) and "_label" in value and "id" in value and "_from" not in value


def is_relation(value: Any) -> bool:
    """Whether a value is a relation."""
    return isinstance(value, dict) and "_label" in value and "_from" in value and "_to" in value


def is_path(value: Any) -> bool:
    """Whether a value is a path: nodes, and the relations between them."""
    match value:
        case {"nodes": list(nodes), "relations": list(relations), **others}:
            return not others and all(map(is_node, nodes)) and all(map(is_relation, relations))
        case _:
            return False


def _inner(value: Any) -> str:
    if is_relation(value):
        return f"({value['_from']})-{_arrow_text(value)}->({value['_to']})"
    if is_node(value):
        return _node(value)
    if is_path(value):
        return _path(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inner(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inner(each) for each in value) + "]"
    return msgspec.json.encode(value).decode()


def _node(node: Mapping[str, Any]) -> str:
    return f"({node['id']} :{node.get('type') or node['_label']})"


def _arrow_text(relation: Mapping[str, Any]) -> str:
    return f"[:{relation.get('relation_type') or relation['_label']}]"


def _path(path: Mapping[str, Any]) -> str:
    nodes: list[dict[str, Any]] = path["nodes"]
    if not nodes:
        return "()"
    parts = [_node(nodes[0])]
    for before, relation, after in zip(nodes, path["relations"], nodes[1:], strict=False):
        forward = relation["_from"] == before["id"]
        parts.append(f"{'-' if forward else '<-'}{_arrow_text(relation)}{'->' if forward else '-'}{_node(after)}")
    return "".join(parts)
