"""Values of results that outlive the snapshot they were read from."""

from __future__ import annotations

from typing import Any, cast

from kgserve.cypher.interpreter.graph_view_interface import (
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
    StatementGraphView,
)


class DetachedResultElements:
    """Labels and properties of the nodes and relationships of a result.

    It has those methods of a graph view that reading a result takes.
    """

    def __init__(self) -> None:
        self._labels: dict[str, str | None] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._relationships: dict[RelationshipKey, dict[str, Any]] = {}

    def node_label(self, node_id: str) -> str | None:
        """Return the label of a node."""
        return self._labels[node_id]

    def node_properties(self, node_id: str) -> dict[str, Any]:
        """Return the properties of a node."""
        return self._nodes[node_id]

    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        """Return the properties of a relationship."""
        return self._relationships[key]

    def detach(self, value: Any) -> Any:
        """Return a value whose nodes and relationships refer to this object."""
        if isinstance(value, NodeReference):
            return self._detach_node(value)
        if isinstance(value, RelationshipReference):
            return self._detach_relationship(value)
        if isinstance(value, PathValue):
            nodes = tuple(self._detach_node(each) for each in value.nodes)
            return PathValue(nodes, tuple(self._detach_relationship(each) for each in value.relationships))
        if isinstance(value, list):
            return [self.detach(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {name: self.detach(each) for name, each in cast("dict[str, Any]", value).items()}
        return value

    def _detach_node(self, node: NodeReference) -> NodeReference:
        if node.id not in self._labels:
            self._labels[node.id] = label = node.graph.node_label(node.id)
            # A node that the statement deleted has no properties any more.
            self._nodes[node.id] = {} if label is None else node.graph.node_properties(node.id)
        return NodeReference(cast("StatementGraphView", self), node.id)

    def _detach_relationship(self, relationship: RelationshipReference) -> RelationshipReference:
        key = relationship.key
        if key not in self._relationships:
            is_there = relationship.graph.has_relationship(key)
            self._relationships[key] = relationship.graph.relationship_properties(key) if is_there else {}
        return RelationshipReference(cast("StatementGraphView", self), key)
