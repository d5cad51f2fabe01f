"""Schema and rows of a store's Cypher as language models read them, for the adapters of LangChain and LlamaIndex."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kgserve.client import Store
from kgserve.errors import NotFound

_SCHEMA_QUERY = """
CALL apoc.meta.data() YIELD label, elementType, type, property, other
RETURN label, elementType, type, property, other
"""
_NODE_LABEL, _EDGE_LABEL = "Entity", "RELATES_TO"
_OWN_EDGE_ATTRIBUTES = {"created_at", "updated_at"}


def read_cypher_schema(store: Store) -> dict[str, Any]:
    """Return the labels, relationship types and properties of a sample of a store, in the form of Neo4j's libraries.

    ``node_props`` and ``rel_props`` hold lists of ``property`` and ``type`` by label; ``relationships`` is a list of
    ``start``, ``type`` and ``end``.
    """
    node_props: dict[str, list[dict[str, str]]] = {}
    rel_props: dict[str, list[dict[str, str]]] = {}
    relationships: list[dict[str, str]] = []
    try:
        rows = store.cypher(_SCHEMA_QUERY).rows
    except NotFound:
        rows = []
    for label, element, kind, name, others in rows:
        if element == "relationship":
            rel_props.setdefault(label, []).append({"property": name, "type": kind})
        elif kind == "RELATIONSHIP":
            relationships += [{"start": label, "type": name, "end": other} for other in others]
        else:
            node_props.setdefault(label, []).append({"property": name, "type": kind})
    return {"node_props": node_props, "rel_props": rel_props, "relationships": relationships}


def format_cypher_schema(schema: Mapping[str, Any]) -> str:
    """Return a schema as text for a prompt."""
    lines = ["Node properties:"]
    lines += [f"{label} {_format_properties(found)}" for label, found in schema["node_props"].items()]
    lines.append("Relationship properties:")
    lines += [f"{label} {_format_properties(found)}" for label, found in schema["rel_props"].items()]
    lines.append("The relationships:")
    lines += [f"(:{each['start']})-[:{each['type']}]->(:{each['end']})" for each in schema["relationships"]]
    return "\n".join(lines)


def flatten_cypher_value(value: Any) -> Any:
    """Return a node or relationship of a Cypher row as its properties, and other values as they are."""
    match value:
        case {"_label": label, "id": node_id, "type": kind, "content": content} if label == _NODE_LABEL:
            return {"id": node_id, "type": kind, "content": content, **json.loads(value["attributes"])}
        case {"_label": label, "_from": source, "_to": target, "relation_type": kind} if label == _EDGE_LABEL:
            return {"from": source, "type": kind, "to": target, **edge_properties(value)}
        case dict():
            return {name: flatten_cypher_value(each) for name, each in value.items()}
        case list():
            return [flatten_cypher_value(each) for each in value]
        case _:
            return value


def edge_properties(edge: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a relationship of a Cypher row that its writer gave it."""
    return {name: each for name, each in json.loads(edge["attributes"]).items() if name not in _OWN_EDGE_ATTRIBUTES}


def _format_properties(found: list[dict[str, str]]) -> str:
    return "{" + ", ".join(f"{each['property']}: {each['type']}" for each in found) + "}"
