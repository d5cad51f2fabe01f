"""Structures of nodes, relationships and paths.

Clients identify elements by ``elementId``; the integers of ``id`` are hashes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kgserve.cypher.interpreter.graph_element_functions import format_relationship_id, hash_element_id
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
)
from kgserve.cypher.interpreter.marker_labels import find_marker_labels_in_attributes, remove_marker_label_properties
from kgserve.errors import InvalidInput
from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.packstream import PackStreamStructure

NODE, RELATIONSHIP, UNBOUND_RELATIONSHIP, PATH = b"NRrP"

_ELEMENT_IDS_SINCE: ProtocolVersion = (5, 0)


class BoltGraphStructures:
    """Structures of graph elements in a version of Bolt; element ids exist from 5.0 on."""

    def __init__(self, version: ProtocolVersion) -> None:
        self._has_element_ids = version >= _ELEMENT_IDS_SINCE

    def writers(self) -> dict[type, Callable[[Any], PackStreamStructure]]:
        """Return the functions that turn values into structures, by class."""
        return {
            NodeReference: self.node,
            RelationshipReference: self.relationship,
            PathValue: self.path,
        }

    def node(self, node: NodeReference) -> PackStreamStructure:
        """Return the structure of a node; a node that the statement deleted has no labels and properties."""
        label = node.graph.node_label(node.id)
        labels = [] if label is None or label == NO_LABEL else [label]
        properties = {} if label is None else node.graph.node_properties(node.id)
        labels += find_marker_labels_in_attributes(properties)
        return self._element(
            NODE, [hash_element_id(node.id), labels, remove_marker_label_properties(properties)], node.id
        )

    def relationship(self, relationship: RelationshipReference) -> PackStreamStructure:
        """Return the structure of a relationship; one that the statement deleted has no properties."""
        source, target, type_ = relationship.key
        element_id = format_relationship_id(relationship.key)
        ends = hash_element_id(source), hash_element_id(target)
        fields = [hash_element_id(element_id), *ends, type_, _properties(relationship)]
        return self._element(RELATIONSHIP, fields, element_id, source, target)

    def path(self, path: PathValue) -> PackStreamStructure:
        """Return the structure of a path: its distinct nodes and relationships, and the way through them."""
        nodes: dict[str, int] = {}
        relationships: dict[RelationshipKey, int] = {}
        node_fields: list[PackStreamStructure] = []
        relationship_fields: list[PackStreamStructure] = []
        steps: list[int] = []
        for place, node in enumerate(path.nodes):
            if place:
                relationship = path.relationships[place - 1]
                number = relationships.setdefault(relationship.key, len(relationships) + 1)
                if number > len(relationship_fields):
                    relationship_fields.append(self._unbound(relationship))
                steps.append(number if relationship.key[0] == path.nodes[place - 1].id else -number)
            index = nodes.setdefault(node.id, len(nodes))
            if index == len(node_fields):
                node_fields.append(self.node(node))
            if place:
                steps.append(index)
        return PackStreamStructure(PATH, (node_fields, relationship_fields, steps))

    def _unbound(self, relationship: RelationshipReference) -> PackStreamStructure:
        element_id = format_relationship_id(relationship.key)
        fields = [hash_element_id(element_id), relationship.type, _properties(relationship)]
        return self._element(UNBOUND_RELATIONSHIP, fields, element_id)

    def _element(self, tag: int, fields: list[Any], *element_ids: str) -> PackStreamStructure:
        return PackStreamStructure(tag, (*fields, *element_ids) if self._has_element_ids else tuple(fields))


def _properties(relationship: RelationshipReference) -> dict[str, Any]:
    try:
        return relationship.graph.relationship_properties(relationship.key)
    except InvalidInput:
        return {}
