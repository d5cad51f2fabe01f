"""Cypher functions of nodes, relationships and paths."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
)
from kgserve.cypher.interpreter.scalar_function_definition import (
    MAP,
    NODE,
    PATH,
    RELATIONSHIP,
    ScalarFunction,
    index_functions_by_name,
)
from kgserve.cypher.interpreter.value_comparison import get_cypher_value_properties
from kgserve.errors import InvalidInput
from kgserve.platform.codecs import decode_json

_ELEMENT = NODE | RELATIONSHIP
_ID_BITS = 53


def format_element_id(element: NodeReference | RelationshipReference) -> str:
    """Return the id of a node, or the JSON array of source, target and type of a relationship."""
    if isinstance(element, NodeReference):
        return element.id
    return format_relationship_id(element.key)


def format_relationship_id(key: RelationshipKey) -> str:
    """Return the element id of a relationship: a JSON array of source id, target id and type."""
    return msgspec.json.encode(key).decode()


def parse_element_id(text: str) -> str | RelationshipKey:
    """Parse an element id into the id of a node or the key of a relationship."""
    if text.startswith('["'):
        try:
            return decode_json(text, tuple[str, str, str])
        except msgspec.MsgspecError:
            return text
    return text


def hash_graph_element(element: NodeReference | RelationshipReference) -> int:
    """Return a stable integer for a node or relationship; it may collide."""
    return hash_element_id(format_element_id(element))


def hash_element_id(element_id: str) -> int:
    """Return the integer for an element id: 53 bits, which JavaScript represents exactly."""
    digest = hashlib.blake2b(element_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _ID_BITS)


def list_node_labels(node: NodeReference) -> list[str]:
    """Return the labels of a node: one or none, and its markers. Raises InvalidInput if it was deleted."""
    label = node.graph.node_label(node.id)
    if label is None:
        raise InvalidInput(f"node {node.id!r} was deleted; its labels cannot be read")
    markers = node.graph.node_markers(node.id)
    return markers if label == NO_LABEL else [label, *markers]


def _type(relationship: RelationshipReference) -> str:
    return relationship.key[2]


def _keys(value: Any) -> list[str]:
    return list(get_cypher_value_properties(value) or ())


def _nodes(path: PathValue) -> list[NodeReference]:
    return list(path.nodes)


def _relationships(path: PathValue) -> list[RelationshipReference]:
    return list(path.relationships)


def _length(path: PathValue) -> int:
    return len(path.relationships)


def _start_node(relationship: RelationshipReference) -> NodeReference:
    return NodeReference(relationship.graph, relationship.key[0])


def _end_node(relationship: RelationshipReference) -> NodeReference:
    return NodeReference(relationship.graph, relationship.key[1])


GRAPH_FUNCTIONS = index_functions_by_name(
    [
        ScalarFunction("id", hash_graph_element, (_ELEMENT,), 1),
        ScalarFunction("elementId", format_element_id, (_ELEMENT,), 1),
        ScalarFunction("labels", list_node_labels, (NODE,), 1),
        ScalarFunction("type", _type, (RELATIONSHIP,), 1),
        ScalarFunction("keys", _keys, (_ELEMENT | MAP,), 1),
        ScalarFunction("properties", get_cypher_value_properties, (_ELEMENT | MAP,), 1),
        ScalarFunction("nodes", _nodes, (PATH,), 1),
        ScalarFunction("relationships", _relationships, (PATH,), 1),
        ScalarFunction("rels", _relationships, (PATH,), 1),
        ScalarFunction("length", _length, (PATH,), 1),
        ScalarFunction("startNode", _start_node, (RELATIONSHIP,), 1),
        ScalarFunction("endNode", _end_node, (RELATIONSHIP,), 1),
    ]
)
