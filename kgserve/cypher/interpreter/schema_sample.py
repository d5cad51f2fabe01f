"""Labels, relationship types and properties of a graph, from a sample of its nodes and their relationships."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import Any

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    ExecutionLimits,
    NodeReference,
    RelationshipReference,
    StatementGraphView,
)
from kgserve.cypher.interpreter.value_comparison import get_cypher_value_properties

DEFAULT_NODES_PER_LABEL = 200
MAX_NODES_PER_LABEL = 1_000
MAX_SAMPLED_NODES = 5_000
MAX_RELATIONSHIPS_PER_NODE = 100
_TYPE_NAMES: dict[type, str] = {
    bool: "BOOLEAN",
    int: "INTEGER",
    float: "FLOAT",
    str: "STRING",
    list: "LIST",
    dict: "MAP",
}


def format_apoc_property_type(value: Any) -> str:
    """Format the type of a property as APOC names it."""
    found = _TYPE_NAMES.get(type(value))
    return found or temporal_functions.COLUMN_TYPES.get(type(value), "ANY").replace(
        "ZONED DATETIME", "DATE_TIME"
    ).replace(" ", "_")


class GraphSchemaSample:
    """Schema of a graph inferred from a sample: labels, relationship types and properties.

    ``nodes`` and ``relationships`` have the types of properties by label and by relationship type. ``connections``
    counts the sampled relationships by source label, type and target label.
    """

    def __init__(
        self, graph: StatementGraphView, limits: ExecutionLimits, nodes_per_label: int = DEFAULT_NODES_PER_LABEL
    ) -> None:
        """Read up to ``nodes_per_label`` nodes of each label, and 5,000 in all. Raises TimedOut."""
        self.nodes: dict[str, dict[str, str]] = {}
        self.relationships: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.connections: Counter[tuple[str, str, str]] = Counter()
        self._graph = graph
        self._limits = limits
        labels = graph.labels()
        count = max(1, min(nodes_per_label, MAX_NODES_PER_LABEL, MAX_SAMPLED_NODES // max(1, len(labels))))
        for label in labels:
            properties = self.nodes.setdefault(label, {})
            for node_id in graph.sample_nodes(label, count):
                limits.step()
                _add_types(properties, get_cypher_value_properties(NodeReference(graph, node_id)))
                self._add_relationships(node_id, label)

    def _add_relationships(self, node_id: str, label: str) -> None:
        graph = self._graph
        for key in islice(graph.relationships(node_id, is_outgoing=True), MAX_RELATIONSHIPS_PER_NODE):
            self._limits.step()
            _, target, type_ = key
            _add_types(self.relationships[type_], get_cypher_value_properties(RelationshipReference(graph, key)))
            other = graph.node_label(target)
            if other is not None and other != NO_LABEL:
                self.connections[label, type_, other] += 1


def _add_types(found: dict[str, str], properties: dict[str, Any] | None) -> None:
    for name, value in (properties or {}).items():
        if name not in found:
            found[name] = format_apoc_property_type(value)
